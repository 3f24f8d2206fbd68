"""`@hashes.cached(...)`: the decorators, which load what is behind them at their first use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from workstealing.clock import Duration

if TYPE_CHECKING:
    from workstealing.recruiting.deferral import Enlister
    from workstealing.structures.volatile_hashes.cached_policy import (
        Named,
        Serializer,
        SerializerName,
    )
    from workstealing.structures.volatile_hashes.caching import AsyncCachedFunction, CachedFunction

P = ParamSpec("P")
R = TypeVar("R")


class BlockingCaching:
    """The decorator of `VolatileHashes`."""

    def cached(
        self,
        *,
        ttl: Duration,
        key: Named,
        field: Named | None = None,
        stale: Duration = 0.0,
        early: float = 0.0,
        errors: Mapping[type[Exception], Duration] | None = None,
        wait: Duration = 2.0,
        lease: Duration = 30.0,
        hold: Duration = 60.0,
        serializer: SerializerName | Serializer = "json",
        recruiter: Enlister | None = None,
    ) -> Callable[[Callable[P, R]], CachedFunction[P, R]]:
        """Keep a function's results in fields of hashes: `@hashes.cached(ttl=60, key="item:{id}")`.

        A call returns the kept result, and enlists: it has finished early. On a miss one caller
        computes it, and the others wait: within a process for each other, and between processes by
        a lease on the field. No result is kept whose lease has ended or was voided. A fault
        of Redis is logged once a minute, and the function is called: it is never the caller's. How
        long it may hold up the caller is up to the time-outs of your client.

        Arguments:
            ttl: for how long a result is fresh.
            key: the names of the hash and its field: templates of the function's arguments
                (`"item:{id}"`), or functions of the same arguments.
            field: as `key`.
            field: by default the function's name.
            stale: for how long an old result is given to others while one caller computes the next,
                and to all while the function raises.
            early: 0 for never, or 1 to compute anew by a chance that rises as the deadline nears
                and with the cost of computing (XFetch: Vattani, Chierichetti, Lowenstein, VLDB
                2015; above 1: earlier).
            wait: after which callers that wait in the computer's own process extend its lease.
            lease: for how long a caller may compute alone, and how long one that was killed holds
                up others.
            hold: for how long a lease is extended, and a caller without a result waits, at most.
            errors: for how long each class of exceptions is kept, and raised to all (`{LookupError:
                5}`), where no old result stands in.
            serializer: "json", "msgpack", "pickle" (then a program that can write to this Redis can
                run code in your processes), or a `Serializer`: what another one or another version
                wrote is computed anew.
            recruiter: by default `workstealing.default_recruiter`.

        Durations are seconds or a timedelta. Any other exception of the function is raised and not
        kept; None is kept like any other result.

        Returns: a decorator. The decorated function also has `refresh(*args)`, which computes now,
        `invalidate(*args)`, which forgets, and `place(*args)`, the names of hash and field.
        Raises: ConfigurationError; MissingExtraError. A hit costs one round trip of one
        command, a miss four round trips.
        """
        return _decorator(is_async=False, **locals())


class AsyncCaching:
    """The decorator of `AsyncVolatileHashes`."""

    def cached(
        self,
        *,
        ttl: Duration,
        key: Named,
        field: Named | None = None,
        stale: Duration = 0.0,
        early: float = 0.0,
        errors: Mapping[type[Exception], Duration] | None = None,
        wait: Duration = 2.0,
        lease: Duration = 30.0,
        hold: Duration = 60.0,
        serializer: SerializerName | Serializer = "json",
        recruiter: Enlister | None = None,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], AsyncCachedFunction[P, R]]:
        """Keep a coroutine function's results in fields of hashes; see `VolatileHashes.cached`.

        A slice for a recruited caller runs in a thread of the loop's executor. A cancelled call
        gives its lease back.
        """
        return _decorator(is_async=True, **locals())


def _decorator(*, is_async: bool, self: Any, **options: Any) -> Callable[[Any], Any]:
    """Return the decorator that `cached` returns, of its hashes and all its options."""
    from workstealing.structures.volatile_hashes.cached_policy import (
        checked_function,
        checked_policy,
    )
    from workstealing.structures.volatile_hashes.caching import AsyncCachedFunction, CachedFunction

    policy = checked_policy(**options)
    form = AsyncCachedFunction if is_async else CachedFunction

    def decorate(function: Any) -> Any:
        return form(self, checked_function(function, policy, is_async=is_async), policy)

    return decorate
