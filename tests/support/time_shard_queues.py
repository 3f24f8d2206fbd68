"""TimeShardQueues on servers of tests, with clocks that are set or ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.cassandra import CassandraServer
from support.servers import AnyServer
from workstealing.structures import AsyncRedisStore, RedisStore, TimeShardQueue

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
    """Return a queue with periods of a minute; options are those of a client of Redis."""
    return TimeShardQueue(store_on(server, ahead_ms, **options), name, shards, 60, clock=clock)


def store_on(server: AnyServer, ahead_ms: int = 0, **options: Any) -> Any:
    """Return a store whose clock is ahead; options are those of a client of Redis."""
    if isinstance(server, CassandraServer):
        return server.store(ahead_ms)
    return RedisStore(server.client(**options), clock_shift_ms=ahead_ms)


@asynccontextmanager
async def async_store_on(server: AnyServer) -> AsyncIterator[Any]:
    """Lend a store for asyncio."""
    if isinstance(server, CassandraServer):
        yield server.async_store()
    else:
        async with server.async_client() as client:
            yield AsyncRedisStore(client)


def keeps_litter(server: AnyServer) -> bool:
    """Say whether what is done stays until a sweeper comes: Cassandra deletes it at once."""
    return not isinstance(server, CassandraServer)


def ahead_of(queue: TimeShardQueue, clock: Any, ahead_ms: int) -> TimeShardQueue:
    """Return the same queue with scripts whose clock is ahead, so that leases have ended."""
    rotation, store = queue.rotation, queue.store
    if isinstance(store, RedisStore):
        ahead: Any = RedisStore(store.client, clock_shift_ms=ahead_ms)
    else:
        ahead = type(store)(store.session, *store.table.split("."), clock_shift_ms=ahead_ms)
    return TimeShardQueue(
        ahead, queue.name, rotation.time_shards, rotation.period_ms / 1000, clock=clock
    )


def everything(server: AnyServer) -> dict[Any, Any]:
    """Return all keys with their values, but for those that the server itself removes."""
    if isinstance(server, CassandraServer):
        return server.rows()
    client = server.client()
    keys = sorted(client.scan_iter(count=1000))
    return {key: client.dump(key) for key in keys if not is_receipt(client, key)}


def is_receipt(client: Any, key: bytes) -> bool:
    """Say whether a key is a take's receipt, or has notifications; it is gone within a minute."""
    if b":ws:time_shard:taken." not in key and b":ws:time_shard:notifications:" not in key:
        return False
    left = client.pttl(key)
    assert left == -2 or 0 < left <= 60_000
    return True


def totals(queue: TimeShardQueue) -> dict[str, int]:
    """Return the counts of all time shards, summed up, without those that are 0."""
    found = queue.stats()
    names = ("waiting", "due", "leased", "consumed", "dead")
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    return {name: number for name, number in sums.items() if number}
