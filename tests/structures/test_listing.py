"""What `dir()` lists of a structure: the operations for users, each with a docstring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workstealing.structures import (
    AsyncVolatileHashes,
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

INNER = {
    "register_steps",
    "translator",
    "job_client",
    "size_steps",
    "check_steps",
    "layout_steps",
    "core",
}
# Attributes of data, whose meaning the class's docstring says.
DATA = {"client", "fleet", "kind", "name", "namespace", "holds", "on_nodes", "source", "streams"}
DATA |= {"streams_per_tenant", "ttl", "token", "codec", "cache", "icks", "allow_eviction", "store"}
DATA |= {"is_open", "period", "rotation", "max_attempts"}

MADE: dict[str, Callable[[Any], Any]] = {
    "hashes": VolatileHashes,
    "keys": DurableKeys,
    "ick": lambda client: Ick(client, "a"),
    "sharded ick": lambda client: ShardedIck(client, "a", 2),
    "tracked set": lambda client: TrackedSet(client, "a"),
    "shuffle queue": lambda client: ShuffleQueue(client, "a"),
    "fair queue": lambda client: FairQueue(client, "a"),
    "time shard queue": lambda client: TimeShardQueue(RedisStore(client), "a"),
    "log": lambda client: Log(client, "a"),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_inner_parts_are_not_listed_and_the_others_have_docstrings(
    make: Callable[[Any], Any], fakeredis_server: Any
) -> None:
    made = make(fakeredis_server.client())
    listed = [name for name in dir(made) if not name.startswith("_")]
    assert len(listed) > 5
    assert INNER.isdisjoint(listed)
    silent = [name for name in listed if name not in DATA and not getattr(made, name).__doc__]
    assert silent == []


def test_the_operations_are_listed(fakeredis_server: Any) -> None:
    hashes: VolatileHashes = VolatileHashes(fakeredis_server.client())
    assert {"hsetex", "hgetex", "hget", "cached", "pipeline", "expire"} <= set(dir(hashes))
    assert {"hsetex", "hgetex", "cached"} <= set(dir(AsyncVolatileHashes))
    # An inner part is hidden from the list, and can be used all the same.
    assert hashes.job_client is not None
