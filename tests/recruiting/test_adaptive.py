"""Adaptive rates in a real recruiter: their moves, their bounds, their cost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from workstealing import Adaptive, Outcome, Recruiter
from workstealing.errors import Aborted, ConfigurationError, DuplicateJobError, RateError
from workstealing.recruiting import FunctionJob, Slice
from workstealing.recruiting.adaptive import Controller, Traffic
from workstealing.recruiting.slice import Report
from workstealing.testing import ManualClock

RATE = Adaptive(floor=0.0001, ceiling=0.04, lag=60)


class Process:
    """A process whose callers enlist at a steady pace, on a clock that stands still meanwhile."""

    def __init__(self, perform: Callable[[Slice], int], rate: Any = RATE, limit: int = 10) -> None:
        self.clock = ManualClock()
        self.recruiter = Recruiter(
            seconds=0.01, clock=self.clock, random=random.Random(5).random, breaker=1.0
        )
        self.recruiter.install(FunctionJob(perform, name="sweep", limit=limit), rate)

    def enlist(self, seconds: float, a_second: int) -> int:
        """Let callers enlist for so long; return how many slices that made."""
        before = self.figures["recruited"]
        for _ in range(round(seconds * a_second)):
            self.clock.advance(1 / a_second)
            self.recruiter.enlist()
        return self.figures["recruited"] - before

    @property
    def figures(self) -> Any:
        return self.recruiter.stats()["jobs"]["sweep"]

    @property
    def rate(self) -> float:
        rate: float = self.figures["rate"]
        return rate


def seeing(age: float | None, items: int = 10) -> Callable[[Slice], int]:
    def perform(slice: Slice) -> int:
        slice.observe(oldest_seconds=age)
        return min(items, slice.limit)

    return perform


class SteppingClock(ManualClock):
    """A clock that may be set to any moment, as a wall clock is."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1e7

    def monotonic(self) -> float:
        """Return the moment that it was set to."""
        return self.now


class TestWhatMovesIt:
    def test_it_starts_half_way_by_factors(self) -> None:
        process = Process(seeing(0.0, 0))
        assert process.rate == pytest.approx(math.sqrt(0.0001 * 0.04))
        assert process.figures["adaptive"] is True

    def test_old_garbage_raises_it_to_the_ceiling_and_no_further(self) -> None:
        process = Process(seeing(3_600.0))
        process.enlist(1_200, 100)
        assert process.rate == pytest.approx(0.04, rel=0.03)

    def test_idle_slices_lower_it_to_the_floor_and_no_further(self) -> None:
        process = Process(seeing(0.0, 0))
        process.enlist(6_000, 100)
        assert process.rate == pytest.approx(0.0001, rel=0.2)
        assert process.rate >= 0.0001

    def test_young_garbage_lowers_it_although_slices_are_full(self) -> None:
        process = Process(seeing(1.0))
        process.enlist(1_000, 100)
        assert process.rate < RATE.start / 2

    def test_full_slices_raise_it_where_a_job_knows_no_age(self) -> None:
        process = Process(seeing(None, 1_000))
        process.enlist(1_000, 100)
        assert process.rate == pytest.approx(0.04, rel=0.03)

    def test_and_idle_ones_lower_it(self) -> None:
        process = Process(seeing(None, 0))
        process.enlist(2_000, 100)
        assert process.rate < RATE.start / 4

    @pytest.mark.parametrize("error", [Aborted("another came first"), RuntimeError("no")])
    def test_aborts_and_failures_cut_it_however_old_the_garbage_is(self, error: Exception) -> None:
        def perform(slice: Slice) -> int:
            slice.observe(oldest_seconds=3_600.0)
            raise error

        process = Process(perform)
        process.enlist(1_000, 100)
        assert process.rate < RATE.start / 5

    def test_slices_that_run_out_of_time_cut_it_and_become_smaller(self) -> None:
        def perform(slice: Slice) -> int:
            slice.observe(oldest_seconds=3_600.0)
            process.clock.advance(slice.seconds)
            return slice.limit

        process = Process(perform, limit=20)
        process.enlist(300, 100)
        assert process.figures["limit"] == 1
        sizes = process.figures["items"] / process.figures["worked"]
        assert sizes < 20

    def test_quick_full_slices_grow_to_eight_times_the_jobs_limit(self) -> None:
        process = Process(seeing(30.0, 1_000), limit=10)
        process.enlist(300, 1_000)
        assert process.figures["limit"] == 80
        assert process.figures["items"] > 10 * process.figures["worked"]

    def test_a_skipped_slice_says_nothing(self) -> None:
        process = Process(seeing(3_600.0, 5))
        process.enlist(60, 100)
        before = process.recruiter._roster.get("sweep").controller.demand  # type: ignore[union-attr]
        process.recruiter.pause()
        assert process.enlist(60, 100) == process.figures["skipped"] > 0
        after = process.recruiter._roster.get("sweep").controller.demand  # type: ignore[union-attr]
        # But for the ceiling, which moves with the traffic.
        assert after == pytest.approx(before, rel=0.05)


