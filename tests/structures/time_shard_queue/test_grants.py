"""Messages whose taker is interrupted, or whose reply is lost, are with nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio

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
from support.servers import AnyServer, RedisServer
from support.set_clock import SetClock
from workstealing.store.operations import drive
from workstealing.store.scripts import load
from workstealing.structures import AsyncTimeShardQueue, TimeShardQueue
from workstealing.structures.time_shard_queue import AsyncRedisStore, RedisStore
from workstealing.structures.time_shard_queue.store import AskedTakes

TURN = 120.0
MESSAGES = 4


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def queue_on(client: Any, clock: SetClock) -> TimeShardQueue:
    return TimeShardQueue(RedisStore(client), "letters", 6, 60, clock=clock)


def async_queue_on(client: Any, clock: SetClock) -> AsyncTimeShardQueue:
    return AsyncTimeShardQueue(AsyncRedisStore(client), "letters", 6, 60, clock=clock)


def filled(client: Any, clock: SetClock) -> TimeShardQueue:
    queue = queue_on(client, clock)
    for number in range(MESSAGES):
        queue.put(f"letter {number}")
    clock.go(TURN)
    return queue


@pytest.mark.contract
class TestNonces:
    def take(self, queue: TimeShardQueue, asked: AskedTakes, nonce: bytes, n: int = 2) -> list[str]:
        asked.another = lambda shard: (asked.receipts.append((shard, nonce)), nonce)[1]  # type: ignore[method-assign]
        shard = queue.rotation.consuming(queue.now_ms())
        shards: Any = queue.time_shards
        steps = shards.take(shard, "reader", 30_000, n, 5, is_turn=True, asked=asked)
        return [(each.id, each.token, each.attempts) for each in drive(queue.store.client, steps)]

    def test_the_same_nonce_is_answered_by_the_same_messages(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = filled(any_server.client(), clock)
        first = self.take(queue, AskedTakes(), b"aa")
        assert len(first) == 2
        assert self.take(queue, AskedTakes(), b"aa") == first
        second = self.take(queue, AskedTakes(), b"bb")
        assert len({each[0] for each in first + second}) == 4
        assert self.take(queue, AskedTakes(), b"cc") == []
        # One that is done, or was taken by somebody else since, is not answered any more.
        assert queue_on(any_server.client(), clock).ack(first[0][0]) == 1
        assert self.take(queue, AskedTakes(), b"aa") == first[1:]
        assert queue.release(first[1][0])
        again = self.take(queue, AskedTakes(), b"dd")
        assert [each[0] for each in again] == [first[1][0]]
        assert self.take(queue, AskedTakes(), b"aa") == []

    def test_a_nonce_alone_releases(self, any_server: AnyServer, clock: SetClock) -> None:
        queue = filled(any_server.client(), clock)
        asked = AskedTakes()
        first = self.take(queue, asked, b"aa")
        shards: Any = queue.time_shards
        assert drive(queue.store.client, shards.give_back(asked)) == 2
        # The take may still be under way.
        assert self.take(queue, AskedTakes(), b"aa") == []
        again = self.take(queue, AskedTakes(), b"bb", 4)
        assert len(again) == 4
        # The attempt of the one who had nothing of it is forgotten.
        assert {each[2] for each in again} == {1}
        assert {each[0] for each in first} <= {each[0] for each in again}
        assert drive(queue.store.client, shards.give_back(asked)) == 0

    def test_no_token_goes_back(self, any_server: AnyServer, clock: SetClock) -> None:
        """Whatever ended the lease before: a release, a withdrawal, or its time."""
        queue = filled(any_server.client(), clock)
        shards: Any = queue.time_shards
        last: dict[str, int] = {}
        for turn in range(9):
            asked = AskedTakes()
            taken = self.take(queue, asked, b"nonce %d" % turn, 1 + turn % MESSAGES)
            assert taken
            for id_, token, _ in taken:
                assert int(token) > last.get(id_, 0)
                last[id_] = int(token)
            if turn % 3:
                assert drive(queue.store.client, shards.give_back(asked)) == len(taken)
            else:
                for id_, _, _ in taken:
                    assert queue.release(id_)
        assert len(last) == MESSAGES

    def test_receipts_go(self, any_server: AnyServer, clock: SetClock) -> None:
        client = any_server.client()
        queue = filled(client, clock)
        taken = [queue.take("reader", 10), *queue.take_many("reader", 2, 3600)]
        kept = {key: client.pttl(key) for key in client.scan_iter(match="*:taken.*", count=1000)}
        assert len(kept) == 2
        assert 0 < min(kept.values()) <= 10_000
        assert 10_000 < max(kept.values()) <= 60_000
        # Whoever acknowledges has had the reply.
        assert queue.ack(*[each for each in taken if each]) == 3
        assert list(client.scan_iter(match="*:taken.*", count=1000)) == []
        # A take of nothing leaves nothing.
        queue.take_many("reader", 5)
        queue.take("reader")
        assert len(list(client.scan_iter(match="*:taken.*", count=1000))) == 1


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as door:
        yield door


@pytest.mark.real
class TestCutReplies:
    def test_every_message_is_taken_once(
        self, redis7: RedisServer, door: FaultyServer, clock: SetClock
    ) -> None:
        queue = filled(redis7.client(), clock)
        seen = 0
        for taken in every_cut(
            door, lambda client: queue_on(client, clock).take_many("reader", MESSAGES)
        ):
            assert len(taken) == MESSAGES, door.names()
            assert {each.attempts for each in taken} == {1}
            for each in taken:
                assert queue.release(each)
            seen += 1
        assert seen > 4

    async def test_on_an_asyncio_client(
        self, redis7: RedisServer, door: FaultyServer, clock: SetClock
    ) -> None:
        queue = filled(redis7.client(), clock)
        async for taken in every_async_cut(
            door, lambda client: async_queue_on(client, clock).take_many("reader", MESSAGES)
        ):
            assert len(taken) == MESSAGES, door.names()
            for each in taken:
                assert queue.release(each)

    def test_without_retries_they_are_given_back(
        self, redis7: RedisServer, door: FaultyServer, clock: SetClock
    ) -> None:
        queue = filled(redis7.client(), clock)
        failed = 0
        for answer in every_cut(
            door, lambda client: queue_on(client, clock).take_many("reader", 2), retries=False
        ):
            failed += isinstance(answer, redis.ConnectionError)
            mine = [] if isinstance(answer, redis.ConnectionError) else answer
            everything = queue.take_many("another", 10)
            assert len(everything) + len(mine) == MESSAGES, door.names()
            for each in (*everything, *mine):
                assert queue.release(each)
        assert failed > 2

    def test_before_another_time_shard_is_refused(
        self, redis7: RedisServer, clock: SetClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The refusal was certain, and so the piece that had been cut off stayed leased."""
        monkeypatch.setattr("workstealing.structures.time_shard_queue.redis_store.TAKEN_A_PIECE", 1)
        queue = filled(redis7.client(), clock)
        client = redis7.client()
        mine = queue_on(client, clock)
        (first,) = mine.take_many("reader", 1)
        assert mine.release(first)
        send, sha, takes = client.execute_command, load("time_shard_queue/take").sha, 0

        def fail(*words: Any, **options: Any) -> Any:
            nonlocal takes
            takes += sha in words
            if sha in words and takes == 3:
                raise redis.exceptions.ReadOnlyError("READONLY")
            reply = send(*words, **options)
            if sha in words and takes == 2:
                raise redis.ConnectionError("cut off")
            return reply

        client.execute_command = fail  # type: ignore[method-assign]
        assert len(mine.take_many("reader", MESSAGES, drain_all=True)) == 1
        assert takes == 3
        assert len(queue.take_many("another", 10)) == MESSAGES - 1


