"""KeyExpiry: what a slice deletes, what it leaves, and what it takes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError, OutOfTime
from workstealing.jobs import KeyExpiry
from workstealing.recruiting import Outcome, Recruiter, Slice
from workstealing.store.connection import SENT
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncDurableKeys, DurableKeys
from workstealing.testing import ManualClock, always

pytestmark = pytest.mark.contract

NAMESPACE = "expiry"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def keys_on(server: AnyServer, ahead_ms: int = 0) -> DurableKeys:
    keys: DurableKeys = DurableKeys(server.client(), NAMESPACE, clock_shift_ms=ahead_ms)
    return keys


@pytest.fixture
def keys(any_server: AnyServer) -> DurableKeys:
    return keys_on(any_server)


@pytest.fixture
def later(any_server: AnyServer) -> DurableKeys:
    return keys_on(any_server, DAY_MS)


def fill(keys: DurableKeys, count: int, **options: Any) -> list[str]:
    names = [f"name:{i}" for i in range(count)]
    for start in range(0, count, 1_000):
        with keys.pipeline(transaction=False) as pipe:
            for name in names[start : start + 1_000]:
                pipe.set(name, "value" * 50, **options)
            pipe.execute()
    return names


def collect_all(job: KeyExpiry, limit: int = 100, slices: int = 2_000) -> int:
    """Do slices until there is no backlog; return how many keys were deleted."""
    total = 0
    for _ in range(slices):
        done = job.perform(Slice(limit, 10.0))
        total += done
        if not done and job.backlog().count == 0:
            return total
    raise AssertionError(f"after {slices} slices there is still {job.backlog()}")


def test_it_deletes_what_is_past_and_nothing_else(keys: DurableKeys, later: DurableKeys) -> None:
    names = fill(keys, 200, ex=60)
    keys.set("lasting", 1)
    keys.set("for days", 1, ex=10 * 86_400)
    assert KeyExpiry(keys).perform(Slice(100, 5.0)) == 0
    job = KeyExpiry(later)
    backlog = job.backlog()
    assert (backlog.count, backlog.what) == (200, "keys past their deadline")
    assert DAY_MS / 1000 - 120 < backlog.oldest_seconds < DAY_MS / 1000
    assert collect_all(job, limit=30) == 200
    assert sum(keys.client.exists(name) for name in names) == 0
    assert keys.mget(["lasting", "for days"]) == [b"1", b"1"]
    assert keys.ttl("for days") > 9 * 86_400
    assert job.backlog().oldest_seconds == 0.0


def test_a_slice_deletes_no_more_than_its_limit(keys: DurableKeys, later: DurableKeys) -> None:
    fill(keys, 60, ex=60)
    job = KeyExpiry(later, limit=7)
    before = job.backlog().count
    for _ in range(5):
        done = job.perform(Slice(job.limit, 5.0))
        assert 0 <= done <= 7
        after = job.backlog().count
        assert before - after == done
        before = after


def test_a_dry_run_counts_and_changes_nothing(keys: DurableKeys, later: DurableKeys) -> None:
    names = fill(keys, 20, ex=60)
    job = KeyExpiry(later, dry_run=True)
    counted = [job.perform(Slice(limit, 5.0)) for limit in (1, 5, 100) * 5]
    assert max(counted) > 1
    assert max(counted) <= 20
    assert min(counted[::3]) >= 0
    assert max(counted[::3]) == 1
    assert job.backlog().count == 20
    assert all(keys.client.exists(name) for name in names)


def test_nobody_has_used_the_namespace_yet(keys: DurableKeys) -> None:
    job = KeyExpiry(keys)
    assert job.perform(Slice(5, 5.0)) == 0
    assert job.backlog().count == 0
    assert keys.client.exists(keys.names.layout) == 0


@pytest.mark.parametrize("became", ["deleted", "a hash", "evicted later"])
def test_entries_whose_key_went_otherwise_are_collected(
    keys: DurableKeys, later: DurableKeys, became: str
) -> None:
    keys.set("k", 1, ex=60)
    keys.client.delete("k")
    if became == "a hash":
        keys.client.hset("k", "f", 1)
    assert collect_all(KeyExpiry(later)) == 1
    due = keys.names.due(keys.open().shard_of(key_slot(b"k")))
    assert keys.client.exists(due) == 0
    # What somebody else has put there is theirs.
    assert keys.client.exists("k") == (1 if became == "a hash" else 0)


def test_a_deadline_that_moved_between_look_and_delete(redis7: RedisServer) -> None:
    """The script asks each deadline once more: whatever a writer does in between, it is exact."""
    keys, later = keys_on(redis7), keys_on(redis7, DAY_MS)
    far = {"ex": 30 * 86_400}
    changes: dict[str, Callable[[], Any]] = {
        "set with a deadline": lambda: keys.set("k", 2, **far),
        "set for ever": lambda: keys.set("k", 2),
        "the same value": lambda: keys.set("k", 1, **far),
        "only the deadline": lambda: keys.expire("k", far["ex"]),
        "persist": lambda: keys.persist("k"),
        "getex": lambda: keys.getex("k", **far),
        "delete": lambda: keys.delete("k"),
    }
    for what, change in changes.items():
        keys.set("k", 1, ex=60)
        job = KeyExpiry(later)
        remove = job._collectors[""]._remove

        def changed_first(
            *args: Any, change: Callable[[], Any] = change, remove: Any = remove
        ) -> int:
            change()
            done: int = remove(*args)
            return done

        job._collectors[""]._remove = changed_first  # type: ignore[method-assign]
        assert job.perform(Slice(5, 5.0)) == 0, what
        assert keys.exists("k") == (0 if what == "delete" else 1), what
        keys.delete("k")


def test_recruits_at_the_same_moment_delete_each_key_once(redis7: RedisServer) -> None:
    fill(keys_on(redis7), 2_000, ex=60)
    totals: list[int] = []
    start = threading.Barrier(4)

    def work() -> None:
        job = KeyExpiry(keys_on(redis7, DAY_MS))
        start.wait()
        totals.append(sum(job.perform(Slice(50, 10.0)) for _ in range(40)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job = KeyExpiry(keys_on(redis7, DAY_MS))
    assert sum(totals) + collect_all(job) == 2_000
    assert len([total for total in totals if total]) > 1


def test_leases_that_nobody_gave_back_are_collected(keys: DurableKeys, later: DurableKeys) -> None:
    token = keys.acquire("lease", 10)
    # The lease, and the grant beside it.
    assert collect_all(KeyExpiry(later)) == 2
    assert keys.client.exists("lease") == 0
    assert keys.acquire("lease", 10) > token


def test_a_slice_takes_two_round_trips(redis7: RedisServer) -> None:
    fill(keys_on(redis7), 500, ex=60)
    job = KeyExpiry(keys_on(redis7, DAY_MS))
    job.perform(Slice(1, 5.0))
    before = SENT.round_trips
    assert job.perform(Slice(25, 5.0)) == 25
    assert SENT.round_trips - before == 2


def test_what_was_done_before_the_time_was_up_counts(redis7: RedisServer) -> None:
    fill(keys_on(redis7), 100, ex=60)
    job = KeyExpiry(keys_on(redis7, DAY_MS))
    clock = ManualClock()
    remove = job._collectors[""]._remove

    def slowly(*args: Any) -> int:
        done: int = remove(*args)
        clock.advance(5.0)
        return done

    job._collectors[""]._remove = slowly  # type: ignore[method-assign]
    before = job.backlog().count
    done = job.perform(Slice(1_000, 5.0, clock))
    assert 0 < done < 100
    assert before - job.backlog().count == done
    late = Slice(1_000, 5.0, clock)
    clock.advance(6.0)
    with pytest.raises(OutOfTime):
        job.perform(late)


def test_above_maxmemory_it_still_frees_memory(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    keys = keys_on(server)
    names = fill(keys, 5_000, ex=60)
    client = server.client()
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.OutOfMemoryError):
        client.set("any", 1)
    used = client.info("memory")["used_memory"]
    assert collect_all(KeyExpiry(keys_on(server, DAY_MS))) == 5_000
    assert client.exists(*names) == 0
    assert client.info("memory")["used_memory"] < used - 1_000_000


def test_a_server_that_has_lost_its_data(redis7: RedisServer) -> None:
    """The layout is written down again, and the structure registers and reads anew."""
    keys = keys_on(redis7)
    clock = itertools.count(step=100.0)

    class Clock:
        """Each look is 100 seconds after the one before."""

        def monotonic(self) -> float:
            return float(next(clock))

        def time(self) -> float:
            return 0.0

    job = KeyExpiry(keys, clock=Clock())
    keys.set("k", 1, ex=60)
    job.perform(Slice(5, 5.0))
    redis7.client().flushall()
    job.perform(Slice(5, 5.0))
    assert redis7.client().exists(keys.names.layout) == 1
    assert keys.layout is None
    assert keys.set("k", 1, ex=60)


@pytest.mark.parametrize("kind", ["due", "layout"])
def test_something_foreign_at_a_key_of_ours(redis7: RedisServer, kind: str) -> None:
    keys = keys_on(redis7)
    keys.open()
    client = redis7.client()
    foreign = (
        [keys.names.layout] if kind == "layout" else [keys.names.due(shard) for shard in range(16)]
    )
    for key in foreign:
        client.delete(key)
        client.rpush(key, 1)
    job = KeyExpiry(keys)
    with pytest.raises(LayoutError):
        job.perform(Slice(5, 5.0))
    with pytest.raises(LayoutError):
        job.backlog()
    assert all(client.lrange(key, 0, -1) == [b"1"] for key in foreign)


def test_a_layout_that_may_only_be_read_is_not_collected(redis7: RedisServer) -> None:
    keys = keys_on(redis7)
    keys.set("k", 1, ex=60)
    redis7.client().hset(keys.names.layout, mapping={"version": 2, "writable_from": 2})
    with pytest.raises(LayoutError, match="may read but not write"):
        KeyExpiry(keys_on(redis7, DAY_MS)).perform(Slice(5, 5.0))
    assert redis7.client().exists("k") == 1


def test_it_is_installed_as_any_job(redis7: RedisServer) -> None:
    fill(keys_on(redis7), 3, ex=60)
    later = keys_on(redis7, DAY_MS)
    recruiter: Recruiter = always(seconds=5.0)
    recruiter.install(KeyExpiry(later), rate=1.0)
    outcomes = {recruiter.enlist() for _ in range(20)}
    assert outcomes == {Outcome.WORKED, Outcome.IDLE}
    assert recruiter.stats()["jobs"][f"key_expiry.{NAMESPACE}"]["items"] == 3


async def test_it_takes_the_keys_of_an_asyncio_client(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        keys: AsyncDurableKeys = AsyncDurableKeys(client, NAMESPACE)
        await keys.set("k", 1, ex=60)
        later: AsyncDurableKeys = AsyncDurableKeys(client, NAMESPACE, clock_shift_ms=DAY_MS)
        assert collect_all(KeyExpiry(later)) == 1
        assert await client.exists("k") == 0


def test_its_settings() -> None:
    keys: DurableKeys = DurableKeys(redis.Redis(), NAMESPACE)
    job = KeyExpiry(keys, limit=9, name="mine")
    assert (job.name, job.limit, job.dependency) == ("mine", 9, keys.job_client.identity)
    assert KeyExpiry(keys).name == f"key_expiry.{NAMESPACE}"
    with pytest.raises(ConfigurationError, match="limit"):
        KeyExpiry(keys, limit=0)
    with pytest.raises(ConfigurationError, match="expected DurableKeys, not Redis"):
        KeyExpiry(redis.Redis())  # type: ignore[arg-type]


def test_a_slice_observes_the_age_of_the_oldest_key_that_it_saw(any_server: AnyServer) -> None:
    keys = keys_on(any_server)
    job = KeyExpiry(keys_on(any_server, 2 * HOUR_MS), limit=5)
    looking = Slice(5, 10.0)
    job.perform(looking)
    assert looking.oldest_seconds == 0.0
    fill(keys, 20, ex=3_600)
    looking = Slice(5, 10.0)
    assert job.perform(looking) == 5
    assert looking.oldest_seconds == pytest.approx(3_600, abs=30)
    # One slice looks at one node of a cluster.
    while job.backlog().count:
        job.perform(Slice(5, 10.0))
    looking = Slice(5, 10.0)
    assert job.perform(looking) == 0
    assert looking.oldest_seconds == 0.0


@pytest.mark.slow
def test_a_slice_observes_about_how_many_keys_wait(any_server: AnyServer) -> None:
    keys = keys_on(any_server)
    job = KeyExpiry(keys_on(any_server, 2 * HOUR_MS), limit=5)
    looking = Slice(5, 10.0)
    job.perform(looking)
    assert looking.backlog == 0
    fill(keys, 2_000, ex=3_600)
    # The first look has not been told the server's time, so it knows of what it takes alone.
    assert job.perform(Slice(5, 10.0)) == 5
    for _ in range(4):
        looking = Slice(5, 10.0)
        assert job.perform(looking) == 5
        assert looking.backlog is not None
        assert 1_200 < looking.backlog < 2_800
    collect_all(job, limit=500)
    looking = Slice(5, 10.0)
    assert job.perform(looking) == 0
    assert looking.backlog == 0


def test_the_job_names_its_structure(redis7: RedisServer) -> None:
    keys = keys_on(redis7)
    assert KeyExpiry(keys).structures == (keys,)
