"""The whole surface of volatile hashes, on every kind of server, by both backends.

Expired and live fields are told apart by clocks that are set, not by waiting: a second object sees
the same namespace with its clock ahead.
"""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis._parsers import _RESP2Parser, _RESP3Parser
from redis.exceptions import ClusterCrossSlotError

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.redis_py import take_connection
from support.servers import AnyServer, RedisCluster3, RedisServer
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Slice
from workstealing.store.keys import key_slot
from workstealing.store.redis_versions import HashDataPersistOptions
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes import AsyncVolatileHashes
from workstealing.structures.volatile_hashes.surface import BlockingHashSurface

pytestmark = pytest.mark.contract

HOUR = 3_600
AHEAD_MS = 1_000 * HOUR
ODD_NAMES = [
    "plain",
    "a}b",
    "{}x",
    "x{y",
    "{a}b",
    "}{",
    "{",
    "\u00fc{\u2603}",
    b"\xff\x00{\xfe}",
    b"",
]
SURFACE = sorted(
    name
    for name, member in inspect.getmembers(BlockingHashSurface, inspect.isfunction)
    # HIMPORT is a bulk load that no server in reach has, and not in the promise.
    if not name.startswith(("_", "himport", "execute_command"))
)


class Namespace:
    """A namespace on one server: what is now, and what is an hour later."""

    def __init__(self, server: AnyServer, backend: str) -> None:
        self.server = server
        self.backend = backend

    def hashes(self, ahead_ms: int = 0, **options: Any) -> VolatileHashes:
        hashes: VolatileHashes = VolatileHashes(
            self._client(options),
            "contract",
            backend=self.backend,
            clock_shift_ms=ahead_ms,
        )
        return hashes

    def _client(self, options: dict[str, Any]) -> Any:
        if "parser_class" not in options or self.server.is_cluster:
            return self.server.client(**options)
        # redis.Redis takes a parser by way of its pool alone.
        plain = self.server.client()
        where = {name: plain.connection_pool.connection_kwargs[name] for name in ("host", "port")}
        return redis.Redis(connection_pool=redis.ConnectionPool(**where, **options))

    def async_hashes(self, client: Any, ahead_ms: int = 0) -> AsyncVolatileHashes:
        hashes: AsyncVolatileHashes = AsyncVolatileHashes(
            client, "contract", backend=self.backend, clock_shift_ms=ahead_ms
        )
        return hashes


@pytest.fixture
def emulated(any_server: AnyServer) -> Namespace:
    return Namespace(any_server, "emulated")


