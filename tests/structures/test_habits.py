"""What people write by habit, from an enum or from another library, works or gets a sentence."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.structures import (
    FairQueue,
    Ick,
    Log,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
)
from workstealing.structures.time_shard_queue import RedisStore


class Number(IntEnum):
    """Numbers as an application may name them; their repr is no number."""

    ZERO = 0
    TWO = 2
    FOUR = 4


def test_a_number_may_be_an_int_enum(redis7: RedisServer) -> None:
    client = redis7.client()
    queue: ShuffleQueue = ShuffleQueue(client, "q")
    for tenant in range(3):
        queue.write(str(tenant), {"n": str(tenant)})
    assert len(queue.read_many("g", "c", Number.TWO)) == 2
    assert queue.read("g", "c", prefer_stream=Number.ZERO) is not None
    assert queue.dead("g", Number.TWO) == []
    fair: FairQueue = FairQueue(client, "f", max_attempts=Number.FOUR)
    fair.set_rule("*", weight=Number.TWO, max_in_flight=Number.FOUR)
    for tenant in range(3):
        fair.write(str(tenant), {"n": tenant}, priority=Number.ZERO)
    assert len(fair.read_many("c", Number.TWO)) == 2
    assert len(fair.peek("2", Number.TWO)) == 1
    assert fair.dead(Number.TWO) == []
    log: Log = Log(client, "l", block=Number.FOUR)
    log.append(b"a", b"b", b"c", keep=Number.TWO)
    assert log.read(Number.ZERO, Number.TWO) == [b"a", b"b"]
    assert log.evict(Number.ZERO) == 1
    ick: Ick = Ick(client, "i")
    ick.add({"a": 1, "b": 2, "c": 3})
    assert ick.reserve(Number.TWO).members == [b"a", b"b"]
    assert ick.dead(Number.TWO) == []
    sharded: ShardedIck = ShardedIck(client, "s", ick_shards=Number.FOUR)
    sharded.add("a")
    times: TimeShardQueue = TimeShardQueue(RedisStore(client), "t", shards=6, period=1)
    times.put(b"m")
    assert times.take_many("c", Number.TWO, lease=1) == []


def test_redis_icks_order_of_arguments_gets_a_sentence(redis7: RedisServer) -> None:
    client = redis7.client()
    for ick in (Ick(client, "i"), ShardedIck(client, "s", ick_shards=2)):
        with pytest.raises(ConfigurationError, match="takes all members as one argument"):
            ick.add(123, "foo")  # type: ignore[arg-type]
    assert redis7.size() == 0


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("ickadd", r"add\({member: score}\), the other way round"),
        ("ickreserve", r"reserve\(n\)"),
        ("ickcommit", r"ack\(\*members\)"),
        ("commit", r"ack\(\*members\)"),
        ("ickexchange", r"exchange\(n, \*members\)"),
        ("ickstats", r"stats\(\)"),
        ("ickdel", r"delete\(\)"),
    ],
)
def test_redis_icks_names_get_a_sentence(redis7: RedisServer, name: str, here: str) -> None:
    ick: Any = Ick(redis7.client(), "i")
    with pytest.raises(AttributeError, match=f"^Ick has no '{name}': write {here}$"):
        getattr(ick, name)("i", 123, "foo")
    assert not hasattr(ick, name)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("twrite", r"append\(\*entries, keep=100\)"),
        ("TREAD", r"read\(offset, count, block=seconds\)"),
        ("tevict", r"evict\(offset\), or evict\(keep=100\) for TEVICT -100"),
        ("BACKLOG", r"append\(\*entries, keep=100\), or LogTrimmer.*"),
    ],
)
def test_rcp_11s_names_get_a_sentence(redis7: RedisServer, name: str, here: str) -> None:
    with pytest.raises(AttributeError, match=f"^log has no '{name}': write {here}$"):
        getattr(Log(redis7.client(), "l"), name)


def test_another_unknown_name_is_an_ordinary_error(redis7: RedisServer) -> None:
    with pytest.raises(AttributeError, match=r"^'Log' object has no attribute 'apend'$"):
        Log(redis7.client(), "l").apend  # type: ignore[attr-defined]  # noqa: B018


def test_other_logs_words_get_a_sentence(redis7: RedisServer) -> None:
    log: Log = Log(redis7.client(), "l")
    any_log: Any = log
    for append in (
        lambda: any_log.append(b"a", backlog=100),
        lambda: any_log.append(b"a", BACKLOG=100),
        lambda: any_log.append("BACKLOG", 100, "ENTRIES", b"a"),
    ):
        with pytest.raises(ConfigurationError, match=r"(?i)no backlog=: write append.*keep=100"):
            append()
    with pytest.raises(ConfigurationError, match=r"no group=: write log.group\(name\).read"):
        any_log.read(0, 10, group="readers")
    with pytest.raises(ConfigurationError, match=r"no WITHINFO=: write read_range\("):
        any_log.read(0, 10, WITHINFO=True)
    assert redis7.size() == 0
    log.append(*[b"%d" % n for n in range(10)])
    with pytest.raises(ConfigurationError, match="or keep=3 for the last 3 to stay"):
        log.evict(-3)
    assert log.evict(keep=3) == 7
