"""Whose data a namespace is: every refusal is one sentence, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import (
    ConfigurationError,
    EvictionPolicyError,
    LayoutError,
    WorkStealingError,
)
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes import hashes as hashes_module

HOUR = 3_600
LAYOUT = {
    "structure": "volatile_hashes",
    "version": 1,
    "readable_from": 1,
    "writable_from": 1,
    "backend": "emulated",
    "index_shards": 16,
}


def dump(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


def refuses(client: Any, call: Callable[[], Any], error: type[Exception], *words: str) -> None:
    """Assert that a call is refused in one sentence with these words, and that all keys stay."""
    before = dump(client)
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    assert all(word in text for word in words), text
    assert "\n" not in text
    assert ". " not in text.rstrip(".").replace("version 1. ", "")
    assert len(text) < 400
    assert dump(client) == before


def emulated(server: AnyServer, namespace: str = "n", **options: Any) -> VolatileHashes:
    hashes: VolatileHashes = VolatileHashes(
        server.client(), namespace, backend="emulated", **options
    )
    return hashes


WRITES: dict[str, Callable[[VolatileHashes], Any]] = {
    "hset": lambda h: h.hset("h", "f", 2),
    "hsetnx": lambda h: h.hsetnx("h", "new", 2),
    "hsetex": lambda h: h.hsetex("h", "f", 2, ex=HOUR),
    "hsetex without a time": lambda h: h.hsetex("h", "f", 2),
    "hsetex in the past": lambda h: h.hsetex("h", "f", 2, ex=0),
    "hgetex": lambda h: h.hgetex("h", "f", ex=HOUR),
    "hgetex persist": lambda h: h.hgetex("h", "f", persist=True),
    "hgetdel": lambda h: h.hgetdel("h", "f"),
    "hdel": lambda h: h.hdel("h", "f"),
    "hincrby": lambda h: h.hincrby("h", "f", 2),
    "hincrbyfloat": lambda h: h.hincrbyfloat("h", "f", 2),
    "hexpire": lambda h: h.hexpire("h", HOUR, "f"),
    "hpexpireat": lambda h: h.hpexpireat("h", 1, "f"),
    "hpersist": lambda h: h.hpersist("h", "f"),
    "delete": lambda h: h.delete("h"),
    "unlink": lambda h: h.unlink("h"),
    "expire": lambda h: h.expire("h", HOUR),
    "persist": lambda h: h.persist("h"),
    "rename": lambda h: h.rename("h", "{h}2"),
    "renamenx": lambda h: h.renamenx("h", "{h}2"),
    "copy": lambda h: h.copy("h", "{h}2"),
}


def own_keys(hashes: VolatileHashes, name: bytes = b"h") -> dict[str, bytes]:
    shard = hashes.open().shard_of(key_slot(name))
    return {
        "mark": hashes.names.mark(shard),
        "due": hashes.names.due(shard),
        "deadlines": hashes.names.deadlines(name),
    }


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("mark", ("does not hold a layout mark", "nothing was changed")),
        ("due", ("does not hold a due index", "nothing was changed")),
        ("deadlines", ("does not hold the deadlines", "nothing was changed")),
    ],
)
def test_a_foreign_type_at_a_key_of_ours(
    redis7: RedisServer, key: str, words: tuple[str, ...], write: str
) -> None:
    hashes = emulated(redis7)
    hashes.hset("h", "f", 1)
    client = redis7.client()
    keys = own_keys(hashes)
    client.delete(keys[key])
    client.rpush(keys[key], "foreign")
    refuses(client, lambda: WRITES[write](hashes), LayoutError, keys[key].decode(), *words)
    # A pipeline says the same, and the commands beside it are done.
    pipeline = hashes.pipeline(transaction=False)
    WRITES[write](pipeline)  # type: ignore[arg-type]
    pipeline.plain.echo("here")
    refused, echo = pipeline.execute(raise_on_error=False)
    assert isinstance(refused, LayoutError)
    assert echo == b"here"


@pytest.mark.parametrize("write", ["rename", "renamenx", "copy"])
@pytest.mark.parametrize("key", ["mark", "due", "deadlines"])
def test_a_foreign_type_at_a_key_of_the_destination(
    redis7: RedisServer, key: str, write: str
) -> None:
    hashes = emulated(redis7)
    hashes.hsetex("h", "f", 1, ex=HOUR)
    client = redis7.client()
    target = next(
        name
        for name in (f"x{i}" for i in range(100))
        if own_keys(hashes, name.encode())["due"] != own_keys(hashes)["due"]
    )
    client.rpush(own_keys(hashes, target.encode())[key], "foreign")
    refuses(client, lambda: getattr(hashes, write)("h", target), LayoutError, "does not hold")


@pytest.mark.parametrize("write", ["rename", "renamenx", "copy"])
@pytest.mark.parametrize("marked", ["h", "target"])
def test_a_refused_command_on_two_hashes_marks_neither(
    redis7: RedisServer, write: str, marked: str
) -> None:
    hashes = emulated(redis7)
    client = redis7.client()
    target = next(
        name
        for name in (f"x{i}" for i in range(100))
        if own_keys(hashes, name.encode())["mark"] != own_keys(hashes)["mark"]
    )
    # Written by another program, so that neither index shard has a mark.
    client.hset("h", "f", 1)
    client.set(own_keys(hashes, (marked if marked == "h" else target).encode())["mark"], "2:new")
    refuses(client, lambda: getattr(hashes, write)("h", target), LayoutError, "2:new")


@pytest.mark.parametrize("write", WRITES)
def test_a_mark_of_another_layout(redis7: RedisServer, write: str) -> None:
    hashes = emulated(redis7)
    hashes.hset("h", "f", 1)
    client = redis7.client()
    client.set(own_keys(hashes)["mark"], "2:emulated")
    refuses(client, lambda: WRITES[write](hashes), LayoutError, "2:emulated", "1:emulated")


@pytest.mark.parametrize("name", ["string", "list"])
def test_a_foreign_type_at_the_users_own_key(redis7: RedisServer, name: str) -> None:
    hashes = emulated(redis7)
    hashes.open()
    client = redis7.client()
    client.set("string", "x")
    client.rpush("list", "x")
    hashes.hset("h", "f", 1)
    mark = own_keys(hashes, name.encode())["mark"]
    client.set(mark, "1:emulated")
    for call in WRITES.values():

        class AtTheForeignKey:
            """Passes calls on with the foreign key in place of "h"."""

            def __getattr__(self, method: str) -> Any:
                return lambda _, *a, **o: getattr(hashes, method)(name, *a, **o)

        refuses(
            client,
            lambda call=call: call(AtTheForeignKey()),  # type: ignore[misc, arg-type]
            redis.ResponseError,
            "WRONGTYPE",
        )


# The layout itself.


@pytest.mark.parametrize(
    "call",
    [
        lambda server: emulated(server).hset("h", "f", 1),
        lambda server: emulated(server).hget("h", "f"),
        lambda server: emulated(server).pipeline().hget("h", "f").execute(),
        lambda server: HashFieldExpiry(emulated(server)).perform(Slice(5, 5.0)),
        lambda server: HashFieldExpiry(emulated(server)).backlog(),
    ],
)
@pytest.mark.parametrize(
    "put",
    [
        lambda client: client.set("ws:n:layout", "foreign"),
        lambda client: client.hset("ws:n:layout", "f", "foreign"),
        lambda client: client.hset("ws:n:layout", mapping={**LAYOUT, "structure": "ick"}),
        lambda client: client.hset("ws:n:layout", mapping={**LAYOUT, "backend": "other"}),
        lambda client: client.hset("ws:n:layout", mapping={**LAYOUT, "version": "one"}),
        lambda client: client.hset("ws:n:layout", mapping={**LAYOUT, "index_shards": 0}),
        lambda client: client.hset("ws:n:layout", mapping={**LAYOUT, "index_shards": 99_999}),
    ],
)
def test_a_foreign_layout(redis7: RedisServer, put: Any, call: Any) -> None:
    client = redis7.client()
    put(client)
    refuses(client, lambda: call(redis7), LayoutError, "ws:n:layout", "use another namespace")


def test_a_newer_layout_that_may_be_read_is_read_and_not_written(redis7: RedisServer) -> None:
    client = redis7.client()
    emulated(redis7).hsetex("h", "f", 1, ex=HOUR)
    client.hset("ws:n:layout", mapping={**LAYOUT, "version": 2, "writable_from": 2})
    hashes = emulated(redis7)
    assert hashes.hgetall("h") == {b"f": b"1"}
    assert hashes.hgetex("h", "f") == [b"1"]
    assert hashes.hlen("h") == 1
    for write in WRITES.values():
        refuses(
            client,
            lambda write=write: write(hashes),  # type: ignore[misc]
            LayoutError,
            *("version 2", "may read but not write", "upgrade workstealing"),
        )
    refuses(client, lambda: hashes.pipeline().hset("h", "f", 2).execute(), LayoutError, "not write")


@pytest.mark.parametrize("has_read", ["before", "after"])
async def test_a_native_layout_that_may_only_be_read_is_not_written(
    redis8: RedisServer, has_read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server runs its own commands, whatever the layout says: no script refused them."""
    monkeypatch.setattr(hashes_module, "LAYOUT_SECONDS", 0.0)
    client = redis8.client()
    hashes = VolatileHashes(client, "n", backend="native")
    hashes.hsetex("h", "f", 1, ex=HOUR)
    client.hset("ws:n:layout", mapping={"version": 2, "writable_from": 2})
    if has_read == "after":
        hashes = VolatileHashes(client, "n")
    assert hashes.hgetall("h") == {b"f": b"1"}
    assert hashes.hgetex("h", "f") == [b"1"]
    for write in WRITES.values():
        refuses(
            client,
            lambda write=write: write(hashes),  # type: ignore[misc]
            LayoutError,
            *("version 2", "may read but not write", "upgrade workstealing"),
        )
    refuses(client, lambda: hashes.pipeline().hset("h", "f", 2).execute(), LayoutError, "not write")
    async with redis8.async_client() as awaited:
        with pytest.raises(LayoutError, match="may read but not write"):
            await AsyncVolatileHashes(awaited, "n").hset("h", "f", 2)
    client.hset("ws:n:layout", mapping={"version": 1, "writable_from": 1})
    assert hashes.hset("h", "g", 2) == 1


