"""A log on every kind of server: offsets that never change, whatever is appended or evicted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from support.at_once import at_once
from support.patience import GUARD_SECONDS, ROUNDING_SECONDS
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, CrossSlotError, LayoutError
from workstealing.structures import AsyncLog, Log, LogRange, LogStats
from workstealing.structures.log import reading, writing
from workstealing.structures.log.blocks import seal

pytestmark = pytest.mark.contract

BLOCK = 10


def log_on(server: AnyServer, **options: Any) -> Log:
    client = server.client(**options.pop("client", {}))
    return Log(client, options.pop("name", "visits"), options.pop("block", BLOCK), **options)


@pytest.fixture
def log(any_server: AnyServer) -> Log:
    return log_on(any_server)


def numbered(start: int, stop: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(start, stop)]


def seal_as(log: Log, number: int, codec: str) -> None:
    """Make another form of a full block, as a compactor does."""
    key = log.keys.block(number)
    sealed = seal(log.client.lrange(key, 0, -1), codec)
    log.client.delete(key)
    log.client.set(key, sealed)
    log.client.zrem(log.keys.full, number)
    if codec == "raw":
        log.client.zadd(log.keys.raw, {str(number): 1})


def blocks_left(log: Log) -> list[int]:
    return [n for n in range(60) if log.client.exists(log.keys.block(n))]


def test_offsets_are_consecutive_from_0(log: Log) -> None:
    assert (log.first(), log.last(), log.length()) == (0, -1, 0)
    assert log.append(b"a") == 0
    assert log.append(b"b", "ü", b"", b"\x00\xff\r\n") == 1
    assert log.append(*numbered(5, 40)) == 5
    assert log.read(0, 5) == [b"a", b"b", "ü".encode(), b"", b"\x00\xff\r\n"]
    assert log.read(5, 100) == numbered(5, 40)
    assert log.read(17) == [b"entry 17"]
    assert (log.first(), log.last(), log.length()) == (0, 39, 40)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_entries_are_bytes_whatever_the_client_decodes(
    any_server: AnyServer, protocol: int, decode: bool
) -> None:
    log = log_on(any_server, client={"decode_responses": decode, "protocol": protocol})
    entries = [bytes([number, 255 - number]) for number in range(25)]
    assert log.append(*entries) == 0
    assert log.read(0, 25) == entries
    info, found = log.read_range(-3, 2)
    assert (info, found) == (LogRange(0, 24, 22, 2), entries[22:24])
    assert log.evict(9) == 10
    assert log.stats()[:5] == LogStats(15, 2, 2, 0, 0, 0, 0)[:5]
    assert log.delete()


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_entries_are_bytes_in_a_pipeline_whose_client_decodes(
    any_server: AnyServer, protocol: int, transaction: bool
) -> None:
    log = log_on(any_server, client={"decode_responses": True, "protocol": protocol})
    entries = [bytes([number, 255 - number]) for number in range(25)]
    log.append(*entries)
    group = log.group("g", ack=True)
    group.stats()
    p = log.pipeline(transaction).read(0, 25).plain.set("text", "ü").append(b"\xff")
    assert p.plain.get("text").execute() == [entries, True, 25, "ü"]
    q = group.pipeline(transaction)
    q.read(3).hset("hash", mapping={"ä": "ö"}).hgetall("hash")
    found, *others = q.execute()
    assert [each.entry for each in found] == entries[:3]
    assert others == [1, {"ä": "ö"}]
    assert group.pipeline(transaction).ack(*found).execute() == [3]


async def test_entries_are_bytes_in_an_asyncio_pipeline_whose_client_decodes(
    redis7: RedisServer,
) -> None:
    async with redis7.async_client(decode_responses=True) as client:
        log = AsyncLog(client, "l", 10)
        await log.append(b"\xff", b"b")
        # Nothing is sent for no keys.
        p = log.pipeline().plain.set("text", "ü").read(0, 9).plain.mget([]).plain.mget("text", "x")
        assert await p.plain.sadd("set", "ü").plain.smembers("set").execute() == [
            *(True, [b"\xff", b"b"], [], ["ü", None], 1, {"ü"}),
        ]
        p = log.pipeline().read(0, 1).plain.incr("text").plain.get("text")
        refused = (await p.execute(raise_on_error=False))[1]
        assert isinstance(refused, redis.ResponseError)


def test_negative_offsets_count_from_the_end(log: Log, any_server: AnyServer) -> None:
    log.append(*numbered(0, 35))
    fresh = log_on(any_server, block=7)
    assert log.read(-1) == fresh.read(-1) == [b"entry 34"]
    assert fresh.read(-12, 5) == numbered(23, 28)
    assert log_on(any_server, block=999).read(-1000, 3) == numbered(0, 3)


def test_info_comes_with_the_entries_or_alone(log: Log) -> None:
    log.append(*numbered(0, 25))
    log.evict(11)
    assert log.read_range(10, 4) == (
        LogRange(first=12, last=24, offset=10, number=4),
        [None, None, b"entry 12", b"entry 13"],
    )
    assert log.read_range(3, 0) == (LogRange(12, 24, 3, 0), [])
    assert log.read_range(70, 5) == (LogRange(12, 24, 70, 0), [])
    assert log.read(0, 3) == [None] * 3


def test_what_is_evicted_stays_so_and_nothing_else_moves(log: Log, any_server: AnyServer) -> None:
    log.append(*numbered(0, 45))
    assert log.evict(-1 + 15) == 15
    assert (log.evict(14), log.evict(3)) == (0, 0)
    assert log.read(13, 4) == [None, None, b"entry 15", b"entry 16"]
    assert blocks_left(log) == [1, 2, 3, 4]
    other = log_on(any_server)
    assert other.evict(keep=12) == 18
    assert blocks_left(log) == [3, 4]
    assert log.evict(keep=12) == 0
    assert log.read(32, 2) == [None, b"entry 33"]
    assert log.evict(10_000) == 12
    assert (log.first(), log.last(), log.length()) == (45, 44, 0)
    assert log.read(44, 1) == [None]
    assert log.append(b"next") == 45
    assert log.read(44, 2) == [None, b"next"]
    # The last block is not full, so its memory stays.
    assert blocks_left(log) == [4]
    assert log.client.zrange(log.keys.times, 0, -1) == [b"4"]


def test_keep_leaves_at_least_so_many(log: Log) -> None:
    for start in range(0, 200, 7):
        log.append(*numbered(start, start + 7), keep=25)
        assert log.read(start, 7) == numbered(start, start + 7)
        assert log.length() == min(start + 7, log.length())
        assert min(start + 7, 25) <= log.length() < 25 + BLOCK
        assert log.first() % BLOCK == 0
    assert len(blocks_left(log)) <= 5
    log.append(b"last", keep=0)
    assert (log.first(), log.last()) == (200, 203)
    assert log.append(*numbered(0, 50), keep=2) == 204
    assert log.read(204, 50) == [None] * 46 + numbered(46, 50)
    assert blocks_left(log) == [25]


def test_a_keep_that_frees_many_blocks_at_once_frees_all_of_them(log: Log) -> None:
    log.append(*numbered(0, 300))
    for number in range(6):
        log.append(b"x", keep=5)
        assert log.first() == (290 if number < 4 else 300)
    assert blocks_left(log) == [30]


@pytest.mark.parametrize("codec", ["raw", "zlib"])
@pytest.mark.parametrize("cache_blocks", [0, 4])
def test_blocks_of_every_form_read_alike(
    any_server: AnyServer, codec: str, cache_blocks: int
) -> None:
    log = log_on(any_server, cache_blocks=cache_blocks)
    entries = [b"" if number % 4 == 0 else b"e%d" % number * (number % 7) for number in range(45)]
    log.append(*entries)
    for number in (0, 2, 3):
        seal_as(log, number, codec)
    for _ in range(2):
        for offset in range(0, 45, 3):
            for count in (1, 2, 9, 25):
                assert log.read(offset, count) == entries[offset : offset + count]
    log.evict(24)
    assert log.read(20, 10) == [None] * 5 + entries[25:30]
    assert log.append(b"more") == 45
    assert log.read(44, 2) == [entries[44], b"more"]


def test_a_kept_block_does_not_hide_an_eviction_or_another_log(
    log: Log, any_server: AnyServer
) -> None:
    log.append(*numbered(0, 20))
    seal_as(log, 0, "zlib")
    other = log_on(any_server)
    assert log.read(0, 5) == log.read(0, 5) == numbered(0, 5)
    other.evict(2)
    assert log.read(0, 5) == [None, None, None, b"entry 3", b"entry 4"]
    assert other.delete()
    assert log.read(0, 5) == []
    other.append(*numbered(100, 120))
    assert log.read(0, 2) == numbered(100, 102)


def ends(log: Log, tail: int) -> None:
    """Let the log's facts and its news say that it ends there."""
    log.client.hset(log.keys.meta, "next", tail)
    log.client.delete(log.keys.news)
    log.client.xadd(log.keys.news, {"n": 1}, f"{tail}-0")


