"""Nothing that stands under our own keys is believed before it is bounded.

The slow test tries every kind of nonsense in every place of every key, and then every operation,
job, backlog and slice. The quick ones are the cases that have hung, taken all memory, raised errors
of Python or Lua, or been taken for granted.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support import nonsense
from support.nonsense_maps import MAPS, nodes
from support.nonsense_states import STATES
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.proof import seed, tried
from support.servers import RedisServer
from workstealing.errors import LayoutError
from workstealing.jobs import MigrateToEmulated, ShuffleQueueReaper
from workstealing.jobs.adopt_hashes.walk import WalkPlace
from workstealing.jobs.leftovers.walk import RulePlace
from workstealing.recruiting.slice import Slice
from workstealing.structures import ShuffleQueue, VolatileHashes
from workstealing.structures.stored import stored_number

pytestmark = pytest.mark.real

PARTS = {
    "fair_queue": 12,
    "shuffle_queue": 12,
    "log": 12,
    "ick": 1,
    "sharded_ick": 4,
    "moving_ick": 4,
}
PARTS |= {"time_shard_queue": 4, "volatile_hashes": 12, "moving_hashes": 12, "durable_keys": 4}
PARTS |= {"tracked_set": 4, "leftovers": 8, "ledger": 2, "fleet": 12}
NATIVE = ("moving_hashes",)
"""A run tries one part of the states, make prove others; NONSENSE_PART=all tries all of them."""
ALL_STATES = {**STATES, **MAPS}
META, BESIDE = "q/queue/{q}/meta", "q/queue/{q}/"
LOG_META, LOG = "l/log/{l}/meta", "l/log/{l}/"

NO_NUMBERS = (b"-5", b"", b"nan", b"1e308", b"x" * 50, b"0x10", b"999999999:1-1", b"\x93\x01")
TOO_LARGE = (b"999999999999", b"4000000000")
FEW = (b"-5", b"nan", b"4000000000")
"""Those that make test tries; they stand for the others of their kinds."""


def values(*some: bytes) -> list[Any]:
    """Return parameters, of which all but a few are slow."""
    slow = pytest.mark.slow
    return [each if each in FEW else pytest.param(each, marks=slow) for each in some]


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.slow
def test_nonsense_anywhere_is_refused_or_does_no_harm(
    request: pytest.FixtureRequest, name: str
) -> None:
    server = request.getfixturevalue("redis8" if name in NATIVE else "redis7")
    search, operations = search_of(server, name)
    states = list(search.mutations())
    assert len(states) > 300
    part = os.environ.get("NONSENSE_PART", str(seed()))
    chosen = states if part == "all" else states[int(part) % PARTS[name] :: PARTS[name]]
    failures = search.failures(chosen, operations)
    tried(f"nonsense in a place of a key ({name.replace('_', ' ')})", len(chosen))
    assert failures == [], f"NONSENSE_PART={part}"


def search_of(server: RedisServer, name: str) -> tuple[nonsense.Search, Any]:
    client = server.client()
    client.flushall()
    make, operations = ALL_STATES[name]
    make(client)
    beside = [nodes(client)["b"]] if name == "fleet" else []
    return nonsense.Search(client, beside), operations(client)


def test_the_search_finds_what_it_is_to_find(redis7: RedisServer) -> None:
    """An operation that hangs, takes memory, or raises another error is told as a failure."""
    client = redis7.client()
    client.set("k", "1")
    search = nonsense.Search(client)
    (state,) = [each for each in search.mutations() if each.value == b"nan"]

    found = search.failures(
        [state],
        {
            "a number": lambda: int(client.get("k") or 0),
            "memory": lambda: bytes(2 * nonsense.MEMORY_BYTES),
            "commands": lambda: client.eval(
                "for _ = 1, 30000 do redis.call('GET', KEYS[1]) end", 1, "k"
            ),
            "right": lambda: client.get("k"),
        },
    )
    assert [line.split(": ")[1:3] for line in found] == [
        ["a number", "ValueError"],
        ["memory", "MemoryError"],
        ["commands", "Unbounded"],
    ]
    with pytest.raises(nonsense.Unbounded), nonsense.bounded(seconds=0.05):
        any(False for _ in itertools.repeat(None))


def refused(
    state: tuple[nonsense.Search, Any], change: Callable[[redis.Redis], object], *operations: str
) -> str:
    """Check that each operation refuses a changed state; return the last one's sentence."""
    search, known = state
    said = ""
    for each in operations:
        search.restore()
        change(search.client)
        with nonsense.bounded(), pytest.raises(LayoutError) as caught:
            pytest.fail(f"{each}: {known[each]()!r}")
        said = str(caught.value)
        assert "user_script" not in said
        assert said.endswith("; nothing was changed")
    return said


