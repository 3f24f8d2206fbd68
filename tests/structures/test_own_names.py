"""Keys of this package's own are refused as users' keys, and names that make such keys too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import DataError

from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError
from workstealing.store.keys import SLOT_TAGS, require_users_key
from workstealing.structures import (
    AsyncDurableKeys,
    AsyncVolatileHashes,
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.structures.access import access_by_kind
from workstealing.structures.time_shard_queue import RedisStore

REFUSED = "is one of workstealing's own keys: choose another one"
OWN = [
    "ws:items:layout",
    b"ws:other.namespace:slots",
    "ws:sharded_ick:layout:orders",
    "ws:tracked:cursor:users",
    "{" + SLOT_TAGS[7].decode() + "}:ws:items:due",
    b"{" + SLOT_TAGS[16_000] + b"}:ws:items:ttl:item:17",
    "dirty/ick/{dirty}/pset",
    "a\nb/log/{a\nb}/meta",
    "jobs/queue/{jobs}/s0",
]
USERS = [
    "ws:items",
    "ws:items:layouts",
    "news:items:layout",
    "{user}:17",
    "{abcde}:ws:items:due",
    "dirty/ick/{other}/pset",
    "{workstealing:ledger:main}:5",
    b"\xff}/x",
    "ws:",
]


# Forms that a user's key may have: the name itself, and that of a ShardedIck's members, of which
# the first part alone is ours.
_USERS_FORMS = {"NAME", "{*}:NAME:*"}


def forms() -> list[str]:
    """Return the forms of keys that the structures declare."""
    declared = access_by_kind().values()
    return sorted({form for each in declared for form in each.keys} - _USERS_FORMS)


@pytest.mark.parametrize("form", forms())
def test_each_declared_form_of_keys_is_refused_as_a_users_key(form: str) -> None:
    """A new structure's keys go into `_OWN` of store/keys.py, or a user's may overwrite them."""
    tag = "{" + SLOT_TAGS[7].decode() + "}"
    key = form.replace("{*}", tag).replace("NAMESPACE", "n").replace("NAME", "c").replace("*", "x")
    with pytest.raises(ConfigurationError, match="is one of workstealing's own keys"):
        require_users_key(key)


@pytest.mark.parametrize("key", ["\ud800", "ws:\ud800", "a}/\ud800"])
def test_a_key_that_has_no_utf_8_is_refused_in_a_sentence(redis7: RedisServer, key: str) -> None:
    """As `to_bytes` refuses it, whatever else it looks like."""
    client = redis7.client()
    for call in (
        lambda: VolatileHashes(client, namespace="h").hset(key, "f", 1),
        lambda: DurableKeys(client, namespace="d").get(key),
    ):
        with pytest.raises(DataError, match="cannot be written in UTF-8"):
            call()
    with pytest.raises(ConfigurationError, match="cannot be written in UTF-8"):
        TrackedSet(client, "t").track([key])


def emptied(server: AnyServer) -> bool:
    return not list(server.client().scan_iter())


@pytest.mark.parametrize("key", OWN)
@pytest.mark.parametrize(
    "call",
    [
        lambda hashes, key: hashes.hset(key, "field", 1),
        lambda hashes, key: hashes.hsetex(key, mapping={"field": 1}, ex=5),
        lambda hashes, key: hashes.hget(key, "field"),
        lambda hashes, key: hashes.delete(key),
        lambda hashes, key: hashes.rename("mine", key),
        lambda hashes, key: hashes.copy("mine", key),
    ],
)
@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_hashes(
    redis8: RedisServer, call: Callable[[Any, Any], Any], key: Any, backend: str
) -> None:
    hashes: Any = VolatileHashes(redis8.client(), "items", backend=backend)
    with pytest.raises(ConfigurationError, match=REFUSED):
        call(hashes, key)
    with hashes.pipeline() as pipe, pytest.raises(ConfigurationError, match=REFUSED):
        call(pipe, key)
    assert emptied(redis8)


@pytest.mark.parametrize("key", OWN)
@pytest.mark.parametrize(
    "call",
    [
        lambda keys, key: keys.set(key, 1, ex=5),
        lambda keys, key: keys.get(key),
        lambda keys, key: keys.mget("mine", key),
        lambda keys, key: keys.delete("mine", key),
        lambda keys, key: keys.expire(key, 5),
        lambda keys, key: keys.acquire(key, 5),
    ],
)
def test_keys(redis7: RedisServer, call: Callable[[Any, Any], Any], key: Any) -> None:
    keys = DurableKeys(redis7.client(), "locks")
    with pytest.raises(ConfigurationError, match=REFUSED):
        call(keys, key)
    with keys.pipeline() as pipe, pytest.raises(ConfigurationError, match=REFUSED):
        call(pipe, key)
    assert emptied(redis7)


def test_the_asyncio_forms(redis7: RedisServer) -> None:
    async def main() -> None:
        async with redis7.async_client() as client:
            hashes, keys = AsyncVolatileHashes(client, "items"), AsyncDurableKeys(client, "locks")
            with pytest.raises(ConfigurationError, match=REFUSED):
                await hashes.hset("ws:items:layout", "field", 1)
            with pytest.raises(ConfigurationError, match=REFUSED):
                await keys.set("ws:locks:layout", 1)

    asyncio.run(main())
    assert emptied(redis7)


@pytest.mark.parametrize("key", USERS)
def test_keys_of_the_users_own_are_theirs(redis7: RedisServer, key: Any) -> None:
    require_users_key(key)
    hashes = VolatileHashes(redis7.client(), "items")
    assert hashes.hset(key, "field", 1) == 1
    assert hashes.hget(key, "field") == b"1"


@pytest.mark.parametrize("name", ["ws:items:layout", b"ws:items:ttl", "jobs/log/{jobs}/meta"])
@pytest.mark.parametrize(
    "make",
    [
        Ick,
        lambda client, name: ShardedIck(client, name, 2),
        TrackedSet,
        Log,
        ShuffleQueue,
        FairQueue,
        lambda client, name: TimeShardQueue(RedisStore(client), name),
    ],
)
def test_names_of_structures(
    redis7: RedisServer, make: Callable[[Any, Any], Any], name: str | bytes
) -> None:
    with pytest.raises(ConfigurationError, match="workstealing"):
        make(redis7.client(), name)
    assert emptied(redis7)


def test_a_structure_in_the_ick_shard_of_another_is_no_foreigner(redis7: RedisServer) -> None:
    sharded = ShardedIck(redis7.client(), "orders", 2)
    sharded.add({"a": 1})
    with sharded.lease("worker") as leased:
        assert Ick(redis7.client(), leased.key).stats() is not None
