"""The asyncio methods of the Django cache backend are as exact as the others and leave the loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext
from redis.connection import AbstractConnection

from support.any_server import AnyServer
from support.patience import GUARD_SECONDS, patient  # noqa: F401 - an autouse fixture
from workstealing.integrations.cache_entries import CacheEntries
from workstealing.integrations.django_cache import Cache
from workstealing.structures import VolatileHashes
from workstealing.testing import never

KEYS = [f"k{n}" for n in range(40)]


@pytest.fixture
def cache(any_server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Return a Django cache on 64 hashes of a server."""
    entries = CacheEntries(VolatileHashes(any_server.client(), "cache"), 64, never())
    monkeypatch.setattr("workstealing.integrations.django_cache.opened", lambda _: entries)
    return Cache("", {})


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Return how often each port was sent something: a round trip each."""
    counted: Counter[int] = Counter()
    send = AbstractConnection.send_packed_command

    def counting(connection: Any, *args: Any, **kwargs: Any) -> Any:
        counted[connection.port] += 1
        return send(connection, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", counting)
    return counted


async def apart(call: Any) -> Any:
    """Await a call as a request of Django's own: in a thread that no other one shares."""
    async with ThreadSensitiveContext():
        return await call()


@pytest.mark.parametrize("has_threads", [True, False])
async def test_one_caller_computes_and_the_loop_goes_on(cache: Cache, has_threads: bool) -> None:
    calls, go_on, begun = itertools.count(), threading.Event(), asyncio.Event()
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    threads: list[int] = []

    def compute() -> str:
        next(calls)
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(begun.set)
        # Only the loop can let it go on.
        assert go_on.wait(threading.get_ident() != here and GUARD_SECONDS)
        return "made"

    async def ask() -> Any:
        call = lambda: cache.aget_or_set("a", compute, 60)  # noqa: E731
        return await (apart(call) if has_threads else call())

    async with ThreadSensitiveContext():
        tasks = [asyncio.create_task(ask()) for _ in range(20)]
        async with asyncio.timeout(GUARD_SECONDS):
            await begun.wait()
        go_on.set()
        assert await asyncio.gather(*tasks) == ["made"] * 20
    assert next(calls) == 1
    assert threads[0] != here
    assert cache.get("a") == "made"


async def test_a_default_that_is_no_function_is_added(cache: Cache) -> None:
    async with ThreadSensitiveContext():
        assert await cache.aget_or_set("a", 1, 60) == 1
        assert await cache.aget_or_set("a", 2, 60) == 1
        assert await cache.aget_or_set("b", lambda: None) is None
        assert await cache.ahas_key("b")
        assert await cache.aget_or_set("a", 3, version=7) == 3
        with pytest.raises(ZeroDivisionError):
            await cache.aget_or_set("c", lambda: 1 // 0)
        assert not await cache.ahas_key("c")


async def test_a_coroutine_function_is_no_default(cache: Cache) -> None:
    async def compute() -> int:
        return 1

    for made in (compute, asyncio.sleep):
        with pytest.raises(TypeError, match="coroutine function"):
            cache.get_or_set("a", made)
        async with ThreadSensitiveContext():
            with pytest.raises(TypeError, match="coroutine function"):
                await cache.aget_or_set("a", made)
    assert not cache.has_key("a")


async def test_no_count_of_many_tasks_is_lost_and_the_deadline_stays(cache: Cache) -> None:
    cache.set("n", 0, 60)

    async def count() -> None:
        for _ in range(10):
            await cache.aincr("n", 2)
            await cache.adecr("n")

    await asyncio.gather(*[apart(count) for _ in range(8)])
    assert cache.get("n") == 80
    (left,) = cache.entries.hashes.hpttl(cache.entries.place(cache.make_key("n")), ":1:n")
    assert 0 < left <= 60_000
    async with ThreadSensitiveContext():
        with pytest.raises(ValueError, match="not found"):
            await cache.aincr("other")
        assert await cache.aincr_version("n") == 2
        (left,) = cache.entries.hashes.hpttl(cache.entries.place(":2:n"), ":2:n")
        assert 0 < left <= 60_000
        assert await cache.adecr_version("n", version=2) == 1


async def test_many_entries_take_one_round_trip_of_each_node(
    cache: Cache, sends: Counter[int]
) -> None:
    values = {key: key for key in KEYS}
    # The scripts are loaded, and the cluster's map is read.
    cache.set_many(values, 60)
    cache.get_many(KEYS)
    cache.delete_many([f"o{n}" for n in range(40)])
    assert len({cache.entries.place(cache.make_key(key)) for key in KEYS}) > 20
    nodes = cache.entries.hashes.client
    ports = 3 if hasattr(nodes, "get_primaries") else 1
    async with ThreadSensitiveContext():
        for ask in (
            lambda: cache.get_many(KEYS),
            lambda: cache.set_many(values, 60),
            lambda: cache.delete_many(KEYS),
        ):
            sends.clear()
            ask()
            assert list(sends.values()) == [1] * ports
        for ask in (
            lambda: cache.aset_many(values, 60),
            lambda: cache.aget_many(KEYS),
            lambda: cache.adelete_many(KEYS),
        ):
            sends.clear()
            await ask()
            assert list(sends.values()) == [1] * ports
        sends.clear()
        assert not await cache.ahas_key("k1")
        assert sends.total() == 1
