"""HashFieldExpiry: what it chooses, removes, leaves, counts and restores."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.collectors import collect_until_idle
from support.hash_checks import check_index, collect_all
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisCluster3, RedisServer, wait_until
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.jobs import (
    AdoptHashes,
    HashFieldExpiry,
    MigrateToEmulated,
    MigrateToNative,
)
from workstealing.jobs.hash_field_expiry import TOGETHER
from workstealing.recruiting import Slice
from workstealing.store.attempt import Attempt
from workstealing.store.connection import SENT
from workstealing.store.keys import SLOTS, key_slot
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.testing import ManualClock

pytestmark = pytest.mark.contract

HOUR = 3_600
AHEAD_MS = 1_000 * HOUR
NAMESPACE = "expiry"


def now_hashes(server: AnyServer, **options: Any) -> VolatileHashes:
    hashes: VolatileHashes = VolatileHashes(server.client(**options), NAMESPACE, backend="emulated")
    return hashes


def later_hashes(server: AnyServer, ahead_ms: int = AHEAD_MS) -> VolatileHashes:
    """The same namespace, seen from an hour on."""
    hashes: VolatileHashes = VolatileHashes(
        server.client(), NAMESPACE, backend="emulated", clock_shift_ms=ahead_ms
    )
    return hashes


def due_score(hashes: VolatileHashes, name: str) -> float | None:
    layout = hashes.open()
    due = hashes.names.due(layout.shard_of(key_slot(name.encode())))
    score: float | None = hashes.client.zscore(due, name)
    return score


def fill_lone(hashes: VolatileHashes, names: list[str], field: str = "f") -> None:
    """Give each hash one field that expires within the hour."""
    with hashes.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hsetex(name, field, 1, ex=HOUR)
        pipe.execute()


def dump(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


def slice_of(limit: int, seconds: float = 10.0) -> Slice:
    return Slice(limit, seconds)


# What a slice removes.


def test_at_most_the_limit_is_removed_and_the_rest_found_again(any_server: AnyServer) -> None:
    now_hashes(any_server).hsetex("h", mapping={f"f{i}": i for i in range(12)}, ex=HOUR)
    hashes = later_hashes(any_server)
    job = HashFieldExpiry(hashes)
    assert job.limit == 5
    assert [job.perform(slice_of(5)) for _ in range(4)] == [5, 5, 2, 0]
    assert hashes.client.hlen("h") == 0
    assert due_score(hashes, "h") is None


def test_more_hashes_are_served_while_there_is_time(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    for i in range(15):
        hashes.hsetex(f"{{same}}{i}", mapping={"a": 1, "b": 2, "c": 3, "d": 4}, ex=HOUR)
    job = HashFieldExpiry(later_hashes(any_server), limit=25)
    assert job.perform(slice_of(25)) == 25
    assert job.perform(slice_of(100)) == 35


def test_a_slice_without_time_stops_after_the_attempt_that_it_has_begun(
    redis7: RedisServer,
) -> None:
    fill_lone(now_hashes(redis7), [f"h{i}" for i in range(300)])
    clock = ManualClock()

    class Slow(HashFieldExpiry):
        """Each look at the clock shows that a tenth of a second has passed."""

    ticks = iter(range(1, 10_000))
    slow = ManualClock()
    slow.monotonic = lambda: next(ticks) / 10  # type: ignore[method-assign]
    job = Slow(later_hashes(redis7), limit=100, clock=slow)
    assert job.perform(Slice(100, 0.25, clock)) == TOGETHER


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_slice_that_only_looked_in_vain_is_idle_when_its_time_is_used_up(
    redis7: RedisServer, dry_run: bool
) -> None:
    hashes = now_hashes(redis7)
    for i in range(200):
        # The due index is early: whoever looks first sets it right.
        hashes.hsetex(f"h{i}", "f", 1, ex=HOUR)
        hashes.hsetex(f"h{i}", "f", 1, ex=3 * HOUR)
    job = HashFieldExpiry(later_hashes(redis7, 2 * HOUR * 1000), dry_run=dry_run)
    job.perform(slice_of(5, 10.0))
    for i in range(200):
        hashes.hsetex(f"h{i}", "f", 1, ex=HOUR)
        hashes.hsetex(f"h{i}", "f", 1, ex=3 * HOUR)
    ticks = itertools.count()
    clock = ManualClock()
    # Its seconds are few by this clock, and enough for a busy server: waits are real.
    clock.monotonic = lambda: next(ticks) / 100  # type: ignore[method-assign]
    assert job.perform(Slice(5, 1.0, clock)) == 0


def test_live_fields_are_left_and_the_next_due_time_is_the_earliest_of_them(
    any_server: AnyServer,
) -> None:
    hashes = now_hashes(any_server)
    hashes.hsetex("h", mapping={"soon": 1, "sooner": 2}, ex=HOUR // 2)
    hashes.hsetex("h", "late", 3, ex=3 * HOUR)
    hashes.hsetex("h", "later", 4, ex=4 * HOUR)
    hashes.hset("h", "always", 5)
    later = later_hashes(any_server, 2 * HOUR * 1000)
    job = HashFieldExpiry(later, limit=100)
    assert job.perform(slice_of(100)) == 2
    assert job.perform(slice_of(100)) == 0
    assert sorted(later.hkeys("h")) == [b"always", b"late", b"later"]
    assert due_score(later, "h") == later.hpexpiretime("h", "late")[0]


def test_the_choice_among_due_hashes_is_random(redis7: RedisServer) -> None:
    hashes, later = now_hashes(redis7), later_hashes(redis7)
    names = {f"h{i}" for i in range(40)}
    for name in names:
        hashes.hsetex(name, "f", 1, ex=HOUR)
    chosen = set()
    for seed in range(40):
        job = HashFieldExpiry(later, limit=1, random=random.Random(seed).random)
        assert job.perform(slice_of(1)) == 1
        (gone,) = names - {name.decode() for name in redis7.client().keys("h*")}
        chosen.add(gone)
        hashes.hsetex(gone, "f", 1, ex=HOUR)
    assert len(chosen) >= 10


def test_a_field_that_was_given_more_time_is_left(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    hashes.hsetex("h", mapping={"a": 1, "b": 2}, ex=HOUR)
    hashes.hexpire("h", 10 * HOUR, "a")
    hashes.hpersist("h", "b")
    job = HashFieldExpiry(later_hashes(any_server, 2 * HOUR * 1000), limit=100)
    assert job.perform(slice_of(100)) == 0
    assert hashes.hgetall("h") == {b"a": b"1", b"b": b"2"}
    check_index(hashes)


def test_a_namespace_that_nobody_has_used_is_idle(any_server: AnyServer) -> None:
    job = HashFieldExpiry(now_hashes(any_server))
    assert job.perform(slice_of(5)) == 0
    backlog = job.backlog()
    assert (backlog.count, backlog.oldest_seconds) == (0, 0.0)
    assert any_server.client().keys("*") == []


def test_a_native_namespace_is_idle(redis8: RedisServer) -> None:
    hashes = VolatileHashes(redis8.client(), NAMESPACE)
    hashes.hsetex("h", "f", 1, ex=HOUR)
    assert hashes.open().is_native
    job = HashFieldExpiry(hashes)
    assert job.perform(slice_of(5)) == 0
    assert job.backlog().count == 0


async def test_an_asyncio_client_will_do(any_server: AnyServer) -> None:
    now_hashes(any_server).hsetex("h", mapping={"a": 1, "b": 2}, ex=HOUR)
    async with any_server.async_client() as client:
        hashes = AsyncVolatileHashes(client, NAMESPACE, clock_shift_ms=AHEAD_MS)
        assert await hashes.hlen("h") == 0
        assert HashFieldExpiry(hashes).perform(slice_of(5)) == 2


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5", None])
def test_a_limit_must_bound_something(redis7: RedisServer, limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        HashFieldExpiry(now_hashes(redis7), limit=limit)


@pytest.mark.parametrize(
    "job",
    [
        HashFieldExpiry,
        MigrateToNative,
        lambda hashes: MigrateToEmulated(hashes, "h:*"),
        lambda hashes: AdoptHashes(hashes, "h:*", ttl=5),
    ],
)
@pytest.mark.parametrize("wrong", ["items", None, redis.Redis()])
def test_what_is_no_structure_is_named(job: Any, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected VolatileHashes"):
        job(wrong)


def test_its_name_and_dependency_tell_namespaces_and_servers_apart(
    redis7: RedisServer, redis8: RedisServer
) -> None:
    job, same, other = (
        HashFieldExpiry(VolatileHashes(server.client(), namespace))
        for server, namespace in ((redis7, "a"), (redis7, "b"), (redis8, "a"))
    )
    assert job.name == "hash_field_expiry.a"
    assert job.dependency == same.dependency != other.dependency


# Orphans.


def orphaned_by_delete(hashes: VolatileHashes) -> None:
    hashes.client.delete("h")


def orphaned_by_overwriting(hashes: VolatileHashes) -> None:
    hashes.client.set("h", "foreign")


@pytest.mark.parametrize("orphan", [orphaned_by_delete, orphaned_by_overwriting])
def test_deadlines_without_their_hash_are_removed(any_server: AnyServer, orphan: Any) -> None:
    hashes = now_hashes(any_server)
    hashes.hsetex("h", mapping={f"f{i}": i for i in range(9)}, ex=HOUR)
    orphan(hashes)
    before = hashes.client.get("h")
    assert collect_all(HashFieldExpiry(later_hashes(any_server))) == 1
    assert not hashes.client.exists(hashes.names.deadlines(b"h"))
    assert due_score(hashes, "h") is None
    assert hashes.client.get("h") == before


def test_deadlines_are_removed_when_the_whole_hash_has_expired(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    hashes.hsetex("h", mapping={"a": 1, "b": 2}, ex=HOUR)
    assert hashes.pexpire("h", 5)
    wait_until(lambda: not hashes.client.exists("h"), "the hash to expire")
    job = HashFieldExpiry(hashes)
    # One millisecond after the server may have deleted it; without any clock being ahead.
    wait_until(lambda: job.perform(slice_of(5)) == 1, "the orphan to be found")
    assert hashes.client.keys("*:ttl:*") == []
    assert due_score(hashes, "h") is None


# Counting.


def test_the_backlog_is_counted_exactly(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    for i in range(20):
        hashes.hsetex(f"h{i}", mapping={"a": 1, "b": 2, "c": 3}, exat=1_000_000_000_000 // 1000)
    for i in range(20):
        hashes.hsetex(f"h{i}", mapping={"a": 1, "b": 2, "c": 3}, ex=HOUR)
    hashes.hsetex("late", "f", 1, ex=10_000 * HOUR)
    job = HashFieldExpiry(later_hashes(any_server, 2 * HOUR * 1000))
    backlog = job.backlog()
    assert (backlog.count, backlog.what, backlog.exact) == (60, "expired fields", True)
    assert HOUR - 60 < backlog.oldest_seconds <= HOUR + 60
    collect_all(job)
    backlog = job.backlog()
    assert (backlog.count, backlog.oldest_seconds) == (0, 0.0)


def test_a_backlog_is_counted_while_a_recruit_collects(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes: Any = VolatileHashes(redis7.client(), namespace="looked", backend="emulated")
    hashes.hsetex("h", "f", 1, px=1)
    job = HashFieldExpiry(hashes)
    job_client = hashes.job_client
    real = job_client.call

    def call(node: Any, commands: Any, budget: Any) -> Any:
        if commands[0][0] != "ZCOUNT":
            return real(node, commands, budget)
        replies = real(node, commands[:1], budget)
        redis7.client().delete(commands[1][1])
        return replies + real(node, commands[1:], budget)

    wait_until(lambda: job.backlog().count == 1, "the field to expire")
    monkeypatch.setattr(type(job_client), "call", lambda _, *args: call(*args))
    assert job.backlog().count == 0


def test_a_large_backlog_is_projected_and_says_so(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    with hashes.pipeline(transaction=False) as pipeline:
        for i in range(300):
            pipeline.hsetex(f"{{same}}{i}", mapping={"a": 1, "b": 2}, ex=HOUR)
        pipeline.execute()
    backlog = HashFieldExpiry(later_hashes(any_server)).backlog(most_hashes=50)
    assert (backlog.count, backlog.exact) == (600, False)


def test_a_dry_run_counts_and_changes_nothing(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    for i in range(4):
        hashes.hsetex(f"{{same}}{i}", mapping={"a": 1, "b": 2}, ex=HOUR)
    hashes.hset("{same}0", "live", 1)
    before = dump(hashes.client) if any_server.is_real else None
    job = HashFieldExpiry(later_hashes(any_server), dry_run=True)
    assert job.perform(slice_of(100)) == 8
    assert job.perform(slice_of(5)) == 5
    if before is not None:
        assert dump(hashes.client) == before
    assert hashes.client.hlen("{same}0") == 3


# The index.


@pytest.mark.parametrize(
    "end",
    [
        lambda h: h.rename("h", "{h}"),
        lambda h: h.delete("h"),
        lambda h: h.unlink("h"),
        lambda h: h.hdel("h", "a", "b"),
        lambda h: h.hgetdel("h", "a", "b"),
        lambda h: h.hpersist("h", "a", "b"),
        lambda h: h.hset("h", mapping={"a": 1, "b": 2}),
        lambda h: h.hgetex("h", "a", "b", ex=0),
        lambda h: h.hexpireat("h", 1, "a", "b"),
        lambda h: h.expire("h", -1),
    ],
)
def test_a_hash_without_deadlines_is_not_in_the_index(any_server: AnyServer, end: Any) -> None:
    hashes = now_hashes(any_server)
    hashes.hsetex("h", mapping={"a": 1, "b": 2}, ex=HOUR)
    assert due_score(hashes, "h") is not None
    end(hashes)
    assert due_score(hashes, "h") is None
    assert not hashes.client.exists(hashes.names.deadlines(b"h"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_index_finds_everything_after_random_histories(
    any_server: AnyServer, seed: int
) -> None:
    chance = random.Random(seed)
    hashes = now_hashes(any_server)
    later = later_hashes(any_server, 2 * HOUR * 1000)
    names = [f"h{i}" for i in range(40)]
    fields = [f"f{i}" for i in range(5)]
    moves: list[Callable[[str, str], Any]] = [
        lambda n, f: hashes.hsetex(n, f, 1, ex=chance.choice([1, HOUR, 3 * HOUR, 9 * HOUR])),
        lambda n, f: hashes.hset(n, f, 1),
        hashes.hdel,
        hashes.hpersist,
        lambda n, f: hashes.hexpire(n, chance.choice([HOUR, 3 * HOUR]), *fields),
        lambda n, f: hashes.hgetex(n, f, ex=5 * HOUR),
        hashes.hgetdel,
        lambda n, f: hashes.exists(n) and hashes.rename(n, "{" + n + "}"),
        lambda n, f: hashes.expire(n, chance.choice([HOUR, 9 * HOUR])),
        lambda n, f: hashes.delete(n),
        lambda n, f: hashes.client.delete(n),
        lambda n, f: HashFieldExpiry(later).perform(slice_of(5)),
        lambda n, f: later.hset(n, f, 1),
        lambda n, f: later.hsetex(n, f, 1, ex=HOUR),
    ]
    if any_server.is_real:
        # fakeredis' copy is the same object under another name.
        moves.append(lambda n, f: hashes.copy(n, "{" + n + "}", replace=True))
    for _ in range(400):
        chance.choice(moves)(chance.choice(names), chance.choice(fields))
    check_index(hashes)
    far = later_hashes(any_server, 10**9)
    if not any_server.is_cluster:
        collect_all(HashFieldExpiry(far))
        assert hashes.client.keys("*:ttl:*") == hashes.client.keys("*:due") == []


# Memory.


@pytest.mark.parametrize("version", [7, 8])
def test_a_full_server_is_freed(start_redis: Callable[..., RedisServer], version: int) -> None:
    server = start_redis(version, maxmemory="4mb", maxmemory_policy="noeviction")
    hashes = now_hashes(server)
    mapping = {f"f{i}": "x" * 500 for i in range(20)}
    count = 0

    def fill() -> None:
        nonlocal count
        while True:
            hashes.hsetex(f"h{count}", mapping=mapping, ex=HOUR)
            count += 1

    with pytest.raises(redis.OutOfMemoryError):
        fill()
    check_index(hashes)
    client = server.client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 500_000)
    if version == 7:
        # What every MULTI meets there, one that only deletes among them.
        pipeline = client.pipeline().hdel("h0", "f0")
        with pytest.raises((redis.OutOfMemoryError, redis.exceptions.ExecAbortError)):
            pipeline.execute()
    job = HashFieldExpiry(later_hashes(server), limit=100)
    assert job.perform(slice_of(100)) == 100
    assert collect_all(job) == 20 * count - 100
    assert client.keys("h*") == client.keys("*:ttl:*") == []
    assert hashes.hsetex("again", mapping=mapping, ex=HOUR) == 1


# Others at the same time.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_several_collectors_remove_each_field_once_and_rarely_abort(
    redis7: RedisServer, kind: str
) -> None:
    hashes = now_hashes(redis7)
    with hashes.pipeline(transaction=False) as pipeline:
        for i in range(1_000):
            pipeline.hsetex(f"h{i}", mapping={"a": 1, "b": 2, "c": 3}, ex=HOUR)
            pipeline.hset(f"h{i}", "live", 4)
        pipeline.execute()
    context = multiprocessing.get_context("spawn")
    total, aborted, start = context.Value("i", 0), context.Value("i", 0), context.Barrier(3)
    if kind == "threads":
        start = threading.Barrier(3)  # type: ignore[assignment]
        make: Any = threading.Thread
    else:
        make = context.Process
    given = (redis7.port, (NAMESPACE, AHEAD_MS), (total, aborted), start)
    workers = [make(target=collect_until_idle, args=given) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert total.value == 3_000
    # 120 slices; recruits choose at random so that they rarely meet.
    assert aborted.value <= 24
    assert hashes.client.keys("*:ttl:*") == []
    assert all(hashes.hgetall(f"h{i}") == {b"live": b"4"} for i in range(0, 1_000, 97))


def _before_commit(monkeypatch: pytest.MonkeyPatch, write: Callable[[], Any]) -> None:
    """Let somebody write between the job's reading and its EXEC, once."""
    original = Attempt.commit
    pending = [write]

    def commit(self: Attempt, *commands: Any) -> list[Any]:
        if pending:
            pending.pop()()
        return original(self, *commands)

    monkeypatch.setattr(Attempt, "commit", commit)


