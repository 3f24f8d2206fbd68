"""Laws 1 and 2: a recruit's behaviour when the server fails at any one of its commands.

A listening socket counts: one connection, each command once, and nothing after the fault. The
caller is held no longer than its slice and one time-out.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from redis.connection import Connection

from support.faults import (
    FAULTS,
    HANDSHAKE,
    HELD_SECONDS,
    PATIENT,
    SECONDS,
    SHORT_TIMEOUT,
    PurePython,
    assert_nothing_sent_after,
    client_of,
    reaching,
    timed,
)
from support.faulty_server import FaultyServer, black_hole
from support.jumping_clock import JumpingClock
from support.patience import PATIENT_SECONDS, set_timeout
from support.servers import RedisServer, ServerBrokenError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Outcome, Recruiter
from workstealing.store import attempt
from workstealing.store.budget import TIMEOUT_SECONDS, Budget
from workstealing.store.job_client import job_client_of
from workstealing.structures import VolatileHashes
from workstealing.testing import always

HOUR_MS = 3_600_000
NAMESPACE = "faults"
# So that no rest of a twentieth of it ends while a busy machine comes to the next line.
BREAKER_SECONDS = 1_000.0


def fill(server: RedisServer) -> None:
    """Write one hash with five fields that will have expired on the clock of the job."""
    server.wipe()
    hashes = VolatileHashes(server.client(db=1), namespace=NAMESPACE, backend="emulated")
    hashes.hsetex("h", mapping={f"f{i}": i for i in range(5)}, ex=60)


def job_on(client: redis.Redis, limit: int = 3) -> HashFieldExpiry:
    hashes = VolatileHashes(client, namespace=NAMESPACE, backend="emulated", clock_shift_ms=HOUR_MS)
    return HashFieldExpiry(hashes, limit=limit, random=lambda: 0.0)


def recruiter_for(job: HashFieldExpiry, clock: JumpingClock, seconds: float = SECONDS) -> Recruiter:
    recruiter = always(seconds=seconds, clock=clock, breaker=BREAKER_SECONDS)
    recruiter.install(job, rate=1.0)
    return recruiter


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timeout(monkeypatch, SHORT_TIMEOUT)


def test_the_timeout_of_production() -> None:
    assert TIMEOUT_SECONDS == 0.050


@pytest.fixture
def whole_slice(
    backend: RedisServer, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The names of all commands of a slice that finds one hash with five expired fields."""
    fill(backend)
    set_timeout(monkeypatch, PATIENT_SECONDS)
    recruiter = recruiter_for(job_on(client_of(faulty.port)), JumpingClock(), PATIENT)
    assert recruiter.enlist() is Outcome.WORKED
    assert faulty.connections == 1
    # Handshake, layout, two looks, the reads, the transaction: a round trip each.
    assert len({seen.batch for seen in faulty.seen}) == 6
    set_timeout(monkeypatch, SHORT_TIMEOUT)
    return faulty.names()


