"""The commands of volatile hashes: redis-py's own signatures, and those that are not the server's.

The methods on fields are redis-py 8's (`redis.commands.core.HashCommands`). The methods on whole
hashes are some of redis-py's methods on keys: only the ones that keep a hash and its deadlines
together.

Some commands are this package's own: each is a script on every backend. Some commands of Redis's
Valkey takes in another way, or passes on to its replicas in another way. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.store.redis_versions import (
    AWAITED,
    BLOCKING,
    AsyncHashCommands,
    AsyncLifetimes,
    AsyncScanCommands,
    BlockingLifetimes,
    HashCommands,
    ScanCommands,
)
from workstealing.structures.volatile_hashes.server_faults import LAST_DEADLINE_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.typing import KeyT, PatternT


class _HashSurface:
    """The methods that the blocking, the asyncio and the pipeline form share.

    Every command costs one round trip. Each command is one script with a fixed number of Redis
    commands per field. HGETALL, HKEYS and HVALS are O(fields); so are HLEN and HRANDFIELD while
    some fields have expired. On a native namespace every command is the server's own but DEL and
    UNLINK: a script also ends the leases of those who compute fields (`cached`).

    A time to live is in whole seconds (ex, exat) or milliseconds (px, pxat), or a timedelta or
    datetime. Raises, besides redis-py's own errors: LayoutError if one of this package's keys holds
    something foreign; nothing is changed then.
    """

    def delete(self, *names: Any) -> Any:
        """Delete whole hashes with their deadlines; return how many had a live field.

        Arguments:
            names: of hashes.

        One round trip and six Redis commands a name.
        """
        return self._each("DEL", _some("DEL", names))

    def unlink(self, *names: Any) -> Any:
        """Delete whole hashes as `delete` does, and let the server free their memory later."""
        return self._each("UNLINK", _some("UNLINK", names))

    def exists(self, *names: Any) -> Any:
        """Return how many of the named hashes have a live field; one round trip a name."""
        return self._each("EXISTS", _some("EXISTS", names))

    def _each(self, command: str, names: tuple[Any, ...]) -> Any:
        raise NotImplementedError


class _UnawaitedHashSurface(_HashSurface, BlockingLifetimes, HashCommands):
    rename = BLOCKING.rename
    renamenx = BLOCKING.renamenx
    copy = BLOCKING.copy
    hrandfield = BLOCKING.hrandfield
    hscan = BLOCKING.hscan


class BlockingHashSurface(_UnawaitedHashSurface):
    """The surface of `VolatileHashes`."""

    if TYPE_CHECKING:
        # The method is redis-py's own, but redis-py types its `self` as a mixin that these hashes
        # lack.
        def hscan_iter(
            self,
            name: KeyT,
            match: PatternT | None = None,
            count: int | None = None,
            no_values: bool | None = None,
        ) -> Iterator[Any]:
            """Yield a hash's live fields and their values, by HSCANs."""
            ...
    else:
        hscan_iter = ScanCommands.hscan_iter

    def _each(self, command: str, names: tuple[Any, ...]) -> int:
        replies: list[Any] = [self.execute_command(command, name) for name in names]
        return sum(replies)


class AsyncHashSurface(_HashSurface, AsyncLifetimes, AsyncHashCommands):
    """The surface of `AsyncVolatileHashes`."""

    rename = AWAITED.rename
    renamenx = AWAITED.renamenx
    copy = AWAITED.copy
    hrandfield = AWAITED.hrandfield
    hscan = AWAITED.hscan

    if TYPE_CHECKING:

        def hscan_iter(
            self,
            name: KeyT,
            match: PatternT | None = None,
            count: int | None = None,
            no_values: bool | None = None,
        ) -> AsyncIterator[Any]:
            """Yield a hash's live fields and their values, for `async for`."""
            ...
    else:
        hscan_iter = AsyncScanCommands.hscan_iter

    async def _each(self, command: str, names: tuple[Any, ...]) -> int:
        return sum([await self.execute_command(command, name) for name in names])


class QueuedHashSurface(_UnawaitedHashSurface):
    """The surface of a pipeline: every command is queued, and answered by `execute`.

    A command on whole hashes takes one name here. Raises: ConfigurationError for more or fewer
    names.
    """

    def _each(self, command: str, names: tuple[Any, ...]) -> Any:
        if len(names) != 1:
            raise ConfigurationError(
                f"{len(names)} names were given to {command}; a pipeline expects one, so that each"
                " has its own reply: call it once for each name"
            )
        return self.execute_command(command, names[0])


def _some(command: str, names: tuple[Any, ...]) -> tuple[Any, ...]:
    if not names:
        raise ResponseError(f"wrong number of arguments for '{command.lower()}' command")
    return names


