"""The commands that volatile hashes offer, by redis-py's own signatures.

The methods on fields are redis-py 8's (`redis.commands.core.HashCommands`). The methods on whole
hashes are some of redis-py's methods on keys: only the ones that keep a hash and its deadlines
together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from redis.commands.core import AsyncBasicKeyCommands, BasicKeyCommands
from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError
from workstealing.store.redis_versions import (
    AsyncHashCommands,
    AsyncScanCommands,
    HashCommands,
    ScanCommands,
)

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

    # redis-py's protocol for its command classes requires it; no command here uses it.
    _event_dispatcher: Any = None

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


# A type checker binds redis-py's methods to the object that they are taken from, and tells by
# `_is_async_client` which replies are awaited.
class _BlockingHashMethods(BasicKeyCommands, ScanCommands):
    _is_async_client: Literal[False] = False


class _AsyncHashMethods(AsyncBasicKeyCommands, AsyncScanCommands):
    _is_async_client: Literal[True] = True


# mypy takes this name for True. Where the stubs of types-redis hide redis-py's own types, it would
# bind the methods to redis-py's class, and refuse them for a hash; those of an object it does not.
MYPY = False
if MYPY:
    _blocking: _BlockingHashMethods
    _awaited: _AsyncHashMethods
else:
    _blocking = _BlockingHashMethods
    _awaited = _AsyncHashMethods


class _UnawaitedHashSurface(_HashSurface, HashCommands):
    _is_async_client: Literal[False] = False

    expire = _blocking.expire
    pexpire = _blocking.pexpire
    expireat = _blocking.expireat
    pexpireat = _blocking.pexpireat
    expiretime = _blocking.expiretime
    pexpiretime = _blocking.pexpiretime
    ttl = _blocking.ttl
    pttl = _blocking.pttl
    persist = _blocking.persist
    rename = _blocking.rename
    renamenx = _blocking.renamenx
    copy = _blocking.copy
    hrandfield = _blocking.hrandfield
    hscan = _blocking.hscan


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


class AsyncHashSurface(_HashSurface, AsyncHashCommands):
    """The surface of `AsyncVolatileHashes`."""

    _is_async_client: Literal[True] = True

    expire = _awaited.expire
    pexpire = _awaited.pexpire
    expireat = _awaited.expireat
    pexpireat = _awaited.pexpireat
    expiretime = _awaited.expiretime
    pexpiretime = _awaited.pexpiretime
    ttl = _awaited.ttl
    pttl = _awaited.pttl
    persist = _awaited.persist
    rename = _awaited.rename
    renamenx = _awaited.renamenx
    copy = _awaited.copy
    hrandfield = _awaited.hrandfield
    hscan = _awaited.hscan

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