@pytest.mark.real
class TestHashFieldExpiry:
    """One recruit of the job, through enlist()."""

    def test_a_slice_without_a_fault(self, whole_slice: list[str]) -> None:
        # The handshake is AUTH and SELECT alone: no HELLO, no CLIENT SETINFO, no maintenance.
        assert whole_slice[:3] == [*HANDSHAKE, "HGETALL"]
        attempts = whole_slice[whole_slice.index("WATCH") :]
        assert [attempts.count(name) for name in ("WATCH", "MULTI", "HDEL", "EXEC")] == [1] * 4
        assert attempts[-1] == "EXEC"

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", FAULTS)
    def test_a_fault_at_each_command_in_turn(
        self, backend: RedisServer, faulty: FaultyServer, whole_slice: list[str], kind: str
    ) -> None:
        for at in range(1, len(whole_slice) + 1):
            is_alike = whole_slice[at - 1] in whole_slice[: at - 1]
            if whole_slice[at - 2 : at + 1] == ["ZRANGE"] * 3 or (kind == "drip" and is_alike):
                # The commands in the middle of a row are all alike, and a drip takes its time.
                continue
            self.assert_fault_is_borne(
                backend, faulty, whole_slice, at=at, kind=kind, parser=Connection
            )

    @pytest.mark.parametrize("kind", ["half", "half_silent", "garbage", "drip"])
    def test_without_hiredis(
        self, backend: RedisServer, faulty: FaultyServer, whole_slice: list[str], kind: str
    ) -> None:
        for at in (1, 3, 4, len(whole_slice) - 6, len(whole_slice)):
            self.assert_fault_is_borne(
                backend, faulty, whole_slice, at=at, kind=kind, parser=PurePython
            )

    def assert_fault_is_borne(
        self,
        backend: RedisServer,
        faulty: FaultyServer,
        whole_slice: list[str],
        *,
        at: int,
        kind: str,
        parser: type[Connection],
    ) -> None:
        def run() -> tuple[Recruiter, Outcome, float]:
            fill(backend)
            faulty.reset()
            faulty.fail(at, kind)
            job = job_on(client_of(faulty.port, parser))
            recruiter = recruiter_for(job, JumpingClock())
            outcome, held = timed(recruiter.enlist)
            if kind != "drip" and outcome is Outcome.OUT_OF_TIME:
                raise ServerBrokenError("a busy machine left less of the slice than a time-out")
            return recruiter, outcome, held

        recruiter, outcome, held = reaching(faulty, at, run)
        context = f"{kind} at command {at} ({whole_slice[at - 1]})"
        assert held < HELD_SECONDS, context
        assert_nothing_sent_after(faulty, at, kind, whole_slice)
        if kind == "drip" and outcome is Outcome.WORKED:
            # The last replies are short enough to come in time.
            assert at > len(whole_slice) - 5, context
            return
        if kind == "drip" and outcome is Outcome.OUT_OF_TIME:
            # A byte comes every 20 ms: the server is slow, but alive.
            assert at > 1, context
            assert recruiter.enlist() is not Outcome.SKIPPED, context
            assert faulty.connections == 1, context
            return
        assert outcome is Outcome.FAILED, context
        assert recruiter.enlist() is Outcome.SKIPPED, context
        assert faulty.connections == 1, context

    def test_an_unexpected_error_reply_fails_the_slice_and_is_no_reason_to_stay_away(
        self,
        backend: RedisServer,
        faulty: FaultyServer,
        whole_slice: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        set_timeout(monkeypatch, PATIENT_SECONDS)
        for at in range(1, len(whole_slice) + 1):
            fill(backend)
            faulty.reset()
            faulty.fail(at, "error")
            recruiter = recruiter_for(job_on(client_of(faulty.port)), JumpingClock(), PATIENT)
            outcome = recruiter.enlist()
            assert faulty.connections == 1, at
            names = [name for name in faulty.names() if name != "UNWATCH"]
            assert names == whole_slice[: len(names)], at
            if whole_slice[at - 1] == "ZRANGE" and at < len(whole_slice) - 8:
                # One due index cannot be read: the slice goes on with the others.
                assert outcome in (Outcome.FAILED, Outcome.WORKED)
            elif whole_slice[at - 1] == "ZCOUNT":
                # Without the count the backlog is unknown, but the slice has its work.
                assert outcome is Outcome.WORKED, at
            else:
                assert outcome is Outcome.FAILED, at
            # The server answers, so the breaker stays closed; what is left is found again.
            assert recruiter.enlist() in (Outcome.WORKED, Outcome.IDLE), at

    @pytest.mark.parametrize(
        ("reply", "expected"),
        [
            (b"-LOADING Redis is loading the dataset in memory", (True, True)),
            (b"-ERR max number of clients reached", (True, True)),
            (b"-READONLY You can't write against a read only replica.", (False, True)),
            (b"-MASTERDOWN Link with MASTER is down", (False, True)),
            (b"-NOREPLICAS Not enough good replicas to write.", (False, True)),
            (b"-BUSY Redis is busy running a script.", (False, False)),
            (b"-UNKILLABLE Sorry the script already executed write commands", (False, False)),
            (b"-CLUSTERDOWN The cluster is down", (False, False)),
            (b"-TRYAGAIN Multiple keys request during rehashing of slot", (False, False)),
            (b"-MISCONF Redis is configured to save RDB snapshots", (False, False)),
        ],
    )
    def test_error_replies_that_redis_has(
        self,
        backend: RedisServer,
        faulty: FaultyServer,
        reply: bytes,
        expected: tuple[bool, bool],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        is_fault, closes = expected
        set_timeout(monkeypatch, PATIENT_SECONDS)
        fill(backend)
        # The layout is the first thing that is asked for.
        faulty.error_reply = reply + b"\r\n"
        faulty.fail(3, "error")
        recruiter = recruiter_for(job_on(client_of(faulty.port)), JumpingClock(), PATIENT)
        # A slot that is moving was only quicker, as another writer may be.
        is_moving = reply.startswith(b"-TRYAGAIN")
        assert recruiter.enlist() is (Outcome.ABORTED if is_moving else Outcome.FAILED)
        # The errors that mean "not now" keep the process away for a while.
        assert (recruiter.enlist() is Outcome.SKIPPED) == is_fault
        # After the errors that mean "not here", the name's present server is asked.
        assert faulty.connections == 1 + (closes and not is_fault)

    def test_forty_milliseconds_for_every_reply(
        self,
        backend: RedisServer,
        faulty: FaultyServer,
        whole_slice: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # On a busy machine such a reply takes longer than the 120 ms that a wait may last.
        set_timeout(monkeypatch, PATIENT_SECONDS)
        fill(backend)
        faulty.reset()
        faulty.fail(1, "slow")
        recruiter = recruiter_for(job_on(client_of(faulty.port)), JumpingClock())
        outcome, held = timed(recruiter.enlist)
        # The server is slow, but alive: this is no fault, and the connection stays.
        assert outcome is Outcome.OUT_OF_TIME
        assert held < HELD_SECONDS
        assert faulty.names() == whole_slice[: len(faulty.names())]
        faulty.fail(0, "cut")
        assert recruiter.enlist() in (Outcome.WORKED, Outcome.OUT_OF_TIME)
        assert faulty.connections == 1

    def test_one_trial_at_a_time_after_the_breakers_period(
        self, backend: RedisServer, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(backend)
        faulty.fail(1, "silent")
        clock = JumpingClock()
        recruiter = recruiter_for(job_on(client_of(faulty.port)), clock, PATIENT)
        assert recruiter.enlist() is Outcome.FAILED
        for trial in range(2, 4):
            clock.jump(1.6 * BREAKER_SECONDS)
            outcomes: list[Outcome] = []
            start = threading.Barrier(8)

            def enlist(start: threading.Barrier = start, to: list[Outcome] = outcomes) -> None:
                start.wait()
                to.append(recruiter.enlist())

            threads = [threading.Thread(target=enlist) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(outcome.value for outcome in outcomes) == ["failed"] + ["skipped"] * 7
            assert faulty.connections == trial
        clock.jump(1.6 * BREAKER_SECONDS)
        faulty.fail(0, "cut")
        set_timeout(monkeypatch, PATIENT_SECONDS)
        assert recruiter.enlist() is Outcome.WORKED

    def test_a_server_that_takes_no_connection(self, backend: RedisServer) -> None:
        with black_hole() as port:
            clock = JumpingClock()
            recruiter = recruiter_for(job_on(client_of(port)), clock)
            outcome, held = timed(recruiter.enlist)
            assert outcome is Outcome.FAILED
            assert held < HELD_SECONDS
            assert recruiter.enlist() is Outcome.SKIPPED

    def test_a_port_that_refuses(self, faulty: FaultyServer) -> None:
        faulty.stop()
        recruiter = recruiter_for(job_on(client_of(faulty.port)), JumpingClock())
        outcome, held = timed(recruiter.enlist)
        assert outcome is Outcome.FAILED
        assert held < HELD_SECONDS
        assert recruiter.enlist() is Outcome.SKIPPED

    def test_name_resolution_that_hangs(
        self, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []
        release = threading.Event()

        def hang(*args: Any, **options: Any) -> list[Any]:
            asked.append(args)
            release.wait(120)
            raise OSError("no such name")

        monkeypatch.setattr("socket.getaddrinfo", hang)
        clock = JumpingClock()
        client = redis.Redis(host="redis.invalid", port=faulty.port)
        recruiter = recruiter_for(job_on(client), clock)
        try:
            for _ in range(3):
                outcome, held = timed(recruiter.enlist)
                assert outcome is Outcome.FAILED
                assert held < HELD_SECONDS
                assert recruiter.enlist() is Outcome.SKIPPED
                clock.jump(1.6 * BREAKER_SECONDS)
            with pytest.raises(
                redis.TimeoutError, match=r"redis\.invalid was not resolved in time"
            ):
                job_client_of(client).call(None, [("PING",)], Budget(None, 0.05))
            # One thread waits for the name, however often it was wanted.
            assert len(asked) == 1
        finally:
            release.set()

    def test_an_idle_connection_that_the_server_closed_is_replaced(
        self, backend: RedisServer, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_timeout(monkeypatch, PATIENT_SECONDS)
        fill(backend)
        recruiter = recruiter_for(job_on(client_of(faulty.port)), JumpingClock(), PATIENT)
        assert recruiter.enlist() is Outcome.WORKED
        assert recruiter.enlist() is Outcome.WORKED
        assert faulty.connections == 1
        faulty.close_idle()
        assert recruiter.enlist() is Outcome.IDLE
        assert faulty.connections == 2
        assert faulty.names().count("AUTH") == 2

    @pytest.mark.parametrize("connection_class", [Connection, PurePython])
    def test_a_reply_too_many_is_never_taken_for_the_next_one(
        self,
        backend: RedisServer,
        faulty: FaultyServer,
        connection_class: type[Connection],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        set_timeout(monkeypatch, PATIENT_SECONDS)
        client = client_of(faulty.port, connection_class)
        backend.client(db=1).set("a", "1")
        for surplus in (1, 2, 3):
            faulty.extra_reply = b""
            with attempt(client, "a") as current:
                assert current.read(("GET", "a")) == [b"1"]
                faulty.extra_reply = b"+surplus\r\n" * surplus
                with pytest.raises(redis.ConnectionError):
                    # The rest may come with the right reply or a moment later.
                    _ = current.read(("GET", "a")), current.read(("GET", "a"))
            assert faulty.connections == surplus