COUNT_EXISTING = "HINCRBYFXX"
"""A command of this package's own, HINCRBY of a field that exists: hash, field, amount, FXX.

The reply is the sum, or None: there is no such field.
"""
MOVE_FIELD = "HMOVEFIELD"
"""A command of this package's own: hash, other hash, FIELDS, 2, field, its new name.

It moves a field with its deadline, and ends the lease of the computer of the new one. The reply is
1, or 0: there is no such field.
"""
LOOK = "HLOOK"
"""A command of this package's own: hash, FIELDS, 1, field. It reads a field and its time left.

The reply is a list: the value, or None; its milliseconds left, -1: for ever.
"""
LEASE, UNLEASE, STORE, FORGET = "HLEASE", "HUNLEASE", "HSTORE", "HFORGET"
"""Commands of this package's own, on the leases of those who compute fields: hash, FIELDS, ...

The scripts of `lua/volatile_hashes` (hlease, hunlease, hstore, hforget) say what follows, and the
replies. FORGET is HDEL and also ends the leases.
"""
LEASING = {LEASE: "HPTTL", UNLEASE: "", STORE: "HSETEX", FORGET: "HDEL"}
LEASING |= dict.fromkeys(("DEL", "UNLINK"), "NATIVE")
"""The server's own command that each needs where the server keeps the deadlines."""
OWN_COMMANDS = frozenset({COUNT_EXISTING, LOOK, MOVE_FIELD, *LEASING})
"""The commands that need a script on every backend."""
MISTREATED_NAMES = frozenset({b"nx", b"xx", b"fnx", b"fxx", b"fields"})
"""Names of hashes, in lower case, that Valkey 9 takes for options of HSETEX and HGETEX."""
MISREAD_NAMES = frozenset({b"fields"})
"""Those among them that it misreads with PXAT, too, as which it passes sums on to replicas."""

_TIMES_MS = {"EX": (1000, True), "PX": (1, True), "EXAT": (1000, False), "PXAT": (1, False)}
_SUMS = ("HINCRBY", "HINCRBYFLOAT", COUNT_EXISTING)


class _OnValkey(NamedTuple):
    """The arguments of a command that Valkey takes in another way than Redis.

    Fields: refused: names of hashes that it misreads; name: the place of such a name; deadline: the
    place of one; unit: its unit, as an option is called; has_options: whether such options stand
    before FIELDS; called: as which of the server's commands, "": by its own name.
    """

    refused: frozenset[bytes] = frozenset()
    name: int = 1
    deadline: int | None = None
    unit: str = ""
    has_options: bool = False
    called: str = ""


_ON_VALKEY = {
    **dict.fromkeys(("HSETEX", "HGETEX"), _OnValkey(MISTREATED_NAMES, has_options=True)),
    # Behind the field and the nonce; '' for no deadline.
    STORE: _OnValkey(MISTREATED_NAMES, deadline=6, unit="PX", called="HSETEX"),
    # It passes the sum of a field with a deadline on as HSETEX key PXAT.
    **dict.fromkeys(_SUMS, _OnValkey(MISREAD_NAMES)),
    MOVE_FIELD: _OnValkey(MISREAD_NAMES, name=2),
    "HEXPIRE": _OnValkey(deadline=2, unit="EX"),
    "HPEXPIRE": _OnValkey(deadline=2, unit="PX"),
    "HEXPIREAT": _OnValkey(deadline=2, unit="EXAT"),
    "HPEXPIREAT": _OnValkey(deadline=2, unit="PXAT"),
}
VALKEY_QUIRKS = frozenset(_ON_VALKEY)
"""The commands that `require_faithful` looks at."""


def require_faithful(args: Sequence[Any]) -> None:
    """Refuse a command of a native namespace that Valkey would do in another way than Redis.

    Raises: ConfigurationError for a name of a hash that it takes for an option, so that no replica
    hears of the write; ResponseError, as of Redis, for a deadline past the year 4199.
    """
    told = _ON_VALKEY[args[0]]
    word = told.called or args[0]
    if told.refused:
        _require_name(word, args[told.name], told.refused)
    if told.has_options:
        for option, given in pairwise(args[2 : args.index("FIELDS", 2)]):
            if option in _TIMES_MS:
                _require_deadline(word, option, given)
    if told.deadline is not None:
        _require_deadline(word, told.unit, args[told.deadline])


def _require_name(word: str, name: Any, refused: Collection[bytes]) -> None:
    if to_bytes(name).lower() in refused:
        raise ConfigurationError(
            f"Valkey takes the hash's name {name!r} for an option of {word}, and its"
            ' replicas miss the write: use another name, or backend="emulated"'
        )


def _require_deadline(word: str, unit: str, given: Any) -> None:
    ms, is_relative = _TIMES_MS[unit]
    try:
        amount = int(given)
    except (TypeError, ValueError, OverflowError):
        # The server's to refuse.
        return
    # The server's clock decides, and some seconds decide nothing in the year 4199.
    if amount * ms + (time.time_ns() // 1_000_000 if is_relative else 0) > LAST_DEADLINE_MS:
        raise ResponseError(f"invalid expire time in '{word.lower()}' command")
