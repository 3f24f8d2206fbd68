"""TimeShardQueue: a queue by due time whose producers and consumers never meet."""

from workstealing.structures.time_shard_queue.cassandra_store import (
    AsyncCassandraStore,
    CassandraStore,
)
from workstealing.structures.time_shard_queue.queue import AsyncTimeShardQueue, TimeShardQueue
from workstealing.structures.time_shard_queue.redis_store import AsyncRedisStore, RedisStore
from workstealing.structures.time_shard_queue.rotation import Rotation
from workstealing.structures.time_shard_queue.store import (
    DeadDueMessage,
    Store,
    Taken,
    TimeShardStats,
)

__all__ = [
    "AsyncCassandraStore",
    "AsyncRedisStore",
    "AsyncTimeShardQueue",
    "CassandraStore",
    "DeadDueMessage",
    "RedisStore",
    "Rotation",
    "Store",
    "Taken",
    "TimeShardQueue",
    "TimeShardStats",
]
