"""The data structures that the ready-made jobs keep clean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.recruiting.cache_figures import CacheStats, cache_stats
    from workstealing.store.paging import Page
    from workstealing.structures.durable_keys import (
        AsyncDurableKeys,
        AsyncLease,
        DurableKeys,
        Lease,
    )
    from workstealing.structures.fair_queue import AsyncFairQueue, FairMessage, FairQueue
    from workstealing.structures.ick import Acked, Added, AsyncIck, Batch, DeadMember, Ick
    from workstealing.structures.log import AsyncLog, Log, LogRange, LogStats
    from workstealing.structures.queue_messages import NewMessage
    from workstealing.structures.sharded_ick import (
        AsyncLeasedIck,
        AsyncShardedIck,
        LeasedIck,
        LeaseLost,
        NoLease,
        ShardedIck,
    )
    from workstealing.structures.shuffle_queue import AsyncShuffleQueue, Message, ShuffleQueue
    from workstealing.structures.time_shard_queue import (
        AsyncCassandraStore,
        AsyncRedisStore,
        AsyncTimeShardQueue,
        CassandraStore,
        RedisStore,
        Taken,
        TimeShardQueue,
        TimeShardStats,
    )
    from workstealing.structures.tracked_set import AsyncTrackedSet, Drift, TrackedSet
    from workstealing.structures.volatile_hashes import (
        AsyncVolatileHashes,
        Serializer,
        VolatileHashes,
    )

__all__ = [
    "Acked",
    "Added",
    "AsyncCassandraStore",
    "AsyncDurableKeys",
    "AsyncFairQueue",
    "AsyncIck",
    "AsyncLease",
    "AsyncLeasedIck",
    "AsyncLog",
    "AsyncRedisStore",
    "AsyncShardedIck",
    "AsyncShuffleQueue",
    "AsyncTimeShardQueue",
    "AsyncTrackedSet",
    "AsyncVolatileHashes",
    "Batch",
    "CacheStats",
    "CassandraStore",
    "DeadMember",
    "Drift",
    "DurableKeys",
    "FairMessage",
    "FairQueue",
    "Ick",
    "Lease",
    "LeaseLost",
    "LeasedIck",
    "Log",
    "LogRange",
    "LogStats",
    "Message",
    "NewMessage",
    "NoLease",
    "Page",
    "RedisStore",
    "Serializer",
    "ShardedIck",
    "ShuffleQueue",
    "Taken",
    "TimeShardQueue",
    "TimeShardStats",
    "TrackedSet",
    "VolatileHashes",
    "cache_stats",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {
            "workstealing.recruiting.cache_figures": "CacheStats cache_stats",
            "workstealing.store.paging": "Page",
            "workstealing.structures.durable_keys": "AsyncDurableKeys AsyncLease DurableKeys Lease",
            "workstealing.structures.fair_queue": "AsyncFairQueue FairMessage FairQueue",
            "workstealing.structures.ick": "Acked Added AsyncIck Batch DeadMember Ick",
            "workstealing.structures.log": "AsyncLog Log LogRange LogStats",
            "workstealing.structures.queue_messages": "NewMessage",
            "workstealing.structures.sharded_ick": (
                "AsyncLeasedIck AsyncShardedIck LeaseLost LeasedIck NoLease ShardedIck"
            ),
            "workstealing.structures.shuffle_queue": "AsyncShuffleQueue Message ShuffleQueue",
            "workstealing.structures.time_shard_queue": (
                "AsyncCassandraStore AsyncRedisStore AsyncTimeShardQueue CassandraStore"
                " RedisStore Taken TimeShardQueue TimeShardStats"
            ),
            "workstealing.structures.tracked_set": "AsyncTrackedSet Drift TrackedSet",
            "workstealing.structures.volatile_hashes": (
                "AsyncVolatileHashes Serializer VolatileHashes"
            ),
        },
    )
