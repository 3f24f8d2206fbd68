"""A reply that never comes, a wait that is given up, a cancel that comes too late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.reapers import reaper_after
from support.servers import RedisServer
from workstealing.recruiting import Slice
from workstealing.structures import (
    AsyncShuffleQueue,
    NewMessage,
    RedisStore,
    ShuffleQueue,
    TimeShardQueue,
)
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT

pytestmark = pytest.mark.real


@pytest.fixture
def queue(redis7: RedisServer) -> Any:
    return ShuffleQueue(redis7.client(), "q", streams=1, streams_per_tenant=1)


def reap(queue: Any, max_attempts: int = 5) -> None:
    """Do as much as a reaper does in many slices."""
    reaper = reaper_after(max_attempts, queue, lease=0.001)
    for _ in range(20):
        reaper.perform(Slice(25, 10.0))


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_reply_of_a_write_leaves_one_message_whatever_the_clients_retries(
    redis7: RedisServer, queue: Any, retries: int
) -> None:
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
        writer = ShuffleQueue(client, "q", streams=1, streams_per_tenant=1)
        writer.write("t", {"n": 0})
        between.fail(len(between.names()) + 1, "cut")
        with pytest.raises(redis.ConnectionError):
            writer.write("t", {"n": 1})
    found = [each.fields[b"n"] for each in queue.read_many("g", "c", 10)]
    assert sorted(found) == [b"0", b"1"]


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_reply_of_a_nack_leaves_poison_in_the_dead_set_once(
    redis7: RedisServer, retries: int
) -> None:
    queue = ShuffleQueue(redis7.client(), "q", max_attempts=1)
    written = queue.write("t", {"n": 1}, tracking_id="x")
    message = queue.read("g", "c")
    assert message is not None
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
        consumer = ShuffleQueue(client, "q", max_attempts=1)
        assert consumer.nack() == 0
        consumer.extend(message)
        between.fail(len(between.names()) + 1, "cut")
        if retries:
            # Sent again it finds the message no longer there.
            assert consumer.nack(message) == 0
        else:
            with pytest.raises(redis.ConnectionError):
                consumer.nack(message)
    assert [each.id for each in queue.dead("g")] == [written]
    assert (queue.length(), queue.cancel("x"), queue.read("g", "c")) == (0, False, None)


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_reply_of_an_exchange_leaves_no_message_with_nobody(
    redis7: RedisServer, queue: Any, retries: int, place: int
) -> None:
    """What was done may be done or not; what was granted is there, or given back."""
    queue.read("g", "c")
    ids = queue.write_many([NewMessage("t", {"n": n}) for n in range(4)])
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
        consumer = ShuffleQueue(client, "q", streams=1, streams_per_tenant=1)
        (first,) = consumer.read_many("g", "d", 1)
        between.fail(len(between.names()) + place, "cut")
        if retries:
            got = consumer.exchange(first, group="g", consumer="d").messages
            assert [each.attempts for each in got] == [1]
        else:
            with pytest.raises(redis.ConnectionError):
                consumer.exchange(first, group="g", consumer="d")
            got = []
    # Whatever nobody has in hand is served at once, for the first time.
    rest = queue.read_many("g", "c", 10)
    assert {each.attempts for each in rest} == {1}
    assert sorted([first.id, *(each.id for each in (*got, *rest))]) == sorted(ids)
    queue.ack(first, *got, *rest)
    assert queue.length() == 0


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_reply_of_many_leaves_each_of_them_once(
    redis7: RedisServer, queue: Any, retries: int
) -> None:
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
        writer = ShuffleQueue(client, "q", streams=1, streams_per_tenant=1)
        writer.write("t", {"n": 0})
        between.fail(len(between.names()) + 2, "cut")
        with pytest.raises(redis.ConnectionError):
            writer.write_many([NewMessage("t", {"n": n}) for n in range(1, 300)])
    found = [int(each.fields[b"n"]) for each in queue.read_many("g", "c", 1000)]
    # Of three scripts the first is done, and the second one too, whose reply was lost.
    assert found == list(range(201))


class HostTimeout(Exception):
    """A host's time-out that is an Exception."""


