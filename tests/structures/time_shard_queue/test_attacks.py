"""What was tried to break a TimeShardQueue with, and did: each of these failed once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from redis.exceptions import ClusterDownError, SlotNotCoveredError

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.set_clock import SetClock
from support.time_shard_queues import TURN, ahead_of, everything, queue_on, totals
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.structures import AsyncRedisStore, AsyncTimeShardQueue, RedisStore, TimeShardQueue

LEASE = 30.0
LATER_MS = 60_000
LAYOUT = b"ws:time_shard_queue:layout:letters"
HUGE = 10**400


class TestArguments:
    def test_numbers_that_no_float_holds(self, any_server: AnyServer, clock: SetClock) -> None:
        queue = queue_on(any_server, clock)
        for call in (
            lambda: queue.put("x", due=HUGE),
            lambda: queue.put("x", due=-HUGE),
            lambda: queue.take("c", HUGE),
            lambda: queue.take_many("c", HUGE),
            lambda: TimeShardQueue(queue.store, "x", 6, HUGE),
            lambda: TimeShardQueue(queue.store, "x", HUGE, 60),
        ):
            with pytest.raises(ConfigurationError):
                call()
        assert everything(any_server) == {}

    def test_a_consumer_that_is_no_text_of_utf_8(self, queue: TimeShardQueue) -> None:
        with pytest.raises(ConfigurationError, match="consumer="):
            queue.take("\ud800")

    def test_a_name_that_is_no_text_of_utf_8(self, any_server: AnyServer) -> None:
        with pytest.raises(ConfigurationError, match="name"):
            TimeShardQueue(RedisStore(any_server.client()), "\ud800")

    def test_a_client_with_an_encoding_of_its_own(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = queue_on(any_server, clock, encoding="latin-1", decode_responses=True)
        queue.max_attempts = 1
        message_id = queue.put("\u2603")
        clock.go(TURN)
        (taken,) = queue.take_many("\u2603", 5, LEASE)
        assert taken.message.decode() == "\u2603"
        later = ahead_of(queue, clock, LATER_MS)
        later.max_attempts = 1
        assert later.take("other") is None
        (dead,) = queue.dead()
        assert (dead.id, dead.consumer) == (message_id, "\u2603")


class TestAfterAFlush:
    def test_the_next_put_writes_the_layout_down_again(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        """Or a process with another number of time shards would share the name unnoticed."""
        queue = queue_on(any_server, clock)
        queue.put("before")
        any_server.wipe()
        queue.put("after")
        assert LAYOUT in everything(any_server)
        other = queue_on(any_server, clock, shards=4)
        clock.go(60)
        with pytest.raises(ConfigurationError, match="give shards=6"):
            other.put("x")

    def test_a_process_from_before_it_is_told_what_the_queue_is_like_now(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = queue_on(any_server, clock)
        queue.put("before")
        any_server.wipe()
        other = queue_on(any_server, clock, shards=4)
        other.put("x")
        clock.go(60)
        before = everything(any_server)
        with pytest.raises(ConfigurationError, match="give shards=4"):
            queue.put("in a time shard that has no mark")
        assert everything(any_server) == before

    async def test_with_asyncio(self, any_server: AnyServer, clock: SetClock) -> None:
        async with any_server.async_client() as client:
            queue = AsyncTimeShardQueue(AsyncRedisStore(client), "letters", 6, 60, clock=clock)
            await queue.put("before")
            any_server.wipe()
            await queue.put("after")
            assert LAYOUT in everything(any_server)


class TestReleasesThatComeLate:
    def test_for_later_after_a_sweeper_has_returned_the_message(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        """It said True: then nobody takes the message before its new due time."""
        queue = queue_on(any_server, clock)
        queue.put("hello")
        clock.go(TURN)
        slow = queue.take("slow", LEASE)
        assert slow is not None
        later = ahead_of(queue, clock, LATER_MS)
        clock.go(TURN)
        assert TimeShardSweeper(later).perform(Slice(5, 5.0)) == 1
        assert queue.release(slow, due=timedelta(hours=1)) is True
        clock.go(-TURN)
        assert later.take("other") is None
        assert totals(later) == {"waiting": 1}
        much_later = ahead_of(queue, clock, 3_700_000)
        again = much_later.take("other")
        assert again is not None
        assert again.attempts == 2
        assert much_later.ack(again) == 1


class TestLitter:
    def test_much_that_was_deleted_costs_few_round_trips(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        queue = queue_on(redis7, clock)
        for number in range(1000):
            queue.cancel(queue.put(str(number), due=1000.0))
        last = queue.put("last", due=2000.0)
        clock.go(TURN)
        client = redis7.client()
        client.config_resetstat()
        taken = queue.take("reader")
        assert taken is not None
        assert taken.id == last
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] <= 6


class HostTimeout(Exception):
    """As a host raises it, of no kind that anybody here knows."""


class Failing:
    """A queue's time shards, of which some fail when something is taken of them."""

    def __init__(
        self,
        shards: Any,
        bad: set[int],
        error: Exception = redis.ConnectionError("its node is down"),  # noqa: B008
    ) -> None:
        self._shards, self._bad, self._error = shards, bad, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    def take(self, time_shard: int, *args: Any, **options: Any) -> Any:
        if time_shard not in self._bad:
            return self._shards.take(time_shard, *args, **options)
        return self._down()

    def _down(self) -> Any:
        raise self._error
        yield


