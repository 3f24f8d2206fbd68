"""A client with redis-py's client-side cache serves every structure, and never a kept reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.servers import RedisCluster3, RedisServer
from workstealing import Outcome
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.testing import always

cache = pytest.importorskip("redis.cache", reason=f"redis-py {redis.__version__} has no cache")


@pytest.fixture(params=["redis8", "cluster8"])
def server(request: pytest.FixtureRequest) -> RedisServer | RedisCluster3:
    """Return a server that tells clients what has changed."""
    found: RedisServer | RedisCluster3 = request.getfixturevalue(request.param)
    return found


def _keeping(server: RedisServer | RedisCluster3) -> Any:
    return server.client(protocol=3, cache_config=cache.CacheConfig())


@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_hashes_answer_as_without_it(server: RedisServer, backend: str) -> None:
    bare = VolatileHashes(server.client(protocol=3), "n", backend=backend)
    kept = VolatileHashes(_keeping(server), "n", backend=backend)
    for each in (bare, kept):
        assert each.hsetex("h", mapping={"f": 1, "g": 2}, ex=90)
    calls: list[Callable[[VolatileHashes], Any]] = [
        lambda h: h.hget("h", "f"),
        lambda h: h.hmget("h", "f", "none"),
        lambda h: h.hgetall("h"),
        lambda h: h.hexists("h", "f"),
        lambda h: h.hlen("h"),
        lambda h: sorted(h.hkeys("h")),
        lambda h: sorted(h.hvals("h")),
        lambda h: h.hstrlen("h", "f"),
        lambda h: h.hscan("h"),
        lambda h: h.exists("h"),
        lambda h: h.ttl("h"),
        lambda h: h.hexpireat("h", 4_000_000_000, "f"),
        lambda h: h.hexpiretime("h", "f"),
    ]
    for number, call in enumerate(calls):
        assert call(kept) == call(bare), number
    server.client().set("text", 1)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        kept.hget("text", "f")


@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_no_kept_reply_is_given(redis8: RedisServer, backend: str) -> None:
    client, other = _keeping(redis8), redis8.client()
    hashes = VolatileHashes(client, "n", backend=backend)
    hashes.hset("h", "f", 1)
    # It is in the client's cache now.
    assert client.hget("h", "f") == b"1"
    assert client.get_cache().size > 0
    assert hashes.hget("h", "f") == b"1"
    size = client.get_cache().size
    for value in range(2, 5):
        VolatileHashes(other, "n").hset("h", "f", value)
        assert hashes.hget("h", "f") == str(value).encode()
    assert client.get_cache().size <= size


def test_every_structure(server: RedisServer) -> None:
    client = _keeping(server)
    keys = DurableKeys(client, "d")
    assert keys.set("k", 1, ex=9)
    assert keys.get("k") == b"1"
    with keys.lock("lock", lease=9):
        pass
    log = Log(client, "l")
    log.append(b"e")
    assert log.read(0) == [b"e"]
    queue = ShuffleQueue(client, "q")
    assert queue.read("g", "c") is None
    queue.write("t", {"a": 1})
    message = queue.read("g", "c")
    assert message is not None
    assert queue.ack(message)
    fair = FairQueue(client, "f")
    assert fair.read("c") is None
    fair.write("t", {"a": 1}, tracking_id="x")
    assert fair.length() == 1
    taken = fair.read("c")
    assert taken is not None
    assert fair.exchange(taken, consumer="c").done == 1
    assert fair.length() == 0
    ick = Ick(client, "i")
    ick.add({"m": 1})
    assert len(ick.reserve(5)) == 1
    tracked = TrackedSet(client, "t")
    tracked.track("m")
    assert tracked.is_tracked("m")
    tracked.untrack("m")
    assert not tracked.is_tracked("m")
    times = TimeShardQueue(RedisStore(client), "z")
    assert times.put(b"m")
    ShardedIck(client, "s", 4).add({"m": 1})


def test_a_job_collects(server: RedisServer) -> None:
    hashes = VolatileHashes(_keeping(server), "n", backend="emulated", clock_shift_ms=3_600_000)
    VolatileHashes(server.client(), "n", backend="emulated").hsetex("h", "f", 1, ex=9)
    recruiter = always(seconds=10.0)
    recruiter.install(HashFieldExpiry(hashes), rate=1.0)
    assert recruiter.enlist() is Outcome.WORKED
    assert not server.client().exists("h")
