"""Leases of a TimeShardQueue: how they end, are given back, and what is taken in vain too often."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from support.servers import AnyServer
from support.set_clock import SetClock
from support.time_shard_queues import (
    TURN,
    ahead_of,
    everything,
    keeps_litter,
    queue_on,
    totals,
)
from workstealing.structures import TimeShardQueue

LEASE = 30.0
LATER_MS = 60_000
_LAYOUT = b"ws:time_shard_queue:layout"


@pytest.mark.every_store
class TestLeases:
    def test_a_taken_message_is_nobody_elses_until_its_lease_ends(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("hello")
        clock.go(TURN)
        before = datetime.now(UTC)
        taken = queue.take("dies", LEASE)
        assert taken is not None
        assert abs((taken.lease_end - before).total_seconds() - LEASE) < 25
        assert queue.take("other") is None
        nearly = ahead_of(queue, clock, int(LEASE * 1000) - 20_000)
        assert nearly.take("other") is None
        later = ahead_of(queue, clock, LATER_MS)
        again = later.take("other")
        assert again is not None
        assert (again.id, again.message, again.attempts) == (taken.id, b"hello", 2)
        assert again.token != taken.token
        assert again.due == taken.due

    def test_what_waits_comes_before_what_was_taken_in_vain(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("in vain", due=1.0)
        clock.go(TURN)
        assert queue.take("dies", LEASE) is not None
        clock.go(-TURN)
        queue.put("fresh", due=2.0)
        clock.go(TURN)
        later = ahead_of(queue, clock, LATER_MS)
        assert [each.message for each in later.take_many("other", 5)] == [b"fresh", b"in vain"]

    def test_an_acknowledged_message_never_comes_again(
        self, any_server: AnyServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        for number in range(50):
            queue.put(str(number))
        clock.go(TURN)
        taken = queue.take_many("reader", 50, LEASE)
        assert queue.ack(*taken[:20]) == 20
        assert queue.ack(*(each.id for each in taken[10:50])) == 30
        assert queue.ack(taken[0], taken[0].id, "0-abc") == 0
        assert totals(queue) == ({"leased": 50, "consumed": 50} if keeps_litter(any_server) else {})
        assert [each.total for each in queue.stats()] == [0] * 6
        later = ahead_of(queue, clock, LATER_MS)
        assert later.take("other") is None
        # On its way it has cleared them away.
        assert totals(queue) == {}

    def test_a_late_acknowledgement_wins_over_the_next_holder(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("hello")
        clock.go(TURN)
        slow = queue.take("slow", LEASE)
        later = ahead_of(queue, clock, LATER_MS)
        next_one = later.take("next", LEASE)
        assert slow is not None
        assert next_one is not None
        assert queue.ack(slow) == 1
        assert later.release(next_one) is False
        assert later.ack(next_one) == 0
        much_later = ahead_of(queue, clock, 2 * LATER_MS)
        assert much_later.take("third") is None

    def test_delete_wins_over_whoever_has_it(self, queue: TimeShardQueue, clock: SetClock) -> None:
        message_id = queue.put("hello")
        clock.go(TURN)
        assert queue.take("reader", LEASE) is not None
        assert queue.cancel(message_id) is True
        assert queue.cancel(message_id) is False
        assert ahead_of(queue, clock, LATER_MS).take("other") is None


@pytest.mark.every_store
class TestReleases:
    def test_a_released_message_is_taken_again_at_once_and_its_attempt_forgotten(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("hello")
        clock.go(TURN)
        first = queue.take("one")
        assert first is not None
        assert queue.release(first) is True
        assert totals(queue) == {"waiting": 1, "due": 1}
        again = queue.take("two")
        assert again is not None
        assert (again.id, again.attempts) == (first.id, 1)
        assert again.due == first.due
        assert queue.take("three") is None

    def test_with_a_new_due_time(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("hello", due=1000.0)
        clock.go(TURN)
        taken = queue.take("one", LEASE)
        assert taken is not None
        assert queue.release(taken, due=timedelta(seconds=100)) is True
        assert queue.take("two") is None
        # Its lease would have ended; that it was released holds even so.
        assert ahead_of(queue, clock, LATER_MS).take("two") is None
        much_later = ahead_of(queue, clock, 2 * LATER_MS)
        again = much_later.take("two")
        assert again is not None
        assert again.attempts == 1
        assert abs(again.due.timestamp() - time.time() - 100) < 40

    def test_in_the_order_of_their_new_due_times(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        for number in range(40):
            queue.put(str(number))
        clock.go(TURN)
        for taken in queue.take_many("one", 40):
            assert queue.release(taken, due=1000.0 - int(taken.message))
        order = []
        while (again := queue.take("two")) is not None:
            order.append(int(again.message))
        assert order == list(range(39, -1, -1))

    def test_a_late_release_does_not_free_the_lease_of_the_next_holder(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        queue.put("hello")
        clock.go(TURN)
        slow = queue.take("slow", LEASE)
        assert slow is not None
        later = ahead_of(queue, clock, LATER_MS)
        assert later.take("next", LEASE) is not None
        assert queue.release(slow) is False
        assert later.take("third") is None

    def test_by_its_id_alone_whoever_has_it(self, queue: TimeShardQueue, clock: SetClock) -> None:
        message_id = queue.put("hello")
        assert queue.release(message_id) is False
        clock.go(TURN)
        assert queue.take("one") is not None
        assert queue.release(message_id) is True
        assert queue.take("two") is not None
        assert queue.release("0-abc") is False

    def test_releasing_twice_does_no_harm(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("hello")
        clock.go(TURN)
        taken = queue.take("one")
        assert taken is not None
        assert queue.release(taken, due=5.0)
        assert queue.release(taken, due=timedelta(hours=1))
        assert queue.take("two") is None
        assert queue.release(taken, due=5.0)
        again = queue.take("two")
        assert again is not None
        assert again.attempts == 1
        assert queue.take("three") is None


class TestStaleReleases:
    def test_a_release_that_is_overtaken_by_the_next_lease_is_void(
        self, any_server: AnyServer, clock: SetClock
    ) -> None:
        """Its entry stands when somebody else has the message: as a sweeper may bring about."""
        queue = queue_on(any_server, clock)
        queue.put("hello")
        clock.go(TURN)
        slow = queue.take("slow", LEASE)
        assert slow is not None
        later = ahead_of(queue, clock, LATER_MS)
        next_one = later.take("next", LEASE)
        assert next_one is not None
        released = queue.time_shards.names(0).released
        any_server.client().zadd(released, {f"{slow.token} {slow.id}": 1})
        assert later.take("third") is None
        assert any_server.client().zcard(released) == 0
        assert later.ack(next_one) == 1


@pytest.mark.every_store
class TestTheDead:
    def bury(self, queue: TimeShardQueue, clock: SetClock, number: int = 1) -> list[str]:
        """Put messages and let all their leases end; return their ids."""
        ids = [queue.put(f"poison {i}") for i in range(number)]
        clock.go(TURN)
        for attempt in range(queue.max_attempts):
            later = ahead_of(queue, clock, attempt * LATER_MS)
            assert [each.attempts for each in later.take_many("dies", 99, LEASE)] == (
                [attempt + 1] * number
            )
        last = ahead_of(queue, clock, queue.max_attempts * LATER_MS)
        assert last.take("other") is None
        return ids

    def test_what_is_taken_in_vain_too_often_is_set_aside(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        ids = self.bury(queue, clock, 3)
        dead = queue.dead()
        assert sorted(each.id for each in dead) == sorted(ids)
        assert {each.message for each in dead} == {b"poison 0", b"poison 1", b"poison 2"}
        assert {(each.attempts, each.consumer) for each in dead} == {(5, "dies")}
        assert abs(dead[0].since.timestamp() - time.time() - 5 * 60) < 40
        assert [each.since for each in dead] == sorted(each.since for each in dead)
        assert (len(queue.dead(2)), queue.dead(2).more) == (2, 1)
        assert (len(queue.dead(3)), queue.dead(3).more, dead.more) == (3, 0, 0)
        assert totals(queue) == {"dead": 3}

    def test_revived_it_waits_with_its_attempts_forgotten(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        (message_id,) = self.bury(queue, clock)
        assert queue.revive(message_id, "1-abc") == 1
        assert queue.revive(message_id) == 0
        assert queue.dead() == []
        taken = queue.take("reader")
        assert taken is not None
        assert (taken.id, taken.attempts) == (message_id, 1)
        assert queue.ack(taken) == 1

    def test_discarded_it_is_gone(
        self, any_server: AnyServer, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        (message_id,) = self.bury(queue, clock)
        assert queue.discard(message_id) == 1
        assert queue.discard(message_id) == 0
        assert queue.dead() == []
        assert totals(queue) == {}
        left = everything(any_server)
        if keeps_litter(any_server):
            left = {key.removesuffix(b":letters") for key in left}
            assert left == {queue.time_shards.names(0).mark.removesuffix(b":letters"), _LAYOUT}
        else:
            assert sorted(key[1:3] for key in left) == [(-1, -1), (0, -1)], "layout and mark"

    def test_a_dead_one_can_be_deleted_but_not_released(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        (message_id,) = self.bury(queue, clock)
        assert queue.release(message_id) is False
        assert queue.cancel(message_id) is True
        assert queue.dead() == []
        assert queue.revive(message_id) == 0
        assert queue.take("reader") is None

    def test_one_that_was_deleted_is_none_to_discard(
        self, queue: TimeShardQueue, clock: SetClock
    ) -> None:
        (message_id,) = self.bury(queue, clock)
        assert queue.ack(message_id) == 1
        assert queue.discard(message_id) == 0
        assert totals(queue) == {}

    def test_a_release_is_no_attempt(self, queue: TimeShardQueue, clock: SetClock) -> None:
        queue.put("hello")
        clock.go(TURN)
        for _ in range(8):
            taken = queue.take("one")
            assert taken is not None
            assert taken.attempts == 1
            assert queue.release(taken)
        assert queue.dead() == []


def test_a_take_waits(queue: TimeShardQueue, clock: SetClock) -> None:
    assert queue.put("hello")
    assert queue.take("one", block=0.01) is None
    clock.go(TURN)
    assert queue.take("one", block=60) is not None
