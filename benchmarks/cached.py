"""What a cached function and the cache backends cost, beside a bare read and beside neighbours.

Each hit is compared with a bare HGET (or GET, where the neighbour keeps a key) by a client of the
same kind, so that the figures of all can be compared with each other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
import redis.asyncio
from cashews import Cache
from django.conf import settings
from django.core.cache import caches
from dogpile.cache import make_region
from figures import Figure, Target, cost_figure, in_turn
from flask import Flask
from flask_caching import Cache as FlaskCache
from servers import RedisServer, expires_fields

from workstealing import Recruiter
from workstealing.structures import AsyncVolatileHashes, VolatileHashes

ROUNDS, CALLS = 60, 300
HIT = Target(most=1.15)
ITEM = {"id": 17, "name": "a book of some hundred pages", "price": 12.5, "tags": ["new", "paper"]}
HGET, GET = "HGET by the same client", "GET by redis-py"
Batch = Callable[[], float]


def measure(server: RedisServer) -> list[Figure]:
    """Time hits and misses on one server."""
    # A neighbour's log would be part of its time.
    logging.disable(logging.WARNING)
    backends = ["emulated", *(["native"] if expires_fields(server) else [])]
    figures = []
    for backend in backends:
        figures += _of_threads(server, backend)
    for backend in backends:
        figures += asyncio.run(_of_tasks(server, backend))
    return [*figures, *_of_frameworks(server)]


def _of_threads(server: RedisServer, backend: str) -> Iterator[Figure]:
    client = redis.Redis(port=server.port)
    client.flushall()
    client.hset("bare", "f", json.dumps(ITEM))
    client.set("bare-key", json.dumps(ITEM))
    hashes, recruiter = VolatileHashes(client, f"bench-{backend}", backend=backend), Recruiter()
    hget, get = _batch(lambda _: client.hget("bare", "f")), _batch(lambda _: client.get("bare-key"))

    @hashes.cached(ttl=600, key="item:{item}", recruiter=recruiter)
    def item(item: int) -> Any:
        return {**ITEM, "id": item}

    @hashes.cached(ttl=600, key="item:{item}", stale=60, recruiter=recruiter)
    def stale(item: int) -> Any:
        return {**ITEM, "id": item}

    yield _cost(f"cached_hit_{backend}", HGET, _batch(lambda _: item(17)), hget, HIT)
    yield _cost(f"cached_hit_stale_{backend}", HGET, _batch(lambda _: stale(17)), hget)
    region = make_region().configure(
        "dogpile.cache.redis",
        expiration_time=600,
        arguments={"port": server.port, "distributed_lock": True, "thread_local_lock": False},
    )
    theirs = region.cache_on_arguments()(lambda item: {**ITEM, "id": item})
    yield _cost("cached_miss_" + backend, "a miss of dogpile.cache", _misses(item), _misses(theirs))
    if backend == "emulated":
        yield _cost("neighbour_hit_dogpile", GET, _batch(lambda _: theirs(17)), get)
    client.close()


async def _of_tasks(server: RedisServer, backend: str) -> list[Figure]:
    client = redis.asyncio.Redis(port=server.port)
    await client.flushall()
    await client.hset("bare", "f", json.dumps(ITEM))
    await client.set("bare-key", json.dumps(ITEM))
    recruiter = Recruiter()
    hashes = AsyncVolatileHashes(client, f"bench-async-{backend}", backend=backend)

    @hashes.cached(ttl=600, key="item:{item}", recruiter=recruiter)
    async def item(item: int) -> Any:
        return {**ITEM, "id": item}

    neighbour = Cache()
    neighbour.setup(f"redis://127.0.0.1:{server.port}")

    @neighbour(ttl="10m", key="theirs:{item}", lock=True)
    async def theirs(item: int) -> Any:
        return {**ITEM, "id": item}

    async def in_turn_async(ours: Any, reference: Any) -> tuple[list[float], list[float]]:
        costs: dict[Any, list[float]] = {ours: [], reference: []}
        for number in range(ROUNDS + 1):
            for batch in (ours, reference)[:: -1 if number % 2 else 1]:
                start = time.perf_counter()
                for _ in range(CALLS):
                    await batch()
                if number:
                    costs[batch].append((time.perf_counter() - start) / CALLS)
        return costs[ours], costs[reference]

    def bare() -> Awaitable[Any]:
        return client.hget("bare", "f")

    def bare_key() -> Awaitable[Any]:
        return client.get("bare-key")

    costs = await in_turn_async(lambda: item(17), bare)
    figures = [cost_figure(f"cached_async_hit_{backend}", HGET, costs, HIT)]
    if backend == "emulated":
        costs = await in_turn_async(lambda: theirs(17), bare_key)
        figures.append(cost_figure("neighbour_async_hit_cashews", GET, costs))
    await neighbour.close()
    await client.aclose()
    return figures


def _of_frameworks(server: RedisServer) -> Iterator[Figure]:
    url = f"redis://127.0.0.1:{server.port}"
    with redis.Redis(port=server.port) as client:
        client.flushall()
    with _django_caches(
        ours={
            "BACKEND": "workstealing.integrations.django_cache.Cache",
            "LOCATION": url,
        },
        theirs={"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url},
    ):
        for name in ("ours", "theirs"):
            caches[name].set("item", ITEM, 600)
        get = tuple(_batch(lambda _, c=caches[name]: c.get("item")) for name in ("ours", "theirs"))
        yield _cost("django_get", "Django's own RedisCache", *get)
        many = [f"item-{number}" for number in range(20)]
        for name in ("ours", "theirs"):
            caches[name].set_many(dict.fromkeys(many, ITEM), 600)
        gets = [
            _batch(lambda _, c=caches[name]: c.get_many(many), CALLS // 10)
            for name in ("ours", "theirs")
        ]
        yield _cost("django_get_many_20", "Django's own RedisCache", *gets)
        sets = [
            _batch(lambda _, c=caches[name]: c.set("item", ITEM, 600))
            for name in ("ours", "theirs")
        ]
        yield _cost("django_set", "Django's own RedisCache", *sets)
    made = []
    for kind in ("workstealing.integrations.flask_caching.VolatileHashCache", "RedisCache"):
        app = Flask(f"bench-{kind}")
        cache = FlaskCache(app, config={"CACHE_TYPE": kind, "CACHE_REDIS_URL": url})
        with app.app_context():
            cache.set("item", ITEM)
        made.append(_in_context(app, cache))
    yield _cost("flask_caching_get", "Flask-Caching's own RedisCache", *made)


def _in_context(app: Flask, cache: FlaskCache) -> Batch:
    batch = _batch(lambda _: cache.get("item"))

    def run() -> float:
        with app.app_context():
            return batch()

    return run


@contextmanager
def _django_caches(**configured: dict[str, Any]) -> Iterator[None]:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"])
    settings.CACHES = configured
    caches.__dict__.pop("settings", None)
    caches._settings = configured  # noqa: SLF001 - another group has configured Django
    yield
    caches.close_all()


def _batch(call: Callable[[int], Any], calls: int = CALLS) -> Batch:
    def run() -> float:
        start = time.perf_counter()
        for number in range(calls):
            call(number)
        return (time.perf_counter() - start) / calls

    return run


def _misses(function: Callable[[int], Any]) -> Batch:
    """Return a batch of calls with arguments that were never asked for."""
    at = iter(range(1_000_000, 100_000_000))
    return _batch(lambda _: function(next(at)), CALLS // 3)


def _cost(
    name: str, reference: str, ours: Batch, theirs: Batch, target: Target | None = None
) -> Figure:
    return cost_figure(name, reference, in_turn(ours, theirs, ROUNDS), target)
