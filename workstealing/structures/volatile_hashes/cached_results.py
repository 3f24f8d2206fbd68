"""The steps of a cached function in Redis: it reads, leases and stores its results. No I/O.

The computer of a field holds a lease on it, in the hash's own slot, and a result is stored in one
step with a look at the lease (`lua/volatile_hashes/hstore.lua`). So a computer whose lease has
ended, was taken over or was voided stores nothing. A computer that dies leaves a lease, which ends.

A step is a hash command, which the hashes translate, a `Sleep`, or an `Awaited` computation.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import time
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, cast

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import is_connection_fault, is_pool_full
from workstealing.recruiting.breakers import Breaker
from workstealing.recruiting.cache_figures import CACHES, CacheFigures
from workstealing.recruiting.deferral import Enlister
from workstealing.recruiting.faults import FaultLog, HostTimeouts, shown
from workstealing.store.job_client import may_ask
from workstealing.store.operations import Sleep, Steps
from workstealing.store.sending import leaves_open
from workstealing.structures.volatile_hashes import computations
from workstealing.structures.volatile_hashes.cached_policy import (
    WRAPPERS,
    KeptError,
    Policy,
    decode_error,
    encode_error,
    name_of,
    positions_of,
    signature_for,
)
from workstealing.structures.volatile_hashes.computations import (
    Awaited,
    ComputedValue,
    SharedComputation,
)
from workstealing.structures.volatile_hashes.surface import FORGET, LEASE, LOOK, STORE, UNLEASE

P = ParamSpec("P")
R = TypeVar("R")

# A waiting caller looks this often, and less and less often.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.010, 0.100
# Waiters who join a computation leave the pool at once. A pool that is full for longer may be so
# for ever: redis-py gets no connection back that a host's time-out has cut off.
_POOL_PATIENCE_SECONDS = 2.0
_HEADER_END = b":"
# While a function fails, an old result stands in for so many seconds, twice as many each time.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 60.0
# So many places of a function are remembered as failing.
_FAILING_PLACES = 1024

_faults = FaultLog(SYSTEM_CLOCK)
timeouts = HostTimeouts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_faults.after_fork)


def breaker_of(hashes: Any, key: Any) -> Breaker:
    """Return the breaker of the server, or of the cluster's or fleet's node, that has a hash.

    No round trip.
    """
    # On a fleet, the hash's own node.
    node_of = getattr(hashes, "_node_of", None)
    breaker: Breaker = (hashes if node_of is None else node_of((key,))).job_client.breaker_of(key)
    return breaker


def only_breaker(hashes: Any) -> Breaker | None:
    """Return the breaker of all hashes; None: it depends on the hash, on a cluster or a fleet."""
    is_divided = hasattr(hashes, "_node_of") or hashes.job_client.is_cluster
    return None if is_divided else hashes.job_client.breaker_of("")


class CachedEntry(NamedTuple):
    """A kept result. Fields: value, decoded; left: seconds of freshness; cost: of computing it."""

    value: Any
    left: float
    cost: float


class ComputingTurn:
    """One call's leave to compute: the lease that the call holds, or may hold after a fault.

    Attributes: key and field, the place of the result; token, the lease's nonce, None: there is no
    lease to give back; taken, when that was granted, by the server's clock in us; is_cut, whether a
    command was interrupted, so that the client's connection may still owe its reply; unreadable,
    whether a value stands there that nobody can decode; computation, the one that this call leads,
    if any; computed, the step at which its function was called; cost, how many seconds that took;
    seen, an old value; waited, whether it has waited for another's computation.
    """

    __slots__ = (
        *("_pid", "_token", "computed", "cost", "field", "computation", "is_cut", "key", "seen"),
        *("taken", "unreadable", "waited"),
    )

    def __init__(self, place: tuple[str, str] | None = None) -> None:
        self.key, self.field = ("", "") if place is None else place
        self._token: str | None = None
        self._pid = self.taken = 0
        self.is_cut = False
        self.unreadable = False
        self.computation: SharedComputation | None = None
        self.computed = 0
        self.cost = 0.0
        self.seen: CachedEntry | None = None
        self.waited = False

    @property
    def token(self) -> str | None:
        """The lease's nonce; None also in a forked child, because the parent goes on computing."""
        return self._token if self._token is None or self._pid == os.getpid() else None

    @token.setter
    def token(self, token: str | None) -> None:
        self._token, self._pid = token, os.getpid()

    def lead(self, computation: SharedComputation) -> None:
        """Take a computation, which this call finishes."""
        self.computation = computation

    def step(self) -> int:
        """Begin to ask or compute; see `SharedComputation.step`."""
        return 0 if self.computation is None else self.computation.step()

    def compute(self, hold: float) -> None:
        """Begin to compute; see `SharedComputation.compute`."""
        self.computed = 0 if self.computation is None else self.computation.compute(hold)

    def finish(self, result: ComputedValue | None = None) -> None:
        """Tell those who wait for this call how it has ended."""
        if self.computation is None:
            return
        try:
            self.computation.finish(result)
        except BaseException:
            # A signal's, perhaps: the others would wait for a computation that nobody leads.
            self.computation.finish(result)
            raise

    def fail(self, error: BaseException) -> None:
        """Take note of a fault, after which the lease may or may not be there."""
        self.is_cut = self.is_cut or leaves_open(error)
        if is_connection_fault(error):
            # Giving it back would hold the caller up for another time-out.
            self.token = None


