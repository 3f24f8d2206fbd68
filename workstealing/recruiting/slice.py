"""A slice: its bounds, length, outcome and report."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from dataclasses import dataclass

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import (
    checked_age,
    checked_count,
    checked_limit,
    checked_name,
    checked_seconds,
)


class Outcome(enum.Enum):
    """The outcome of one enlist; every member is true in a condition."""

    # No __bool__ and no __len__, here or in a mixed-in type: the hot path tests a member's truth,
    # and that test stays in C without them.

    DISMISSED = "dismissed"
    """The caller lost the draw and goes on at once."""

    WORKED = "worked"
    """The job handled at least one item."""

    IDLE = "idle"
    """The job found nothing to do."""

    ABORTED = "aborted"
    """Another writer came first, or a lock was held."""

    FAILED = "failed"
    """The job ended with an error. No item counts, though a late reply's command may be done."""

    OUT_OF_TIME = "out_of_time"
    """The slice was too short for the job to handle any item. This is no fault."""

    SKIPPED = "skipped"
    """The job is paused or could not begin, its breaker is open, or another slice runs here."""


OUTCOMES = tuple(each.value for each in Outcome if each is not Outcome.DISMISSED)
"""The names of a recruit's possible outcomes. Every list of them is this one."""

PERFORMED = tuple(each for each in OUTCOMES if each != Outcome.SKIPPED.value)
"""The outcomes of performed slices. Shares are shares of these."""


def spoken(outcome: str) -> str:
    """Return the name of an outcome for people: "out of time"."""
    return outcome.replace("_", " ")


TRIPS = 8
"""The round trips that a slice should have time for: two looks, a begin, an end, and spare ones."""

_LONGER = 10.0
_LONGEST_SECONDS = 0.25
_STEP = 2.0
# A length that was too short is tried again this many times longer, or after so many seconds.
_MARGIN = 1.5
_REMEMBERED_SECONDS = 60.0
# A slice that took this share of its time has run out of it.
_LATE = 0.8


def seconds_for(round_trip: float) -> float:
    """Return a length of slices for round trips of so many seconds: 1, 2 or 5 x 10^n.

    Arguments:
        round_trip: above 0.
    """
    least = TRIPS * round_trip
    power = 10.0 ** math.floor(math.log10(least))
    return next(each * power for each in (1, 2, 5, 10) if each * power >= least * 0.999)


def longest_for(seconds: float) -> float:
    """Return the longest that slices of so many seconds become by default: ten times as long.

    The result is a quarter of a second at most, or the slices' own length if that is more.
    """
    return max(seconds, min(_LONGER * seconds, _LONGEST_SECONDS))


class SliceLength:
    """The length of a job's slices, after slices that were too short.

    A slice that is too short for any item doubles the next one's length, up to the longest that the
    host allows. The length halves again if that may suffice: round trips have become shorter, or a
    minute has passed and it is time for a trial.

    Arguments:
        longest: in seconds, None: `longest_for` the length.
    """

    __slots__ = ("_factor", "_longest", "_too_short", "_trip", "_until")

    def __init__(self, longest: float | None = None) -> None:
        self._longest = longest
        self._factor = 1.0
        self._too_short = 0.0
        self._trip: float | None = None
        self._until = 0.0

    def longest(self, given: float) -> float:
        """Return the longest that slices of that length may become."""
        return longest_for(given) if self._longest is None else max(given, self._longest)

    def seconds(self, given: float) -> float:
        """Return the length of the next slice.

        Arguments:
            given: the job's own length.
        """
        return min(self.longest(given), given * self._factor)

    def see(self, outcome: Outcome, given: float, trip: float | None, now: float) -> None:
        """Take in a slice of the length `seconds(given)` that has ended now.

        Arguments:
            given: the job's own length.
            trip: the seconds of a round trip, None: unknown.
            now: monotonic seconds.
        """
        length = self.seconds(given)
        if outcome is Outcome.OUT_OF_TIME:
            self._too_short, self._trip, self._until = length, trip, now + _REMEMBERED_SECONDS
            self._factor = min(self._factor * _STEP, self.longest(given) / given)
        elif self._factor > 1.0 and outcome in (Outcome.WORKED, Outcome.IDLE, Outcome.ABORTED):
            too_short = self._too_short if now < self._until else 0.0
            if trip is not None and self._trip:
                too_short *= trip / self._trip
            if length / _STEP > _MARGIN * too_short:
                self._factor = max(1.0, self._factor / _STEP)


