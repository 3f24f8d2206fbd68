"""Counting: nothing is counted in the hot path, and still every enlist is counted exactly once."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from itertools import repeat
from typing import Any

import pytest

from workstealing import Outcome, Recruiter
from workstealing.metrics.minutes import JobMinute
from workstealing.recruiting import FunctionJob, JobStats, enlisting
from workstealing.recruiting.slice import OUTCOMES, PERFORMED
from workstealing.testing import ManualClock, RecordingHooks, always, never

THREADS, EACH = 8, 200_000


@pytest.fixture
def _busy_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def _enlist_in_threads(recruiter: Recruiter) -> None:
    start = threading.Barrier(THREADS)

    def enlist() -> None:
        start.wait()
        for _ in range(EACH):
            recruiter.enlist()

    threads = [threading.Thread(target=enlist) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("_busy_switching")
@pytest.mark.parametrize("rate", [0.001, 0.2])
def test_eight_threads_are_counted_exactly(rate: float) -> None:
    recruiter = Recruiter()
    recruiter.install(FunctionJob(lambda slice: 3, name="a"), rate=rate)
    _enlist_in_threads(recruiter)
    stats = recruiter.stats()
    assert stats["enlisted"] == THREADS * EACH
    figures = stats["jobs"]["a"]
    assert figures["recruited"] == figures["worked"] + figures["skipped"]
    assert figures["items"] == 3 * figures["worked"]
    # Six standard deviations.
    expected = THREADS * EACH * rate
    assert abs(figures["recruited"] - expected) < 6 * expected**0.5


@pytest.mark.usefixtures("_busy_switching")
def test_they_are_counted_exactly_while_everything_is_changed_all_the_time() -> None:
    recruiter = Recruiter()
    hooks = RecordingHooks()
    recruiter.add_hook(hooks)
    recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=0.001)
    over = threading.Event()
    seen: list[int] = []

    def change() -> None:
        while not over.is_set():
            recruiter.set_rate("a", 0.002)
            recruiter.pause("a")
            recruiter.install(FunctionJob(lambda slice: 0, name="b"), rate=0.01)
            seen.append(recruiter.stats()["enlisted"])
            recruiter.flush()
            recruiter.resume()
            recruiter.uninstall("b")

    changer = threading.Thread(target=change)
    changer.start()
    _enlist_in_threads(recruiter)
    over.set()
    changer.join()
    assert recruiter.stats()["enlisted"] == THREADS * EACH
    assert seen == sorted(seen)
    recruiter.flush()
    assert sum(hooks.enlisted) == THREADS * EACH


@pytest.mark.usefixtures("_busy_switching")
def test_blocks_for_an_interpreter_without_a_global_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enlisting, "_block", enlisting.PoppedBlock)
    test_they_are_counted_exactly_while_everything_is_changed_all_the_time()


def test_the_blocks_are_those_of_this_interpreter() -> None:
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert enlisting._block is (repeat if is_locked else enlisting.PoppedBlock)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 255, 1_000, 5_000])
def test_the_count_is_exact_after_every_number_of_enlists(count: int) -> None:
    recruiter = never()
    recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=0.5)
    for _ in range(count):
        recruiter.enlist()
    assert recruiter.stats()["enlisted"] == count


def test_every_outcome_is_true_without_leaving_c() -> None:
    assert all(Outcome)
    assert not any("__bool__" in vars(base) or "__len__" in vars(base) for base in Outcome.__mro__)


def test_outcomes_are_named_in_lower_case() -> None:
    assert [outcome.value for outcome in Outcome] == [
        "dismissed",
        "worked",
        "idle",
        "aborted",
        "failed",
        "out_of_time",
        "skipped",
    ]


def test_every_shape_of_figures_has_every_outcome() -> None:
    pytest.importorskip("pyspark")  # make test-matrix goes without
    from workstealing.spark.counting import JobTotals

    shapes: list[set[str]] = [
        {each.name for each in fields(shape)} for shape in (JobMinute, JobTotals)
    ]
    for names in (*shapes, set(JobStats.__annotations__)):
        assert set(OUTCOMES) <= names
    css = files("workstealing.dashboard").joinpath("static/dashboard.css").read_text()
    for outcome in OUTCOMES:
        assert css.count(f"--{outcome}: #") == 2
        assert f".bar .{outcome} " in css
    assert set(OUTCOMES) - set(PERFORMED) == {"skipped"}


def test_without_jobs_everybody_is_dismissed_and_counted() -> None:
    recruiter = Recruiter()
    assert {recruiter.enlist() for _ in range(3_000)} == {Outcome.DISMISSED}
    assert recruiter.stats() == {"enlisted": 3_000, "jobs": {}, "unreached": {}}


class TestHooksHearOfTheEnlisted:
    def test_at_most_once_a_second_and_of_all_of_them(self) -> None:
        clock, hooks = ManualClock(), RecordingHooks()
        recruiter = never(clock=clock)
        recruiter.add_hook(hooks)
        for _ in range(100):
            for _ in range(1_000):
                recruiter.enlist()
            clock.advance(0.1)
        # Ten seconds, of which the last has not ended yet.
        assert 8 <= len(hooks.enlisted) <= 10
        recruiter.flush()
        assert sum(hooks.enlisted) == 100_000
        recruiter.flush()
        assert sum(hooks.enlisted) == 100_000

    @pytest.mark.parametrize("seconds", [0.5, 1, 30])
    def test_soon_in_a_quiet_process(self, seconds: float) -> None:
        clock, hooks = ManualClock(), RecordingHooks()
        recruiter = never(clock=clock)
        recruiter.add_hook(hooks)
        for _ in range(20):
            clock.advance(seconds)
            recruiter.enlist()
        # The last one may wait for the next.
        assert sum(hooks.enlisted) >= 18

    def test_soon_after_a_busy_time(self) -> None:
        clock, hooks = ManualClock(), RecordingHooks()
        recruiter = never(clock=clock)
        recruiter.add_hook(hooks)
        for _ in range(400):
            recruiter.enlist()
            clock.advance(1 / 400)
        for _ in range(200):
            clock.advance(1)
            recruiter.enlist()
        # 400 a second: no block is longer than a quarter of that.
        assert sum(hooks.enlisted) >= 400 + 200 - 2

    def test_within_1024_enlists_after_the_busiest_time(self) -> None:
        clock, hooks = ManualClock(), RecordingHooks()
        recruiter = never(clock=clock)
        recruiter.add_hook(hooks)
        for _ in range(100_000):
            recruiter.enlist()
        clock.advance(1)
        for _ in range(1_025):
            recruiter.enlist()
        assert sum(hooks.enlisted) >= 100_000

    def test_not_of_zero(self) -> None:
        hooks = RecordingHooks()
        recruiter = never()
        recruiter.add_hook(hooks)
        recruiter.flush()
        assert hooks.enlisted == []


class TestDisabled:
    @pytest.mark.parametrize("value", ["1", "true", "yes"])
    def test_every_enlist_is_a_dismissal_and_counted(
        self, monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        recruiter = always()
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        assert recruiter.enlist() is Outcome.WORKED
        monkeypatch.setenv("WORKSTEALING_DISABLED", value)
        assert {recruiter.enlist() for _ in range(2_000)} == {Outcome.DISMISSED}
        assert recruiter.stats()["enlisted"] == 2_001
        assert recruiter.stats()["jobs"]["a"]["recruited"] == 1

    def test_it_is_read_again_so_that_recruiting_resumes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recruiter = always()
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        monkeypatch.setenv("WORKSTEALING_DISABLED", "1")
        for _ in range(10):
            recruiter.enlist()
        monkeypatch.setenv("WORKSTEALING_DISABLED", "0")
        outcomes = [recruiter.enlist() for _ in range(100)]
        assert outcomes[-1] is Outcome.WORKED


class _Interrupting:
    """A random during which something else happens in the same thread: a signal, a finalizer."""

    def __init__(self) -> None:
        self.then: Any = None

    def __call__(self) -> float:
        then, self.then = self.then, None
        if then is not None:
            then()
        return 0.0


class TestInterruptedSlowPath:
    """The slow path is not re-entrant: whoever interrupts it is dismissed and counted."""

    def test_by_an_enlist(self) -> None:
        random, inner = _Interrupting(), []
        recruiter = Recruiter(random=random)
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        recruiter.enlist()
        random.then = lambda: inner.append(recruiter.enlist())
        assert recruiter.enlist() is Outcome.WORKED
        assert inner == [Outcome.DISMISSED]
        assert recruiter.stats()["enlisted"] == 3
        recruiter.enlist()
        assert recruiter.stats()["enlisted"] == 4

    @pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1")
    def test_by_a_signal_handler_that_enlists(self) -> None:
        random, inner = _Interrupting(), []
        recruiter = Recruiter(random=random)
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        recruiter.enlist()
        random.then = lambda: signal.raise_signal(signal.SIGUSR1)
        before = signal.signal(signal.SIGUSR1, lambda *_: inner.append(recruiter.enlist()))
        try:
            assert recruiter.enlist() is Outcome.WORKED
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert inner == [Outcome.DISMISSED]
        assert recruiter.stats()["enlisted"] == 3

    def test_by_a_finalizer_that_enlists(self) -> None:
        random, inner = _Interrupting(), []
        recruiter = Recruiter(random=random)
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)

        class Last:
            def __init__(self) -> None:
                self.me = self

            def __del__(self) -> None:
                inner.append(recruiter.enlist())

        def collect() -> None:
            Last()
            gc.collect()

        recruiter.enlist()
        random.then = collect
        assert recruiter.enlist() is Outcome.WORKED
        assert inner == [Outcome.DISMISSED]

    def test_by_a_change_which_then_holds(self) -> None:
        random = _Interrupting()
        recruiter = Recruiter(random=random)
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        random.then = lambda: recruiter.uninstall("a")
        recruiter.enlist()
        assert {recruiter.enlist() for _ in range(100)} == {Outcome.DISMISSED}
        assert recruiter.stats()["enlisted"] == 101

    def test_by_a_change_in_the_midst_of_the_counting(self) -> None:
        class Moment(float):
            """A clock's answer whose comparison is interrupted, as any step may be."""

            def __ge__(self, other: float) -> bool:
                if recruiter._drawing:
                    recruiter.set_rate("a", 0.25)
                return float(self) >= other

        class Clock:
            def monotonic(self) -> float:
                return Moment(5)

        recruiter = never(clock=Clock())
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=0.5)
        for count in range(1, 1_001):
            recruiter.enlist()
            assert recruiter.stats()["enlisted"] == count


