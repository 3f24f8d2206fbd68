"""Rates that follow the garbage. Each process moves its own rate by the reports of its own slices.

A controller holds the number of slices per second that its process should do. The rate is that
number divided by the enlist frequency, so more traffic does not mean more work. A controller knows
no other process. All processes read the age of the same garbage, and so move together.
docs/adaptive.md derives the figures below and shows them in the simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, RateError
from workstealing.recruiting.checks import checked_count, checked_rate, checked_seconds
from workstealing.recruiting.slice import Outcome, Report

_DAY_SECONDS = 86_400.0


class Spending(Protocol):
    """A counter of spent operations, which an adaptive rate reads and feeds.

    Both methods run in callers' time, `spent_today` about once a second. They answer from memory.
    A shared counter sends and reads its figures later. If it has a method `claim` as well, such as
    `Ledger.claim`, that one is asked before each slice, so processes do not overspend together.
    """

    def spent_today(self) -> int:
        """Return the operations that all processes of this counter have spent today."""
        ...

    def spend(self, operations: int) -> None:
        """Note that this process has spent so many more operations."""
        ...


class OwnSpending:
    """The operations that this process alone has spent. A day is 24 hours from its start.

    Arguments:
        clock: it measures the days.
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

    `now` follows within two seconds, or within the time of ten enlists if that is longer. A spike
    then costs few slices, and chance does not shake the rates. `usual` is a mean of about six
    hours, so after a quiet night the process still remembers the traffic of the day before.

    Arguments:
        now: the clock's monotonic seconds.
        enlisted: the number of enlists so far.
    """

    __slots__ = ("_at", "_enlisted", "_started", "now", "usual")

    now: float | None
    """Enlists per second in the last seconds; None until it is known."""

    usual: float
    """Enlists per second, on average over the last hours."""

    def __init__(self, now: float, enlisted: int = 0) -> None:
        self._started = self._at = now
        self._enlisted = enlisted
        self.now = None
        self.usual = 0.0

    def update(self, now: float, enlisted: int) -> None:
        """Take in the time and the number of enlists so far; both only grow."""
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


# The age to aim at, in lag targets. It is well below 1, so chance does not carry the age over it.
_AIM = 0.33
# How strongly the age moves the slices per second in a reaction time: by its trend, and by its
# distance from the aim. Seconds beyond the lag target count _BEYOND times more.
_BY_TREND = 1.5
_BY_DISTANCE = 0.25
_BEYOND = 3.0
# Ages are smoothed over this share of the lag target, because one look finds a random age.
_SMOOTHING = 0.1
# The reaction time is the lag target, or this many intervals between two slices of this process if
# that is longer. A process that looks rarely must move slowly, or a fleet overshoots.
_INTERVALS = 1.5
# The share of the newest interval in their mean.
_NEW_INTERVAL = 0.3
# A trend is read over at least this share of the lag target; below that it is noise.
_TREND_SPAN = 0.25
# A trend of so many seconds a second is half believed. More of a smaller trend is chance.
_DOUBT = 0.2
# Distances and draining beyond so many reaction times count no more than these.
_FARTHEST = 2.0
_STEEPEST = 0.95
# One slice changes the slices per second by this factor at most.
_LARGEST_STEP = math.log(8.0)
_HEADROOM = 1.25
# Factors of the slices per second after a slice that was idle, was aborted, failed, ran out of time
# or was full, the last for a job that never reports an age. An idle slice counts once for each lag
# target since the last look, down to _LEAST_IDLE.
_LEAST_IDLE = 0.25
_IDLE, _ABORTED, _FAILED, _SLOW, _FULL = 0.8, 0.8, 0.5, 0.8, 1.25
# Slices grow while full ones end within this share of their time.
_QUICK = 0.4
_MOST_GROWTH = 8
# Garbage that is left behind ages, so the chance rises until this process looks again. The time
# since the last look and the age that it read count up to so many lag targets.
_MOST_URGENCY = 4.0
_OLDEST_URGENCY = 3.0
# The rate falls from the first share of the daily cap on, and is 0 from the second one on. The
# rest is for the unreported spending of other processes.
_CAP_BRAKES, _CAP_STOPS = 0.85, 0.98


@dataclass(frozen=True, slots=True, init=False)
class Adaptive:
    """A rate that follows the age of the garbage; pass it as `rate=` where a number would stand.

    If a job reports no age, its rate goes by full and idle slices.

    Arguments:
        floor: the lowest rate, which finds new garbage after a time without any.
        ceiling: the highest rate, which counts in the sum of all rates.
        lag: the time within which garbage should be removed, a number of seconds or a timedelta.
        max_ops_per_day: the most operations that the job may spend in a day, None: no cap.
        spending: it counts them, for instance a Ledger that the whole fleet shares, None: this
            process counts its own.

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
        """The rate of a process that has seen nothing yet: the geometric mean of both limits."""
        # This rate holds before the first question for the spending.
        if self.max_ops_per_day == 0:
            return 0.0
        return math.sqrt(self.floor * self.ceiling)


