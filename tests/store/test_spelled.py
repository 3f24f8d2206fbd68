"""No number reaches redis-py's packer: hiredis crashes if a signal's handler raises there."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio

from support.askers import ASKERS
from support.servers import RedisServer
from workstealing.store.connection import spelled
from workstealing.structures import AsyncDurableKeys, AsyncFairQueue, AsyncShuffleQueue, DurableKeys

pytestmark = pytest.mark.real

# redis-py's own, at the beginning of a connection.
ITS_OWN = {"CLIENT", "HELLO", "SELECT"}


def numbers_in(sent: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the commands that have a number among their words."""
    return [words for words in sent if any(isinstance(word, int | float) for word in words)]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What clients of the application's have been given to pack."""
    found: list[tuple[Any, ...]] = []
    kinds = (redis.connection.AbstractConnection, redis_asyncio.connection.AbstractConnection)
    packers = (redis.connection.HiredisRespSerializer, redis.connection.PythonRespSerializer)
    for kind, name in ((packers[0], "pack"), (packers[1], "pack"), (kinds[1], "pack_command")):
        real = getattr(kind, name)

        def noted(self: Any, *words: Any, _real: Any = real) -> Any:
            if words[0] not in ITS_OWN:
                found.append(words)
            return _real(self, *words)

        monkeypatch.setattr(kind, name, noted)
    return found


@pytest.mark.parametrize("structure", ASKERS)
def test_of_a_structure(redis7: RedisServer, sent: list[Any], structure: str) -> None:
    asker = ASKERS[structure](redis7.client(), redis7.client())
    sent.clear()
    asker.ask()
    assert sent
    assert numbers_in(sent) == []


async def test_on_an_asyncio_client(redis7: RedisServer, sent: list[Any]) -> None:
    async with redis_asyncio.Redis(port=redis7.port) as client:
        keys: AsyncDurableKeys = AsyncDurableKeys(client, "grants")
        async with keys.lock("lease", 30):
            pass
        queue = AsyncShuffleQueue(client, "q")
        await queue.write("tenant", {"a": "b"})
        assert await queue.read("g", "c", block=0.01)
        assert await queue.read("g", "c", block=0.01) is None
        await queue.aclose()
        fair = AsyncFairQueue(client, "f")
        await fair.set_rule("t*", weight=1.5, max_in_flight=3)
        await fair.write("tenant", {"a": "b"}, ttl=60, dedupe=("k", 60))
        await fair.write("tenant", {"a": "b"}, delay=60)
        message = await fair.read("c", block=0.01)
        assert message
        await fair.extend(message)
        await fair.exchange(message, consumer="c", block=0.01)
        await fair.stats()
        await fair.aclose()
    assert len(sent) > 8
    assert numbers_in(sent) == []


def test_of_a_pipeline(redis7: RedisServer, sent: list[Any]) -> None:
    keys: DurableKeys = DurableKeys(redis7.client(), "grants")
    with keys.pipeline() as pipeline:
        pipeline.set("a", 1.5, ex=60).acquire("lease", 30).execute()
    assert len(sent) > 2
    assert numbers_in(sent) == []


def test_the_bytes_are_those_of_redis_py() -> None:
    assert spelled(("SET", 5, -2.5, b"x", True)) == ("SET", b"5", b"-2.5", b"x", True)
