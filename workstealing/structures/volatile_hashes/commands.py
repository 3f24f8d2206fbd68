"""The keys beside a hash, and the script of each command on an emulated namespace.

The signatures and the checks of arguments are redis-py's own, because the public methods are
redis-py's own: they end in ``execute_command("HSETEX", ...)``, and here that command is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError
from workstealing.store.keys import SLOT_TAGS, key_slot, require_users_key, to_bytes
from workstealing.store.operations import AS_BYTES, Operation
from workstealing.store.operations import command as plain
from workstealing.store.scripts import Script, load
from workstealing.store.sending import MayRepeat
from workstealing.structures.namespace import (
    EMULATED,
    LEAVING,
    MIGRATING,
    NATIVE,
    RETURNING,
    Layout,
    Names,
    NamespaceKind,
)
from workstealing.structures.volatile_hashes.surface import (
    COUNT_EXISTING,
    FORGET,
    LEASE,
    LEASING,
    LOOK,
    MOVE_FIELD,
    OWN_COMMANDS,
    STORE,
    UNLEASE,
    require_faithful,
)

Arguments = Sequence[Any]
# unpack() in a script has its limits.
_GUARDED_ARGUMENTS = 4000
# A million of small ones take a server some 0.1 s. Redis 6.2.5 crashed of the largest number.
_MOST_RANDOM_FIELDS = 100_000

NATIVE_COMMANDS = ("HSETEX", "HGETEX", "HPEXPIREAT", "HPEXPIRETIME", "HPERSIST")
OPTIONAL_NATIVE_COMMANDS = ("HGETDEL",)
VOLATILE_HASHES = NamespaceKind(
    name="volatile_hashes",
    called="volatile hashes",
    version=1,
    backends=(EMULATED, MIGRATING, NATIVE, LEAVING, RETURNING),
    evicted="a hash's deadlines without the hash",
    remedy=" a server that expires fields itself,",
)


class HashNames(Names):
    """The names of the keys beside the user's own; see the catalogue in ``lua/README.md``."""

    kind = VOLATILE_HASHES

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self._deadlines_middle = self._middle + b":ttl:"
        self._computing_middle = self._middle + b":computing:"

    def deadlines(self, key: bytes) -> bytes:
        """Return the key of a hash's deadlines, in the hash's own slot."""
        return b"{" + SLOT_TAGS[key_slot(key)] + self._deadlines_middle + key

    def computing(self, key: bytes) -> bytes:
        """Return the key of the leases of those who compute a hash's fields, in its slot."""
        return b"{" + SLOT_TAGS[key_slot(key)] + self._computing_middle + key

    def adoption(self, which: str, node: object) -> bytes:
        """Return the key of an adoption's place on one node: a cursor and counters."""
        where = "server" if node is None else ":".join(map(str, node))  # type: ignore[call-overload]
        return f"ws:{self.namespace}:adopt:{which}:{where}".encode()

    def for_reading(self, key: bytes) -> tuple[bytes, ...]:
        """Return the keys of a reading script: the hash and its deadlines."""
        return (key, b"{" + SLOT_TAGS[key_slot(key)] + self._deadlines_middle + key)

    def for_writing(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a writing script: the hash, its deadlines, due index and mark."""
        slot = key_slot(key)
        shard = slot % layout.index_shards
        # Without a call of index_keys(): every write runs this line.
        index = self._index_keys.get(shard) or self.index_keys(shard)
        return (key, b"{" + SLOT_TAGS[slot] + self._deadlines_middle + key, *index)


def _same(reply: Any) -> Any:
    return reply


def _parsing(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the caller's options of parsing that hold for a script's reply, too."""
    return AS_BYTES if NEVER_DECODE in options else {}


def _pairs(reply: list[Any]) -> dict[Any, Any]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _scanned(reply: Any) -> tuple[int, dict[Any, Any]]:
    return int(reply[0]), _pairs(reply[1])


def _scanned_fields(reply: Any) -> tuple[int, list[Any]]:
    return int(reply[0]), list(reply[1])


def _sum(reply: Any) -> int | None:
    return None if reply is None else int(reply)


def _is_ok(reply: Any) -> bool:
    return reply in (b"OK", "OK")


def _is_done(_: Any) -> bool:
    return True


def _listed_pairs(reply: list[Any]) -> list[list[Any]]:
    return [list(pair) for pair in zip(reply[::2], reply[1::2], strict=True)]


@dataclass(frozen=True)
class _HashCommand:
    """One command: its script, whether it writes, and the reader of its reply."""

    script: str
    writes: bool
    read: Callable[[Any], Any] = _same
    keys: int = 1
    # Whether a reading script must know which backend holds the deadlines.
    checked: bool = False
    # Arguments about the command for the script, before the user's own.
    told: tuple[str | int, ...] = ()


def _reading(name: str, read: Callable[[Any], Any] = _same) -> _HashCommand:
    return _HashCommand(f"volatile_hashes/{name}", False, read)


def _writing(name: str, read: Callable[[Any], Any] = _same, keys: int = 1) -> _HashCommand:
    return _HashCommand(f"volatile_hashes/{name}", True, read, keys)


def _lasting(name: str, unit_ms: int, relative: int) -> _HashCommand:
    told = (name.lower(), unit_ms, relative)
    return _HashCommand("volatile_hashes/hexpire", writes=True, told=told)


def _ending(name: str, unit_ms: int, relative: int) -> _HashCommand:
    told = (name, unit_ms, relative)
    return _HashCommand("volatile_hashes/expire", writes=True, read=bool, told=told)


def _telling(unit_ms: int, relative: int) -> _HashCommand:
    told = (unit_ms, relative)
    return _HashCommand("volatile_hashes/httl", writes=False, checked=True, told=told)


_COMMANDS: dict[str, _HashCommand] = {
    **{name.upper(): _reading(name) for name in ("hget", "hmget", "hlen", "hkeys", "hvals")},
    **{name.upper(): _reading(name) for name in ("hstrlen", "hrandfield", "exists")},
    LOOK: _HashCommand("volatile_hashes/hlook", writes=False, checked=True),
    "HTTL": _telling(1000, 1),
    "HPTTL": _telling(1, 1),
    "HEXPIRETIME": _telling(1000, 0),
    "HPEXPIRETIME": _telling(1, 0),
    **{
        name: _HashCommand("volatile_hashes/ttl", writes=False, told=(name,))
        for name in ("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME")
    },
    "HEXISTS": _reading("hexists", bool),
    "HGETALL": _reading("hgetall", _pairs),
    "HSCAN": _reading("hscan", _scanned),
    **{name.upper(): _writing(name) for name in ("hset", "hsetnx", "hsetex", "hgetex", "hgetdel")},
    **{name.upper(): _writing(name) for name in ("hdel", "hpersist")},
    "HEXPIRE": _lasting("HEXPIRE", 1000, 1),
    "HPEXPIRE": _lasting("HPEXPIRE", 1, 1),
    "HEXPIREAT": _lasting("HEXPIREAT", 1000, 0),
    "HPEXPIREAT": _lasting("HPEXPIREAT", 1, 0),
    "HMSET": _writing("hset", _is_done),
    "HINCRBY": _writing("hincrby", int),
    COUNT_EXISTING: _writing("hincrby", _sum),
    "HINCRBYFLOAT": _writing("hincrbyfloat", float),
    **{
        name: _HashCommand("volatile_hashes/delete", writes=True, told=(name,))
        for name in ("DEL", "UNLINK")
    },
    LEASE: _writing("hlease"),
    UNLEASE: _writing("hunlease", bool),
    STORE: _writing("hstore", bool),
    FORGET: _writing("hforget"),
    "EXPIRE": _ending("EXPIRE", 1000, 1),
    "PEXPIRE": _ending("PEXPIRE", 1, 1),
    "EXPIREAT": _ending("EXPIREAT", 1000, 0),
    "PEXPIREAT": _ending("PEXPIREAT", 1, 0),
    "PERSIST": _writing("persist", bool),
    "RENAME": _writing("rename", _is_ok, keys=2),
    "RENAMENX": _writing("renamenx", bool, keys=2),
    "COPY": _writing("copy", bool, keys=2),
    MOVE_FIELD: _writing("hmovefield", bool, keys=2),
}


_COUNTING = frozenset(
    f"H{name}"
    for name in (
        *("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PERSIST", "GETEX", "GETDEL"),
        *("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"),
    )
)
_REFUSED_BARE = _COUNTING | {"HDEL", "HMGET", "COPY"}


# A second sending would do, or answer, something else. HSET's count of new fields is left to the
# client's retries: what it sets is the same.
_ONCE = frozenset(
    {"HINCRBY", COUNT_EXISTING, "HINCRBYFLOAT", "HSETNX", "HDEL", "HGETDEL", "DEL", "UNLINK"}
    | {"RENAME", "RENAMENX", "COPY", MOVE_FIELD, FORGET}
)
_CONDITIONS = frozenset({"NX", "XX", "GT", "LT", "FNX", "FXX"})
_ONCE_ON_CONDITION = frozenset(
    {"HSETEX", "HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT"}
    | {"EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"}
)


def is_once(args: Arguments) -> bool:
    """Say whether a command must not be sent twice."""
    word = args[0]
    if isinstance(word, MayRepeat):
        return False
    if word in _ONCE:
        return True
    if word == STORE:
        return "FNX" in args[7:8]
    if word not in _ONCE_ON_CONDITION:
        return False
    options = args[2 : args.index("FIELDS", 2)] if "FIELDS" in args[2:] else args[2:]
    return not _CONDITIONS.isdisjoint(each for each in options if isinstance(each, str))


_TIMED = frozenset({"HSETEX", "HGETEX"})
# More seconds or milliseconds, or more arguments, are left to the scripts' ways for any call.
_USUAL_TIME, _USUAL_ARGUMENTS = 10**9, 2000


def _usual_ms(args: Arguments) -> int:
    """Return the time of a usual HSETEX or HGETEX in ms; 0 for any other one.

    A usual call has EX or PX, and nothing else before FIELDS. Its script is told less.
    """
    if not 6 < len(args) <= _USUAL_ARGUMENTS or args[4] != "FIELDS":
        return 0
    amount = args[3]
    if type(amount) is not int or not 0 < amount < _USUAL_TIME:
        return 0
    if args[2] == "EX":
        return 1000 * amount
    return amount if args[2] == "PX" else 0


_NAMES_TWO = frozenset(word for word, command in _COMMANDS.items() if command.keys == 2)


def _require_arguments(word: str, args: Arguments) -> None:
    """Refuse a command without fields, as the server would, and a copy to another database."""
    counts = word in _COUNTING and tuple(args[-2:]) == ("FIELDS", 0)
    if counts or (word in ("HDEL", "HMGET") and len(args) == 2):
        raise ResponseError(f"wrong number of arguments for '{word.lower()}' command")
    if word == "COPY" and "DB" in args[3:4]:
        raise ResponseError(
            "volatile hashes are copied within their own database: leave out the other"
        )


def _require_few(count: Any) -> None:
    """Refuse a number of random fields, with repetitions, that holds the server for seconds."""
    try:
        number = int(count)
    except (TypeError, ValueError):
        # The server's to refuse.
        return
    if number < -_MOST_RANDOM_FIELDS:
        raise ConfigurationError(
            f"hrandfield(count={number}) asks for {-number:,} fields at once, which would hold the"
            f" server: ask for at most {_MOST_RANDOM_FIELDS:,} of them, several times"
        )


def require_users_keys(args: Arguments) -> None:
    """Refuse a command that no server is to be sent. Raises: ConfigurationError.

    Such a command names one of this package's own keys, or asks for too many random fields.
    """
    require_users_key(args[1])
    word = args[0]
    if word in _NAMES_TWO:
        require_users_key(args[2])
    elif word == "HRANDFIELD" and len(args) > 2:
        _require_few(args[2])


def hashes_in(args: Arguments) -> Arguments:
    """Return the hashes that a command names."""
    return args[1:3] if args[0] in _NAMES_TWO else args[1:2]


class HashTranslator:
    """Turns redis-py's commands into operations on one namespace.

    Arguments:
        names: of the namespace.
        nested_pairs: whether the client gives HRANDFIELD's values as nested pairs, as redis-py does
            with protocol 3.
        clock_shift_ms: for tests.
    """

    def __init__(self, names: HashNames, *, nested_pairs: bool, clock_shift_ms: int = 0) -> None:
        self._names = names
        self._nested_pairs = nested_pairs
        self.clock_shift_ms = clock_shift_ms
        self._scripts: dict[str, Script] = {}
        # Of a call that is joined with its neighbours: its own, and that of some; by its word.
        self._joined: dict[str, tuple[Script, Script]] = {}

    def translate(self, layout: Layout, args: Arguments, options: dict[str, Any]) -> Operation:
        """Return the operation for a command on an emulated namespace.

        Raises: LayoutError for a write to a layout that this release may only read; ResponseError
        for a command that volatile hashes do not have.
        """
        word = args[0]
        if word in _TIMED:
            ms = _usual_ms(args)
            if ms:
                layout.require_writable()
                keys = self._names.for_writing(to_bytes(args[1]), layout)
                values: tuple[Any, ...] = (b"%d" % ms, layout.mark, *args[6:])
                script, some = self._joined.get(word) or self._scripts_of(word)
                return Operation(script, keys, values, together=some)
            if word == "HGETEX" and args[2] == "FIELDS":
                # Without an option it only reads.
                word, args = "HMGET", ("HMGET", args[1], *args[4:])
        command = _COMMANDS.get(word)
        if command is None:
            raise ResponseError(f"volatile hashes do not have the command {word}")
        if word in _REFUSED_BARE:
            _require_arguments(word, args)
        if word in LEASING:
            return self._leasing(layout, args)
        script = self._scripts.get(command.script) or self.script(command.script)
        name = to_bytes(args[1])
        if not command.writes:
            keys = self._names.for_reading(name)
            if word == "HMGET" and len(args) <= _USUAL_ARGUMENTS:
                script, some = self._joined.get(word) or self._scripts_of(word)
                fields, parsing = tuple(args[2:]), _parsing(options)
                return Operation(script, keys, fields, options=parsing, together=some)
            read = self._reader(word, command, args, options)
            if command.checked:
                keys += (self._names.mark(layout.shard_of(key_slot(name))),)
                values = (layout.mark, *command.told, *args[2:])
            else:
                values = (*command.told, *args[2:])
            return Operation(script, keys, values, read, _parsing(options))
        layout.require_writable()
        keys = self._names.for_writing(name, layout)
        if command.keys == 2:
            other = to_bytes(args[2])
            keys += self._names.for_writing(other, layout)
            if word == MOVE_FIELD:
                keys += (self._names.computing(other),)
        values = (layout.mark, *command.told, *args[1 + command.keys :])
        return Operation(script, keys, values, command.read, once=is_once(args))

    def _scripts_of(self, word: str) -> tuple[Script, Script]:
        """Return the script of a usual call, and that of some neighbouring ones."""
        names = {
            "HSETEX": "volatile_hashes/hsetex_run",
            "HGETEX": "volatile_hashes/hgetex_run",
            "HMGET": "volatile_hashes/hmget_run",
        }
        both = self.script(_COMMANDS[word].script), self.script(names[word])
        self._joined[word] = both
        return both

    def _reader(
        self, word: str, command: _HashCommand, args: Arguments, options: dict[str, Any]
    ) -> Callable[[Any], Any]:
        if word == "HSCAN" and options.get("no_values"):
            return _scanned_fields
        if word == "HRANDFIELD" and self._nested_pairs and args[3:] == ("WITHVALUES",):
            return _listed_pairs
        return command.read

    def operations(
        self, layout: Layout, args: Arguments, options: dict[str, Any]
    ) -> list[Operation]:
        """Return the operations that do a command by any layout; the last one gives its reply.

        The operations before it hand the command's hashes over to their present keeper. If a script
        refuses, because the layout has changed, none has done anything that may not be done again.
        Raises: as `translate`.
        """
        before: list[Operation] = []
        if not layout.writable and not self.only_reads(args):
            # Where the server keeps the deadlines, no script would refuse it.
            layout.require_writable()
        if args[0] in layout.quirks and not layout.is_emulated:
            require_faithful(args)
        if layout.is_emulated:
            if layout.backend == RETURNING:
                before = self.takes(layout, args)
            last = self.translate(layout, args, options)
        elif args[0] in LEASING:
            before = self.moves(layout, args) if layout.is_migrating else []
            last = self._leasing(layout, args)
        elif layout.is_guarded:
            last = self.guarded(layout, args, options)
        else:
            if layout.is_migrating:
                before = self.moves(layout, args)
            if args[0] in layout.missing:
                last = self.substitute(args, options)
            else:
                last = plain(*args, options=options, once=is_once(args))
        return [*before, last]

    def _leasing(self, layout: Layout, args: Arguments) -> Operation:
        """Return the operation of a command that knows of leases, the same one on every backend."""
        layout.require_writable()
        command, native, mark = _COMMANDS[args[0]], LEASING[args[0]], layout.mark
        if layout.backend == EMULATED or (layout.is_emulated and args[0] != LEASE):
            native = ""
        elif layout.is_migrating:
            mark = layout.marks_of(MIGRATING, NATIVE)
        name = to_bytes(args[1])
        keys = (*self._names.for_writing(name, layout), self._names.computing(name))
        values = (mark, native, *command.told, *args[2:])
        script = self.script(command.script)
        return Operation(script, keys, values, command.read, AS_BYTES, once=is_once(args))

    def guarded(self, layout: Layout, args: Arguments, options: dict[str, Any]) -> Operation:
        """Return the operation that runs a command of the server's own under a mark.

        Raises: ResponseError for a command that volatile hashes do not have.
        """
        command = _COMMANDS.get(args[0])
        if command is None:
            raise ResponseError(f"volatile hashes do not have the command {args[0]}")
        if args[0] in layout.missing and args[0] != "HSCAN":
            # An older redis-py misreads HSCAN's own reply, but not a script's.
            return self._substitute(args, options, layout)
        if len(args) > _GUARDED_ARGUMENTS:
            # More than a script can pass on: it is as in a native namespace.
            return plain(*args, options=options, once=is_once(args))
        keys: list[bytes] = []
        for name in self.names_in(args):
            keys += (name, self._names.mark(layout.shard_of(key_slot(name))))
        values = (layout.mark, args[0], *args[1 + command.keys :])
        script = self.script("volatile_hashes/guarded")
        read = self._reader(args[0], command, args, options)
        once = is_once(args)
        return Operation(script, tuple(keys), values, read, _parsing(options), once=once)

    def takes(self, layout: Layout, args: Arguments) -> list[Operation]:
        """Return the operations that hand a command's fields back before it runs.

        A command that neither writes nor tells deadlines needs none: the server itself hides the
        fields whose deadlines it keeps.
        """
        command = _COMMANDS.get(args[0])
        if command is None or (self.only_reads(args) and not command.checked):
            return []
        fields: Arguments = ()
        if "FIELDS" in args[2:]:
            fields = args[args.index("FIELDS", 2) + 2 :]
            if args[0] == "HSETEX":
                fields = fields[::2]
            elif args[0] in LEASING:
                # Behind them there are the lease's own arguments.
                at = args.index("FIELDS", 2) + 1
                fields = fields[: args[at]]
        takes_all = command.keys == 2 and args[0] != MOVE_FIELD
        return [
            self.take_back(layout, name, fields, takes_all=takes_all)
            for name in self.names_in(args)
        ]

    def take_back(
        self, layout: Layout, key: bytes, fields: Arguments, *, takes_all: bool = False
    ) -> Operation:
        """Return the operation that hands fields of a hash back from the server.

        Arguments:
            takes_all: all of its fields, for a command that copies or renames the hash.
        """
        marks = (
            layout.marks_of(EMULATED, RETURNING),
            layout.marks_of(RETURNING),
            layout.marks_of(NATIVE),
        )
        script = self.script("volatile_hashes/take_back")
        return Operation(
            script, self._names.for_writing(key, layout), (*marks, int(takes_all), *fields), int
        )

    def moves(self, layout: Layout, args: Arguments) -> list[Operation]:
        """Return the operations that hand a command's hashes over to the server before it runs."""
        return [self.move(layout, name, None) for name in self.names_in(args)]

    def move(self, layout: Layout, key: bytes, most: int | None) -> Operation:
        """Return the operation that hands at most `most` fields of a hash over to the server."""
        marks = (
            layout.marks_of(MIGRATING, NATIVE),
            layout.marks_of(MIGRATING),
            layout.marks_of(EMULATED),
        )
        args = (*marks, "" if most is None else most)
        script = self.script("volatile_hashes/migrate")
        return Operation(script, self._names.for_writing(key, layout), args, int)

    def substitute(self, args: Arguments, options: Mapping[str, Any]) -> Operation:
        """Return the operation for a command that a native server lacks, or an older redis-py."""
        if args[0] == "HSCAN":
            # Its options come in twos, but for NOVALUES. redis-py splits a name at spaces when it
            # sends it, but finds no reader by this one, and an older one's reader loses the fields.
            read = _scanned if len(args) % 2 else _scanned_fields
            return Operation(None, (args[1],), ("HSCAN ", *args[1:]), read)
        return self._substitute(args, options)

    def _substitute(
        self, args: Arguments, options: Mapping[str, Any], guarding: Layout | None = None
    ) -> Operation:
        """Return the script for a command that a server lacks; guarding: it looks at the mark."""
        script = self.script(f"volatile_hashes/native_{args[0].lower()}")
        names, mark = tuple(map(to_bytes, hashes_in(args))), ""
        keys: tuple[Any, ...] = names
        if guarding is not None:
            shards = (guarding.shard_of(key_slot(name)) for name in names)
            keys, mark = (*names, *map(self._names.mark, shards)), guarding.mark
        if args[0] == MOVE_FIELD:
            keys = (*keys, self._names.computing(names[1]))
        reads = _COMMANDS[args[0]].read if args[0] in OWN_COMMANDS else _same
        values = (mark, *args[1 + len(names) :])
        return Operation(script, keys, values, reads, _parsing(options), once=is_once(args))

    def names_in(self, args: Arguments) -> tuple[bytes, ...]:
        """Return the hashes that a command names."""
        command = _COMMANDS.get(args[0])
        names = args[1 : 1 + command.keys] if command is not None else ()
        return tuple(to_bytes(name) for name in names)

    def only_reads(self, args: Arguments) -> bool:
        """Say whether a command changes nothing."""
        command = _COMMANDS.get(args[0])
        is_reading = command is not None and not command.writes
        return is_reading or (args[0] == "HGETEX" and args[2] == "FIELDS")

    def shards(self, layout: Layout, args: Arguments) -> tuple[int, ...]:
        """Return the index shards whose mark a command's scripts write or look at."""
        command = _COMMANDS.get(args[0])
        looks = command is not None and (command.writes or command.checked or layout.is_migrating)
        if not looks:
            return ()
        return tuple(layout.shard_of(key_slot(name)) for name in self.names_in(args))

    def script(self, name: str) -> Script:
        """Return a script by its name, with the clock of this translator."""
        script = self._scripts.get(name)
        if script is None:
            script = self._scripts[name] = load(name, self.clock_shift_ms)
        return script