class TestOneSlice:
    """What a single slice changes, in a controller whose process has 100 callers a second."""

    def setup_method(self) -> None:
        self.traffic = Traffic(1_000.0)
        self.traffic.update(1_001.0, 100)
        self.controller = Controller(Adaptive(1e-9, 0.9, lag=60.0), 80, ManualClock())

    def see(
        self,
        now: float,
        outcome: Outcome = Outcome.WORKED,
        items: int = 80,
        took: float = 0.001,
        age: float | None = None,
    ) -> float:
        """Let one slice be seen; return by what factor the work per second has changed."""
        self.controller.move_rate(now, self.traffic)
        before = self.work()
        self.controller.see(now, Report(outcome, items, max(items, 1), took, 0.01, age, 1))
        return self.work() / before

    def work(self) -> float:
        """Return the items per second that the controller would do in full slices."""
        return (self.controller.demand or 0.0) * self.controller.limit

    def test_larger_slices_are_fewer(self) -> None:
        self.see(1_001.0, Outcome.IDLE, 0)
        assert self.see(1_002.0) == pytest.approx(1.25)
        assert self.controller.limit == 90

    def test_a_full_slice_of_another_limit_grows_nothing(self) -> None:
        self.see(1_001.0, Outcome.IDLE, 0)
        self.see(1_002.0, items=5)
        assert self.controller.limit == 80

    @pytest.mark.parametrize("outcome", [Outcome.WORKED, Outcome.FAILED])
    def test_one_that_ran_out_of_time_costs_a_fifth_however_old_the_garbage_is(
        self, outcome: Outcome
    ) -> None:
        self.see(1_001.0, Outcome.IDLE, 0)
        assert self.see(1_061.0, outcome, took=0.01, age=3_600.0) == pytest.approx(0.8)
        assert self.controller.limit == 60

    @pytest.mark.parametrize(("lags", "left"), [(0.1, 0.8), (1, 0.8), (3, 0.512), (100, 0.25)])
    def test_finding_nothing_counts_more_after_a_long_interval(
        self, lags: float, left: float
    ) -> None:
        self.see(1_001.0)
        factor = self.see(1_001.0 + 60.0 * lags, Outcome.IDLE, 0)
        assert factor == pytest.approx(left)

    def test_finding_nothing_where_old_garbage_was_seen_lowers_nothing(self) -> None:
        self.see(1_001.0, items=5, age=20.0)
        assert self.see(1_061.0, Outcome.IDLE, 0, age=20.0) == pytest.approx(1.0, abs=0.02)

    def test_whoever_looks_rarely_keeps_its_slices(self) -> None:
        for look in range(1, 20):
            self.see(1_001.0 + 600.0 * look)
        assert self.controller.limit == 80

    def test_an_age_that_grows_raises_it_below_the_aim_already(self) -> None:
        self.see(1_031.0, items=5, age=0.0)
        assert self.see(1_091.0, items=5, age=10.0) > 1.05

    def test_an_age_that_falls_lowers_it_above_the_aim_already(self) -> None:
        self.see(1_031.0, items=5, age=118.0)
        assert self.see(1_091.0, items=5, age=60.0) < 0.9

    def test_the_chance_rises_up_to_13_times_until_the_next_look(self) -> None:
        self.see(1_001.0)
        self.see(2_001.0, age=36_000.0)
        usual = self.controller.move_rate(2_001.0, self.traffic)
        twice = self.controller.move_rate(2_001.0 + 20.0, self.traffic)
        assert twice == pytest.approx(2 * usual)
        longest = self.controller.move_rate(2_001.0 + 86_400.0, self.traffic)
        assert longest == pytest.approx(13 * usual)

    def test_the_cap_holds_before_the_traffic_is_known(self) -> None:
        start = Adaptive(1e-9, 0.9).start
        assert self.controller.move_rate(1_000.0, Traffic(1_000.0), 0.5) == pytest.approx(start / 2)


