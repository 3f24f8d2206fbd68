"""Who may read and write a queue: other releases, other programs, and users of few rights."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.set_clock import SetClock
from support.time_shard_queues import TURN, everything, queue_on, totals
from workstealing.errors import LayoutError
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.structures import RedisStore, TimeShardQueue

LAYOUT = "ws:time_shard_queue:layout:letters"


def upgrade(client: Any, queue: TimeShardQueue, *, writable_from: int) -> None:
    """Write layout and marks as a newer release might, whose layout this one may read."""
    client.hset(LAYOUT, mapping={"version": 2, "readable_from": 1, "writable_from": writable_from})
    shards: Any = queue.time_shards
    for number in range(queue.rotation.time_shards):
        mark = shards.names(number).mark
        if client.exists(mark):
            client.set(mark, f"2:{queue.rotation.time_shards}:{queue.rotation.period_ms}")


class TestANewerLayout:
    """As in the middle of a rolling upgrade."""

    def test_one_that_may_be_read_is_read_and_not_written(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        old = queue_on(any_server, clock)
        message_id = old.put("hello")
        upgrade(any_server.client(), old, writable_from=2)
        before = everything(any_server)
        queue = queue_on(any_server, clock)
        clock.go(TURN)
        assert totals(queue) == {"waiting": 1, "due": 1}
        assert queue.dead() == []
        for call in (
            *(lambda: queue.put("x"), lambda: queue.take("c"), lambda: queue.ack(message_id)),
            *(lambda: queue.cancel(message_id), lambda: queue.release(message_id), queue.open),
            *(lambda: queue.revive(message_id), lambda: queue.discard(message_id), queue.delete),
        ):
            with pytest.raises(LayoutError, match="may read but not write: upgrade workstealing"):
                call()
        assert everything(any_server) == before

    def test_no_sweeper_writes_it(self, any_server: AnyServer, clock: SetClock) -> None:
        queue = queue_on(any_server, clock)
        queue.put("hello")
        upgrade(any_server.client(), queue, writable_from=2)
        before = everything(any_server)
        queue = queue_on(any_server, clock)
        job = TimeShardSweeper(queue)
        assert totals(queue) == {"waiting": 1, "due": 1}
        with pytest.raises(LayoutError, match="may read but not write"):
            job.sweeping.sweep(0, limit=5, max_attempts=1, slice=Slice(5, 5.0), random=lambda: 0.5)
        assert everything(any_server) == before

    def test_one_that_may_be_written_is_used(self, any_server: AnyServer, clock: SetClock) -> None:
        queue_on(any_server, clock).put("hello")
        upgrade(any_server.client(), queue_on(any_server, clock), writable_from=1)
        queue = queue_on(any_server, clock)
        queue.put("of the older release")
        clock.go(TURN)
        taken = queue.take_many("worker", 5)
        assert len(taken) == 2
        assert queue.ack(*taken) == 2
        clock.go(60)
        assert queue.delete() == 0
        assert everything(any_server) == {}

    def test_one_that_only_newer_releases_read_is_refused(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        queue_on(any_server, clock).put("hello")
        any_server.client().hset(LAYOUT, mapping={"version": 3, "readable_from": 2})
        queue = queue_on(any_server, clock)
        for call in (queue.stats, queue.dead, queue.delete, lambda: queue.take("c")):
            with pytest.raises(LayoutError, match=r"version 3, which this release .* cannot read"):
                call()


@pytest.mark.real
class TestAUserOfFewRights:
    """A refusal by an ACL is not taken for a foreign key."""

    @pytest.mark.parametrize("command", ["hmget", "get", "hgetall"])
    def test_it_is_told_of_its_rights(
        self, redis7: RedisServer, clock: SetClock, command: str
    ) -> None:
        queue_on(redis7, clock).put("hello")
        before = everything(redis7)
        admin = redis7.client()
        admin.execute_command(
            *("ACL", "SETUSER", "few", "reset", "on", ">pw", "~*", "+@all", f"-{command}")
        )
        try:
            client = redis.Redis.from_url(redis7.url, username="few", password="pw")
            queue = TimeShardQueue(RedisStore(client), "letters", 6, 60, clock=clock)
            with pytest.raises(
                redis.ResponseError, match="executing the script can't run"
            ) as refused:
                queue.delete()
            assert not isinstance(refused.value, LayoutError)
        finally:
            admin.execute_command("ACL", "DELUSER", "few")
        # A delete that was cut off says so in the layout; it has removed nothing.
        assert set(everything(redis7)) == set(before)

    def test_a_key_of_another_type_is_foreign(self, redis7: RedisServer, clock: SetClock) -> None:
        queue_on(redis7, clock).put("hello")
        redis7.client().delete(LAYOUT)
        redis7.client().rpush(LAYOUT, "theirs")
        with pytest.raises(LayoutError, match="does not hold a layout"):
            queue_on(redis7, clock).delete()
