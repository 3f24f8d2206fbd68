"""Every job that frees memory does so on a server that is full, when it is needed most."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.compacted_logs import assert_sound, compactor, entries, forms, made
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.set_clock import SetClock
from support.table_source import TableSource
from workstealing.errors import Aborted
from workstealing.jobs import (
    FairQueueReaper,
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    LogTrimmer,
    MigrateToEmulated,
    MigrateToNative,
    QueueExpiry,
    ShuffleQueueReaper,
    TimeShardSweeper,
    UntrackDone,
)
from workstealing.jobs.log_compactor import Compactor
from workstealing.recruiting import Job, Slice
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)

pytestmark = pytest.mark.real

DAY_MS = 86_400_000


def hash_fields(client: Any) -> Job:
    hashes = VolatileHashes(client, namespace="h", backend="emulated")
    for number in range(20):
        hashes.hsetex(f"h{number}", mapping={"a": "x" * 500, "b": "y"}, ex=60)
    later = VolatileHashes(client, namespace="h", backend="emulated", clock_shift_ms=DAY_MS)
    return HashFieldExpiry(later, limit=50)


def keys(client: Any) -> Job:
    durable = DurableKeys(client, namespace="d")
    for number in range(20):
        durable.set(f"d{number}", b"x" * 500, ex=60)
    return KeyExpiry(DurableKeys(client, namespace="d", clock_shift_ms=DAY_MS), limit=50)


def ick(client: Any) -> Job:
    one = Ick(client, "i")
    one.add({f"m{number}": number for number in range(20)})
    one.reserve(20)
    time.sleep(0.01)
    return IckReaper(one, 0.001, limit=50)


def messages(client: Any) -> Job:
    queue = ShuffleQueue(client, "q")
    for number in range(20):
        queue.write(f"t{number}", {"n": number})
    queue.read_many("g", "c", 20)
    time.sleep(0.01)
    return ShuffleQueueReaper(queue, limit=50, lease=0.001)


def leases(client: Any) -> Job:
    queue = FairQueue(client, "f", lease=0.001)
    for number in range(20):
        queue.write(f"t{number}", {"n": "x" * 500}, ttl=3600)
    queue.read_many("c", 20)
    time.sleep(0.01)
    # All is past its deadline, and every consumer and account is forgotten.
    return FairQueueReaper(FairQueue(client, "f", clock_shift_ms=DAY_MS), limit=50)


def idle_fair_queue(client: Any) -> Job:
    queue = FairQueue(client, "e")
    queue.write("t", {"n": 1}, tracking_id="x", dedupe=("k", 60))
    return QueueExpiry(FairQueue(client, "e", clock_shift_ms=30 * DAY_MS))


def idle_fair_queue_with_dead(client: Any) -> Job:
    queue = FairQueue(client, "e", max_attempts=1)
    for number in range(3):
        queue.write("t", {"n": number})
    message = queue.read("c")
    assert message is not None
    assert queue.nack(message) == 1
    return QueueExpiry(FairQueue(client, "e", clock_shift_ms=30 * DAY_MS))


def idle_queue(client: Any) -> Job:
    queue = ShuffleQueue(client, "e")
    queue.write("t", {"n": 1})
    place = queue._place
    assert place is not None
    # Its time to live has passed long ago.
    client.zadd(place[0], {queue.keys.name: 1})
    return QueueExpiry(queue)


def consumed(client: Any) -> Job:
    clock = SetClock()
    queue = TimeShardQueue(RedisStore(client), "s", 6, 60, clock=clock)
    for number in range(20):
        queue.put(f"m{number}", 1.0)
    clock.go(121)
    assert queue.ack(*queue.take_many("c", 20, 600.0)) == 20
    clock.go(120)
    return TimeShardSweeper(queue, limit=50)


def ids(client: Any) -> Job:
    tracked = TrackedSet(client, "t", TableSource(), sub_sets=2)
    tracked.track(range(20))
    return UntrackDone(tracked, limit=50)


def full_blocks(client: Any) -> Job:
    made(client, name="l")
    return compactor(client, name="l", later=True)


def cold_blocks(client: Any) -> Job:
    made(client, name="l")
    compactor(client, name="l").perform(Slice(100, 10.0))
    return compactor(client, name="l", later=True)


def old_blocks(client: Any) -> Job:
    return LogTrimmer(made(client, name="l"), limit=50, max_entries=10)


def hashes_to_hand_over(client: Any) -> Job:
    hashes = VolatileHashes(client, namespace="m", backend="emulated")
    for number in range(20):
        hashes.hsetex(f"h{number}", mapping={"a": "x" * 500}, ex=3600)
    return MigrateToNative(VolatileHashes(client, namespace="m"), limit=50)


def hashes_to_hand_back(client: Any) -> Job:
    hashes = VolatileHashes(client, namespace="b", backend="native")
    for number in range(20):
        hashes.hsetex(f"h{number}", mapping={"a": "x" * 500}, ex=3600)
    # Every process has noticed long ago.
    client.hset("ws:b:layout", mapping={"backend": "returning", "since": 0})
    return MigrateToEmulated(VolatileHashes(client, namespace="b"), "h*", limit=50)


JOBS = [
    hash_fields,
    keys,
    ick,
    messages,
    leases,
    idle_queue,
    idle_fair_queue,
    idle_fair_queue_with_dead,
    consumed,
    ids,
    full_blocks,
    cold_blocks,
    old_blocks,
    hashes_to_hand_over,
    hashes_to_hand_back,
]
NEED_NATIVE = (hashes_to_hand_over, hashes_to_hand_back)


@pytest.fixture(params=[("6.2", "redis"), (7, "redis"), (8, "redis"), (8, "valkey")], ids=str)
def client(request: pytest.FixtureRequest, start_redis: Callable[..., RedisServer]) -> Any:
    version, product = request.param
    return start_redis(version, product, maxmemory_policy="noeviction").client()


@pytest.mark.slow
@pytest.mark.parametrize("prepare", JOBS, ids=lambda each: each.__name__)
def test_a_job_frees_memory_on_a_full_server(client: Any, prepare: Callable[[Any], Job]) -> None:
    if prepare in NEED_NATIVE and client.info("server")["redis_version"] < "7.4":
        pytest.skip("this server has no field commands to hand over to")
    job = prepare(client)
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set("any", 1)
    done = 0
    for _ in range(50):
        try:
            done += job.perform(Slice(job.limit, 10.0)) or 0
        except Aborted:
            continue
    assert done > 0
    assert job.perform(Slice(job.limit, 10.0)) == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_compacting_a_full_server_loses_nothing(client: Any, sealed: bool) -> None:
    log = made(client)
    if sealed:
        compactor(client).perform(Slice(100, 10.0))
    client.config_set("maxmemory", 1)
    assert compactor(client, later=True).perform(Slice(100, 10.0)) == 3
    assert set(forms(client, log)[:3]) <= {"Z", "S"}
    assert Log(client, "l").read(0, 100) == entries(35)
    client.config_set("maxmemory", 0)
    assert_sound(client, log)


@pytest.mark.parametrize("codec", ["none", "zlib"])
def test_sealing_waits_for_room(client: Any, codec: str) -> None:
    """A sealed block is some per cent larger than its list, so it frees nothing."""
    log = made(client)
    client.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        compactor(client, codec=codec).perform(Slice(100, 10.0))
    assert forms(client, log) == "LLLL"


def test_what_frees_memory_does_not_wait_for_what_does_not(client: Any) -> None:
    log = made(client)
    now = float(client.time()[0] * 1000)
    client.zadd(log.keys.full, {"1": now - 10 * DAY_MS})
    client.config_set("maxmemory", 1)
    assert compactor(client).perform(Slice(100, 10.0)) == 1
    found = forms(client, log)
    assert found[1] in "ZS"
    assert found.replace(found[1], "", 1) == "LLL"
    client.config_set("maxmemory", 0)
    assert_sound(client, log)


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("what", ["evict", "delete", "remake", "compact"])
def test_what_comes_before_the_script_alone_is_left_as_it_is(
    client: Any, monkeypatch: pytest.MonkeyPatch, sealed: bool, what: str
) -> None:
    """The attempt was refused, and somebody else comes before the script looks again."""
    log = made(client)
    if sealed:
        compactor(client).perform(Slice(100, 10.0))
    alone = Compactor._change_when_full

    def after(*args: Any) -> None:
        client.config_set("maxmemory", 0)
        if what == "evict":
            log.evict(keep=5)
        elif what == "compact":
            monkeypatch.setattr(Compactor, "_change_when_full", alone)
            compactor(client, later=True).perform(Slice(100, 10.0))
        else:
            log.delete()
            if what == "remake":
                log.append(*entries(8))
        client.config_set("maxmemory", 1)
        alone(*args)

    monkeypatch.setattr(Compactor, "_change_when_full", after)
    client.config_set("maxmemory", 1)
    with pytest.raises(Aborted):
        compactor(client, later=True).perform(Slice(100, 10.0))
    client.config_set("maxmemory", 0)
    if what == "delete":
        assert list(client.scan_iter("*")) == []
    else:
        assert_sound(client, log)
