"""The commands on durable keys: redis-py's methods, the leases, and the scripts that do them.

The signatures and the checks of arguments are redis-py's own, because the public methods are
redis-py's own: they end in ``execute_command("SET", ...)``, and here that command is looked up. A
deadline stands in the due index and nowhere else. So only a key and its due index must change
together, and one script changes the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from workstealing.clock import Duration, milliseconds_of
from workstealing.errors import ConfigurationError
from workstealing.store.grants import Asking, asks, checked_nonce
from workstealing.store.keys import SLOT_TAGS, key_slot, require_users_key, to_bytes
from workstealing.store.operations import Operation, Steps, operation, same
from workstealing.store.redis_versions import AWAITED, BLOCKING, AsyncLifetimes, BlockingLifetimes
from workstealing.store.scripts import Script, load
from workstealing.structures.namespace import Layout, Names, NamespaceKind

# About 140,000 years: with the time of today added, a sorted set's score is still exact.
_LONGEST_MS = 2**52

DURABLE = "durable"
DURABLE_KEYS = NamespaceKind(
    name="durable_keys",
    called="durable keys",
    version=1,
    backends=(DURABLE,),
    evicted="a durable key before its deadline",
)


class KeyNames(Names):
    """The names of the keys beside the user's own; see the catalogue in ``lua/README.md``."""

    kind = DURABLE_KEYS

    def for_reading(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a reading script: the user's own and its due index."""
        return (key, self.index_keys(layout.shard_of(key_slot(key)))[0])

    def for_writing(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a writing script: the user's own, its due index and its mark."""
        return (key, *self.index_keys(layout.shard_of(key_slot(key))))

    def fence(self, shard: int) -> bytes:
        """Return the key of the last fencing token of an index shard."""
        return b"{" + SLOT_TAGS[shard] + self._middle + b":fence"

    def grant(self, key: bytes) -> bytes:
        """Return the key beside a lease that holds its token and its holder's nonce."""
        return self._beside(key) + b":grant:" + key

    def withdrawn(self, key: bytes, nonce: bytes) -> bytes:
        """Return the key that says of a nonce that it is to be granted nothing any more."""
        return self._beside(key) + b":withdrawn:" + nonce + b":" + key

    def _beside(self, key: bytes) -> bytes:
        # In the very slot of the lease, so that on a fleet both have the same home.
        return b"{" + SLOT_TAGS[key_slot(key)] + self._middle


class _KeySurface:
    """The commands of durable keys that redis-py does not have.

    A command costs one round trip and at most eight Redis commands a name; on a cluster `mget`,
    `exists`, `delete` and `unlink` cost a round trip for each hash slot among the names. Raises,
    besides redis-py's own errors: LayoutError if one of this package's keys holds something
    foreign; ResponseError (WRONGTYPE) for a key that holds no string. Nothing is changed then.
    """

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run, or queue, one command of redis-py's; all its methods end here.

        Raises: errors of redis-py; LayoutError; ConfigurationError for a name of this package's own
        keys.
        """
        return self._run(self._command(args, options))

    if TYPE_CHECKING:

        def _run(self, steps: Steps[Any]) -> Any: ...
        def _ask(self, asking: Asking[Any]) -> Any: ...
        def withdrawal(self, name: Any, nonce: bytes) -> Steps[Any]: ...

    def _command(self, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        raise NotImplementedError

    @asks
    def acquire(
        self, name: Any, lease: Duration, *, nonce: str | bytes | None = None
    ) -> Asking[int | None]:
        """Take a lease on a name, which ends by itself.

        Arguments:
            name: a key like any other.
            lease: how long it holds, in seconds (fractions are allowed) or a timedelta.
            nonce: a text of 1 to 64 bytes that nobody else uses, for this grant alone; by default,
                a new one.

        Returns: the fencing token, an int greater than all earlier tokens of this name, or None if
        the key exists. Asked again with the same nonce, it returns the same token, as long as the
        lease holds. Raises: ConfigurationError for an unusable lease or nonce; LayoutError; errors
        of redis-py. It never waits. One round trip.

        Give the token to the resource that the lease protects, and let the resource refuse a token
        smaller than one it has seen. A holder that stalls past its deadline does not know that it
        has lost the lease.

        A call that is interrupted (cancelled, or by a signal handler's exception) or cut off gives
        the lease back before it raises, if the server answers within the client's time-out. Nothing
        is given back after a time-out of the client's own: `release` by the nonce does it.
        """
        return self.asking(name, lease, checked_nonce(nonce))

    def asking(self, name: Any, lease: Duration, nonce: bytes) -> Asking[int | None]:
        """Return what asks for a lease; for the package itself. Arguments as of `acquire`."""
        # A pipeline gives back by itself all that it has asked for.
        return Asking(
            self._command(("ACQUIRE", name, _milliseconds(lease), nonce), {}),
            lambda: self.withdrawal(name, nonce),
        )

    @operation
    def release(
        self, name: Any, token: int | None = None, *, nonce: str | bytes | None = None
    ) -> Steps[bool]:
        """Give a lease back before it ends.

        Arguments:
            token: the holder's, as `acquire` returned it; or nonce: the one that `acquire` was
                given, where nobody knows the token.

        Returns: True; False if the token, or the nonce, does not hold the lease (any more), and the
        lease is not changed. After a release by nonce, this nonce is granted nothing for a minute:
        its `acquire` may still be under way. Raises: ConfigurationError for an unusable token or
        nonce; LayoutError; errors of redis-py. The release is sent once, whatever the client's
        retries: a lost reply raises a ConnectionError, and then another call does no harm. One
        round trip.

        The value of a lease is its token, of 16 digits (17 from the year 2286 on). A number of as
        many digits that you `set` can be released like a lease; no other value can.
        """
        if token is None and nonce is not None:
            return self._command(("WITHDRAW", name, checked_nonce(nonce)), {})
        if nonce is not None:
            raise ConfigurationError("a token and a nonce were given: give one of the two")
        return self._command(("RELEASE", name, _checked_token(token)), {})

    @operation
    def extend(self, name: Any, token: int, lease: Duration) -> Steps[bool]:
        """Let a lease end `lease` from now.

        Arguments as of `release` and `acquire`. Returns: True; False if the token does not hold
        the lease (any more), and nothing is changed. Raises: ConfigurationError for an unusable
        token or lease; LayoutError; errors of redis-py. One round trip.
        """
        return self._command(
            (
                "EXTEND",
                name,
                _checked_token(token),
                _milliseconds(lease),
            ),
            {},
        )


class BlockingKeySurface(_KeySurface, BlockingLifetimes):
    """The commands of a blocking client, and of pipelines, by redis-py's own signatures."""

    set = BLOCKING.set
    get = BLOCKING.get
    getex = BLOCKING.getex
    getdel = BLOCKING.getdel
    mget = BLOCKING.mget
    delete = BLOCKING.delete
    unlink = BLOCKING.unlink
    exists = BLOCKING.exists


class AsyncKeySurface(_KeySurface, AsyncLifetimes):
    """The same commands, awaited."""

    set = AWAITED.set
    get = AWAITED.get
    getex = AWAITED.getex
    getdel = AWAITED.getdel
    mget = AWAITED.mget
    delete = AWAITED.delete
    unlink = AWAITED.unlink
    exists = AWAITED.exists


def empty_reply(args: tuple[Any, ...], options: dict[str, Any]) -> list[Any] | None:
    """Return redis-py's own answer to an MGET without names; None for other commands."""
    return [] if args == ("MGET",) and "EMPTY_RESPONSE" in options else None


def _milliseconds(lease: Duration) -> int:
    return milliseconds_of(lease, "lease", _LONGEST_MS / 1000)


def _checked_token(token: int | None) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise ConfigurationError(
            f"the token {token!r} is no int: give the int that acquire returned"
        )
    return int(token)


Arguments = Sequence[Any]
Reader = Callable[[Any], Any]


def _is_set(reply: Any) -> bool | None:
    return None if reply is None else reply in (b"OK", "OK")


def _optional_int(reply: Any) -> int | None:
    return None if reply is None else int(reply)


def _time_reader(unit_ms: int, *, is_relative: bool) -> Reader:
    """Return the reader that computes TTL or a sibling from a deadline and the server's time."""

    def read(reply: Any) -> int:
        deadline, at = int(reply[0]), int(reply[1])
        if deadline < 0:
            return deadline
        time = deadline - at if is_relative else deadline
        # The server rounds so too: half a second or more becomes a second.
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
# The most keys that one script touches, so that it does not hold the server for long.
KEYS_A_PIECE = 500
# The least number of arguments, with the command's name; every other command needs two.
_LEAST = {"SET": 3, "ACQUIRE": 4, "WITHDRAW": 3, **dict.fromkeys(_EXPIRES, 3)}
_NAMES_SEVERAL = frozenset({"MGET", "EXISTS", "DEL", "UNLINK"})
_WRITES = frozenset(
    {"SET", "GETEX", "GETDEL", "DEL", "UNLINK", "PERSIST", "ACQUIRE", "RELEASE", "EXTEND"}
    | {"WITHDRAW"}
    | _EXPIRES.keys()
)


def require_users_keys(args: Arguments) -> None:
    """Refuse a command that names one of this package's own keys. Raises: ConfigurationError."""
    for name in keys_in(args):
        require_users_key(name)


def keys_in(args: Arguments) -> Arguments:
    """Return the keys that a command names."""
    return args[1:] if args[0] in _NAMES_SEVERAL else args[1:2]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The scripts of one command, each a piece of it.

    Fields: operations; combine: makes the command's result from the operations' results.
    """

    operations: tuple[Operation, ...]
    combine: Callable[[list[Any]], Any] = itemgetter(0)


class KeyTranslator:
    """Turns redis-py's commands into scripts on one namespace.

    Arguments:
        names: of the namespace.
        on_cluster: whether keys of different slots are on different nodes.
        clock_shift_ms: for tests.
    """

    def __init__(self, names: KeyNames, *, on_cluster: bool, clock_shift_ms: int = 0) -> None:
        self._names = names
        self._on_cluster = on_cluster
        self.clock_shift_ms = clock_shift_ms

    def script(self, name: str) -> Script:
        """Return a script by its name, with the clock of this translator."""
        return load(f"durable_keys/{name}", self.clock_shift_ms)

    def shards(self, layout: Layout, args: Arguments) -> set[int]:
        """Return the index shards that a command may write to; a reading one has none."""
        if args[0] not in _WRITES or _is_bare_getex(args):
            return set()
        names = args[1:] if args[0] in ("DEL", "UNLINK") else args[1:2]
        return {layout.shard_of(key_slot(to_bytes(name))) for name in names}

    def translate(self, layout: Layout, args: Arguments, options: dict[str, Any]) -> Pieces:
        """Return the scripts of a command.

        Raises: LayoutError for a write to a layout that this release may only read; ResponseError
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
            return self._reading("ttl", layout, args[1], _TIMES[word])
        if word == "MGET":
            return self._mget(layout, args[1:])
        if word == "EXISTS":
            return self._each("exists", layout, args[1:])
        if word in ("DEL", "UNLINK"):
            return self._each("delete", layout, args[1:], word)
        if word == "SET":
            # With GET the reply is the former value, even if that is "OK".
            words = _words(args[3:])
            read = same if options.get("get") or "GET" in words else _is_set
            once = not words.isdisjoint(("GET", "NX", "XX"))
            return self._writing("set", layout, args[1], args[2:], read, once=once)
        if word in _EXPIRES:
            amounts = (word.lower(), *_EXPIRES[word], *args[2:])
            return self._writing("expire", layout, args[1], amounts, bool, once=len(args) > 3)
        if word in ("GETEX", "GETDEL"):
            once = word == "GETDEL"
            return self._writing(word.lower(), layout, args[1], args[2:], same, once=once)
        if word == "PERSIST":
            return self._writing("persist", layout, args[1], args[2:], bool)
        if word in ("RELEASE", "EXTEND"):
            # A second time it would say that the lease was not held.
            once = word == "RELEASE"
            return self._on_lease(word.lower(), layout, args[1], (), args[2:], bool, once=once)
        if word in ("ACQUIRE", "WITHDRAW"):
            name, nonce = to_bytes(args[1]), args[-1]
            beside: tuple[bytes, ...] = (self._names.withdrawn(name, nonce),)
            if word == "WITHDRAW":
                return self._on_lease("withdraw", layout, name, beside, (nonce,), bool, once=True)
            beside += (self._names.fence(layout.shard_of(key_slot(name))),)
            return self._on_lease("acquire", layout, name, beside, args[2:], _optional_int)
        raise ResponseError(f"durable keys do not have the command {word}")

    def _reading(self, script: str, layout: Layout, name: Any, read: Reader = same) -> Pieces:
        keys = self._names.for_reading(to_bytes(name), layout)
        return Pieces((Operation(self.script(script), keys, (), read),))

    def _writing(
        self,
        script: str,
        layout: Layout,
        name: Any,
        values: Arguments,
        read: Reader,
        *,
        once: bool = False,
    ) -> Pieces:
        keys = self._names.for_writing(to_bytes(name), layout)
        args = (layout.mark, *values)
        return Pieces((Operation(self.script(script), keys, args, read, once=once),))

    def _on_lease(  # noqa: PLR0917 - as `_writing`, and the keys beside
        self,
        script: str,
        layout: Layout,
        name: Any,
        beside: tuple[bytes, ...],
        values: Arguments,
        read: Reader,
        *,
        once: bool = False,
    ) -> Pieces:
        raw = to_bytes(name)
        keys = (*self._names.for_writing(raw, layout), self._names.grant(raw), *beside)
        args = (layout.mark, *values)
        return Pieces((Operation(self.script(script), keys, args, read, once=once),))

    def _each(self, script: str, layout: Layout, names: Arguments, word: str = "") -> Pieces:
        """Return the pieces of a command that counts, one script for each slot on a cluster."""
        is_reading = script == "exists"
        keys_of = self._names.for_reading if is_reading else self._names.for_writing
        values = () if is_reading else (layout.mark, word)
        operations = tuple(
            Operation(
                self.script(script),
                sum((keys_of(name, layout) for name in some), ()),
                values,
                int,
                once=not is_reading,
            )
            for some in self._grouped(names)
        )
        return Pieces(operations, sum)

    def _mget(self, layout: Layout, names: Arguments) -> Pieces:
        groups = self._grouped(names)
        operations = tuple(
            Operation(
                self.script("mget"),
                sum((self._names.for_reading(name, layout) for name in some), ()),
                (),
                same,
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

        return Pieces(operations, combine)

    def _grouped(self, names: Arguments) -> list[list[bytes]]:
        """Return names as bytes, in groups; one script takes one group."""
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
