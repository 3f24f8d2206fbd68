"""The blocking and the asyncio form of each structure: how they are made, and what they show."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import redis
import redis.asyncio

from workstealing import structures
from workstealing.errors import ConfigurationError

NAMES = (
    "DurableKeys",
    "FairQueue",
    "Ick",
    "Log",
    "RedisStore",
    "ShardedIck",
    "ShuffleQueue",
    "TrackedSet",
    "VolatileHashes",
)


def make(name: str, client: Any) -> Any:
    kind = getattr(structures, name)
    wants_a_name = name.removeprefix("Async") not in {"DurableKeys", "RedisStore", "VolatileHashes"}
    return kind(client, "name") if wants_a_name else kind(client)


@pytest.mark.parametrize("name", NAMES)
def test_each_form_takes_its_own_clients_and_names_the_other_form(name: str) -> None:
    blocking, asynchronous = redis.Redis(), redis.asyncio.Redis()
    assert type(make(name, blocking)).__name__ == name
    assert type(make(f"Async{name}", asynchronous)).__name__ == f"Async{name}"
    with pytest.raises(ConfigurationError) as refused:
        make(name, asynchronous)
    assert str(refused.value) == f"{name} was given an asyncio client: give it to Async{name}"
    with pytest.raises(ConfigurationError) as refused:
        make(f"Async{name}", blocking)
    assert str(refused.value) == f"Async{name} was given a blocking client: give it to {name}"


def test_a_time_shard_queue_takes_stores_of_its_own_form() -> None:
    blocking = structures.RedisStore(redis.Redis())
    asynchronous = structures.AsyncRedisStore(redis.asyncio.Redis())
    with pytest.raises(ConfigurationError, match=r"give it to AsyncTimeShardQueue$"):
        structures.TimeShardQueue(asynchronous, "q")
    with pytest.raises(ConfigurationError, match=r"give it to TimeShardQueue$"):
        structures.AsyncTimeShardQueue(blocking, "q")


def test_a_users_own_subclass_is_told_of_the_public_class() -> None:
    class Pages(structures.VolatileHashes):
        """Hashes of the user's own kind."""

    client: Any = redis.asyncio.Redis()
    with pytest.raises(ConfigurationError, match=r"^VolatileHashes was given an asyncio client"):
        Pages(client)


@pytest.mark.parametrize("prefix", ["", "Async"])
@pytest.mark.parametrize("name", [*NAMES, "TimeShardQueue"])
def test_editors_are_shown_the_arguments(prefix: str, name: str) -> None:
    signature = inspect.signature(getattr(structures, prefix + name))
    kinds = {each.kind for each in signature.parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    assert next(iter(signature.parameters)) in {"client", "store"}
    # A default is shown by its name, not by its address in memory.
    assert " at 0x" not in str(signature)
