"""The commands that durable keys offer, by redis-py's own signatures, and the lease."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable
from typing import Any, Literal, overload

from redis.commands.core import BasicKeyCommands
from redis.typing import AsyncClientProtocol, SyncClientProtocol

from workstealing.errors import ConfigurationError

# About 140,000 years: with the time of today added, a sorted set's score is still exact.
_LONGEST_MS = 2**52


class Surface:
    """What the blocking, the asyncio and the pipeline form have in common.

    A command costs one round trip and at most eight Redis commands a name; on a cluster `mget`,
    `exists`, `delete` and `unlink` cost a round trip for each hash slot among the names. Errors
    beyond redis-py's own: LayoutError if a key of ours holds something foreign, and redis-py's
    ResponseError (WRONGTYPE) for a key that holds no string; then nothing is changed.
    """

    # redis-py's protocol for its command classes asks for it; none of the commands here uses it.
    _event_dispatcher: Any = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run, or queue, one command of redis-py's; what all the methods end in."""
        raise NotImplementedError

    @overload
    def acquire(self: SyncClientProtocol, name: Any, ttl: float | dt.timedelta) -> int | None: ...

    @overload
    def acquire(
        self: AsyncClientProtocol, name: Any, ttl: float | dt.timedelta
    ) -> Awaitable[int | None]: ...

    def acquire(self, name: Any, ttl: float | dt.timedelta) -> Any:
        """Take a lease on a name, which ends by itself.

        Arguments: name: a key like any other; ttl: how long it is held, in seconds (fractions are
        allowed) or a timedelta. Returns: the fencing token, an int greater than every token of this
        name before, or None if the key is there. Never waits, never tries again. One round trip.

        Give the token to whatever the lease protects, and let that refuse a smaller one than it has
        seen: a holder that stalls past its deadline does not know that it holds nothing any more.
        """
        return self.execute_command("ACQUIRE", name, _milliseconds(ttl))

    @overload
    def release(self: SyncClientProtocol, name: Any, token: int) -> bool: ...

    @overload
    def release(self: AsyncClientProtocol, name: Any, token: int) -> Awaitable[bool]: ...

    def release(self, name: Any, token: int) -> Any:
        """Give a lease back before it ends.

        Arguments: name; token: the holder's, as `acquire` returned it. Returns: True, or False if
        the token does not hold it (any more), in which case nothing is changed. One round trip.

        A lease is known by its value, the token of 16 digits (17 from the year 2286 on): a number
        of as many digits that you `set` yourself can be released like one, any other value cannot.
        """
        return self.execute_command("RELEASE", name, _checked_token(token))

    @overload
    def extend(
        self: SyncClientProtocol, name: Any, token: int, ttl: float | dt.timedelta
    ) -> bool: ...

    @overload
    def extend(
        self: AsyncClientProtocol, name: Any, token: int, ttl: float | dt.timedelta
    ) -> Awaitable[bool]: ...

    def extend(self, name: Any, token: int, ttl: float | dt.timedelta) -> Any:
        """Let a lease end `ttl` from now.

        Arguments: as of `release` and `acquire`. Returns: True, or False if the token does not hold
        it (any more), in which case nothing is changed. One round trip.
        """
        return self.execute_command("EXTEND", name, _checked_token(token), _milliseconds(ttl))


# A type checker binds redis-py's methods to the class that they are taken from, and tells by
# `_is_async_client` which replies are awaited.
class _Blocking(BasicKeyCommands):
    _is_async_client: Literal[False] = False


class _Asynchronous(BasicKeyCommands):
    _is_async_client: Literal[True] = True


class BlockingSurface(Surface):
    """The commands of a blocking client, and of pipelines, by redis-py's own signatures."""

    _is_async_client: Literal[False] = False

    set = _Blocking.set
    get = _Blocking.get
    getex = _Blocking.getex
    getdel = _Blocking.getdel
    mget = _Blocking.mget
    ttl = _Blocking.ttl
    pttl = _Blocking.pttl
    expiretime = _Blocking.expiretime
    pexpiretime = _Blocking.pexpiretime
    expire = _Blocking.expire
    pexpire = _Blocking.pexpire
    expireat = _Blocking.expireat
    pexpireat = _Blocking.pexpireat
    persist = _Blocking.persist
    delete = _Blocking.delete
    unlink = _Blocking.unlink
    exists = _Blocking.exists


class AsyncSurface(Surface):
    """The same commands, awaited."""

    _is_async_client: Literal[True] = True

    set = _Asynchronous.set
    get = _Asynchronous.get
    getex = _Asynchronous.getex
    getdel = _Asynchronous.getdel
    mget = _Asynchronous.mget
    ttl = _Asynchronous.ttl
    pttl = _Asynchronous.pttl
    expiretime = _Asynchronous.expiretime
    pexpiretime = _Asynchronous.pexpiretime
    expire = _Asynchronous.expire
    pexpire = _Asynchronous.pexpire
    expireat = _Asynchronous.expireat
    pexpireat = _Asynchronous.pexpireat
    persist = _Asynchronous.persist
    delete = _Asynchronous.delete
    unlink = _Asynchronous.unlink
    exists = _Asynchronous.exists


def empty_reply(args: tuple[Any, ...], options: dict[str, Any]) -> list[Any] | None:
    """Return what redis-py answers to an MGET of no names without asking; None for all others."""
    return [] if args == ("MGET",) and "EMPTY_RESPONSE" in options else None


def _milliseconds(ttl: float | dt.timedelta) -> int:
    seconds = ttl.total_seconds() if isinstance(ttl, dt.timedelta) else ttl
    # NaN is what does not equal itself; math.isnan() fails for ints that no float can hold.
    is_number = isinstance(seconds, int | float) and seconds == seconds  # noqa: PLR0124
    if isinstance(seconds, bool) or not is_number:
        raise ConfigurationError(f"ttl={ttl!r} is no time: give seconds, or a timedelta")
    if not 0.001 <= seconds <= _LONGEST_MS / 1000:
        raise ConfigurationError(
            f"ttl={ttl!r} cannot be a lease's: give 0.001 seconds or more, or a timedelta"
        )
    return int(seconds * 1000)


def _checked_token(token: int) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise ConfigurationError(f"the token {token!r} is none: give the int that acquire returned")
    return token
