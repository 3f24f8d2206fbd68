"""A TimeShardQueue that is removed as a whole, whoever dies or comes between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import OutOfMemoryError

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.servers import AnyServer, RedisServer
from support.set_clock import START, SetClock
from support.time_shard_queues import TURN, ahead_of, everything, queue_on
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.structures import AsyncRedisStore, AsyncTimeShardQueue, RedisStore, TimeShardQueue

LAYOUT = b"ws:time_shard_queue:layout:letters"
LEASE = 30.0


def fill(queue: TimeShardQueue, clock: Any) -> int:
    """Leave something of each kind; return how many messages are not consumed."""
    clock.now = START
    for number in range(6):
        queue.put(str(number), due=1000.0 + number)
    clock.go(TURN)
    _dies, acked, released = queue.take_many("reader", 3, LEASE)
    queue.ack(acked)
    queue.release(released)
    later = ahead_of(queue, clock, 60_000)
    later.max_attempts = 1
    later.take_many("reader", 10, LEASE)
    even_later = ahead_of(queue, clock, 120_000)
    even_later.max_attempts = 1
    assert even_later.take("reader") is None
    assert len(queue.dead()) == 5
    assert len(queue.take_many("reader", 1, LEASE)) == 0
    clock.now = START
    queue.put("waits")
    clock.go(60)
    queue.put("elsewhere")
    queue.cancel(queue.put("deleted"))
    return 7


class TestDropping:
    def test_nothing_is_left_and_the_name_can_be_used_anew(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = queue_on(any_server, clock)
        held = fill(queue, clock)
        # Another queue's name that looks alike stays as it is.
        queue_on(any_server, clock, name="letters2").put("hello")
        other = {key for key in everything(any_server) if key.endswith(b"letters2")}
        assert queue.delete() == held
        assert set(everything(any_server)) == other
        assert queue.delete() == 0
        anew = queue_on(any_server, clock, shards=4)
        message_id = anew.put("hello")
        clock.go(TURN)
        taken = anew.take("reader")
        assert taken is not None
        assert taken.id == message_id

    def test_the_same_queue_can_be_used_anew(self, any_server: AnyServer, clock: SetClock) -> None:
        queue = queue_on(any_server, clock)
        queue.put("hello")
        assert queue.delete() == 1
        queue.put("again")
        assert LAYOUT in everything(any_server)
        assert [each.waiting for each in queue.stats()] == [1, 0, 0, 0, 0, 0]

    def test_a_process_from_before_it_cannot_put_into_a_queue_of_another_kind(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        old = queue_on(any_server, clock)
        old.put("hello")
        queue_on(any_server, clock).delete()
        queue_on(any_server, clock, shards=4).put("hello")
        clock.go(60)
        before = everything(any_server)
        with pytest.raises(ConfigurationError, match="give shards=4"):
            old.put("hello")
        assert everything(any_server) == before

    def test_with_another_number_of_time_shards_nothing_is_removed(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue_on(any_server, clock).put("hello")
        before = everything(any_server)
        with pytest.raises(ConfigurationError, match="give shards=6"):
            queue_on(any_server, clock, shards=16).delete()
        assert everything(any_server) == before

    @pytest.mark.parametrize("kind", ["text", "other"])
    def test_a_foreign_layout_is_left_alone(
        self, any_server: AnyServer, clock: SetClock, kind: str
    ) -> None:
        client = any_server.client()
        if kind == "text":
            client.set(LAYOUT, "mine")
        else:
            client.hset(LAYOUT, "structure", "mine")
        before = everything(any_server)
        with pytest.raises(LayoutError, match="layout"):
            queue_on(any_server, clock).delete()
        assert everything(any_server) == before

    def test_a_foreign_key_in_a_parts_place_is_left_alone(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue = queue_on(any_server, clock)
        queue.put("hello")
        client = any_server.client()
        theirs = queue.time_shards.names(0).released
        client.set(theirs, "mine")
        with pytest.raises(LayoutError, match="time_shard:released:0:letters"):
            queue.delete()
        assert client.get(theirs) == b"mine"
        client.delete(theirs)
        assert queue.delete() == 1
        assert everything(any_server) == {}

    async def test_with_asyncio(self, any_server: AnyServer, clock: SetClock) -> None:
        async with any_server.async_client() as client:
            queue = AsyncTimeShardQueue(AsyncRedisStore(client), "letters", 6, 60, clock=clock)
            await queue.put("hello")
            assert await queue.delete() == 1
            assert everything(any_server) == {}


@pytest.mark.real
class TestWhoeverComesBetween:
    def cut(self, queue: TimeShardQueue, at: int) -> None:
        """Delete a queue until so many time shards are gone."""
        shards: Any = queue.time_shards
        real = shards._operation
        deleted: list[str] = []

        def make(script: str, *parts: Any) -> Any:
            if script == "delete":
                if len(deleted) == at:
                    raise redis.ConnectionError("cut")
                deleted.append("one")
            return real(script, *parts)

        shards._operation = make
        with pytest.raises(redis.ConnectionError):
            queue.delete()
        shards._operation = real

    def test_while_it_is_being_deleted_nobody_opens_it_nor_fills_what_is_gone(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        user = queue_on(redis7, clock)
        user.put("hello")
        clock.go(60)
        user.put("hello")
        deleter = queue_on(redis7, clock)
        self.cut(deleter, 1)
        before = everything(redis7)
        clock.go(-60)
        with pytest.raises(LayoutError, match=r"being deleted.*call delete\(\) once more"):
            user.put("in the time shard that is gone")
        for call in (lambda: queue_on(redis7, clock).put("x"), deleter.stats):
            with pytest.raises(LayoutError, match="being deleted"):
                call()
        assert everything(redis7) == before
        assert queue_on(redis7, clock).delete() == 1
        assert everything(redis7) == {}

    def test_who_is_late_does_not_remove_the_layout_of_the_next_queue(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        queue = queue_on(redis7, clock)
        queue.put("hello")
        shards: Any = queue.time_shards
        real = shards._delete_layout

        def make(*, is_empty: bool) -> Any:
            if is_empty:
                queue_on(redis7, clock).delete()
                queue_on(redis7, clock).put("of the next queue")
            return real(is_empty=is_empty)

        shards._delete_layout = make
        assert queue.delete() == 1
        assert queue_on(redis7, clock).stats()[0].waiting == 1
        assert LAYOUT in everything(redis7)

    @pytest.mark.slow
    def test_a_process_that_dies_at_any_command(self, redis7: RedisServer) -> None:
        """What it leaves is found by the next call, whatever was left."""
        direct = redis7.client()
        clock = SetClock()

        def prepare() -> None:
            direct.flushall()
            fill(queue_on(redis7, clock), clock)

        deaths = 0
        with FaultyServer(redis7.port) as door:

            def work() -> None:
                client = redis.Redis(port=door.port, protocol=2)
                queue: TimeShardQueue = TimeShardQueue(
                    RedisStore(client), "letters", 6, 60, clock=clock
                )
                queue.delete()

            for _ in every_death([door], work, prepare):
                left = everything(redis7)
                if left:
                    assert LAYOUT in left, "nobody knows how many time shards to look for"
                queue_on(redis7, clock).delete()
                assert everything(redis7) == {}
                deaths += 1
        assert deaths > 2 * 8

    def test_a_full_server_can_be_relieved(
        self, start_redis: Callable[..., RedisServer], clock: SetClock
    ) -> None:
        server = start_redis(7, maxmemory_policy="noeviction")
        queue = queue_on(server, clock)
        fill(queue, clock)
        server.client().config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            queue.put("more")
        assert queue.delete() == 7
        assert everything(server) == {}

    @pytest.mark.slow
    def test_a_large_one_holds_nobody_up(
        self, start_redis: Callable[..., RedisServer], clock: SetClock
    ) -> None:
        server = start_redis(7)
        queue = queue_on(server, clock)
        queue.put("hello")
        client, names = server.client(), queue.time_shards.names(0)
        for first in range(0, 300_000, 10_000):
            ids = [f"0-{number:x}" for number in range(first, first + 10_000)]
            client.zadd(names.waiting, dict.fromkeys(ids, 1))
            client.hset(names.messages, mapping=dict.fromkeys(ids, "m" * 20))
        client.config_resetstat()
        assert queue.delete() == 300_001
        # Its memory is freed in the background: freeing it here takes 100 ms.
        assert client.info("commandstats")["cmdstat_unlink"]["usec_per_call"] < 2_000
        assert everything(server) == {}
