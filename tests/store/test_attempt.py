"""Law 3: an attempt is exact. Each end is ABORTED, FAILED or nothing at all, and never another."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from support.faulty_server import FaultyServer
from support.jumping_clock import JumpingClock
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.errors import (
    Aborted,
    CrossSlotError,
    OutOfTime,
    SpentAttemptError,
    Unanswered,
    is_connection_fault,
)
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Job, Outcome
from workstealing.recruiting.slice import Slice
from workstealing.store import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, OneAttempt
from workstealing.store.job_client import job_client_of
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock, always

HOUR_MS = 3_600_000

pytestmark = pytest.mark.real


class Attempting(Job):
    """A job whose slice is one attempt on the key "a", with something happening in between."""

    name = "attempting"
    limit = 5

    def __init__(self, client: redis.Redis, between: Callable[[], Any] = lambda: None) -> None:
        self._client = client
        self._between = between

    def perform(self, slice: Slice) -> int:
        with attempt(self._client, "a", slice=slice) as current:
            current.read(("GET", "a"))
            self._between()
            current.commit(("SET", "a", "mine"))
        return 1


def enlist(job: Job) -> tuple[Outcome, BaseException | None]:
    """Let one caller be recruited; return the outcome and the error behind it."""
    from workstealing.testing import RecordingHooks

    recruiter = always(seconds=1.0, clock=JumpingClock())
    hooks = RecordingHooks()
    recruiter.add_hook(hooks)
    recruiter.install(job, rate=1.0)
    outcome = recruiter.enlist()
    return outcome, hooks.outcomes[0].error


def read_only(client: redis.Redis) -> None:
    with attempt(client, "a") as current:
        current.read(("GET", "a"))


def commit(client: Any, *commands: tuple[Any, ...], keys: tuple[str, ...] = ("a",)) -> list[Any]:
    with attempt(client, *keys) as current:
        current.read(("GET", keys[0]))
        return current.commit(*commands)


def test_only_execs_nil_is_aborted(redis7: RedisServer) -> None:
    other = redis7.client()
    outcome, error = enlist(Attempting(redis7.client(), lambda: other.set("a", "theirs")))
    assert outcome is Outcome.ABORTED
    assert error is None
    assert other.get("a") == b"theirs"


def test_a_write_that_changes_nothing_aborts_nobody(redis7: RedisServer) -> None:
    other = redis7.client()
    other.sadd("s", "member")

    def attempt_on_the_set() -> list[Any]:
        with attempt(redis7.client(), "s") as current:
            current.read(("SCARD", "s"))
            other.sadd("s", "member")
            return current.commit(("SADD", "s", "another"))

    assert attempt_on_the_set() == [1]


def test_a_connection_lost_while_watching_is_failed(
    redis7: RedisServer, faulty: FaultyServer
) -> None:
    client = redis.Redis(host="127.0.0.1", port=faulty.port)
    outcome, error = enlist(Attempting(client, faulty.close_idle))
    assert outcome is Outcome.FAILED
    assert error is not None
    assert is_connection_fault(error)
    assert faulty.names() == ["WATCH", "GET"]
    assert redis7.client().get("a") is None


def test_a_connection_that_the_server_kills_while_watching_is_failed(redis7: RedisServer) -> None:
    def kill_all_others() -> None:
        admin = redis7.client()
        admin.client_kill_filter(_type="normal", skipme=True)

    outcome, error = enlist(Attempting(redis7.client(), kill_all_others))
    assert outcome is Outcome.FAILED
    assert error is not None
    assert is_connection_fault(error)


def test_an_error_inside_execs_reply_is_raised(redis7: RedisServer) -> None:
    client = redis7.client()
    client.set("text", "no number")
    with pytest.raises(redis.ResponseError, match="not an integer"):
        commit(client, ("SET", "b", 1), ("INCR", "text"))
    # As in Redis itself, the other commands of the transaction have been done.
    assert client.get("b") == b"1"


def test_a_command_that_cannot_be_queued_changes_nothing(redis7: RedisServer) -> None:
    client = redis7.client()
    with pytest.raises(redis.ResponseError, match="unknown command"):
        commit(client, ("SET", "b", 1), ("NONSENSE", "x"))
    assert client.get("b") is None


def test_multi_refused_closes_the_connection(redis7: RedisServer) -> None:
    admin = redis7.client()
    admin.execute_command("ACL SETUSER limited on >pw ~* &* +@all -multi")
    try:
        client = redis7.client(username="limited", password="pw")
        with pytest.raises(redis.exceptions.NoPermissionError, match="multi"):
            commit(client, ("SET", "b", 1))
        # The WATCH would otherwise stay and abort somebody's later attempt.
        job_client = job_client_of(client)
        assert not [c for idle in job_client._idle.values() for c in idle]
    finally:
        admin.execute_command("ACL DELUSER limited")


@pytest.mark.parametrize("end", ["leave", "raise", "out of time"])
def test_the_watch_is_released_when_nothing_is_committed(redis7: RedisServer, end: str) -> None:
    client, other = redis7.client(), redis7.client()
    if end == "leave":
        read_only(client)
    elif end == "raise":
        with pytest.raises(ZeroDivisionError):
            enlist_nothing(client)
    else:
        clock = JumpingClock()
        with pytest.raises(OutOfTime):
            run_out_of_time(client, clock)
    other.set("a", "changed after the attempt")
    # With the old WATCH still there, this transaction would be aborted.
    assert commit(client, ("SET", "b", 1), keys=("b",)) == [b"OK"]


def enlist_nothing(client: redis.Redis) -> None:
    with attempt(client, "a") as current:
        current.read(("GET", "a"))
        raise ZeroDivisionError


def run_out_of_time(client: redis.Redis, clock: JumpingClock) -> None:
    with attempt(client, "a", slice=Slice(5, 5.0, clock)) as current:
        current.read(("GET", "a"))
        current._budget.deadline = 0.0
        current.commit(("SET", "a", 1))


def test_two_commits_in_one_attempt_are_refused(redis7: RedisServer) -> None:
    client = redis7.client()
    with attempt(client, "a") as current:
        current.commit(("SET", "a", 1))
        with pytest.raises(SpentAttemptError, match="commits once"):
            current.commit(("SET", "a", 2))
    assert client.get("a") == b"1"


def test_an_aborted_attempt_cannot_commit_again(redis7: RedisServer) -> None:
    client = redis7.client()
    with attempt(client, "a") as current:
        current.read(("GET", "a"))
        redis7.client().set("a", "theirs")
        with pytest.raises(Aborted):
            current.commit(("SET", "a", "mine"))
        with pytest.raises(SpentAttemptError, match="commits once"):
            current.commit(("SET", "a", "mine"))
    assert client.get("a") == b"theirs"


def test_keys_over_several_slots_are_refused_before_anything_is_sent(faulty: FaultyServer) -> None:
    client = redis.Redis(host="127.0.0.1", port=faulty.port)
    with pytest.raises(CrossSlotError, match=r"'a', b'b' lie in 2 hash slots"):
        commit(client, ("SET", "a", 1), keys=("a", "b"))
    assert faulty.connections == 0


def test_keys_over_several_slots_of_a_cluster(cluster: Any) -> None:
    with pytest.raises(CrossSlotError):
        commit(cluster.client(), ("SET", "a", 1), keys=("a", "b"))


def test_no_keys_at_all_are_refused(faulty: FaultyServer) -> None:
    client = redis.Redis(host="127.0.0.1", port=faulty.port)
    with pytest.raises(CrossSlotError, match="at least one"), attempt(client):
        pass
    assert faulty.connections == 0


def test_a_refusal_for_lack_of_memory_leads_to_the_deleting_script_once(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    plain = VolatileHashes(server.client(), namespace="full", backend="emulated")
    for i in range(20):
        plain.hsetex(f"h{i}", mapping={f"f{j}": "x" * 100 for j in range(10)}, ex=60)
    with FaultyServer(server.port) as faulty:
        client = redis.Redis(host="127.0.0.1", port=faulty.port)
        hashes = VolatileHashes(
            client, namespace="full", backend="emulated", clock_shift_ms=HOUR_MS
        )
        job = HashFieldExpiry(hashes, limit=5)
        server.client().config_set("maxmemory", 1)
        assert job.perform(Slice(5, 10.0)) == 5
        names = faulty.names()
        assert names.count("MULTI") == names.count("EXEC") == 1
        # One script for each hash of the attempt.
        assert 1 <= names.count("EVAL") == names.count("HDEL") <= 5
        # It goes on until nothing is left, although the server accepts no write meanwhile.
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            server.client().set("more", "x")
        while job.perform(Slice(100, 5.0)):
            pass
    server.client().config_set("maxmemory", 0)
    left = {key for key in server.client().scan_iter() if not key.endswith((b":mark", b":layout"))}
    assert left == set()


@pytest.mark.parametrize("version", [7, 8])
def test_memory_that_runs_out_between_the_last_command_and_exec(
    start_redis: Callable[..., RedisServer], version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis(version, maxmemory_policy="noeviction")
    plain = VolatileHashes(server.client(), namespace="full", backend="emulated")
    plain.hsetex("h", mapping={"a": 1, "b": 2}, ex=60)
    plain.hsetex("h", "late", 3, ex=9000)
    call = OneAttempt.call

    def fill_before_exec(
        self: OneAttempt, commands: Sequence[Command], budget: Budget
    ) -> list[Any]:
        if commands[-1] != ("EXEC",):
            return call(self, commands, budget)
        queued = call(self, commands[:-1], budget)
        server.client().config_set("maxmemory", 1)
        return [*queued, *call(self, commands[-1:], budget)]

    monkeypatch.setattr(OneAttempt, "call", fill_before_exec)
    later = VolatileHashes(
        server.client(), namespace="full", backend="emulated", clock_shift_ms=HOUR_MS
    )
    assert HashFieldExpiry(later, limit=5).perform(Slice(5, 5.0)) == 2
    assert server.client().hgetall("h") == {b"late": b"3"}
    with attempt(server.client(), "h") as current:
        current.read(("TYPE", "h"))
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            current.commit(("HSET", "h", "more", 1))


def test_a_full_server_is_freed_by_large_slices_too(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    plain = VolatileHashes(server.client(), namespace="full", backend="emulated")
    plain.hsetex("h", mapping={f"f{j}": j for j in range(12_000)}, ex=60)
    hashes = VolatileHashes(
        server.client(), namespace="full", backend="emulated", clock_shift_ms=HOUR_MS
    )
    server.client().config_set("maxmemory", 1)
    assert HashFieldExpiry(hashes, limit=11_000).perform(Slice(11_000, 5.0)) == 11_000


def test_an_attempt_works_in_a_process_with_many_open_files(redis7: RedisServer) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_300
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may open only {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    held: list[socket.socket] = []
    try:
        # select() takes no descriptor from 1024 on.
        while not held or held[-1].fileno() < 1_100:
            held.append(socket.socket())
        client = redis7.client()
        assert commit(client, ("SET", "a", 1)) == [b"OK"]
        assert commit(client, ("SET", "a", 2)) == [b"OK"]
    finally:
        for sock in held:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_that_attempt_at_once_add_up(redis7: RedisServer) -> None:
    client = redis7.client()
    client.set("a", 0)
    done: list[int] = []

    def add_25() -> None:
        committed = 0
        while committed < 25:
            try:
                with attempt(client, "a") as current:
                    (value,) = current.read(("GET", "a"))
                    current.commit(("SET", "a", int(value) + 1))
            except Aborted:
                continue
            committed += 1
        done.append(committed)

    threads = [threading.Thread(target=add_25) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [25] * 4
    assert client.get("a") == b"100"


class TestBudget:
    def test_an_answer_that_is_there_after_the_deadline_is_still_read(self) -> None:
        clock = ManualClock()
        budget = Budget(0.010, timeout=0.050, clock=clock)
        assert budget.wait_seconds() == pytest.approx(0.010)
        clock.advance(0.040)
        assert budget.wait_seconds() == pytest.approx(0.001)

    def test_nothing_is_sent_after_the_deadline(self) -> None:
        clock = ManualClock()
        budget = Budget(0.010, timeout=0.050, clock=clock)
        clock.advance(0.010)
        with pytest.raises(OutOfTime):
            budget.require()

    def test_no_wait_begins_later_than_one_time_out_after_the_deadline(self) -> None:
        clock = ManualClock()
        budget = Budget(0.010, timeout=0.050, clock=clock)
        clock.advance(0.0601)
        with pytest.raises(Unanswered):
            budget.wait_seconds()
