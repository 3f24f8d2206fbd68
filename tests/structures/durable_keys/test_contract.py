"""Durable keys on every kind of server.

What has passed its deadline is told from what has not by clocks that are set, not by waiting: a
second object sees the same namespace with its clock ahead.
"""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.patience import left
from support.recording import Recording
from support.servers import AnyServer, RedisServer
from workstealing.errors import Aborted, ConfigurationError, EvictionPolicyError, LayoutError
from workstealing.store.keys import key_slot
from workstealing.store.valkey_clients import redis_client
from workstealing.structures import AsyncDurableKeys, DurableKeys, VolatileHashes

pytestmark = pytest.mark.contract

NAMESPACE = "contract"
HOUR_MS = 3_600_000
AT = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
AT_S = int(AT.timestamp())
ODD_NAMES = ["plain", "a}b", "{}x", "x{y", "{a}b", "}{", "{", "ü{☃}", b"\xff\x00{\xfe}", b""]
COMMANDS = [
    *("set", "get", "getex", "getdel", "mget", "ttl", "pttl", "expiretime", "pexpiretime"),
    *("expire", "pexpire", "expireat", "pexpireat", "persist", "delete", "unlink", "exists"),
]


def keys_on(server: AnyServer, ahead_ms: int = 0, **options: Any) -> DurableKeys:
    keys: DurableKeys = DurableKeys(server.client(**options), NAMESPACE, clock_shift_ms=ahead_ms)
    return keys


@pytest.fixture
def keys(any_server: AnyServer) -> DurableKeys:
    return keys_on(any_server)


@pytest.fixture
def later(any_server: AnyServer) -> DurableKeys:
    return keys_on(any_server, HOUR_MS)


@pytest.mark.parametrize("name", COMMANDS)
def test_signatures_are_redis_pys_own(name: str) -> None:
    assert inspect.signature(getattr(DurableKeys, name)) == inspect.signature(
        getattr(redis.Redis, name)
    )


# What each method answers, in order, on a fresh namespace: (method, args, options, reply).
Step = tuple[str, tuple[Any, ...], dict[str, Any], Any]
STORY: list[Step] = [
    ("get", ("k",), {}, None),
    ("set", ("k", "1"), {}, True),
    ("get", ("k",), {}, b"1"),
    ("ttl", ("k",), {}, -1),
    ("set", ("k", 2), {"nx": True}, None),
    ("set", ("k", 2), {"xx": True, "ex": 100}, True),
    ("ttl", ("k",), {}, 100),
    ("set", ("k", b"\xff"), {"keepttl": True, "get": True}, b"2"),
    ("ttl", ("k",), {}, 100),
    ("get", ("k",), {}, b"\xff"),
    ("set", ("k", 3), {"exat": AT}, True),
    ("expiretime", ("k",), {}, AT_S),
    ("pexpiretime", ("k",), {}, AT_S * 1000),
    ("set", ("k", 4), {"pxat": AT_S * 1000 + 1}, True),
    ("pexpiretime", ("k",), {}, AT_S * 1000 + 1),
    ("set", ("k", 5), {"px": dt.timedelta(seconds=50)}, True),
    ("ttl", ("k",), {}, 50),
    ("set", ("k", 6), {"get": True}, b"5"),
    ("pttl", ("k",), {}, -1),
    ("set", ("none", 6), {"get": True, "xx": True}, None),
    ("set", ("k", "OK"), {"get": True}, b"6"),
    ("set", ("k", 7), {"get": True}, b"OK"),
    ("pttl", ("none",), {}, -2),
    ("expiretime", ("none",), {}, -2),
    ("pexpiretime", ("k",), {}, -1),
    ("expire", ("none", 5), {}, False),
    ("expire", ("k", 100), {"xx": True}, False),
    ("expire", ("k", 100), {"gt": True}, False),
    ("expire", ("k", 100), {"lt": True}, True),
    ("expire", ("k", 100), {"nx": True}, False),
    ("pexpire", ("k", 99_000), {"gt": True}, False),
    ("pexpire", ("k", 200_000), {"gt": True}, True),
    ("ttl", ("k",), {}, 200),
    ("expire", ("k", 300), {"lt": True}, False),
    ("expire", ("k", 100), {"xx": True, "lt": True}, True),
    ("ttl", ("k",), {}, 100),
    ("expireat", ("k", AT), {}, True),
    ("pexpireat", ("k", AT_S * 1000 + 2), {"xx": True, "gt": True}, True),
    ("pexpiretime", ("k",), {}, AT_S * 1000 + 2),
    ("persist", ("k",), {}, True),
    ("persist", ("k",), {}, False),
    ("persist", ("none",), {}, False),
    ("getex", ("k",), {}, b"7"),
    ("ttl", ("k",), {}, -1),
    ("getex", ("k",), {"ex": 10}, b"7"),
    ("ttl", ("k",), {}, 10),
    ("getex", ("k",), {"persist": True}, b"7"),
    ("ttl", ("k",), {}, -1),
    ("getex", ("k",), {"exat": AT_S}, b"7"),
    ("expiretime", ("k",), {}, AT_S),
    ("getex", ("none",), {"ex": 10}, None),
    ("set", ("l", ""), {"ex": 100}, True),
    ("mget", (["k", "none", "l"], "k"), {}, [b"7", None, b"", b"7"]),
    ("mget", ([],), {}, []),
    ("exists", ("k", "l", "none", "k"), {}, 3),
    ("getdel", ("l",), {}, b""),
    ("getdel", ("l",), {}, None),
    ("set", ("l", 1), {"ex": 100}, True),
    ("delete", ("k", "l", "none", "k"), {}, 2),
    ("unlink", ("k", "l"), {}, 0),
    ("set", ("k", 1), {"pxat": 1}, True),
    ("exists", ("k",), {}, 0),
    ("set", ("k", 1), {}, True),
    ("expire", ("k", -1), {}, True),
    ("exists", ("k",), {}, 0),
    ("set", ("k", 1), {}, True),
    ("getex", ("k",), {"pxat": 1}, b"1"),
    ("exists", ("k",), {}, 0),
]


