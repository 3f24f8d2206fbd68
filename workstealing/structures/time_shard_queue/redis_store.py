"""The store of TimeShardQueues on a Redis server or cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, Self, overload

from workstealing.store.twin import AsyncClient, BlockingClient, is_async, twin_of
from workstealing.structures.namespaces.layout import checked_policies
from workstealing.structures.time_shard_queue.redis_time_shards import (
    AsyncRedisTimeShards,
    RedisTimeShards,
)
from workstealing.structures.time_shard_queue.rotation import Rotation


class _RedisStore:
    _kind: type[RedisTimeShards]

    def __init__(
        self, client: Any, *, allow_eviction: Collection[str] = (), clock_shift_ms: int = 0
    ) -> None:
        self.client = client
        twin_of(client)
        self._policies = checked_policies(allow_eviction)
        self._clock_shift_ms = clock_shift_ms

    def bind(self, name: bytes, rotation: Rotation) -> RedisTimeShards:
        """Return the time shards of a queue; no round trip."""
        return self._kind(self.client, name, rotation, self._policies, self._clock_shift_ms)


class RedisStore(_RedisStore):
    """Keeps TimeShardQueues on a Redis server or cluster.

    Arguments: client: a redis.Redis or redis.RedisCluster (an asyncio client gives an
    `AsyncRedisStore`); allow_eviction: ``allkeys-*`` policies that are accepted although they may
    evict messages; clock_shift_ms: for tests, how far the scripts' clock is ahead of the server's.
    """

    _kind = RedisTimeShards

    # mypy would have it return a subclass; who calls it is told the right type even so.
    @overload
    def __new__(  # type: ignore[misc]
        cls,
        client: AsyncClient,
        *,
        allow_eviction: Collection[str] = ...,
        clock_shift_ms: int = ...,
    ) -> AsyncRedisStore: ...

    @overload
    def __new__(
        cls,
        client: BlockingClient,
        *,
        allow_eviction: Collection[str] = ...,
        clock_shift_ms: int = ...,
    ) -> Self: ...

    def __new__(cls, client: Any, **options: Any) -> Any:
        """Make an `AsyncRedisStore` where the client is an asyncio one."""
        if cls is RedisStore and is_async(client):
            return AsyncRedisStore(client, **options)
        return super().__new__(cls)

    @property
    def asynchronous(self) -> Literal[False]:
        """Whether what `bind` returns is for asyncio."""
        return False


class AsyncRedisStore(_RedisStore):
    """Keeps TimeShardQueues on a redis.asyncio client; see `RedisStore`."""

    _kind = AsyncRedisTimeShards

    @property
    def asynchronous(self) -> Literal[True]:
        """Whether what `bind` returns is for asyncio."""
        return True
