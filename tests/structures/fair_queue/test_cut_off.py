"""Messages whose reader is interrupted, or whose reply is lost, are with nobody, uncharged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.any_server import AnyServer
from support.fair_queues import drained, got, queue_on, reap
from support.faulty_server import FaultyServer
from support.grants import every_async_cut, every_cancel, every_cut, every_opcode
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.structures.fair_queue import AsyncFairQueue, FairQueue

MESSAGES = 6


def filled(client: Any) -> FairQueue:
    queue = queue_on(client)
    queue.set_rule("*", max_in_flight=2 * MESSAGES, weight=2)
    for number in range(MESSAGES):
        queue.write(f"a{number % 2}", {"n": number})
    return queue


def state(queue: FairQueue) -> Any:
    """Return what each account is charged, and how much of it is in hand."""
    return {
        each.account: (each.waiting, each.in_flight, each.delayed, each.place)
        for each in queue.accounts()
    }, queue.client.zrange(queue.keys.of("ready"), 0, -1, withscores=True)


def held(queue: FairQueue) -> int:
    return int(queue.client.zcard(queue.keys.of("leases")))


def all_back(queue: FairQueue) -> bool:
    """Say whether all messages are as they were written, with nobody."""
    accounts, ready = state(queue)
    free = {"a0": (3, 0, 0, "ready"), "a1": (3, 0, 0, "ready")}
    return accounts == free and [score for _, score in ready] == [0, 0]


class AsWritten:
    """The keys of a queue as they are now; by commands alone, of which none is the package's."""

    def __init__(self, queue: FairQueue) -> None:
        self.client, keys = queue.client, (queue.keys.meta, *queue.keys.parts)
        self.keys = {key: self.client.dump(key) for key in keys}

    def restore(self) -> None:
        """Bring them back."""
        self.client.delete(*self.keys)
        for key, dump in self.keys.items():
            if dump is not None:
                self.client.restore(key, 0, dump)


class Repeating:
    """A client that does something about each read of a fair queue; see the shuffle queue's."""

    def __init__(self, client: Any, then: Callable[[tuple[Any, ...], Any], Any]) -> None:
        self._send = client.execute_command
        read = queue_on(client)._script("read").sha

        def send(*words: Any, **options: Any) -> Any:
            reply = self._send(*words, **options)
            if words[0] == "EVALSHA" and words[1] == read:
                reply = then(words, reply)
            return reply

        client.execute_command = send


@pytest.mark.contract
class TestTheSameReadAgain:
    def test_it_is_answered_by_the_same_messages(self, any_server: AnyServer) -> None:
        queue, client = filled(any_server.client()), any_server.client()
        sent: list[int] = []

        def again(words: tuple[Any, ...], _: Any) -> Any:
            sent.append(1)
            return repeating._send(*words)

        repeating = Repeating(client, again)
        mine = queue_on(client)
        found = [got(mine.read("c")) for _ in range(3)]
        found += mine.read_many("c", 2)
        found += mine.read_many("c", 9)
        assert sorted(int(each.fields[b"n"]) for each in found) == list(range(MESSAGES))
        assert {each.attempts for each in found} == {1}
        assert held(queue) == MESSAGES
        assert mine.read("c") is None
        assert len(sent) >= 5
        assert mine.ack(*found) == MESSAGES

    def test_an_exchange_counts_its_done_once(self, any_server: AnyServer) -> None:
        queue, client = filled(any_server.client()), any_server.client()
        repeating = Repeating(client, lambda words, _: repeating._send(*words))
        mine = queue_on(client)
        mine_now: list[Any] = []
        for _ in range(MESSAGES):
            result = mine.exchange(*mine_now, consumer="c")
            assert result.done == len(mine_now)
            mine_now = result.messages
            assert (len(mine_now), held(queue)) == (1, 1)
        last = mine.exchange(*mine_now, consumer="c")
        assert (last.done, last.messages, queue.length()) == (1, [], 0)

    def test_one_that_comes_late_is_granted_nothing(self, any_server: AnyServer) -> None:
        queue, client = filled(any_server.client()), any_server.client()
        commands: list[tuple[Any, ...]] = []
        repeating = Repeating(client, lambda words, reply: (commands.append(words), reply)[1])
        mine = queue_on(client)
        found = [got(mine.read("c")) for _ in range(3)]
        assert mine.ack(*found) == 3
        for words in commands:
            repeating._send(*words)
            assert held(queue) == 0
        assert {each.attempts for each in drained(mine)} == {1}

    def test_what_has_gone_to_another_since_is_not_answered(self, any_server: AnyServer) -> None:
        queue, client = filled(any_server.client()), any_server.client()
        taken: list[str] = []

        def meanwhile(words: tuple[Any, ...], reply: Any) -> Any:
            if taken:
                return reply
            taken.append(got(queue_on(queue.client, 61_000).read("another")).id)
            return repeating._send(*words)

        repeating = Repeating(client, meanwhile)
        message = got(queue_on(client).read("c"))
        assert message.id not in taken
        assert held(queue) == 2