def test_who_meets_a_newer_mark_goes_by_the_newer_layout(redis7: RedisServer) -> None:
    client = redis7.client()
    hashes = emulated(redis7)
    hashes.hsetex("h", "f", 1, ex=HOUR)
    client.hset("ws:n:layout", mapping={"version": 2, "writable_from": 2})
    client.set(own_keys(hashes)["mark"], "2:emulated")
    with pytest.raises(LayoutError, match="may read but not write"):
        hashes.hset("h", "f", 2)
    assert hashes.hgetall("h") == {b"f": b"1"}


def test_the_job_leaves_a_layout_alone_that_it_may_not_write(redis7: RedisServer) -> None:
    client = redis7.client()
    emulated(redis7).hsetex("h", "f", 1, ex=HOUR)
    client.hset("ws:n:layout", mapping={**LAYOUT, "version": 2, "writable_from": 2})
    later = emulated(redis7, clock_shift_ms=2 * HOUR * 1000)
    job = HashFieldExpiry(later)
    refuses(client, lambda: job.perform(Slice(5, 5.0)), LayoutError, "version 2", "not write")
    assert job.backlog().count == 1


def test_a_newer_layout_that_may_not_be_read(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("ws:n:layout", mapping={**LAYOUT, "version": 3, "readable_from": 3})
    for call in (lambda h: h.hget("h", "f"), lambda h: h.hset("h", "f", 1)):
        refuses(
            client,
            lambda call=call: call(emulated(redis7)),  # type: ignore[misc]
            LayoutError,
            *("version 3", "cannot read", "upgrade workstealing"),
        )


# Backends.


@pytest.fixture
def client_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Return a function that gives a client of a server named in a parameter; wipes it after."""
    used: list[AnyServer] = []

    def client(name: str) -> Any:
        used.append(request.getfixturevalue(name))
        return used[-1].client()

    yield client
    for server in used:
        server.wipe()


def test_an_emulated_namespace_is_not_taken_for_a_native_one(redis8: RedisServer) -> None:
    emulated(redis8).hset("h", "f", 1)
    client = redis8.client()
    # backend="native" beside "emulated": two users of one namespace that disagree.
    refuses(
        client,
        lambda: VolatileHashes(client, "n", backend="native").hget("h", "f"),
        LayoutError,
        *("laid out as emulated, not native", 'backend="auto"', "MigrateToNative"),
    )
    assert VolatileHashes(client, "n").hget("h", "f") == b"1"
    assert VolatileHashes(client, "n").open().backend == "emulated"


def test_a_native_namespace_is_not_taken_for_an_emulated_one(redis8: RedisServer) -> None:
    client = redis8.client()
    VolatileHashes(client, "n").hset("h", "f", 1)
    refuses(
        client,
        lambda: emulated(redis8).hget("h", "f"),
        LayoutError,
        "laid out as native, not emulated",
    )


def test_a_native_namespace_on_a_server_without_the_commands(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("ws:n:layout", mapping={**LAYOUT, "backend": "native"})
    for backend in ("auto", "native"):
        refuses(
            client,
            lambda backend=backend: VolatileHashes(  # type: ignore[misc]
                client, "n", backend=backend
            ).hget("h", "f"),
            LayoutError,
            *("this server cannot", "go back to Redis 8 or Valkey 9"),
        )


@pytest.mark.parametrize("product", ["redis7", "redis62", "valkey8", "fakeredis_server"])
def test_native_is_refused_where_the_commands_are_missing(
    client_of: Callable[[str], Any], product: str
) -> None:
    client = client_of(product)
    with pytest.raises(ConfigurationError, match=r'backend="native" needs a server with HSETEX'):
        VolatileHashes(client, "n", backend="native").hget("h", "f")
    assert client.keys("*") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("product", "backend"),
    [
        ("redis7", "emulated"),
        ("redis62", "emulated"),
        ("valkey8", "emulated"),
        ("fakeredis_server", "emulated"),
        ("cluster", "emulated"),
        ("redis8", "native"),
        ("redis82", "native"),
        ("valkey9", "native"),
        ("cluster8", "native"),
    ],
)
def test_auto_takes_the_servers_own_commands_where_they_are(
    client_of: Callable[[str], Any], product: str, backend: str
) -> None:
    client = client_of(product)
    hashes = VolatileHashes(client, "n")
    assert hashes.layout is None
    assert hashes.hset("h", "f", 1) == 1
    assert hashes.open().backend == backend
    assert VolatileHashes(client, "n").open().backend == backend


@pytest.mark.parametrize(
    "options",
    [{"namespace": name} for name in ("", "a b", "a{b}", "a:b", "\u00fc", "x" * 65, b"n", None, 7)]
    + [{"backend": name} for name in ("", "Native", "redis", None)]
    + [{"allow_eviction": "allkeys-lru"}],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    redis7: RedisServer, options: dict[str, Any]
) -> None:
    client = redis7.client()
    before = client.info("stats")["total_commands_processed"]
    with pytest.raises(ConfigurationError) as raised:
        VolatileHashes(client, **options)
    assert "\n" not in str(raised.value)
    assert client.info("stats")["total_commands_processed"] == before + 1


def test_no_client_is_refused() -> None:
    for client in (None, "redis://localhost", object()):
        with pytest.raises(ConfigurationError, match="a client of redis-py was expected"):
            VolatileHashes(client)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 64])
def test_namespaces_are_kept_apart(redis7: RedisServer, name: str) -> None:
    ours, theirs = emulated(redis7, name), emulated(redis7, "other")
    ours.hsetex("h", "f", 1, ex=HOUR)
    theirs.hsetex("g", "f", 1, ex=HOUR)
    later = emulated(redis7, name, clock_shift_ms=2 * HOUR * 1000)
    assert HashFieldExpiry(later).perform(Slice(5, 5.0)) == 1
    assert theirs.hgetall("g") == {b"f": b"1"}


# Eviction.


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_policies_that_evict_deadlines_without_their_hash(
    start_redis: Callable[..., RedisServer], policy: str
) -> None:
    server = start_redis(7, maxmemory_policy=policy)
    client = server.client()
    for call in (
        lambda: emulated(server).hset("h", "f", 1),
        lambda: emulated(server, allow_eviction=["allkeys-other"]).hget("h", "f"),
    ):
        refuses(client, call, EvictionPolicyError, policy, "noeviction", "allow_eviction=[")
    allowed = emulated(server, allow_eviction=[policy])
    assert allowed.hset("h", "f", 1) == 1
    # The layout is there now, and the policy is still refused to those who have not named it.
    refuses(client, lambda: emulated(server).hget("h", "f"), EvictionPolicyError, policy)


def test_a_policy_that_was_changed_later_is_refused_at_the_next_start(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7)
    emulated(server).hset("h", "f", 1)
    server.client().config_set("maxmemory-policy", "allkeys-lru")
    refuses(server.client(), lambda: emulated(server).hget("h", "f"), EvictionPolicyError)


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_policies_that_leave_hashes_whole(
    start_redis: Callable[..., RedisServer], policy: str
) -> None:
    server = start_redis(7, maxmemory_policy=policy)
    assert emulated(server).hset("h", "f", 1) == 1


def test_a_native_namespace_does_not_mind_eviction(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(8, maxmemory_policy="allkeys-lru")
    hashes = VolatileHashes(server.client(), "n")
    assert hashes.hsetex("h", "f", 1, ex=HOUR) == 1
    assert hashes.open().is_native


def test_an_error_of_the_server_is_not_taken_for_a_foreign_layout(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7)
    server.client().execute_command("ACL SETUSER", "weak", "on", "nopass", "~other*", "+@all")
    weak = server.client(username="weak", password="")
    with pytest.raises(redis.exceptions.NoPermissionError):
        VolatileHashes(weak, "n", backend="emulated").hget("h", "f")


def test_all_errors_are_of_one_tree() -> None:
    for error in (LayoutError, EvictionPolicyError, ConfigurationError):
        assert issubclass(error, WorkStealingError)