@pytest.mark.parametrize(
    ("fault", "passes"),
    [(redis.ConnectionError("cut"), False), (HostTimeout(), True), (MemoryError(), True)],
)
def test_a_fault_after_the_first_piece_keeps_what_was_delivered_but_no_hosts_time_out(
    queue: Any, monkeypatch: pytest.MonkeyPatch, fault: Exception, passes: bool
) -> None:
    for n in range(MESSAGES_A_SCRIPT + 1):
        queue.write("t", {"n": n})
    looked, original = [], ShuffleQueue._look_once

    def look(self: Any, *args: Any, **options: Any) -> Any:
        looked.append(1)
        if len(looked) == 2:
            raise fault
        return (yield from original(self, *args, **options))

    monkeypatch.setattr(ShuffleQueue, "_look_once", look)
    if passes:
        with pytest.raises(type(fault)):
            queue.read_many("g", "c", 1000)
    else:
        assert len(queue.read_many("g", "c", 1000)) == MESSAGES_A_SCRIPT


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_reply_of_a_put_is_there_once(redis7: RedisServer, retries: int) -> None:
    """Its id is made here, so that a client's retries say the same message again."""
    kept = TimeShardQueue(RedisStore(redis7.client()), "letters")
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
        queue = TimeShardQueue(RedisStore(client), "letters")
        queue.put("0")
        between.fail(len(between.names()) + 1, "cut")
        if retries:
            assert queue.put("1")
        else:
            with pytest.raises(redis.ConnectionError):
                queue.put("1")
    found = [each.message for each in kept.take_many("c", 10, drain_all=True)]
    assert found == [b"0", b"1"]


async def test_what_a_cancelled_read_was_given_is_pending_if_the_server_stays_silent(
    redis7: RedisServer, queue: Any
) -> None:
    queue.read("g", "c")
    written = queue.write("t", {"n": 1})
    with FaultyServer(redis7.port) as between:
        client = redis.asyncio.Redis(
            port=between.port, retry=AsyncRetry(NoBackoff(), 0), protocol=2
        )
        reader = AsyncShuffleQueue(client, "q", streams=1, streams_per_tenant=1)
        await reader.length()
        reader._view("g").announced["d"] = reader.monotonic()
        between.fail(len(between.names()) + 1, "half_silent")
        reading = asyncio.ensure_future(reader.read("g", "d"))
        async with asyncio.timeout(20):
            while queue.stats("g")["pending"] == 0:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.005)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        between.reset()
        # The half of a reply that had come is nobody else's.
        assert await reader.read("g", "d") is None
        assert await reader.length() == 1
        await client.aclose()
    reap(queue)
    again = queue.read("g", "c")
    assert again is not None
    assert (again.id, again.attempts) == (written, 2)


def test_what_was_set_aside_is_beyond_its_tracking_id(queue: Any) -> None:
    queue.read("g", "c")
    written = queue.write("t", {"n": 1}, tracking_id="x")
    assert queue.read("g", "c") is not None
    while not queue.dead("g"):
        reap(queue, max_attempts=1)
    # Another group may have it still: then that one loses it, and the dead stays all the same.
    assert not queue.cancel("x")
    assert [each.id for each in queue.dead("g")] == [written]
    assert queue.discard("g", written) == 1
    assert queue.revive("g", written) == 0


def test_a_client_that_decodes_leaves_other_bytes_to_one_that_does_not(
    redis7: RedisServer, queue: Any
) -> None:
    decoding = ShuffleQueue(
        redis7.client(decode_responses=True), "q", streams=1, streams_per_tenant=1
    )
    queue.read("g", "c")
    written = queue.write("t", {"a": b"\xff"})
    with pytest.raises(UnicodeDecodeError):
        decoding.read("g", "c")
    assert decoding.read("g", "c") is None
    reap(queue)
    again = queue.read("g", "c")
    assert again is not None
    assert (again.id, again.fields) == (written, {b"a": b"\xff"})
