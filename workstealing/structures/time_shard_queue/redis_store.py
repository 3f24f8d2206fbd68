"""The store of TimeShardQueues on a Redis server or cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Generic, Literal

from workstealing.store.twin import AsyncClient, BlockingClient, ClientT, twin_for
from workstealing.structures.layout import checked_policies
from workstealing.structures.time_shard_queue.redis_time_shards import (
    AsyncRedisTimeShards,
    RedisTimeShards,
)
from workstealing.structures.time_shard_queue.rotation import Rotation


class _RedisStore(Generic[ClientT]):
    _kind: type[RedisTimeShards]

    def __init__(
        self, client: ClientT, *, allow_eviction: Collection[str] = (), clock_shift_ms: int = 0
    ) -> None:
        self.client: Any = client
        twin_for(self, client)
        self._policies = checked_policies(allow_eviction)
        self._clock_shift_ms = clock_shift_ms

    def bind(self, name: bytes, rotation: Rotation) -> RedisTimeShards:
        """Return the time shards of a queue; no round trip."""
        return self._kind(self.client, name, rotation, self._policies, self._clock_shift_ms)


class RedisStore(_RedisStore[BlockingClient]):
    """Keeps TimeShardQueues on a Redis server or cluster.

    Arguments: client: a redis.Redis or redis.RedisCluster (`AsyncRedisStore` takes an asyncio
    client); allow_eviction: ``allkeys-*`` policies that are accepted although they may
    evict messages; clock_shift_ms: for tests, how far the scripts' clock is ahead of the server's.
    """

    _is_async_client: Literal[False] = False

    _kind = RedisTimeShards

    @property
    def asynchronous(self) -> Literal[False]:
        """Whether what `bind` returns is for asyncio."""
        return False


class AsyncRedisStore(_RedisStore[AsyncClient]):
    """Keeps TimeShardQueues on a redis.asyncio client; see `RedisStore`."""

    _is_async_client: Literal[True] = True

    _kind = AsyncRedisTimeShards

    @property
    def asynchronous(self) -> Literal[True]:
        """Whether what `bind` returns is for asyncio."""
        return True
