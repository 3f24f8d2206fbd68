"""Whether a job keeps up (the counting findings, the unknown cases, the words), and breakers.

A dead server costs a process one time-out per breaker period.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from workstealing import Aborted, Outcome, Recruiter, Slice
from workstealing.errors import OutOfTime
from workstealing.recruiting import FunctionJob
from workstealing.recruiting.breakers import Breaker
from workstealing.recruiting.health import Findings, Health, assess
from workstealing.recruiting.slice import Report
from workstealing.recruiting.slice_slot import SLICE_SLOT
from workstealing.recruiting.tally import ERRORS_NAMED, Tally, error_name
from workstealing.testing import ManualClock, always

LEAST = "nothing has worked for at least"


def minutes(*ages: float | None, full: int | None = None, **counts: int) -> list[Findings]:
    """Return a span a minute, each with these counts; no counts where the age is None."""
    given = Counter(counts or {"worked": 10})
    return [
        Findings(60.0 * number, Counter() if age is None else given, full, age)
        for number, age in enumerate(ages)
    ]


def failing(**counts: int) -> list[Findings]:
    return [Findings(60.0 * number, Counter(counts)) for number in range(10)]


def health(spans: Sequence[Findings], limit: float | None = None, **options: Any) -> Health:
    return assess(spans, spans[-1].at if spans else 0.0, limit, **options)


class TestAgesOfLongAgo:
    """A job may stop reporting its garbage: its earlier report ends."""

    @staticmethod
    def spans(age: float, silent: int, full: int | None = None) -> list[Findings]:
        counts = Counter(worked=10)
        return [
            Findings(60.0 * number, counts, full, age if number < 20 else None)
            for number in range(20 + silent)
        ]

    @pytest.mark.parametrize("silent", [16, 40, 100])
    def test_old_garbage_is_not_gone_because_nobody_mentions_it(self, silent: int) -> None:
        said = health(self.spans(700.0, silent, full=0))
        assert (said.keeps_up, said.is_old) == (None, True)
        assert said.why == (
            f"oldest garbage 12 min old, limit 10 min, when it was last seen, {silent} min ago"
        )

    def test_young_garbage_of_long_ago_says_nothing(self) -> None:
        assert health(self.spans(5.0, 10)).keeps_up is True
        assert health(self.spans(5.0, 16)).keeps_up is None
        assert health(self.spans(5.0, 16, full=0)).keeps_up is True
        assert health(self.spans(5.0, 16, full=10)).keeps_up is False


class TestByAge:
    @pytest.mark.parametrize(
        ("ages", "limit", "expected"),
        [
            ([5.0] * 60, None, True),
            ([600.0] * 60, None, True),
            ([2700.0] * 60, None, False),
            ([70.0] * 60, 60.0, False),
            ([59.0] * 60, 60.0, True),
            # A minute's garbage is young, however fast it comes.
            ([5.0 * n for n in range(10)], None, True),
            ([40.0 * n for n in range(10)], None, False),
            ([20.0 * n for n in range(10)], None, True),
            ([60.0 * n for n in range(20)], None, False),
            # A limit of one's own allows growth below it.
            ([40.0 * n for n in range(10)], 3600.0, True),
            # Draining: fast, or so slowly that it takes hours.
            ([3600.0 - 60 * n for n in range(20)], None, None),
            ([3600.0 - n for n in range(20)], None, False),
            ([3600.0 - 300 * n for n in range(12)], None, True),
            # One look above the limit is no state.
            ([500.0] * 59 + [700.0], None, None),
        ],
    )
    def test_level_and_growth_decide(
        self, ages: list[float], limit: float | None, expected: bool | None
    ) -> None:
        assert health(minutes(*ages), limit).keeps_up is expected

    @pytest.mark.parametrize(
        "ages",
        [
            [2580.0],
            [None] * 59 + [2580.0],
            [2700.0] * 5,
            [1.0] * 5,
            [1.0] * 30 + [None] * 20 + [1.0] * 3,
        ],
    )
    def test_nobody_knows_before_there_are_five_minutes_of_history(
        self, ages: list[float | None]
    ) -> None:
        said = health(minutes(*ages))
        assert said.keeps_up is None
        assert "of history" in said.why

    def test_the_reasons_are_figures(self) -> None:
        assert health(minutes(*[2700.0] * 60)).why == "oldest garbage 45 min old, limit 10 min"
        said = health(minutes(2700.0, 2700.0, 2700.0, 2700.0, 2700.0)).why
        assert said == "4 min of history; oldest garbage 45 min old, limit 10 min"
        assert health(minutes(*[60.0 * n for n in range(20)])).why == (
            "garbage grows older by 1 s a second; oldest garbage 19 min old, limit 10 min"
        )
        assert health(minutes(*[1.0] * 10)).why == ""

    def test_what_was_long_ago_says_nothing_of_now(self) -> None:
        spans = minutes(*[1.0] * 10)
        assert assess(spans, spans[-1].at + 800.0).keeps_up is True
        assert assess(spans, spans[-1].at + 1200.0) == Health(
            None, "no slice has been performed for 20 min"
        )
        assert assess([], 0.0) == Health(None, "no slice has been performed")

    def test_full_slices_need_garbage_that_grows_no_older(self) -> None:
        older = [70.0 + 6 * n for n in range(20)]
        assert health(minutes(*older, full=10)).keeps_up is False
        assert health(minutes(*older, full=8)).keeps_up is True
        assert health(minutes(*older[::-1], full=10)).keeps_up is True


class TestBySlices:
    @pytest.mark.parametrize(("full", "expected"), [(0, True), (9, True), (10, False)])
    def test_a_job_that_knows_no_age_is_judged_by_full_slices(
        self, full: int, expected: bool
    ) -> None:
        spans = [Findings(60.0 * n, Counter(worked=6, idle=4), full) for n in range(10)]
        assert health(spans).keeps_up is expected

    def test_nobody_knows_where_neither_is_known(self) -> None:
        spans = [Findings(60.0 * n, Counter(worked=10)) for n in range(10)]
        assert health(spans) == Health(None, "it does not say how old its garbage is")


class TestComingToNothing:
    @pytest.mark.parametrize(
        ("spans", "why"),
        [
            ([Findings(0.0, Counter(failed=400))], "400 of 400 slices failed, No"),
            (
                failing(out_of_time=2),
                f"{LEAST} 9 min: 20 of 20 slices were out of time",
            ),
            (
                failing(failed=1, out_of_time=1),
                f"{LEAST} 9 min: of 20 slices 10 failed and 10 out of time, No",
            ),
            (
                [*minutes(1.0, 1.0), *failing(failed=1, skipped=4)[2:]],
                f"{LEAST} 8 min: 8 of 8 slices failed, No, 32 recruits were skipped",
            ),
            (
                failing(skipped=30),
                f"{LEAST} 9 min: 300 recruits were skipped",
            ),
            # Some still work.
            (failing(worked=1, failed=9), "18 of 20 slices failed, No"),
            (
                [Findings(0.0, Counter(worked=30, failed=5000))],
                "5,000 of 5,030 slices failed, No",
            ),
        ],
    )
    def test_it_does_not_keep_up(self, spans: list[Findings], why: str) -> None:
        assert health(spans, error="No") == Health(False, why)

    @pytest.mark.parametrize(
        "counts",
        [{"failed": 4}, {"worked": 9, "failed": 9}, {"aborted": 10}, {"worked": 1, "skipped": 99}],
    )
    def test_a_few_faults_prove_nothing(self, counts: dict[str, int]) -> None:
        assert assess([Findings(0.0, Counter(counts))], 0.0).keeps_up is None

    def test_the_time_without_a_result_begins_where_the_last_one_may_have_been(self) -> None:
        good = Findings(0.0, Counter(worked=30), until=60.0)
        bad = [Findings(60.0 * each, Counter(failed=6)) for each in range(1, 5)]
        assert assess([good, *bad[:1]], 60.0).why == "6 of 6 slices failed"
        assert assess([good, *bad], 240.0).why.startswith("nothing has worked for at least 3 min:")

    def test_a_process_knows_when_its_last_slice_worked(self) -> None:
        tally = Tally()
        for second in range(29):
            tally.add(float(second), Report(Outcome.WORKED, 1, 5, 0.001, 0.01, None, 0))
        for second in range(29, 80):
            tally.add(float(second), Report(Outcome.FAILED, 0, 5, 0.001, 0.01, None, 0))
        assert tally.health(87.0).why == "50 of 50 slices failed"
        assert tally.health(88.0).why.startswith("nothing has worked for at least 60 s: 50 of 50")

    def test_a_job_that_works_again_is_not_held_to_what_was(self) -> None:
        spans = [*failing(failed=50)[:5], *minutes(*[1.0] * 10)[5:]]
        assert health(spans).keeps_up is None
        longer = [*spans, Findings(600.0, Counter(worked=9), None, 1.0)]
        assert health(longer).keeps_up is True


class TestInAProcess:
    def test_a_job_that_only_fails_is_said_so_once_a_minute(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()
        recruiter = always(clock=clock)

        @recruiter.job(rate=0.1)
        def sweep(slice: Slice) -> int:
            raise PermissionError(1, "secret: the text is nobody's business")

        for _ in range(600):
            clock.advance(0.5)
            recruiter.enlist()
        figures = recruiter.stats()["jobs"]["sweep"]
        assert figures["keeps_up"] is False
        # PermissionError is an OSError: the breaker lets few try.
        assert "slices failed, PermissionError" in figures["why"]
        assert figures["errors"]["PermissionError"]["count"] == figures["failed"]
        assert figures["breaker_seconds"] == pytest.approx(299.5)
        lines = [each for each in caplog.records if "does not keep up" in each.message]
        assert 3 <= len(lines) <= 5
        assert {each.levelno for each in lines} == {logging.WARNING}
        assert "secret" not in "".join(each.message for each in lines)

    @pytest.mark.parametrize("good", [0, 30])
    def test_a_job_without_permission_does_not_keep_up(self, good: int) -> None:
        clock = ManualClock()
        recruiter = always(clock=clock)

        @recruiter.job(rate=0.1)
        def sweep(slice: Slice) -> int:
            if recruiter.stats()["jobs"]["sweep"]["worked"] < good:
                return 1
            raise type("NoPermissionError", (Exception,), {})("no")

        for _ in range(400 + good):
            recruiter.enlist()
        figures = recruiter.stats()["jobs"]["sweep"]
        why = f"400 of {400 + good} slices failed, NoPermissionError"
        assert (figures["keeps_up"], figures["why"]) == (False, why)
        assert json.loads(json.dumps(recruiter.stats()))["jobs"]["sweep"]["why"] == why

    def test_slices_that_are_too_short_count_against_it_and_are_no_errors(self) -> None:
        recruiter = always(clock=ManualClock())

        @recruiter.job(rate=0.1)
        def sweep(slice: Slice) -> int:
            raise OutOfTime("late")

        for _ in range(5):
            recruiter.enlist()
        figures = recruiter.stats()["jobs"]["sweep"]
        assert (figures["keeps_up"], figures["errors"]) == (False, {})
        assert figures["why"] == "5 of 5 slices were out of time"

    def test_aborts_are_no_fault_of_its_own(self) -> None:
        recruiter = always(clock=ManualClock())

        @recruiter.job(rate=0.1)
        def sweep(slice: Slice) -> int:
            raise Aborted("another came first")

        for _ in range(50):
            recruiter.enlist()
        assert recruiter.stats()["jobs"]["sweep"]["keeps_up"] is None

    def test_a_slice_that_never_returns_is_seen_from_outside(self) -> None:
        clock = ManualClock()
        recruiter = always(clock=clock)
        seen: list[Any] = []

        @recruiter.job(rate=0.1)
        def stuck(slice: Slice) -> int:
            for _ in range(400):
                clock.advance(1.0)
                recruiter.enlist()
            seen.append(recruiter.stats()["jobs"]["stuck"])
            return 1

        recruiter.enlist()
        (figures,) = seen
        assert figures["running_seconds"] >= 0.0
        assert SLICE_SLOT.holder() is None
        assert recruiter.stats()["jobs"]["stuck"]["running_seconds"] is None
        assert figures["keeps_up"] is False
        said = "nothing has worked for at least 6 min: 400 recruits were skipped"
        assert figures["why"].startswith(said)

    def test_a_paused_job_is_not_judged(self) -> None:
        recruiter = always(clock=ManualClock())
        recruiter.job(rate=0.1, name="sweep")(lambda slice: 1)
        recruiter.pause("sweep")
        for _ in range(50):
            recruiter.enlist()
        figures = recruiter.stats()["jobs"]["sweep"]
        assert (figures["keeps_up"], figures["why"]) == (None, "it is paused")

    def test_classes_of_errors_are_bounded(self) -> None:
        recruiter = always(clock=ManualClock())
        count = iter(range(100))

        @recruiter.job(rate=0.1)
        def sweep(slice: Slice) -> int:
            raise type(f"Error{next(count)}", (Exception,), {})()

        for _ in range(50):
            recruiter.enlist()
        errors = recruiter.stats()["jobs"]["sweep"]["errors"]
        assert len(errors) == ERRORS_NAMED + 1
        assert sum(each["count"] for each in errors.values()) == 50
        assert errors["_other"]["count"] == 50 - ERRORS_NAMED

    def test_a_class_of_any_name_is_a_label(self) -> None:
        assert error_name(type("Bad:\nname" + "x" * 100, (Exception,), {})()) == (
            "Bad__name" + "x" * 51
        )


@pytest.mark.slow
def test_what_was_seen_stays_bounded() -> None:
    clock = ManualClock()
    recruiter: Recruiter = always(clock=clock)
    recruiter.job(rate=0.1, name="sweep")(lambda slice: 1)
    for _ in range(5_000):
        clock.advance(31.0)
        recruiter.enlist()
    assert recruiter.stats()["jobs"]["sweep"]["worked"] == 5_000
    (installed,) = recruiter._roster.all()
    assert len(installed.tally._spans) == 40


class Server:
    """What a job talks to: counts how often it is touched, and fails as it is told."""

    def __init__(self) -> None:
        self.touched = 0
        self.error: Exception | None = None

    def perform(self, slice: Slice) -> int:
        self.touched += 1
        if self.error is not None:
            raise self.error
        return 1


def installed(server: Server, clock: ManualClock) -> Recruiter:
    recruiter = always(clock=clock, breaker=10)
    recruiter.install(FunctionJob(server.perform, name="sweep"), rate=0.1)
    return recruiter


class RedisConnectionError(Exception):
    """Stands for redis-py's, which is no OSError either."""


