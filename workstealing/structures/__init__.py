"""The data structures that the ready-made jobs keep clean."""

from workstealing.store.paging import Page
from workstealing.structures.durable_keys import (
    AsyncDurableKeys,
    AsyncKeyPipeline,
    AsyncLease,
    DurableKeys,
    KeyPipeline,
    Lease,
)
from workstealing.structures.ick import (
    Acked,
    Added,
    AsyncIck,
    AsyncIckPipeline,
    Batch,
    DeadMember,
    Ick,
    IckPipeline,
)
from workstealing.structures.log import AsyncLog, Log, LogRange, LogStats
from workstealing.structures.sharded_ick import (
    AsyncLeasedIck,
    AsyncShardedIck,
    AsyncShardedIckPipeline,
    LeasedIck,
    LeaseLost,
    NoLease,
    ShardedIck,
    ShardedIckPipeline,
)
from workstealing.structures.shuffle_queue import AsyncShuffleQueue, Message, ShuffleQueue
from workstealing.structures.time_shard_queue import (
    AsyncRedisStore,
    AsyncTimeShardQueue,
    RedisStore,
    Taken,
    TimeShardQueue,
    TimeShardStats,
)
from workstealing.structures.tracked_set import (
    AsyncTrackedSet,
    AsyncTrackedSetPipeline,
    Drift,
    TrackedSet,
    TrackedSetPipeline,
)
from workstealing.structures.volatile_hashes import (
    AsyncHashPipeline,
    AsyncVolatileHashes,
    HashPipeline,
    VolatileHashes,
)

__all__ = [
    "Acked",
    "Added",
    "AsyncDurableKeys",
    "AsyncHashPipeline",
    "AsyncIck",
    "AsyncIckPipeline",
    "AsyncKeyPipeline",
    "AsyncLease",
    "AsyncLeasedIck",
    "AsyncLog",
    "AsyncRedisStore",
    "AsyncShardedIck",
    "AsyncShardedIckPipeline",
    "AsyncShuffleQueue",
    "AsyncTimeShardQueue",
    "AsyncTrackedSet",
    "AsyncTrackedSetPipeline",
    "AsyncVolatileHashes",
    "Batch",
    "DeadMember",
    "Drift",
    "DurableKeys",
    "HashPipeline",
    "Ick",
    "IckPipeline",
    "KeyPipeline",
    "Lease",
    "LeaseLost",
    "LeasedIck",
    "Log",
    "LogRange",
    "LogStats",
    "Message",
    "NoLease",
    "Page",
    "RedisStore",
    "ShardedIck",
    "ShardedIckPipeline",
    "ShuffleQueue",
    "Taken",
    "TimeShardQueue",
    "TimeShardStats",
    "TrackedSet",
    "TrackedSetPipeline",
    "VolatileHashes",
]
