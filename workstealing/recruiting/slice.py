"""A slice: its bounds, length, outcome and report. A process runs one slice at a time.

A host's time-out may come between any two steps of any thread, in clean-up code as well. So the
single flight sets no flag at the beginning to put it back at the end. A `Run` holds the place, and
the interpreter itself says whether a run is still under way.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, Generic, TypeVar, cast

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import (
    checked_age,
    checked_count,
    checked_limit,
    checked_name,
    checked_seconds,
)

T = TypeVar("T")
_Ended = tuple[T | None, Exception | None]


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
    """The job ended with an error."""

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

    It is a quarter of a second at most, or their own length if that is more.
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


class Run(Generic[T]):
    """One call of a function; any thread may ask whether it is still running.

    It runs inside a generator. The interpreter leaves a generator and marks its end in one step,
    whatever ends it. A kept exception, whose traceback holds the frames, does not prolong a run. A
    greenlet that waits in the midst of a run is still running it.

    Arguments:
        call: a function.
        args: its arguments.
        may_begin: asked inside the run, which ends with None if the answer is false; None: the call
            always begins.
    """

    __slots__ = ("_steps",)

    def __init__(
        self, call: Callable[..., T], *args: Any, may_begin: Callable[[], bool] | None = None
    ) -> None:
        steps = _calling(call, args, may_begin)
        # Only the type of generator functions says that it has these attributes.
        self._steps = cast("GeneratorType[None, None, _Ended[T]]", steps)

    def __call__(self) -> T:
        """Call the function, once; return its result or raise its error."""
        try:
            next(self._steps)
        except StopIteration as end:
            result, error = end.value
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    @property
    def is_running(self) -> bool:
        """Whether the call has begun and has not ended."""
        return self._steps.gi_running

    @property
    def is_over(self) -> bool:
        """Whether the call has ended, by a result or by an error."""
        return self._steps.gi_frame is None


def _calling(
    call: Callable[..., T], args: tuple[Any, ...], may_begin: Callable[[], bool] | None
) -> Generator[None, None, _Ended[T]]:
    if call is None:
        yield  # This makes it a generator; it is never reached.
    if may_begin is not None and not may_begin():
        return None, None
    try:
        return call(*args), None
    except StopIteration as error:
        # No generator may raise this exception by itself.
        return None, error


class _PlaceHolder(Generic[T]):
    """One holder of the place, and its successor."""

    __slots__ = ("job", "next", "run", "started")

    def __init__(self, job: str) -> None:
        self.job = job
        self.started = SYSTEM_CLOCK.monotonic()
        self.run: Run[T | None]
        self.next: dict[str, _PlaceHolder[object]] = {}


class Flight:
    """A place for one slice at a time.

    It is free as soon as its holder's run has ended; nobody has to free it. No method waits or
    locks, so threads, greenlets, signal handlers and finalizers may all ask.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self.reset()

    def run(self, job: str, call: Callable[..., T], *args: Any) -> T | None:
        """Call the function, unless another call is running here.

        Arguments:
            job: the name that `holder` gives.
            call: a function that does not return None.
            args: its arguments.

        Returns: its result; None where the place was taken. Raises: as the function.
        """
        place: _PlaceHolder[T] = _PlaceHolder(job)
        place.run = Run(call, *args, may_begin=partial(self._claim, place))
        return place.run()

    def holder(self) -> tuple[str, float] | None:
        """Return the job that holds the place, and its start.

        Returns: the job's name and the start of its slice, in seconds of `time.monotonic`; None if
        the place is free. The age of a flight reveals a slice that never returns: no other slice
        runs in this process meanwhile. No command.
        """
        last = self._newest()
        return (last.job, last.started) if last.run.is_running else None

    def reset(self) -> None:
        """Free the place from any holder."""
        nobody: _PlaceHolder[object] = _PlaceHolder("")
        nobody.run = Run(lambda: None)
        self._last = nobody

    def _claim(self, place: _PlaceHolder[T]) -> bool:
        """Take the place if it is free; the run that will hold it calls this."""
        while True:
            last = self._newest()
            if last.run.is_running:
                return False
            # One step: of all threads that see the same holder gone, one comes next.
            if last.next.setdefault("next", place) is place:  # type: ignore[arg-type]
                self._last = place  # type: ignore[assignment]
                return True

    def _newest(self) -> _PlaceHolder[object]:
        # A holder may have been cut short before it could set `_last`.
        last = self._last
        while last.next:
            last = last.next["next"]
        return last


FLIGHT = Flight()
"""The place of this process."""

if hasattr(os, "register_at_fork"):
    # The thread that ran the parent's slice does not exist in the child.
    os.register_at_fork(after_in_child=FLIGHT.reset)
