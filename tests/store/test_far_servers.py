"""Servers far away, or on a machine short of CPU: slow is not dead, and jobs make progress.

A real relay delays each round trip. No test here is judged by the clock: each goes on until so many
fields have been collected, and its limit is many times the usual time.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.delaying_relay import DelayingRelay
from support.faulty_server import FaultyServer
from support.patience import PATIENT_SECONDS, ROUNDING_SECONDS, set_timeout
from support.processes import end, spawn
from support.servers import RedisServer
from workstealing import Outcome, Recruiter
from workstealing.errors import OutOfTime, Unanswered
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.slice import TRIPS, Slice
from workstealing.store import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import SENT, Command
from workstealing.store.job_client import job_client_of
from workstealing.structures import VolatileHashes
from workstealing.testing import always

pytestmark = pytest.mark.real

HOUR_MS = 3_600_000
LIMIT_SECONDS = 180.0
MANY = 2_000


@pytest.fixture
def relay(backend: RedisServer) -> Iterator[DelayingRelay]:
    backend.wipe()
    with DelayingRelay(backend.port) as relay:
        yield relay


def fill(server: RedisServer, hashes: int = 40, fields: int = 5) -> None:
    """Write hashes whose fields will have expired on the clock of the job."""
    volatile = VolatileHashes(server.client(), namespace="far", backend="emulated")
    for i in range(hashes):
        volatile.hsetex(f"h{i}", mapping={f"f{j}": j for j in range(fields)}, ex=60)


def expiry(client: redis.Redis) -> HashFieldExpiry:
    hashes = VolatileHashes(client, namespace="far", backend="emulated", clock_shift_ms=HOUR_MS)
    return HashFieldExpiry(hashes)


def recruiter_on(port: int, **options: Any) -> tuple[Recruiter, redis.Redis]:
    """Return a recruiter of a process that has just begun, and the client that it needs."""
    client = redis.Redis(host="127.0.0.1", port=port)
    recruiter = always(**options)
    recruiter.install(expiry(client), rate=1.0)
    return recruiter, client


def until_collected(
    recruiter: Recruiter, server: RedisServer, left: int = 0, seconds: float = LIMIT_SECONDS
) -> list[Outcome]:
    """Recruit until at most so many hashes are left; return the outcomes.

    It also waits until so many items were reported, because an unanswered commit reports none.
    """
    client = server.client()
    outcomes: list[Outcome] = []
    until = time.monotonic() + seconds
    while len(client.keys("h[0-9]*")) > left:
        assert time.monotonic() < until, f"{len(outcomes)} slices: {outcomes[-20:]}"
        outcomes.append(recruiter.enlist())
        # Hardly any process has more than a recruit every two milliseconds.
        time.sleep(0.002)
    return outcomes


def learn_a_quick_way(client: redis.Redis) -> None:
    """Ask until a round trip is known to be quick, however busy this machine is."""
    job_client = job_client_of(client)
    until = time.monotonic() + LIMIT_SECONDS
    while (job_client.round_trip() or 1.0) > 0.003:
        assert time.monotonic() < until
        job_client.call(None, [("PING",)], Budget(None, PATIENT_SECONDS))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let deadlines alone end the waits of jobs: a busy machine is no silent server."""
    set_timeout(monkeypatch, PATIENT_SECONDS)