@pytest.fixture(
    params=[
        "redis7",
        "cluster",
        "native",
        *(
            pytest.param(each, marks=pytest.mark.matrix)
            for each in (
                *("fakeredis", "redis8", "cluster8", "native-cluster"),
                *("redis62", "redis82", "native-redis82", "valkey9", "native-valkey9"),
            )
        ),
    ]
)
def either(request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """Both backends, on every server that can have them."""
    fixture, backend = {
        "fakeredis": ("fakeredis_server", "emulated"),
        "native": ("redis8", "native"),
        "native-cluster": ("cluster8", "native"),
        "native-redis82": ("redis82", "native"),
        "native-valkey9": ("valkey9", "native"),
    }.get(request.param, (request.param, "emulated"))
    server = request.getfixturevalue(fixture)
    yield Namespace(server, backend)
    server.wipe()


def test_the_surface_is_the_one_that_was_promised() -> None:
    promised = """hsetex hgetex hgetdel hset hsetnx hget hmget hgetall hkeys hvals hlen hexists
        hstrlen hincrby hincrbyfloat hdel hrandfield hscan hscan_iter hexpire hpexpire hexpireat
        hpexpireat httl hpttl hexpiretime hpexpiretime hpersist delete rename exists copy expire
        ttl persist"""
    assert set(promised.split()) <= set(SURFACE)


@pytest.mark.parametrize("name", [n for n in SURFACE if n not in ("delete", "unlink", "exists")])
def test_signatures_are_redis_pys_own(name: str) -> None:
    ours = inspect.signature(getattr(VolatileHashes, name))
    theirs = inspect.signature(getattr(redis.Redis, name))
    # What an older redis-py lacks is compared with redis-py 8's in tests/store.
    if theirs.parameters.keys() == ours.parameters.keys():
        assert ours == theirs
    else:
        assert "no_values" in ours.parameters.keys() - theirs.parameters.keys()


# What each method answers, in order, on a fresh namespace: (method, args, options, reply).
At = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
AT_S = int(At.timestamp())
STORY: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("hset", ("{k}", "f", "1"), {}, 1),
    ("hset", ("{k}", b"f", 2), {"mapping": {"g": "3"}, "items": ["h", "4"]}, 2),
    ("hmset", ("{k}", {"i": 5}), {}, True),
    ("hget", ("{k}", "f"), {}, b"2"),
    ("hget", ("{k}", "none"), {}, None),
    ("hmget", ("{k}", ["f", "none"], "g"), {}, [b"2", None, b"3"]),
    ("hgetall", ("{k}",), {}, {b"f": b"2", b"g": b"3", b"h": b"4", b"i": b"5"}),
    ("hgetall", ("none",), {}, {}),
    ("hkeys", ("{k}",), {}, [b"f", b"g", b"h", b"i"]),
    ("hvals", ("{k}",), {}, [b"2", b"3", b"4", b"5"]),
    ("hlen", ("{k}",), {}, 4),
    ("hexists", ("{k}", "f"), {}, True),
    ("hexists", ("{k}", "none"), {}, False),
    ("hstrlen", ("{k}", "f"), {}, 1),
    ("hsetnx", ("{k}", "f", 9), {}, 0),
    ("hsetnx", ("{k}", "j", 9), {}, 1),
    ("hdel", ("{k}", "h", "i", "j", "none"), {}, 3),
    ("hincrby", ("{k}", "f", 40), {}, 42),
    ("hincrby", ("{k}", "f", 2**62), {}, 2**62 + 42),
    ("hincrbyfloat", ("{k}", "g", 0.5), {}, 3.5),
    ("hset", ("{k}", "f", "42"), {}, 0),
    ("hexpire", ("{k}", HOUR, "f", "none"), {}, [1, -2]),
    ("hexpire", ("{k}", HOUR, "f", "g"), {"nx": True}, [0, 1]),
    ("hexpire", ("{k}", dt.timedelta(hours=2), "f"), {"gt": True}, [1]),
    ("hpexpire", ("{k}", HOUR * 1000, "f"), {"gt": True}, [0]),
    ("hpexpire", ("{k}", HOUR * 1000, "f"), {"lt": True}, [1]),
    ("hpersist", ("{k}", "g", "g", "none"), {}, [1, -1, -2]),
    ("hexpireat", ("{k}", At, "g"), {"xx": True}, [0]),
    ("hexpireat", ("{k}", At, "g"), {}, [1]),
    ("hexpiretime", ("{k}", "g", "none"), {}, [AT_S, -2]),
    ("hpexpireat", ("{k}", At, "g"), {"gt": True}, [0]),
    ("hpexpireat", ("{k}", At, "g"), {"lt": True}, [0]),
    ("hpexpireat", ("{k}", At, "f"), {}, [1]),
    ("hpexpiretime", ("{k}", "f"), {}, [AT_S * 1000]),
    ("hset", ("{k}", "f", "43"), {}, 0),
    ("httl", ("{k}", "f"), {}, [-1]),
    ("hpttl", ("{k}", "f", "none"), {}, [-1, -2]),
    ("httl", ("none", "f"), {}, [-2]),
    (
        "hsetex",
        ("{k}", "f", "44"),
        {"ex": HOUR, "data_persist_option": HashDataPersistOptions.FNX},
        0,
    ),
    (
        "hsetex",
        ("{k}", "f", "44"),
        {"ex": HOUR, "data_persist_option": HashDataPersistOptions.FXX},
        1,
    ),
    (
        "hsetex",
        ("{k}", "p", "1"),
        {"px": HOUR * 1000, "mapping": {"q": "2"}, "items": ["r", "3"]},
        1,
    ),
    ("hsetex", ("{k}", "p", "1"), {"exat": At}, 1),
    ("hsetex", ("{k}", "p", "2"), {"keepttl": True}, 1),
    ("hexpiretime", ("{k}", "p"), {}, [AT_S]),
    ("hsetex", ("{k}", "q", "2"), {"pxat": At}, 1),
    ("hpexpiretime", ("{k}", "q"), {}, [AT_S * 1000]),
    ("hsetex", ("{k}", "q", "2"), {}, 1),
    ("httl", ("{k}", "q"), {}, [-1]),
    ("hgetex", ("{k}", "q", "none"), {"exat": At}, [b"2", None]),
    ("hexpiretime", ("{k}", "q"), {}, [AT_S]),
    ("hgetex", ("{k}", "q"), {"persist": True}, [b"2"]),
    ("httl", ("{k}", "q"), {}, [-1]),
    ("hgetex", ("{k}", "q"), {"pxat": At}, [b"2"]),
    ("hgetex", ("{k}", "q"), {}, [b"2"]),
    ("hpexpiretime", ("{k}", "q"), {}, [AT_S * 1000]),
    ("hgetex", ("{k}", "q", "q"), {"ex": 0}, [b"2", None]),
    ("hget", ("{k}", "q"), {}, None),
    ("hgetex", ("{k}", "p"), {"px": HOUR * 1000}, [b"2"]),
    ("hgetdel", ("{k}", "p", "p", "r", "none"), {}, [b"2", None, b"3", None]),
    ("hscan", ("{k}",), {}, (0, {b"f": b"44", b"g": b"3.5"})),
    ("hscan", ("{k}", 0), {"match": "g*", "count": 10}, (0, {b"g": b"3.5"})),
    ("hrandfield", ("none",), {}, None),
    ("hrandfield", ("none", 3), {}, []),
    ("hset", ("one", "f", "1"), {}, 1),
    ("hrandfield", ("one",), {}, b"f"),
    ("hrandfield", ("one", 2), {}, [b"f"]),
    ("hrandfield", ("one", -2), {}, [b"f", b"f"]),
    ("ttl", ("one",), {}, -1),
    ("expire", ("one", HOUR), {}, True),
    ("expire", ("one", HOUR), {"nx": True}, False),
    ("persist", ("one",), {}, True),
    ("persist", ("one",), {}, False),
    ("pexpire", ("one", dt.timedelta(hours=1)), {}, True),
    ("expireat", ("one", At), {}, True),
    ("expiretime", ("one",), {}, AT_S),
    ("pexpireat", ("one", At), {}, True),
    ("pexpiretime", ("one",), {}, AT_S * 1000),
    ("ttl", ("none",), {}, -2),
    ("pttl", ("none",), {}, -2),
    ("exists", ("one",), {}, 1),
    ("exists", ("none",), {}, 0),
    ("copy", ("{k}", "{k}2"), {}, True),
    ("copy", ("{k}", "{k}2"), {}, False),
    ("copy", ("{k}", "{k}2"), {"replace": True}, True),
    ("renamenx", ("{k}", "{k}2"), {}, False),
    ("renamenx", ("{k}", "{k}3"), {}, True),
    ("rename", ("{k}3", "{k}2"), {}, True),
    ("hexpiretime", ("{k}2", "g"), {}, [AT_S]),
    ("delete", ("{k}2",), {}, 1),
    ("delete", ("{k}2",), {}, 0),
    ("unlink", ("one",), {}, 1),
]
# fakeredis' HRANDFIELD answers a missing key, and a script, with the wrong type.
NOT_IN_FAKEREDIS = {"hrandfield"}


