"""The bounds of a slice that the designs behind the jobs give, where nobody gives another one.

A slice finds far more than its bound, so that a larger default is seen as well as a smaller one.
"""

from __future__ import annotations

import time

from support.patience import GUARD_SECONDS, patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.table_source import TableSource
from workstealing.jobs import (
    FairQueueReaper,
    HashFieldExpiry,
    IckReaper,
    ShuffleQueueReaper,
    TrackQueued,
    UntrackDone,
)
from workstealing.recruiting import Outcome, Slice
from workstealing.recruiting.job import Job
from workstealing.structures import FairQueue, Ick, Log, ShuffleQueue, TrackedSet, VolatileHashes
from workstealing.testing import always

MANY = 600


def items_of_a_slice(job: Job) -> int:
    """Recruit one caller for a job, by its own limit; return how many items it handled."""
    recruiter = always()
    recruiter.install(job, rate=1.0, seconds=60.0)
    assert recruiter.enlist() is Outcome.WORKED
    return recruiter.stats()["jobs"][job.name]["items"]


def test_track_queued_adds_50_rows_a_slice(redis7: RedisServer) -> None:
    source = TableSource(f"{n:05}" for n in range(10 * MANY))
    tracked = TrackedSet(redis7.client(), "queued", source)
    assert items_of_a_slice(TrackQueued(tracked)) == 50
    assert tracked.count() == 50
    assert all(tracked.are_tracked(f"{n:05}" for n in range(50)))


def test_untrack_done_samples_5_ids_a_slice(redis7: RedisServer) -> None:
    asked: list[int] = []

    class Counting(TableSource):
        def with_work(self, ids: list[str], seconds: float) -> set[str]:
            asked.append(len(ids))
            return super().with_work(ids, seconds)

    # One sub-set, so that the slice could sample them all.
    tracked = TrackedSet(redis7.client(), "queued", Counting([]), sub_sets=1)
    tracked.track(range(MANY))
    assert items_of_a_slice(UntrackDone(tracked)) == 5
    assert asked == [5]
    assert tracked.count() == MANY - 5


def test_ick_reaper_returns_5_reservations_a_slice(redis7: RedisServer) -> None:
    ick: Ick = Ick(redis7.client(), "ick")
    ick.add({str(n): n for n in range(MANY)})
    ick.reserve(MANY)
    time.sleep(0.05)
    assert items_of_a_slice(IckReaper(ick, lease=0.02)) == 5
    found = ick.stats()
    assert (found["pset_size"], found["cset_size"]) == (5, MANY - 5)


def test_hash_field_expiry_removes_5_fields_a_slice(redis7: RedisServer) -> None:
    client = redis7.client()
    hashes = VolatileHashes(client, "seeds", backend="emulated")
    hashes.hsetex("h", mapping={str(n): n for n in range(MANY)}, px=1)
    time.sleep(0.05)
    assert items_of_a_slice(HashFieldExpiry(hashes)) == 5
    assert client.hlen("h") == MANY - 5


def test_ick_reaper_returns_an_item_5_times_before_it_sets_it_aside(redis7: RedisServer) -> None:
    ick: Ick = Ick(redis7.client(), "ick")
    ick.add({"poison": 1})
    job = IckReaper(ick, lease=0.001)
    for _ in range(5 + 1):
        assert not ick.dead()
        ick.reserve(1)
        time.sleep(0.01)
        assert items_of_a_slice(job) == 1
    (dead,) = ick.dead()
    assert dead.member == b"poison"


def test_shuffle_queue_reaper_sets_a_message_aside_after_5_deliveries(
    redis7: RedisServer,
) -> None:
    queue: ShuffleQueue = ShuffleQueue(redis7.client(), "q")
    queue.write("tenant", {"poison": "1"})
    job = ShuffleQueueReaper(queue, lease=0.001)
    delivered = 0
    end = time.monotonic() + GUARD_SECONDS
    while not queue.dead("g") and time.monotonic() < end:
        delivered += queue.read("g", "c") is not None
        time.sleep(0.01)
        job.perform(Slice(25, 60.0))
    assert len(queue.dead("g")) == 1
    assert delivered == 5


def test_a_fair_queue_sets_a_message_aside_after_5_deliveries(redis7: RedisServer) -> None:
    queue: FairQueue = FairQueue(redis7.client(), "q", lease=0.001)
    queue.write("tenant", {"poison": "1"})
    job = FairQueueReaper(queue)
    delivered = 0
    end = time.monotonic() + GUARD_SECONDS
    while not queue.dead() and time.monotonic() < end:
        delivered += queue.read("c") is not None
        time.sleep(0.01)
        job.perform(Slice(25, 60.0))
    assert len(queue.dead()) == 1
    assert delivered == 5


def test_a_group_of_a_log_sets_an_entry_aside_after_5_deliveries(
    redis7: RedisServer,
) -> None:
    log: Log = Log(redis7.client(), "l")
    log.append(b"poison")
    group = log.group("g", ack=True, lease=0.01)
    delivered = 0
    end = time.monotonic() + GUARD_SECONDS
    while not group.dead() and time.monotonic() < end:
        delivered += len(group.read(1))
        time.sleep(0.02)
    assert len(group.dead()) == 1
    assert delivered == 5
