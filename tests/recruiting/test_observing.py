"""What a slice observes of its garbage reaches the statistics and the hooks."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from workstealing import Outcome, Recruiter
from workstealing.errors import ConfigurationError
from workstealing.recruiting import FunctionJob, Slice
from workstealing.testing import ManualClock, RecordingHooks, always


def installed(perform: Any, clock: ManualClock | None = None) -> Recruiter:
    recruiter = always(clock=clock or ManualClock())
    recruiter.install(FunctionJob(perform, name="sweep"), rate=0.1)
    return recruiter


def test_the_highest_age_and_the_last_backlog_of_a_slice_stand() -> None:
    slice = Slice(5, 1.0)
    assert (slice.oldest_seconds, slice.backlog) == (None, None)
    slice.observe()
    assert (slice.oldest_seconds, slice.backlog) == (None, None)
    slice.observe(oldest_seconds=3)
    slice.observe(oldest_seconds=1.5, backlog=7)
    slice.observe(backlog=4)
    assert (slice.oldest_seconds, slice.backlog) == (3.0, 4)


def test_a_clock_that_stepped_back_makes_no_negative_age() -> None:
    slice = Slice(5, 1.0)
    slice.observe(oldest_seconds=-2.5)
    assert slice.oldest_seconds == 0.0


@pytest.mark.parametrize("age", [math.nan, math.inf, "3", Decimal(3), True, 1j])
def test_an_age_is_a_finite_number(age: Any) -> None:
    slice = Slice(5, 1.0)
    slice.observe(oldest_seconds=Fraction(1, 2))
    with pytest.raises(ConfigurationError, match="the age that a slice observes is"):
        slice.observe(oldest_seconds=age)
    assert slice.oldest_seconds == 0.5


@pytest.mark.parametrize("backlog", [-1, 1.0, "3", True])
def test_a_backlog_is_a_count(backlog: Any) -> None:
    with pytest.raises(ConfigurationError, match="the backlog that a slice observes is"):
        Slice(5, 1.0).observe(backlog=backlog)


def test_the_hooks_hear_of_it_before_the_outcome_and_the_stats_keep_it() -> None:
    told: list[Any] = []

    class Telling(RecordingHooks):
        def on_observed(self, *arguments: Any) -> None:
            told.append(arguments)

        def on_outcome(self, job: str, outcome: Outcome, *rest: Any) -> None:
            told.append(outcome)

    def perform(slice: Slice) -> int:
        slice.observe(oldest_seconds=4.0)
        slice.observe(backlog=9)
        return 1

    recruiter = installed(perform)
    recruiter.add_hook(Telling())
    recruiter.enlist()
    assert told == [("sweep", 4.0, 9), Outcome.WORKED]
    assert recruiter.stats()["jobs"]["sweep"]["oldest_seconds"] == 4.0


def test_the_hooks_hear_of_the_last_figure_of_each_name() -> None:
    def perform(slice: Slice) -> int:
        slice.measure("tombstones", 5)
        slice.measure("tombstones", 3)
        slice.measure("pages", 2.5)
        return 1

    hooks = RecordingHooks()
    recruiter = installed(perform)
    recruiter.add_hook(hooks)
    recruiter.enlist()
    assert hooks.measured == [("sweep", "tombstones", 3.0), ("sweep", "pages", 2.5)]


@pytest.mark.parametrize(("what", "value"), [("", 1), (3, 1), ("pages", "3"), ("pages", True)])
def test_a_figure_has_a_name_and_a_number(what: Any, value: Any) -> None:
    slice = Slice(5, 1.0)
    with pytest.raises(ConfigurationError):
        slice.measure(what, value)
    assert not slice.measured


def test_a_slice_that_observes_nothing_leaves_what_is_known() -> None:
    ages = iter([2.0, None, 0.0])

    def perform(slice: Slice) -> int:
        slice.observe(oldest_seconds=next(ages))
        return 0

    hooks = RecordingHooks()
    recruiter = installed(perform)
    recruiter.add_hook(hooks)
    seen = []
    for _ in range(3):
        recruiter.enlist()
        seen.append(recruiter.stats()["jobs"]["sweep"]["oldest_seconds"])
    assert seen == [2.0, 2.0, 0.0]
    assert hooks.observed == [("sweep", 2.0, None), ("sweep", 0.0, None)]


def test_what_a_failing_slice_has_seen_counts_too() -> None:
    def perform(slice: Slice) -> int:
        slice.observe(oldest_seconds=60)
        raise RuntimeError

    recruiter = installed(perform)
    assert recruiter.enlist() is Outcome.FAILED
    assert recruiter.stats()["jobs"]["sweep"]["oldest_seconds"] == 60.0


def test_hooks_that_know_nothing_of_it_stay_valid() -> None:
    outcomes = []

    class Old:
        def on_enlisted(self, count: int) -> None: ...

        def on_recruited(self, job: str) -> None: ...

        def on_outcome(self, job: str, outcome: Outcome, *rest: Any) -> None:
            outcomes.append(outcome)

    def perform(slice: Slice) -> int:
        slice.observe(oldest_seconds=1.0)
        return 1

    recruiter = installed(perform)
    recruiter.add_hook(Old())  # type: ignore[arg-type]
    assert recruiter.enlist() is Outcome.WORKED
    assert outcomes == [Outcome.WORKED]


def test_the_stats_tell_a_pause_and_an_open_breaker() -> None:
    clock = ManualClock()

    def perform(slice: Slice) -> int:
        raise ConnectionError

    recruiter = installed(perform, clock)
    recruiter.enlist()
    recruiter.pause("sweep")
    figures = recruiter.stats()["jobs"]["sweep"]
    assert (figures["breaker_open"], figures["paused"]) == (True, True)
    clock.advance(60)
    recruiter.resume("sweep")
    figures = recruiter.stats()["jobs"]["sweep"]
    assert (figures["breaker_open"], figures["paused"]) == (False, False)
