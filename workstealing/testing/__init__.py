"""Helpers for tests: recruiters without chance, a manual clock, hooks that remember.

In a test of your own:

    from workstealing.testing import always

    recruiter = always()
    recruiter.install(my_job, rate=0.003)
    assert recruiter.enlist() is Outcome.WORKED    # every enlist is recruited

For a recruiter that your application holds already:

    from workstealing.testing import always_recruiting, never_recruiting

    with always_recruiting(app.recruiter):
        client.get("/item/17")
    assert app.recruiter.stats()["jobs"]["my job"]["recruited"] == 1

Both are real recruiters with a scripted random, with the rates, pauses, breakers, slice slot and
counts of production. There are fixtures for pytest:

    pytest_plugins = ["workstealing.testing.pytest_plugin"]

`refute` and `assert_safe` look for the order of commands in which a collector removes a live item.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.recruiting import Hooks, Outcome, Recruiter
from workstealing.testing.refuting import (
    Counterexample,
    Inconclusive,
    ShiftedTime,
    assert_safe,
    refute,
)

__all__ = [
    "Counterexample",
    "Inconclusive",
    "ManualClock",
    "OutcomeEvent",
    "RecordingHooks",
    "ShiftedTime",
    "always",
    "always_recruiting",
    "assert_safe",
    "never",
    "never_recruiting",
    "refute",
]

_GOLDEN = 0.6180339887498949


class _Always:
    """A random that recruits every caller, for the jobs in turn, each by its rate.

    A draw takes two numbers: one for the callers before the next recruit (0.0: none), and one for
    the job. Multiples of the golden ratio spread over the jobs more evenly than chance.
    """

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self) -> float:
        call, self._calls = self._calls, self._calls + 1
        return (call // 2) * _GOLDEN % 1.0 if call % 2 else 0.0


def _never() -> float:
    # No random returns this: it tells a recruiter to recruit nobody at any rate.
    return 1.0


def always(
    *,
    seconds: Duration = 0.010,
    clock: Clock = SYSTEM_CLOCK,
    breaker: Duration = 10.0,
    longest: Duration | None = None,
) -> Recruiter:
    """Return a recruiter that recruits every caller at any rate.

    Several jobs get their shares of the callers in the same sequence in every run. The job that was
    installed first begins. Arguments and errors: as of Recruiter.
    """
    return Recruiter(
        seconds=seconds,
        random=_Always(),
        clock=clock,
        breaker=breaker,
        longest=longest,
    )


def never(
    *,
    seconds: Duration = 0.010,
    clock: Clock = SYSTEM_CLOCK,
    breaker: Duration = 10.0,
    longest: Duration | None = None,
) -> Recruiter:
    """Return a recruiter that dismisses every caller at any rate.

    Arguments and errors: as of Recruiter.
    """
    return Recruiter(
        seconds=seconds,
        random=_never,
        clock=clock,
        breaker=breaker,
        longest=longest,
    )


@contextmanager
def always_recruiting(recruiter: Recruiter) -> Iterator[Recruiter]:
    """Let a recruiter recruit every caller while the context lasts.

    Arguments:
        recruiter: such as the one that an application has been built with.
    """
    before = recruiter.use_random(_Always())
    try:
        yield recruiter
    finally:
        recruiter.use_random(before)


@contextmanager
def never_recruiting(recruiter: Recruiter) -> Iterator[Recruiter]:
    """Let a recruiter dismiss every caller while the context lasts.

    Arguments:
        recruiter: such as the one that an application has been built with.
    """
    before = recruiter.use_random(_never)
    try:
        yield recruiter
    finally:
        recruiter.use_random(before)


class ManualClock:
    """A Clock that a test sets by hand, so no test needs to sleep.

    A job that loops until its slice has expired ends only if something advances this clock.

    Arguments:
        start: the seconds that it shows at first.
    """

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = float(start)

    def monotonic(self) -> float:
        """Return the seconds that the clock shows."""
        return self._now

    def advance(self, seconds: Duration) -> float:
        """Move the clock forward and return its new seconds.

        Arguments:
            seconds: by how long, in seconds or a timedelta.

        Raises: ConfigurationError for negative seconds: a monotonic clock never goes back.
        """
        self._now += seconds_of(seconds, "seconds")
        return self._now


@dataclass(frozen=True)
class OutcomeEvent:
    """One call of on_outcome: its arguments, by name."""

    job: str
    outcome: Outcome
    items: int
    seconds: float
    error: BaseException | None


class RecordingHooks(Hooks):
    """Hooks that remember every call, in order.

    `enlisted` holds the counts of on_enlisted, `recruited` the jobs of on_recruited, `outcomes` an
    OutcomeEvent for each on_outcome, `observed` and `measured` the arguments of each on_observed
    and on_measured.
    """

    def __init__(self) -> None:
        self.enlisted: list[int] = []
        self.recruited: list[str] = []
        self.outcomes: list[OutcomeEvent] = []
        self.observed: list[tuple[str, float | None, int | None]] = []
        self.measured: list[tuple[str, str, float]] = []

    def on_enlisted(self, count: int) -> None:
        """Remember the count."""
        self.enlisted.append(count)

    def on_recruited(self, job: str) -> None:
        """Remember the job."""
        self.recruited.append(job)

    def on_outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Remember the outcome."""
        self.outcomes.append(OutcomeEvent(job, outcome, items, seconds, error))

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Remember the arguments."""
        self.observed.append((job, oldest_seconds, backlog))

    def on_measured(self, job: str, what: str, value: float) -> None:
        """Remember the arguments."""
        self.measured.append((job, what, value))

    def clear(self) -> None:
        """Forget everything."""
        self.enlisted.clear()
        self.recruited.clear()
        self.outcomes.clear()
        self.observed.clear()
        self.measured.clear()
