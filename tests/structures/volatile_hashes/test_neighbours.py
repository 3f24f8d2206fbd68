"""Neighbouring calls in a transaction are one script, in which each does what it always does."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import redis

from support.hash_checks import check_index
from support.hash_states import AT_MS, FIELDS, LAYOUT, NAMES, draw_hash
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.proof import seed, tried
from support.servers import AnyServer, RedisServer
from support.twins import EVERYWHERE, Twins
from workstealing.errors import LayoutError
from workstealing.store.operations import MOST_TOGETHER, Operation
from workstealing.store.redis_versions import HashDataPersistOptions
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.commands import HashTranslator

HOUR = 3_600
HASHES = ("a", "b", "c", "d")
KINDS = (
    *("hsetex", "hgetex", "touch", "hmget") * 3,
    *("hset", "hpersist", "hdel", "fnx", "persist", "incr", "type"),
)
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class Apart(HashTranslator):
    """A translator none of whose operations is joined with its neighbours."""

    def translate(self, *args: Any) -> Operation:
        """Return the operation for a command."""
        operation = super().translate(*args)
        operation.together = None
        return operation


def emulated(client: Any) -> VolatileHashes:
    made: VolatileHashes = VolatileHashes(client, "n", backend="emulated")
    return made


def draw_calls(draw: random.Random, lives_ms: tuple[int, ...], most: int = 40) -> list[Call]:
    """Draw calls, of which many neighbours are of one kind."""
    calls: list[Call] = []
    kind = "hsetex"
    for _ in range(draw.randrange(1, most)):
        if draw.random() < 0.3:
            kind = draw.choice(KINDS)
        name, life = draw.choice(HASHES), {"px": draw.choice(lives_ms)}
        fields = draw.choices(FIELDS, k=draw.choice([1, 1, 1, 2, 3]))
        values = {each: draw.randrange(100) for each in fields}
        by_kind: dict[str, Call] = {
            "hsetex": ("hsetex", (name,), {"mapping": values, **life}),
            "hgetex": ("hgetex", (name, *fields), {}),
            "touch": ("hgetex", (name, *fields), life),
            "hmget": ("hmget", (name, fields), {}),
            "hset": ("hset", (name, fields[0], 5), {}),
            "hpersist": ("hpersist", (name, *fields), {}),
            "hdel": ("hdel", (name, *fields), {}),
            "fnx": (
                "hsetex",
                (name,),
                {"mapping": values, "data_persist_option": HashDataPersistOptions.FNX, **life},
            ),
            "persist": ("hgetex", (name, *fields), {"persist": True}),
            "incr": ("incr", ("count",), {}),
            "type": ("type", (name,), {}),
        }
        calls.append(by_kind[kind])
    return calls


def sending(
    hashes: VolatileHashes, calls: list[Call], is_real: bool
) -> Callable[[], list[Any] | str]:
    def send() -> list[Any] | str:
        pipeline = hashes.pipeline()
        for method, args, options in calls:
            getattr(pipeline, method)(*args, **options)
        try:
            replies = [said(each) for each in pipeline.execute(raise_on_error=False)]
        except (redis.exceptions.OutOfMemoryError, redis.exceptions.ExecAbortError):
            # The rest of it names the refused command, which is another one.
            return "the transaction was refused"
        # fakeredis gives a script's error another text.
        return [each if is_real or not isinstance(each, tuple) else each[:1] for each in replies]

    return send


def said(reply: Any) -> Any:
    """Return a reply; an error as its class and text."""
    return (type(reply), str(reply)) if isinstance(reply, Exception) else reply


def check_in_full_memory(
    joined: Callable[[], list[Any] | str], apart: Callable[[], list[Any] | str], about: str
) -> list[Any] | str:
    """Compare what is said, as far as no write of a script has made room for the next one.

    A server refuses a script nothing for want of memory behind its first write, a removal too.
    """
    answers, others = joined(), apart()
    if isinstance(answers, str) or isinstance(others, str):
        assert answers == others, about
        return answers
    for one, other in zip(answers, others, strict=True):
        if one != other:
            assert other[0] is redis.exceptions.OutOfMemoryError, about
            assert not isinstance(one, tuple), about
            break
    return answers


@pytest.mark.parametrize(
    ("twins", "states"),
    [
        ("redis7", 60),
        ("fakeredis_server", 30),
        *[pytest.param(each, 10_000, marks=pytest.mark.slow) for each in EVERYWHERE],
    ],
    indirect=["twins"],
)
def test_joined_calls_do_what_single_scripts_do(twins: Twins, states: int) -> None:
    joined, apart = map(emulated, (twins.short, twins.full))
    apart.translator = Apart(NAMES, nested_pairs=False)
    twins.prepare([], 1000 * AT_MS)
    assert (joined.open(), apart.open()) == (LAYOUT, LAYOUT)
    facts = sum(twins.short.hgetall(NAMES.layout).items(), ())
    runs = refused = 0
    for number in range(states):
        draw = random.Random(f"{seed()} {number}")
        ms = draw.choice([1, 1000, 30_000, 10**9])
        # A state by which all is refused would hide the rest.
        drawn = [draw_hash(draw, ms, each.encode()) for each in draw.sample(HASHES, 3)]
        commands = [("HSET", NAMES.layout, *facts)]
        commands += [each for state in drawn for each in state.commands]
        calls = draw_calls(draw, (ms, ms, 1, 10**9), 30)
        twins.prepare(commands, 1000 * AT_MS)
        about = f"state {number} of seed {seed()}: {calls} on {commands}"
        ways = [sending(each, calls, twins.is_real) for each in (joined, apart)]
        if draw.random() < 0.03:
            with twins.full_memory(True):
                answers = check_in_full_memory(*ways, about)
        else:
            answers = twins.check(*ways, about)
        assert not isinstance(answers, tuple), answers
        refused += isinstance(answers, str) or any(isinstance(each, tuple) for each in answers)
        runs += any(first[0] == second[0] for first, second in pairwise(calls))
    tried("joined and single calls in one state", states)
    # Neither kind of states is rare.
    assert runs > states / 2
    assert states / 10 < refused < states


def one_by_one(hashes: VolatileHashes, calls: list[Call]) -> list[Any]:
    results = []
    for method, args, options in calls:
        target = hashes.client if method in ("incr", "type") else hashes
        try:
            results.append(getattr(target, method)(*args, **options))
        except redis.ResponseError as error:
            results.append(said(error))
    return results


@pytest.mark.contract
@pytest.mark.parametrize("transaction", [True, False])
def test_a_pipeline_does_what_the_calls_do_one_by_one(
    any_server: AnyServer, transaction: bool
) -> None:
    for number in range(8):
        calls = draw_calls(random.Random(number), (HOUR * 1000, 2 * HOUR * 1000))
        found, left = [], []
        for way in ("one by one", "pipeline"):
            any_server.wipe()
            hashes = emulated(any_server.client())
            hashes.client.set("d", "of another type")
            if way == "pipeline":
                pipeline = hashes.pipeline(transaction)
                for method, args, options in calls:
                    getattr(pipeline, method)(*args, **options)
                found.append([said(each) for each in pipeline.execute(raise_on_error=False)])
            else:
                found.append(one_by_one(hashes, calls))
            check_index(hashes)
            left.append(
                [
                    (hashes.hgetall(name), [each > 1 for each in hashes.httl(name, *FIELDS) or ()])
                    for name in HASHES[:3]
                ]
            )
        assert found[0] == found[1], (number, calls)
        assert left[0] == left[1], (number, calls)


def sent(server: RedisServer) -> int:
    stats = server.client().info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_neighbours_are_one_script(redis7: RedisServer) -> None:
    hashes = emulated(redis7.client())
    hashes.hsetex("h", "f", 1, ex=HOUR)
    before = sent(redis7)
    with hashes.pipeline() as p:
        for number in range(MOST_TOGETHER + 1):
            p.hsetex(f"h{number}", "f", number, ex=HOUR + number)
        for number in range(MOST_TOGETHER):
            p.hgetex(f"h{number}", "f")
        p.incr("count")
        p.hgetex("h0", "f", ex=HOUR)
        results = p.execute()
    assert results[MOST_TOGETHER + 1 :][:3] == [[b"0"], [b"1"], [b"2"]]
    assert results[-2:] == [1, [b"0"]]
    # The last write is alone, and so is the last read.
    assert sent(redis7) - before == 4
    with hashes.pipeline(transaction=False) as p:
        results = p.hgetex("h0", "f").hgetex("h1", "f").execute()
    assert results == [[b"0"], [b"1"]]
    assert sent(redis7) - before == 6


@pytest.mark.parametrize("transaction", [True, False])
def test_an_error_has_its_own_place(redis7: RedisServer, transaction: bool) -> None:
    hashes = emulated(redis7.client())
    hashes.client.set("foreign", "text")
    with hashes.pipeline(transaction) as p:
        for name in ("a", "foreign", "b"):
            p.hsetex(name, "f", 1, ex=HOUR)
        for name in ("a", "foreign", "b"):
            p.hgetex(name, "f")
        for name in ("a", "foreign", "b"):
            p.hgetex(name, "f", ex=HOUR)
        results = p.execute(raise_on_error=False)
    assert [isinstance(each, redis.ResponseError) for each in results] == 3 * [False, True, False]
    assert all("WRONGTYPE" in str(each) for each in results[1::3])
    p = hashes.pipeline(transaction)
    p.hsetex("a", "f", 2, ex=HOUR).hsetex("foreign", "f", 2, ex=HOUR)
    with pytest.raises(redis.ResponseError, match=r"^command 2 of the pipeline: WRONGTYPE"):
        p.execute()
    assert hashes.hget("a", "f") == b"2"


def test_an_error_names_the_keys_of_its_own_call(redis7: RedisServer) -> None:
    hashes = emulated(redis7.client())
    hashes.hsetex("b", "f", 1, ex=HOUR)
    hashes.client.delete(NAMES.deadlines(b"b"))
    hashes.client.rpush(NAMES.deadlines(b"b"), "foreign")
    p = hashes.pipeline().hmget("a", "f").hmget("b", "f").hmget("c", "f")
    first, second, third = p.execute(raise_on_error=False)
    assert (first, third) == ([None], [None])
    assert isinstance(second, LayoutError)
    assert f"keys b {NAMES.deadlines(b'b').decode()} holds another type" in str(second)


def limited(server: RedisServer) -> VolatileHashes:
    """Return hashes by a user who may touch the hash a alone."""
    control = server.client()
    control.acl_setuser("some", enabled=True, nopass=True, commands=["+@all"], keys=["a", "*ws:*"])
    hashes = emulated(server.client(username="some", password="any"))
    hashes.open()
    return hashes


def test_a_forbidden_key_refuses_its_own_call_alone(redis7: RedisServer) -> None:
    hashes = limited(redis7)
    try:
        p = hashes.pipeline(transaction=False)
        p.hsetex("a", "f", 2, ex=HOUR).hsetex("b", "f", 2, ex=HOUR).hsetex("a", "g", 3, ex=HOUR)
        first, second, third = p.execute(raise_on_error=False)
        assert (first, third) == (1, 1)
        assert isinstance(second, redis.exceptions.NoPermissionError)
        # A transaction is refused whole by the server itself.
        p = hashes.pipeline()
        p.hsetex("a", "f", 9, ex=HOUR).hsetex("b", "f", 9, ex=HOUR).plain.set("a", 1)
        with pytest.raises(redis.exceptions.NoPermissionError):
            p.execute()
        assert hashes.hmget("a", "f", "g") == [b"2", b"3"]
    finally:
        redis7.client().acl_deluser("some")


def test_a_forbidden_command_is_the_error_of_the_calls_that_need_it(redis7: RedisServer) -> None:
    hashes = emulated(redis7.client())
    hashes.hsetex("a", "f", 1, ex=HOUR)
    hashes.hset("b", "f", 1)
    control = redis7.client()
    control.acl_setuser("some", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
    some = emulated(redis7.client(username="some", password="any"))
    some.open()
    control.acl_setuser("some", commands=["-exists"])
    try:
        # Only a call that finds no field looks whether there is a hash.
        p = some.pipeline().hgetex("a", "f", ex=9 * HOUR).hgetex("b", "none", ex=HOUR)
        first, second, third = p.hgetex("b", "f", ex=HOUR).execute(raise_on_error=False)
        assert (first, third) == ([b"1"], [b"1"])
        assert isinstance(second, redis.ResponseError)
        assert "run this command" in str(second)
        assert [hashes.httl(each, "f")[0] > HOUR / 2 for each in ("a", "b")] == [True, True]
        assert hashes.httl("a", "f")[0] > 8 * HOUR
    finally:
        control.acl_deluser("some")


def test_an_unusual_call_that_fails_leaves_its_neighbours_alone(redis7: RedisServer) -> None:
    hashes = emulated(redis7.client())
    for name in ("a", "b", "c"):
        hashes.hsetex(name, mapping={"f": 1, "g": 1}, ex=HOUR)
    # Of a hash of which something has expired, each deadline is asked for.
    hashes.client.zadd(NAMES.deadlines(b"b"), {"g": 1})
    control = redis7.client()
    control.acl_setuser("some", enabled=True, nopass=True, commands=["+@all"], keys=["*"])
    some = emulated(redis7.client(username="some", password="any"))
    some.open()
    control.acl_setuser("some", commands=["-zmscore"])
    try:
        p = some.pipeline()
        for name in ("a", "b", "c"):
            p.hgetex(name, "f", ex=9 * HOUR)
        for name in ("a", "b", "c"):
            p.hmget(name, "f")
        results = p.execute(raise_on_error=False)
    finally:
        control.acl_deluser("some")
    assert [results[each] for each in (0, 2, 3, 5)] == [[b"1"]] * 4
    for refused in (results[1], results[4]):
        assert isinstance(refused, redis.ResponseError)
        assert "run this command" in str(refused)
    assert [hashes.httl(name, "f")[0] > 8 * HOUR for name in ("a", "b", "c")] == [True, False, True]


@pytest.mark.parametrize("transaction", [True, False])
def test_neighbours_of_a_foreign_layout_are_refused_each(
    redis7: RedisServer, transaction: bool
) -> None:
    hashes = emulated(redis7.client())
    layout = hashes.open()
    for shard in range(layout.index_shards):
        hashes.client.set(hashes.names.mark(shard), "2:emulated")
    p = hashes.pipeline(transaction)
    results = p.hsetex("a", "f", 1, ex=9).hsetex("b", "f", 1, ex=9).execute(raise_on_error=False)
    assert [type(each) for each in results] == [LayoutError, LayoutError]
    assert hashes.exists("a", "b") == 0


def test_a_script_that_is_not_run_gives_each_the_error(redis7: RedisServer) -> None:
    hashes = emulated(redis7.client())
    hashes.hsetex("a", "f", 1, ex=HOUR)
    p = hashes.pipeline()
    p.hsetex("a", "f", 2, ex=HOUR).hsetex("b", "f", 2, ex=HOUR).script_flush()
    p.hsetex("a", "f", 3, ex=HOUR).hsetex("b", "f", 3, ex=HOUR).plain.hget("a", "f")
    first, second, flushed, third, fourth, last = p.execute(raise_on_error=False)
    # It is not sent again, because a command behind it has run.
    assert (first, second, flushed, last) == (1, 1, True, b"2")
    assert [type(each) for each in (third, fourth)] == 2 * [redis.exceptions.NoScriptError]
    assert third is not fourth
    p = hashes.pipeline()
    p.hsetex("a", "f", 4, ex=HOUR).hsetex("b", "f", 4, ex=HOUR).script_flush()
    p.hsetex("a", "f", 5, ex=HOUR).hsetex("c", "f", 5, ex=HOUR)
    assert p.execute() == [1, 1, True, 1, 1]
    assert [hashes.hget(each, "f") for each in ("a", "b", "c")] == [b"5", b"4", b"5"]


async def test_neighbours_are_one_script_on_asyncio(redis7: RedisServer) -> None:
    emulated(redis7.client()).open()
    async with redis7.async_client() as client:
        hashes = AsyncVolatileHashes(client, "n", backend="emulated")
        await hashes.open()
        before = sent(redis7)
        async with hashes.pipeline() as p:
            for number in range(5):
                p.hsetex(f"h{number}", "f", number, ex=HOUR)
            for number in range(5):
                p.hgetex(f"h{number}", "f")
            results = await p.execute()
    assert results == [1] * 5 + [[b"%d" % number] for number in range(5)]
    assert sent(redis7) - before == 2
