"""Serializers: what stands in Redis, what another one wrote, and what is damaged."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.integrations.cache_entries import CacheEntries, entry_form
from workstealing.structures import AsyncVolatileHashes, Serializer, VolatileHashes
from workstealing.structures.volatile_hashes.cached_policy import JSON, PICKLE, StoredForm
from workstealing.testing import never

NAMES = ("json", "msgpack", "pickle")
VALUE = {"name": "é", "list": [1, 2.5, None, True], "": {}}
LONG = {"ttl": 600.0, "wait": 60.0, "lease": 600.0}


class Trap:
    """A pickle of it runs code when it is loaded."""

    def __reduce__(self) -> Any:
        return exec, ("import os; os.environ['TRAPPED'] = 'yes'",)


def entries_of(server: RedisServer, serializer: Any) -> CacheEntries:
    hashes = VolatileHashes(server.client(), f"c{random.random()}")
    return CacheEntries(hashes, 7, never(), form=entry_form(serializer))


def stored(entries: CacheEntries, key: str) -> bytes:
    data: bytes = entries.hashes.hget(entries.place(key), key)
    return data


@pytest.mark.parametrize("name", NAMES)
def test_each_serializer_in_both_kinds_of_caches(redis7: RedisServer, name: Any) -> None:
    hashes, calls = VolatileHashes(redis7.client(), "cached"), []

    @hashes.cached(**LONG, key="page", serializer=name)
    def page() -> Any:
        calls.append(1)
        return VALUE

    assert page() == page() == VALUE
    assert calls == [1]
    entries = entries_of(redis7, name)
    entries.set_many({"a": VALUE, "n": 41}, 60)
    assert entries.computed("b", lambda: VALUE, 60) == VALUE
    assert entries.increment("n", 1) == 42
    assert entries.get_many(["a", "b", "n"]) == {"a": VALUE, "b": VALUE, "n": 42}
    assert stored(entries, "n") == b"42"


async def test_a_coroutine_function_takes_a_serializer(redis7: RedisServer) -> None:
    client = redis7.async_client()
    hashes, calls = AsyncVolatileHashes(client, "cached"), []

    @hashes.cached(**LONG, key="page", serializer="msgpack")
    async def page() -> Any:
        calls.append(1)
        return [b"bytes", 1]

    assert await page() == await page() == [b"bytes", 1]
    assert calls == [1]
    await client.aclose()


def test_what_stands_in_redis() -> None:
    assert StoredForm(JSON).encode([1, "é"]) == '[1,"é"]'.encode()
    assert StoredForm(PICKLE).encode(1)[:11] == b"#pickle1:\x80\x05"
    assert entry_form("pickle").encode("a") == pickle.dumps("a", pickle.HIGHEST_PROTOCOL)
    assert entry_form("json").encode("a") == b'#json1:"a"'
    assert entry_form("msgpack").encode([1]) == b"#msgpack1:\x91\x01"
    assert entry_form("json").encode(True) == b"#json1:true"
    assert entry_form("json").encode(2**63) == b"#json1:%d" % 2**63
    assert entry_form("json").decode(b"-5") == -5
    mine = Serializer("mine", json.dumps, json.loads, version=3)
    assert StoredForm(mine).encode({}) == b"#mine3:{}"
    # Its own JSON is not ours.
    assert StoredForm(Serializer("json", json.dumps, json.loads)).encode(1) == b"#json1:1"


def test_values_of_the_release_before_are_read(redis7: RedisServer) -> None:
    hashes = VolatileHashes(redis7.client(), "cached")
    page = hashes.cached(**LONG, key="page", field="f")(lambda: 1 / 0)
    hashes.hset("page", "f", b'12:{"a":[1]}')
    assert page() == {"a": [1]}
    entries = entries_of(redis7, "pickle")
    entries.hashes.hset(entries.place("a"), "a", pickle.dumps({"a": (1,)}, 5))
    entries.hashes.hset(entries.place("n"), "n", b"17")
    assert entries.get_many(["a", "n"]) == {"a": {"a": (1,)}, "n": 17}


def test_the_release_before_reads_what_the_defaults_write() -> None:
    # As its `decode` did, and the JSON behind the cost.
    assert pickle.loads(entry_form("pickle").encode(VALUE)) == VALUE
    assert json.loads(StoredForm(JSON).encode(VALUE)) == VALUE
    # The mark ends an unpickler at its first byte.
    for name in ("json", "msgpack"):
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(entry_form(name).encode(VALUE))


@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("writer", [*NAMES, "other"])
@pytest.mark.parametrize("default", [JSON, PICKLE])
def test_only_its_own_values_are_looked_into(
    writer: str, reader: str, default: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"other": Serializer("json", json.dumps, json.loads, version=2)}
    monkeypatch.setenv("TRAPPED", "no")
    writes = StoredForm(entry_form(others.get(writer, writer)).serializer, default)
    reads = StoredForm(entry_form(reader).serializer, default)
    data = writes.encode(Trap() if writer == "pickle" else ["a"])
    if writer == reader:
        reads.decode(data)
        assert os.environ["TRAPPED"] == ("yes" if writer == "pickle" else "no")
        return
    with pytest.raises(ValueError, match="it was written by serializer"):
        reads.decode(data)
    assert os.environ["TRAPPED"] == "no"


@pytest.mark.parametrize("name", NAMES)
def test_damaged_bytes_are_a_miss_that_is_logged_once(
    redis7: RedisServer, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    entries, chance = entries_of(redis7, name), random.Random(7)
    whole = entries._form.encode(VALUE)
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [b"#", b"#:", b"#json", b"#json1", b"#9:", b"#" * 100, b"-", b"1e5", b"\xff", b"12a"]
    damaged += [b"9" * 5000, b"#msgpack1:" + b"\x91" * 2000, b"#json1:" + b"[" * 200_000]
    damaged += [b"#json2:" + whole, b"#msgpack1:\xdd\xff\xff\xff\xff", b"#pickle1:" + whole]
    damaged += [bytes(chance.randbytes(12)) for _ in range(20)] if name != "pickle" else []
    with caplog.at_level(logging.WARNING, "workstealing"):
        for data in damaged:
            entries.hashes.hset(entries.place("a"), "a", data)
            assert entries.get_many(["a"]) == {}
            assert entries.computed("a", lambda: "anew", 60) == "anew"
            assert entries.get_many(["a"]) == {"a": "anew"}
    said = [line for line in caplog.messages if entries.hashes.namespace in line]
    # One of the backend and one of the function that computes.
    assert 1 <= len(said) <= 2
    assert all("cannot be read and counts as missing" in line for line in said)


def test_what_cannot_be_read_is_logged_once_by_a_function(
    redis7: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    hashes = VolatileHashes(redis7.client(), "cached")

    @hashes.cached(**LONG, key="page", serializer=Serializer("mine", str, bytes, version=2))
    def page_of_version_two() -> Any:
        return "new"

    for data in (b"5:#mine1:old", b"5:#json1:1", b"5:text", b"5", b"x", b"5:#mine2"):
        hashes.hset("page", "page_of_version_two", data)
        with caplog.at_level(logging.WARNING, "workstealing"):
            assert page_of_version_two() == "new"
        assert hashes.hget("page", "page_of_version_two").endswith(b":#mine2:new")
        assert page_of_version_two() == b"new"
    (line,) = [each for each in caplog.messages if "page_of_version_two" in each]
    assert "it was written by serializer mine1, and this cache reads serializer mine2" in line


def test_a_value_that_a_serializer_refuses_raises_and_changes_nothing(redis7: RedisServer) -> None:
    for name in ("json", "msgpack"):
        entries = entries_of(redis7, name)
        entries.set_many({"a": 1}, 60)
        for write in (
            lambda entries=entries: entries.set_many({"a": 2, "b": object()}, 60),
            lambda entries=entries: entries.add("b", object(), 60),
            lambda entries=entries: entries.get_or_add("b", object(), 60),
        ):
            with pytest.raises(TypeError):
                write()
        assert entries.get_many(["a", "b"]) == {"a": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda: entry_form("yaml"),
        lambda: entry_form(json),
        lambda: entry_form(None),
        lambda: Serializer("", json.dumps, json.loads),
        lambda: Serializer("JSON", json.dumps, json.loads),
        lambda: Serializer("a1", json.dumps, json.loads),
        lambda: Serializer("a:b", json.dumps, json.loads),
        lambda: Serializer("a", json.dumps, None),  # type: ignore[arg-type]
        lambda: Serializer("a", json.dumps, json.loads, version=0),
        lambda: Serializer("a", json.dumps, json.loads, version=True),
    ],
)
def test_a_wrong_serializer_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()