@pytest.mark.slow
class TestCutOff:
    @pytest.mark.parametrize("how", ["read", "read_many", "exchange"])
    def test_a_reply_that_is_cut_off_at_any_command(self, redis7: RedisServer, how: str) -> None:
        """With redis-py's retries the read has its messages; without them nobody has any."""
        queue = filled(redis7.client())

        def ask(client: Any) -> Any:
            mine = queue_on(client)
            if how == "read":
                message = mine.read("c")
                return [message] if message else []
            if how == "read_many":
                return mine.read_many("c", 4)
            return mine.exchange(consumer="c", n=3).messages

        for retries in (True, False):
            with FaultyServer(redis7.port) as door:
                for answer in every_cut(door, ask, retries=retries):
                    if isinstance(answer, redis.ConnectionError):
                        assert all_back(queue)
                        continue
                    assert len(answer) == {"read": 1, "read_many": 4, "exchange": 3}[how]
                    assert held(queue) == len(answer)
                    redis7.wipe()
                    queue = filled(redis7.client())

    async def test_on_asyncio(self, redis7: RedisServer) -> None:
        queue = filled(redis7.client())

        async def ask(client: Any) -> Any:
            return await AsyncFairQueue(client, "q").read_many("c", 4)

        with FaultyServer(redis7.port) as door:
            async for answer in every_async_cut(door, ask):
                assert len(answer) == held(queue) == 4
                assert {each.attempts for each in answer} == {1}
                redis7.wipe()
                queue = filled(redis7.client())

    async def test_a_task_that_is_cancelled_at_any_await(self, redis7: RedisServer) -> None:
        queue = filled(redis7.client())
        written = AsWritten(queue)

        async def ask(client: Any) -> None:
            mine = AsyncFairQueue(client, "q")
            assert len(await mine.read_many("c", 4)) == 4
            # Those that have come to their caller are the caller's.
            written.restore()

        await every_cancel(redis7, ask, lambda: all_back(queue), 2)

    def test_an_exception_at_any_opcode(self, redis7: RedisServer) -> None:
        queue = filled(redis7.client())
        written = AsWritten(queue)
        mine = queue_on(redis7.client())

        def call() -> None:
            assert len(mine.read_many("c", 3)) == 3
            # Those that have come to their caller are the caller's.
            written.restore()

        every_opcode(call, lambda: all_back(queue))

    def test_what_a_cut_off_reader_was_to_have_is_delivered_for_the_first_time(
        self, redis7: RedisServer
    ) -> None:
        queue = filled(redis7.client())
        with FaultyServer(redis7.port) as door:
            for answer in every_cut(door, lambda client: queue_on(client).read("c"), retries=False):
                if isinstance(answer, redis.ConnectionError):
                    continue
                assert answer.attempts == 1
        found = drained(queue)
        assert {each.attempts for each in found} == {1}
        assert len(found) == MESSAGES - 1
        stats = queue.stats()
        assert stats["redelivered"] == 0
        reap(queue)
