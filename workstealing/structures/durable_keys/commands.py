"""What becomes of each command on durable keys: which script, and how its reply is read.

The signatures and the checks of arguments are redis-py's own, because the public methods are
redis-py's own: they end in ``execute_command("SET", ...)``, and here that command is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from workstealing.store.keys import key_slot, require_users_key, to_bytes
from workstealing.store.operations import Operation, Plan
from workstealing.store.scripts import Script, load
from workstealing.structures.durable_keys.layout import KeyNames
from workstealing.structures.namespace import Layout

Arguments = Sequence[Any]
Reader = Callable[[Any], Any]


def _same(reply: Any) -> Any:
    return reply


def _is_set(reply: Any) -> bool | None:
    return None if reply is None else reply in (b"OK", "OK")


def _optional_int(reply: Any) -> int | None:
    return None if reply is None else int(reply)


def _time_reader(unit_ms: int, *, is_relative: bool) -> Reader:
    """Return what makes TTL or one of its siblings from a deadline and the server's time."""

    def read(reply: Any) -> int:
        deadline, at = int(reply[0]), int(reply[1])
        if deadline < 0:
            return deadline
        time = deadline - at if is_relative else deadline
        # As the server rounds: half a second and more is a second.
        return time if unit_ms == 1 else (time + 500) // 1000

    return read


_TIMES: dict[str, Reader] = {
    "TTL": _time_reader(1000, is_relative=True),
    "PTTL": _time_reader(1, is_relative=True),
    "EXPIRETIME": _time_reader(1000, is_relative=False),
    "PEXPIRETIME": _time_reader(1, is_relative=False),
}
# The ms of a unit, and whether the amount is counted from now.
_EXPIRES: dict[str, tuple[int, int]] = {
    "EXPIRE": (1000, 1),
    "PEXPIRE": (1, 1),
    "EXPIREAT": (1000, 0),
    "PEXPIREAT": (1, 0),
}
# How many keys one script touches, so that it does not hold the server for long.
KEYS_A_PIECE = 500
# How many arguments these take at least, their own names included; all others take two.
_LEAST = {"SET": 3, **dict.fromkeys(_EXPIRES, 3)}
_NAMES_SEVERAL = frozenset({"MGET", "EXISTS", "DEL", "UNLINK"})
_WRITES = frozenset(
    {"SET", "GETEX", "GETDEL", "DEL", "UNLINK", "PERSIST", "ACQUIRE", "RELEASE", "EXTEND"}
    | _EXPIRES.keys()
)


def require_users_keys(args: Arguments) -> None:
    """Refuse a command that names one of this package's own keys. Errors: ConfigurationError."""
    for name in args[1:] if args[0] in _NAMES_SEVERAL else args[1:2]:
        require_users_key(name)


