"""After a failover, jobs find the new primary, and never trust a replica's data.

Real servers change their roles under a running recruiter.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, sentinel_of, wait_until
from workstealing import Outcome, Recruiter, connect
from workstealing.jobs import HashFieldExpiry
from workstealing.store.budget import Budget
from workstealing.store.job_client import job_client_of
from workstealing.structures import VolatileHashes
from workstealing.testing import always

pytestmark = pytest.mark.real

HOUR_MS = 3_600_000
LIMIT_SECONDS = 180.0


def fill(client: redis.Redis, hashes: int = 20) -> None:
    volatile = VolatileHashes(client, namespace="over", backend="emulated")
    for i in range(hashes):
        volatile.hsetex(f"h{i}", mapping={"a": 1, "b": 2}, ex=60)


def recruiter_on(client: Any) -> Recruiter:
    hashes = VolatileHashes(client, namespace="over", backend="emulated", clock_shift_ms=HOUR_MS)
    recruiter = always(seconds=10.0)
    recruiter.install(HashFieldExpiry(hashes), rate=1.0)
    return recruiter


def until_worked(recruiter: Recruiter) -> list[Outcome]:
    """Recruit until a slice has worked; return the outcomes before it."""
    outcomes: list[Outcome] = []
    until = time.monotonic() + LIMIT_SECONDS
    while (outcome := recruiter.enlist()) is not Outcome.WORKED:
        outcomes.append(outcome)
        assert time.monotonic() < until, outcomes[-20:]
        time.sleep(0.01)
    return outcomes


def demote(server: RedisServer, primary: RedisServer) -> None:
    """Make a server the replica of another one, and wait until it has the other one's data."""
    server.client().replicaof("127.0.0.1", primary.port)

    def is_up() -> bool:
        info = server.client().info("replication")
        return info["role"] == "slave" and info["master_link_status"] == "up"

    wait_until(is_up, "the replica to have its primary's data", seconds=20)


class TestPlainClient:
    @pytest.mark.slow
    def test_it_is_never_idle_on_a_replica_and_goes_on_where_the_name_leads(
        self, start_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = start_redis(7), start_redis(7)
        where = {"redis.example": old.port}
        lookup = socket.getaddrinfo

        def getaddrinfo(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
            if host in where:
                host, port = "127.0.0.1", where[host]
            return lookup(host, port, *args, **options)

        monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
        client = redis.Redis(host="redis.example", port=6379)
        recruiter = recruiter_on(client)
        fill(client, 1)
        until_worked(recruiter)
        assert recruiter.enlist() is Outcome.IDLE
        # The new primary is still empty, so the old one is, too: it looks idle.
        demote(old, new)
        assert {recruiter.enlist() for _ in range(10)} == {Outcome.FAILED}
        # This one has garbage, which cannot be written.
        fill(new.client())
        wait_until(lambda: old.client().exists("h19") == 1, "the replica to follow")
        assert {recruiter.enlist() for _ in range(10)} == {Outcome.FAILED}
        where["redis.example"] = new.port
        assert set(until_worked(recruiter)) <= {Outcome.FAILED, Outcome.SKIPPED}
        client.close()

    def test_a_server_that_does_not_tell_its_role_is_believed(
        self, start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis(7)
        server.client().execute_command("ACL SETUSER mute on >secret ~* &* +@all -role")
        client = redis.Redis(host="127.0.0.1", port=server.port, username="mute", password="secret")
        recruiter = recruiter_on(client)
        fill(client, 1)
        until_worked(recruiter)
        assert {recruiter.enlist() for _ in range(5)} == {Outcome.IDLE}
        client.close()


class TestSentinel:
    @pytest.fixture
    def pair(self, start_redis: Callable[..., RedisServer]) -> tuple[RedisServer, RedisServer]:
        return start_redis(7), start_redis(7)

    @pytest.fixture
    def sentinel(self, pair: tuple[RedisServer, RedisServer], tmp_path: Path) -> Iterator[int]:
        with sentinel_of(pair[0], tmp_path) as port:
            yield port

    @pytest.mark.slow
    @pytest.mark.parametrize("given", ["the user's own", "a URL", "a URL, jobs alone"])
    @pytest.mark.parametrize("old_is", ["demoted", "dead"])
    def test_jobs_come_to_the_new_primary_although_the_application_sends_nothing(
        self, pair: tuple[RedisServer, RedisServer], sentinel: int, old_is: str, given: str
    ) -> None:
        old, new = pair
        if given == "the user's own":
            client = Sentinel([("127.0.0.1", sentinel)]).master_for("main")
        else:
            client = connect(f"redis+sentinel://127.0.0.1:{sentinel}/main")
        only_jobs = given == "a URL, jobs alone"
        fill(old.client() if only_jobs else client, 1)
        recruiter = recruiter_on(client)
        until_worked(recruiter)
        admin = redis.Redis(port=sentinel)
        admin.execute_command("SENTINEL REMOVE", "main")
        admin.execute_command("SENTINEL MONITOR", "main", "127.0.0.1", new.port, 1)
        admin.close()
        fill(new.client())
        if old_is == "demoted":
            demote(old, new)
        else:
            old.kill()
        assert set(until_worked(recruiter)) <= {Outcome.FAILED, Outcome.SKIPPED}
        job_client = job_client_of(client)
        # The application's pool still names the old one, or none.
        told = client.connection_pool.master_address
        assert told == (None if only_jobs else ("127.0.0.1", old.port))
        assert job_client.nodes() == [("127.0.0.1", new.port)]
        assert job_client.call(job_client.nodes()[0], [("PING",)], Budget()) == [b"PONG"]
        client.close()
