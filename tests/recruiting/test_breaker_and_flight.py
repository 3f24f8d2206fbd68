"""A dead server costs a process one time-out per breaker period; slices run one at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from workstealing import Aborted, Outcome, Recruiter, Slice
from workstealing.recruiting import FunctionJob
from workstealing.recruiting.health import Breaker
from workstealing.testing import ManualClock, always


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

    def test_a_slice_without_a_fault_begins_the_periods_anew(self) -> None:
        breaker = Breaker(10, random=lambda: 0.5)
        for now in (100, 200, 300):
            breaker.trip(now)
        breaker.recover()
        breaker.trip(400)
        assert breaker.is_open(400.99)
        assert not breaker.is_open(401)


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