class Translator:
    """Turns redis-py's commands into plans on one namespace.

    Arguments: names of the namespace; on_cluster: whether keys of different slots are on different
    nodes; clock_shift_ms: for tests.
    """

    def __init__(self, names: KeyNames, *, on_cluster: bool, clock_shift_ms: int = 0) -> None:
        self._names = names
        self._on_cluster = on_cluster
        self.clock_shift_ms = clock_shift_ms

    def script(self, name: str) -> Script:
        """Return a script by its name, with the clock of this translator."""
        return load(f"durable_{name}", self.clock_shift_ms)

    def shards(self, layout: Layout, args: Arguments) -> set[int]:
        """Return the index shards that a command may write to, none if it only reads."""
        if args[0] not in _WRITES or _is_bare_getex(args):
            return set()
        names = args[1:] if args[0] in ("DEL", "UNLINK") else args[1:2]
        return {layout.shard_of(key_slot(to_bytes(name))) for name in names}

    def translate(self, layout: Layout, args: Arguments, options: dict[str, Any]) -> Plan:
        """Return the plan that does what a command says.

        Errors: LayoutError for a write to a layout that this release may only read; ResponseError
        for a command that durable keys do not have, or with too few arguments.
        """
        word = args[0]
        if len(args) < _LEAST.get(word, 2):
            raise ResponseError(f"wrong number of arguments for '{word.lower()}' command")
        if word in _WRITES:
            layout.require_writable()
        if word == "GET" or _is_bare_getex(args):
            return self._reading("get", layout, args[1])
        if word in _TIMES:
            return self._reading("deadline", layout, args[1], _TIMES[word])
        if word == "MGET":
            return self._mget(layout, args[1:])
        if word == "EXISTS":
            return self._each("exists", layout, args[1:])
        if word in ("DEL", "UNLINK"):
            return self._each("delete" if word == "DEL" else "unlink", layout, args[1:])
        if word == "SET":
            # With GET the reply is the value before, whatever it says.
            read = _same if options.get("get") or "GET" in _words(args[3:]) else _is_set
            return self._writing("set", layout, args[1], args[2:], read)
        if word in _EXPIRES:
            amounts = (word.lower(), *_EXPIRES[word], *args[2:])
            return self._writing("expire", layout, args[1], amounts, bool)
        if word in ("GETEX", "GETDEL"):
            return self._writing(word.lower(), layout, args[1], args[2:], _same)
        if word in ("PERSIST", "RELEASE", "EXTEND"):
            return self._writing(word.lower(), layout, args[1], args[2:], bool)
        if word == "ACQUIRE":
            name = to_bytes(args[1])
            fence = self._names.fence(layout.shard_of(key_slot(name)))
            keys = (*self._names.for_writing(name, layout), fence)
            values = (layout.mark, *args[2:])
            return Plan((Operation(self.script("acquire"), keys, values, _optional_int),))
        raise ResponseError(f"durable keys do not have the command {word}")

    def _reading(self, script: str, layout: Layout, name: Any, read: Reader = _same) -> Plan:
        keys = self._names.for_reading(to_bytes(name), layout)
        return Plan((Operation(self.script(script), keys, (), read),))

    def _writing(
        self, script: str, layout: Layout, name: Any, values: Arguments, read: Reader
    ) -> Plan:
        keys = self._names.for_writing(to_bytes(name), layout)
        return Plan((Operation(self.script(script), keys, (layout.mark, *values), read),))

    def _each(self, script: str, layout: Layout, names: Arguments) -> Plan:
        """Return the plan of a command that counts, one script for each slot on a cluster."""
        is_reading = script == "exists"
        keys_of = self._names.for_reading if is_reading else self._names.for_writing
        values = () if is_reading else (layout.mark,)
        operations = tuple(
            Operation(
                self.script(script), sum((keys_of(name, layout) for name in some), ()), values, int
            )
            for some in self._grouped(names)
        )
        return Plan(operations, sum)

    def _mget(self, layout: Layout, names: Arguments) -> Plan:
        groups = self._grouped(names)
        operations = tuple(
            Operation(
                self.script("mget"),
                sum((self._names.for_reading(name, layout) for name in some), ()),
                (),
                _same,
            )
            for some in groups
        )

        def combine(replies: list[Any]) -> list[Any]:
            found = {
                name: value
                for some, values in zip(groups, replies, strict=True)
                for name, value in zip(some, values, strict=True)
            }
            return [found[to_bytes(name)] for name in names]

        return Plan(operations, combine)

    def _grouped(self, names: Arguments) -> list[list[bytes]]:
        """Return names as bytes, in groups that one script may touch."""
        raw = [to_bytes(name) for name in names]
        groups: dict[int, list[bytes]] = {}
        for name in raw:
            groups.setdefault(key_slot(name) if self._on_cluster else 0, []).append(name)
        return [
            some[first : first + KEYS_A_PIECE]
            for some in groups.values()
            for first in range(0, len(some), KEYS_A_PIECE)
        ]


def _is_bare_getex(args: Arguments) -> bool:
    """Say whether a GETEX has no option, and so only reads."""
    return args[0] == "GETEX" and len(args) == 2


def _words(args: Arguments) -> set[str]:
    return {arg.upper() for arg in args if isinstance(arg, str)}
