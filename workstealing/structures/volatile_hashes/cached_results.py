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
from contextvars import ContextVar
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
from workstealing.structures.volatile_hashes.commands import FORGET, LEASE, STORE, UNLEASE

P = ParamSpec("P")
R = TypeVar("R")
_WRAPPERS = (classmethod, staticmethod)
Named = str | Callable[..., str]
Requests = Generator[Any, Any, R]
"""A generator as `Steps`, but its commands are hash commands, which the hashes translate.

A step is a hash command, a list of them for one round trip, or a `Sleep`. `drive_by` sends them
through the methods of the hashes.
"""

# A waiting caller looks this often, and less and less often.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.010, 0.100
_HEADER_END = b":"

if sys.version_info >= (3, 14):
    from annotationlib import Format

    _UNRESOLVED: dict[str, Any] = {"annotation_format": Format.FORWARDREF}
else:
    _UNRESOLVED: dict[str, Any] = {}

_faults = FaultLog(SYSTEM_CLOCK)
_timeouts = HostTimeouts()
computing: ContextVar[frozenset[tuple[str, str, str]]] = ContextVar(
    "workstealing_computing", default=frozenset()
)
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
    may still owe its reply; unreadable, whether a value stands there that nobody can decode.
    """

    __slots__ = ("field", "is_cut", "key", "token", "unreadable")

    def __init__(self, place: tuple[str, str] | None = None) -> None:
        self.key, self.field = ("", "") if place is None else place
        self.token: str | None = None
        self.is_cut = False
        self.unreadable = False

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
        entry = yield from self._reading(turn)
        if entry is not None and not self._is_due(entry):
            return entry
        try:
            found = yield from self._leasing(turn, entry)
        except Exception as error:
            if entry is None or entry.left <= 0.0:
                raise
            # It is fresh, and was to be computed anew before its time.
            turn.fail(error)
            self._fault(error)
            return entry
        if found is not None or turn.token is not None or self._mark(turn) in computing.get():
            # A function that calls itself must not wait for itself.
            return found
        end, pause = time.monotonic() + self._policy.wait, _SHORTEST_PAUSE
        while (left := end - time.monotonic()) > 0.0:
            yield Sleep(min(pause, left))
            pause = min(_LONGEST_PAUSE, 1.5 * pause)
            # The computer has failed or died, if there is no lease any more.
            found = yield from self._leasing(turn, None)
            if found is not None or turn.token is not None:
                return found
        return None

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
        done, value, left = yield self._asking(turn, least)
        if done:
            return None
        # Another caller computes it. This one has an old value meanwhile.
        turn.token = None
        return self._entry(turn, value, left) or seen

    def _asking(self, turn: ComputingTurn, least: int | str, how: str = "") -> tuple[Any, ...]:
        """Return the request for a lease; from now on it may have to be given back."""
        turn.token = secrets.token_hex(8)
        ms = math.ceil(1000 * self._policy.lease)
        return (LEASE, turn.key, "FIELDS", 1, turn.field, turn.token, ms, ms, least, how)

    def _taking_over(self, turn: ComputingTurn) -> Requests[None]:
        """Take the lease whoever has it: from now on the computers before store nothing."""
        yield self._asking(turn, "", "OVER")

    def _storing(self, turn: ComputingTurn, content: bytes, cost: float) -> Requests[None]:
        """Store a result and give the lease back, in one step; without the lease do nothing."""
        if turn.token is None:
            return
        ms = math.ceil(1000 * (self._policy.ttl + self._policy.stale))
        header = b"" if self._policy.is_bare else b"%d%s" % (round(1000 * cost), _HEADER_END)
        place = (STORE, turn.key, "FIELDS", 1, turn.field)
        is_stored = yield (*place, turn.token, ms, "", header + content)
        turn.token = None
        if not is_stored and cost >= self._policy.lease:
            _faults.warn(
                self._subject,
                f"a result was not kept, because it took {cost:.1f} seconds to compute and the"
                f" lease is {self._policy.lease:g}: give a longer lease=",
            )

    def _giving_back(self, turn: ComputingTurn) -> Requests[None]:
        if turn.token is not None:
            # By its nonce, so it does not matter whether it has ended, or was ever granted.
            yield (UNLEASE, turn.key, "FIELDS", 1, turn.field, turn.token, 0)
            turn.token = None

    def _forgetting(self, key: str, field: str) -> Requests[bool]:
        removed = yield (FORGET, key, "FIELDS", 1, field)
        return bool(removed)

    def _mark(self, turn: ComputingTurn) -> tuple[str, str, str]:
        return self._hashes.namespace, turn.key, turn.field

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


def _name_of(function: object) -> str:
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__name__


def checked_policy(*, early: float, **options: Any) -> Policy:
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
