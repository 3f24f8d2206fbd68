"""What fails is what is left alone: a database's fault never closes the way to Redis."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import redis

from support.jumping_clock import JumpingClock
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.table_source import TableSource
from workstealing.jobs import HashFieldExpiry, TrackQueued, UntrackDone
from workstealing.recruiting import FunctionJob, Outcome, Recruiter, Slice
from workstealing.store.budget import Budget
from workstealing.store.job_client import job_client_of
from workstealing.structures import TrackedSet, VolatileHashes
from workstealing.testing import always

pytestmark = pytest.mark.real

HOUR_MS = 3_600_000
# So that no rest of a twentieth of it ends while a busy machine comes to the next line.
BREAKER_SECONDS = 1_000.0


class OperationalError(Exception):
    """As every driver of the DB-API calls a database that is gone."""


class DeadSource(TableSource):
    """A table whose database does not answer; counts the questions."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error
        self.asked = 0

    def rows_after(self, cursor: str, n: int, seconds: float) -> list[tuple[str, str]]:
        self.asked += 1
        raise self.error("the database is gone")

    def with_work(self, ids: Sequence[str], seconds: float) -> list[str]:
        self.asked += 1
        raise self.error("the database is gone")


def outcomes_of(recruiter: Recruiter, name: str, times: int) -> list[Outcome]:
    return [recruiter.perform(name, seconds=2.0) for _ in range(times)]


@pytest.mark.parametrize("error", [TimeoutError, ConnectionError, OSError, OperationalError])
def test_a_dead_database_is_left_alone_and_redis_is_not(
    redis7: RedisServer, error: type[Exception]
) -> None:
    client = redis7.client()
    volatile = VolatileHashes(client, namespace="own", backend="emulated")
    for i in range(20):
        volatile.hsetex(f"h{i}", "f", 1, ex=60)
    later = VolatileHashes(client, namespace="own", backend="emulated", clock_shift_ms=HOUR_MS)
    source = DeadSource(error)
    tracked = TrackedSet(client, "queued", source)
    tracked.track("a")
    clock = JumpingClock()
    recruiter = always(seconds=2.0, clock=clock, breaker=BREAKER_SECONDS)
    recruiter.install(TrackQueued(tracked, name="track"), rate=0.1)
    recruiter.install(UntrackDone(tracked, name="untrack"), rate=0.1)
    recruiter.install(HashFieldExpiry(later, 1, name="expiry"), rate=0.1)
    assert recruiter.perform("track") is Outcome.FAILED
    assert set(outcomes_of(recruiter, "track", 5)) == {Outcome.SKIPPED}
    # Another job learns by one question of its own that it depends on the same database.
    until = time.monotonic() + 120
    while source.asked == 1:
        assert time.monotonic() < until
        recruiter.perform("untrack", seconds=2.0)
    assert set(outcomes_of(recruiter, "untrack", 5)) == {Outcome.SKIPPED}
    assert source.asked == 2
    open_ones = {
        name for name, figures in recruiter.stats()["jobs"].items() if figures["breaker_open"]
    }
    assert open_ones == {"track", "untrack"}
    assert set(outcomes_of(recruiter, "expiry", 20)) == {Outcome.WORKED}
    # A slice of another job that went well does not let the database be asked sooner.
    assert recruiter.perform("track") is Outcome.SKIPPED
    clock.jump(1.6 * BREAKER_SECONDS)
    assert recruiter.perform("track") is Outcome.FAILED


@pytest.mark.parametrize("error", [TimeoutError, ConnectionError, OSError])
def test_a_users_function_on_redis_holds_back_itself_alone(
    redis7: RedisServer, error: type[Exception]
) -> None:
    job_client = job_client_of(client := redis7.client())
    recruiter = always(seconds=2.0, clock=JumpingClock(), breaker=BREAKER_SECONDS)

    def ask_elsewhere(slice: Slice) -> int:
        job_client.call(None, [("PING",)], Budget())
        raise error("of an HTTP call")

    def ask_redis(slice: Slice) -> int:
        return len(job_client.call(None, [("PING",)], Budget()))

    for name, function in (("elsewhere", ask_elsewhere), ("redis", ask_redis)):
        job = FunctionJob(function, name=name)
        job.dependency = job_client.identity
        recruiter.install(job, rate=0.1)
    assert outcomes_of(recruiter, "elsewhere", 3) == [Outcome.FAILED, *[Outcome.SKIPPED] * 2]
    assert set(outcomes_of(recruiter, "redis", 10)) == {Outcome.WORKED}
    client.close()


def test_of_two_servers_the_one_that_failed(redis7: RedisServer) -> None:
    here = job_client_of(alive := redis7.client())
    with redis.Redis(host="127.0.0.1", port=1) as dead:
        there = job_client_of(dead)
        asked = []

        def ask_both(slice: Slice) -> int:
            here.call(None, [("PING",)], Budget())
            asked.append(there.call(None, [("PING",)], Budget()))
            return 1

        def ask(job_client: object) -> FunctionJob:
            return FunctionJob(lambda slice: len(job_client.call(None, [("PING",)], Budget())))  # type: ignore[attr-defined]

        recruiter = always(seconds=2.0, clock=JumpingClock(), breaker=BREAKER_SECONDS)
        both, first, second = FunctionJob(ask_both, name="both"), ask(here), ask(there)
        both.dependency = first.dependency = here.identity
        second.dependency = there.identity
        first.name, second.name = "first", "second"
        for job in (both, first, second):
            recruiter.install(job, rate=0.1)
        assert recruiter.perform("both") is Outcome.FAILED
        assert recruiter.perform("both") is Outcome.SKIPPED
        assert recruiter.perform("second") is Outcome.SKIPPED
        assert set(outcomes_of(recruiter, "first", 10)) == {Outcome.WORKED}
        assert not asked
    alive.close()