class TestTraffic:
    @pytest.mark.slow
    @pytest.mark.parametrize("factor", [10, 1 / 10])
    def test_slices_per_second_stay_when_the_traffic_changes(self, factor: float) -> None:
        ages = random.Random(3)

        def perform(slice: Slice) -> int:
            # What keeps the controller where it is.
            slice.observe(oldest_seconds=20.0 + ages.random())
            return slice.limit // 2

        process = Process(perform, Adaptive(floor=1e-5, ceiling=0.3, lag=60))
        process.enlist(600, 200)
        before = process.enlist(600, 200)
        process.enlist(10, round(200 * factor))
        after = process.enlist(600, round(200 * factor))
        assert before > 100
        assert 1 / 1.5 < after / before < 1.5

    def test_a_pause_between_two_bursts_forgets_nothing(self) -> None:
        def perform(slice: Slice) -> int:
            slice.observe(oldest_seconds=20.0)
            return slice.limit // 2

        process = Process(perform, Adaptive(floor=1e-5, ceiling=0.1, lag=60))
        process.enlist(600, 100)
        before = process.enlist(300, 100)
        process.clock.advance(1_800)
        process.enlist(10, 100)
        assert process.enlist(300, 100) > before / 2 > 10

    def test_a_quiet_night_is_looked_at_as_often_as_the_day(self) -> None:
        process = Process(seeing(0.0, 0), Adaptive(floor=0.001, ceiling=1.0, lag=60))
        process.enlist(3_600, 100)
        assert process.rate == pytest.approx(0.001, rel=0.2)
        # A slice each ten seconds by day: 0.001 of 100 enlists a second.
        night = process.enlist(3_600, 1)
        assert night > 150

    @pytest.mark.slow
    def test_old_garbage_raises_the_chance_until_somebody_looks(self) -> None:
        process = Process(seeing(120.0), Adaptive(floor=1e-6, ceiling=0.5, lag=60))
        process.enlist(20, 1_000)
        while not process.enlist(0.001, 1_000):
            pass
        # Nobody is recruited from here on.
        process.recruiter.use_random(lambda: 1.0)
        process.enlist(2, 1_000)
        soon = process.rate
        process.enlist(240, 1_000)
        assert process.rate > 3 * soon


class TestBounds:
    @pytest.mark.parametrize(
        ("floor", "ceiling"),
        [(0, 0.1), (0.1, 0.01), (0.1, 1.5), (-1, 0.1), (None, 0.1), ("0.1", 0.2), (True, 1)],
    )
    def test_wrong_rates_are_refused(self, floor: Any, ceiling: Any) -> None:
        with pytest.raises(RateError):
            Adaptive(floor=floor, ceiling=ceiling)

    @pytest.mark.parametrize(
        "wrong", [{"lag": 0}, {"lag": math.inf}, {"max_ops_per_day": -1}, {"max_ops_per_day": 1.5}]
    )
    def test_other_wrong_arguments_are_refused(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError):
            Adaptive(floor=0.1, ceiling=0.2, **wrong)

    def test_a_spending_without_a_cap_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="max_ops_per_day"):
            Adaptive(floor=0.1, ceiling=0.2, spending=Shared())

    @pytest.mark.parametrize("wrong", [object(), 5, {}])
    def test_what_is_no_spending_is_refused(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="spending"):
            Adaptive(floor=0.1, ceiling=0.2, max_ops_per_day=5, spending=wrong)

    def test_the_ceiling_counts_in_the_sum_of_all_rates(self) -> None:
        recruiter = Recruiter()
        recruiter.install(FunctionJob(lambda slice: 0, name="a"), Adaptive(0.001, 0.6))
        with pytest.raises(RateError, match=r"'b' at rate 0\.5 .* 1\.1"):
            recruiter.install(FunctionJob(lambda slice: 0, name="b"), 0.5)
        with pytest.raises(RateError):
            recruiter.set_rate("a", 1.1)
        recruiter.install(FunctionJob(lambda slice: 0, name="b"), 0.4)
        with pytest.raises(RateError, match=r"'b' at rate 0\.5"):
            recruiter.set_rate("b", Adaptive(0.1, 0.5))
        with pytest.raises(DuplicateJobError):
            recruiter.install(FunctionJob(lambda slice: 0, name="a"), Adaptive(0.001, 0.1))

    def test_a_number_ends_it_and_the_given_rate_brings_it_back(self) -> None:
        process = Process(seeing(3_600.0))
        given = process.recruiter.given_rate("sweep")
        assert given == RATE
        process.recruiter.set_rate("sweep", 0.02)
        process.enlist(100, 100)
        assert (process.rate, process.figures["adaptive"]) == (0.02, False)
        process.recruiter.set_rate("sweep", given)
        process.enlist(1_200, 100)
        assert (process.rate, process.figures["adaptive"]) == (pytest.approx(0.04, rel=0.03), True)

    def test_the_decorator_takes_it_too(self) -> None:
        recruiter = Recruiter()

        @recruiter.job(rate=RATE)
        def tidy(slice: Slice) -> int:
            return 0

        assert recruiter.stats()["jobs"]["tidy"]["adaptive"] is True