def _story(namespace: Namespace) -> list[tuple[str, tuple[Any, ...], dict[str, Any], Any]]:
    if namespace.server.is_real:
        return STORY
    return [step for step in STORY if step[0] not in NOT_IN_FAKEREDIS]


def _sorted(name: str, reply: Any) -> Any:
    return sorted(reply) if name in ("hkeys", "hvals") else reply


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_decoded(k): _decoded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_decoded, value))
    return value


PARSERS = [
    pytest.param({}, id="hiredis"),
    pytest.param({"parser_class": _RESP2Parser, "protocol": 2}, id="python-parser-2"),
    pytest.param({"parser_class": _RESP3Parser, "protocol": 3}, id="python-parser-3"),
    pytest.param({"protocol": 2}, id="protocol-2"),
    pytest.param({"protocol": 3}, id="protocol-3"),
    pytest.param({"decode_responses": True}, id="text"),
    pytest.param({"decode_responses": True, "protocol": 2}, id="text-2"),
    pytest.param({"decode_responses": True, "protocol": 3}, id="text-3"),
]


def _options(namespace: Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Leave out what fakeredis has of its own."""
    if namespace.server.is_real:
        return options
    return {k: v for k, v in options.items() if k != "parser_class"}


@pytest.mark.parametrize("options", PARSERS)
def test_every_method_answers_as_redis8_does(either: Namespace, options: dict[str, Any]) -> None:
    hashes = either.hashes(**_options(either, options))
    is_text = "decode_responses" in options
    for name, args, named, expected in _story(either):
        reply = getattr(hashes, name)(*args, **named)
        wanted = _decoded(expected) if is_text else expected
        assert _sorted(name, reply) == wanted, (name, args, named)
        assert type(reply) is type(wanted), (name, args, named)
    told = {name for name, *_ in _story(either)} | {"pexpire", "pexpireat", "pttl", "hscan_iter"}
    if either.server.is_real:
        assert told >= set(SURFACE)


@pytest.mark.parametrize("options", PARSERS)
def test_pairs_have_redis_pys_shapes(either: Namespace, options: dict[str, Any]) -> None:
    hashes = either.hashes(**_options(either, options))
    hashes.hset("k", "f", "1")
    pair: list[Any] = [b"f", b"1"]
    field: Any = b"f"
    if "decode_responses" in options:
        pair, field = _decoded(pair), "f"
    nested = [pair] if options.get("protocol") == 3 else pair
    assert hashes.hrandfield("k", 1, withvalues=True) == nested
    assert dict(hashes.hscan_iter("k")) == {pair[0]: pair[1]}
    assert list(hashes.hscan_iter("k", match="x*")) == []
    if either.backend == "emulated" or either.server.is_real:
        assert list(hashes.hscan_iter("k", no_values=True)) == [field]
        assert hashes.hscan("k", no_values=True) == (0, [field])


@pytest.mark.parametrize("options", PARSERS)
def test_a_pipeline_answers_as_the_methods_do(either: Namespace, options: dict[str, Any]) -> None:
    hashes = either.hashes(**_options(either, options))
    is_text = "decode_responses" in options
    # A cluster's pipeline takes no command on two keys.
    story = [
        step
        for step in _story(either)
        if not either.server.is_cluster
        or (step[0] not in ("rename", "renamenx", "copy") and step[1][0] != "{k}2")
    ]
    for transaction in (True, False):
        with hashes.pipeline(transaction=transaction) as pipeline:
            for name, args, named, _ in story:
                assert getattr(pipeline, name)(*args, **named) is pipeline
            replies = pipeline.execute()
        for (name, args, named, expected), reply in zip(story, replies, strict=True):
            wanted = _decoded(expected) if is_text else expected
            assert _sorted(name, reply) == wanted, (name, args, named)
            assert type(reply) is type(wanted), (name, args, named)
        hashes.delete("{k}")
        hashes.delete("{k}2")


@pytest.mark.parametrize("options", [{}, {"decode_responses": True, "protocol": 3}])
async def test_every_method_can_be_awaited(either: Namespace, options: dict[str, Any]) -> None:
    is_text = "decode_responses" in options
    async with either.server.async_client(**options) as client:
        hashes = either.async_hashes(client)
        assert isinstance(hashes, AsyncVolatileHashes)
        for name, args, named, expected in _story(either):
            reply = await getattr(hashes, name)(*args, **named)
            wanted = _decoded(expected) if is_text else expected
            assert _sorted(name, reply) == wanted, (name, args, named)
            assert type(reply) is type(wanted), (name, args, named)
        await hashes.hset("k", mapping={"a": "1", "b": "2"})
        found = [pair async for pair in hashes.hscan_iter("k")]
        assert sorted(found) == sorted(
            _decoded([(b"a", b"1"), (b"b", b"2")]) if is_text else [(b"a", b"1"), (b"b", b"2")]
        )
        async with hashes.pipeline() as pipeline:
            pipeline.hget("k", "a").hexists("k", "b")
            pipeline.plain.set("k2", "x")
            replies = await pipeline.execute()
        assert replies == ["1" if is_text else b"1", True, True]


# What has expired is gone for every reader at once, collected or not.

GONE: list[tuple[str, tuple[Any, ...], Any]] = [
    ("hget", ("k", "f"), None),
    ("hmget", ("k", ["f", "g"]), [None, b"2"]),
    ("hgetall", ("k",), {b"g": b"2"}),
    ("hkeys", ("k",), [b"g"]),
    ("hvals", ("k",), [b"2"]),
    ("hlen", ("k",), 1),
    ("hexists", ("k", "f"), False),
    ("hstrlen", ("k", "f"), 0),
    ("hscan", ("k",), (0, {b"g": b"2"})),
    ("hrandfield", ("k",), b"g"),
    ("hrandfield", ("k", 5), [b"g"]),
    ("hrandfield", ("k", -3), [b"g", b"g", b"g"]),
    ("httl", ("k", "f", "g"), [-2, -1]),
    ("hpttl", ("k", "f"), [-2]),
    ("hexpiretime", ("k", "f"), [-2]),
    ("hpexpiretime", ("k", "f"), [-2]),
    ("hgetex", ("k", "f", "g"), [None, b"2"]),
    ("exists", ("k",), 1),
    ("exists", ("all",), 0),
    ("ttl", ("all",), -2),
    ("hlen", ("all",), 0),
    ("hgetall", ("all",), {}),
    ("hrandfield", ("all",), None),
    ("hrandfield", ("all", 3), []),
]


def _age(namespace: Namespace) -> VolatileHashes:
    now = namespace.hashes()
    now.hset("k", mapping={"f": "1", "g": "2"})
    now.hexpire("k", HOUR, "f")
    now.hsetex("all", mapping={"a": "1", "b": "2"}, ex=HOUR)
    now.expire("all", 5 * HOUR)
    return namespace.hashes(ahead_ms=AHEAD_MS)


def test_what_has_expired_is_gone_whether_collected_or_not(emulated: Namespace) -> None:
    later = _age(emulated)
    is_real = emulated.server.is_real
    gone = [step for step in GONE if is_real or step[0] not in NOT_IN_FAKEREDIS]
    for name, args, expected in gone:
        assert getattr(later, name)(*args) == expected, (name, args)
    job = HashFieldExpiry(later, limit=100)
    assert sum(job.perform(Slice(100, 5.0)) for _ in range(50)) == 3
    for name, args, expected in gone:
        assert getattr(later, name)(*args) == expected, (name, args)


@pytest.mark.parametrize(
    ("name", "args", "options", "replies"),
    [
        ("hset", ("f", "9"), {}, (1, b"9")),
        ("hsetnx", ("f", "9"), {}, (1, b"9")),
        ("hsetex", ("f", "9"), {"data_persist_option": HashDataPersistOptions.FNX}, (1, b"9")),
        ("hsetex", ("f", "9"), {"data_persist_option": HashDataPersistOptions.FXX}, (0, None)),
        ("hsetex", ("f", "9"), {"keepttl": True}, (1, b"9")),
        ("hincrby", ("f", 5), {}, (5, b"5")),
        ("hincrbyfloat", ("f", 0.5), {}, (0.5, b"0.5")),
        ("hdel", ("f",), {}, (0, None)),
        ("hgetdel", ("f",), {}, ([None], None)),
        ("hgetex", ("f",), {"persist": True}, ([None], None)),
        ("hgetex", ("f",), {"ex": HOUR}, ([None], None)),
        ("hpersist", ("f",), {}, ([-2], None)),
        ("hexpire", (HOUR, "f"), {}, ([-2], None)),
        ("hpexpireat", (1, "f"), {}, ([-2], None)),
    ],
)
def test_writers_take_an_expired_field_for_a_missing_one(
    emulated: Namespace, name: str, args: Any, options: Any, replies: tuple[Any, Any]
) -> None:
    expected, after = replies
    later = _age(emulated)
    assert getattr(later, name)("k", *args, **options) == expected
    assert later.hget("k", "f") == after
    # What was written has no deadline left over from what had been there.
    assert later.httl("k", "f") == ([-2] if after is None else [-1])
    assert later.hget("k", "g") == b"2"


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [("delete", (), 0), ("unlink", (), 0), ("expire", (HOUR,), False), ("persist", (), False)],
)
def test_a_hash_of_garbage_alone_is_no_hash(
    emulated: Namespace, name: str, args: Any, expected: Any
) -> None:
    later = _age(emulated)
    assert getattr(later, name)("all", *args) == expected
    with pytest.raises(redis.ResponseError, match="no such key"):
        later.rename("all", "{all}2")
    assert later.copy("all", "{all}2") is False
    assert later.exists("all") == 0


@pytest.mark.parametrize("field", ["a", "new"])
@pytest.mark.parametrize(
    "write",
    [
        lambda h, f: h.hset("all", f, "1"),
        lambda h, f: h.hsetnx("all", f, "1"),
        lambda h, f: h.hsetex("all", f, "1", ex=2 * AHEAD_MS),
        lambda h, f: h.hsetex("all", f, "1", keepttl=True),
        lambda h, f: h.hincrby("all", f, 1),
    ],
)
def test_a_hash_that_is_written_again_has_not_the_old_time_to_live(
    emulated: Namespace, field: str, write: Any
) -> None:
    later = _age(emulated)
    write(later, field)
    assert later.ttl("all") == -1
    assert later.hgetall("all") == {field.encode(): b"1"}


# Names, sizes and round trips.


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("field", ["f", "\u00fc", b"\xff\x00", b"", 7])
def test_names_and_fields_may_be_anything(either: Namespace, name: Any, field: Any) -> None:
    hashes = either.hashes()
    raw = field if isinstance(field, bytes) else str(field).encode()
    assert hashes.hsetex(name, field, "1", ex=HOUR) == 1
    assert hashes.hgetex(name, field) == [b"1"]
    assert hashes.hgetall(name) == {raw: b"1"}
    assert 0 < hashes.httl(name, field)[0] <= HOUR
    # The value is where any other tool looks for it.
    assert hashes.client.hget(name, field) == b"1"
    as_text = either.hashes(decode_responses=True, encoding_errors="surrogateescape")
    assert as_text.hget(name, field) == "1"
    with hashes.pipeline() as pipeline:
        assert pipeline.hget(name, field).execute() == [b"1"]
    assert hashes.delete(name) == 1


def test_names_that_do_not_share_a_slot_move_nowhere(cluster: Any) -> None:
    hashes = VolatileHashes(cluster.client(), "contract", backend="emulated")
    hashes.hset("a", "f", "1")
    assert key_slot(b"a") != key_slot(b"b")
    for move in (hashes.rename, hashes.renamenx, hashes.copy):
        with pytest.raises(Exception, match=r"(?i)slot"):
            move("a", "b")
    assert hashes.hgetall("a") == {b"f": b"1"}


def test_ten_thousand_fields_in_one_call(either: Namespace) -> None:
    hashes = either.hashes()
    names = [f"f{i}" for i in range(10_000)]
    mapping = dict.fromkeys(names, "v")
    assert hashes.hset("k", mapping=mapping) == 10_000
    assert hashes.hsetex("k", mapping=mapping, ex=HOUR) == 1
    assert hashes.hgetex("k", *names, ex=2 * HOUR) == [b"v"] * 10_000
    assert hashes.hmget("k", names) == [b"v"] * 10_000
    assert hashes.hexpire("k", 3 * HOUR, *names) == [1] * 10_000
    # What a slow server's calls took is gone of it.
    assert all(2 * HOUR < left <= 3 * HOUR for left in hashes.httl("k", *names))
    assert hashes.hlen("k") == 10_000
    assert len(dict(hashes.hscan_iter("k", count=1000))) == 10_000
    assert hashes.hpersist("k", *names) == [1] * 10_000
    assert hashes.hexpireat("k", 1, *names[:5_000]) == [2] * 5_000
    assert hashes.hgetdel("k", *names[:6_000]) == [None] * 5_000 + [b"v"] * 1_000
    assert hashes.hdel("k", *names) == 4_000
    assert hashes.exists("k") == 0


def test_ten_thousand_expired_fields_in_one_call(emulated: Namespace) -> None:
    names = [f"f{i}" for i in range(10_000)]
    emulated.hashes().hsetex("k", mapping=dict.fromkeys(names, "v"), ex=HOUR)
    later = emulated.hashes(ahead_ms=AHEAD_MS)
    assert later.hlen("k") == 0
    assert later.hgetex("k", *names) == [None] * 10_000
    assert later.hset("k", mapping=dict.fromkeys(names, "w")) == 10_000
    assert later.hlen("k") == 10_000


@pytest.mark.parametrize("transaction", [True, False])
@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_fifty_items_take_one_round_trip(
    redis8: RedisServer, backend: str, transaction: bool
) -> None:
    client = redis8.client()
    hashes = VolatileHashes(client, "contract", backend=backend)
    hashes.hset("warm", "f", "1")
    writes = _count_writes(hashes.client)
    with hashes.pipeline(transaction=transaction) as pipeline:
        for i in range(50):
            pipeline.hsetex(f"item:{i}", mapping={"likes": i}, ex=HOUR)
            pipeline.hgetex(f"item:{i}", "likes")
        assert len(pipeline) == 100
        replies = pipeline.execute()
    assert replies == [x for i in range(50) for x in (1, [str(i).encode()])]
    assert writes() == 1


def test_one_call_takes_one_round_trip(any_server: AnyServer) -> None:
    if not any_server.is_real or any_server.is_cluster:
        pytest.skip("the sends of one connection are counted")
    client = any_server.client()
    hashes = VolatileHashes(client, "contract", backend="emulated")
    hashes.hsetex("k", "f", "1", ex=HOUR)
    hashes.hgetex("k", "f")
    writes = _count_writes(hashes.client)
    hashes.hsetex("k", "f", "1", ex=HOUR)
    hashes.hgetex("k", "f")
    assert writes() == 2


def _count_writes(client: Any) -> Callable[[], int]:
    """Count what the client's one connection sends, in calls."""
    connection = take_connection(client.connection_pool)
    original, calls = connection.send_packed_command, []

    def counted(command: Any, *args: Any, **options: Any) -> Any:
        calls.append(1)
        return original(command, *args, **options)

    connection.send_packed_command = counted
    client.connection_pool.release(connection)
    return lambda: len(calls)


@pytest.mark.parametrize("transaction", [True, False])
def test_the_users_own_commands_go_along(either: Namespace, transaction: bool) -> None:
    hashes = either.hashes()
    with hashes.pipeline(transaction=transaction) as pipeline:
        pipeline.hsetex("item", "likes", 1, ex=HOUR)
        pipeline.incr("visits")
        pipeline.plain.hset("mine", "f", "1")
        pipeline.hgetall("item")
        pipeline.plain.hgetall("mine")
        assert len(pipeline) == 5
        assert pipeline.execute() == [1, 1, 1, {b"likes": b"1"}, {b"f": b"1"}]
        assert len(pipeline) == 0
        assert pipeline.execute() == []


def test_a_pipelines_errors_name_their_command(either: Namespace) -> None:
    hashes = either.hashes()
    hashes.client.set("string", "x")
    pipeline = hashes.pipeline(transaction=False)
    pipeline.hset("k", "f", "1")
    pipeline.hset("string", "f", "1")
    pipeline.hget("k", "f")
    with pytest.raises(redis.ResponseError, match=r"^command 2 of the pipeline: WRONGTYPE"):
        pipeline.execute()
    pipeline.hset("string", "f", "1")
    pipeline.hget("k", "f")
    refused, value = pipeline.execute(raise_on_error=False)
    assert isinstance(refused, redis.ResponseError)
    assert value == b"1"
    for name in ("watch", "multi", "immediate_execute_command"):
        with pytest.raises(AttributeError, match="no place on a pipeline"):
            getattr(pipeline, name)
    with pytest.raises(ConfigurationError, match="expects one"):
        pipeline.delete("a", "b")
    # What queues no command of its own: the replies could not be told apart.
    for name, args in (("hscan_iter", ("k",)), ("register_script", ("return 1",)), ("get_it", ())):
        pipeline.hset("k", "f", "2")
        getattr(pipeline, name)(*args)
        with pytest.raises(ConfigurationError, match=f"^{name} queues no command"):
            pipeline.execute()
    assert hashes.hget("k", "f") == b"1"


def test_a_command_that_we_refuse_has_its_place_in_a_pipeline(either: Namespace) -> None:
    hashes = either.hashes()
    pipeline = hashes.pipeline(transaction=False)
    pipeline.hset("k", "f", "1").hdel("k").hget("k", "f")
    added, refused, value = pipeline.execute(raise_on_error=False)
    assert (added, value) == (1, b"1")
    assert isinstance(refused, redis.ResponseError)
    pipeline.hset("k", "f", "2").hdel("k").hget("k", "f")
    with pytest.raises(redis.ResponseError, match=r"^command 2 of the pipeline: wrong number"):
        pipeline.execute()
    assert hashes.hget("k", "f") == b"2"


def test_a_refused_command_aborts_a_transaction(redis7: RedisServer) -> None:
    hashes = VolatileHashes(redis7.client(), "n", backend="emulated")
    pipeline = hashes.pipeline().hset("k", "f", "1").hdel("k")
    with pytest.raises(redis.ResponseError, match="wrong number"):
        pipeline.execute(raise_on_error=False)
    assert not hashes.exists("k")


@pytest.mark.cluster
@pytest.mark.parametrize("backend", ["emulated", "native"])
async def test_two_slots_are_refused_as_by_the_server(
    cluster8: RedisCluster3, backend: str
) -> None:
    hashes = VolatileHashes(cluster8.client(), "n", backend=backend)
    with pytest.raises(ClusterCrossSlotError):
        hashes.rename("a", "b")
    pipeline = hashes.pipeline().hset("a", "f", "1").rename("a", "b").hget("a", "f")
    added, refused, value = pipeline.execute(raise_on_error=False)
    assert (added, value) == (1, b"1")
    assert isinstance(refused, ClusterCrossSlotError)
    async with cluster8.async_client() as client:
        waited = AsyncVolatileHashes(client, "n", backend=backend)
        with pytest.raises(ClusterCrossSlotError):
            await waited.rename("a", "b")
        queued = waited.pipeline().rename("a", "b").hget("a", "f")
        refused, value = await queued.execute(raise_on_error=False)
        assert value == b"1"
        assert isinstance(refused, ClusterCrossSlotError)


def test_many_names_in_one_call(either: Namespace) -> None:
    hashes = either.hashes()
    for name in ("a", "b"):
        hashes.hset(name, "f", "1")
    assert hashes.exists("a", "b", "c", "a") == 3
    assert hashes.unlink("a", "c") == 1
    assert hashes.delete("a", "b") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda h: h.hsetex("k", "f", "1", ex=-1),
        lambda h: h.hsetex("k", "f", "1", px="soon"),
        lambda h: h.hsetex("k", mapping={}),
        lambda h: h.hsetex("k", "f", "1", ex=1, keepttl=True),
        lambda h: h.hset("k", mapping={}),
        lambda h: h.hget("string", "f"),
        lambda h: h.hset("string", "f", "1"),
        lambda h: h.hsetex("string", "f", "1", ex=1),
        lambda h: h.hexpire("k", -1, "f"),
        lambda h: h.hexpire("k", "1.5", "f"),
        lambda h: h.hexpire("k", 1),
        lambda h: h.hexpire("k", 1, "f", nx=True, xx=True),
        lambda h: h.hgetex("k"),
        lambda h: h.hgetex("k", "f", ex=1, persist=True),
        lambda h: h.hgetdel("k"),
        lambda h: h.hdel("k"),
        lambda h: h.hmget("k", []),
        lambda h: h.hincrby("k", "f", "many"),
        lambda h: h.hincrby("k", "word", 1),
        lambda h: h.hincrbyfloat("k", "f", "nan"),
        lambda h: h.hrandfield("k", "x"),
        lambda h: h.hscan("k", "x"),
        lambda h: h.expire("k", "x"),
        lambda h: h.rename("none", "none"),
        lambda h: h.copy("k", "k"),
        lambda h: h.delete(),
        lambda h: h.exists(),
    ],
)
def test_bad_input_is_an_error_and_changes_nothing(either: Namespace, call: Any) -> None:
    hashes = either.hashes()
    hashes.hset("k", mapping={"f": "1", "word": "abc"})
    hashes.hsetex("k", "g", "2", ex=HOUR)
    hashes.client.set("string", "x")
    if not either.server.is_real:
        # It reads cursors and floats less strictly than Redis does.
        pytest.skip("fakeredis checks numbers in its own way")
    before = hashes.hgetall("k"), hashes.hpexpiretime("k", "f", "word", "g")
    with pytest.raises((redis.RedisError, ValueError, TypeError, IndexError)):
        call(hashes)
    assert (hashes.hgetall("k"), hashes.hpexpiretime("k", "f", "word", "g")) == before
    assert hashes.client.get("string") == b"x"