class CachedResults(Generic[P, R]):
    """The part that both forms of a cached function share."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, Any]
    _blocks = True
    """Whether a caller that waits holds up its whole thread."""

    def __init__(
        self,
        hashes: Any,
        function: Any,
        policy: Policy,
        subject: str | None = None,
        figures: CacheFigures | None = None,
    ) -> None:
        self._binds = type(function) if isinstance(function, WRAPPERS) else None
        plain = getattr(function, "__func__", function)
        update_wrapper(cast("Any", self), plain)
        self._before: tuple[Any, ...] = ()
        self._hashes = hashes
        self._breaker = only_breaker(hashes)
        self._figures = CACHES.of(name_of(plain)) if figures is None else figures
        # A backend counts its own looks.
        self._looks = self._figures if figures is None else CacheFigures()
        self._function = plain
        self._policy = policy
        self._recruiter = policy.recruiter
        # How often in a row a place could not be computed anew.
        self._failures: dict[tuple[str, str], int] = {}
        self._signature = signature_for(plain, policy)
        self._positions = positions_of(self._signature)
        self._subject = subject or f"the cache of {name_of(plain)}"

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
        key, field = self._policy.key, self._policy.field
        if self._positions is not None and not kwargs and len(given) == len(self._positions):
            # The usual call, without the eight microseconds of a signature.
            arguments = dict(zip(self._positions, given, strict=True))
        elif self._signature is None:
            arguments = {}
        else:
            bound = self._signature.bind(*given, **kwargs)
            bound.apply_defaults()
            arguments = bound.arguments
        named = key(*given, **kwargs) if callable(key) else key.format_map(arguments)
        if field is None:
            return named, self.__name__
        return named, field(*given, **kwargs) if callable(field) else field.format_map(arguments)

    def _question(self, turn: ComputingTurn) -> Any:
        """Return the request that reads a field, and its remaining time where that decides."""
        if self._policy.stale or self._policy.early:
            return (LOOK, turn.key, "FIELDS", 1, turn.field)
        return ("HMGET", turn.key, turn.field)

    def _answered(self, turn: ComputingTurn, reply: Any) -> CachedEntry | None:
        """Return the entry in the reply, also if the entry is due."""
        if self._policy.stale or self._policy.early:
            return self._entry(turn, *reply)
        return self._entry(turn, reply[0], -1)

    def _breaker_of(self, key: str) -> Breaker:
        """Return the breaker that this hash's calls share with jobs."""
        return breaker_of(self._hashes, key) if self._breaker is None else self._breaker

    def _may_ask(self, turn: ComputingTurn) -> bool:
        """Say whether to ask Redis; if not, the lease that a call may have ends by itself."""
        breaker = self._breaker
        # A usual call needs no more than this.
        if breaker is not None and breaker.outage is None:
            return True
        if may_ask(self._breaker_of(turn.key)):
            return True
        turn.token = None
        return False

    def _given(self, turn: ComputingTurn, entry: CachedEntry) -> None:
        """Count a value that is given without a computation of this call."""
        if turn.waited:
            self._looks.miss()
        elif entry.left > 0.0:
            self._looks.hit()
        else:
            self._looks.old()

    def _waits(self, turn: ComputingTurn) -> None:
        """Count a call that waits, once."""
        if not turn.waited:
            turn.waited = True
            self._figures.wait()

    def _took(self, began: float) -> float:
        """Count a computation; return how many seconds it took."""
        seconds = time.monotonic() - began
        self._figures.compute(seconds)
        return seconds

    def _count_failure(self, error: Exception) -> None:
        """Count a computation that raised, unless by a kept answer or a host's time-out."""
        answers = tuple(kind for kind, _ in self._policy.errors)
        if not (isinstance(error, answers) or timeouts.include(error)):
            self._figures.fail()

    def _unanswered(self, turn: ComputingTurn, error: Exception) -> bool:
        """Take note of a question's fault; say whether Redis is away."""
        if is_pool_full(error):
            return False
        turn.fail(error)
        self._fault(error)
        return True

    def _entry(self, turn: ComputingTurn, value: Any, left_ms: int) -> CachedEntry | None:
        """Return a stored value with its time; None if there is none that can be read."""
        turn.unreadable = False
        if value is None:
            return None
        policy = self._policy
        left = left_ms / 1000 - policy.stale if left_ms >= 0 else math.inf
        try:
            data = bytes(value)
            if policy.is_bare:
                return CachedEntry(policy.form.decode(data), left, 0.0)
            error = decode_error(data, policy) if policy.errors else None
            if error is not None:
                return CachedEntry(error, left + policy.stale, 0.0)
            cost, found, content = data.partition(_HEADER_END)
            if found and cost.isdigit():
                return CachedEntry(policy.form.decode(content), left, int(cost) / 1000)
            self._unreadable("it is no result of such a function")
        except Exception as error:
            if timeouts.include(error):
                raise
            # Of another release of the program, perhaps.
            self._unreadable(f"{type(error).__name__}: {shown(error)}")
        # It is computed anew.
        turn.unreadable = True
        return None

    def _unreadable(self, why: str) -> None:
        _faults.warn(self._subject, f"a value cannot be read and counts as missing: {why}")

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

    def _looking(
        self, turn: ComputingTurn, entry: CachedEntry | None, is_away: bool
    ) -> Steps[CachedEntry | None]:
        """Find a value, or None: the leave to compute it, with a lease in most cases.

        Arguments:
            entry: the one that the question has found, if it is due.
            is_away: whether Redis did not answer that.
        """
        turn.seen = entry
        if is_away:
            self._looks.leave()
        hashes, hold = self._hashes, self._policy.hold
        place = (computations.server_of(hashes.client), hashes.namespace, turn.key, turn.field)
        while True:
            computation, came = computations.join(place, hold, turn.lead, blocks=self._blocks)
            if computation is None:
                return entry
            if came is None:
                return None if is_away else (yield from self._leading(turn, computation, entry))
            if entry is not None:
                # Another caller computes it. This one has an old value meanwhile.
                computations.waits_no_more(computations.running())
                return entry
            caller = computations.running()
            try:
                found = yield from self._following(turn, computation, came)
            finally:
                computations.waits_no_more(caller)
            if found is not None:
                return found

    def _leading(
        self, turn: ComputingTurn, computation: SharedComputation, seen: CachedEntry | None
    ) -> Steps[CachedEntry | None]:
        """Get the lease, or the value, for all callers of this process that wait."""
        pause = _SHORTEST_PAUSE
        # By chance, or processes that began to wait at one moment would compute at one moment.
        patience = self._policy.hold * random.uniform(0.5, 1.0)
        try:
            found = yield from self._leasing(turn, seen)
            while found is None and turn.token is None:
                left = computation.began + patience - time.monotonic()
                if left <= 0.0:
                    return None
                self._waits(turn)
                yield Sleep(min(pause, left))
                pause = min(_LONGEST_PAUSE, 1.5 * pause)
                # The computer has failed or died, if there is no lease any more.
                found = yield from self._leasing(turn, None)
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            turn.fail(error)
            self._fault(error)
            # A fresh result was to be computed anew before its time.
            return seen if seen is not None and seen.left > 0.0 else None
        return found

    def _following(
        self, turn: ComputingTurn, computation: SharedComputation, came: int
    ) -> Steps[CachedEntry | None]:
        """Wait for a computation, keep its lease alive, and return its value if it is ours.

        Only this process knows that its computer lives. A process that is stopped also stops the
        callers that would extend the lease.
        """
        policy = self._policy
        while not computation.is_over:
            now = time.monotonic()
            left = computation.given_up_at - now
            if left <= 0.0:
                return None
            token = computation.token
            if token is not None and now >= computation.extended_at:
                computation.extended_at = now + policy.lease / 3
                if not self._may_ask(turn):
                    continue
                ms, most = math.ceil(1000 * policy.lease), math.ceil(1000 * policy.hold)
                try:
                    place = (LEASE, turn.key, "FIELDS", 1, turn.field)
                    yield (*place, token, ms, most, "", "ONLY")
                except Exception as error:  # noqa: BLE001 - the lease ends, and another computes
                    if not is_pool_full(error):
                        self._fault(error)
                continue
            due = computation.extended_at - now if token is not None else policy.lease / 3
            self._waits(turn)
            yield Awaited(computation, min(left, due))
        result = computation.result
        if result is None or came >= result.before:
            return None
        return self._entry(turn, result.data, result.left_ms)

    def _patiently(self, request: tuple[Any, ...]) -> Steps[Any]:
        """Send a request; while the client's pool is full, wait for a connection for a moment."""
        end = time.monotonic() + min(self._policy.hold, _POOL_PATIENCE_SECONDS)
        pause = _SHORTEST_PAUSE
        while True:
            try:
                return (yield request)
            except Exception as error:
                if not is_pool_full(error) or time.monotonic() >= end:
                    raise
            yield Sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    def _leasing(self, turn: ComputingTurn, seen: CachedEntry | None) -> Steps[CachedEntry | None]:
        """Take the lease on a field; return a value if there is no need, or no leave, to compute.

        In the same step it looks for a value that was stored since the caller looked.
        """
        if turn.unreadable:
            least: int | str = ""
        else:
            least = -1 if seen is None else round(1000 * (seen.left + self._policy.stale))
        before = turn.step()
        turn.taken, value, left = yield from self._patiently(self._asking(turn, least))
        policy = self._policy
        if turn.taken:
            if turn.computation is not None:
                patience = min(policy.wait, 2 * policy.lease / 3)
                turn.computation.extended_at = time.monotonic() + patience
                turn.computation.token = turn.token
            return None
        turn.token = None
        found = self._entry(turn, value, left)
        if found is not None:
            turn.finish(ComputedValue(bytes(value), left, before))
        return found or seen

    def _asking(self, turn: ComputingTurn, least: int | str, how: str = "") -> tuple[Any, ...]:
        """Return the request for a lease; from now on it may have to be given back."""
        turn.token = secrets.token_hex(8)
        ms = math.ceil(1000 * self._policy.lease)
        return (LEASE, turn.key, "FIELDS", 1, turn.field, turn.token, ms, ms, least, how)

    def _taking_over(self, turn: ComputingTurn) -> Steps[None]:
        """Take the lease whoever has it: from now on the computers before store nothing."""
        turn.taken, *_ = yield from self._patiently(self._asking(turn, "", "OVER"))

    def _storing(self, turn: ComputingTurn, content: bytes, cost: float) -> Steps[None]:
        """Store a result and give the lease back, in one step; without the lease store nothing."""
        ms = math.ceil(1000 * (self._policy.ttl + self._policy.stale))
        header = b"" if self._policy.is_bare else b"%d%s" % (round(1000 * cost), _HEADER_END)
        self._failures.pop((turn.key, turn.field), None)
        yield from self._keeping(turn, header + content, ms, cost)

    def _keeping(self, turn: ComputingTurn, data: bytes, ms: int, cost: float) -> Steps[None]:
        """Store what stands for a result, for some time."""
        before = turn.computed
        try:
            if turn.token is None or not turn.taken:
                # Nobody knows whether there is a lease, if its reply did not come.
                return
            storing = turn.step()
            place = (STORE, turn.key, "FIELDS", 1, turn.field)
            if (yield from self._patiently((*place, turn.token, ms, "", data, turn.taken))):
                # Nobody had voided the lease, so it is good for those who came meanwhile, too.
                before, turn.token = storing, None
            elif cost >= self._policy.lease:
                _faults.warn(
                    self._subject,
                    f"a result was not kept, because it took {cost:.1f} seconds to compute and the"
                    f" lease is {self._policy.lease:g}: give a longer lease=",
                )
            # Otherwise it is still given back: a late request may have taken it anew.
        finally:
            turn.finish(ComputedValue(data, ms, before))

    def _failed(
        self, turn: ComputingTurn, error: Exception
    ) -> tuple[CachedEntry | None, Steps[None] | None]:
        """Return the old result that stands in for an exception, and what Redis is to be told."""
        self._count_failure(error)
        if timeouts.include(error):
            return None, None
        if turn.seen is not None and not isinstance(turn.seen.value, KeptError):
            said = f"{type(error).__name__}: {shown(error)}"
            _faults.warn(
                self._subject, f"an old result stands in, because computing failed: {said}"
            )
            return turn.seen, self._pausing(turn)
        for kind, seconds in self._policy.errors:
            if isinstance(error, kind):
                data, ms = encode_error(kind, error), math.ceil(1000 * seconds)
                return None, self._keeping(turn, data, ms, 0.0)
        return None, None

    def _pausing(self, turn: ComputingTurn) -> Steps[None]:
        """Keep the lease for a while although nobody computes: others have the old result too."""
        place = (turn.key, turn.field)
        count = self._failures.pop(place, 0)
        while len(self._failures) >= _FAILING_PLACES:
            self._failures.pop(next(iter(self._failures)), None)
        self._failures[place] = count + 1
        if turn.token is None:
            return
        assert turn.seen is not None
        pause = min(_LAST_PAUSE, _FIRST_PAUSE * 2.0 ** min(count, 10))
        # No longer than there is an old result.
        ms = max(1, round(1000 * min(pause, turn.seen.left + self._policy.stale)))
        yield self._unleasing(turn, ms)
        turn.token = None

    def _unleasing(self, turn: ComputingTurn, ms: int = 0) -> tuple[Any, ...]:
        return (UNLEASE, turn.key, "FIELDS", 1, turn.field, turn.token, ms)

    def _giving_back(self, turn: ComputingTurn) -> Steps[None]:
        if turn.token is not None:
            # By its nonce, so it does not matter whether it has ended, or was ever granted.
            yield self._unleasing(turn)
            turn.token = None

    def _forgetting(self, turn: ComputingTurn) -> Steps[bool]:
        removed = yield (FORGET, turn.key, "FIELDS", 1, turn.field)
        return bool(removed)

    def _encoded(self, value: Any) -> bytes:
        return self._policy.form.encode(value)

    def _enlister(self) -> Enlister:
        if self._recruiter is None:
            from workstealing.recruiting.recruiter import default_recruiter

            self._recruiter = default_recruiter
        return self._recruiter

    def _fault(self, error: Exception) -> None:
        """Log a fault of the cache, which is not the function's. Raises: a host's time-out."""
        if timeouts.include(error):
            raise error
        _faults.report(self._subject, error)