def has_gone_by(reply: Any, wanted: Any) -> bool:
    """Say whether a reply is the wanted one; a time to live may have lost a second."""
    return bool(reply == wanted or (wanted in (10, 50, 100, 200) and reply == wanted - 1))


def test_the_story(keys: DurableKeys) -> None:
    for name, args, options, wanted in STORY:
        reply = getattr(keys, name)(*args, **options)
        assert has_gone_by(reply, wanted), (name, args, options, reply)
        assert type(reply) is type(wanted), (name, args, options, reply)


async def test_the_story_on_an_asyncio_client(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        keys: AsyncDurableKeys = AsyncDurableKeys(client, NAMESPACE)
        assert isinstance(keys, AsyncDurableKeys)
        for name, args, options, wanted in STORY:
            reply = await getattr(keys, name)(*args, **options)
            assert has_gone_by(reply, wanted), (name, args, options, reply)
        assert (await keys.open()).backend == "durable"


@pytest.mark.parametrize("transaction", [True, False])
def test_the_story_on_a_pipeline(keys: DurableKeys, transaction: bool) -> None:
    story = [step for step in STORY if step[0] != "mget" or step[1] != ([],)]
    with keys.pipeline(transaction=transaction) as pipe:
        for name, args, options, _ in story:
            assert getattr(pipe, name)(*args, **options) is pipe
        assert len(pipe) == len(story)
        replies = pipe.execute()
    for (name, args, options, wanted), reply in zip(story, replies, strict=True):
        assert has_gone_by(reply, wanted), (name, args, options, reply)


async def test_the_story_on_an_asyncio_pipeline(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        keys: AsyncDurableKeys = AsyncDurableKeys(client, NAMESPACE)
        async with keys.pipeline() as pipe:
            pipe.set("k", 1, ex=100).incr("visits")
            pipe.plain.set("{k}mine", 2)
            pipe.get("k")
            assert await pipe.execute() == [True, 1, True, b"1"]
            assert await pipe.execute() == []


def test_a_pipeline_takes_the_users_own_commands_and_shows_errors(keys: DurableKeys) -> None:
    keys.client.hset("h", "f", 1)
    with keys.pipeline(transaction=False) as pipe:
        pipe.set("k", 1, ex=100).incr("visits").set("h", 1).get("k")
        one, two, three, four = pipe.execute(raise_on_error=False)
        assert (one, two, four) == (True, 1, b"1")
        assert "WRONGTYPE" in str(three)
        pipe.set("h", 1)
        with pytest.raises(redis.ResponseError, match=r"^command 1 of the pipeline: .*WRONGTYPE"):
            pipe.execute()


def test_the_users_decoding_is_respected(any_server: AnyServer) -> None:
    keys = keys_on(any_server, decode_responses=True)
    assert keys.set("k", "ü", ex=100) is True
    assert keys.get("k") == "ü"
    assert keys.mget(["k", "none"]) == ["ü", None]
    assert keys.set("k", "v", get=True) == "ü"


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols(redis7: RedisServer, protocol: int) -> None:
    keys = keys_on(redis7, protocol=protocol)
    for name, args, options, wanted in STORY:
        reply = getattr(keys, name)(*args, **options)
        assert has_gone_by(reply, wanted), (name, args, options, reply)


# Gone at the deadline.


def test_gone_for_every_reader_at_the_deadline(
    any_server: AnyServer, keys: DurableKeys, later: DurableKeys
) -> None:
    keys.set("k", 1, ex=60)
    keys.set("lasting", 1)
    assert later.get("k") is None
    assert later.getex("k") is None
    assert later.mget(["k", "lasting"]) == [None, b"1"]
    assert later.exists("k", "lasting") == 1
    for name in ("ttl", "pttl", "expiretime", "pexpiretime"):
        assert getattr(later, name)("k") == -2
    assert not later.expire("k", 60)
    assert not later.persist("k")
    assert later.set("k", 2, xx=True) is None
    assert keys.get("k") == b"1"
    with later.pipeline() as pipe:
        assert pipe.get("k").exists("k").execute() == [None, 0]
    # By the very millisecond.
    deadline = keys.pexpiretime("k")
    clock = any_server.client().time() if not any_server.is_cluster else None
    if clock is not None:
        now = clock[0] * 1000 + clock[1] // 1000
        assert keys_on(any_server, deadline - now).get("k") is None
        assert keys_on(any_server, deadline - now - 10_000).get("k") == b"1"


@pytest.mark.parametrize(
    ("options", "reply"),
    [
        ({"nx": True}, True),
        ({"get": True}, None),
        ({"nx": True, "keepttl": True}, True),
        ({"keepttl": True}, True),
    ],
)
def test_what_is_set_anew_does_not_inherit_a_deadline(
    keys: DurableKeys, later: DurableKeys, options: dict[str, Any], reply: Any
) -> None:
    keys.set("k", 1, ex=60)
    assert later.set("k", 2, **options) == reply
    assert later.get("k") == b"2"
    assert later.ttl("k") == -1


def test_deleting_garbage_deletes_nothing_that_anybody_saw(
    keys: DurableKeys, later: DurableKeys
) -> None:
    for name in ("a", "b", "c"):
        keys.set(name, 1, ex=60)
    assert later.delete("a") == 0
    assert later.unlink("b") == 0
    assert later.getdel("c") is None
    assert keys.client.exists("a") == keys.client.exists("b") == keys.client.exists("c") == 0
    assert due_entries(keys) == {}


def all_keys(keys: DurableKeys, pattern: str = "*") -> list[bytes]:
    on_cluster = isinstance(keys.client, redis.RedisCluster)
    options = {"target_nodes": "primaries"} if on_cluster else {}
    return sorted(keys.client.keys(pattern, **options))


def due_entries(keys: DurableKeys) -> dict[bytes, float]:
    found: dict[bytes, float] = {}
    for key in all_keys(keys, "*:due"):
        found |= dict(keys.client.zrange(key, 0, -1, withscores=True))
    return found


def test_nothing_carries_a_time_to_live_of_the_servers(keys: DurableKeys) -> None:
    for step in STORY:
        getattr(keys, step[0])(*step[1], **step[2])
        for key in all_keys(keys):
            assert keys.client.pttl(key) == -1, (step, key)
    keys.acquire("lease", 10)
    assert keys.client.pttl("lease") == -1


def test_the_due_index_holds_just_what_has_a_deadline(keys: DurableKeys) -> None:
    for step in STORY:
        getattr(keys, step[0])(*step[1], **step[2])
        wanted = {k: keys.pexpiretime(k) for k in (b"k", b"l") if keys.ttl(k) >= 0}
        assert due_entries(keys) == wanted, step


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(keys: DurableKeys, later: DurableKeys, name: Any) -> None:
    assert keys.set(name, 1, ex=100)
    assert keys.mget([name, "other"]) == [b"1", None]
    assert keys.client.get(name) == b"1"
    assert later.get(name) is None
    assert keys.delete(name, "other") == 1


@pytest.mark.slow
def test_a_thousand_untagged_names_over_hundreds_of_slots(
    keys: DurableKeys, later: DurableKeys
) -> None:
    names = [f"name:{i}" for i in range(1000)]
    assert len({key_slot(name.encode()) for name in names}) > 500
    with keys.pipeline(transaction=False) as pipe:
        for i, name in enumerate(names):
            pipe.set(name, i, ex=100)
        assert pipe.execute() == [True] * 1000
    assert keys.mget(names) == [str(i).encode() for i in range(1000)]
    assert later.mget(names) == [None] * 1000
    assert keys.exists(*names) == 1000
    assert keys.delete(*names) == 1000
    assert due_entries(keys) == {}


# What is refused.


@pytest.mark.parametrize(
    ("name", "args"),
    [
        *[(name, ()) for name in COMMANDS if "expire" not in name and name != "mget"],
        *[(name, (100,)) for name in COMMANDS if "expire" in name and "time" not in name],
        ("acquire", (10,)),
        ("release", (5,)),
        ("extend", (5, 10)),
    ],
)
def test_another_type_at_the_key_is_never_changed(
    keys: DurableKeys, name: str, args: tuple[Any, ...]
) -> None:
    keys.client.hset("h", "f", 1)
    keys.open()
    if name == "set":
        args = ("value",)
    elif name == "getex":
        args = (10,)
    before = [*all_keys(keys), keys.names.registry]
    if name in ("exists", "ttl", "pttl"):
        assert getattr(keys, name)("h", *args) == getattr(keys.client, name)("h", *args)
    else:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            getattr(keys, name)("h", *args)
    assert keys.mget(["h"]) == [None]
    assert keys.client.hgetall("h") == {b"f": b"1"}
    assert set(all_keys(keys)) <= set(before)


def test_no_key_of_many_is_deleted_if_one_is_of_another_type(keys: DurableKeys) -> None:
    keys.set("{h}a", 1, ex=100)
    keys.client.hset("{h}b", "f", 1)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        keys.delete("{h}a", "{h}b")
    assert keys.exists("{h}a", "{h}b") == 2


WRONG: list[tuple[tuple[Any, ...], str]] = [
    (("SET", "k", "v", "EX", 0), "invalid expire time in 'set' command"),
    (("SET", "k", "v", "PX", -5), "invalid expire time in 'set' command"),
    (("SET", "k", "v", "EXAT", 0), "invalid expire time in 'set' command"),
    (("SET", "k", "v", "EX", "x"), "value is not an integer or out of range"),
    (("SET", "k", "v", "EX"), "syntax error"),
    (("SET", "k", "v", "NX", "XX"), "syntax error"),
    (("SET", "k", "v", "EX", 5, "PX", 5), "syntax error"),
    (("SET", "k", "v", "EX", 5, "KEEPTTL"), "syntax error"),
    (("SET", "k", "v", "PERSIST"), "syntax error"),
    (("SET", "k"), "wrong number of arguments for 'set' command"),
    (("EXPIRE", "k"), "wrong number of arguments for 'expire' command"),
    (("DEL",), "wrong number of arguments for 'del' command"),
    (("MGET",), "wrong number of arguments for 'mget' command"),
    (("GETEX", "k", "EX", 0), "invalid expire time in 'getex' command"),
    (("GETEX", "k", "PXAT", "1.5"), "value is not an integer or out of range"),
    (("GETEX", "k", "EX", 5, "PERSIST"), "syntax error"),
    (("GETEX", "k", "KEEPTTL"), "syntax error"),
    (("EXPIRE", "k", 2**62), "invalid expire time in 'expire' command"),
    (("PEXPIREAT", "k", 2**63), "value is not an integer or out of range"),
    (("EXPIRE", "k", "1.5"), "value is not an integer or out of range"),
    (("EXPIRE", "k", 5, "NX", "GT"), "NX and XX, GT or LT options at the same time are not"),
    (("EXPIRE", "k", 5, "GT", "LT"), "GT and LT options at the same time are not compatible"),
    (("EXPIRE", "k", 5, "ZZ"), "Unsupported option ZZ"),
]


@pytest.mark.parametrize(("command", "message"), WRONG, ids=[str(w[0]) for w in WRONG])
def test_wrong_arguments_are_refused_as_redis_does(
    redis7: RedisServer, command: tuple[Any, ...], message: str
) -> None:
    plain = redis_client(redis7.client(db=1))
    keys: DurableKeys = DurableKeys(redis7.client(), NAMESPACE)
    plain.set("k", "old")
    keys.set("k", "old")
    with pytest.raises(redis.ResponseError, match=f"^{message}"):
        plain.execute_command(*command)
    with pytest.raises(redis.ResponseError, match=f"^{message}"):
        keys.execute_command(*command)
    assert (keys.get("k"), keys.ttl("k")) == (b"old", -1)


@pytest.mark.parametrize("message", ["durable keys do not have the command INCR"])
def test_commands_that_durable_keys_do_not_have(keys: DurableKeys, message: str) -> None:
    with pytest.raises(redis.ResponseError, match=f"^{message}$"):
        keys.execute_command("INCR", "k")


def test_redis_pys_own_checks(keys: DurableKeys) -> None:
    # redis-py 5 leaves these two to the server, and 6 takes two equal numbers for one.
    with pytest.raises((redis.DataError, redis.ResponseError)):
        keys.set("k", 1, ex=5, px=6)
    with pytest.raises((redis.DataError, redis.ResponseError)):
        keys.set("k", 1, nx=True, xx=True)
    assert keys.get("k") is None
    with pytest.raises(redis.DataError):
        keys.getex("k", ex=5, persist=True)


def test_deadlines_that_a_sorted_set_could_not_hold_are_refused(keys: DurableKeys) -> None:
    last = 2**53 - 1
    assert keys.set("k", 1, pxat=last)
    assert keys.pexpiretime("k") == last
    with pytest.raises(redis.ResponseError, match="invalid expire time in 'set' command"):
        keys.set("k", 1, pxat=last + 1)
    with pytest.raises(redis.ResponseError, match="invalid expire time in 'pexpireat' command"):
        keys.pexpireat("k", last + 1)
    assert keys.pexpiretime("k") == last


def _own_keys(keys: DurableKeys) -> dict[str, bytes]:
    layout = keys.open()
    shard = layout.shard_of(key_slot(b"k"))
    names = keys.names
    return {"due": names.due(shard), "mark": names.mark(shard), "fence": names.fence(shard)}


@pytest.mark.parametrize("which", ["due", "mark", "fence"])
def test_something_foreign_at_a_key_of_ours_is_one_clear_error(
    keys: DurableKeys, which: str
) -> None:
    own = _own_keys(keys)[which]
    client = keys.client
    calls: dict[str, Callable[[], Any]] = {
        "set": lambda: keys.set("k", 1, ex=5),
        "acquire": lambda: keys.acquire("k", 5),
        "delete": lambda: keys.delete("k"),
    }
    for value in ("a list", "a text"):
        client.delete(own)
        if value == "a list":
            client.rpush(own, 1)
        else:
            client.set(own, value)
        for name, call in calls.items():
            if which == "fence" and name != "acquire":
                continue
            with pytest.raises(LayoutError, match=r"; nothing was changed$") as raised:
                call()
            assert own.decode() in str(raised.value)
        assert client.exists("k") == 0
    if which == "due":
        client.set("k", 1)
        for read in (keys.get, keys.ttl, keys.exists, lambda name: keys.mget([name])):
            with pytest.raises(LayoutError, match="does not hold a due index"):
                read("k")


def test_a_namespace_of_another_structure_is_refused(any_server: AnyServer) -> None:
    hashes: VolatileHashes = VolatileHashes(any_server.client(), NAMESPACE, backend="emulated")
    hashes.hset("h", "f", 1)
    keys = keys_on(any_server)
    for _ in range(2):
        with pytest.raises(LayoutError, match="does not hold the layout of durable keys"):
            keys.set("k", 1)
    assert any_server.client().exists("k") == 0


def test_a_namespace_of_durable_keys_is_no_namespace_of_hashes(any_server: AnyServer) -> None:
    keys_on(any_server).set("k", 1)
    hashes: VolatileHashes = VolatileHashes(any_server.client(), NAMESPACE, backend="emulated")
    with pytest.raises(LayoutError, match="does not hold the layout of volatile hashes"):
        hashes.hset("h", "f", 1)


def test_a_newer_layout(keys: DurableKeys, any_server: AnyServer) -> None:
    keys.set("k", 1, ex=100)
    client = keys.client
    client.hset(keys.names.layout, mapping={"version": 2, "writable_from": 2})
    reader = keys_on(any_server)
    assert reader.get("k") == b"1"
    with pytest.raises(LayoutError, match="may read but not write"):
        reader.set("k", 2)
    client.hset(keys.names.layout, "readable_from", 2)
    with pytest.raises(LayoutError, match="cannot read"):
        keys_on(any_server).get("k")


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_policies_that_evict_every_key_are_refused_unless_named(
    start_redis: Callable[..., RedisServer], policy: str
) -> None:
    client = start_redis(7, maxmemory_policy=policy).client()
    with pytest.raises(EvictionPolicyError, match=f"maxmemory-policy is {policy}, .* deadline"):
        DurableKeys(client, NAMESPACE).set("k", 1)
    assert client.dbsize() == 0
    assert DurableKeys(client, NAMESPACE, allow_eviction=[policy]).set("k", 1)
    with pytest.raises(ConfigurationError, match="takes a list"):
        DurableKeys(client, NAMESPACE, allow_eviction=policy)


def test_what_is_no_client_or_namespace_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a client of redis-py was expected"):
        DurableKeys(object())
    with pytest.raises(ConfigurationError, match="is not usable"):
        DurableKeys(redis.Redis(), "a b")
    assert repr(DurableKeys(redis.Redis(), "a")) == "<DurableKeys 'a'>"


def test_a_full_server_refuses_writes_and_nothing_is_changed(
    start_redis: Callable[..., RedisServer],
) -> None:
    client = start_redis(7, maxmemory_policy="noeviction").client()
    keys: DurableKeys = DurableKeys(client, NAMESPACE)
    keys.set("k", 1, ex=100)
    keys.set("lasting", 1)
    before = {key: client.dump(key) for key in client.keys("*")}
    client.config_set("maxmemory", 1)
    for call in (
        lambda: keys.set("k", 2),
        lambda: keys.set("k", 2, ex=5),
        lambda: keys.set("k", 2, keepttl=True),
        lambda: keys.expire("k", 5),
        lambda: keys.expire("lasting", 5),
        lambda: keys.getex("k", ex=5),
        lambda: keys.acquire("lease", 5),
        lambda: keys.set("new", 1, ex=5),
    ):
        with pytest.raises(redis.OutOfMemoryError):
            call()
    assert {key: client.dump(key) for key in client.keys("*")} == before
    assert keys.get("k") == b"1"
    assert keys.persist("k")
    assert keys.delete("k") == 1


# What plain commands of others do.


def test_a_time_to_live_that_somebody_else_has_set(keys: DurableKeys, later: DurableKeys) -> None:
    keys.client.set("k", 1, ex=500)
    assert keys.ttl("k") == left(500)
    assert keys.set("k", 2, keepttl=True)
    assert keys.client.pttl("k") == -1
    assert keys.ttl("k") == left(500)
    for call in (
        lambda: keys.expire("k", 1000),
        lambda: keys.getex("k", ex=1000),
        lambda: keys.set("k", 3, ex=1000),
        lambda: keys.persist("k"),
        lambda: keys.getex("k", persist=True),
    ):
        keys.client.expire("k", 300)
        assert keys.ttl("k") == left(300)
        call()
        assert keys.client.pttl("k") == -1
    assert later.get("k") == b"3"


def test_a_key_that_somebody_else_deletes_or_sets(keys: DurableKeys, later: DurableKeys) -> None:
    keys.set("k", 1, ex=60)
    keys.client.delete("k")
    assert (keys.get("k"), keys.ttl("k"), keys.exists("k")) == (None, -2, 0)
    assert keys.set("k", 2, keepttl=True)
    assert keys.ttl("k") == -1
    keys.set("k", 1, ex=60)
    # A plain SET does not know of the deadline, which stays.
    keys.client.set("k", 2)
    assert keys.get("k") == b"2"
    assert later.get("k") is None


# Leases.


def test_a_lease_is_released_by_its_holder_alone(keys: DurableKeys, later: DurableKeys) -> None:
    token = keys.acquire("lease", 10)
    assert isinstance(token, int)
    assert keys.acquire("lease", 10) is None
    assert later.acquire("other", 10) is not None
    assert keys.get("lease") == str(token).encode()
    assert keys.release("lease", token + 1) is False
    assert keys.release("none", token) is False
    assert keys.extend("lease", token + 1, 10) is False
    assert keys.extend("lease", token, 100) is True
    assert keys.ttl("lease") == left(100)
    assert keys.extend("lease", token, dt.timedelta(milliseconds=90_500)) is True
    assert 30_000 < keys.pttl("lease") <= 90_500
    assert keys.release("lease", token) is True
    assert keys.release("lease", token) is False
    assert keys.exists("lease") == 0


def test_a_holder_that_stalled_can_do_nothing_any_more(
    keys: DurableKeys, later: DurableKeys
) -> None:
    stalled = keys.acquire("lease", 10)
    assert later.extend("lease", stalled, 10) is False
    assert later.release("lease", stalled) is False
    successor = later.acquire("lease", 7_200)
    assert successor > stalled
    assert keys.extend("lease", stalled, 10) is False
    assert keys.release("lease", stalled) is False
    assert keys.get("lease") == str(successor).encode()


@pytest.mark.parametrize("value", [0, 1, 1234, 10**15 - 1, 10**16, -(10**15)])
def test_an_ordinary_number_is_no_lease(keys: DurableKeys, value: int) -> None:
    keys.set("views", value, ex=60)
    deadline = keys.pexpiretime("views")
    assert keys.release("views", value) is False
    assert keys.extend("views", value, 600) is False
    assert keys.get("views") == str(value).encode()
    assert keys.pexpiretime("views") == deadline


def test_tokens_grow_whatever_becomes_of_key_and_clock(keys: DurableKeys) -> None:
    tokens = []
    for _ in range(50):
        tokens.append(keys.acquire("lease", 10))
        keys.release("lease", tokens[-1])
    # A clock that has been set back: the fence is ahead of it.
    shard = keys.open().shard_of(key_slot(b"lease"))
    fence = keys.names.fence(shard)
    ahead = tokens[-1] + 10**12
    keys.client.set(fence, ahead)
    tokens.append(keys.acquire("lease", 10))
    assert tokens[-1] == ahead + 1
    assert tokens == sorted(set(tokens))


def test_a_lease_by_with(keys: DurableKeys, later: DurableKeys) -> None:
    with keys.lock("lease", 10) as lease:
        assert keys.get("lease") == str(lease.token).encode()
        with pytest.raises(Aborted, match="somebody else holds the lease on 'lease'"):
            keys.lock("lease", 10).__enter__()
        with pytest.raises(ConfigurationError, match="is held: make another one"):
            lease.__enter__()
        assert lease.extend() is True
        assert lease.extend(100) is True
        assert keys.ttl("lease") == left(100)
    assert lease.kept is True
    assert keys.exists("lease") == 0
    with pytest.raises(ConfigurationError, match="is not held"):
        _ = lease.token
    with lease:
        later.acquire("lease", 7_200)
        assert lease.extend() is False
    assert lease.kept is False
    assert keys.exists("lease") == 1
    with pytest.raises(KeyError), keys.lock("second", 10):
        raise KeyError("the block's own")
    assert keys.exists("second") == 0


async def test_a_lease_by_async_with(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        keys: AsyncDurableKeys = AsyncDurableKeys(client, NAMESPACE)
        async with keys.lock("lease", 10) as lease:
            assert await keys.get("lease") == str(lease.token).encode()
            assert await lease.extend(50) is True
            with pytest.raises(Aborted):
                await keys.lock("lease", 10).__aenter__()
        assert lease.kept is True
        assert await keys.exists("lease") == 0


def test_the_blocks_own_error_says_more_than_a_failing_release(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7)
    keys: DurableKeys = DurableKeys(server.client(socket_timeout=1, retry=None), NAMESPACE)

    def work() -> None:
        with keys.lock("lease", 10):
            server.kill()
            raise KeyError("the block's own")

    with pytest.raises(KeyError):
        work()


@pytest.mark.parametrize(
    "ttl", [0, -1, 0.0001, True, "5", None, float("nan"), float("inf"), 2**50, 10**400]
)
def test_lengths_that_no_lease_can_have(ttl: Any) -> None:
    with pytest.raises(ConfigurationError, match="lease="):
        DurableKeys(redis.Redis()).acquire("lease", ttl)


@pytest.mark.parametrize("token", [None, "5", True, 1.5])
def test_tokens_that_are_none(token: Any) -> None:
    with pytest.raises(ConfigurationError, match="give the int that acquire returned"):
        DurableKeys(redis.Redis()).release("lease", token)


class TestAfter2286:
    """From then on a time in microseconds has 17 digits, and one in milliseconds 14."""

    AHEAD_MS = (10**10 - 1_700_000_000) * 1_000

    def test_a_lease_is_taken_extended_and_released(self, any_server: AnyServer) -> None:
        keys = keys_on(any_server, self.AHEAD_MS)
        token = keys.acquire("lease", 10)
        assert token is not None
        assert token > 10**16
        assert keys.acquire("lease", 10) is None
        assert keys.extend("lease", token, 90)
        assert 30_000 < keys.pttl("lease") <= 90_000
        assert not keys.release("lease", token + 1)
        assert keys.release("lease", token)
        assert keys.get("lease") is None

    def test_tokens_grow_over_the_change(self, any_server: AnyServer) -> None:
        before, after = keys_on(any_server), keys_on(any_server, self.AHEAD_MS)
        tokens = []
        for keys in (before, after, before, after):
            token = keys.acquire("lease", 10)
            assert token is not None
            tokens.append(token)
            keys.delete("lease")
        assert tokens == sorted(set(tokens))

    @pytest.mark.parametrize("fence", [10**16 - 1, 2**53, 90_071_992_547_409_993, 10**17 - 1])
    def test_a_fence_that_no_float_holds(self, any_server: AnyServer, fence: int) -> None:
        keys = keys_on(any_server)
        keys.acquire("lease", 10)
        shard = keys.open().shard_of(key_slot(b"lease"))
        keys.client.set(keys.names.fence(shard), fence)
        keys.delete("lease")
        assert keys.acquire("lease", 10) == fence + 1
        assert keys.release("lease", fence + 1) is (fence + 1 < 10**16)

    def test_all_that_has_a_deadline(self, any_server: AnyServer) -> None:
        keys = keys_on(any_server, self.AHEAD_MS)
        later = keys_on(any_server, self.AHEAD_MS + 601_000)
        keys.set("k", "v", ex=600)
        assert keys.ttl("k") == left(600)
        assert keys.getex("k", px=50_000) == b"v"
        assert keys.expiretime("k") > 10**10
        assert later.get("k") is None


def test_no_script_touches_more_keys_than_its_piece(redis7: RedisServer) -> None:
    seen = Recording(redis7.client())
    keys = DurableKeys(seen, NAMESPACE)
    names = [f"k{i}" for i in range(1_300)]
    for name in names[::2]:
        keys.set(name, name)
    before = seen.scripts
    found = keys.mget([*names, "k0"])
    assert found == [*(n.encode() if i % 2 == 0 else None for i, n in enumerate(names)), b"k0"]
    assert keys.exists(*names) == 650
    assert keys.delete(*names, "k0") == 650
    assert seen.scripts - before == 9
    assert seen.most_keys <= 1_500
