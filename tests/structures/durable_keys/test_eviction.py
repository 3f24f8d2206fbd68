"""Durable keys outlive memory pressure that evicts keys with a time to live of Redis' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import KeyExpiry
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys

pytestmark = pytest.mark.real

KEYS = 10_000
HOUR = 3_600
VALUE = b"x" * 100
NAMESPACE = "pressure"


def runs(names: Sequence[str], size: int = 1_000) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]


def set_all(pipeline: Callable[[], Any], names: Sequence[str]) -> None:
    for some in runs(names):
        with pipeline() as pipe:
            for name in some:
                pipe.set(name, VALUE, ex=HOUR)
            assert pipe.execute() == [True] * len(some)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl"])
def test_of_ten_thousand_durable_keys_none_is_evicted(
    start_redis: Callable[..., RedisServer], policy: str
) -> None:
    client: redis.Redis = start_redis(7, maxmemory_policy=policy).client()
    keys: DurableKeys = DurableKeys(client, NAMESPACE)
    durable = [f"durable:{i}" for i in range(KEYS)]
    ordinary = [f"ordinary:{i}" for i in range(KEYS)]
    set_all(lambda: keys.pipeline(transaction=False), durable)
    set_all(lambda: client.pipeline(transaction=False), ordinary)
    # No room for more: what comes now pushes something out.
    client.config_set("maxmemory", client.info("memory")["used_memory"])
    set_all(lambda: client.pipeline(transaction=False), [f"more:{i}" for i in range(KEYS // 2)])
    set_all(lambda: keys.pipeline(transaction=False), durable[: KEYS // 2])

    left = sum(client.exists(*some) for some in runs(ordinary))
    assert 0 < left < KEYS, "the server was under no pressure, so this proves nothing"
    assert client.info("stats")["evicted_keys"] >= KEYS - left
    assert client.info("stats")["expired_keys"] == 0
    for some in runs(durable):
        assert keys.mget(some) == [VALUE] * len(some)
        assert all(keys.ttl(name) > HOUR - 600 for name in some[:10])

    # An hour later.
    later: DurableKeys = DurableKeys(client, NAMESPACE, clock_shift_ms=(HOUR + 60) * 1_000)
    for some in runs(durable):
        assert later.mget(some) == [None] * len(some)
    job = KeyExpiry(later, limit=100)
    assert job.backlog().count == KEYS
    collected = slices = 0
    while job.backlog().count:
        done = job.perform(Slice(100, 10.0))
        assert done <= 100
        collected += done
        slices += 1
        assert slices < 1_000
    assert collected == KEYS
    assert sum(client.exists(*some) for some in runs(durable)) == 0
    assert not client.keys("*:due")
