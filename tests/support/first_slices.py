"""Fresh processes in which a job does its first slice, and what that slice had to load.

`GARBAGE` fills a server for each ready-made job; `first_slice` is what the fresh process runs. It
names the jobs and the structures by their packages, so a process loads those of its own job alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import redis

from support.table_source import TableSource
from workstealing import Outcome, Recruiter, jobs, structures
from workstealing.recruiting.job import Job

AGO_MS = -3_600_000
WORK = [f"w{number}" for number in range(20)]
PERIOD_S = 60
# What a slice may not do: find, read and run code, or read files.
LOADING = frozenset({"import", "open", "exec", "compile", "os.listdir", "os.scandir"})


class _Wall:
    """A clock that stands still in one period of a queue of time shards."""

    def __init__(self, period: int) -> None:
        self._seconds = PERIOD_S * (6_000 + period) + 1.0

    def time(self) -> float:
        return self._seconds


def _hashes(client: Any, ago_ms: int = 0) -> structures.VolatileHashes:
    return structures.VolatileHashes(client, "first", backend="emulated", clock_shift_ms=ago_ms)


def _queue(client: Any) -> structures.ShuffleQueue:
    return structures.ShuffleQueue(client, "first", streams=1, streams_per_tenant=1)


def _fair_queue(client: Any) -> structures.FairQueue:
    return structures.FairQueue(client, "first", lease=0.001)


def _time_shards(client: Any, period: int) -> structures.TimeShardQueue:
    return structures.TimeShardQueue(
        structures.RedisStore(client), "first", 6, PERIOD_S, clock=_Wall(period)
    )


def _log(client: Any) -> structures.Log:
    return structures.Log(client, "first", 4)


def _tracked(client: Any, work: list[str]) -> structures.TrackedSet:
    return structures.TrackedSet(client, "first", TableSource(work), sub_sets=1)


def _fill_queue(client: Any) -> structures.ShuffleQueue:
    queue = _queue(client)
    queue.write("tenant", {"n": 1})
    assert queue.read("group", "dead consumer") is not None
    return queue


def _fill_fair_queue(client: Any) -> None:
    queue = _fair_queue(client)
    queue.write("tenant", {"n": 1})
    assert queue.read("dead consumer") is not None


def _fill_expired_queue(client: Any) -> None:
    queue = _fill_queue(client)
    assert queue._place is not None
    client.zadd(queue._place[0], {queue.keys.name: 1})


def _fill_time_shards(client: Any) -> None:
    _time_shards(client, 0).put("message", 1.0)
    consuming = _time_shards(client, 2)
    (taken,) = consuming.take_many("consumer", 1, 600.0)
    assert consuming.ack(taken)


def _begin_the_way_back(client: Any) -> None:
    structures.VolatileHashes(client, "first", backend="native").hsetex(
        "h", mapping={"f": 1}, ex=1000
    )
    # Every process has noticed long ago.
    client.hset("ws:first:layout", mapping={"backend": "returning", "since": 0})


GARBAGE: dict[str, Callable[[Any], Any]] = {
    "hash_field_expiry": lambda c: _hashes(c, AGO_MS).hsetex("h", mapping={"f": 1}, ex=1),
    "key_expiry": lambda c: structures.DurableKeys(c, "first", clock_shift_ms=AGO_MS).set(
        "k", "v", ex=1
    ),
    "ick_reaper": lambda c: (
        structures.Ick(c, "first").add({"m": 1}),
        structures.Ick(c, "first").reserve(1),
    ),
    "shuffle_queue_reaper": _fill_queue,
    "fair_queue_reaper": _fill_fair_queue,
    "queue_expiry": _fill_expired_queue,
    "time_shard_sweeper": _fill_time_shards,
    "log_compactor": lambda c: _log(c).append(*(b"entry" for _ in range(9))),
    "log_trimmer": lambda c: _log(c).append(*(b"entry" for _ in range(9))),
    "track_queued": lambda c: _tracked(c, WORK).open(),
    "untrack_done": lambda c: _tracked(c, []).track(WORK),
    "migrate_to_native": lambda c: _hashes(c).hsetex("h", mapping={"f": 1}, ex=1000),
    "migrate_to_emulated": _begin_the_way_back,
    "adopt_hashes": lambda c: _hashes(c).hset("h", mapping={"f": 1}),
}

JOBS: dict[str, Callable[[Any], Job]] = {
    "hash_field_expiry": lambda c: jobs.HashFieldExpiry(_hashes(c)),
    "key_expiry": lambda c: jobs.KeyExpiry(structures.DurableKeys(c, "first")),
    "ick_reaper": lambda c: jobs.IckReaper(structures.Ick(c, "first"), 0.001),
    "shuffle_queue_reaper": lambda c: jobs.ShuffleQueueReaper(
        _queue(c), lease=0.001, random=lambda: 0.3
    ),
    "fair_queue_reaper": lambda c: jobs.FairQueueReaper(_fair_queue(c), random=lambda: 0.3),
    "queue_expiry": lambda c: jobs.QueueExpiry(_queue(c)),
    "time_shard_sweeper": lambda c: jobs.TimeShardSweeper(_time_shards(c, 4)),
    "log_compactor": lambda c: jobs.LogCompactor(_log(c)),
    "log_trimmer": lambda c: jobs.LogTrimmer(_log(c), max_entries=1),
    "track_queued": lambda c: jobs.TrackQueued(_tracked(c, WORK)),
    "untrack_done": lambda c: jobs.UntrackDone(_tracked(c, [])),
    "migrate_to_native": lambda c: jobs.MigrateToNative(structures.VolatileHashes(c, "first")),
    "migrate_to_emulated": lambda c: jobs.MigrateToEmulated(
        structures.VolatileHashes(c, "first"), "h*"
    ),
    "adopt_hashes": lambda c: jobs.AdoptHashes(structures.VolatileHashes(c, "first"), "h*", ttl=5),
}


def first_slice(name: str, options: dict[str, Any], *, in_child: bool, seconds: float) -> None:
    """Print what one recruit of this process, or of a forked child of it, came to.

    Arguments:
        name: of the job.
        options: of redis-py's client.
        in_child: fork after installing.
        seconds: of the slice.

    Prints: the outcome, and what was loaded meanwhile.
    """
    loaded: list[str] = []
    is_watched = False

    def see(event: str, given: tuple[Any, ...]) -> None:
        if is_watched and event in LOADING:
            loaded.append(f"{event} {str(given)[:200]}")

    recruiter = Recruiter(seconds=seconds)
    recruiter.install(JOBS[name](redis.Redis(**options)), rate=1)
    if in_child and os.fork():
        _, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status))
    sys.addaudithook(see)
    is_watched = True
    outcome: Outcome = recruiter.enlist()
    is_watched = False
    print(json.dumps([outcome.value, loaded]), flush=True)  # noqa: T201 - for the test
