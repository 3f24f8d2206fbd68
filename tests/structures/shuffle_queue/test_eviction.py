"""A server short of memory that evicts keys with a time to live takes no message of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError

from support.published_shuffle_queue import PublishedShuffleQueue
from support.servers import RedisServer
from workstealing.errors import EvictionPolicyError
from workstealing.structures import ShuffleQueue

Start = Callable[..., RedisServer]
BODY = "x" * 2_000
MESSAGES = 400


def full(start_redis: Start, policy: str) -> RedisServer:
    """Return a server that messages of this size soon fill."""
    return start_redis(7, maxmemory="100mb", maxmemory_policy=policy)


def squeeze(server: RedisServer) -> None:
    """Leave the server no room; what it may evict for the next write it evicts."""
    client = server.client()
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used - 300_000)
    with pytest.raises(OutOfMemoryError):
        client.set("other", "x")


def test_nothing_is_evicted_under_volatile_lru(start_redis: Start) -> None:
    server = full(start_redis, "volatile-lru")
    queue: Any = ShuffleQueue(server.client(), "q", 16, 4)
    ids = {queue.write(f"t{i % 20}", {"body": BODY}) for i in range(MESSAGES)}
    squeeze(server)
    with pytest.raises(OutOfMemoryError):
        queue.write("t", {"body": BODY})
    assert server.client().info("stats")["evicted_keys"] == 0
    assert queue.length() == MESSAGES
    assert all(server.client().ttl(key) == -1 for key in server.client().keys("q/*"))
    server.client().config_set("maxmemory", "100mb")
    read = [queue.read("workers", "one") for _ in range(MESSAGES)]
    assert {message.id for message in read} == ids
    assert queue.read("workers", "one") is None


def test_the_published_queue_loses_streams_with_their_messages(start_redis: Start) -> None:
    server = full(start_redis, "volatile-lru")
    queue = PublishedShuffleQueue(server.client(), "q", 16)
    for i in range(MESSAGES):
        queue.write([i % 16, (i + 5) % 16], {"body": BODY})
    client = server.client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 300_000)
    # The server has room again: it has taken messages.
    client.set("other", "x")
    assert client.info("stats")["evicted_keys"] > 0
    client.config_set("maxmemory", "100mb")
    assert queue.length() < MESSAGES


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_may_evict_any_key_is_refused_unless_it_is_named(
    start_redis: Start, policy: str
) -> None:
    client = full(start_redis, policy).client()
    with pytest.raises(EvictionPolicyError, match="streams of a queue with all their messages"):
        ShuffleQueue(client, "q").write("t", {"a": 1})
    with pytest.raises(EvictionPolicyError):
        ShuffleQueue(client, "q").read("workers", "one")
    assert client.keys("q*") == []
    allowed: Any = ShuffleQueue(client, "q", allow_eviction=(policy,))
    allowed.write("t", {"a": 1})
    assert allowed.length() == 1
