"""TimeShardQueues on servers of tests, with clocks that are set or ahead."""

from __future__ import annotations

from typing import Any

from support.servers import AnyServer
from workstealing.structures import RedisStore, TimeShardQueue

TURN = 120.0
"""How long after a put the consumers come to its time shard, in seconds."""


def queue_on(
    server: AnyServer,
    clock: Any,
    shards: int = 6,
    ahead_ms: int = 0,
    name: str | bytes = "letters",
    **options: Any,
) -> TimeShardQueue:
    """Return a queue with periods of a minute; options are the client's."""
    client = server.client(**options)
    store = RedisStore(client, clock_shift_ms=ahead_ms)
    made: TimeShardQueue = TimeShardQueue(store, name, shards, 60, clock=clock)
    return made


def ahead_of(queue: TimeShardQueue, clock: Any, ahead_ms: int) -> TimeShardQueue:
    """Return the same queue with scripts whose clock is ahead, so that leases have ended."""
    rotation = queue.rotation
    store = RedisStore(queue.store.client, clock_shift_ms=ahead_ms)
    made: TimeShardQueue = TimeShardQueue(
        store, queue.name, rotation.time_shards, rotation.period_ms / 1000, clock=clock
    )
    return made


def everything(server: AnyServer) -> dict[bytes, Any]:
    """Return all keys with their values."""
    client = server.client()
    return {key: client.dump(key) for key in sorted(client.scan_iter(count=1000))}


def totals(queue: TimeShardQueue) -> dict[str, int]:
    """Return the counts of all time shards, summed up, without those that are 0."""
    found = queue.stats()
    names = ("waiting", "due", "leased", "consumed", "dead")
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    return {name: number for name, number in sums.items() if number}