class Shared:
    """A spending that a test sets, as a fleet's ledger would."""

    def __init__(self) -> None:
        self.others = 0
        self.own = 0

    def spent_today(self) -> int:
        return self.others + self.own

    def spend(self, operations: int) -> None:
        self.own += operations


class TestDailyCap:
    def test_a_process_alone_stops_below_it_and_goes_on_the_next_day(self) -> None:
        def perform(slice: Slice) -> int:
            slice.observe(oldest_seconds=3_600.0)
            slice.spend(40)
            return 10

        process = Process(perform, Adaptive(0.001, 0.5, max_ops_per_day=10_000))
        process.enlist(3_000, 10)
        slices = process.figures["recruited"]
        assert 0.85 * 10_000 < 40 * slices <= 10_000
        assert process.rate < 0.1
        process.clock.advance(86_400)
        assert process.enlist(300, 10) > 20

    def test_a_second_of_heavy_traffic_spends_no_more_than_the_cap(self) -> None:
        """Rates move once a second: the cap is asked before each slice."""

        def perform(slice: Slice) -> int:
            slice.observe(oldest_seconds=3_600.0)
            slice.spend(20)
            return 10

        process = Process(perform, Adaptive(0.5, 1.0, max_ops_per_day=60))
        process.enlist(5, 1_000)
        # One slice may end beyond it.
        assert process.figures["worked"] in (3, 4)
        assert process.figures["skipped"] > 0
        # It rests, and is not behind for want of results.
        assert "daily cap" in process.recruiter.stats()["jobs"]["sweep"]["why"]

    def test_what_the_fleet_has_spent_counts(self) -> None:
        shared = Shared()
        process = Process(
            seeing(3_600.0), Adaptive(0.001, 0.5, max_ops_per_day=10_000, spending=shared)
        )
        process.enlist(60, 10)
        assert process.rate > 0.01
        assert shared.own == sum([process.figures["items"], process.figures["worked"]])
        shared.others = 10_000
        process.enlist(5, 10)
        assert process.rate == 0.0
        assert process.enlist(600, 10) == 0
        shared.others, shared.own = 0, 0
        process.enlist(5, 10)
        assert process.rate > 0.001

    @pytest.mark.parametrize(("spent", "share"), [(8_500, 1.0), (9_150, 0.5), (9_800, 0.0)])
    def test_the_rate_falls_from_85_to_98_percent(self, spent: int, share: float) -> None:
        shared = Shared()
        process = Process(
            seeing(3_600.0), Adaptive(0.5, 0.5, max_ops_per_day=10_000, spending=shared)
        )
        process.enlist(5, 10)
        shared.others, shared.own = spent, 0
        # Settled before anybody is recruited, who would spend more.
        process.recruiter.pause()
        process.enlist(3, 10)
        assert process.rate == pytest.approx(0.5 * share)

    def test_other_jobs_go_on_while_it_holds(self) -> None:
        shared = Shared()
        shared.others = 10
        process = Process(seeing(1.0), Adaptive(0.001, 0.5, max_ops_per_day=10, spending=shared))
        process.recruiter.install(FunctionJob(lambda slice: 1, name="other"), 0.1)
        process.enlist(100, 100)
        assert process.recruiter.stats()["jobs"]["other"]["worked"] > 500

    def test_a_spending_that_fails_is_logged_and_harms_nobody(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Shared):
            def spend(self, operations: int) -> None:
                raise RuntimeError("no ledger")

        process = Process(
            seeing(3_600.0), Adaptive(0.01, 0.5, max_ops_per_day=10**9, spending=Broken())
        )
        process.enlist(20, 100)
        assert process.figures["worked"] > 0
        assert "the spending of job 'sweep'" in caplog.text

    def test_a_spending_that_cannot_tell_holds_no_other_job_back(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Shared):
            def spent_today(self) -> int:
                raise RuntimeError("no ledger")

        process = Process(
            seeing(3_600.0), Adaptive(0.001, 0.1, max_ops_per_day=10**9, spending=Broken())
        )
        job = FunctionJob(seeing(3_600.0), name="other", limit=10)
        process.recruiter.install(job, RATE)
        process.enlist(1_200, 100)
        rate = process.recruiter.stats()["jobs"]["other"]["rate"]
        assert rate == pytest.approx(0.04, rel=0.03)
        assert process.rate == pytest.approx(0.01)
        assert "the spending of job 'sweep'" in caplog.text

    def test_a_cap_of_nothing_spends_nothing(self) -> None:
        process = Process(seeing(3_600.0), Adaptive(0.5, 1.0, max_ops_per_day=0))
        assert process.enlist(100, 100) == 0
        process.recruiter._after_fork()
        assert process.enlist(100, 100) == 0