def test_what_is_kept_is_not_read_over_what_the_log_says_now(
    log: Log, any_server: AnyServer
) -> None:
    log.append(*numbered(0, 20))
    for number in (0, 1):
        seal_as(log, number, "zlib")
    assert log.read(0, 20) == log.read(0, 20) == numbered(0, 20)
    client, meta = log.client, log.keys.meta
    # As a server that came back with older data.
    ends(log, 12)
    assert log.read(10, 5) == numbered(10, 12)
    assert log.read(5, 10) == numbered(5, 12)
    ends(log, 20)
    info, found = log.read_range(7, 10)
    assert (info, found) == ((0, 19, 7, 10), numbered(7, 17))
    client.hset(meta, "mark", "3")
    with pytest.raises(LayoutError, match="says 3"):
        log.read(7, 1)
    client.delete(meta)
    client.set(meta, "text")
    with pytest.raises(LayoutError, match="does not hold the facts"):
        log.read(7, 1)


def test_a_long_read_comes_in_parts(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(*[b"%d" % number * 50 for number in range(95)])
    seal_as(log, 1, "raw")
    seal_as(log, 2, "zlib")
    expected = [b"%d" % number * 50 for number in range(95)]
    for most in (1, 120, 1000, 3000):
        monkeypatch.setattr(reading, "BYTES_A_SCRIPT", most)
        assert log.read(0, 1000) == expected


def test_a_client_learns_how_large_the_blocks_are(log: Log, any_server: AnyServer) -> None:
    log.append(*numbered(0, 25))
    other = log_on(any_server, block=3)
    assert other.read(7, 10) == numbered(7, 17)
    third = log_on(any_server, block=1000)
    assert third.append(*numbered(25, 50)) == 25
    assert other.append(b"e") == 50
    assert log.read(24, 3) == numbered(24, 27)
    assert blocks_left(log) == list(range(6))


def test_writers_at_once_leave_no_gap(any_server: AnyServer) -> None:
    told: dict[int, bytes] = {}

    def write(writer: int) -> None:
        log = log_on(any_server)
        for turn in range(20):
            batch = [b"%d %d %d" % (writer, turn, each) for each in range(1 + turn % 4)]
            offset = log.append(*batch)
            for place, entry in enumerate(batch):
                assert told.setdefault(offset + place, entry) == entry

    at_once([partial(write, writer) for writer in range(6)])
    log = log_on(any_server)
    assert log.read(0, 10_000) == [told[offset] for offset in range(len(told))]
    assert log.last() == len(told) - 1 == 299


def test_a_log_is_deleted_with_all_its_keys(log: Log, any_server: AnyServer) -> None:
    assert not log.delete()
    log.append(*numbered(0, 45))
    seal_as(log, 1, "raw")
    assert log.delete()
    assert list(log.client.scan_iter("visits*")) == []
    assert log.read(0, 5) == []
    assert log_on(any_server).append(b"anew") == 0
    assert log.append(b"anew") == 1


def test_facts_count_blocks_by_form(log: Log) -> None:
    assert log.stats() == LogStats(0, 0, 0, 0, 0, 0, 0.0)
    log.append(*numbered(0, 45))
    seal_as(log, 1, "raw")
    seal_as(log, 2, "zlib")
    log.evict(12)
    facts = log.stats()
    assert facts[:5] == (32, 4, 2, 2, 1)
    assert facts.bytes > 35
    assert facts.bytes_per_entry == facts.bytes / 35


def test_a_codec_writes_and_reads_values(any_server: AnyServer) -> None:
    log = log_on(any_server, codec="json")
    values = [{"user": "ü", "n": 1}, [1, 2.5, None], "text", 0]
    log.append(*values)
    log.evict(0)
    assert log.read(0, 4) == [None, *values[1:]]
    with pytest.raises(ConfigurationError, match="entry 1 of this call"):
        log.append(1, {1, 2})
    assert log.last() == 3


# What is refused, before anything is written.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda log: log.append(), "0 entries cannot be appended"),
        (lambda log: log.append(7), "entry 0 of this call is a int"),
        (lambda log: log.append(b"x", keep=-1), "keep=-1"),
        (lambda log: log.append(b"x", keep=True), "keep=True"),
        (lambda log: log.read("0"), "offset='0'"),
        (lambda log: log.read(2**53), f"offset={2**53}"),
        (lambda log: log.read(0, -1), "count=-1"),
        (lambda log: log.read(0, 1, block=-1), "block=-1"),
        (lambda log: log.evict(), "up to which entries go, or keep="),
        (lambda log: log.evict(1, keep=1), "up to which entries go, or keep="),
        (lambda log: log.evict(-5), "keep=5"),
        (lambda log: log.evict(keep=-1), "keep=-1"),
        (lambda log: log.append(*[b"x"] * 10_001), "give 1 to 10000"),
        (lambda log: Log(log.client, "x", 0), "block=0"),
        (lambda log: Log(log.client, "", 1), "log's name"),
        (lambda log: Log(log.client, b"\xff", 1), "log's name"),
    ],
)
def test_what_makes_no_sense_is_refused(
    fakeredis_server: AnyServer, call: Callable[[Any], Any], message: str
) -> None:
    log = log_on(fakeredis_server)
    with pytest.raises(ConfigurationError, match=message):
        call(log)
    assert log.last() == -1