RedisConnectionError.__name__ = "ConnectionError"


class TestBreaker:
    @pytest.mark.parametrize("error", [OSError(), TimeoutError(), RedisConnectionError()])
    def test_a_connection_fault_opens_it_so_that_nobody_touches_the_server(
        self, error: Exception
    ) -> None:
        server, clock = Server(), ManualClock()
        recruiter = installed(server, clock)
        server.error = error
        assert recruiter.enlist() is Outcome.FAILED
        assert {recruiter.enlist() for _ in range(100)} == {Outcome.SKIPPED}
        clock.advance(0.49)
        assert recruiter.enlist() is Outcome.SKIPPED
        assert server.touched == 1

    def test_then_there_is_one_trial_per_period(self) -> None:
        server, clock = Server(), ManualClock()
        recruiter = installed(server, clock)
        server.error = ConnectionError()
        recruiter.enlist()
        for trials in range(2, 12):
            clock.advance(15.01)
            assert recruiter.enlist() is Outcome.FAILED
            assert {recruiter.enlist() for _ in range(20)} == {Outcome.SKIPPED}
            assert server.touched == trials

    @pytest.mark.parametrize("answer", [None, Aborted("another writer")])
    def test_a_server_that_answers_closes_it(self, answer: Exception | None) -> None:
        server, clock = Server(), ManualClock()
        recruiter = installed(server, clock)
        server.error = ConnectionError()
        recruiter.enlist()
        clock.advance(15.01)
        server.error = answer
        assert recruiter.enlist() in {Outcome.WORKED, Outcome.ABORTED}
        server.error = None
        assert {recruiter.enlist() for _ in range(100)} == {Outcome.WORKED}

    def test_other_errors_do_not_open_it(self) -> None:
        server, clock = Server(), ManualClock()
        recruiter = installed(server, clock)
        server.error = ValueError()
        assert {recruiter.enlist() for _ in range(10)} == {Outcome.FAILED}
        assert server.touched == 10

    def test_jobs_of_one_dependency_share_it_and_others_do_not(self) -> None:
        clock = ManualClock()
        recruiter = always(clock=clock)
        dead, alive = Server(), Server()
        dead.error = ConnectionError()
        for name, server, dependency in (
            ("a", dead, "dead:6379"),
            ("b", dead, "dead:6379"),
            ("c", alive, "alive:6379"),
        ):
            job = FunctionJob(server.perform, name=name)
            job.dependency = dependency
            recruiter.install(job, rate=0.1)
        for _ in range(300):
            recruiter.enlist()
        jobs = recruiter.stats()["jobs"]
        assert dead.touched == 1
        assert jobs["a"]["failed"] + jobs["b"]["failed"] == 1
        assert jobs["a"]["skipped"] + jobs["b"]["skipped"] + 1 == 300 - alive.touched
        assert jobs["c"]["worked"] == jobs["c"]["recruited"] == alive.touched > 0

    @pytest.mark.parametrize(("drawn", "share"), [(0.0, 0.5), (0.5, 1.0), (0.999999, 1.499999)])
    def test_its_period_doubles_up_to_the_longest_and_is_jittered_by_half(
        self, drawn: float, share: float
    ) -> None:
        breaker = Breaker(10, random=lambda: drawn)
        assert not breaker.is_open(100)
        for now, seconds in ((100, 1), (200, 2), (300, 4), (400, 8), (500, 10), (600, 10)):
            breaker.trip(now)
            assert breaker.is_open(now)
            assert breaker.is_open(now + seconds * share - 0.01)
            assert not breaker.is_open(now + seconds * share)

    def test_after_the_period_it_admits_one_call_and_no_other_for_a_period(self) -> None:
        breaker = Breaker(10, random=lambda: 0.5)
        assert breaker.admits(100)
        breaker.fail(100, breaker.outage)
        assert not breaker.admits(100.99)
        assert [breaker.admits(101) for _ in range(3)] == [True, False, False]
        # The one that was admitted never came back.
        assert breaker.is_open(102.99)
        assert not breaker.admits(102.99)
        assert [breaker.admits(103) for _ in range(3)] == [True, False, False]
        breaker.recover()
        assert [breaker.admits(103) for _ in range(3)] == [True, True, True]

    def test_calls_that_fail_together_are_one_fault(self) -> None:
        breaker = Breaker(10, random=lambda: 0.5)
        seen = breaker.outage
        for _ in range(20):
            breaker.fail(100, seen)
        assert breaker.is_open(100.99)
        assert not breaker.is_open(101)

    def test_a_slice_that_fails_leaves_calls_one_try_at_once(self) -> None:
        breaker = Breaker(10, random=lambda: 0.5)
        breaker.trip(100)
        assert breaker.is_open(100)
        assert [breaker.admits(100) for _ in range(3)] == [True, False, False]
        breaker.fail(100.5, breaker.outage)
        breaker.trip(110)
        # A call has tried before, in vain.
        assert not breaker.admits(110)
        assert breaker.open_seconds(110) == 10

    def test_threads_get_one_try_together(self) -> None:
        breaker, admitted = Breaker(10, random=lambda: 0.5), []
        breaker.fail(100, None)
        gate = threading.Barrier(16)

        def ask() -> None:
            gate.wait()
            if breaker.admits(102):
                admitted.append(1)

        callers = [threading.Thread(target=ask) for _ in range(16)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        assert admitted == [1]

    def test_a_slice_without_a_fault_begins_the_periods_anew(self) -> None:
        breaker = Breaker(10, random=lambda: 0.5)
        for now in (100, 200, 300):
            breaker.trip(now)
        breaker.recover()
        breaker.trip(400)
        assert breaker.is_open(400.99)
        assert not breaker.is_open(401)