class TestKeepsUp:
    def test_an_age_under_the_lag_target_keeps_up(self) -> None:
        process = Process(seeing(59.0))
        process.enlist(240, 100)
        assert process.figures["keeps_up"] is None
        process.enlist(120, 100)
        assert process.figures["keeps_up"] is True

    def test_an_age_that_grows_at_the_ceiling_does_not(self) -> None:
        started = 1_000.0

        def perform(slice: Slice) -> int:
            slice.observe(oldest_seconds=process.clock.monotonic() - started)
            return slice.limit

        process = Process(perform)
        process.enlist(600, 100)
        assert process.figures["keeps_up"] is False

    def test_a_fixed_rate_whose_slices_are_not_full_keeps_up(self) -> None:
        process = Process(seeing(5.0, 3), 0.1)
        assert process.figures["keeps_up"] is None
        process.enlist(400, 100)
        assert process.figures["keeps_up"] is True

    def test_a_fixed_rate_that_loses_does_not(self) -> None:
        def perform(slice: Slice) -> int:
            slice.observe(oldest_seconds=0.6 * process.clock.monotonic())
            return slice.limit

        process = Process(perform, 0.1)
        process.enlist(400, 100)
        assert process.figures["keeps_up"] is False
        assert process.figures["why"].startswith("garbage grows older by 0.59 s")


@pytest.mark.parametrize("hours", [0.01, 2, 1_000])
def test_a_clock_that_steps_back_harms_nobody(hours: float) -> None:
    clock = SteppingClock()
    recruiter = Recruiter(clock=clock, random=random.Random(5).random)
    recruiter.install(FunctionJob(seeing(3_600.0), name="sweep", limit=10), RATE)
    for moment in range(600):
        clock.now += 1.0 if moment % 100 else 1.0 - hours * 3_600.0
        for _ in range(100):
            recruiter.enlist()
        assert recruiter.perform("sweep") is Outcome.WORKED
    assert RATE.floor <= recruiter.stats()["jobs"]["sweep"]["rate"] <= RATE.ceiling


@pytest.mark.slow
def test_a_forked_child_begins_anew() -> None:
    process = Process(seeing(3_600.0))
    process.enlist(1_200, 100)
    assert process.rate == pytest.approx(0.04, rel=0.03)
    process.recruiter._after_fork()
    assert process.rate == pytest.approx(RATE.start)
    process.enlist(1_200, 100)
    assert process.rate == pytest.approx(0.04, rel=0.03)


def test_a_dismissed_caller_draws_and_moves_nothing() -> None:
    process = Process(seeing(0.0, 0), Adaptive(1e-9, 1e-8))
    calls = 0
    move_rates = Recruiter._move_rates

    def counting(self: Recruiter, now: float) -> None:
        nonlocal calls
        calls += 1
        move_rates(self, now)

    Recruiter._move_rates = counting  # type: ignore[method-assign]
    try:
        assert {process.recruiter.enlist() for _ in range(1)} == {Outcome.DISMISSED}
        process.enlist(10, 5_000)
    finally:
        Recruiter._move_rates = move_rates  # type: ignore[method-assign]
    assert calls <= 11
