"""`cached`: a function's results in fields of hashes, computed by one caller at a time.

The computer of a field holds a lease on it: a field of a second hash, written if there is none and
gone at its deadline like any other. A computer that dies leaves nothing else behind.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Generator
from copy import copy
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, cast

from workstealing.clock import SYSTEM_CLOCK, Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.recruiting.deferral import Enlister, defer
from workstealing.recruiting.faults import FaultLog, HostTimeouts
from workstealing.store.operations import Sleep, drive_by

P = ParamSpec("P")
R = TypeVar("R")
Named = str | Callable[..., str]
Requests = Generator[Any, Any, R]
"""A generator of commands (or of a list of them, for one round trip) and pauses."""

# A waiting caller looks this often, and less and less often.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.010, 0.100
# A lease is given back only in this share of its time: later it may be another caller's.
_SURELY_OURS = 0.9
_HEADER_END = b":"

_faults = FaultLog(SYSTEM_CLOCK)
_timeouts = HostTimeouts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_faults.after_fork)


class _Entry(NamedTuple):
    """A kept result. Fields: value, decoded; left: seconds of freshness; cost: of computing it."""

    value: Any
    left: float
    cost: float


class _Found(NamedTuple):
    """The end of a look: an entry to return, or the leave to compute. `lease`: when it began."""

    entry: _Entry | None
    lease: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """How a function's results are kept; see `VolatileHashes.cached`. Times are in seconds.

    is_bare: the field holds the encoded result alone, without the cost of computing it, for readers
    that know no cost; then `early` must be 0.
    """

    key: Named
    field: Named | None
    recruiter: Enlister | None
    ttl: float
    stale: float
    early: float
    wait: float
    lease: float
    encode: Callable[[Any], str | bytes]
    decode: Callable[[bytes], Any]
    is_bare: bool = False


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class _CachedFunction(Generic[P, R]):
    """The part that both forms of a cached function share."""

    _before: tuple[Any, ...] = ()

    def __init__(self, hashes: Any, function: Callable[..., Any], policy: Policy) -> None:
        update_wrapper(cast("Any", self), function)
        self._hashes = hashes
        self._function = function
        self._signature = inspect.signature(function)
        self._policy = policy
        self._recruiter = policy.recruiter
        self._subject = f"the cache of {getattr(function, '__qualname__', function)}"

    def __get__(self, instance: Any, owner: Any = None) -> Self:
        """Return the method of an instance."""
        if instance is None:
            return self
        bound = copy(self)
        bound._before = (instance,)  # noqa: SLF001 - its own class
        return bound

    def place(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, str]:
        """Return the hash and the field of these arguments' result. No command."""
        given = (*self._before, *args)
        field = self._policy.field
        return (
            self._named(self._policy.key, given, kwargs),
            self._function.__name__ if field is None else self._named(field, given, kwargs),
        )

    def _named(self, name: Named, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if callable(name):
            return name(*args, **kwargs)
        if "{" not in name:
            return name
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return name.format_map(bound.arguments)

    def _reading(self, key: str, field: str) -> Requests[_Entry | None]:
        """Read a field, and its remaining time where that decides something."""
        policy = self._policy
        left = math.inf
        if policy.stale or policy.early:
            (value,), (ms,) = yield [("HMGET", key, field), ("HPTTL", key, "FIELDS", 1, field)]
            if value is not None and ms >= 0:
                left = ms / 1000 - policy.stale
        else:
            (value,) = yield ("HMGET", key, field)
        if value is None:
            return None
        body = value.encode() if isinstance(value, str) else bytes(value)
        if policy.is_bare:
            return _Entry(policy.decode(body), left, 0.0)
        cost, found, content = body.partition(_HEADER_END)
        if not found or not cost.isdigit():
            # Written by another program: it is computed anew.
            return None
        return _Entry(policy.decode(content), left, int(cost) / 1000)

    def _is_due(self, entry: _Entry) -> bool:
        """Say whether to compute anew although there is a value: it is stale, or by chance.

        Source: A. Vattani, F. Chierichetti, K. Lowenstein: Optimal Probabilistic Cache Stampede
        Prevention, VLDB 2015. The chance rises as the deadline nears, with the cost as its scale.
        """
        if entry.left <= 0.0:
            return True
        early = self._policy.early
        if not early:
            return False
        return entry.cost * early * -math.log(1.0 - random.random()) >= entry.left

    def _looking(self, key: str, field: str) -> Requests[_Found]:
        """Find a value, or the leave to compute it."""
        entry = yield from self._reading(key, field)
        if entry is not None and not self._is_due(entry):
            return _Found(entry)
        leave = yield from self._leasing(key, field, entry)
        if leave is not None:
            return leave
        if entry is not None:
            # Another caller computes it. This one has an old value meanwhile.
            return _Found(entry)
        end, pause = time.monotonic() + self._policy.wait, _SHORTEST_PAUSE
        while (left := end - time.monotonic()) > 0.0:
            yield Sleep(min(pause, left))
            pause = min(_LONGEST_PAUSE, 1.5 * pause)
            entry = yield from self._reading(key, field)
            if entry is not None:
                return _Found(entry)
            # The computer has failed or died, if there is no lease any more.
            leave = yield from self._leasing(key, field, None)
            if leave is not None:
                return leave
        return _Found(None)

    def _leasing(self, key: str, field: str, seen: _Entry | None) -> Requests[_Found | None]:
        """Take the lease on a field; None if another caller has it."""
        began = time.monotonic()
        px = math.ceil(1000 * self._policy.lease)
        lease = (
            "HSETEX",
            leases_beside(key),
            "PX",
            px,
            "FNX",
            "FIELDS",
            1,
            field,
            secrets.token_hex(8),
        )
        if not (yield lease):
            return None
        # The lease's last holder may have stored a value since this caller looked.
        again = yield from self._reading(key, field)
        if again is not None and again.left > max(0.0, 0.0 if seen is None else seen.left):
            yield ("HDEL", leases_beside(key), field)
            return _Found(again)
        return _Found(None, began)

    def _storing(
        self, key: str, field: str, content: bytes, cost: float, lease: float | None
    ) -> Requests[None]:
        """Store a result, and give the lease back, in one round trip."""
        px = math.ceil(1000 * (self._policy.ttl + self._policy.stale))
        header = b"" if self._policy.is_bare else b"%d%s" % (round(1000 * cost), _HEADER_END)
        commands: list[Any] = [("HSETEX", key, "PX", px, "FIELDS", 1, field, header + content)]
        if self._is_ours(lease):
            commands.append(("HDEL", leases_beside(key), field))
        yield commands

    def _is_ours(self, lease: float | None) -> bool:
        return lease is not None and time.monotonic() - lease < _SURELY_OURS * self._policy.lease

    def _encoded(self, value: Any) -> bytes:
        content = self._policy.encode(value)
        return content.encode() if isinstance(content, str) else bytes(content)

    def _enlister(self) -> Enlister:
        if self._recruiter is None:
            from workstealing.recruiting.recruiter import default_recruiter

            self._recruiter = default_recruiter
        return self._recruiter

    def _computed(self, args: Any, kwargs: Any) -> Any:
        return self._function(*self._before, *args, **kwargs)

    def _releasing(self, key: str, field: str) -> Requests[None]:
        yield ("HDEL", leases_beside(key), field)

    def _fault(self, error: Exception) -> None:
        """Log a fault of the cache, which is not the function's. Raises: a host's time-out."""
        if _timeouts.include(error):
            raise error
        _faults.report(self._subject, error)


def leases_beside(key: str) -> str:
    """Return the key of the hash that holds the leases of the computers of a hash's fields."""
    return f"{key}:computing"


class CachedFunction(_CachedFunction[P, R]):
    """A function whose results are kept in a hash; see `VolatileHashes.cached`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the kept result, or compute it."""
        try:
            key, field = self.place(*args, **kwargs)
            entry, lease = drive_by(self._send, self._looking(key, field))
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            self._fault(error)
            computed: R = self._computed(args, kwargs)
            return computed
        if entry is not None:
            if not defer(self._enlister(), None, self):
                self._enlister().enlist()
            value: R = entry.value
            return value
        began = time.monotonic()
        try:
            value = self._computed(args, kwargs)
        except BaseException:
            if self._is_ours(lease):
                self._quietly(self._releasing(key, field))
            raise
        self._keep(key, field, value, time.monotonic() - began, lease)
        return value

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the result now, whatever is kept, and keep it. One round trip.

        Raises: the function's own errors; errors of redis-py.
        """
        key, field = self.place(*args, **kwargs)
        began = time.monotonic()
        value: R = self._computed(args, kwargs)
        cost = time.monotonic() - began
        drive_by(self._send, self._storing(key, field, self._encoded(value), cost, None))
        return value

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget the result of these arguments; say whether there was one. One round trip.

        A call that computes it at this moment keeps its result all the same. Raises: errors of
        redis-py.
        """
        key, field = self.place(*args, **kwargs)
        return bool(self._hashes.hdel(key, field))

    def _keep(self, key: str, field: str, value: Any, cost: float, lease: float | None) -> None:
        try:
            content = self._encoded(value)
        except Exception as error:  # noqa: BLE001 - the value is good, though it cannot be kept
            self._fault(error)
            if self._is_ours(lease):
                self._quietly(self._releasing(key, field))
            return
        self._quietly(self._storing(key, field, content, cost, lease))

    def _quietly(self, requests: Requests[None]) -> None:
        try:
            drive_by(self._send, requests)
        except Exception as error:  # noqa: BLE001 - as in `__call__`
            self._fault(error)

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            time.sleep(request.seconds)
            return None
        if isinstance(request, tuple):
            return self._hashes.execute_command(*request)
        with self._hashes.pipeline(transaction=False) as queue:
            for each in request:
                queue.execute_command(*each)
            return queue.execute()


class AsyncCachedFunction(_CachedFunction[P, R]):
    """A coroutine function whose results are kept in a hash; see `VolatileHashes.cached`."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the kept result, or compute it."""
        try:
            key, field = self.place(*args, **kwargs)
            entry, lease = await self._drive(self._looking(key, field))
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            self._fault(error)
            computed: R = await self._computed(args, kwargs)
            return computed
        if entry is not None:
            self._enlist()
            value: R = entry.value
            return value
        began = time.monotonic()
        try:
            value = await self._computed(args, kwargs)
        except BaseException:
            # Cancelled too: a task may still await once it is.
            if self._is_ours(lease):
                await self._quietly(self._releasing(key, field))
            raise
        cost = time.monotonic() - began
        try:
            content = self._encoded(value)
        except Exception as error:  # noqa: BLE001 - the value is good, though it cannot be kept
            self._fault(error)
            if self._is_ours(lease):
                await self._quietly(self._releasing(key, field))
        else:
            await self._quietly(self._storing(key, field, content, cost, lease))
        return value

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the result now, whatever is kept, and keep it; see `CachedFunction.refresh`."""
        key, field = self.place(*args, **kwargs)
        began = time.monotonic()
        value: R = await self._computed(args, kwargs)
        cost = time.monotonic() - began
        await self._drive(self._storing(key, field, self._encoded(value), cost, None))
        return value

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget the result of these arguments; see `CachedFunction.invalidate`."""
        key, field = self.place(*args, **kwargs)
        return bool(await self._hashes.hdel(key, field))

    async def _quietly(self, requests: Requests[None]) -> None:
        try:
            await self._drive(requests)
        except Exception as error:  # noqa: BLE001 - as in `__call__`
            self._fault(error)

    async def _drive(self, requests: Requests[Any]) -> Any:
        reply: Any = None
        error: Exception | None = None
        while True:
            try:
                request = requests.send(reply) if error is None else requests.throw(error)
            except StopIteration as done:
                return done.value
            reply = error = None
            try:
                reply = await self._send(request)
            except Exception as raised:  # noqa: BLE001 - it is thrown into the generator
                error = raised

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            await asyncio.sleep(request.seconds)
            return None
        if isinstance(request, tuple):
            return await self._hashes.execute_command(*request)
        async with self._hashes.pipeline(transaction=False) as queue:
            for each in request:
                queue.execute_command(*each)
            return await queue.execute()

    def _enlist(self) -> None:
        recruiter = self._enlister()
        if defer(recruiter, None, self):
            return
        draw = getattr(recruiter, "draw", None)
        if draw is None:
            # An enlister of the user's own.
            recruiter.enlist()
        elif (drawn := draw()) is not None:
            drawn.serve_on_loop()


def _checked_policy(*, early: float, **options: Any) -> Policy:
    """Return the settings, checked. Raises: ConfigurationError."""
    if not isinstance(early, int | float) or not 0.0 <= early <= 100.0:
        raise ConfigurationError(
            f"early={early!r} is no factor: give 0 for never, or about 1 (0 <= early <= 100)"
        )
    for name, least in (("ttl", 0.001), ("stale", 0.0), ("wait", 0.0), ("lease", 0.001)):
        options[name] = seconds_of(options[name], name, least)
    for name in ("key", "field"):
        given = options[name]
        if not (isinstance(given, str) or callable(given) or (given is None and name == "field")):
            raise ConfigurationError(
                f"{name}={given!r} names nothing: give a template of the function's arguments"
                ' ("item:{id}"), or a function of them'
            )
    return Policy(early=float(early), **options)


def _checked_function(function: object, *, is_async: bool) -> Callable[..., Any]:
    """Return a function to decorate. Raises: ConfigurationError for one of the other kind."""
    if not callable(function) or isinstance(function, type | classmethod | staticmethod):
        raise ConfigurationError(
            f"cached decorates a function, not {function!r}: write it below @classmethod or"
            " @staticmethod"
        )
    if inspect.iscoroutinefunction(function) is not is_async:
        name = getattr(function, "__qualname__", function)
        raise ConfigurationError(
            f"{name} is no coroutine function, and AsyncVolatileHashes awaits it: decorate it by"
            " VolatileHashes(...).cached"
            if is_async
            else f"{name} is a coroutine function, and VolatileHashes does not await it: decorate"
            " it by AsyncVolatileHashes(...).cached"
        )
    return function


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
        wait: Duration = 2.0,
        lease: Duration = 30.0,
        encode: Callable[[Any], str | bytes] = _compact,
        decode: Callable[[bytes], Any] = json.loads,
        recruiter: Enlister | None = None,
    ) -> Callable[[Callable[P, R]], CachedFunction[P, R]]:
        """Keep a function's results in fields of hashes: `@hashes.cached(ttl=60, key="item:{id}")`.

        A call returns the kept result, and enlists: it has finished early. On a miss one caller
        computes it, whose lease on the field keeps the others waiting for a bounded time. A fault
        of Redis is logged once a minute, and the function is called: it is never the caller's. How
        long it may hold up the caller is up to the time-outs of your client.

        Arguments: ttl, for how long a result is fresh; key and field, the names of the hash and its
        field: templates of the function's arguments (`"item:{id}"`), or functions of the same
        arguments; field: by default the function's name; stale, for how long an old result is given
        to others while one caller computes the next; early, 0 for never, or 1 to compute anew by a
        chance that rises as the deadline nears and with the cost of computing (XFetch: Vattani,
        Chierichetti, Lowenstein, VLDB 2015; above 1: earlier); wait, for how long a caller without
        a result waits for another's, and then computes it too; lease, for how long a caller may
        compute alone; encode, which makes str or bytes of a result (by default JSON), and decode,
        its inverse for bytes; recruiter, by default `workstealing.default_recruiter`.
        Durations are seconds or a timedelta. An exception of the function is raised and not kept;
        None is kept like any other result.

        Returns: a decorator. The decorated function also has `refresh(*args)`, which computes now,
        `invalidate(*args)`, which forgets, and `place(*args)`, the names of hash and field.
        Raises: ConfigurationError. A hit costs one round trip of one Redis command (of two with
        `stale` or `early`), a miss four round trips.
        """
        policy = _checked_policy(
            key=key,
            field=field,
            recruiter=recruiter,
            ttl=ttl,
            stale=stale,
            early=early,
            wait=wait,
            lease=lease,
            encode=encode,
            decode=decode,
        )

        def decorate(function: Callable[P, R]) -> CachedFunction[P, R]:
            checked = _checked_function(function, is_async=False)
            return CachedFunction(self, checked, policy)

        return decorate


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
        wait: Duration = 2.0,
        lease: Duration = 30.0,
        encode: Callable[[Any], str | bytes] = _compact,
        decode: Callable[[bytes], Any] = json.loads,
        recruiter: Enlister | None = None,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], AsyncCachedFunction[P, R]]:
        """Keep a coroutine function's results in fields of hashes; see `VolatileHashes.cached`.

        A slice for a recruited caller runs in a thread of the loop's executor. A cancelled call
        gives its lease back.
        """
        policy = _checked_policy(
            key=key,
            field=field,
            recruiter=recruiter,
            ttl=ttl,
            stale=stale,
            early=early,
            wait=wait,
            lease=lease,
            encode=encode,
            decode=decode,
        )

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncCachedFunction[P, R]:
            checked = _checked_function(function, is_async=True)
            return AsyncCachedFunction(self, checked, policy)

        return decorate