class Controller:
    """Moves one job's rate and slice size in one process. The caller holds a lock.

    Arguments:
        limit: the job's own number of items.
    """

    __slots__ = (
        "_adaptive",
        "_anchor",
        "_claimed",
        "_dearest",
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
    """The present rate, as of the last `move_rate`."""

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
        # The time of the last look and the age that it read. The anchor is the look to which the
        # next trend reaches back. At first the age is taken to be at its aim.
        self._last = self._anchor = (clock.monotonic(), _AIM * adaptive.lag)
        self._has_looked = False
        # The operations counted ahead for the slice that runs, and the most of any slice so far; at
        # first a guess: a look, and one command an item.
        self._claimed, self._dearest = 0, 1 + limit

    @property
    def limit(self) -> int:
        """The most items of the next slice."""
        return int(self._size)

    def move_rate(self, now: float, traffic: Traffic, allowance: float = 1.0) -> float:
        """Return the rate from this moment on: the slices per second, divided by the traffic.

        Arguments:
            now: monotonic seconds.
            traffic: of this process.
            allowance: as of that method.

        Called about once a second.
        """
        adaptive = self._adaptive
        frequency = traffic.now
        if frequency is None:
            self.rate = adaptive.start * allowance
            return self.rate
        if self.demand is None:
            self.demand = adaptive.start * frequency
        # The floor's share of the usual traffic is the least, so the garbage of the day is seen in
        # a quiet night, and a pause between two bursts changes nothing. The most is a little above
        # the ceiling, or the demand would have far to fall.
        most = max(frequency, traffic.usual)
        highest = _HEADROOM * adaptive.ceiling * most
        self.demand = max(min(self.demand, highest), adaptive.floor * most)
        wanted = self.demand * self._urgency(now)
        rate = wanted / frequency if frequency > 0.0 else adaptive.ceiling
        self.rate = min(max(rate, adaptive.floor), adaptive.ceiling) * allowance
        return self.rate

    def see(self, now: float, seen: Report) -> None:
        """Take in a slice's report; the next `move_rate` shows its effect.

        Arguments:
            now: monotonic seconds.
            seen: of any outcome but SKIPPED.
        """
        if now < self._last[0]:
            # The clock stepped back: the last age counts as if it had been read now.
            self._last = self._anchor = (now, self._last[1])
        self._resize(now, seen)
        if self.demand is None:
            self._look(now, seen.oldest_seconds)
            return
        step = self._step(now, seen)
        self.demand *= math.exp(min(max(step, -_LARGEST_STEP), _LARGEST_STEP))
        self._look(now, seen.oldest_seconds)

    def _step(self, now: float, seen: Report) -> float:
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
        # A slow server gets no more slices.
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
            # The age grows by a second a second if slices remove nothing. The growth is the share
            # that slices are missing.
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
        # A slice without a report confirms the last one.
        oldest = self._last[1] if oldest is None else self._smooth(now, oldest)
        interval = now - self._last[0]
        if self._interval is None:
            self._interval = interval
        self._interval += _NEW_INTERVAL * (interval - self._interval)
        self._has_looked = True
        self._last = (now, oldest)
        if now - self._anchor[0] >= _TREND_SPAN * self._adaptive.lag:
            self._anchor = self._last

    def _resize(self, now: float, seen: Report) -> None:
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
            # The amount of work stays, in fewer or in more slices.
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
            # It has seen nothing yet, and should look soon.
            return 1.0 + waited
        age = self._last[1] / self._adaptive.lag
        return 1.0 + min(waited, _MOST_URGENCY) * min(age, _OLDEST_URGENCY)

    def claim(self) -> bool:
        """Count the next slice's operations ahead; say whether the daily cap lets it begin.

        As many are counted as this process's dearest slice of late took. Without a cap, or with a
        spending that cannot claim or does not know, the figures at hand decide. One round trip of a
        ledger. The spending's errors pass.
        """
        self._claimed = 0
        claim = getattr(self._spending, "claim", None)
        if claim is not None and not self.is_spent:
            before = claim(self._dearest)
            if before is not None:
                self._claimed = self._dearest
                if before >= self._stops:
                    self.spend(0)
                    return False
                return True
        return not self.is_spent

    def spend(self, operations: int) -> None:
        """Count a slice's operations towards any daily cap, less those that `claim` has counted."""
        ahead, self._claimed = self._claimed, 0
        if operations:
            self._dearest = max(operations, self._dearest - self._dearest // 8)
        if self._spending is not None:
            self._spending.spend(operations - ahead)

    @property
    def is_spent(self) -> bool:
        """Whether the daily cap leaves nothing to spend."""
        return self.allowance() <= 0.0

    @property
    def _stops(self) -> float:
        return _CAP_STOPS * (self._adaptive.max_ops_per_day or 0)

    def allowance(self) -> float:
        """Return the share of its rate that the daily cap leaves to the job: 0.0 to 1.0."""
        if self._spending is None or self._adaptive.max_ops_per_day is None:
            return 1.0
        brakes = _CAP_BRAKES * self._adaptive.max_ops_per_day
        left = self._stops - self._spending.spent_today()
        if left <= 0.0:
            return 0.0
        return min(1.0, left / (self._stops - brakes))