class TestFaultyArguments:
    """A random or a clock of the user's own may fail; the host is not harmed."""

    def test_a_random_that_fails_dismisses(self, caplog: pytest.LogCaptureFixture) -> None:
        faults = iter([0.0, 0.0])
        recruiter = Recruiter(random=lambda: next(faults))
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        outcomes = [recruiter.enlist() for _ in range(10)]
        assert set(outcomes) == {Outcome.DISMISSED}
        assert [record.name for record in caplog.records] == ["workstealing"]
        assert "the lottery failed: StopIteration" in caplog.text

    def test_a_hosts_timeout_in_a_random_reaches_the_host(self) -> None:
        class HostTimeout(Exception):
            pass

        def slow() -> float:
            raise HostTimeout

        recruiter = Recruiter(random=slow)
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        recruiter.reraise(HostTimeout)
        with pytest.raises(HostTimeout):
            recruiter.enlist()

    def test_a_random_of_1_is_never(self) -> None:
        recruiter = Recruiter(random=lambda: 1.0)
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=1)
        assert {recruiter.enlist() for _ in range(1_000)} == {Outcome.DISMISSED}
        assert recruiter.stats()["enlisted"] == 1_000

    @pytest.mark.parametrize("rate", [1, 0.5])
    def test_a_random_of_1_dismisses_one_caller_and_no_more(self, rate: float) -> None:
        """Rounding may make a 1.0, once in millions of draws; it is not the end of all work."""
        numbers = itertools.chain([0.0, 0.0, 1.0, 1.0], itertools.repeat(0.0))
        recruiter = Recruiter(random=lambda: next(numbers))
        recruiter.install(FunctionJob(lambda slice: 1, name="a"), rate=rate)
        outcomes = [recruiter.enlist() for _ in range(4)]
        assert outcomes == [Outcome.WORKED, Outcome.DISMISSED, Outcome.WORKED, Outcome.WORKED]
        assert recruiter.stats()["enlisted"] == 4
