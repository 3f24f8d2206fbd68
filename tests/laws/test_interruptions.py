"""A host's time-out raised between any two steps of a real slice leaves nothing behind.

The next recruit is served, and no connection with a reply that nobody has read, with a WATCH that
nobody has ended or without its database is ever used again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from support.interruptions import Interruption, alarms, interrupt, place_of, points_of
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.proof import seed, tried
from support.servers import RedisServer
from workstealing import Outcome, Recruiter
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.slice_slot import SLICE_SLOT
from workstealing.store.attempt import Attempt, attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import OneAttempt
from workstealing.store.job_client import JobClient, job_client_of
from workstealing.structures import VolatileHashes

AHEAD_MS = 3_600_000


def idle_of(job_client: JobClient) -> list[OneAttempt]:
    return [each for waiting in job_client._idle.values() for each in waiting]


def check_idle(job_client: JobClient, database: int) -> None:
    """Check that each idle connection answers exactly what it is asked, in its database."""
    idle = idle_of(job_client)
    for connection in idle:
        assert connection.is_at_rest
        asked = [("ECHO", "mine"), ("CLIENT", "INFO")]
        echoed, info = connection.call(asked, Budget(5.0, 5.0))
        assert echoed == b"mine"
        assert f" db={database} ".encode() in info
    # More than one would be a connection that was forgotten and yet kept.
    assert len(idle) <= 1


class Tended:
    """An application with garbage and the recruiter that collects it, in database 3."""

    def __init__(self, redis: RedisServer, seconds: float = 5.0) -> None:
        self.client = redis.client(db=3)
        self.hashes: Any = VolatileHashes(self.client, "items", backend="emulated")
        later: Any = VolatileHashes(
            self.client, "items", backend="emulated", clock_shift_ms=AHEAD_MS
        )
        self.names = 0
        self.job_client = later.job_client
        self.recruiter = Recruiter(
            # A breaker that stays open would hide what else holds recruits back.
            seconds=seconds,
            random=lambda: 0.0,
            breaker=1e-6,
        )
        self.recruiter.reraise(Interruption)
        self.recruiter.install(HashFieldExpiry(later, limit=3), rate=0.5)

    def litter(self, fields: int = 1) -> None:
        """Leave fields in a new hash which the job, an hour ahead, finds expired."""
        self.names += 1
        with self.hashes.pipeline() as pipeline:
            for field in range(fields):
                pipeline.hsetex(f"h{self.names}", mapping={f"f{field}": "v"}, ex=60)
            pipeline.execute()

    def served(self) -> Outcome:
        """Return what becomes of the next recruits, once one has not met another's traces."""
        return self.recruiter.enlist()


@pytest.mark.slow
class TestEveryOpcode:
    def test_of_a_slice_with_an_open_connection(self, redis7: RedisServer) -> None:
        tended = Tended(redis7)
        tended.litter()
        assert tended.served() is Outcome.WORKED
        tended.litter()
        self._interrupt_all(tended, points_of(tended.served), cold=False)

    def test_of_a_slice_that_connects_first(self, redis7: RedisServer) -> None:
        tended = Tended(redis7)
        tended.litter()
        assert tended.served() is Outcome.WORKED
        tended.job_client.close()
        tended.litter()
        points = points_of(tended.served)
        new = [
            each
            for each in points
            if each[0].co_filename.endswith(("connection.py", "job_client.py"))
        ]
        assert len(new) > 300
        self._interrupt_all(tended, new, cold=True)

    @staticmethod
    def _interrupt_all(tended: Tended, points: list[Any], *, cold: bool) -> None:
        landed = 0
        for point in points:
            if cold:
                tended.job_client.close()
            tended.litter()
            raised = interrupt(tended.recruiter.enlist, point)
            landed += raised is not None
            assert raised is None or isinstance(raised, Interruption), place_of(point)
            assert SLICE_SLOT.holder() is None, place_of(point)
            check_idle(tended.job_client, 3)
            tended.litter()
            assert tended.recruiter.enlist() is Outcome.WORKED, place_of(point)
        assert landed > 0.8 * len(points)
        job = next(iter(tended.recruiter.stats()["jobs"].values()))
        assert job["skipped"] == 0


class TestTwice:
    """A second time-out may come while the first one's traces are being removed."""

    def test_a_connection_that_could_not_be_closed_is_not_used_again(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_client = job_client_of(redis7.client())
        job_client.call(None, [("PING",)], Budget())
        (connection,) = idle_of(job_client)
        closing: Callable[..., None] = OneAttempt.disconnect

        def cut_short(self: OneAttempt, *_: object) -> None:
            raise Interruption

        def reply(self: OneAttempt) -> Any:
            raise Interruption

        with monkeypatch.context() as patch:
            patch.setattr(OneAttempt, "_reply", reply)
            patch.setattr(OneAttempt, "disconnect", cut_short)
            with pytest.raises(Interruption):
                job_client.call(None, [("ECHO", "another's")], Budget())
        assert OneAttempt.disconnect is closing
        assert connection not in idle_of(job_client)
        assert job_client.call(None, [("ECHO", "mine")], Budget(5.0, 5.0)) == [b"mine"]

    def test_a_watch_that_could_not_be_ended_is_not_lent_on(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = redis7.client()

        def never(self: object) -> None:
            raise Interruption

        with monkeypatch.context() as patch:
            patch.setattr(Attempt, "release", never)
            with pytest.raises(Interruption), attempt(client, "k") as first:
                first.read(("GET", "k"))
        client.set("k", "changed")
        with attempt(client, "other") as second:
            second.commit(("SET", "other", "1"))


class TestSignals:
    # Python itself drops what is raised in a finalizer, redis-py's among them.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("seconds", [0.002, 0.05])
    def test_thousands_at_random_moments(self, redis7: RedisServer, seconds: float) -> None:
        tended = Tended(redis7, seconds)
        chance = random.Random(seconds * seed())
        landed = 0
        with alarms() as alarm:
            while landed < 1_500:
                if landed % 10 == 0:
                    tended.litter(30)
                try:
                    alarm(chance.uniform(2e-5, 4e-3))
                    for _ in range(200):
                        tended.recruiter.enlist()
                    alarm(0)
                except Interruption:
                    landed += 1
                    tried("a signal handler that raises at a random moment of a slice")
                    check_idle(tended.job_client, 3)
        assert SLICE_SLOT.holder() is None
        job = next(iter(tended.recruiter.stats()["jobs"].values()))
        assert job["worked"] > 0
        assert job["recruited"] > 1_500
        assert job["skipped"] < 0.01 * job["recruited"]
        # Of the same recruiter, whose slices may be too short for a busy machine.
        tended.litter()
        name = next(iter(tended.recruiter.stats()["jobs"]))
        assert tended.recruiter.perform(name, seconds=5.0) is Outcome.WORKED
