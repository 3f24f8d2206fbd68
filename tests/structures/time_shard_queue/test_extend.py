"""Leases of a TimeShardQueue that are extended, whoever comes between."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.set_clock import SetClock
from support.time_shard_queues import (
    TURN,
    ahead_of,
    async_store_on,
    everything,
    keeps_litter,
    queue_on,
    totals,
)
from workstealing.errors import Aborted, ConfigurationError
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.structures import AsyncTimeShardQueue, Taken, TimeShardQueue
from workstealing.structures.time_shard_queue.cassandra_rows import row_of
from workstealing.structures.time_shard_queue.cassandra_store import CassandraStore

LEASE = 30.0
LATER_MS = 60_000


def take_one(queue: TimeShardQueue, clock: SetClock) -> Taken:
    """Put a message and take it at its turn."""
    queue.put("hello")
    clock.go(TURN)
    taken = queue.take("slow", LEASE)
    assert taken is not None
    return taken


def sweep(queue: TimeShardQueue, clock: SetClock, **options: Any) -> int:
    """Sweep the time shard that is read now, when nobody touches it; come back."""
    clock.go(TURN)
    try:
        return TimeShardSweeper(queue, **options).perform(Slice(5, 5.0))
    finally:
        clock.go(-TURN)


def end_of(queue: TimeShardQueue, taken: Taken) -> float:
    """Return when the lease ends by itself, as Unix seconds, once somebody has applied it."""
    if isinstance(queue.store, CassandraStore):
        (row,) = queue.store.run(
            queue.time_shards.rows_at(taken.time_shard, [row_of(taken.id)])
        ).values()
        return float(row.until) / 1000
    score = queue.store.client.zscore(queue.time_shards.names(taken.time_shard).leased, taken.id)
    return float(score) / 1000


@pytest.mark.every_store
class TestExtensions:
    def test_a_take_leaves_an_extended_lease_to_its_holder(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        taken = take_one(queue, clock)
        assert queue.extend(taken, 100.0) is True
        later = ahead_of(queue, clock, LATER_MS)
        assert later.take("other") is None
        assert abs(end_of(queue, taken) - time.time() - 100) < 40
        again = ahead_of(queue, clock, 2 * LATER_MS).take("other")
        assert again is not None
        assert (again.id, again.attempts) == (taken.id, 2)

    def test_so_does_a_sweeper(self, queue: TimeShardQueue, clock: SetClock) -> None:
        taken = take_one(queue, clock)
        assert queue.extend(taken, 100.0) is True
        later = ahead_of(queue, clock, LATER_MS)
        before = TimeShardSweeper(queue).sweeping.unswept([0])
        assert sweep(later, clock, dry_run=True, max_attempts=1) == 0
        assert TimeShardSweeper(queue).sweeping.unswept([0]) == before
        assert sweep(later, clock, max_attempts=1) == 0
        assert abs(end_of(queue, taken) - time.time() - 100) < 40
        assert later.take("other") is None
        assert sweep(ahead_of(queue, clock, 2 * LATER_MS), clock, max_attempts=1) == 1
        assert totals(queue) == {"dead": 1}

    def test_it_is_never_shortened(self, queue: TimeShardQueue, clock: SetClock) -> None:
        taken = take_one(queue, clock)
        assert queue.extend(taken, 100.0)
        assert queue.extend(taken, 0.001)
        assert ahead_of(queue, clock, LATER_MS).take("other") is None
        assert abs(end_of(queue, taken) - time.time() - 100) < 40

    def test_one_that_has_ended_holds_again_as_long_as_nobody_has_come(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        taken = take_one(queue, clock)
        later = ahead_of(queue, clock, LATER_MS)
        assert later.extend(taken, LEASE) is True
        assert later.take("other") is None

    def test_an_extension_is_no_attempt_and_ends_with_its_lease(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        taken = take_one(queue, clock)
        assert queue.extend(taken, 1000.0)
        assert queue.release(taken)
        again = queue.take("other", LEASE)
        assert again is not None
        assert again.attempts == 1
        # The first holder's extension is none of the second one's.
        third = ahead_of(queue, clock, LATER_MS).take("third")
        assert third is not None
        assert third.attempts == 2

    def test_whose_lease_holds_no_more_is_told(
        self, any_server: AnyServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        first = take_one(queue, clock)
        later = ahead_of(queue, clock, LATER_MS)
        second = later.take("second", LEASE)
        assert second is not None
        gone = second._replace(id="0-" + "ab" * 16)
        released = ahead_of(queue, clock, 2 * LATER_MS).take("third", LEASE)
        assert released is not None
        assert queue.release(released, due=timedelta(hours=1))
        before = everything(any_server)
        for lease in (first, second, gone, released):
            assert queue.extend(lease, LEASE) is False
        assert everything(any_server) == before

    def test_when_it_was_swept_acknowledged_or_set_aside(
        self, any_server: AnyServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        taken = take_one(queue, clock)
        later = ahead_of(queue, clock, LATER_MS)
        assert sweep(later, clock) == 1
        assert queue.extend(taken, LEASE) is False
        again = queue.take("again", LEASE)
        assert again is not None
        assert sweep(later, clock, max_attempts=1) == 1
        assert totals(queue) == {"dead": 1}
        assert queue.extend(again, LEASE) is False
        assert queue.revive(again.id) == 1
        last = queue.take("last", LEASE)
        assert last is not None
        assert queue.ack(last) == 1
        assert queue.extend(last, LEASE) is False
        assert sweep(queue, clock) == int(keeps_litter(any_server))
        assert queue.extend(last, LEASE) is False
        assert totals(queue) == {}

    @pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), 10**400, True, "1", None])
    def test_what_is_no_lease(self, queue: TimeShardQueue, clock: SetClock, lease: Any) -> None:
        taken = take_one(queue, clock)
        with pytest.raises(ConfigurationError, match="lease="):
            queue.extend(taken, lease)
        with pytest.raises(ConfigurationError, match="give the Taken"):
            queue.extend(taken.id, LEASE)  # type: ignore[arg-type]

    async def test_with_asyncio(self, any_server: AnyServer, clock: SetClock) -> None:
        async with async_store_on(any_server) as store:
            queue = AsyncTimeShardQueue(store, "letters", 6, 60, clock=clock)
            await queue.put("hello")
            clock.go(TURN)
            taken = await queue.take("slow", LEASE)
            assert taken is not None
            assert await queue.extend(taken, 100.0) is True
            await queue.ack(taken)
            assert await queue.extend(taken, 100.0) is False


@pytest.mark.real
class TestWhatTheSweeperWatches:
    @pytest.mark.parametrize("which", ["redis7", "redis8", "valkey8"])
    def test_a_real_watch_of_it_holds(
        self, request: pytest.FixtureRequest, clock: SetClock, which: str
    ) -> None:
        server: RedisServer = request.getfixturevalue(which)
        queue = queue_on(server, clock)
        taken = take_one(queue, clock)
        with server.client().pipeline() as pipeline:
            pipeline.watch(*queue.time_shards.names(0).watched)
            assert queue.extend(taken, 100.0)
            pipeline.multi()
            pipeline.ping()
            pipeline.execute()
        server.wipe()

    def test_one_that_comes_between_a_look_and_its_exec_wins(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        queue = queue_on(redis7, clock)
        taken = take_one(queue, clock)
        later = ahead_of(queue, clock, LATER_MS)
        came: list[bool] = []

        def between() -> float:
            if not came:
                came.append(later.extend(taken, 100.0))
            return 0.5

        assert sweep(later, clock, random=between, max_attempts=1) == 0
        assert came == [True]
        assert totals(later) == {"leased": 1}
        assert later.take("other") is None

    def test_a_take_that_applies_it_breaks_a_sweepers_watch(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        queue = queue_on(redis7, clock)
        taken = take_one(queue, clock)
        assert queue.extend(taken, 100.0)
        later = ahead_of(queue, clock, LATER_MS)

        def between() -> float:
            assert later.take_many("other", 5, drain_all=True) == []
            return 0.5

        with pytest.raises(Aborted):
            sweep(later, clock, random=between)

    def test_it_passes_on_a_full_server(
        self, start_redis: Callable[..., RedisServer], clock: SetClock
    ) -> None:
        server = start_redis(7, maxmemory_policy="noeviction")
        queue = queue_on(server, clock)
        taken = take_one(queue, clock)
        server.client().config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            queue.put("more")
        assert queue.extend(taken, 100.0) is True
        later = ahead_of(queue, clock, LATER_MS)
        assert later.take("other") is None
        assert sweep(later, clock) == 0
        assert later.take("other") is None