def all_back(queue: TimeShardQueue) -> bool:
    """Say whether another consumer gets every message; give them back."""
    taken = queue.take_many("another", 10)
    for each in taken:
        assert queue.release(each)
    return len(taken) == MESSAGES


async def take_and_release(queue: AsyncTimeShardQueue) -> None:
    taken = await queue.take_many("reader", 3)

    async def release() -> None:
        for each in taken:
            await queue.release(each)

    releasing = asyncio.ensure_future(release())
    while not releasing.done():
        try:
            await asyncio.shield(releasing)
        except asyncio.CancelledError:
            await asyncio.wait({releasing})
            raise


@pytest.mark.real
class TestCancelled:
    async def test_at_every_await(self, redis7: RedisServer, clock: SetClock) -> None:
        queue = filled(redis7.client(), clock)
        await every_cancel(
            redis7,
            lambda client: take_and_release(async_queue_on(client, clock)),
            lambda: all_back(queue),
            least=4,
        )

    async def test_while_the_request_is_under_way(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        queue = filled(redis7.client(), clock)
        with DelayingRelay(redis7.port) as relay:
            async with redis_asyncio.Redis(port=relay.port) as client:
                mine = async_queue_on(client, clock)
                await mine.stats()
                relay.seconds = 0.1
                for seconds in (0.02, 0.06):
                    task = asyncio.ensure_future(mine.take_many("reader", 3))
                    await asyncio.sleep(seconds)
                    task.cancel()
                    await asyncio.wait({task})
                    await eventually(lambda: all_back(queue), "the messages to be back")


@pytest.mark.real
@pytest.mark.slow
def test_interrupted_at_every_opcode(redis7: RedisServer, clock: SetClock) -> None:
    queue = filled(redis7.client(), clock)
    mine = queue_on(redis7.client(), clock)

    def call() -> None:
        mine.take("reader")
        # What has come to its caller is the caller's.
        redis7.client().eval(
            "for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do"
            " redis.call('ZADD', KEYS[2], 0, id) redis.call('ZREM', KEYS[1], id)"
            " redis.call('HDEL', KEYS[3], id) end",
            3,
            *(mine_names.leased, mine_names.waiting, mine_names.history),
        )

    shards: Any = queue.time_shards
    mine_names = shards.names(queue.rotation.consuming(queue.now_ms()))
    # What is read once, at first, is reached no more.
    call()
    every_opcode(call, lambda: all_back(queue))


@pytest.mark.real
@pytest.mark.slow
class TestAtRandom:
    # Python itself drops what is raised in a finalizer, redis-py's among them.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_signals_at_random_moments(self, redis7: RedisServer) -> None:
        signals_at_random_moments(redis7, "time shard queue")

    def test_greenlets_killed_at_random(self, redis7: RedisServer) -> None:
        greenlets_killed(redis7, "time shard queue")
