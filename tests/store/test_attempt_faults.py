"""Laws 1 and 2 for attempt() itself: the server fails at any one of its commands."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.faults import (
    FAULTS,
    HANDSHAKE,
    HELD_SECONDS,
    PATIENT,
    SECONDS,
    SHORT_TIMEOUT,
    assert_nothing_sent_after,
    client_of,
    reaching,
    timed,
)
from support.faulty_server import FaultyServer
from support.patience import PATIENT_SECONDS, set_timeout
from support.servers import RedisServer, ServerBrokenError
from workstealing.errors import OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store import attempt


@pytest.fixture(autouse=True)
def _short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    set_timeout(monkeypatch, SHORT_TIMEOUT)


ATTEMPT = [*HANDSHAKE, "WATCH", "GET", "GET", "MULTI", "SET", "INCR", "EXEC"]


def one_attempt(client: redis.Redis, seconds: float = SECONDS) -> list[Any]:
    with attempt(client, "{a}1", "{a}2", slice=Slice(5, seconds)) as current:
        (value,) = current.read(("GET", "{a}1"))
        current.read(("GET", "{a}2"))
        return current.commit(("SET", "{a}2", value or 0), ("INCR", "{a}1"))


def is_done(client: redis.Redis) -> bool:
    try:
        one_attempt(client)
    except (redis.ConnectionError, redis.TimeoutError, OutOfTime):
        # A reply that drips in is late, and no fault.
        return False
    return True


def read_and_raise(client: redis.Redis, error: BaseException) -> None:
    with attempt(client, "{a}1", slice=Slice(5, PATIENT)) as current:
        current.read(("GET", "{a}1"))
        raise error


@pytest.mark.real
class TestAttempt:
    """attempt() itself."""

    def test_an_attempt_sends_what_these_tests_expect(
        self, backend: RedisServer, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_timeout(monkeypatch, PATIENT_SECONDS)
        backend.client(db=1).set("{a}1", 7)
        assert one_attempt(client_of(faulty.port), PATIENT) == [b"OK", 8]
        assert faulty.names() == ATTEMPT

    @pytest.mark.parametrize("kind", FAULTS)
    def test_a_fault_at_each_command_in_turn(
        self, backend: RedisServer, faulty: FaultyServer, kind: str
    ) -> None:
        for at in range(1, len(ATTEMPT) + 1):

            def run(at: int = at) -> tuple[bool, float]:
                backend.client(db=1).set("{a}1", 7)
                faulty.reset()
                faulty.fail(at, kind)
                return timed(lambda: is_done(client_of(faulty.port)))

            done, held = reaching(faulty, at, run)
            assert held < HELD_SECONDS
            assert not done or (kind == "drip" and at > len(ATTEMPT) - 4), f"{kind} at {at}"
            assert_nothing_sent_after(faulty, at, kind, ATTEMPT)

    @pytest.mark.parametrize("kind", FAULTS)
    def test_a_fault_at_unwatch_hides_no_error_of_the_jobs_own(
        self,
        backend: RedisServer,
        faulty: FaultyServer,
        kind: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def run() -> tuple[redis.Redis, BaseException | None]:
            faulty.reset()
            faulty.fail(5, kind)
            client = client_of(faulty.port)
            try:
                read_and_raise(client, KeyError("the job's own"))
            except redis.TimeoutError as error:
                # Ten times in a row it would be UNWATCH, and not a reply that came late.
                raise ServerBrokenError("a reply before UNWATCH came too late") from error
            except Exception as error:  # noqa: BLE001 - looked at below
                return client, error
            return client, None

        client, error = reaching(faulty, 5, run)
        assert isinstance(error, KeyError)
        assert faulty.names() == [*HANDSHAKE, "WATCH", "GET", "UNWATCH"]
        if kind != "drip":
            faulty.fail(0, "cut")
            set_timeout(monkeypatch, PATIENT_SECONDS)
            assert one_attempt(client, PATIENT)[0] == b"OK"
            assert faulty.connections == 2

    def test_what_is_no_exception_does_not_wait_for_unwatch(
        self, backend: RedisServer, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_timeout(monkeypatch, PATIENT_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            read_and_raise(client_of(faulty.port), KeyboardInterrupt())
        assert faulty.names() == [*HANDSHAKE, "WATCH", "GET"]

    def test_a_job_that_catches_the_fault_cannot_commit_without_its_watch(
        self, backend: RedisServer, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_timeout(monkeypatch, PATIENT_SECONDS)
        faulty.fail(5, "cut")
        with attempt(client_of(faulty.port), "{a}1", slice=Slice(5, PATIENT)) as current:
            current.read(("GET", "{a}1"))
            with pytest.raises(redis.ConnectionError):
                current.read(("GET", "{a}1"))
            with pytest.raises(redis.ConnectionError, match="an earlier fault has closed"):
                current.commit(("SET", "{a}1", "written without a WATCH"))
        assert faulty.connections == 1
        assert backend.client(db=1).get("{a}1") is None
