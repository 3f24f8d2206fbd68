"""What becomes of a recruit: the slice it gets, the outcome of its job, and who hears of it.

Slices run one at a time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from workstealing import Aborted, Adaptive, Hooks, Job, Outcome, Recruiter, Slice
from workstealing.errors import ConfigurationError, LayoutError, OutOfTime, RateError
from workstealing.recruiting import FunctionJob
from workstealing.recruiting.slice import SliceLength, seconds_for
from workstealing.testing import ManualClock, OutcomeEvent, RecordingHooks, always


def installed(perform: Callable[[Slice], Any], **options: Any) -> Recruiter:
    recruiter = always(**options)
    recruiter.install(FunctionJob(perform, name="sweep"), rate=0.1)
    return recruiter


def raising(error: BaseException) -> Callable[[Slice], int]:
    def perform(slice: Slice) -> int:
        raise error

    return perform


class Index:
    def __index__(self) -> int:
        return 4


class TestResult:
    @pytest.mark.parametrize(
        ("answer", "outcome", "items"),
        [
            (None, Outcome.IDLE, 0),
            (0, Outcome.IDLE, 0),
            (1, Outcome.WORKED, 1),
            (25, Outcome.WORKED, 25),
            (Index(), Outcome.WORKED, 4),
        ],
    )
    def test_the_items_decide(self, answer: Any, outcome: Outcome, items: int) -> None:
        recruiter = installed(lambda slice: answer)
        assert recruiter.enlist() is outcome
        figures = recruiter.stats()["jobs"]["sweep"]
        assert figures["items"] == items
        assert figures[outcome.value] == figures["recruited"] == 1  # type: ignore[literal-required]

    @pytest.mark.parametrize("answer", ["3", -1, 1.5, [], True, False])
    def test_nonsense_is_a_failure_that_says_what_was_expected(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        recruiter = installed(lambda slice: answer)
        assert recruiter.enlist() is Outcome.FAILED
        said = f"WrongAnswerError: job 'sweep' returned {answer!r}; expected the number of items"
        assert said in caplog.text
        assert recruiter.stats()["jobs"]["sweep"]["items"] == 0

    def test_aborted_is_an_outcome_and_no_error(self, caplog: pytest.LogCaptureFixture) -> None:
        hooks = RecordingHooks()
        recruiter = installed(raising(Aborted("another writer came first")))
        recruiter.add_hook(hooks)
        assert recruiter.enlist() is Outcome.ABORTED
        assert caplog.records == []
        assert hooks.outcomes[0].error is None

    @pytest.mark.parametrize("error", [ValueError("bad"), OSError("gone"), StopIteration()])
    def test_every_other_exception_is_a_failure_and_is_swallowed(self, error: Exception) -> None:
        hooks = RecordingHooks()
        recruiter = installed(raising(error))
        recruiter.add_hook(hooks)
        assert recruiter.enlist() is Outcome.FAILED
        assert hooks.outcomes[0].error is error

    def test_a_slice_that_was_too_short_is_no_failure(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        hooks, clock = RecordingHooks(), ManualClock()
        recruiter = installed(raising(OutOfTime("late")), clock=clock)
        recruiter.add_hook(hooks)
        assert {recruiter.enlist() for _ in range(7)} == {Outcome.OUT_OF_TIME}
        assert hooks.outcomes[0].error is None
        figures = recruiter.stats()["jobs"]["sweep"]
        assert (figures["out_of_time"], figures["failed"], figures["breaker_open"]) == (7, 0, False)
        # Four times the next one was longer; that is said only when there is no longer one.
        (line,) = caplog.records
        assert line.levelname == "WARNING"
        assert line.message == (
            "job 'sweep': its slice of 100 ms, the longest that is allowed, was over before"
            " it handled any item: install it with longer slices (seconds=0.2)"
        )
        clock.advance(60.0)
        recruiter.enlist()
        assert caplog.records[1].message.endswith("(3 times since the last report)")

    def test_a_slice_that_ran_out_of_time_after_some_items_has_worked(self) -> None:
        def part(slice: Slice) -> int:
            clock.advance(2 * slice.seconds)
            return 3

        clock = ManualClock()
        assert installed(part, clock=clock).enlist() is Outcome.WORKED


class HostTimeout(Exception):
    """A time-out that some host raises into running code."""


def known_timeout(module: str, name: str) -> type[Exception]:
    return type(name, (Exception,), {"__module__": module, "__qualname__": name})


SOFT = known_timeout("billiard.exceptions", "SoftTimeLimitExceeded")
RQ = known_timeout("rq.timeouts", "JobTimeoutException")


class TestWhatPasses:
    @pytest.mark.parametrize(
        "error",
        [
            KeyboardInterrupt(),
            SystemExit(3),
            GeneratorExit(),
            HostTimeout(),
            SOFT(),
            type("Derived", (SOFT,), {})(),
            RQ(),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_it_passes_after_the_outcome_is_counted(
        self, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        hooks = RecordingHooks()
        recruiter = installed(raising(error))
        recruiter.add_hook(hooks)
        recruiter.reraise(HostTimeout)
        with pytest.raises(type(error)) as caught:
            recruiter.enlist()
        assert caught.value is error
        assert recruiter.stats()["jobs"]["sweep"]["failed"] == 1
        assert [(event.outcome, event.error) for event in hooks.outcomes] == [
            (Outcome.FAILED, error)
        ]
        # It is the host's own affair.
        assert caplog.records == []

    def test_the_next_slice_runs(self) -> None:
        errors: list[BaseException] = [KeyboardInterrupt()]

        def perform(slice: Slice) -> int:
            if errors:
                raise errors.pop()
            return 1

        recruiter = installed(perform)
        with pytest.raises(KeyboardInterrupt):
            recruiter.enlist()
        assert recruiter.enlist() is Outcome.WORKED

    def test_an_error_that_the_caller_is_handling_is_not_taken_for_the_jobs(self) -> None:
        hooks = RecordingHooks()
        recruiter = installed(lambda slice: 1)
        recruiter.add_hook(hooks)
        try:
            raise ConnectionError
        except ConnectionError:
            assert recruiter.enlist() is Outcome.WORKED
        assert hooks.outcomes[0].error is None

    def test_a_class_of_that_name_elsewhere_is_an_ordinary_error(self) -> None:
        error = known_timeout("somewhere.else", "SoftTimeLimitExceeded")()
        assert installed(raising(error)).enlist() is Outcome.FAILED

    @pytest.mark.parametrize("types", [(int,), (HostTimeout, "Timeout"), (HostTimeout(),)])
    def test_only_exception_classes_are_registered(self, types: tuple[Any, ...]) -> None:
        recruiter = installed(raising(HostTimeout()))
        with pytest.raises(ConfigurationError, match=r"reraise\(\) expects exception classes"):
            recruiter.reraise(*types)
        assert recruiter.enlist() is Outcome.FAILED


class TestLog:
    def test_once_per_job_and_minute_with_a_count(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = ManualClock()
        recruiter = installed(raising(ValueError("bad row")), clock=clock)
        recruiter.job(rate=0.1, name="other")(raising(KeyError("lost")))
        recruiter.pause("other")
        for _ in range(100):
            recruiter.enlist()
            clock.advance(0.5)
        failed = recruiter.stats()["jobs"]["sweep"]["failed"]
        assert [record.message for record in caplog.records] == [
            "job 'sweep' failed: ValueError: bad row"
        ]
        assert caplog.records[0].name == "workstealing"
        assert caplog.records[0].levelno == logging.ERROR
        assert caplog.records[0].exc_info is not None
        clock.advance(10)
        recruiter.pause("sweep")
        recruiter.resume("other")
        while recruiter.stats()["jobs"]["other"]["failed"] == 0:
            recruiter.enlist()
        assert caplog.records[1].message == "job 'other' failed: KeyError: 'lost'"
        recruiter.pause("other")
        recruiter.resume("sweep")
        while recruiter.stats()["jobs"]["sweep"]["failed"] == failed:
            recruiter.enlist()
        assert caplog.records[2].message == (
            f"job 'sweep' failed {failed} times since the last report: ValueError: bad row"
        )

    @pytest.mark.parametrize(
        "error", [LayoutError("it is foreign"), ConnectionRefusedError("nobody listens")]
    )
    def test_what_says_all_there_is_to_say_comes_without_a_traceback(
        self, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        recruiter = installed(raising(error))
        while recruiter.stats()["jobs"]["sweep"]["failed"] == 0:
            recruiter.enlist()
        assert str(error) in caplog.records[0].message
        assert caplog.records[0].exc_info is None


class TestSlice:
    def test_a_slice_has_the_jobs_limit_and_the_recruiters_seconds(self) -> None:
        seen: list[Slice] = []
        recruiter = always(seconds=0.025)

        @recruiter.job(rate=0.1, limit=7)
        def sweep(slice: Slice) -> None:
            seen.append(slice)

        recruiter.enlist()
        assert (seen[0].limit, seen[0].seconds) == (7, 0.025)

    def test_seconds_of_the_installation_come_first(self) -> None:
        seen: list[float] = []
        recruiter = always(seconds=0.025)

        @recruiter.job(rate=0.1, seconds=0.5)
        def sweep(slice: Slice) -> None:
            seen.append(slice.seconds)

        recruiter.enlist()
        assert seen == [0.5]

    def test_a_functions_limit_is_100_and_its_name_is_the_jobs(self) -> None:
        job = FunctionJob(TestSlice.test_seconds_of_the_installation_come_first)
        assert job.limit == 100
        assert job.name == "test_seconds_of_the_installation_come_first"

    def test_the_deadline_counts_from_construction(self) -> None:
        clock = ManualClock(start=50)
        slice = Slice(5, 2.0, clock)
        assert slice.deadline == 52
        assert slice.remaining() == 2.0
        assert not slice.expired
        clock.advance(2)
        assert slice.expired
        clock.advance(1)
        assert slice.remaining() == -1.0
        assert repr(slice) == "Slice(limit=5, remaining=-1.0000 of 2.0 s)"

    @pytest.mark.parametrize("limit", [0, -1, 1.5, True, None, "5"])
    def test_a_limit_is_a_number_of_items(self, limit: Any) -> None:
        with pytest.raises(ConfigurationError, match="a slice's limit is"):
            Slice(limit, 1.0)
        with pytest.raises(ConfigurationError, match="a slice's limit is"):
            FunctionJob(lambda slice: 0, name="a", limit=limit)

    @pytest.mark.parametrize("seconds", [0, -1, True, None, "5", float("nan"), float("inf")])
    def test_a_length_is_a_number_of_seconds_above_0(self, seconds: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"^seconds="):
            Slice(1, seconds)
        with pytest.raises(ConfigurationError, match=r"^seconds="):
            Recruiter(seconds=seconds)
        with pytest.raises(ConfigurationError, match=r"^breaker="):
            Recruiter(breaker=seconds)
        if seconds is not None:
            recruiter = always()
            with pytest.raises(ConfigurationError, match="seconds of job 'a'="):
                recruiter.install(FunctionJob(lambda slice: 0, name="a"), 0.1, seconds)
            assert recruiter.stats()["jobs"] == {}

    def test_a_length_may_be_a_timedelta(self) -> None:
        clock, hundredth = ManualClock(), timedelta(milliseconds=10)
        assert Slice(1, hundredth, clock).seconds == 0.010
        recruiter = Recruiter(
            seconds=hundredth, breaker=timedelta(minutes=1), longest=timedelta(seconds=1)
        )
        rate = Adaptive(0.1, 0.2, lag=timedelta(minutes=2))
        recruiter.install(
            FunctionJob(lambda slice: 0, name="a"), rate, longest=timedelta(milliseconds=40)
        )
        recruiter.install(FunctionJob(lambda slice: 0, name="b"), 0.1, timedelta(milliseconds=20))
        assert recruiter.slice_seconds("a") == (0.010, 0.040)
        assert recruiter.slice_seconds("b") == (0.020, 1.0)
        assert recruiter.stats()["jobs"]["a"]["lag"] == 120.0
        assert recruiter.perform("b", seconds=timedelta(seconds=1)) is Outcome.IDLE

    def test_a_random_is_a_function(self) -> None:
        with pytest.raises(ConfigurationError, match=r"random= is 0\.5"):
            Recruiter(random=0.5)  # type: ignore[arg-type]

    def test_an_unknown_option_is_an_error(self) -> None:
        with pytest.raises(TypeError, match="second"):
            Recruiter(second=1)  # type: ignore[call-arg]


class TestJob:
    def test_the_dependency_is_the_name_unless_the_job_says_otherwise(self) -> None:
        class Plain(Job):
            name = "plain"

            def perform(self, slice: Slice) -> int:
                return 0

        class Shared(Plain):
            dependency = ("localhost", 6379)

        class Own(Plain):
            def __init__(self) -> None:
                self.dependency = "own"

        assert Plain().dependency == "plain"
        assert Shared().dependency == ("localhost", 6379)
        assert Own().dependency == "own"

    def test_a_dependency_is_hashable(self) -> None:
        job = FunctionJob(lambda slice: 0, name="a")
        job.dependency = []  # type: ignore[assignment]
        with pytest.raises(ConfigurationError, match="the dependency of job 'a'"):
            always().install(job, rate=0.1)

    def test_a_job_without_perform_cannot_be_made(self) -> None:
        class Nothing(Job):
            name = "nothing"

        with pytest.raises(TypeError, match="perform"):
            Nothing()  # type: ignore[abstract]

    def test_the_class_of_a_job_is_to_be_called(self) -> None:
        with pytest.raises(
            ConfigurationError, match=r"FunctionJob is the class .*: call it, as in"
        ):
            always().install(FunctionJob, rate=0.1)  # type: ignore[arg-type]

    @pytest.mark.parametrize("wrong", [Slice, lambda slice: 0, None, "sweep"])
    def test_only_a_job_is_installed(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="expects an instance of Job"):
            always().install(wrong, rate=0.1)

    def test_a_job_is_a_plain_function(self) -> None:
        async def coroutine(slice: Slice) -> int:
            return 0

        def generator(slice: Slice) -> Any:
            yield 1

        async def async_generator(slice: Slice) -> Any:
            yield 1

        recruiter = always()
        for function in (coroutine, generator, async_generator):
            with pytest.raises(ConfigurationError, match="a job is a plain function"):
                recruiter.job(rate=0.1)(function)
        with pytest.raises(ConfigurationError, match="a job is a function"):
            recruiter.job(rate=0.1)(3)  # type: ignore[type-var]
        assert recruiter.stats()["jobs"] == {}

    def test_the_decorator_leaves_the_function_as_it_is(self) -> None:
        def sweep(slice: Slice) -> int:
            return 2

        recruiter = always()
        assert recruiter.job(rate=0.1, name="tidy")(sweep) is sweep
        assert recruiter.enlist() is Outcome.WORKED
        assert recruiter.stats()["jobs"]["tidy"]["items"] == 2
        assert repr(recruiter) == "<Recruiter {'tidy': 0.1}>"


class TestSingleFlight:
    def test_over_all_recruiters_of_the_process(self) -> None:
        inside, go = threading.Event(), threading.Event()

        def wait(slice: Slice) -> int:
            inside.set()
            assert go.wait(120)
            return 1

        first, second = always(), always()
        first.install(FunctionJob(wait, name="a"), rate=0.1)
        second.install(FunctionJob(lambda slice: 1, name="b"), rate=0.1)
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(first.enlist()))
        thread.start()
        assert inside.wait(120)
        assert first.enlist() is Outcome.SKIPPED
        assert second.enlist() is Outcome.SKIPPED
        go.set()
        thread.join()
        assert outcomes == [Outcome.WORKED]
        assert second.enlist() is Outcome.WORKED

    def test_never_two_at_once_and_one_trial_at_a_time(self) -> None:
        guard, most = threading.Lock(), []
        clock = ManualClock()
        recruiters = [always(clock=clock) for _ in range(3)]
        running = [0]

        def perform(slice: Slice) -> int:
            with guard:
                running[0] += 1
                most.append(running[0])
            # Long enough for every other thread to ask.
            sum(range(200))
            with guard:
                running[0] -= 1
            raise ConnectionError

        for recruiter in recruiters:
            recruiter.install(FunctionJob(perform, name="a"), rate=1)

        def enlist() -> None:
            for turn in range(3_000):
                recruiters[turn % 3].enlist()
                if turn % 10 == 0:
                    clock.advance(1)

        threads = [threading.Thread(target=enlist) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(most) == {1}
        assert len(most) > 10

    def test_an_enlist_inside_a_slice_is_counted_and_skipped(self) -> None:
        recruiter = always()
        inner: list[Outcome] = []

        @recruiter.job(rate=0.1)
        def keen(slice: Slice) -> int:
            inner.append(recruiter.enlist())
            return 1

        assert recruiter.enlist() is Outcome.WORKED
        assert inner == [Outcome.SKIPPED]
        stats = recruiter.stats()
        assert stats["enlisted"] == 2
        assert stats["jobs"]["keen"]["recruited"] == 2

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, Aborted])
    def test_the_place_is_free_after_every_end(self, error: Callable[[], BaseException]) -> None:
        recruiter, other = always(), always()
        other.job(rate=0.1, name="other")(lambda slice: 1)

        @recruiter.job(rate=0.1)
        def end(slice: Slice) -> int:
            raise error()

        with contextlib.suppress(KeyboardInterrupt):
            recruiter.enlist()
        assert other.enlist() is Outcome.WORKED


class TestPause:
    def test_one_job(self) -> None:
        recruiter = installed(lambda slice: 1)
        recruiter.pause("sweep")
        assert recruiter.enlist() is Outcome.SKIPPED
        recruiter.resume("sweep")
        assert recruiter.enlist() is Outcome.WORKED

    def test_all_jobs(self) -> None:
        recruiter = installed(lambda slice: 1)
        recruiter.job(rate=0.1, name="other")(lambda slice: 1)
        recruiter.pause()
        assert {recruiter.enlist() for _ in range(20)} == {Outcome.SKIPPED}
        recruiter.resume()
        assert {recruiter.enlist() for _ in range(20)} == {Outcome.WORKED}


class TestStats:
    def test_a_dry_run_keeps_up_with_nothing(self) -> None:
        recruiter = always()
        job = FunctionJob(lambda slice: 1, name="sweep")
        job.dry_run = True
        recruiter.install(job, rate=0.1)
        recruiter.enlist()
        figures = recruiter.stats()["jobs"]["sweep"]
        assert (figures["dry_run"], figures["keeps_up"]) == (True, None)
        assert "dry run" in figures["why"]

    def test_the_whole_dict(self) -> None:
        clock = ManualClock()

        def perform(slice: Slice) -> int:
            clock.advance(0.25)
            return 5

        recruiter = installed(perform, clock=clock)
        recruiter.enlist()
        recruiter.enlist()
        assert recruiter.stats() == {
            "enlisted": 2,
            "jobs": {
                "sweep": {
                    "rate": 0.1,
                    "recruited": 2,
                    "worked": 2,
                    "idle": 0,
                    "aborted": 0,
                    "failed": 0,
                    "out_of_time": 0,
                    "skipped": 0,
                    "items": 10,
                    "seconds": 0.5,
                    "limit": 100,
                    "oldest_seconds": None,
                    "breaker_open": False,
                    "paused": False,
                    "adaptive": False,
                    "lag": None,
                    "keeps_up": None,
                    "why": "0 s of history",
                    "errors": {},
                    "running_seconds": None,
                    "breaker_seconds": None,
                    "unreached": {},
                    "measured": {},
                    "servers": 1,
                    "dry_run": False,
                    "unit": "items",
                }
            },
            "unreached": {},
        }


class TestHooks:
    def test_they_hear_of_recruits_and_outcomes(self) -> None:
        clock, hooks = ManualClock(), RecordingHooks()

        def perform(slice: Slice) -> int:
            clock.advance(0.5)
            return 3

        recruiter = installed(perform, clock=clock)
        recruiter.add_hook(hooks)
        recruiter.enlist()
        recruiter.pause()
        recruiter.enlist()
        assert hooks.recruited == ["sweep", "sweep"]
        assert hooks.outcomes == [
            OutcomeEvent("sweep", Outcome.WORKED, 3, 0.5, None),
            OutcomeEvent("sweep", Outcome.SKIPPED, 0, 0.0, None),
        ]

    def test_a_failing_hook_is_logged_and_harms_neither_the_host_nor_the_next_hook(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Hooks):
            def on_enlisted(self, count: int) -> None:
                raise ValueError("enlisted")

            def on_recruited(self, job: str) -> None:
                raise ValueError("recruited")

            def on_outcome(self, *arguments: Any) -> None:
                raise ValueError("outcome")

        clock, after = ManualClock(), RecordingHooks()
        recruiter = installed(lambda slice: 1, clock=clock)
        recruiter.add_hook(Broken())
        recruiter.add_hook(after)
        for _ in range(10):
            assert recruiter.enlist() is Outcome.WORKED
        recruiter.flush()
        assert len(after.outcomes) == len(after.recruited) == 10
        assert after.enlisted == [10]
        assert len(caplog.records) == 1
        assert "Broken failed: ValueError: recruited" in caplog.text

    def test_a_hosts_timeout_in_a_hook_reaches_the_host(self) -> None:
        class Slow(Hooks):
            def on_outcome(self, *arguments: Any) -> None:
                raise SOFT

        recruiter = installed(lambda slice: 1)
        recruiter.add_hook(Slow())
        with pytest.raises(SOFT):
            recruiter.enlist()
        assert recruiter.stats()["jobs"]["sweep"]["worked"] == 1

    def test_a_hook_that_enlists_is_not_told_of_that(self) -> None:
        recruiter = installed(lambda slice: 1)
        inner: list[Outcome] = []

        class Keen(Hooks):
            def on_recruited(self, job: str) -> None:
                inner.append(recruiter.enlist())

        recruiter.add_hook(Keen())
        assert recruiter.enlist() is Outcome.WORKED
        assert len(inner) == 1
        assert recruiter.stats()["enlisted"] == 2

    def test_the_base_does_nothing(self) -> None:
        recruiter = installed(lambda slice: 1)
        recruiter.add_hook(Hooks())
        assert recruiter.enlist() is Outcome.WORKED
        recruiter.flush()

    @pytest.mark.parametrize("wrong", [RecordingHooks, object(), None])
    def test_only_a_hook_is_added(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="hook"):
            always().add_hook(wrong)


class Warmed(Job):
    """A job that has something to prepare."""

    name = "warmed"

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.error = error

    def warm_up(self) -> None:
        self.calls.append("warm up")
        if self.error is not None:
            raise self.error

    def perform(self, slice: Slice) -> int:
        self.calls.append("perform")
        return 1


def test_a_job_is_warmed_up_once_when_it_is_installed() -> None:
    recruiter, job = always(), Warmed()
    recruiter.install(job, rate=1)
    assert [recruiter.enlist() for _ in range(2)] == [Outcome.WORKED] * 2
    assert job.calls == ["warm up", "perform", "perform"]


def test_what_warming_up_raises_is_logged_and_the_job_is_installed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recruiter, job = always(), Warmed(OSError("no such certificate"))
    recruiter.install(job, rate=1)
    assert "the warming up of job 'warmed' failed: OSError: no such certificate" in caplog.text
    assert recruiter.enlist() is Outcome.WORKED


def test_a_job_that_is_refused_is_not_warmed_up() -> None:
    recruiter, job = always(), Warmed()
    with pytest.raises(RateError):
        recruiter.install(job, rate=2)
    assert job.calls == []


class TestStretch:
    """How a slice that comes to nothing is lengthened, and when it is shortened again."""

    def test_it_doubles_up_to_the_longest(self) -> None:
        slice_length = SliceLength()
        lengths = []
        for _ in range(6):
            lengths.append(slice_length.seconds(0.010))
            slice_length.see(Outcome.OUT_OF_TIME, 0.010, None, 0.0)
        assert lengths == pytest.approx([0.010, 0.020, 0.040, 0.080, 0.100, 0.100])

    @pytest.mark.parametrize(
        ("given", "longest", "expected"),
        [(0.01, None, 0.1), (0.1, None, 0.25), (2.0, None, 2.0), (0.01, 0.02, 0.02), (1, 0.5, 1)],
    )
    def test_the_longest(self, given: float, longest: float | None, expected: float) -> None:
        assert SliceLength(longest).longest(given) == pytest.approx(expected)

    def test_what_worked_stays_as_long_as_round_trips_do(self) -> None:
        slice_length = SliceLength()
        for _ in range(2):
            slice_length.see(Outcome.OUT_OF_TIME, 0.010, 0.005, 0.0)
        for _ in range(100):
            slice_length.see(Outcome.WORKED, 0.010, 0.005, 1.0)
        assert slice_length.seconds(0.010) == pytest.approx(0.040)

    def test_it_falls_back_with_the_round_trip(self) -> None:
        slice_length = SliceLength()
        for _ in range(5):
            slice_length.see(Outcome.OUT_OF_TIME, 0.010, 0.010, 0.0)
        for _ in range(10):
            slice_length.see(Outcome.IDLE, 0.010, 0.0001, 1.0)
        assert slice_length.seconds(0.010) == pytest.approx(0.010)

    def test_without_a_round_trip_it_is_tried_again_after_a_minute(self) -> None:
        slice_length = SliceLength()
        for _ in range(2):
            slice_length.see(Outcome.OUT_OF_TIME, 0.010, None, 0.0)
        slice_length.see(Outcome.WORKED, 0.010, None, 59.0)
        assert slice_length.seconds(0.010) == pytest.approx(0.040)
        slice_length.see(Outcome.WORKED, 0.010, None, 61.0)
        assert slice_length.seconds(0.010) == pytest.approx(0.020)

    def test_a_host_may_forbid_it_and_a_slice_by_hand_is_no_measure(self) -> None:
        recruiter = installed(raising(OutOfTime("late")), longest=0.010)
        recruiter.enlist()
        assert recruiter._roster.get("sweep").slice_length.seconds(0.010) == pytest.approx(0.010)
        recruiter = installed(raising(OutOfTime("late")))
        recruiter.perform("sweep", seconds=5.0)
        assert recruiter._roster.get("sweep").slice_length.seconds(0.010) == pytest.approx(0.010)
        assert recruiter.slice_seconds("sweep") == pytest.approx((0.010, 0.100))

    @pytest.mark.parametrize(("trip", "expected"), [(0.0001, 0.001), (0.003, 0.05), (0.02, 0.2)])
    def test_the_length_that_would_do(self, trip: float, expected: float) -> None:
        assert seconds_for(trip) == pytest.approx(expected)
