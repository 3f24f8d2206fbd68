"""The sweeper on Cassandra: what it returns, sets aside and leaves, and what nodes bring back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.cassandra import KEYSPACE, CassandraServer
from support.set_clock import SetClock
from support.time_shard_queues import TURN, ahead_of, queue_on, totals
from workstealing import Recruiter
from workstealing.errors import Aborted
from workstealing.jobs import TimeShardSweeper
from workstealing.jobs.time_shard_sweeper.cassandra_sweeping import BROUGHT_BACK
from workstealing.recruiting import Slice
from workstealing.structures import TimeShardQueue
from workstealing.structures.time_shard_queue.cassandra_rows import Query, RowBatch, id_of, row_of
from workstealing.structures.time_shard_queue.cassandra_store import (
    GC_GRACE_SECONDS,
    CassandraStore,
)
from workstealing.testing import RecordingHooks

pytestmark = pytest.mark.cassandra

LEASE, LATER_MS = 30.0, 60_000


@pytest.fixture
def clock() -> SetClock:
    """The time of day, which the test sets."""
    return SetClock()


def no_trace() -> float:
    return 0.5


def sweep(queue: TimeShardQueue, clock: SetClock, limit: int = 25, **options: Any) -> int:
    """Sweep the time shard that is read now, when nobody touches it; come back."""
    clock.go(TURN)
    try:
        options = {"random": no_trace, **options}
        return TimeShardSweeper(queue, limit, **options).perform(Slice(limit, 30.0))
    finally:
        clock.go(-TURN)


def taken(queue: TimeShardQueue, clock: SetClock, count: int) -> list[str]:
    ids = [queue.put(str(number), due=1000.0 + number) for number in range(count)]
    clock.go(TURN)
    assert len(queue.take_many("dies", count, LEASE)) == count
    return ids


class TestLeases:
    def test_one_that_holds_is_left(self, cassandra: CassandraServer, clock: SetClock) -> None:
        queue = queue_on(cassandra, clock)
        taken(queue, clock, 2)
        before = cassandra.rows()
        assert sweep(queue, clock) == 0
        assert cassandra.rows() == before

    def test_ended_ones_wait_again_and_poison_is_set_aside(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        ids = taken(queue, clock, 5)
        later = ahead_of(queue, clock, LATER_MS)
        found = TimeShardSweeper(later).backlog()
        assert (found.count, found.exact) == (5, True)
        assert 20 < (found.oldest_seconds or 0) < 60
        assert sweep(later, clock, dry_run=True) == 5
        assert totals(queue) == {"leased": 5}
        assert sweep(later, clock, limit=3) == 3
        assert totals(queue) == {"leased": 2, "waiting": 3, "due": 3}
        assert sweep(later, clock) == 2
        again = queue.take_many("again", 10, LEASE)
        assert [each.id for each in again] == ids
        assert {each.attempts for each in again} == {2}
        assert sweep(later, clock, max_attempts=2) == 5
        assert totals(queue) == {"dead": 5}
        assert sweep(later, clock) == 0

    def test_what_is_done_leaves_nothing(self, cassandra: CassandraServer, clock: SetClock) -> None:
        """A message that is deleted while a late taker changes it leaves columns and a place."""
        queue = queue_on(cassandra, clock)
        (message_id,) = taken(queue, clock, 1)
        row = row_of(message_id)
        assert row is not None
        # The message alone, with the timestamp of its put.
        cassandra.session.execute(
            f"DELETE live, message FROM {KEYSPACE}.{cassandra.table}"
            " WHERE name = %s AND shard = 0 AND kind = 0 AND due = %s AND id = %s",
            (b"letters", row[0], row[1]),
        )
        later = ahead_of(queue, clock, LATER_MS)
        assert later.take("other") is None
        assert sweep(later, clock) == 0
        assert totals(queue) == {}

    def test_whoever_comes_first_aborts_it(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        taken(queue, clock, 2)
        later = ahead_of(queue, clock, LATER_MS)

        class Interrupted(CassandraStore):
            def sender(self, end: float | None = None) -> Any:
                send = super().sender(end)

                def first(step: Any) -> Any:
                    if isinstance(step, RowBatch) and step.conditional:
                        assert later.take("quick", LEASE, drain_all=True) is not None
                    return send(step)

                return first

        store = Interrupted(cassandra.session, KEYSPACE, cassandra.table, clock_shift_ms=LATER_MS)
        slow = TimeShardQueue(store, "letters", 6, 60, clock=clock)
        with pytest.raises(Aborted):
            sweep(slow, clock)
        assert totals(later)["leased"] == 2


class TestWhatComesBack:
    """Nodes that were down for longer than gc_grace_seconds; see also test_nodes.py."""

    @pytest.fixture
    def queue(self, cassandra: CassandraServer, clock: SetClock) -> Iterator[TimeShardQueue]:
        """A queue whose first message was consumed a while ago."""
        alter = f"ALTER TABLE {KEYSPACE}.{cassandra.table} WITH gc_grace_seconds = "
        cassandra.session.execute(alter + "0")
        queue = queue_on(cassandra, clock)
        queue.put("consumed", due=1000.0)
        clock.go(TURN)
        queue.ack(*queue.take_many("reader", 5))
        time.sleep(0.01)
        yield queue
        cassandra.session.execute(alter + str(GC_GRACE_SECONDS))

    def back(self, cassandra: CassandraServer, stamp: int) -> str:
        """Let a message lie behind the head, as a node does that has missed what became of it."""
        row = row_of("0-" + "80000000000f423f" + "a976400010b911f2a0e17fa45154eb51")
        assert row is not None
        cassandra.store().run(one(Query("put", (b"letters", 0, *row, b"back", 999_999, stamp))))
        return id_of(0, row)

    def test_a_consumed_message_is_not_delivered_as_new(
        self, cassandra: CassandraServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        # Later than the tombstone of the first one, and before the head went on.
        message_id = self.back(cassandra, int((time.time() - 3600) * 1e6))
        assert queue.take_many("reader", 5) == []
        assert sweep(queue, clock) == 1
        assert queue.take_many("reader", 5) == []
        (dead,) = queue.dead()
        assert (dead.id, dead.message, dead.consumer) == (message_id, b"back", BROUGHT_BACK)
        assert queue.discard(message_id) == 1

    def test_one_that_came_late_waits_once_more(
        self, cassandra: CassandraServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        message_id = self.back(cassandra, int(time.time() * 1e6))
        assert sweep(queue, clock) == 1
        (late,) = queue.take_many("reader", 5)
        assert late.id == message_id

    def test_rows_are_read_some_a_slice_and_then_rest(
        self, cassandra: CassandraServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        for number in range(5):
            row = row_of("0-" + "80000000000f423f" + f"a976400{number}10b911f2a0e17fa45154eb51")
            assert row is not None
            put = Query("put", (b"letters", 0, *row, b"back", 1, 1_000_000))
            cassandra.store().run(one(put))
        assert [sweep(queue, clock, limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert len(queue.dead()) == 5


def one(step: Any) -> Any:
    return (yield step)


class TestTheJob:
    def test_a_recruiter_without_any_redis(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        taken(queue, clock, 3)
        later = ahead_of(queue, clock, LATER_MS)
        recruiter = Recruiter(seconds=30, random=lambda: 0.0)
        hooks = RecordingHooks()
        recruiter.add_hook(hooks)
        # Each look is traced, and the next slice reports it.
        recruiter.install(TimeShardSweeper(later, random=lambda: 0.0), rate=1.0)
        clock.go(TURN)
        for _ in range(3):
            recruiter.enlist()
        clock.go(-TURN)
        assert totals(queue) == {"waiting": 3, "due": 3}
        assert hooks.outcomes[0].items == 3
        ((job, what, value),) = hooks.measured
        assert (job, what) == ("time_shard_sweeper.letters", "tombstones")
        assert value >= 0

    def test_in_the_middle_of_its_turn_a_time_shard_is_asked_nothing(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        asked: list[int] = []

        class Listening(CassandraStore):
            def sender(self, end: float | None = None) -> Any:
                send = super().sender(end)

                def noted(step: Any) -> Any:
                    if isinstance(step, Query) and step.name != "now":
                        asked.append(step.args[1])
                    return send(step)

                return noted

        store = Listening(cassandra.session, KEYSPACE, cassandra.table)
        queue = TimeShardQueue(store, "letters", 6, 60, clock=clock)
        queue.put("hello")
        asked.clear()
        for _ in range(6):
            rotation, now_ms = queue.rotation, queue.now_ms()
            TimeShardSweeper(queue, random=no_trace).perform(Slice(5, 1.0))
            assert not {rotation.producing(now_ms), rotation.consuming(now_ms)} & set(asked)
            asked.clear()
            clock.go(60)
