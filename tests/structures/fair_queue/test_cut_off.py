"""Messages whose reader is interrupted, or whose reply is lost, are with nobody, uncharged."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.fair_queues import drained, queue_on, reap
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
