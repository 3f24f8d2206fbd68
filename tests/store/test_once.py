"""A call whose repetition would do, or answer, something else is never sent twice.

A server does it and its reply is cut off, with a client that sends again whatever it may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.faulty_server import FaultyServer
from support.servers import RedisCluster3, RedisServer
from workstealing.store.redis_versions import HashDataPersistOptions
from workstealing.store.sending import SentOnce
from workstealing.structures import (
    AsyncVolatileHashes,
    DurableKeys,
    FairQueue,
    Log,
    ShuffleQueue,
    VolatileHashes,
)
from workstealing.structures.fair_queue import NewMessage

UNKNOWN = "whether it was done is not known, so it was not sent again"


@pytest.fixture(params=["emulated", "native"])
def door(request: pytest.FixtureRequest) -> Iterator[tuple[str, FaultyServer]]:
    """Yield a backend of volatile hashes, and a faulty server before one that has it."""
    server = request.getfixturevalue("redis8" if request.param == "native" else "redis7")
    with FaultyServer(server.port) as between:
        yield request.param, between


def _client(between: FaultyServer) -> redis.Redis:
    client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), 3), protocol=2)
    client.ping()
    return client


def _cut_next(between: FaultyServer) -> None:
    between.fail(len(between.names()) + 1, "cut")


HASHES: dict[str, tuple[Callable[[VolatileHashes], Any], Callable[[VolatileHashes], Any], Any]] = {
    "hincrby": (lambda h: h.hincrby("h", "n"), lambda h: h.hget("h", "n"), b"2"),
    "hincrbyfloat": (lambda h: h.hincrbyfloat("h", "n", 0.5), lambda h: h.hget("h", "n"), b"1.5"),
    "hsetnx": (lambda h: h.hsetnx("h", "new", 1), lambda h: h.hget("h", "new"), b"1"),
    "hsetex fnx": (
        lambda h: h.hsetex("h", "new", 1, ex=9, data_persist_option=HashDataPersistOptions.FNX),
        lambda h: h.hget("h", "new"),
        b"1",
    ),
    "hdel": (lambda h: h.hdel("h", "n"), lambda h: h.hexists("h", "n"), False),
    "hgetdel": (lambda h: h.hgetdel("h", "n"), lambda h: h.hexists("h", "n"), False),
    "hexpire nx": (lambda h: h.hexpire("h", 50, "n", nx=True), lambda h: h.httl("h", "n"), [50]),
    "delete": (lambda h: h.delete("h"), lambda h: h.exists("h"), 0),
    "rename": (lambda h: h.rename("h", "other"), lambda h: h.hget("other", "n"), b"1"),
}


@pytest.mark.parametrize("name", HASHES)
def test_a_command_of_a_hash(door: tuple[str, FaultyServer], name: str) -> None:
    call, look, expected = HASHES[name]
    backend, between = door
    hashes = VolatileHashes(_client(between), "n", backend=backend)
    hashes.hset("h", "n", 1)
    # So that the server knows the script, of which it is told by a second command.
    if backend == "emulated" or name == "delete":
        call(hashes)
        hashes.delete("h", "other")
        hashes.hset("h", "n", 1)
    _cut_next(between)
    with pytest.raises(redis.ConnectionError, match=UNKNOWN):
        call(hashes)
    assert look(hashes) == expected


def test_what_is_the_same_a_second_time_is_left_to_the_client(
    door: tuple[str, FaultyServer],
) -> None:
    backend, between = door
    hashes = VolatileHashes(_client(between), "n", backend=backend)
    for call in (
        lambda: hashes.hset("h", "n", 1),
        lambda: hashes.hsetex("h", "n", 1, ex=90),
        lambda: hashes.hget("h", "n"),
        lambda: hashes.hexpire("h", 50, "n"),
    ):
        call()
        before = len(between.names())
        _cut_next(between)
        call()
        # Between the two it says who it is.
        first, *_, second = between.names()[before:]
        assert first == second


@pytest.mark.parametrize("transaction", [True, False])
def test_a_pipeline_of_hashes(door: tuple[str, FaultyServer], transaction: bool) -> None:
    backend, between = door
    hashes = VolatileHashes(_client(between), "n", backend=backend)
    hashes.hset("h", "n", 1)
    with hashes.pipeline(transaction=transaction) as pipeline:
        pipeline.hget("h", "n").hincrby("h", "n")
        # The reply to the last command is the one that is cut off.
        between.fail(len(between.names()) + (4 if transaction else 2), "cut")
        with pytest.raises(redis.ConnectionError, match=UNKNOWN):
            pipeline.execute()
    assert hashes.hget("h", "n") == b"2"


def test_asyncio(door: tuple[str, FaultyServer]) -> None:
    backend, between = door

    async def main() -> None:
        client = redis.asyncio.Redis(
            port=between.port, retry=AsyncRetry(NoBackoff(), 3), protocol=2
        )
        hashes = AsyncVolatileHashes(client, "n", backend=backend)
        await hashes.hset("h", "n", 1)
        await hashes.hincrby("h", "n")
        _cut_next(between)
        with pytest.raises(redis.ConnectionError, match=UNKNOWN):
            await hashes.hincrby("h", "n")
        assert await hashes.hget("h", "n") == b"3"
        async with hashes.pipeline(transaction=False) as pipeline:
            pipeline.hincrby("h", "n")
            _cut_next(between)
            with pytest.raises(redis.ConnectionError, match=UNKNOWN):
                await pipeline.execute()
        assert await hashes.hget("h", "n") == b"4"
        await client.aclose()

    asyncio.run(main())


def _appending(log: Log) -> Callable[[], Any]:
    """Return an append whose block is there, and whose script the server knows."""
    for _ in range(2):
        log.append(b"e")
    return partial(log.append, b"e")


OTHERS: dict[str, tuple[Callable[[Any], Callable[[], Any]], Callable[[Any], Any], Any]] = {
    "set nx": (
        lambda c: partial(DurableKeys(c, "n").set, "k", 1, nx=True, ex=9),
        lambda c: DurableKeys(c, "n").get("k"),
        b"1",
    ),
    "getdel": (
        lambda c: partial(DurableKeys(c, "n").getdel, "k"),
        lambda c: DurableKeys(c, "n").get("k"),
        None,
    ),
    "append": (
        lambda c: partial(Log(c, "n", 3).append, b"e"),
        lambda c: Log(c, "n", 3).read(0, 9),
        [b"e"],
    ),
    "append into the middle of a block": (
        lambda c: _appending(Log(c, "fair")),
        lambda c: Log(c, "fair").length(),
        7,
    ),
    "write to a fair queue": (
        lambda c: partial(FairQueue(c, "n").write, "t", {"a": 1}),
        lambda c: c.hlen("n/fair/{n}/messages"),
        3,
    ),
    "write_many": (
        lambda c: partial(FairQueue(c, "n").write_many, [NewMessage("t", {"a": 1})]),
        lambda c: c.hlen("n/fair/{n}/messages"),
        3,
    ),
    "write": (
        lambda c: partial(ShuffleQueue(c, "n").write, "t", {"a": 1}),
        lambda c: sum(map(c.xlen, c.scan_iter("n/queue/{n}/s*"))),
        1,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_structures(redis7: RedisServer, name: str) -> None:
    make, look, expected = OTHERS[name]
    direct = redis7.client()
    make(direct)()
    with FaultyServer(redis7.port) as between:
        client = _client(between)
        call = make(client)
        call()
        for key in direct.scan_iter():
            # A fair queue that has gone is not written at once, but looked at.
            if b"layout" not in key and b"fair" not in key:
                direct.delete(key)
        _cut_next(between)
        with pytest.raises(redis.ConnectionError, match=UNKNOWN):
            call()
    assert look(direct) == expected


def test_a_refused_call_keeps_its_own_error(redis7: RedisServer) -> None:
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), 0), protocol=2)
        hashes = VolatileHashes(client, "n")
        hashes.hset("h", "n", b"text")
        with pytest.raises(redis.ResponseError, match="not an integer"):
            hashes.hincrby("h", "n")
        # Without a retry the fault is the client's own.
        _cut_next(between)
        with pytest.raises(redis.ConnectionError, match=r"^(?!.*sent again)"):
            hashes.hincrby("h", "n")


@pytest.mark.real
def test_a_cluster(cluster: RedisCluster3) -> None:
    client = cluster.client(retry=Retry(NoBackoff(), 3))
    hashes = VolatileHashes(client, "n", backend="emulated")
    hashes.hset("h", "n", 1)
    assert hashes.hincrby("h", "n") == 2
    node = client.get_redis_connection(client.get_node_from_key("h"))
    reads: list[str] = []

    def cut(connection: Any, name: Any, **options: Any) -> Any:
        reads.append(name)
        type(node).parse_response(node, connection, name, **options)
        del node.parse_response
        raise redis.ConnectionError("cut")

    node.parse_response = cut
    with pytest.raises(redis.ConnectionError):
        hashes.hincrby("h", "n")
    assert reads == ["EVALSHA"]
    assert hashes.hget("h", "n") == b"3"


@pytest.mark.real
def test_an_asyncio_cluster(cluster: RedisCluster3, monkeypatch: pytest.MonkeyPatch) -> None:
    original, reads = ClusterNode.parse_response, []

    async def cut(self: Any, connection: Any, name: Any, **options: Any) -> Any:
        reply = await original(self, connection, name, **options)
        if name != "EVALSHA" or reads:
            return reply
        reads.append(name)
        raise redis.ConnectionError("cut")

    async def main() -> None:
        client = cluster.async_client()
        hashes = AsyncVolatileHashes(client, "n", backend="emulated")
        await hashes.hset("h", "n", 1)
        assert await hashes.hincrby("h", "n") == 2
        monkeypatch.setattr(ClusterNode, "parse_response", cut)
        with pytest.raises(redis.ConnectionError):
            await hashes.hincrby("h", "n")
        assert await hashes.hget("h", "n") == b"3"
        await client.aclose()

    asyncio.run(main())


def test_a_name_is_a_text_that_is_packed_once() -> None:
    name = SentOnce("EVALSHA")
    assert name == "EVALSHA"
    assert {"EVALSHA": 1}[name] == 1
    assert name.upper().encode() == b"EVALSHA"
    assert name.encode() == b"EVALSHA"
    with pytest.raises(Exception, match="EVALSHA"):
        name.encode()
