"""Rates that follow the garbage: each process moves its own, by what its own slices have seen.

A controller holds the number of slices per second that its process should do. Dividing that by the
enlist frequency gives the rate, so that more traffic does not mean more work. It knows of no other
process: all of them read the age of the same garbage, and so move together. docs/adaptive.md
derives the figures below and shows what became of them in the simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, RateError
from workstealing.recruiting.checks import checked_count, checked_rate, checked_seconds
from workstealing.recruiting.slice import Outcome, Seen

_DAY_SECONDS = 86_400.0


class Spending(Protocol):
    """Where an adaptive rate asks what has been spent, and says what it spends.

    Both are called in callers' time, `spent_today` about once a second: they answer from memory,
    and what is shared is sent and read later.
    """

    def spent_today(self) -> int:
        """Return the operations that all who share this have spent since the day began."""
        ...

    def spend(self, operations: int) -> None:
        """Note that this process has spent so many more operations."""
        ...


class OwnSpending:
    """What this process alone has spent; its days are 24 hours from its start.

    Arguments: clock, what the days are measured with.
    """

    __slots__ = ("_clock", "_ends", "_spent")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + _DAY_SECONDS
        self._spent = 0

    def spent_today(self) -> int:
        """Return the operations that this process has spent in its day."""
        late = self._clock.monotonic() - self._ends
        if late >= 0.0:
            self._ends += _DAY_SECONDS * (1 + late // _DAY_SECONDS)
            self._spent = 0
        return self._spent

    def spend(self, operations: int) -> None:
        """Note that this process has spent so many more operations."""
        self._spent = self.spent_today() + operations


_SHORTEST_SECONDS = 2.0
_ENLISTS = 10.0
_USUAL_SECONDS = 6 * 3600.0
_PATIENCE_SECONDS = 30.0


class Traffic:
    """Two means of the enlist frequency, fed about once a second.

    `now` follows within two seconds, or within the time of ten enlists where they are rarer: fast
    enough that a spike costs few slices, slow enough that chance does not shake the rates. `usual`
    follows within six hours, so that a quiet night does not make the process forget the day.

    Arguments: now, the clock's monotonic seconds; enlisted, how many there have been so far.
    """

    __slots__ = ("_at", "_enlisted", "_started", "now", "usual")

    now: float | None
    """Enlists per second of late; None until it is known."""

    usual: float
    """Enlists per second, on average over the last hours."""

    def __init__(self, now: float, enlisted: int = 0) -> None:
        self._started = self._at = now
        self._enlisted = enlisted
        self.now = None
        self.usual = 0.0

    def update(self, now: float, enlisted: int) -> None:
        """Take in the time and how many have enlisted so far; both only grow."""
        seconds = now - self._at
        if seconds <= 0.0:
            return
        count = enlisted - self._enlisted
        if self.now is None and count < _ENLISTS and (not count or seconds < _PATIENCE_SECONDS):
            if not count:
                # The time before the first caller says nothing.
                self._started = self._at = now
            return
        seen = count / seconds
        if self.now is None:
            self.now = self.usual = seen
        else:
            span = max(_SHORTEST_SECONDS, _ENLISTS / max(self.now, 1e-9))
            self.now += (seen - self.now) * -math.expm1(-seconds / span)
            # A plain mean until six hours have passed.
            span = min(_USUAL_SECONDS, now - self._started)
            self.usual += (seen - self.usual) * min(1.0, seconds / span)
        self._at = now
        self._enlisted = enlisted


# The age that is aimed at, in lag targets: well below 1, so that chance does not carry it over.
_AIM = 0.33
# How strongly the trend of the age moves the slices per second, and how strongly its distance from
# the aim does, per reaction time; what is beyond the lag target counts so many times more.
_BY_TREND = 1.5
_BY_DISTANCE = 0.25
_BEYOND = 3.0
# Ages are smoothed over this share of the lag target, against the chance in what a look finds.
_SMOOTHING = 0.1
# The reaction time is the lag target, or this many intervals between two slices of this process if
# that is longer: whoever looks rarely must move slowly, or a fleet overshoots.
_INTERVALS = 1.5
# How much of their mean is the newest one.
_NEW_INTERVAL = 0.3
# A trend is read over at least this share of the lag target; below that it is noise.
_TREND_SPAN = 0.25
# Ages that grow or fall by so many seconds a second are half believed: the less, the more of it is
# chance.
_DOUBT = 0.2
# Distances and draining beyond so many reaction times count no more than these.
_FARTHEST = 2.0
_STEEPEST = 0.95
# One slice changes the slices per second by so many times at most.
_LARGEST_STEP = math.log(8.0)
_HEADROOM = 1.25
# What a slice that found nothing, was aborted, failed or ran out of time leaves of the slices per
# second; what a job that never says how old its garbage is makes of a full one. Finding nothing
# counts once for each lag target since the last look, down to the least.
_LEAST_IDLE = 0.25
_IDLE, _ABORTED, _FAILED, _SLOW, _FULL = 0.8, 0.8, 0.5, 0.8, 1.25
# Slices grow while full ones end within this share of their time, and shrink beyond that share.
_QUICK = 0.4
_MOST_GROWTH = 8
# Garbage that was left behind ages: the chance rises until this process looks again.
# The time since the last look and the age that it read count, in lag targets, up to these.
_MOST_URGENCY = 4.0
_OLDEST_URGENCY = 3.0
# From which share of the daily cap on the rate falls, and where it is 0: what others have spent
# since they last said so must still fit.
_CAP_BRAKES, _CAP_STOPS = 0.85, 0.98


@dataclass(frozen=True, slots=True, init=False)
class Adaptive:
    """A rate that follows the garbage; pass it as `rate=` where a number would stand.

    Arguments: floor, the lowest rate, which also looks for garbage where there has been none;
    ceiling, the highest, which counts in the sum of all rates; lag, the seconds within which
    garbage should be removed; max_ops_per_day, the most operations that the job may spend in a day,
    None: no cap; spending, where that is counted, for instance a Ledger that the whole fleet
    shares, None: in this process alone.
    Raises: RateError unless 0 < floor <= ceiling <= 1; ConfigurationError for any other wrong
    argument.
    """

    floor: float
    ceiling: float
    lag: float
    max_ops_per_day: int | None
    spending: Spending | None

    def __init__(
        self,
        floor: float,
        ceiling: float,
        lag: Duration = 60.0,
        max_ops_per_day: int | None = None,
        spending: Spending | None = None,
    ) -> None:
        low = checked_rate(floor, "Adaptive(floor=)")
        high = checked_rate(ceiling, "Adaptive(ceiling=)")
        if low > high:
            raise RateError(f"Adaptive(floor={low:g}, ceiling={high:g}): expected floor <= ceiling")
        seconds = checked_seconds(lag, "lag")
        if max_ops_per_day is not None:
            checked_count(max_ops_per_day, "max_ops_per_day")
        elif spending is not None:
            raise ConfigurationError("Adaptive(spending=) needs max_ops_per_day= as well")
        for method in () if spending is None else ("spent_today", "spend"):
            if not callable(getattr(spending, method, None)):
                raise ConfigurationError(
                    f"Adaptive(spending={spending!r}): expected a Ledger, or an object with"
                    " spent_today() and spend(operations)"
                )
        values = (low, high, seconds, max_ops_per_day, spending)
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def start(self) -> float:
        """The rate of a process that has seen nothing yet: half-way, by factors."""
        # It stands before anybody asks what has been spent.
        if self.max_ops_per_day == 0:
            return 0.0
        return math.sqrt(self.floor * self.ceiling)


class Controller:
    """Moves one job's rate and slice size in one process.

    Arguments: adaptive; limit, the job's own number of items; clock. Not safe under threads by
    itself.
    """

    __slots__ = (
        "_adaptive",
        "_anchor",
        "_has_looked",
        "_interval",
        "_last",
        "_limit",
        "_size",
        "_spending",
        "demand",
        "rate",
    )

    demand: float | None
    """Slices per second that this process should do; None until its traffic is known."""

    rate: float
    """The rate of the moment, as of the last `settle`."""

    def __init__(self, adaptive: Adaptive, limit: int, clock: Clock) -> None:
        self._adaptive = adaptive
        self._limit = limit
        self._size = float(limit)
        self._spending: Spending | None = adaptive.spending
        if adaptive.max_ops_per_day is not None and self._spending is None:
            self._spending = OwnSpending(clock)
        self.demand = None
        self.rate = adaptive.start
        # The mean interval between two looks of this process.
        self._interval: float | None = None
        # When the last slice looked, and the age that it read; the same of the one to which the
        # next trend reaches back. Until then all is taken to be as it should.
        self._last = self._anchor = (clock.monotonic(), _AIM * adaptive.lag)
        self._has_looked = False

    @property
    def limit(self) -> int:
        """The most items of the next slice."""
        return int(self._size)

    def settle(self, now: float, traffic: Traffic, allowance: float = 1.0) -> float:
        """Return the rate from this moment on: the slices per second, divided by the traffic.

        Arguments: now, monotonic seconds; traffic of this process; allowance, as of that method.
        Called about once a second.
        """
        adaptive = self._adaptive
        frequency = traffic.now
        if frequency is None:
            self.rate = adaptive.start * allowance
            return self.rate
        if self.demand is None:
            self.demand = adaptive.start * frequency
        # Never fewer looks than the floor's share of the usual traffic: a quiet night sees the
        # garbage of the day, and a pause between two bursts forgets nothing. Little more than the
        # ceiling allows, or it would have far to fall.
        most = max(frequency, traffic.usual)
        highest = _HEADROOM * adaptive.ceiling * most
        self.demand = max(min(self.demand, highest), adaptive.floor * most)
        wanted = self.demand * self._urgency(now)
        rate = wanted / frequency if frequency > 0.0 else adaptive.ceiling
        self.rate = min(max(rate, adaptive.floor), adaptive.ceiling) * allowance
        return self.rate

    def see(self, now: float, seen: Seen) -> None:
        """Take in what a slice has seen; the next `settle` shows it.

        Arguments: now, monotonic seconds; seen, of any outcome but SKIPPED.
        """
        if now < self._last[0]:
            # A clock that stepped back: what was read then stands, as if it had been read now.
            self._last = self._anchor = (now, self._last[1])
        self._resize(now, seen)
        if self.demand is None:
            self._look(now, seen.oldest_seconds)
            return
        step = self._step(now, seen)
        self.demand *= math.exp(min(max(step, -_LARGEST_STEP), _LARGEST_STEP))
        self._look(now, seen.oldest_seconds)

    def _step(self, now: float, seen: Seen) -> float:
        """Return the change of the demand's logarithm that a slice calls for."""
        if seen.outcome is Outcome.OUT_OF_TIME:
            return math.log(_SLOW)
        if seen.outcome is Outcome.FAILED:
            return math.log(_SLOW if seen.ran_out else _FAILED)
        if seen.outcome is Outcome.ABORTED:
            return math.log(_ABORTED)
        slow = math.log(_SLOW) if seen.ran_out else 0.0
        idle = 0.0
        if seen.outcome is Outcome.IDLE and not seen.oldest_seconds:
            idle = max(math.log(_IDLE) * max(1.0, self._since_look(now)), math.log(_LEAST_IDLE))
        if seen.oldest_seconds is None:
            return slow + idle or (math.log(_FULL) if seen.is_full else 0.0)
        step = self._by_age(now, seen.oldest_seconds) + idle
        # A server that is slow is not asked for more.
        return min(step, 0.0) + slow if slow else step

    def _by_age(self, now: float, oldest: float) -> float:
        adaptive = self._adaptive
        reaction = self._reaction(now)
        farthest = _FARTHEST * reaction
        oldest = self._smooth(now, oldest)
        elapsed = min(now - self._last[0], reaction)
        age = min(oldest, farthest)
        distance = age - _AIM * adaptive.lag + _BEYOND * max(0.0, age - adaptive.lag)
        step = _BY_DISTANCE * distance * elapsed / reaction**2
        since, before = self._anchor
        span = now - since
        if span >= _TREND_SPAN * adaptive.lag:
            # Unless slices remove anything, the age grows by a second a second; what is missing is
            # the share by which it grows.
            growth = min((oldest - before) / span, _STEEPEST)
            if growth > 0.0 or oldest < farthest:
                certainty = abs(growth) / (abs(growth) + _DOUBT)
                step -= _BY_TREND * min(span / reaction, 1.0) * math.log1p(-growth) * certainty
        return step

    def _smooth(self, now: float, oldest: float) -> float:
        """Return the age read, without the chance in it if this process reads it often."""
        at, before = self._last
        weight = -math.expm1(-(now - at) / (_SMOOTHING * self._adaptive.lag))
        return before + (oldest - before) * weight

    def _look(self, now: float, oldest: float | None) -> None:
        # A slice that does not say has seen nothing else than the last one.
        oldest = self._last[1] if oldest is None else self._smooth(now, oldest)
        interval = now - self._last[0]
        if self._interval is None:
            self._interval = interval
        self._interval += _NEW_INTERVAL * (interval - self._interval)
        self._has_looked = True
        self._last = (now, oldest)
        if now - self._anchor[0] >= _TREND_SPAN * self._adaptive.lag:
            self._anchor = self._last

    def _resize(self, now: float, seen: Seen) -> None:
        """Let slices grow while full ones end early, and shrink when time runs out."""
        before = self._size
        if seen.ran_out:
            self._size = max(1.0, 0.75 * min(before, float(seen.limit)))
        elif (
            seen.is_full
            and seen.limit == self.limit
            and seen.took < _QUICK * seen.given
            and self._may_look_less(now)
        ):
            self._size = min(_MOST_GROWTH * float(self._limit), before + max(1.0, before / 8))
        if self.demand is not None:
            # The same work in fewer slices, or in more.
            self.demand *= before / self._size

    def _may_look_less(self, now: float) -> bool:
        """Whether this process looks often enough to do the same in fewer, larger slices."""
        at_ceiling = self.rate >= self._adaptive.ceiling
        return at_ceiling or (self._has_looked and self._reaction(now) <= self._adaptive.lag)

    def _reaction(self, now: float) -> float:
        """Return the seconds within which this process can react to what it sees."""
        interval = now - self._last[0] if self._interval is None else self._interval
        return max(self._adaptive.lag, _INTERVALS * interval)

    def _since_look(self, now: float) -> float:
        """Return how long ago this process looked last, in lag targets."""
        return (now - self._last[0]) / self._adaptive.lag

    def _urgency(self, now: float) -> float:
        """Return by how much old garbage raises the chance until this process looks again."""
        waited = self._since_look(now)
        if not self._has_looked:
            # It has seen nothing yet, and should soon.
            return 1.0 + waited
        age = self._last[1] / self._adaptive.lag
        return 1.0 + min(waited, _MOST_URGENCY) * min(age, _OLDEST_URGENCY)

    def spend(self, operations: int) -> None:
        """Count operations towards the daily cap, if there is one."""
        if self._spending is not None:
            self._spending.spend(operations)

    def allowance(self) -> float:
        """Return the share of its rate that the daily cap leaves to the job: 0.0 to 1.0."""
        if self._spending is None or self._adaptive.max_ops_per_day is None:
            return 1.0
        stops = _CAP_STOPS * self._adaptive.max_ops_per_day
        brakes = _CAP_BRAKES * self._adaptive.max_ops_per_day
        left = stops - self._spending.spent_today()
        if left <= 0.0:
            return 0.0
        return min(1.0, left / (stops - brakes))
