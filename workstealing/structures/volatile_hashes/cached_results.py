"""The steps of a cached function in Redis: it reads, leases and stores its results. No I/O.

The computer of a field holds a lease on it, in the hash's own slot, and a result is stored in one
step with a look at the lease (`lua/volatile_hashes/store.lua`). So a computer whose lease has
ended, was taken over or was voided stores nothing. One that dies leaves a lease, which ends.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import random
import re
import secrets
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import update_wrapper
from string import Formatter
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, cast

from workstealing.clock import SYSTEM_CLOCK, seconds_of
from workstealing.errors import ConfigurationError, is_connection_fault
from workstealing.recruiting.deferral import Enlister
from workstealing.recruiting.faults import FaultLog, HostTimeouts
from workstealing.store.aside import leaves_open
from workstealing.store.operations import Sleep
from workstealing.structures.volatile_hashes import flights
from workstealing.structures.volatile_hashes.commands import FORGET, LEASE, STORE, UNLEASE
from workstealing.structures.volatile_hashes.flights import Awaited, CachedFlight, Landing

P = ParamSpec("P")
R = TypeVar("R")
_WRAPPERS = (classmethod, staticmethod)
Named = str | Callable[..., str]
Requests = Generator[Any, Any, R]
"""A generator as `Steps`, but its commands are hash commands, which the hashes translate.