@pytest.mark.usefixtures("patient")
class TestRoundTrips:
    @pytest.mark.parametrize("milliseconds", [0.1, 1, 3, 5, 10])
    def test_collecting_goes_on_with_the_default_slice(
        self, backend: RedisServer, relay: DelayingRelay, milliseconds: float
    ) -> None:
        fill(backend)
        relay.seconds = milliseconds / 1000
        recruiter, client = recruiter_on(relay.port)
        outcomes = until_collected(recruiter, backend)
        # A late reply costs neither a connection nor a breaker. A slice may end while it connects.
        connecting = next(i for i, each in enumerate(outcomes) if each is not Outcome.OUT_OF_TIME)
        assert 1 <= relay.connections <= 1 + connecting
        assert Outcome.FAILED not in outcomes
        client.close()

    @pytest.mark.parametrize("milliseconds", [3, 10])
    def test_a_process_that_has_just_begun_collects_within_a_few_slices(
        self, backend: RedisServer, relay: DelayingRelay, milliseconds: float
    ) -> None:
        fill(backend)
        relay.seconds = milliseconds / 1000
        needed = []
        for left in (39, 38, 37, 36, 35):
            recruiter, client = recruiter_on(relay.port)
            needed.append(len(until_collected(recruiter, backend, left)))
            client.close()
        # Four steps lead from 10 ms to the longest; the median bears a busy moment.
        assert sorted(needed)[2] <= 8, needed

    def test_the_slice_is_shortened_again_when_the_way_is_short_again(
        self, backend: RedisServer, relay: DelayingRelay
    ) -> None:
        fill(backend, hashes=400)
        relay.seconds = 0.010
        recruiter, client = recruiter_on(relay.port)
        installed = recruiter._roster.get("hash_field_expiry.far")
        until = time.monotonic() + LIMIT_SECONDS
        while installed.slice_length.seconds(0.010) <= 0.020:
            assert time.monotonic() < until
            recruiter.enlist()
            time.sleep(0.002)
        relay.seconds = 0.0
        while installed.slice_length.seconds(0.010) > 0.010:
            assert time.monotonic() < until
            recruiter.enlist()
            time.sleep(0.002)
        client.close()

    def test_a_host_that_allows_no_more_is_told_what_would_do(
        self, backend: RedisServer, relay: DelayingRelay, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(backend)
        relay.seconds = 0.020
        recruiter, client = recruiter_on(relay.port, longest=0.010)
        outcomes = {recruiter.enlist() for _ in range(20)}
        assert outcomes == {Outcome.OUT_OF_TIME}
        assert relay.connections == 1
        (line,) = {record.message for record in caplog.records}
        assert "its slice of 10 ms, the longest that is allowed" in line
        # On a busy machine the first slice may end before its first round trip has told anything:
        # then it is only known that 10 ms are too little.
        found = re.search(r"install it with longer slices \(seconds=([\d.]+)\)", line)
        assert found, line
        trip = re.search(r"at round trips of ([\d.]+) ms", line)
        enough = TRIPS * float(trip[1]) / 1000 if trip else 0.0
        # The line rounds the trip to three digits.
        assert float(found[1]) >= max(2 * 0.010, 0.99 * enough)
        client.close()

    def test_it_is_not_begun_where_it_does_not_fit(
        self, backend: RedisServer, relay: DelayingRelay
    ) -> None:
        client = redis.Redis(host="127.0.0.1", port=relay.port)
        job_client = job_client_of(client)
        relay.seconds = 0.3
        for _ in range(3):
            job_client.call(None, [("PING",)], Budget(None, PATIENT_SECONDS))
        assert 0.25 < (job_client.round_trip() or 0) < 10.0
        before = backend.client().info("commandstats").get("cmdstat_get", {"calls": 0})["calls"]
        with (
            pytest.raises(OutOfTime, match=r"too little for 2 round trips of \d+"),
            attempt(client, "k", slice=Slice(1, 0.5)) as current,
        ):
            current.read(("GET", "k"))
        stats = backend.client().info("commandstats")
        assert stats.get("cmdstat_get", {"calls": 0})["calls"] == before
        client.close()


class TestLateReplies:
    """Replies that a deadline has cut off are taken off the connection before anything else."""

    @pytest.mark.usefixtures("patient")
    def test_a_late_reply_is_never_taken_for_the_next_one(
        self, backend: RedisServer, relay: DelayingRelay
    ) -> None:
        backend.client().mset({"a": "1", "b": "2"})
        client = redis.Redis(host="127.0.0.1", port=relay.port)
        job_client = job_client_of(client)
        learn_a_quick_way(client)
        late, until = 0, time.monotonic() + LIMIT_SECONDS
        while late < 10:
            assert time.monotonic() < until
            learn_a_quick_way(client)
            relay.seconds = 0.020
            try:
                found = job_client.call(None, [("GET", "a"), ("GET", "a")], Budget(0.005))
                # A process that was kept from running finds the late reply before it looks.
                assert found == [b"1", b"1"]
            except Unanswered:
                late += 1
            except OutOfTime:
                pass
            relay.seconds = 0.0
            for _ in range(3):
                assert job_client.call(None, [("GET", "b")], Budget(None, PATIENT_SECONDS)) == [
                    b"2"
                ]
        assert relay.connections == 1
        client.close()

    @pytest.mark.usefixtures("patient")
    def test_the_watch_that_may_still_stand_is_undone(
        self, backend: RedisServer, relay: DelayingRelay
    ) -> None:
        client = redis.Redis(host="127.0.0.1", port=relay.port)
        job_client = job_client_of(client)
        learn_a_quick_way(client)
        relay.seconds = 1.0
        with (
            pytest.raises(Unanswered),
            attempt(client, "k", slice=Slice(1, 0.5)) as current,
        ):
            current.read(("GET", "k"))
        relay.seconds = 0.0
        # The first command waits for the owed replies; then another writer comes.
        job_client.call(None, [("PING",)], Budget())
        backend.client().set("k", "another writer's")
        with attempt(client, "other") as current:
            assert current.commit(("SET", "other", 1)) == [b"OK"]
        assert relay.connections == 1
        client.close()

    @pytest.mark.usefixtures("patient")
    def test_a_commit_without_an_answer_is_not_reported_as_done(
        self, backend: RedisServer, relay: DelayingRelay
    ) -> None:
        client = redis.Redis(host="127.0.0.1", port=relay.port)
        learn_a_quick_way(client)
        with attempt(client, "k", slice=Slice(1, 0.5)) as current:
            current.read(("GET", "k"))
            relay.seconds = 1.0
            with pytest.raises(Unanswered):
                current.commit(("SET", "k", "late"))
        relay.seconds = 0.0
        with attempt(client, "k") as current:
            assert current.read(("GET", "k")) == [b"late"]
        assert relay.connections == 1
        client.close()

    def test_a_server_that_falls_silent_is_a_fault_after_a_whole_time_out_over_slices(
        self, faulty: FaultyServer
    ) -> None:
        client = redis.Redis(host="127.0.0.1", port=faulty.port)
        job_client = job_client_of(client)
        learn_a_quick_way(client)
        faulty.fail(len(faulty.seen) + 1, "silent")
        ends: list[type[BaseException]] = []
        begun = time.monotonic()
        while redis.TimeoutError not in ends:
            with pytest.raises((OutOfTime, redis.TimeoutError)) as raised:
                job_client.call(None, [("GET", "k")], Budget(0.010))
            # A slice may be over before it has asked.
            if ends or raised.type is not OutOfTime:
                ends.append(raised.type)
        assert ends[0] is Unanswered
        assert time.monotonic() - begun >= 0.050 - ROUNDING_SECONDS
        # It was asked once, whatever came after.
        assert faulty.names().count("GET") == 1
        client.close()

    def test_a_reply_that_comes_in_bits_is_not_waited_for_by_every_slice(
        self, faulty: FaultyServer
    ) -> None:
        client = redis.Redis(host="127.0.0.1", port=faulty.port)
        job_client = job_client_of(client)
        learn_a_quick_way(client)
        # A byte comes every 20 ms: it takes seconds, and no wait is a whole time-out.
        text = "x" * 150
        faulty.fail(len(faulty.seen) + 1, "drip")
        ends: list[type[BaseException]] = []
        while redis.TimeoutError not in ends:
            with pytest.raises((OutOfTime, redis.TimeoutError)) as raised:
                job_client.call(None, [("ECHO", text)], Budget(0.010))
            # A slice may be over before it has asked.
            if ends or raised.type is not OutOfTime:
                ends.append(raised.type)
            assert len(ends) < 30
        assert ends[0] is Unanswered
        assert faulty.names().count("ECHO") == 1
        client.close()


@pytest.mark.slow
class TestCpu:
    def test_a_machine_short_of_cpu_opens_no_breaker_for_long(self, backend: RedisServer) -> None:
        backend.wipe()
        fill(backend, hashes=MANY // 5)
        burner = [sys.executable, "-c", "while True: sum(range(20_000))"]
        burners = [spawn(burner) for _ in range(2 * (os.cpu_count() or 1))]
        try:
            recruiter, client = recruiter_on(backend.port)
            outcomes = until_collected(recruiter, backend, seconds=3 * LIMIT_SECONDS)
        finally:
            for each in burners:
                end(each)
        client.close()
        # No breaker opens by mistake, so hardly any slice is skipped.
        assert outcomes.count(Outcome.SKIPPED) <= len(outcomes) / 2


class TestTheServersOwnTime:
    @pytest.fixture(autouse=True)
    def _asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SENT, "asks_time", True)
        monkeypatch.setattr(SENT, "seconds", 0.0)
        monkeypatch.setattr(SENT, "server_seconds", 0.0)

    def test_it_is_without_the_way(self, relay: DelayingRelay) -> None:
        far = redis.Redis(host="127.0.0.1", port=relay.port)
        client = job_client_of(far)
        relay.seconds = 0.3
        commands: list[Command] = [("MULTI",), ("SET", "a", 1), ("GET", "a"), ("EXEC",)]
        replies = client.call(client.nodes()[0], commands, Budget(None, PATIENT_SECONDS))
        assert replies == [b"OK", b"QUEUED", b"QUEUED", [b"OK", b"1"]]
        assert 0 < SENT.server_seconds <= SENT.seconds - 0.3 + ROUNDING_SECONDS

    def test_it_is_the_whole_wait_where_no_reply_comes(self, relay: DelayingRelay) -> None:
        far = redis.Redis(host="127.0.0.1", port=relay.port)
        client = job_client_of(far)
        client.call(client.nodes()[0], [("PING",)], Budget(None, PATIENT_SECONDS))
        SENT.seconds = SENT.server_seconds = 0.0
        relay.seconds = 1.0
        with pytest.raises(Unanswered):
            client.call(client.nodes()[0], [("PING",)], Budget(0.02, PATIENT_SECONDS))
        assert SENT.server_seconds == SENT.seconds > 0

    def test_a_user_without_the_right_gets_all_replies(self, backend: RedisServer) -> None:
        admin = backend.client()
        admin.acl_setuser("far", enabled=True, nopass=True, keys="*", commands=["+@all", "-time"])
        try:
            user = backend.client(username="far", password="x")
            client = job_client_of(user)
            for _ in range(2):
                replies = client.call(
                    client.nodes()[0], [("ECHO", "here")], Budget(None, PATIENT_SECONDS)
                )
                assert replies == [b"here"]
                # The second one is not asked, and counts as well.
                assert not SENT.asks_time
        finally:
            admin.acl_deluser("far")
        assert SENT.server_seconds == SENT.seconds > 0
        assert not SENT.asks_time