def put(key: str, field: str, value: bytes) -> Callable[[redis.Redis], object]:
    return lambda client: client.hset(key, field, value)


@pytest.mark.parametrize("value", values(*NO_NUMBERS, *TOO_LARGE))
def test_the_number_of_streams_is_bounded(redis7: RedisServer, value: bytes) -> None:
    """A span of 4,000,000,000 took all memory, and hung the reaper in a web worker."""
    state = search_of(redis7, "shuffle_queue")
    operations = ("length", "stats", "delete", "read", "reaper.perform", "reaper.backlog")
    said = refused(state, put(META, "span", value), *operations)
    assert f"the key {META} says " in said
    assert "as span where a whole number from 0 to 4096 was expected" in said
    assert "restore the key from a backup" in said


@pytest.mark.parametrize("value", values(*NO_NUMBERS))
def test_other_facts_of_a_queue_are_numbers(redis7: RedisServer, value: bytes) -> None:
    state = search_of(redis7, "shuffle_queue")
    for field, operations in {
        "joined": ("read of a new group", "delete"),
        "groups": ("read of a new group", "ack"),
        "cancelled": ("cancel", "stats"),
        "group:g": ("prefer", "read_many"),
    }.items():
        if (field, value) != ("group:g", b""):
            refused(state, put(META, field, value), *operations)


@pytest.mark.parametrize("value", values(*NO_NUMBERS, *TOO_LARGE))
def test_a_place_is_a_streams_number_and_an_entry(redis7: RedisServer, value: bytes) -> None:
    """A tracking id with the place 999999999:1-1 made `cancel` build a billion names."""
    state = search_of(redis7, "shuffle_queue")
    tracking = put(f"{BESIDE}tracking", "id1", value)
    assert "tracking" in refused(state, tracking, "cancel")

    def pending(client: redis.Redis) -> None:
        client.zadd(f"{BESIDE}pending:g", {value: 1})

    refused(state, pending, "reaper.backlog", "reaper.dry_run")


def queue_with_one_message(server: RedisServer) -> tuple[ShuffleQueue, str]:
    queue = ShuffleQueue(server.client(), "q", 4, 2)
    return queue, queue.write("t", {"n": 1})


def test_a_counter_that_is_no_number_stops_no_delivery(redis7: RedisServer) -> None:
    """The script broke off behind XCLAIM, and the message was nobody's until its lease ended."""
    queue, message = queue_with_one_message(redis7)
    read = queue.read("g", "c")
    assert read
    assert queue.nack(read) == 1
    queue.client.hset(f"{BESIDE}state:g", "redelivered", "x")
    again = queue.read("g", "c")
    assert again
    assert (again.id, again.attempts) == (message, 2)
    with pytest.raises(LayoutError, match=r"state:g says x as redelivered"):
        queue.stats("g")


def reaped(queue: ShuffleQueue) -> None:
    job = ShuffleQueueReaper(queue, lease=0.001)
    time.sleep(0.005)
    for part in job.parts(1):
        sweep = job.for_part(part)
        for _ in range(12):
            sweep.perform(Slice(25, 30.0))


@pytest.mark.parametrize("score", [4e9, -5, 1e308, float("inf")])
def test_a_returned_message_with_a_wrong_score_comes_again(
    redis7: RedisServer, score: float
) -> None:
    queue, message = queue_with_one_message(redis7)
    read = queue.read("g", "c")
    assert read
    queue.nack(read)
    (member,) = queue.client.zrange(f"{BESIDE}returned:g", 0, -1)
    queue.client.zadd(f"{BESIDE}returned:g", {member: score})
    reaped(queue)
    again = queue.read("g", "c")
    assert again
    assert again.id == message


@pytest.mark.parametrize("score", [4e15, 1e308, float("inf")])
def test_a_mark_of_a_time_to_come_keeps_no_dead_consumers_message(
    redis7: RedisServer, score: float
) -> None:
    queue, message = queue_with_one_message(redis7)
    assert queue.read("g", "dead")
    (number,) = queue.client.zrange(f"{BESIDE}pending:g", 0, -1)
    queue.client.zadd(f"{BESIDE}pending:g", {number: score})
    job = ShuffleQueueReaper(queue, lease=0.001)
    time.sleep(0.005)
    for _ in range(40):
        job.perform(Slice(25, 30.0))
    again = queue.read("g", "c")
    assert again
    assert again.id == message


@pytest.mark.parametrize("value", values(*NO_NUMBERS, *TOO_LARGE))
def test_the_facts_of_a_log_bound_each_other(redis7: RedisServer, value: bytes) -> None:
    """Each of them hung an eviction, a deletion or a read, or was taken silently by an append."""
    state = search_of(redis7, "log")
    every = ("append", "read last", "length", "stats", "evict all", "delete", "trimmer.perform")
    for field in ("next", "first", "kept"):
        assert field in refused(state, put(LOG_META, field, value), *every)
    others = (*every, "group.read", "compactor.perform")
    refused(state, put(LOG_META, "block", value), *others)


