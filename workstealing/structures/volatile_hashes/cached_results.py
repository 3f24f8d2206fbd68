"""The steps of a cached function in Redis: it reads, leases and stores its results. No I/O.

The computer of a field holds a lease on it: a field of a second hash, written if there is none and
gone at its deadline like any other. A computer that dies leaves nothing else behind.
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
from workstealing.store.once import MayRepeat
from workstealing.store.operations import Sleep

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
# A lease is given back only in this share of its time: later it may be another caller's.
_SURELY_OURS = 0.9
_HEADER_END = b":"
_LEASES = ":computing"

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

    Attributes: key and field, the place of the result; began, the monotonic time when the lease was
    asked for; token, its value, None: there is no lease to give back; is_sure, whether Redis has
    said that the lease is this call's; is_cut, whether a command was interrupted, so that the
    client's connection may still owe its reply; keeps, whether the result is to be kept.
    """

    __slots__ = ("began", "field", "is_cut", "is_sure", "keeps", "key", "token")

    def __init__(self, place: tuple[str, str] | None = None) -> None:
        self.key, self.field = ("", "") if place is None else place
        self.began = 0.0
        self.token: str | None = None
        self.is_sure = False
        self.is_cut = False
        self.keeps = True

    def fail(self, error: BaseException) -> None:
        """Take note of a fault, after which a lease may be another caller's."""
        self.is_sure = False
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
        """Return the hash and the field of these arguments' result. No command.

        Raises: ConfigurationError for a hash whose name is that of another's leases.
        """
        given = (*self._before, *args)
        field = self._policy.field
        key = self._named(self._policy.key, given, kwargs)
        if key.endswith(_LEASES):
            raise ConfigurationError(
                f"the hash {key!r} cannot keep results: names that end in {_LEASES!r} are those of"
                " leases; give another key="
            )
        return (key, self.__name__ if field is None else self._named(field, given, kwargs))

    def _named(self, name: Named, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if callable(name):
            return name(*args, **kwargs)
        if self._signature is None:
            return name.format()
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return name.format_map(bound.arguments)

    def _reading(self, key: str, field: str) -> Requests[CachedEntry | None]:
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
        try:
            if policy.is_bare:
                return CachedEntry(policy.decode(bytes(value)), left, 0.0)
            cost, found, content = bytes(value).partition(_HEADER_END)
            if not found or not cost.isdigit():
                # Written by another program: it is computed anew.
                return None
            return CachedEntry(policy.decode(content), left, int(cost) / 1000)
        except Exception as error:  # noqa: BLE001 - a user's function
            # Of an earlier release of the program, perhaps: it is computed anew.
            self._fault(error)
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
        entry = yield from self._reading(turn.key, turn.field)
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
            found = yield from self._reading(turn.key, turn.field)
            if found is not None:
                return found
            # The computer has failed or died, if there is no lease any more.
            found = yield from self._leasing(turn, None)
            if found is not None or turn.token is not None:
                return found
        return None

    def _leasing(
        self, turn: ComputingTurn, seen: CachedEntry | None
    ) -> Requests[CachedEntry | None]:
        """Take the lease on a field; return a value if there is no need to compute it."""
        turn.began, turn.token, turn.is_sure = time.monotonic(), secrets.token_hex(8), False
        px = math.ceil(1000 * self._policy.lease)
        fields = ("FIELDS", 1, turn.field, turn.token)
        leases = leases_beside(turn.key)
        done, (held,) = yield [
            (MayRepeat("HSETEX"), leases, "PX", px, "FNX", *fields),
            # If redis-py has sent it twice, the second reply says that there is a lease already.
            ("HMGET", leases, turn.field),
        ]
        if not done and (held is None or bytes(held) != turn.token.encode()):
            # Another caller computes it. This one has an old value meanwhile.
            turn.token = None
            return seen
        turn.is_sure = True
        # The lease's last holder may have stored a value since this caller looked.
        again = yield from self._reading(turn.key, turn.field)
        if again is not None and again.left > max(0.0, 0.0 if seen is None else seen.left):
            return again
        return None

    def _storing(self, turn: ComputingTurn, content: bytes, cost: float) -> Requests[None]:
        """Store a result, and give the lease back, in one round trip."""
        px = math.ceil(1000 * (self._policy.ttl + self._policy.stale))
        header = b"" if self._policy.is_bare else b"%d%s" % (round(1000 * cost), _HEADER_END)
        written = ("FIELDS", 1, turn.field, header + content)
        commands: list[Any] = [("HSETEX", turn.key, "PX", px, *written)]
        if self._is_ours(turn):
            commands.append((MayRepeat("HDEL"), leases_beside(turn.key), turn.field))
        yield commands
        turn.token = None

    def _giving_back(self, turn: ComputingTurn) -> Requests[None]:
        if not self._is_ours(turn):
            turn.token = None
            return
        leases = leases_beside(turn.key)
        if not turn.is_sure:
            # A command was cut off, so nobody knows whether it was done.
            (held,) = yield ("HMGET", leases, turn.field)
            if held is None or bytes(held).decode("ascii", "replace") != turn.token:
                turn.token = None
                return
        yield ("HDEL", leases, turn.field)
        turn.token = None

    def _is_ours(self, turn: ComputingTurn) -> bool:
        """Say whether the lease, if there is one, cannot have ended."""
        return (
            turn.token is not None
            and time.monotonic() - turn.began < _SURELY_OURS * self._policy.lease
        )

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


def leases_beside(key: str) -> str:
    """Return the key of the hash that holds the leases of the computers of a hash's fields."""
    return f"{key}{_LEASES}"


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
