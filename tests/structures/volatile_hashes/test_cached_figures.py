"""The figures of cached functions are true: each call is a hit, an old value or a miss."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.servers import RedisServer
from support.silent_server import SilentServer
from workstealing import Recruiter
from workstealing.recruiting.cache_figures import CACHES
from workstealing.structures import AsyncVolatileHashes, VolatileHashes, cache_stats
from workstealing.structures.volatile_hashes import caching
from workstealing.structures.volatile_hashes.surface import LEASE, STORE


@pytest.fixture
def hashes(redis7: RedisServer) -> Any:
    return VolatileHashes(redis7.client(), "cached")


@pytest.fixture(autouse=True)
def _no_other_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the caches of other tests, which may have taken all names."""
    monkeypatch.setattr(CACHES, "_figures", {})


def figures() -> dict[str, Any]:
    """Return the figures of the one cache that are not 0, but for the seconds."""
    found: dict[str, Any] = next(iter(cache_stats().values()), {})  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if value and name != "seconds"}


def cached(hashes: Any, function: Any, **options: Any) -> Any:
    options = {"ttl": 60, "key": "page", "field": "text", "recruiter": Recruiter(), **options}
    return hashes.cached(**options)(function)


def test_a_miss_computes_and_a_hit_does_not(hashes: Any) -> None:
    page = cached(hashes, lambda: time.sleep(0.02) or "text")
    for _ in range(5):
        assert page() == "text"
    assert figures() == {"hits": 4, "misses": 1, "computations": 1}
    (found,) = cache_stats().values()
    assert found["seconds"] >= 0.02


def test_the_name_is_the_functions(hashes: Any) -> None:
    @hashes.cached(ttl=60, key="page", recruiter=Recruiter())
    def page() -> int:
        return 1

    assert cache_stats() == {}
    page()
    assert list(cache_stats()) == [page.__qualname__]


def test_threads_that_wait_for_one(hashes: Any) -> None:
    go, begun = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        go.wait()
        return "text"

    page = cached(hashes, slow, wait=60, lease=600)
    callers = [threading.Thread(target=page) for _ in range(10)]
    callers[0].start()
    begun.wait()
    for each in callers[1:]:
        each.start()
    while figures().get("waits", 0) < 9:
        time.sleep(0.001)
    go.set()
    for each in callers:
        each.join()
    assert figures() == {"misses": 10, "waits": 9, "computations": 1}


async def test_tasks_that_wait_for_one(redis7: RedisServer) -> None:
    hashes = AsyncVolatileHashes(redis.asyncio.Redis(port=redis7.port), "cached")

    async def slow() -> str:
        async with asyncio.timeout(60):
            while figures().get("waits", 0) < 9:  # noqa: ASYNC110 - counts have no event
                await asyncio.sleep(0.001)
        return "text"

    page = cached(hashes, slow, wait=60, lease=600)
    assert await asyncio.gather(*[page() for _ in range(10)]) == ["text"] * 10
    assert await page() == "text"
    assert figures() == {"hits": 1, "misses": 10, "waits": 9, "computations": 1}
    await page.refresh()
    assert figures() == {"hits": 1, "misses": 10, "waits": 9, "computations": 2}


def test_who_waits_for_another_process_waits_once(
    hashes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has the lease, and stores its result at the third look."""
    page = cached(hashes, pytest.fail, wait=60, lease=600)
    field = ("page", "FIELDS", 1, "text")
    lease = (LEASE, *field, "another", 600_000, 600_000, "", "")
    taken, *_ = hashes.execute_command(*lease)
    pauses = []

    def pause(_: float) -> None:
        pauses.append(1)
        if len(pauses) == 3:
            store = (STORE, *field, "another", 60_000, "", b'5:"text"', taken)
            assert hashes.execute_command(*store)

    monkeypatch.setattr(caching.time, "sleep", pause)
    assert page() == "text"
    assert figures() == {"misses": 1, "waits": 1}


def test_an_old_value_while_another_computes_and_while_the_source_fails(hashes: Any) -> None:
    go, begun, fails = threading.Event(), threading.Event(), []

    def page_text() -> str:
        if fails:
            raise LookupError("gone")
        begun.set()
        go.wait()
        return "text"

    page = cached(hashes, page_text, ttl=0.001, stale=600)
    go.set()
    assert page() == "text"
    time.sleep(0.005)
    go.clear()
    begun.clear()
    computer = threading.Thread(target=page)
    computer.start()
    begun.wait()
    assert [page() for _ in range(3)] == ["text"] * 3
    assert figures() == {"misses": 1, "computations": 1, "stale": 3}
    go.set()
    computer.join()
    assert figures() == {"misses": 2, "computations": 2, "stale": 3}
    time.sleep(0.005)
    fails.append(1)
    assert [page() for _ in range(3)] == ["text"] * 3
    # One has tried, and its pause spares the others.
    assert figures() == {"misses": 2, "computations": 3, "stale": 6, "failures": 1}


def test_a_kept_error_is_a_hit_and_any_other_a_miss(hashes: Any) -> None:
    errors = [LookupError("kept"), OSError("not kept"), OSError("not kept")]

    def page_text() -> str:
        raise errors.pop()

    page = cached(hashes, page_text, errors={LookupError: 60})
    for kind in (OSError, OSError, LookupError, LookupError, LookupError):
        with pytest.raises(kind):
            page()
    # A declared exception is an answer, and no failure.
    assert figures() == {"hits": 2, "misses": 3, "computations": 3, "failures": 2}


def test_refresh_computes_and_looks_nothing_up(hashes: Any) -> None:
    page = cached(hashes, lambda: "text")
    page.refresh()
    page.refresh()
    page.invalidate()
    assert figures() == {"computations": 2}


def test_without_redis(redis7: RedisServer) -> None:
    with SilentServer() as silent:
        client = redis.Redis(port=silent.port, socket_timeout=0.05, retry=Retry(NoBackoff(), 0))
        page = cached(VolatileHashes(client, "cached"), lambda: "text")
        assert [page() for _ in range(10)] == ["text"] * 10
    assert figures() == {"misses": 10, "computations": 10, "uncached": 10}


def test_a_methods_instances_share_them(hashes: Any) -> None:
    class Shop:
        def __init__(self, number: int) -> None:
            self.number = number

        @hashes.cached(ttl=60, key="shop:{self.number}", recruiter=Recruiter())
        def page(self) -> int:
            return self.number

    for number in (1, 2, 1, 2):
        assert Shop(number).page() == number
    assert figures() == {"hits": 2, "misses": 2, "computations": 2}


@pytest.mark.parametrize("seed", range(5))
def test_every_call_is_one_of_three(hashes: Any, seed: int) -> None:
    """Many threads, of which some fail, at random: the counts add up to the calls."""
    chance, made = random.Random(seed), []

    def page_text(number: int) -> int:
        made.append(number)
        time.sleep(chance.random() / 500)
        if chance.random() < 0.2:
            raise LookupError(number)
        return number

    page = cached(hashes, page_text, ttl=0.005, stale=0.02, early=1.0, key="{number}")
    calls = []

    def call_often() -> None:
        for number in range(60):
            calls.append(number)
            if number % 20 == 19:
                page.invalidate(number % 3)
            with contextlib.suppress(LookupError):
                page(number % 3)

    threads = [threading.Thread(target=call_often) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (found,) = cache_stats().values()
    assert found["hits"] + found["stale"] + found["misses"] == len(calls) == 360
    assert found["computations"] == len(made)
    assert 0 <= found["waits"] <= found["misses"]
    assert found["uncached"] == 0
