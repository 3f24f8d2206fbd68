"""The errors of scripts on Redis 6.2 are those of the client, in each of its faces.

Redis before 7 wraps them: "ERR Error running script (...): @user_script: 3: -READONLY ...". A
client would know none of them, nor its sentinels, nor its retries, nor an `except` of its user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from support.servers import RedisServer, wait_until
from workstealing.structures import (
    AsyncDurableKeys,
    AsyncVolatileHashes,
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)


class _Chief:
    """Stands in for the sentinels: it says where the master is."""

    def __init__(self, port: int) -> None:
        self.port, self.asked = port, 0
        self.sentinels: list[Any] = []

    def discover_master(self, _: str) -> tuple[str, int]:
        self.asked += 1
        return "127.0.0.1", self.port


@pytest.fixture
def full(redis62: RedisServer) -> Any:
    """Yield a server that takes no more data."""
    client = redis62.client()
    yield lambda: client.config_set("maxmemory", "1")
    client.config_set("maxmemory", "0")


@pytest.fixture
def demoted(redis62: RedisServer) -> Any:
    """Yield a server that may become the replica of nobody."""
    client = redis62.client()
    yield lambda: client.replicaof("127.0.0.1", 1)
    client.replicaof("no", "one")


WRITES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "VolatileHashes": lambda c: partial(VolatileHashes(c, "n").hsetex, "h", "f", 1, ex=9),
    "DurableKeys": lambda c: partial(DurableKeys(c, "n").set, "k", 1, ex=9),
    "FairQueue": lambda c: partial(FairQueue(c, "n").write, "t", {"a": 1}),
    "Ick": lambda c: partial(Ick(c, "n").add, {"m": 1}),
    "Log": lambda c: partial(Log(c, "n").append, b"e"),
    "ShuffleQueue": lambda c: partial(ShuffleQueue(c, "n").write, "t", {"a": 1}),
    "TimeShardQueue": lambda c: partial(TimeShardQueue(RedisStore(c), "n").put, b"m"),
    "TrackedSet": lambda c: partial(TrackedSet(c, "n").track, "m"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_full_server_is_out_of_memory(redis62: RedisServer, full: Any, name: str) -> None:
    write = WRITES[name](redis62.client())
    write()
    full()
    with pytest.raises(OutOfMemoryError, match=r"^command not allowed"):
        write()


@pytest.mark.parametrize("name", WRITES)
def test_a_demoted_master_is_read_only(redis62: RedisServer, demoted: Any, name: str) -> None:
    write = WRITES[name](redis62.client())
    write()
    demoted()
    with pytest.raises(ReadOnlyError, match=r"^You can't write"):
        write()


def test_an_error_without_a_class_keeps_its_own_beginning(redis62: RedisServer) -> None:
    client = redis62.client()
    hashes = VolatileHashes(client, "n")
    hashes.hsetex("h", "f", b"text", ex=9)
    with pytest.raises(ResponseError, match=r"^hash value is not an integer"):
        hashes.hincrby("h", "f")
    client.set("text", "x")
    with pytest.raises(ResponseError, match=r"^WRONGTYPE Operation"):
        hashes.hget("text", "f")


def test_misconf_is_bare(redis62: RedisServer) -> None:
    server = RedisServer(redis62.binary, 6)
    try:
        client = server.client()
        keys = DurableKeys(client, "n")
        keys.set("k", 1, ex=9)
        client.config_set("save", "3600 1000000")
        client.config_set("dbfilename", "missing.rdb")
        (server.directory / "missing.rdb").mkdir()
        client.bgsave()
        wait_until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err",
            "the server to notice that it cannot save",
        )
        with pytest.raises(ResponseError, match=r"^MISCONF "):
            keys.set("k", 1, ex=9)
        # With a point of saving it would refuse to end.
        client.config_set("save", "")
    finally:
        server.stop()


def test_a_pipeline_has_them_in_their_places(redis62: RedisServer, demoted: Any) -> None:
    hashes = VolatileHashes(redis62.client(), "n")
    hashes.hsetex("h", "f", 1, ex=9)
    demoted()
    for transaction in (True, False):
        with hashes.pipeline(transaction=transaction) as pipeline:
            pipeline.hget("h", "f").hsetex("h", "f", 2, ex=9).hincrby("h", "f")
            found, *refused = pipeline.execute(raise_on_error=False)
        if transaction:
            assert all(isinstance(each, redis.RedisError) for each in refused)
            continue
        assert found == b"1"
        assert [type(each) for each in refused] == [ReadOnlyError, ReadOnlyError]


def test_asyncio_has_them(redis62: RedisServer, demoted: Any) -> None:
    async def main() -> None:
        client = redis62.async_client()
        try:
            keys, hashes = AsyncDurableKeys(client, "n"), AsyncVolatileHashes(client, "m")
            await keys.set("k", 1, ex=9)
            await hashes.hsetex("h", "f", 1, ex=9)
            demoted()
            with pytest.raises(ReadOnlyError):
                await keys.set("k", 1, ex=9)
            async with hashes.pipeline(transaction=False) as pipeline:
                pipeline.hsetex("h", "f", 1, ex=9)
                (refused,) = await pipeline.execute(raise_on_error=False)
            assert type(refused) is ReadOnlyError
        finally:
            await client.aclose()

    asyncio.run(main())


@pytest.mark.real
def test_a_client_of_sentinel_leaves_the_demoted_master_at_once(
    redis62: RedisServer, demoted: Any, redis7: RedisServer
) -> None:
    chief = _Chief(redis62.port)
    pool = SentinelConnectionPool("shop", chief, retry=Retry(NoBackoff(), 0))
    client = redis.Redis(connection_pool=pool)
    keys = DurableKeys(client, "n")
    assert keys.set("k", 1, ex=9)
    demoted()
    chief.port = redis7.port
    with pytest.raises(redis.ConnectionError, match="previous master is now a slave"):
        keys.set("k", 1, ex=9)
    assert keys.set("k", 2, ex=9)
    assert DurableKeys(redis7.client(), "n").get("k") == b"2"
    client.close()


def test_retry_on_error_sees_them(redis62: RedisServer, demoted: Any) -> None:
    seen: list[Any] = []

    class Counted(Retry):
        def call_with_retry(self, do: Any, fail: Any, *args: Any, **options: Any) -> Any:
            def failed(error: Any, *more: Any) -> Any:
                seen.append(type(error))
                return fail(error, *more)

            return super().call_with_retry(do, failed, *args, **options)

    client = redis62.client(retry=Counted(NoBackoff(), 2), retry_on_error=[ReadOnlyError])
    keys = DurableKeys(client, "n")
    keys.set("k", 1, ex=9)
    demoted()
    with pytest.raises(ReadOnlyError):
        keys.set("k", 1, ex=9)
    assert seen == [ReadOnlyError] * 3