A step is a hash command, a list of them for one round trip, a `Sleep`, or an `Awaited` flight.
`drive_by` sends them through the methods of the hashes.
"""

# A waiting caller looks this often, and less and less often.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.010, 0.100
_HEADER_END = b":"
# redis-py has no class of its own for the second, and an older one not for the first.
_FULL = ("Too many connections", "No connection available.")

if sys.version_info >= (3, 14):
    from annotationlib import Format

    _UNRESOLVED: dict[str, Any] = {"annotation_format": Format.FORWARDREF}
else:
    _UNRESOLVED: dict[str, Any] = {}

_faults = FaultLog(SYSTEM_CLOCK)
_timeouts = HostTimeouts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_faults.after_fork)


class CachedEntry(NamedTuple):
    """A kept result. Fields: value, decoded; left: seconds of freshness; cost: of computing it."""

    value: Any
    left: float
    cost: float


class ComputingTurn:
    """One call's leave to compute: the lease that it holds, or may hold.

    Attributes: key and field, the place of the result; token, the lease's nonce, None: there is no
    lease to give back; is_cut, whether a command was interrupted, so that the client's connection
    may still owe its reply; unreadable, whether a value stands there that nobody can decode;
    flight, which this call leads, if it does; computed, the flight's step of the computation; seen,
    an old value.
    """

    __slots__ = (
        *("computed", "field", "flight", "is_cut", "key", "seen", "token"),
        "unreadable",
    )

    def __init__(self, place: tuple[str, str] | None = None) -> None:
        self.key, self.field = ("", "") if place is None else place
        self.token: str | None = None
        self.is_cut = False
        self.unreadable = False
        self.flight: CachedFlight | None = None
        self.computed = 0
        self.seen: CachedEntry | None = None

    def step(self) -> int:
        """Begin to ask or compute; see `CachedFlight.step`."""
        return 0 if self.flight is None else self.flight.step()

    def compute(self, hold: float) -> None:
        """Begin to compute; see `CachedFlight.compute`."""
        self.computed = 0 if self.flight is None else self.flight.compute(hold)

    def land(self, landing: Landing | None = None) -> None:
        """Tell those who wait for this call how it has ended."""
        if self.flight is not None:
            self.flight.land(landing)

    def fail(self, error: BaseException) -> None:
        """Take note of a fault, after which the lease may or may not be there."""
        self.is_cut = self.is_cut or leaves_open(error)
        if is_connection_fault(error):
            # Giving it back would hold the caller up for another time-out.
            self.token = None


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
    hold: float
    encode: Callable[[Any], str | bytes]
    decode: Callable[[bytes], Any]
    is_bare: bool = False


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class CachedResults(Generic[P, R]):
    """The part that both forms of a cached function share."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, Any]
    _blocks = True
    """Whether a caller that waits holds up its whole thread."""

    def __init__(
        self, hashes: Any, function: Any, policy: Policy, subject: str | None = None
    ) -> None:
        self._binds = type(function) if isinstance(function, _WRAPPERS) else None
        plain = getattr(function, "__func__", function)
        update_wrapper(cast("Any", self), plain)
        self._before: tuple[Any, ...] = ()
        self._hashes = hashes
        self._function = plain
        self._policy = policy
        self._recruiter = policy.recruiter
        self._signature = _signature_for(plain, policy)
        self._subject = subject or f"the cache of {_name_of(plain)}"

    def __reduce__(self) -> Any:
        # By name, as functions are pickled; so a copy is this object itself.
        if self._before:
            return getattr, (*self._before, self.__name__)
        return self.__qualname__

    def _bound(self, instance: Any) -> Self:
        """Return the method of an instance, or of a class."""
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._before = (instance,)
        if self._signature is not None:
            _, *others = self._signature.parameters.values()
            bound.__dict__["__signature__"] = self._signature.replace(parameters=others)
        return bound

    def _bound_to(self, instance: Any, owner: Any) -> Self:
        if self._binds is staticmethod:
            return self
        if self._binds is classmethod:
            return self._bound(type(instance) if owner is None else owner)
        return self if instance is None else self._bound(instance)

    def place(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, str]:
        """Return the hash and the field of these arguments' result. No command."""
        given = (*self._before, *args)
        field = self._policy.field
        key = self._named(self._policy.key, given, kwargs)
        return (key, self.__name__ if field is None else self._named(field, given, kwargs))

    def _named(self, name: Named, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if callable(name):
            return name(*args, **kwargs)
        if self._signature is None:
            return name.format()
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return name.format_map(bound.arguments)

    def _reading(self, turn: ComputingTurn) -> Requests[CachedEntry | None]:
        """Read a field, and its remaining time where that decides something."""
        key, field, left = turn.key, turn.field, -1
        if self._policy.stale or self._policy.early:
            (value,), (left,) = yield [("HMGET", key, field), ("HPTTL", key, "FIELDS", 1, field)]
        else:
            (value,) = yield ("HMGET", key, field)
        return self._entry(turn, value, left)

    def _entry(self, turn: ComputingTurn, value: Any, left_ms: int) -> CachedEntry | None:
        """Return a stored value with its time; None if there is none that can be read."""
        turn.unreadable = False
        if value is None:
            return None
        policy = self._policy
        left = left_ms / 1000 - policy.stale if left_ms >= 0 else math.inf
        try:
            if policy.is_bare:
                return CachedEntry(policy.decode(bytes(value)), left, 0.0)
            cost, found, content = bytes(value).partition(_HEADER_END)
            if found and cost.isdigit():
                return CachedEntry(policy.decode(content), left, int(cost) / 1000)
        except Exception as error:  # noqa: BLE001 - a user's function
            # Of an earlier release of the program, perhaps.
            self._fault(error)
        # Written by another program: it is computed anew.
        turn.unreadable = True
        return None

    def _is_due(self, entry: CachedEntry) -> bool:
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

    def _looking(self, turn: ComputingTurn) -> Requests[CachedEntry | None]:
        """Find a value, or None: the leave to compute it, with a lease in most cases."""
        entry, is_away = None, False
        try:
            entry = yield from self._reading(turn)
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            if not is_pool_full(error):
                turn.fail(error)
                self._fault(error)
                is_away = True
        if entry is not None and not self._is_due(entry):
            return entry
        turn.seen = entry
        hashes, hold = self._hashes, self._policy.hold
        place = (flights.server_of(hashes.client), hashes.namespace, turn.key, turn.field)
        while True:
            flight, came = flights.join(place, hold, blocks=self._blocks)
            if flight is None:
                return entry
            if came is None:
                turn.flight = flight
                return None if is_away else (yield from self._leading(turn, flight, entry))
            if entry is not None:
                # Another caller computes it. This one has an old value meanwhile.
                return entry
            found = yield from self._following(turn, flight, came)
            if found is not None:
                return found

    def _leading(
        self, turn: ComputingTurn, flight: CachedFlight, seen: CachedEntry | None
    ) -> Requests[CachedEntry | None]:
        """Get the lease, or the value, for all callers of this process that wait."""
        pause = _SHORTEST_PAUSE
        try:
            found = yield from self._leasing(turn, seen)
            while found is None and turn.token is None:
                left = flight.began + self._policy.hold - time.monotonic()
                if left <= 0.0:
                    return None
                yield Sleep(min(pause, left))
                pause = min(_LONGEST_PAUSE, 1.5 * pause)
                # The computer has failed or died, if there is no lease any more.
                found = yield from self._leasing(turn, None)
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            turn.fail(error)
            self._fault(error)
            # One that is fresh was to be computed anew before its time.
            return seen if seen is not None and seen.left > 0.0 else None
        return found

    def _following(
        self, turn: ComputingTurn, flight: CachedFlight, came: int
    ) -> Requests[CachedEntry | None]:
        """Wait for a flight, and see to it that its lease goes on; return its value, if it is ours.

        Only this process knows that its computer lives. One that is stopped stops the callers that
        would extend its lease.
        """
        policy = self._policy
        while not flight.is_over:
            now = time.monotonic()
            left = flight.given_up_at - now
            if left <= 0.0:
                return None
            token = flight.token
            if token is not None and now >= flight.extended_at:
                flight.extended_at = now + policy.lease / 3
                ms, most = math.ceil(1000 * policy.lease), math.ceil(1000 * policy.hold)
                try:
                    place = (LEASE, turn.key, "FIELDS", 1, turn.field)
                    yield (*place, token, ms, most, "", "ONLY")
                except Exception as error:  # noqa: BLE001 - the lease ends, and another computes
                    if not is_pool_full(error):
                        self._fault(error)
                continue
            due = flight.extended_at - now if token is not None else policy.lease / 3
            yield Awaited(flight, min(left, due))
        landing = flight.landing
        if landing is None or came >= landing.before:
            return None
        return self._entry(turn, landing.data, landing.left_ms)

    def _patiently(self, request: tuple[Any, ...]) -> Requests[Any]:
        """Send a request; while the client's pool is full, wait for a connection."""
        end, pause = time.monotonic() + self._policy.hold, _SHORTEST_PAUSE
        while True:
            try:
                return (yield request)
            except Exception as error:
                if not is_pool_full(error) or time.monotonic() >= end:
                    raise
            yield Sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    def _leasing(
        self, turn: ComputingTurn, seen: CachedEntry | None
    ) -> Requests[CachedEntry | None]:
        """Take the lease on a field; return a value if there is no need, or no leave, to compute.

        In the same step it looks for a value that was stored since the caller looked.
        """
        if turn.unreadable:
            least: int | str = ""
        else:
            least = -1 if seen is None else round(1000 * (seen.left + self._policy.stale))
        before = turn.step()
        done, value, left = yield from self._patiently(self._asking(turn, least))
        policy = self._policy
        if done:
            if turn.flight is not None:
                patience = min(policy.wait, 2 * policy.lease / 3)
                turn.flight.extended_at = time.monotonic() + patience
                turn.flight.token = turn.token
            return None
        turn.token = None
        found = self._entry(turn, value, left)
        if found is not None:
            turn.land(Landing(bytes(value), left, before))
        return found or seen

    def _asking(self, turn: ComputingTurn, least: int | str, how: str = "") -> tuple[Any, ...]:
        """Return the request for a lease; from now on it may have to be given back."""
        turn.token = secrets.token_hex(8)
        ms = math.ceil(1000 * self._policy.lease)
        return (LEASE, turn.key, "FIELDS", 1, turn.field, turn.token, ms, ms, least, how)

    def _taking_over(self, turn: ComputingTurn) -> Requests[None]:
        """Take the lease whoever has it: from now on the computers before store nothing."""
        yield from self._patiently(self._asking(turn, "", "OVER"))

    def _storing(self, turn: ComputingTurn, content: bytes, cost: float) -> Requests[None]:
        """Store a result and give the lease back, in one step; without the lease store nothing."""
        ms = math.ceil(1000 * (self._policy.ttl + self._policy.stale))
        header = b"" if self._policy.is_bare else b"%d%s" % (round(1000 * cost), _HEADER_END)
        data, before = header + content, turn.computed
        try:
            if turn.token is None:
                return
            storing = turn.step()
            place = (STORE, turn.key, "FIELDS", 1, turn.field)
            if (yield from self._patiently((*place, turn.token, ms, "", data))):
                # Nobody had voided the lease, so it is good for those who came meanwhile, too.
                before = storing
            elif cost >= self._policy.lease:
                _faults.warn(
                    self._subject,
                    f"a result was not kept, because it took {cost:.1f} seconds to compute and the"
                    f" lease is {self._policy.lease:g}: give a longer lease=",
                )
            turn.token = None
        finally:
            turn.land(Landing(data, ms, before))

    def _giving_back(self, turn: ComputingTurn) -> Requests[None]:
        if turn.token is not None:
            # By its nonce, so it does not matter whether it has ended, or was ever granted.
            yield (UNLEASE, turn.key, "FIELDS", 1, turn.field, turn.token, 0)
            turn.token = None

    def _forgetting(self, key: str, field: str) -> Requests[bool]:
        removed = yield (FORGET, key, "FIELDS", 1, field)
        return bool(removed)

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

    def _fault(self, error: Exception) -> None:
        """Log a fault of the cache, which is not the function's. Raises: a host's time-out."""
        if _timeouts.include(error):
            raise error
        _faults.report(self._subject, error)


def is_pool_full(error: BaseException) -> bool:
    """Say whether a client's pool had no connection left, which says nothing about the server."""
    name = type(error).__name__
    return name == "MaxConnectionsError" or (name == "ConnectionError" and str(error) in _FULL)


def _name_of(function: object) -> str:
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__name__


def checked_policy(*, early: float, **options: Any) -> Policy:
    """Return the settings, checked. Raises: ConfigurationError."""
    if not isinstance(early, int | float) or not 0.0 <= early <= 100.0:
        raise ConfigurationError(
            f"early={early!r} is no factor: give 0 for never, or about 1 (0 <= early <= 100)"
        )
    for name, least in (
        ("ttl", 0.001),
        ("stale", 0.0),
        ("wait", 0.0),
        ("lease", 0.001),
        ("hold", 0.0),
    ):
        options[name] = seconds_of(options[name], name, least)
    for name in ("key", "field"):
        given = options[name]
        if not (isinstance(given, str) or callable(given) or (given is None and name == "field")):
            raise ConfigurationError(
                f"{name}={given!r} names nothing: give a template of the function's arguments"
                ' ("item:{id}"), or a function of them'
            )
    recruiter = options["recruiter"]
    enlists = callable(getattr(recruiter, "enlist", None)) and not isinstance(recruiter, type)
    if not (recruiter is None or enlists):
        raise ConfigurationError(f"recruiter={recruiter!r} enlists nobody: give a Recruiter")
    return Policy(early=float(early), **options)


def checked_function(function: object, policy: Policy, *, is_async: bool) -> Any:
    """Return a function to decorate. Raises: ConfigurationError for one of the other kind."""
    plain: Any = getattr(function, "__func__", function)
    if not callable(plain) or isinstance(plain, type):
        raise ConfigurationError(f"cached decorates a function, not {_name_of(plain)}")
    name = _name_of(plain)
    called = getattr(plain, "__call__", plain)  # noqa: B004 - an object's own, which may be async
    for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if kind(plain) or kind(called):
            raise ConfigurationError(
                f"{name} is a generator function, whose result can be used only once: let it return"
                " a list"
            )
    if any(map(inspect.iscoroutinefunction, (plain, called))) is not is_async:
        raise ConfigurationError(
            f"{name} is no coroutine function, and AsyncVolatileHashes awaits it: decorate it by"
            " VolatileHashes(...).cached"
            if is_async
            else f"{name} is a coroutine function, and VolatileHashes does not await it: decorate"
            " it by AsyncVolatileHashes(...).cached"
        )
    if policy.field is None and not isinstance(getattr(plain, "__name__", None), str):
        raise ConfigurationError(f"a {name} has no name of its own: give field=")
    return function


def _signature_for(function: Callable[..., Any], policy: Policy) -> inspect.Signature | None:
    """Return the signature that templates need, None if there is none to be read and no need.

    Raises: ConfigurationError for a template that names no argument.
    """
    try:
        # Names of annotations may be unknown while the program runs.
        signature = inspect.signature(function, **_UNRESOLVED)
    except (TypeError, ValueError):
        # As of many built-in functions.
        signature = None
    known = [] if signature is None else list(signature.parameters)
    for option, template in (("key", policy.key), ("field", policy.field)):
        if not isinstance(template, str):
            continue
        try:
            used = _used_in(template)
        except ValueError as error:
            raise ConfigurationError(
                f"{option}={template!r} is no template: {error}; write {{{{ and }}}} for braces"
            ) from None
        for name in used:
            if name not in known:
                raise ConfigurationError(
                    f"{option}={template!r} names {name!r}, which is no argument of"
                    f" {_name_of(function)}; its arguments are: {', '.join(known) or 'none'}"
                )
    return signature


def _used_in(template: str) -> list[str]:
    """Return the names of the arguments in a template. Raises: ValueError."""
    used = []
    for _, name, form, _ in Formatter().parse(template):
        if name is not None:
            used += [re.split(r"[.\[]", name, maxsplit=1)[0], *_used_in(form or "")]
    return used
