"""A lease whose consumer is interrupted, or whose reply is lost, is held by nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio

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
from workstealing.store.operations import Operation, drive
from workstealing.structures import AsyncShardedIck, ShardedIck
from workstealing.structures.sharded_ick.leasing import AskedLeases, Holder, look, taking
from workstealing.structures.sharded_ick.sharded import IckLease

SHARDS = 3
WAYS = ["lease", "lease_all", "resize"]
MINUTE_MS = 60_000


def sharded_on(client: Any, ahead_ms: int = 0) -> ShardedIck:
    made: ShardedIck = ShardedIck(client, "orders", clock_shift_ms=ahead_ms)
    return made


def begin(client: redis.Redis) -> ShardedIck:
    made: ShardedIck = ShardedIck(client, "orders", SHARDS)
    made.add({f"m{i}": float(i) for i in range(20)})
    return made


def free(sharded: ShardedIck) -> bool:
    layout, looks = drive(sharded.client, look(sharded.core))
    return all(not each.left_ms for each in looks) and not layout.moving_from


def tokens(sharded: ShardedIck) -> list[str]:
    return [each.lease_token for each in drive(sharded.client, look(sharded.core))[1]]


def take(client: Any, how: str) -> Any:
    sharded = sharded_on(client)
    if how == "lease":
        with sharded.lease("worker") as ick:
            return ick.lease_token
    if how == "lease_all":
        leases = sharded.lease_all("worker", 60)
        leases.release()
        return [each.lease_token for each in leases]
    return sharded.resize(4 if sharded.open() == SHARDS else SHARDS).done


async def take_async(client: Any, how: str) -> Any:
    sharded: AsyncShardedIck = AsyncShardedIck(client, "orders")
    if how == "lease":
        async with sharded.lease("worker") as ick:
            return ick.lease_token
    leases = await sharded.lease_all("worker", 60)
    await asyncio.shield(leases.release())
    return [each.lease_token for each in leases]


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as door:
        yield door


def asking(sharded: ShardedIck, asked: AskedLeases, shard: int = 0, **options: Any) -> Any:
    layout = drive(sharded.client, sharded.core.open())
    holder = Holder("worker", 60_000)
    steps = taking(sharded.core, layout, [shard], holder, asked, **options)
    return drive(sharded.client, steps)[0]


def one(operation: Operation) -> Any:
    return (yield operation)


@pytest.mark.contract
class TestNonces:
    def test_the_same_nonce_is_answered_by_the_same_lease(self, any_server: AnyServer) -> None:
        sharded, asked = begin(any_server.client()), AskedLeases()
        token = asking(sharded, asked)
        assert token
        assert asking(sharded, asked) == token
        assert asking(sharded, asked, take_over=True) == token
        assert asking(sharded, AskedLeases()) == ""
        assert asking(sharded, AskedLeases(), take_over=True) > token
        assert asking(sharded, asked) == ""

    def test_a_nonce_alone_releases(self, any_server: AnyServer) -> None:
        sharded, asked = begin(any_server.client()), AskedLeases()
        first = asking(sharded, asked)
        drive(sharded.client, asked.give_back(sharded.core))
        assert free(sharded)
        # It may still be under way.
        assert asking(sharded, asked) == ""
        assert free(sharded)
        other = AskedLeases()
        token = asking(sharded, other)
        assert int(token) > int(first)
        drive(sharded.client, asked.give_back(sharded.core))
        assert asking(sharded, other) == token

    def test_a_release_that_is_sent_again(self, any_server: AnyServer) -> None:
        sharded = begin(any_server.client())
        with sharded.lease("worker") as ick:
            assert ick.release() is True
            assert ick.release() is True
            # A lease that ran out was not released.
            with sharded_on(sharded.client).lease("late", lease=0.001) as late:
                time.sleep(0.01)
                assert late.release() is False
        everything = sharded.lease_all("another")
        assert ick.release() is False
        assert everything.release() == []

    def test_no_fencing_number_goes_back(self, any_server: AnyServer) -> None:
        """Whatever ended the lease before: a release, a nonce, its time, or a takeover."""
        sharded, last = begin(any_server.client()), 0
        for turn in range(12):
            mine, asked = sharded_on(sharded.client, turn * 2 * MINUTE_MS), AskedLeases()
            token = asking(mine, asked, take_over=turn % 4 == 0)
            assert int(token) > last
            last = int(token)
            if turn % 4 == 1:
                drive(sharded.client, asked.give_back(mine.core))
            elif turn % 4 == 2:
                names = mine.core.names(0)
                operation = Operation(
                    mine.core.script("sharded_ick/release"), (names.lease,), (token,)
                )
                assert drive(sharded.client, one(operation)) == 1

    def test_a_nonce_is_withdrawn_for_a_minute(self, any_server: AnyServer) -> None:
        sharded = begin(any_server.client())
        every = [AskedLeases() for _ in range(20)]
        for each in every:
            each.ick_shards.add(0)
            drive(sharded.client, each.give_back(sharded.core))
        # The last 16 of them.
        assert asking(sharded, every[4]) == ""
        assert asking(sharded, every[-1]) == ""
        kept = sharded.client.hget(sharded.core.names(0).lease, "withdrawn").split()
        assert len(kept) == 32
        later = sharded_on(sharded.client, MINUTE_MS + 1000)
        assert asking(later, every[-1])

    def test_a_lease_of_an_earlier_release_is_not_taken_for_a_grant(
        self, any_server: AnyServer
    ) -> None:
        sharded, asked = begin(any_server.client()), AskedLeases()
        token = asking(sharded, asked)
        # It grants without a nonce, and leaves that of the holder before.
        sharded.client.hset(sharded.core.names(0).lease, "token", int(token) + 1)
        assert asking(sharded, asked) == ""
        asked.ick_shards.add(0)
        drive(sharded.client, asked.give_back(sharded.core))
        assert not free(sharded)


@pytest.mark.real
class TestCutReplies:
    @pytest.mark.slow
    @pytest.mark.parametrize("how", WAYS)
    def test_a_free_lease_is_taken_all_the_same(
        self, redis7: RedisServer, door: FaultyServer, how: str
    ) -> None:
        sharded = begin(redis7.client())
        before, count = tokens(sharded), 0
        for answer in every_cut(door, lambda client: take(client, how)):
            assert answer, door.names()
            now = tokens(sharded)
            assert all(old <= new for old, new in zip(before, now, strict=False))
            assert free(sharded), door.names()
            before, count = now, count + 1
        assert count > 5

    @pytest.mark.parametrize("how", ["lease", "lease_all"])
    async def test_on_an_asyncio_client(
        self, redis7: RedisServer, door: FaultyServer, how: str
    ) -> None:
        sharded = begin(redis7.client())
        async for answer in every_async_cut(door, lambda client: take_async(client, how)):
            assert answer, door.names()
            assert free(sharded), door.names()

    @pytest.mark.parametrize("how", ["lease", "lease_all"])
    def test_without_retries_the_leases_are_given_back(
        self, redis7: RedisServer, door: FaultyServer, how: str
    ) -> None:
        direct = redis7.client()
        sharded, failed = begin(direct), 0
        for answer in every_cut(
            door, lambda client: taken_for_good(client, how, direct), retries=False
        ):
            failed += isinstance(answer, redis.ConnectionError)
            assert free(sharded), door.names()
        assert failed > 3


def taken_for_good(client: Any, how: str, direct: redis.Redis) -> Any:
    """Take leases as `take` does, but release them by a client that nothing is cut off from."""
    if how == "lease":
        return take(client, how)
    leases = sharded_on(client).lease_all("worker", 60)
    leases.client = direct
    return leases.release() == []


@pytest.mark.real
class TestCancelled:
    async def test_at_every_await(self, redis7: RedisServer) -> None:
        sharded = begin(redis7.client())
        await every_cancel(
            redis7, lambda client: take_async(client, "lease"), lambda: free(sharded), least=5
        )

    async def test_lease_all_at_every_await(self, redis7: RedisServer) -> None:
        sharded = begin(redis7.client())
        await every_cancel(
            redis7, lambda client: take_async(client, "lease_all"), lambda: free(sharded), least=5
        )

    async def test_while_the_request_is_under_way(self, redis7: RedisServer) -> None:
        sharded = begin(redis7.client())
        with DelayingRelay(redis7.port) as relay:
            async with redis_asyncio.Redis(port=relay.port) as client:
                mine: AsyncShardedIck = AsyncShardedIck(client, "orders")
                await mine.stats()
                relay.seconds = 0.1
                for seconds in (0.02, 0.12, 0.18, 0.22):
                    task = asyncio.ensure_future(take_async(client, "lease"))
                    await asyncio.sleep(seconds)
                    task.cancel()
                    await asyncio.wait({task})
                    await eventually(lambda: free(sharded), "the leases to be free")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("how", ["lease", "lease_all"])
def test_interrupted_at_every_opcode(redis7: RedisServer, how: str) -> None:
    sharded, client = begin(redis7.client()), redis7.client()
    mine = sharded_on(client)
    mine.open()

    def call() -> None:
        if how == "lease":
            with mine.lease("worker"):
                pass
        else:
            mine.lease_all("worker")
            # As others see it, which are not interrupted.
            for shard in range(SHARDS):
                client.hdel(sharded.core.names(shard).lease, "deadline")

    # No `try` can begin before its function does: then the lease ends by itself.
    every_opcode(call, lambda: free(sharded), [(IckLease.__exit__.__code__, 2)])


@pytest.mark.real
def test_a_consumer_whose_layout_is_outdated_keeps_no_lease(redis7: RedisServer) -> None:
    """It was granted a lease under a cut-off reply; then a resize began, and it asks again."""
    sharded, asked = begin(redis7.client()), AskedLeases()
    layout = drive(sharded.client, sharded.core.open())
    steps = taking(sharded.core, layout, [0], Holder("worker", 60_000), asked)
    assert drive(sharded.client, steps)[0]
    other = sharded_on(redis7.client())
    assert other.resize(4).leased == 1
    steps = taking(sharded.core, layout, [0], Holder("worker", 60_000), asked)
    assert drive(sharded.client, steps) == [None]
    while not other.resize(4).done:
        pass
    assert len(other.lease_all("another")) == 4


@pytest.mark.real
@pytest.mark.slow
class TestAtRandom:
    # Python itself drops what is raised in a finalizer, redis-py's among them.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_signals_at_random_moments(self, redis7: RedisServer) -> None:
        signals_at_random_moments(redis7, "sharded ick")

    def test_greenlets_killed_at_random(self, redis7: RedisServer) -> None:
        greenlets_killed(redis7, "sharded ick")