@pytest.mark.parametrize(
    "write",
    [
        lambda h: h.hset("h", "f", "new"),
        lambda h: h.hsetex("h", "f", "new", ex=10_000 * HOUR),
        lambda h: h.hset("h", "other", "new"),
        lambda h: h.hexpire("h", 10_000 * HOUR, "f"),
        lambda h: h.hpersist("h", "f"),
        lambda h: h.delete("h"),
    ],
)
def test_a_writer_between_reading_and_exec_makes_it_abort(
    any_server: AnyServer, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    hashes = now_hashes(any_server)
    hashes.hsetex("h", mapping={"f": "old", "g": "old"}, ex=HOUR)
    job = HashFieldExpiry(later_hashes(any_server))
    _before_commit(monkeypatch, lambda: write(hashes))
    with pytest.raises(Aborted):
        job.perform(slice_of(5))
    after = hashes.hgetall("h")
    assert collect_all(job) <= 2
    kept = {name: value for name, value in after.items() if value == b"new"}
    assert kept.items() <= hashes.client.hgetall("h").items()


def test_an_abort_after_some_work_is_work(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = now_hashes(redis7)
    names = [f"h{i}" for i in range(300)]
    fill_lone(hashes, names)
    job = HashFieldExpiry(later_hashes(redis7))
    original = Attempt.commit
    commits: list[int] = []

    def commit(self: Attempt, *commands: Any) -> list[Any]:
        commits.append(1)
        if len(commits) == 2:
            fill_lone(hashes, names, "g")
        return original(self, *commands)

    monkeypatch.setattr(Attempt, "commit", commit)
    assert job.perform(slice_of(100)) == TOGETHER
    assert len(commits) == 2


# Foreign things, and a server that has lost everything.


def test_a_foreign_due_index_is_an_error_that_changes_nothing(redis7: RedisServer) -> None:
    hashes = now_hashes(redis7)
    hashes.open()
    hashes.client.set(hashes.names.due(3), "foreign")
    before = dump(hashes.client)
    with pytest.raises(LayoutError, match=r"due index .* holds something foreign"):
        HashFieldExpiry(hashes).perform(slice_of(5))
    assert dump(hashes.client) == before


def test_what_a_user_may_not_ask_is_called_so(redis7: RedisServer) -> None:
    now_hashes(redis7).hsetex("h", "f", 1, ex=HOUR)
    admin = redis7.client()
    admin.execute_command("ACL", "SETUSER", "poor", "on", ">x", "~*", "+@all", "-zrange")
    try:
        hashes = now_hashes(redis7, username="poor", password="x")
        # Nothing foreign is there: nobody is sent to look for it.
        with pytest.raises(redis.exceptions.NoPermissionError, match="zrange"):
            HashFieldExpiry(hashes).perform(slice_of(5))
    finally:
        admin.execute_command("ACL", "DELUSER", "poor")


def test_foreign_deadlines_are_an_error_that_changes_nothing(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    hashes.hsetex("h", "f", 1, ex=HOUR)
    hashes.client.set(hashes.names.deadlines(b"h"), "foreign")
    job = HashFieldExpiry(later_hashes(any_server))
    with pytest.raises(LayoutError, match=r"does not hold the deadlines .* nothing was changed"):
        job.perform(slice_of(5))
    with pytest.raises(LayoutError, match=r"does not hold the deadlines .* nothing was changed"):
        job.backlog()
    assert hashes.client.get(hashes.names.deadlines(b"h")) == b"foreign"
    assert hashes.client.hgetall("h") == {b"f": b"1"}


def test_writing_and_collecting_go_on_after_a_flushall(any_server: AnyServer) -> None:
    hashes, later = now_hashes(any_server), later_hashes(any_server)
    clock = ManualClock()
    chance = [0.0]
    job = HashFieldExpiry(later, clock=clock, random=lambda: chance[0])
    writer = HashFieldExpiry(hashes, clock=clock)
    hashes.hsetex("h", "f", 1, ex=HOUR)
    assert writer.perform(slice_of(5)) == 0
    assert job.perform(slice_of(5)) == 1
    any_server.client().flushall()
    hashes.hsetex("h", "f", 2, ex=HOUR)
    assert hashes.hget("h", "f") == b"2"
    slot = key_slot(b"h")
    mark = hashes.names.mark(hashes.open().shard_of(slot))
    assert hashes.client.get(mark) == b"1:emulated"
    if any_server.is_cluster:
        # The writer takes its index shard for registered, but no registry names it: chance finds
        # it.
        assert not hashes.client.exists(hashes.names.registry)
        clock.advance(11)
        chance[0] = (slot + 0.5) / SLOTS
        assert job.perform(slice_of(5)) == 1
        assert hashes.client.getbit(hashes.names.registry, slot) == 1
    else:
        assert job.perform(slice_of(5)) == 1
        clock.advance(11)
        assert job.perform(slice_of(5)) == 0
    # Those who come after find the layout that the running processes have, not one of their own.
    fresh = VolatileHashes(any_server.client(), NAMESPACE)
    assert fresh.open().backend == "emulated"


@pytest.mark.cluster
def test_a_writer_registers_anew_once_the_job_has_seen_the_loss(cluster: RedisCluster3) -> None:
    hashes = now_hashes(cluster)
    clock = ManualClock()
    job = HashFieldExpiry(hashes, clock=clock)
    hashes.hsetex("h", "f", 1, ex=HOUR)
    job.perform(slice_of(5))
    cluster.client().flushall()
    clock.advance(11)
    job.perform(slice_of(5))
    hashes.hsetex("h", "f", 1, ex=HOUR)
    assert hashes.client.getbit(hashes.names.registry, key_slot(b"h")) == 1


@pytest.mark.slow
@pytest.mark.cluster
def test_a_thousand_names_on_a_cluster_are_all_collected(cluster: RedisCluster3) -> None:
    hashes = now_hashes(cluster)
    for start in range(0, 1_000, 100):
        with hashes.pipeline() as pipeline:
            for i in range(start, start + 100):
                pipeline.hsetex(f"name-{i}", mapping={"a": 1, "b": 2}, ex=HOUR)
            pipeline.execute()
    slots = {key_slot(f"name-{i}".encode()) for i in range(1_000)}
    assert len(slots) > 500
    check_index(hashes)
    job = HashFieldExpiry(later_hashes(cluster), limit=100)
    assert job.backlog().count == 2_000
    total = 0
    for _ in range(2_000):
        total += job.perform(slice_of(100))
        if total == 2_000:
            break
    assert total == 2_000
    assert hashes.client.keys("*:ttl:*") == hashes.client.keys("name-*") == []


def test_a_slice_observes_the_age_of_the_oldest_hash_that_it_saw(any_server: AnyServer) -> None:
    hashes = now_hashes(any_server)
    job = HashFieldExpiry(later_hashes(any_server, 2 * HOUR * 1000), limit=5)
    looking = slice_of(5)
    job.perform(looking)
    assert looking.oldest_seconds == 0.0
    hashes.hsetex("h", mapping={f"f{i}": i for i in range(7)}, ex=HOUR)
    looking = slice_of(5)
    assert job.perform(looking) == 5
    assert looking.oldest_seconds == pytest.approx(HOUR, abs=30)
    assert job.perform(slice_of(5)) == 2
    looking = slice_of(5)
    assert job.perform(looking) == 0
    assert looking.oldest_seconds == 0.0


def test_a_slice_observes_about_how_many_fields_wait(redis7: RedisServer) -> None:
    hashes = now_hashes(redis7)
    later = later_hashes(redis7, 2 * HOUR * 1000)
    # A look projects from a few index shards, which it chooses by chance.
    job = HashFieldExpiry(later, limit=5, random=random.Random(1).random)
    looking = slice_of(5)
    job.perform(looking)
    assert looking.backlog == 0
    with hashes.pipeline() as pipeline:
        for i in range(2_000):
            pipeline.hsetex(f"h{i}", mapping={"a": 1, "b": 2}, ex=HOUR)
        pipeline.hsetex("later", "f", 1, ex=24 * HOUR)
        pipeline.execute()
    assert job.backlog().count == 4_000
    # The first look has not been told the server's time, so it knows of what it takes alone.
    assert job.perform(slice_of(5)) == 5
    for _ in range(5):
        looking = slice_of(5)
        assert job.perform(looking) == 5
        assert looking.backlog is not None
        assert 2_800 < looking.backlog < 5_200
    while job.backlog().count:
        job.perform(slice_of(500))
    looking = slice_of(5)
    assert job.perform(looking) == 0
    assert looking.backlog == 0


def test_a_hash_that_is_only_to_be_looked_at_counts_as_one(redis7: RedisServer) -> None:
    hashes = now_hashes(redis7)
    hashes.hsetex("h", "f", 1, ex=HOUR)
    assert hashes.hsetex("h", "f", 1, ex=24 * HOUR) == 1
    job = HashFieldExpiry(later_hashes(redis7, 2 * HOUR * 1000))
    assert job.backlog().count == 1
    assert job.perform(slice_of(5)) == 0
    assert job.backlog().count == 0


def test_a_slice_counts_the_commands_that_it_sent(redis7: RedisServer) -> None:
    hashes = now_hashes(redis7)
    hashes.hsetex("h", mapping={f"f{i}": i for i in range(7)}, ex=HOUR)
    job = HashFieldExpiry(later_hashes(redis7, 2 * HOUR * 1000), limit=7)
    job.perform(slice_of(7))  # Its layout is known from here on.
    hashes.hsetex("h", mapping={f"f{i}": i for i in range(7)}, ex=HOUR)
    client = redis7.client()
    before = client.info("stats")["total_commands_processed"]
    counting = slice_of(7)
    assert job.perform(counting) == 7
    sent = client.info("stats")["total_commands_processed"] - before - 1
    assert counting.operations == sent


def test_an_idle_slice_counts_its_look(redis7: RedisServer) -> None:
    job = HashFieldExpiry(now_hashes(redis7))
    now_hashes(redis7).hset("h", "f", 1)
    job.perform(slice_of(5))
    counting = slice_of(5)
    assert job.perform(counting) == 0
    assert counting.operations == 20


# What it costs.


def commands_of(client: Any) -> dict[str, int]:
    """Return how often the server has run each command, inside scripts too."""
    return {
        name.removeprefix("cmdstat_"): figures["calls"]
        for name, figures in client.info("commandstats").items()
        if name not in ("cmdstat_info", "cmdstat_config|resetstat")
    }


def cost_of_a_field(server: AnyServer, job: HashFieldExpiry, limit: int, fields: int) -> float:
    """Return the server's commands for each field, once the job knows its namespace."""
    client = server.client()
    collected = job.perform(slice_of(limit))
    client.config_resetstat()
    counted = 0
    while collected + counted < fields * 0.8:
        counted += job.perform(slice_of(limit))
    total = sum(commands_of(client).values())
    return total / counted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "others"),
    [
        *itertools.product((5, 25, 100), ("none", "within a day", "no deadline")),
        *itertools.product((25, 100), ("after a day",)),
    ],
)
def test_a_lone_expired_field_costs_at_most_five_commands(
    redis7: RedisServer, limit: int, others: str
) -> None:
    hashes = now_hashes(redis7)
    names = [f"h{i}" for i in range(1_000)]
    fill_lone(hashes, names)
    with hashes.pipeline(transaction=False) as pipe:
        for name in names:
            if others == "no deadline":
                pipe.hset(name, mapping={"x": 1, "y": 2})
            elif others != "none":
                far = 20 * HOUR if others == "within a day" else 200 * HOUR
                pipe.hsetex(name, mapping={"x": 1, "y": 2}, ex=far)
        pipe.execute()
    job = HashFieldExpiry(later_hashes(redis7, 2 * HOUR * 1000), limit=limit)
    assert cost_of_a_field(redis7, job, limit, 1_000) <= 5.0
    left = 0 if others == "none" else 2
    assert {hashes.hlen(name) for name in names} <= {left, left + 1}


def test_five_expired_fields_a_hash_cost_less_than_three_commands_each(redis7: RedisServer) -> None:
    hashes = now_hashes(redis7)
    for i in range(300):
        hashes.hsetex(f"h{i}", mapping=dict.fromkeys("abcde", 1), ex=HOUR)
    job = HashFieldExpiry(later_hashes(redis7, 2 * HOUR * 1000), limit=5)
    for _ in range(5):
        job.perform(slice_of(5))
    assert cost_of_a_field(redis7, job, 5, 1_000) < 3.0


def test_what_a_job_expects_of_a_hash_stays_within_its_limit(redis7: RedisServer) -> None:
    hashes = now_hashes(redis7)
    hashes.hsetex("h", mapping={f"f{i}": 1 for i in range(400)}, ex=HOUR)
    job = HashFieldExpiry(later_hashes(redis7), limit=5)
    assert [job.perform(slice_of(5)) for _ in range(60)] == [5] * 60
    collector: Any
    (collector,) = job._collectors.values()
    assert 5 <= collector._fields <= 10
    # After these, lone fields are served together again.
    collect_all(job)
    names = [f"lone{i}" for i in range(200)]
    fill_lone(hashes, names)
    for _ in range(10):
        job.perform(slice_of(5))
    assert collector._fields == 1


@pytest.mark.cluster
def test_lone_fields_that_share_slots_are_served_together_on_a_cluster(
    cluster: RedisCluster3,
) -> None:
    hashes = now_hashes(cluster)
    for slot in range(8):
        fill_lone(hashes, [f"{{s{slot}}}{i}" for i in range(50)])
    job = HashFieldExpiry(later_hashes(cluster), limit=10)
    before = SENT.commands
    collected = 0
    while collected < 300:
        collected += job.perform(slice_of(10))
    assert (SENT.commands - before) / collected <= 5.0


# Several hashes in one attempt.


def test_a_write_to_any_hash_of_an_attempt_aborts_it_and_fewer_come_next(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = now_hashes(redis7)
    names = [f"h{i}" for i in range(200)]
    fill_lone(hashes, names)
    job = HashFieldExpiry(later_hashes(redis7))
    original = Attempt.commit
    sizes: list[int] = []

    def commit(self: Attempt, *commands: Any) -> list[Any]:
        removed = [command for command in commands if command[0] == "HDEL"]
        sizes.append(len(removed))
        if len(sizes) <= 2:
            # A writer gives the last of them more time.
            hashes.hsetex(removed[-1][1], "f", "new", ex=10_000 * HOUR)
        return original(self, *commands)

    monkeypatch.setattr(Attempt, "commit", commit)
    for _ in range(2):
        with pytest.raises(Aborted):
            job.perform(slice_of(20))
    assert all(hashes.hlen(name) == 1 for name in names)
    assert job.perform(slice_of(20)) == 20
    # One or two of the hashes were given more time.
    assert sizes[0] == 20
    assert 8 <= sizes[1] <= 10
    assert 3 <= sizes[2] <= 5
    collect_all(job)
    assert sum(hashes.hget(name, "f") == b"new" for name in names) == 2
    assert sum(hashes.client.hlen(name) for name in names) == 2


def test_hashes_of_all_kinds_in_one_attempt(redis7: RedisServer) -> None:
    hashes = now_hashes(redis7)
    far = 90 * HOUR
    hashes.hsetex("lone", "f", 1, ex=HOUR)
    hashes.hsetex("mixed", mapping={"a": 1, "b": 2}, ex=HOUR)
    hashes.hsetex("mixed", "long", 3, ex=far)
    hashes.hsetex("given time", "f", 1, ex=HOUR)
    hashes.hsetex("given time", "f", 1, ex=far)
    for name in ("deleted", "overwritten", "overwritten, far", "ending"):
        hashes.hsetex(name, mapping={"a": 1, "b": 2}, ex=HOUR)
    for name in ("deleted", "overwritten, far", "ending"):
        hashes.hsetex(name, "long", 3, ex=far)
    hashes.hsetex("overwritten", "soon", 3, ex=2 * HOUR + 60)
    hashes.hsetex("foreign", "f", 1, ex=HOUR)
    hashes.client.set(hashes.names.deadlines(b"foreign"), "foreign")
    hashes.client.delete("deleted")
    hashes.client.set("overwritten", "text")
    hashes.client.set("overwritten, far", "text")
    hashes.expire("ending", 3 * HOUR)
    later = later_hashes(redis7, 2 * HOUR * 1000)
    job = HashFieldExpiry(later, limit=100)
    # Two, one for its deadlines, one or two each of the overwritten, and so on.
    assert job.perform(slice_of(100)) == 1 + 2 + 1 + 1 + 1 + 2
    client = hashes.client
    assert not client.exists("lone", hashes.names.deadlines(b"lone"))
    assert client.hgetall("mixed") == {b"long": b"3"}
    assert client.hgetall("given time") == {b"f": b"1"}
    assert client.hgetall("ending") == {b"long": b"3"}
    for name in ("deleted", "overwritten", "overwritten, far"):
        assert not client.exists(hashes.names.deadlines(name.encode())), name
        assert due_score(hashes, name) is None
    assert client.get("overwritten") == client.get("overwritten, far") == b"text"
    # A hash that ends as a whole is due then, not at its next deadline.
    ending = due_score(hashes, "ending")
    assert ending is not None
    assert ending <= client.pexpiretime("ending") + 2 * HOUR * 1000 + 1
    assert due_score(hashes, "mixed") == later.hpexpiretime("mixed", "long")[0]
    assert client.get(hashes.names.deadlines(b"foreign")) == b"foreign"
    assert client.hgetall("foreign") == {b"f": b"1"}
    with pytest.raises(LayoutError, match="does not hold the deadlines"):
        job.perform(slice_of(100))