class TestANodeThatIsDown:
    """Whoever drains all keeps what it was given by the others, so that it is not taken in vain."""

    def test_what_was_taken_before_is_not_lost(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = queue_on(any_server, clock)
        message_id = queue.put("hello")
        clock.go(TURN)
        queue.time_shards = Failing(queue.time_shards, {3})  # type: ignore[assignment]
        (taken,) = queue.take_many("reader", 10, drain_all=True)
        assert taken.id == message_id
        with pytest.raises(redis.ConnectionError):
            queue.take_many("reader", 10, drain_all=True)

    async def test_with_asyncio(self, redis7: RedisServer, clock: SetClock) -> None:
        async with redis7.async_client() as client:
            queue = AsyncTimeShardQueue(AsyncRedisStore(client), "letters", 6, 60, clock=clock)
            message_id = await queue.put("hello")
            clock.go(TURN)
            queue.time_shards = Failing(queue.time_shards, {3})  # type: ignore[assignment]
            (taken,) = await queue.take_many("reader", 10, drain_all=True)
            assert taken.id == message_id
            with pytest.raises(redis.ConnectionError):
                await queue.take_many("reader", 10, drain_all=True)

    @pytest.mark.parametrize("kind", [HostTimeout, TimeoutError])
    def test_who_is_out_of_time_is_told(
        self, redis7: RedisServer, clock: SetClock, kind: type[Exception]
    ) -> None:
        """A host's own time-out is none of the database's faults."""
        queue = queue_on(redis7, clock)
        queue.put("hello")
        clock.go(TURN)
        shards = queue.time_shards
        real = shards.take

        def take(time_shard: int, *args: Any, **options: Any) -> Any:
            if time_shard == 3:
                raise kind
            return real(time_shard, *args, **options)

        shards.take = take  # type: ignore[method-assign]
        with pytest.raises(kind):
            queue.take_many("reader", 10, drain_all=True)

    @pytest.mark.parametrize("kind", [SlotNotCoveredError, ClusterDownError])
    def test_what_a_cluster_says_that_has_lost_a_master(
        self, redis7: RedisServer, clock: SetClock, kind: type[Exception]
    ) -> None:
        queue = queue_on(redis7, clock)
        message_id = queue.put("hello")
        clock.go(TURN)
        queue.time_shards = Failing(queue.time_shards, {3}, kind("slot 17"))  # type: ignore[assignment]
        (taken,) = queue.take_many("reader", 10, drain_all=True)
        assert taken.id == message_id


def test_a_backlog_of_foreign_keys_says_so(any_server: AnyServer, clock: SetClock) -> None:
    queue = queue_on(any_server, clock)
    queue.put("hello")
    any_server.client().set(queue.time_shards.names(2).leased, "somebody else's")
    with pytest.raises(LayoutError, match="time_shard:leased:2:letters"):
        TimeShardSweeper(queue).backlog()