@pytest.mark.parametrize(
    "call",
    [
        lambda h: h.hsetex("k", "f", "1", ex=2**46),
        lambda h: h.hpexpireat("k", 2**46, "f"),
    ],
)
def test_a_deadline_past_the_year_4199_is_an_error(either: Namespace, call: Any) -> None:
    hashes = either.hashes()
    hashes.hset("k", "f", "1")
    with pytest.raises(redis.ResponseError):
        call(hashes)
    assert (hashes.hget("k", "f"), hashes.hpttl("k", "f")) == (b"1", [-1])


def test_a_hash_is_not_copied_to_where_its_deadlines_cannot_follow(redis7: RedisServer) -> None:
    hashes = VolatileHashes(redis7.client(), "contract")
    hashes.hset("k", "f", "1")
    with pytest.raises(redis.ResponseError, match="their own database"):
        hashes.copy("k", "k2", destination_db=1)
    assert hashes.exists("k2") == 0


@pytest.mark.parametrize(
    "amount", ["01", "-0", "+1", " 1", "1 ", "0x1", "1e3", str(-(2**63)), str(2**63)]
)
def test_times_are_read_as_strictly_as_redis_reads_them(redis8: RedisServer, amount: str) -> None:
    native = VolatileHashes(redis8.client(), "n", backend="native")
    emulated = VolatileHashes(redis8.client(), "e", backend="emulated")
    texts = []
    for hashes, name in ((native, "n"), (emulated, "e")):
        hashes.hset(name, "f", "1")
        with pytest.raises(redis.ResponseError) as raised:
            hashes.execute_command("HPEXPIRE", name, amount, "FIELDS", 1, "f")
        texts.append(str(raised.value))
        assert hashes.httl(name, "f") == [-1]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("count", [2**63, -(2**63), -(2**62), 2**60])
def test_absurd_counts_end_at_once(redis7: RedisServer, count: int) -> None:
    now = VolatileHashes(redis7.client(), "contract", backend="emulated")
    now.hset("k", mapping={"f": "1", "g": "2"})
    now.hexpire("k", HOUR, "f")
    later = VolatileHashes(redis7.client(), "contract", clock_shift_ms=AHEAD_MS)
    if count > 0 and count < 2**63:
        assert later.hrandfield("k", count) in ([b"g"], [b"f", b"g"], [b"g", b"f"])
        return
    refused = (
        (ConfigurationError, "at most") if count < 0 else (redis.ResponseError, "out of range")
    )
    with pytest.raises(refused[0], match=refused[1]):
        later.hrandfield("k", count, withvalues=True)
