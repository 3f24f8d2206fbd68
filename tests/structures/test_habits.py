"""What people write by habit, from an enum or from another library, works or gets a sentence."""

from __future__ import annotations

from enum import IntEnum

import pytest

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.structures import Ick, Log, ShardedIck, ShuffleQueue, TimeShardQueue
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


def test_other_logs_words_get_a_sentence(redis7: RedisServer) -> None:
    log: Log = Log(redis7.client(), "l")
    with pytest.raises(ConfigurationError, match="backlog=100 is a word of other logs: give keep="):
        log.append(b"a", backlog=100)  # type: ignore[arg-type]
    assert redis7.size() == 0
    log.append(*[b"%d" % n for n in range(10)])
    with pytest.raises(ConfigurationError, match="or keep=3 for the last 3 to stay"):
        log.evict(-3)
    assert log.evict(keep=3) == 7