def test_an_end_beyond_the_news_is_refused_at_the_beginning_of_a_block(redis7: RedisServer) -> None:
    """The length of no block contradicts it there."""
    state = search_of(redis7, "log")
    far = put(LOG_META, "next", b"4000000000000")
    operations = ("append", "length", "evict all", "delete", "sparing.backlog", "group.seek")
    said = refused(state, far, *operations)
    assert "says 4000000000000 as next where a whole number from 66 to 66 was expected" in said


@pytest.mark.parametrize("value", values(*NO_NUMBERS, *TOO_LARGE))
def test_a_message_whose_history_is_nonsense_is_not_thrown_away(
    redis7: RedisServer, value: bytes
) -> None:
    client = redis7.client()
    STATES["time_shard_queue"][0](client)
    (key,) = client.scan_iter("*:history:*")
    (leased,) = client.scan_iter("*:leased:*")
    (messages,) = client.scan_iter("*:messages:*")
    operations = STATES["time_shard_queue"][1](client)
    (message, *_) = client.zrange(leased, 0, -1)
    client.hset(key, message, value)
    client.zadd(leased, {message: 1})
    with pytest.raises(LayoutError, match="the history of a message"):
        operations["sweeper.perform"]()
    assert client.hexists(messages, message)
    assert client.hget(key, message) == value


@pytest.mark.parametrize("value", [7, "7", b"7", 7.0])
def test_a_number_comes_in_any_form_of_a_client(value: object) -> None:
    assert stored_number(b"k", "f", value, 0, 7) == 7
    with pytest.raises(LayoutError, match=r"^the key k says '7' as f where a whole number from 0"):
        stored_number(b"k", "f", value, 0, 6)


@pytest.mark.parametrize(
    "value",
    [None, b"", b"07", b"+7", b" 7", "\u0667", b"1_0", b"9" * 5000, b"inf", 0.5, float("nan")],
)
def test_what_redis_does_not_write_is_no_number(value: object) -> None:
    with pytest.raises(LayoutError, match="where a whole number from 0 to 9007199254740991"):
        stored_number(b"k", "f", value)


def test_deadlines_of_another_type_are_refused_to_readers(redis7: RedisServer) -> None:
    """The server's words named neither key, and ended with a script's digest and line."""
    search, operations = search_of(redis7, "volatile_hashes")
    (deadlines,) = [key for key in search.kinds if key.endswith(b":ttl:h0")]

    def replace(client: redis.Redis) -> None:
        client.delete(deadlines)
        client.set(deadlines, "x")

    said = refused((search, operations), replace, "hget", "hmget", "hgetall", "hpttl", "hlen")
    assert said.startswith("one of the keys h0 {")
    assert "holds another type than it should: restore the key from a backup" in said


def test_a_users_hash_of_another_type_is_refused_as_by_the_server(redis7: RedisServer) -> None:
    search, operations = search_of(redis7, "volatile_hashes")
    search.client.delete("h0")
    search.client.set("h0", "x")
    for name in ("hget", "hset", "hgetall", "hlen", "hexpire"):
        with pytest.raises(redis.ResponseError) as caught:
            operations[name]()
        assert str(caught.value) == nonsense.WRONG_TYPE


def test_a_place_of_nonsense_begins_again() -> None:
    """It raised a bare ValueError in each slice, for ever."""
    place = {b"cursor": b"12", b"rests": b"1764000000.25", b"laps": b"3", b"inside": b"\xff"}
    read = RulePlace.read([part for pair in place.items() for part in pair])
    assert (read.cursor, read.rests, read.laps, read.inside) == (b"12", 1764000000.25, 3, b"\xff")
    for name, value in [(b"cursor", b"x"), (b"rests", b"nan"), (b"laps", b"-5"), (b"found", b"")]:
        wrong = {**place, name: value}
        assert RulePlace.read([part for pair in wrong.items() for part in pair]) == RulePlace()


def test_so_does_the_place_of_an_adoption() -> None:
    place = WalkPlace(b"facts", b"12", left=True, inside=b"\xff", at=b"7", done=b"d", over=False)
    fields = [
        str(each).encode() if isinstance(each, str | int) else each for each in place.fields()
    ]
    assert WalkPlace.read(fields) == place
    for name, value in [(b"cursor", b"x"), (b"at", b"-1"), (b"left", b"yes"), (b"over", b"")]:
        wrong = {**dict(zip(fields[::2], fields[1::2], strict=True)), name: value}
        assert WalkPlace.read([part for pair in wrong.items() for part in pair]) == WalkPlace()