def test_batches_have_limits(fakeredis_server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_BYTES", 100)
    monkeypatch.setattr(writing, "MOST_BLOCKS", 5)
    log = log_on(fakeredis_server)
    with pytest.raises(ConfigurationError, match="2 entries of 101 bytes"):
        log.append(b"x" * 50, b"x" * 51)
    with pytest.raises(ConfigurationError, match="into 5 blocks of 10: append at most 40"):
        log.append(*[b""] * 41)
    assert log.last() == -1
    log.append(b"x" * 50, b"x" * 50)
    # A client that expects larger blocks than the log has.
    with pytest.raises(ConfigurationError, match="append at most 40"):
        log_on(fakeredis_server, block=1000).append(*[b""] * 41)
    assert log.last() == 1


def test_a_name_with_a_lone_brace_is_refused_on_a_cluster(cluster: AnyServer) -> None:
    with pytest.raises(CrossSlotError):
        log_on(cluster, name="a}b")
    for name in ("plain", "{tag}name", "a b\nc"):
        log = log_on(cluster, name=name)
        assert (log.append(b"x"), log.read(0)) == (0, [b"x"])


# Waiting.


def test_a_read_waits_for_its_very_offset(any_server: AnyServer) -> None:
    log, found = log_on(any_server), []
    log.append(*numbered(0, 5))

    def read() -> None:
        found.append(log_on(any_server).read(8, 3, block=20))

    reader = threading.Thread(target=read)
    reader.start()
    log.append(*numbered(5, 8))
    time.sleep(0.05)
    assert not found
    log.append(*numbered(8, 10))
    reader.join(120)
    assert found == [numbered(8, 10)]


def test_a_read_that_waits_ends_with_its_time(any_server: AnyServer) -> None:
    log = log_on(any_server)
    log.append(b"x")
    began = time.monotonic()
    assert log.read(1, 3, block=0.06) == []
    assert log.read_range(1, 3, block=0.06) == (LogRange(0, 0, 1, 0), [])
    assert 0.12 - 2 * ROUNDING_SECONDS <= time.monotonic() - began < GUARD_SECONDS
    assert log.read(5, 0, block=60) == []
    assert log.read(0, 1, block=60) == [b"x"]
