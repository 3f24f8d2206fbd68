"""Messages whose reader is interrupted, or whose reply is lost, are with nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as redis_asyncio

from support.any_server import AnyServer
from support.delaying_relay import DelayingRelay
from support.faulty_server import FaultyServer
from support.grants import (
    eventually,
    every_async_cut,
    every_cancel,
    every_cut,
    every_opcode,
    greenlets_killed,
    signals_at_random_moments,
)
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.store import grants
from workstealing.structures import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue.message import Message, split_id

STREAMS, MESSAGES = 3, 6
# All messages that were written are as they were: nobody has them, and nobody has had them.
AS_WRITTEN = """
for i = 4, #KEYS do
  -- A stream that was never read has no such group.
  local pending = redis.pcall('XPENDING', KEYS[i], 'g', '-', '+', 100)
  for _, entry in ipairs(pending) do
    redis.call('XACK', KEYS[i], 'g', entry[1])
  end
  redis.pcall('XGROUP', 'SETID', KEYS[i], 'g', '0')
  redis.call('ZADD', KEYS[2], i - 4, i - 4)
end
redis.call('DEL', KEYS[3])
redis.call('HDEL', KEYS[1], 'plan:g', 'back:g')
"""


def queue_on(client: Any, **options: Any) -> ShuffleQueue:
    return ShuffleQueue(client, "q", streams=STREAMS, streams_per_tenant=STREAMS, **options)


def async_queue_on(client: Any) -> AsyncShuffleQueue:
    return AsyncShuffleQueue(client, "q", streams=STREAMS, streams_per_tenant=STREAMS)


def filled(client: Any) -> ShuffleQueue:
    queue = queue_on(client)
    assert queue.read("g", "first") is None
    for number in range(MESSAGES):
        queue.write("tenant", {"n": number})
    return queue


PARTS = (b"meta", b"ring:g", b"returned:g", b"s0", b"s1", b"s2")
OWN = [b"q/queue/{q}/%b" % part for part in PARTS]


def as_written(queue: ShuffleQueue) -> None:
    # None of the package's opcodes.
    queue.client.eval(AS_WRITTEN, len(OWN), *OWN)


def pending(queue: ShuffleQueue, consumer: str = "c") -> set[str]:
    """Return the ids of the messages that the server says a consumer has."""
    found = set()
    for number, stream in enumerate(queue.keys.streams(STREAMS)):
        try:
            rows = queue.client.xpending_range(stream, "g", "-", "+", 100, consumer)
        except redis.ResponseError:
            # The stream was never read.
            rows = []
        found |= {f"{number}-{row['message_id'].decode()}" for row in rows}
    return found


def all_back(queue: ShuffleQueue) -> bool:
    """Say whether another consumer gets every message, for the first time; give them back."""
    found = queue.read_many("g", "another", 2 * MESSAGES)
    numbers = {int(each.fields[b"n"]) for each in found}
    is_right = len(found) == len(numbers) == MESSAGES and {each.attempts for each in found} == {1}
    as_written(queue)
    return is_right


class Repeating:
    """A client that does something about each script that may grant messages.

    Arguments:
        client: ; scripts: the digests of these.
        then: is given the words of each such command, and the reply, and returns the reply that the
            caller gets.
    """

    def __init__(self, client: Any, then: Callable[[tuple[Any, ...], Any], Any]) -> None:
        self.client, self._send = client, client.execute_command
        digests = {queue_on(client)._script(name).sha for name in ("read", "next")}

        def send(*words: Any, **options: Any) -> Any:
            reply = self._send(*words, **options)
            if words[0] == "EVALSHA" and words[1] in digests:
                reply = then(words, reply)
            return reply

        client.execute_command = send


@pytest.mark.contract
class TestTheSameReadAgain:
    def test_it_is_answered_by_the_same_messages(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()
        sent: list[int] = []

        def again(words: tuple[Any, ...], _: Any) -> Any:
            sent.append(1)
            return repeating._send(*words)

        repeating = Repeating(client, again)
        mine = queue_on(client)
        got = [mine.read("g", "c") for _ in range(3)]
        got += mine.read_many("g", "c", 2)
        got += mine.read_many("g", "c", 9)
        assert sorted(int(each.fields[b"n"]) for each in got if each) == list(range(MESSAGES))
        assert pending(queue) == {each.id for each in got if each}
        assert {each.attempts for each in got if each} == {1}
        assert mine.read("g", "c") is None
        assert len(sent) > 6

    def test_a_read_by_a_plan_too(self, any_server: AnyServer) -> None:
        """Such a read takes a message before it knows, and moves its group back."""
        queue, many = filled(any_server.client()), 4 * MESSAGES
        for number in range(MESSAGES, many):
            queue.write("tenant", {"n": number})
        client = any_server.client()
        planned: list[Any] = []
        plan = queue._script("next").sha

        def again(words: tuple[Any, ...], reply: Any) -> Any:
            if words[1] != plan or not isinstance(reply, list):
                return reply
            planned.append(repeating._send(*words))
            return planned[-1]

        repeating = Repeating(client, again)
        mine = queue_on(client)
        got = [mine.read("g", "c") for _ in range(many)]
        assert sorted(int(each.fields[b"n"]) for each in got if each) == list(range(many))
        assert {each.attempts for each in got if each} == {1}
        assert planned
        assert mine.read("g", "c") is None
        assert pending(queue) == {each.id for each in got if each}

    def test_a_lease_that_was_about_to_end_begins_again(self, any_server: AnyServer) -> None:
        """The reaper took a message away from a reader that had just been given it."""
        queue = filled(any_server.client())
        client = any_server.client()
        lengths, found = [59_000, 1_000_000], list[Message]()

        def later(words: tuple[Any, ...], reply: Any) -> Any:
            new = pending(queue) - {each.id for each in found}
            if not lengths or not new:
                return reply
            for each in new:
                number, entry = split_id(each)
                stream = queue.keys.stream(number)
                queue.client.xclaim(stream, "g", "c", 0, [entry], idle=lengths[0], justid=True)
            lengths.pop(0)
            return repeating._send(*words)

        repeating = Repeating(client, later)
        mine = queue_on(client)
        while lengths:
            message = mine.read("g", "c")
            assert message
            found.append(message)
        assert len(found) == 2
        assert {each.attempts for each in found} == {1}
        for each in found:
            number, entry = split_id(each.id)
            (row,) = queue.client.xpending_range(
                queue.keys.stream(number), "g", entry, entry, 1, "c"
            )
            assert row["time_since_delivered"] < 59_000
            assert row["times_delivered"] == 1

    def test_it_leaves_nothing_with_nobody_that_is_not_to_be_served(
        self, any_server: AnyServer
    ) -> None:
        """A read by a plan took the overdue message of the next stream, and left it pending."""
        queue, many = filled(any_server.client()), 4 * MESSAGES
        for number in range(MESSAGES, many):
            queue.write("tenant", {"n": number})
        client = any_server.client()
        plan, planned = queue._script("next").sha, []
        overdue = {"n": 1, "ws:tenant": "tenant", "ws:deadline": 1}

        def again(words: tuple[Any, ...], reply: Any) -> Any:
            if planned or words[1] != plan or not isinstance(reply, list):
                return reply
            for stream in queue.keys.streams(STREAMS):
                delivered = {
                    row["message_id"]
                    for row in queue.client.xpending_range(stream, "g", "-", "+", 100)
                }
                for entry, _ in queue.client.xrange(stream):
                    if entry not in delivered:
                        queue.client.xdel(stream, entry)
                queue.client.xadd(stream, overdue)
            planned.append(repeating._send(*words))
            return planned[-1]

        repeating = Repeating(client, again)
        mine = queue_on(client)
        # As where many read: one alone passes the one stream whose turn it is.
        mine._view("g").window = 8
        got = [each for _ in range(many) if (each := mine.read("g", "c"))]
        assert len(got) < many / 2
        assert len(planned) == 1
        assert planned[0][0] is None
        assert {each.attempts for each in got} == {1}
        assert pending(queue) == {each.id for each in got}
        assert mine.ack(*got) == len(got)
        assert all(not queue.client.xlen(each) for each in queue.keys.streams(STREAMS))

    def test_messages_that_were_given_back_too(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        assert queue.nack(*queue.read_many("g", "c", MESSAGES)) == MESSAGES
        client = any_server.client()
        repeating = Repeating(client, lambda words, _: repeating._send(*words))
        found = queue_on(client).read_many("g", "c", 2)
        assert pending(queue) == {each.id for each in found}
        assert [each.attempts for each in found] == [2, 2]
        assert queue.stats("g")["redelivered"] == 2

    def test_one_that_comes_late_is_granted_nothing(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        repeating = Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        got = [each for _ in range(3) if (each := mine.read("g", "c"))]
        assert mine.ack(*got) == 3
        for words in commands:
            repeating._send(*words)
            assert pending(queue) == set()
        # The others are still served as if nothing had been.
        rest = [each for _ in range(9) if (each := mine.read("g", "c"))]
        assert len(rest) == MESSAGES - 3
        assert {each.attempts for each in rest} == {1}

    def test_what_has_gone_to_another_since_is_not_answered(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()
        taken: list[Any] = []

        def meanwhile(words: tuple[Any, ...], reply: Any) -> Any:
            if taken or not pending(queue):
                return reply
            # A reaper has given it to somebody else before the reply was there.
            for each in pending(queue):
                number, entry = split_id(each)
                queue.client.xclaim(queue.keys.stream(number), "g", "another", 0, [entry])
                taken.append(each)
            return repeating._send(*words)

        repeating = Repeating(client, meanwhile)
        found = queue_on(client).read("g", "c")
        assert found is not None
        assert found.id not in taken
        assert len(taken) == 1
        assert pending(queue) == {found.id}


@pytest.mark.contract
class TestGivingBack:
    def withdraw(self, queue: ShuffleQueue, commands: list[tuple[Any, ...]]) -> int:
        """Give back the last read of a queue's by its receipt."""
        words = commands[-1]
        view, keys = queue._view("g"), queue.keys
        receipt = next(each for each in words if str(each).find("/read.") > 0)
        (free,) = (each for each in queue._receipts._free if each[0] == receipt)
        beside = (view.names.ring, view.names.returned, view.names.delayed, keys.legacy)
        fixed = (keys.meta, keys.notifications, *beside)
        script = queue._script("withdraw").body
        passed = (*fixed, receipt, *keys.streams(STREAMS))
        numbers = range(STREAMS)
        return int(
            queue.client.eval(script, len(passed), *passed, "g", "c", free[1], *numbers)  # type: ignore[arg-type]
        )

    def test_by_the_receipt_alone(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        repeating = Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        first = mine.read("g", "c")
        second = mine.read_many("g", "c", 2)
        assert first
        assert self.withdraw(mine, commands) == 2
        assert pending(queue) == {first.id}
        # It may still be under way, and come twice.
        repeating._send(*commands[-1])
        assert pending(queue) == {first.id}
        assert self.withdraw(mine, commands) == 0
        again = queue.read_many("g", "another", MESSAGES)
        assert len(again) == MESSAGES - 1
        assert {each.id for each in second} <= {each.id for each in again}
        # The delivery that nobody has had is forgotten.
        assert {each.attempts for each in again} == {1}
        assert queue.stats("g")["redelivered"] == 0

    def test_what_is_done_or_anothers_stays_so(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        done, given = mine.read_many("g", "c", 2)
        assert mine.ack(done) == 1
        assert mine.nack(given) == 1
        assert self.withdraw(mine, commands) == 0
        found = queue.read_many("g", "another", MESSAGES)
        assert sorted(each.attempts for each in found) == [1] * (MESSAGES - 2) + [2]

    def test_who_waits_is_woken(self, any_server: AnyServer) -> None:
        filled(any_server.client())
        client = any_server.client()
        commands: list[tuple[Any, ...]] = []
        Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        assert len(mine.read_many("g", "c", MESSAGES)) == MESSAGES
        found: list[Any] = []
        waiting = queue_on(any_server.client())
        assert waiting.read("g", "another") is None
        reading = threading.Thread(
            target=lambda: found.append(waiting.read("g", "another", block=60))
        )
        reading.start()
        assert self.withdraw(mine, commands) == MESSAGES
        reading.join(60)
        assert found[0] is not None

    def test_a_foreign_receipt_is_none(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        for nonsense in ("", "x", "9" * 40, "-5", "1 9999:1-1:1", "nan 1:1-1:1", "1 0:1-1:x"):
            queue.client.set(queue._receipts.take().key, nonsense)
            assert queue.read("g", "c") is not None
            as_written(queue)
        key = queue.keys.receipt(b"list")
        queue._receipts._free.append((key, 1))
        queue.client.rpush(key, "x")
        for _ in range(2):
            assert queue.read("g", "c") is not None
        queue.client.delete(key)

    def test_receipts_are_few_and_end_by_themselves(self, any_server: AnyServer) -> None:
        queue = filled(any_server.client())
        for _ in range(4):
            assert queue.read("g", "c") is not None
        queue.read_many("g", "c", 9)
        client: Any = queue.client
        found = [each for each in client.scan_iter(count=1000) if b"/read." in each]
        assert len(found) == 1
        assert 0 < client.pttl(found[0]) <= 60_000


def test_a_forked_process_has_receipts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = queue_on(redis.Redis())
    parents = queue._receipts.take()
    queue._receipts.put_back(parents)
    again = queue._receipts.take()
    assert (again.key, again.number) == (parents.key, parents.number + 1)
    queue._receipts.put_back(again)
    monkeypatch.setattr(grants.os, "getpid", lambda: -1)
    assert queue._receipts.take().key != parents.key


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as door:
        yield door


def three_and_more(client: Any) -> list[Any]:
    """Read as planned, too, and then all that is left."""
    queue = queue_on(client)
    found = [queue.read("g", "c") for _ in range(4)]
    assert None not in found
    return found + queue.read_many("g", "c", MESSAGES)


@pytest.mark.real
class TestCutReplies:
    def test_every_message_is_read_once(self, redis7: RedisServer, door: FaultyServer) -> None:
        queue = filled(redis7.client())
        seen = 0
        for found in every_cut(door, three_and_more):
            assert len({each.id for each in found}) == len(found) == MESSAGES, door.names()
            assert {each.attempts for each in found} == {1}
            assert len(pending(queue)) == MESSAGES
            as_written(queue)
            seen += 1
        assert seen > 6

    async def test_on_an_asyncio_client(self, redis7: RedisServer, door: FaultyServer) -> None:
        queue = filled(redis7.client())

        async def ask(client: Any) -> list[Any]:
            mine = async_queue_on(client)
            found = [await mine.read("g", "c") for _ in range(3)]
            return found + await mine.read_many("g", "c", MESSAGES)

        async for found in every_async_cut(door, ask):
            assert len({each.id for each in found}) == len(found) == MESSAGES, door.names()
            assert len(pending(queue)) == MESSAGES
            as_written(queue)

    def test_without_retries_they_are_given_back(
        self, redis7: RedisServer, door: FaultyServer
    ) -> None:
        queue = filled(redis7.client())
        failed, had = 0, []

        def ask(client: Any) -> None:
            mine = queue_on(client)
            had.clear()
            had.extend(mine.read("g", "c") for _ in range(3))

        for answer in every_cut(door, ask, retries=False):
            failed += isinstance(answer, redis.ConnectionError)
            assert pending(queue) == {each.id for each in had}, door.names()
            rest = queue.read_many("g", "another", 2 * MESSAGES)
            assert len(rest) + len(had) == MESSAGES
            assert {each.attempts for each in rest} == {1}
            as_written(queue)
        assert failed > 4

    def test_of_a_later_piece(
        self, redis7: RedisServer, door: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("workstealing.structures.shuffle_queue.reading.MESSAGES_A_SCRIPT", 2)
        queue = filled(redis7.client())
        lengths = set()

        def ask(client: Any) -> list[Any]:
            return queue_on(client).read_many("g", "c", MESSAGES)

        for answer in every_cut(door, ask, retries=False):
            found = [] if isinstance(answer, redis.ConnectionError) else answer
            assert pending(queue) == {each.id for each in found}, door.names()
            lengths.add(len(found))
            as_written(queue)
        assert {0, MESSAGES} < lengths


@pytest.mark.real
class TestCancelled:
    async def test_at_every_await(self, redis7: RedisServer) -> None:
        queue = filled(redis7.client())

        async def ask(client: Any) -> None:
            mine = async_queue_on(client)
            had = []
            try:
                had.append(await mine.read("g", "c"))
                had.append(await mine.read("g", "c"))
                had += await mine.read_many("g", "c", 2)
            finally:
                # What has come to its caller is the caller's.
                for each in had:
                    stream = queue.keys.stream(each.stream)
                    queue.client.xack(stream, "g", each.entry_id)

        def free() -> bool:
            if pending(queue):
                return False
            as_written(queue)
            return all_back(queue)

        await every_cancel(redis7, ask, free, least=4)

    async def test_while_the_request_is_under_way(self, redis7: RedisServer) -> None:
        queue = filled(redis7.client())
        with DelayingRelay(redis7.port) as relay:
            async with redis_asyncio.Redis(port=relay.port) as client:
                mine = async_queue_on(client)
                assert await mine.read("g", "c")
                as_written(queue)
                relay.seconds = 0.1
                for seconds in (0.02, 0.06):
                    task = asyncio.ensure_future(mine.read_many("g", "c", 3))
                    await asyncio.sleep(seconds)
                    task.cancel()
                    await asyncio.wait({task})
                    await eventually(lambda: all_back(queue), "the messages to be back")

    async def test_while_a_later_piece_is_given_back(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pieces before it had come, and did not come to their caller."""
        monkeypatch.setattr("workstealing.structures.shuffle_queue.reading.MESSAGES_A_SCRIPT", 2)
        queue = filled(redis7.client())
        async with redis_asyncio.Redis(port=redis7.port) as client:
            mine = async_queue_on(client)
            send, grants = client.execute_command, 0
            sha = mine._script("read").sha

            async def cut(*words: Any, **options: Any) -> Any:
                nonlocal grants
                reply = await send(*words, **options)
                if sha in words:
                    grants += 1
                    if grants == 2:
                        asyncio.get_running_loop().call_soon(task.cancel)
                        raise redis.ConnectionError("cut off")
                return reply

            client.execute_command = cut  # type: ignore[method-assign]
            assert await mine.read("g", "c", prefer_stream=0)
            as_written(queue)
            grants = 0
            task = asyncio.ensure_future(mine.read_many("g", "c", MESSAGES))
            await asyncio.wait({task})
            assert task.cancelled()
            await eventually(lambda: not pending(queue), "the messages to be back")
            assert all_back(queue)

    async def test_who_waits_has_nothing_to_give_back(self, redis7: RedisServer) -> None:
        watching = redis7.client()
        async with redis_asyncio.Redis(port=redis7.port) as client:
            mine = async_queue_on(client)
            task = asyncio.ensure_future(mine.read("g", "c", block=60))
            await eventually(
                lambda: watching.info("clients")["blocked_clients"] == 1, "the reader to wait"
            )
            watching.config_resetstat()
            task.cancel()
            await asyncio.wait({task})
            await mine.aclose()
        calls = watching.info("commandstats")
        assert not {"cmdstat_eval", "cmdstat_evalsha"} & set(calls)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("how", ["read", "read_many"])
def test_interrupted_at_every_opcode(redis7: RedisServer, how: str) -> None:
    queue = filled(redis7.client())
    mine = queue_on(redis7.client())

    def call() -> None:
        if how == "read":
            mine.read("g", "c")
        else:
            mine.read_many("g", "c", 3)
        # What has come to its caller is the caller's.
        as_written(queue)

    def free() -> bool:
        return not pending(queue) and all_back(queue)

    call()
    every_opcode(call, free)


@pytest.mark.real
@pytest.mark.slow
class TestAtRandom:
    # Python itself drops what is raised in a finalizer, redis-py's among them.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_signals_at_random_moments(self, redis7: RedisServer) -> None:
        signals_at_random_moments(redis7, "shuffle queue")

    def test_greenlets_killed_at_random(self, redis7: RedisServer) -> None:
        greenlets_killed(redis7, "shuffle queue")