def test_a_walk_does_not_rest_for_years(redis7: RedisServer) -> None:
    search, operations = search_of(redis7, "leftovers")
    (key,) = [each for each in search.kinds if b":tag_set_leftovers:place:" in each]
    search.client.sadd("conj:tag:0", "gone:again")
    search.client.hset(key, "rests", "99999999999")
    operations["tags.perform"]()
    assert not search.client.sismember("conj:tag:0", "gone:again")


@pytest.mark.parametrize("end", ["removed", "kept"])
def test_nothing_is_removed_that_cannot_be_noted(redis7: RedisServer, end: str) -> None:
    """The transaction removed the member, and only then the note was refused."""
    search, operations = search_of(redis7, "leftovers")
    (key,) = [each for each in search.kinds if each.endswith(b":tag_set_leftovers:" + end.encode())]
    search.client.sadd("conj:tag:0", "gone:again")
    search.client.delete(key)
    search.client.hset(key, "x", "y")
    with pytest.raises(LayoutError, match=f":{end}.* holds another type .* nothing was changed$"):
        operations["tags.sweep"]()
    assert search.client.sismember("conj:tag:0", "gone:again")


def test_no_move_begins_beside_a_mark_of_no_backend(redis8: RedisServer) -> None:
    """It was taken for the rest of an earlier move, and the namespace began to return."""
    client = redis8.client()
    hashes = VolatileHashes(client, "n", backend="emulated")
    hashes.hset("h", "f", 1)
    (mark,) = client.scan_iter("*:mark")
    client.set(mark, "0x10")
    job = MigrateToEmulated(VolatileHashes(client, "n"), "h*")
    with pytest.raises(LayoutError, match=r"says '0x10' as its mark where 1:emulated was expected"):
        job.perform(Slice(25, 30.0))
    assert client.hget("ws:n:layout", "backend") == b"emulated"


def test_nor_beside_a_mark_of_another_type(redis8: RedisServer) -> None:
    """It was the server's own error, which names no key."""
    client = redis8.client()
    VolatileHashes(client, "n", backend="emulated").hset("h", "f", 1)
    (mark,) = client.scan_iter("*:mark")
    client.delete(mark)
    client.rpush(mark, "foreign")
    job = MigrateToEmulated(VolatileHashes(client, "n"), "h*")
    with pytest.raises(LayoutError, match=r":mark.* holds another type than it should"):
        job.perform(Slice(25, 30.0))


def test_a_change_to_come_is_refused(redis8: RedisServer) -> None:
    """The move waited for it, in each slice, for years, and said 0."""
    client = redis8.client()
    VolatileHashes(client, "n", backend="emulated").hset("h", "f", 1)
    client.hset("ws:n:layout", mapping={"backend": "returning", "since": 4 * 10**15})
    with pytest.raises(LayoutError, match="as since where a whole number"):
        MigrateToEmulated(VolatileHashes(client, "n"), "h*").perform(Slice(25, 30.0))


def test_a_due_index_of_another_type_stops_a_move_by_a_sentence(redis7: RedisServer) -> None:
    search, operations = search_of(redis7, "fleet")
    foreign = [key for key in search.kinds if key.endswith(b":d:due")]

    def replace(client: redis.Redis) -> None:
        client.delete(*foreign)
        for key in foreign:
            client.set(key, "x")

    said = refused((search, operations), replace, "keys.perform", "keys.sweep")
    assert said.startswith("one of the keys {...}:ws:d:due* holds another type than it should")


@pytest.mark.parametrize("score", [float("inf"), 1e308])
def test_a_deadline_of_nonsense_is_not_handed_over(redis8: RedisServer, score: float) -> None:
    """The server refused it in its own words, behind fields that it had taken already."""
    search, operations = search_of(redis8, "moving_hashes")
    # Of a hash that has not been moved yet, whichever that is.
    key = next(each for each in sorted(search.kinds) if b":ttl:h" in each)

    def replace(client: redis.Redis) -> None:
        client.zadd(key, {"long": score})

    said = refused((search, operations), replace, "to native.perform", "hgetall")
    assert "as a deadline where a whole number of milliseconds was expected" in said
    assert search.client.zscore(key, "long") == score


def test_a_collector_goes_on_beside_an_endless_deadline(redis7: RedisServer) -> None:
    search, operations = search_of(redis7, "volatile_hashes")
    (key,) = [each for each in search.kinds if each.endswith(b":ttl:h2")]
    search.client.zadd(key, {"long": float("inf")})
    operations["expiry.perform"]()
    assert search.client.hkeys("h2") == [b"for ever", b"counter", b"long", b"text"]