class Slice:
    """The bound on one performance: at most `limit` items, and no command after the deadline.

    Arguments:
        limit: a number of items of at least 1.
        seconds: the length, a number above 0 or a timedelta.
        clock: it measures the length.

    The length begins now. Raises: ConfigurationError for another limit or length.
    """

    __slots__ = (
        "_clock",
        "backlog",
        "deadline",
        "held_back",
        "limit",
        "measured",
        "oldest_seconds",
        "operations",
        "seconds",
        "served",
    )

    limit: int
    """The most items that this performance may handle."""

    seconds: float
    """The length of this slice, in seconds."""

    deadline: float
    """The clock's monotonic value, in seconds, at which this slice ends."""

    oldest_seconds: float | None
    """The highest age of garbage that the job has reported in this slice; None: no report."""

    backlog: int | None
    """The number of waiting items that the job has reported in this slice; None: no report."""

    measured: dict[str, float] | None
    """The figures that the job has measured in this slice, by name; None: no figure."""

    operations: int
    """The number of commands that the job has reported in this slice."""

    held_back: frozenset[Hashable]
    """Of a job with several servers: those whose breakers are open, which it leaves alone."""

    served: Hashable
    """Of a job with several servers: the one that it has chosen in this slice; None: no choice."""

    def __init__(self, limit: int, seconds: Duration, clock: Clock = SYSTEM_CLOCK) -> None:
        self.limit = checked_limit(limit)
        self.seconds = checked_seconds(seconds, "seconds")
        self._clock = clock
        self.oldest_seconds = None
        self.backlog = None
        self.measured = None
        self.operations = 0
        self.held_back = frozenset()
        self.served = None
        self.deadline = clock.monotonic() + self.seconds

    def remaining(self) -> float:
        """Return the seconds until the deadline; negative once it has passed."""
        return self.deadline - self._clock.monotonic()

    @property
    def expired(self) -> bool:
        """True from the deadline on."""
        return self._clock.monotonic() >= self.deadline

    def observe(self, *, oldest_seconds: float | None = None, backlog: int | None = None) -> None:
        """Report the garbage that this job has seen, for metrics and adaptive rates.

        Call it after each look; the highest age and the last backlog of a slice stand.

        Arguments:
            oldest_seconds: the time that the oldest item has been overdue, 0 if no item is (a
                negative age, from a clock that stepped back, counts as 0).
            backlog: the number of items that wait.

        None reports nothing. Raises: ConfigurationError unless they are numbers. No command.
        """
        if oldest_seconds is not None:
            age = checked_age(oldest_seconds)
            if self.oldest_seconds is None or age > self.oldest_seconds:
                self.oldest_seconds = age
        if backlog is not None:
            self.backlog = checked_count(backlog, "the backlog that a slice observes")

    def measure(self, what: str, value: float) -> None:
        """Report a figure of the job's own, for metrics: the last one of a slice stands.

        Arguments:
            what: a name, one of few.

        Raises: ConfigurationError unless they are a name and a number. No command.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigurationError(f"{value!r} is no figure that a slice measures: give a number")
        name = checked_name(what)
        if self.measured is None:
            self.measured = {}
        self.measured[name] = float(value)

    def spend(self, operations: int) -> None:
        """Report so many more commands, for a daily cap. No command.

        Arguments:
            operations: 0 or more.

        Raises: ConfigurationError for another number.
        """
        self.operations += checked_count(operations, "the number of operations that a slice spends")

    def __repr__(self) -> str:
        return f"Slice(limit={self.limit}, remaining={self.remaining():.4f} of {self.seconds} s)"


@dataclass(frozen=True, slots=True)
class Report:
    """One slice's report.

    Fields: outcome; items handled; limit of the slice; took, the seconds that it took; given, the
    seconds that it had; oldest_seconds, the age that the job reported, None: no report; operations
    that it spent.
    """

    outcome: Outcome
    items: int
    limit: int
    took: float
    given: float
    oldest_seconds: float | None
    operations: int

    @property
    def is_full(self) -> bool:
        """Whether the slice ended because of its limit."""
        return self.items >= self.limit

    @property
    def ran_out(self) -> bool:
        """Whether the slice ended because of its time, or nearly."""
        return self.took >= _LATE * self.given
