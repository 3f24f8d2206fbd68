"""What is no name is refused as redis-py refuses it, and never becomes the name of a key."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.patience import left
from support.servers import RedisServer
from workstealing.store.keys import to_bytes
from workstealing.structures import VolatileHashes

HOUR = 3600


@pytest.mark.real
@pytest.mark.parametrize("name", [None, True, False, object(), (), ["a"], {"a": 1}])
@pytest.mark.parametrize(
    "call",
    [
        lambda h, name: h.hset(name, "f", "1"),
        lambda h, name: h.hsetex(name, "f", "1", ex=HOUR),
        lambda h, name: h.hget(name, "f"),
        lambda h, name: h.rename("k", name),
        lambda h, name: h.delete(name),
    ],
)
def test_what_is_no_name_is_refused(redis7: RedisServer, name: Any, call: Any) -> None:
    hashes = VolatileHashes(redis7.client(), "names", backend="emulated")
    hashes.hset("k", "f", "1")
    before = sorted(hashes.client.keys())
    with pytest.raises(redis.DataError):
        call(hashes, name)
    assert sorted(hashes.client.keys()) == before


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        (17, b"17"),
        (-1.5, b"-1.5"),
        (bytearray(b"a\x00b"), b"a\x00b"),
        (memoryview(b"abcdef")[::2], b"ace"),
    ],
)
def test_other_names_become_the_bytes_that_redis_py_sends(
    redis7: RedisServer, name: Any, raw: bytes
) -> None:
    hashes = VolatileHashes(redis7.client(), "names", backend="emulated")
    assert to_bytes(name) == raw
    hashes.hsetex(name, "f", "1", ex=HOUR)
    assert hashes.client.hgetall(raw) == {b"f": b"1"}
    assert hashes.httl(raw, "f") == [left(HOUR)]
