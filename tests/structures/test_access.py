"""The declared access of each structure: it covers what the structures answer, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.structures import (
    DurableKeys,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.structures.access import ACCESS
from workstealing.structures.structure import Structure

pytestmark = pytest.mark.real

MADE: dict[str, Callable[[Any], Any]] = {
    "volatile hashes": lambda client: VolatileHashes(client, namespace="n", backend="emulated"),
    "durable keys": lambda client: DurableKeys(client, namespace="n"),
    "tracked set": lambda client: TrackedSet(client, "n"),
    "Ick": lambda client: Ick(client, "n"),
    "sharded Ick": lambda client: ShardedIck(client, "n", ick_shards=4),
    "shuffle queue": lambda client: ShuffleQueue(client, "n"),
    "time shard queue": lambda client: TimeShardQueue(RedisStore(client), "n"),
    "log": lambda client: Log(client, "n"),
}
WRITE: dict[str, Callable[[Any], Any]] = {
    "volatile hashes": lambda hashes: hashes.hsetex("k", "f", "v", ex=60),
    "durable keys": lambda keys: keys.set("k", "v", ex=60),
    "tracked set": lambda tracked: tracked.track(1),
    "Ick": lambda ick: ick.add("m"),
    "sharded Ick": lambda ick: ick.add("m"),
    "shuffle queue": lambda queue: queue.write("tenant", {"a": "b"}),
    "time shard queue": lambda queue: queue.put("message"),
    "log": lambda log: log.append(b"entry"),
}


def test_each_kind_is_declared() -> None:
    assert set(ACCESS) == set(MADE) == set(WRITE)


@pytest.mark.parametrize("kind", MADE)
def test_questions_after_a_write(kind: str, redis7: RedisServer) -> None:
    structure: Structure = MADE[kind](redis7.client(db=1))
    assert structure.kind == kind
    WRITE[kind](structure)
    structure.inspect(structure.size_steps())
    structure.inspect(structure.dead_steps())
    assert all(each.level == "ok" for each in structure.inspect(structure.check_steps()))
