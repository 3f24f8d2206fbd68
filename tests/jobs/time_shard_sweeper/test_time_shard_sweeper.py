"""TimeShardSweeper: what it returns, sets aside and clears away, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.time_shards import (
    Wall,
    assert_sound,
    end_leases,
    held,
    names_of,
    only_layout_is_left,
    queue_on,
)
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.recruiting.job import Backlog
from workstealing.structures.time_shard_queue import TimeShardQueue

pytestmark = pytest.mark.contract

SHARD = names_of()[0]
"""The time shard that is written at the start; it is read two periods later."""
SECONDS = 2.0


class Place:
    """A queue of 6 time shards, by a clock that is set so that time shard 0 has its turn."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.client = server.client()
        self.wall = Wall()
        self.queue: TimeShardQueue = queue_on(self.client, self.wall)
        self.start = self.wall.seconds

    def at_period(self, number: int) -> None:
        self.wall.seconds = self.start + 60 * number + 1

    def put(self, *messages: str, due: Any = 1.0) -> list[str]:
        self.at_period(0)
        return [self.queue.put(message, due) for message in messages]

    def take(self, n: int, lease: float = 600.0) -> list[Any]:
        self.at_period(2)
        return self.queue.take_many("consumer", n, lease)

    def lose(self, n: int) -> list[Any]:
        """Take messages whose leases then end."""
        taken = self.take(n)
        end_leases(self.client, SHARD)
        return taken

    def sweep(self, limit: int = 5, **options: Any) -> int:
        """Perform a slice in period 4, when time shard 0 is the untouched one."""
        self.at_period(4)
        job = TimeShardSweeper(self.queue, **options)
        done = job.perform(Slice(limit, SECONDS))
        assert_sound(self.client, SHARD)
        return done

    def held(self) -> dict[str, Any]:
        return held(self.client, SHARD)


@pytest.fixture
def place(any_server: AnyServer) -> Place:
    return Place(any_server)


@pytest.fixture
def real(redis7: RedisServer) -> Place:
    return Place(redis7)


class TestLeases:
    def test_one_that_holds_is_left(self, place: Place) -> None:
        place.put("a")
        (taken,) = place.take(1)
        assert place.sweep() == 0
        assert list(place.held()["leased"]) == [taken.id.encode()]

    def test_one_that_has_ended_waits_again_at_its_due_time(self, place: Place) -> None:
        place.put("a", due=5.0)
        (taken,) = place.lose(1)
        assert place.sweep() == 1
        assert place.held()["waiting"] == {taken.id.encode(): 5000.0}
        assert place.sweep() == 0
        (again,) = place.take(5)
        assert (again.id, again.attempts) == (taken.id, 2)

    def test_attempts_are_counted_and_poison_is_set_aside(self, place: Place) -> None:
        place.put("poison")
        for attempts in (1, 2, 3):
            (taken,) = place.lose(1)
            assert taken.attempts == attempts
            assert place.sweep(max_attempts=3) == 1
        assert place.take(1) == []
        assert list(place.held()["dead"]) == [taken.id.encode()]
        (dead,) = place.queue.dead()
        assert (dead.id, dead.attempts) == (taken.id, 3)
        assert place.queue.revive(taken.id) == 1
        (revived,) = place.lose(1)
        assert (revived.id, revived.attempts) == (taken.id, 1)
        assert place.sweep(max_attempts=3) == 1
        assert place.queue.dead() == []

    def test_the_cap_is_the_queues_own_unless_it_is_given(self, place: Place) -> None:
        assert TimeShardSweeper(place.queue).max_attempts == place.queue.max_attempts
        assert TimeShardSweeper(place.queue, max_attempts=7).max_attempts == 7

    def test_a_released_one_waits_until_what_its_holder_said(self, place: Place) -> None:
        place.put("a")
        (taken,) = place.lose(1)
        assert place.queue.release(taken, due=7.0)
        assert place.sweep() == 1
        found = place.held()
        assert found["waiting"] == {taken.id.encode(): 7000.0}
        assert (found["leased"], found["released"]) == ({}, {})
        (again,) = place.take(1)
        assert again.attempts == 1

    def test_a_release_is_applied_before_the_lease_has_ended(self, place: Place) -> None:
        place.put("a")
        (taken,) = place.take(1)
        place.queue.release(taken)
        assert place.sweep() == 1
        assert list(place.held()["waiting"]) == [taken.id.encode()]

    def test_a_void_release_is_cleared_away(self, place: Place) -> None:
        place.put("a")
        (first,) = place.lose(1)
        place.sweep()
        (second,) = place.take(1)
        place.client.zadd(SHARD.released, {f"{first.token} {first.id}": 9})
        assert place.sweep() == 1
        found = place.held()
        assert (found["released"], list(found["leased"])) == ({}, [second.id.encode()])

    def test_never_more_than_the_limit(self, place: Place) -> None:
        place.put(*"abcdefghijkl")
        place.lose(12)
        assert [place.sweep() for _ in range(4)] == [5, 5, 2, 0]
        assert len(place.held()["waiting"]) == 12


class TestConsumed:
    def test_what_was_acknowledged_goes_with_all_that_belongs_to_it(self, place: Place) -> None:
        place.put("a", "b")
        first, second = place.take(2)
        assert place.queue.ack(first) == 1
        assert place.sweep() == 1
        assert list(place.held()["messages"]) == [second.id.encode()]
        place.queue.ack(second)
        assert place.sweep() == 1
        only_layout_is_left(nodes(place.server))

    def test_an_acknowledged_one_whose_lease_has_ended_is_not_returned(self, place: Place) -> None:
        place.put("a")
        place.queue.ack(*place.lose(1))
        assert place.sweep() == 1
        only_layout_is_left(nodes(place.server))

    def test_wherever_a_deleted_one_is(self, place: Place) -> None:
        place.put("waits", "works", "is released", "dies", "died")
        place.lose(1)
        place.sweep(max_attempts=1)
        place.put("has ended")
        place.lose(1)
        _, released = place.take(2)
        place.queue.release(released)
        for id_ in list(place.held()["messages"]):
            assert place.queue.cancel(id_.decode())
        while place.sweep():
            pass
        only_layout_is_left(nodes(place.server))

    def test_an_id_of_no_message(self, place: Place) -> None:
        """A server that came back from an older copy of its data may have one."""
        place.put("a")
        place.client.sadd(SHARD.consumed, "0-of-nothing")
        assert place.sweep() == 1
        assert place.held()["consumed"] == set()

    def test_never_more_than_the_limit(self, place: Place) -> None:
        place.put(*"abcdefghijkl")
        place.queue.ack(*place.take(12))
        assert [place.sweep() for _ in range(4)] == [5, 5, 2, 0]
        only_layout_is_left(nodes(place.server))

    def test_leases_come_before_what_only_takes_room(self, place: Place) -> None:
        place.put(*"abcdefghijkl")
        taken = place.take(12)
        place.queue.ack(*taken[2:])
        place.client.zadd(SHARD.leased, {one.id: 1 for one in taken[:2]})
        assert place.sweep(limit=2) == 2
        assert set(place.held()["waiting"]) == {one.id.encode() for one in taken[:2]}


def nodes(server: Any) -> list[redis.Redis]:
    return [node.client() for node in getattr(server, "nodes", [server])]


class TestTheJob:
    def test_a_dry_run_changes_nothing(self, place: Place) -> None:
        place.put(*"abcdefgh")
        taken = place.lose(8)
        place.queue.ack(*taken[:3])
        place.queue.release(taken[4])
        before = place.held()
        assert place.sweep(limit=4, dry_run=True) == 4
        assert place.sweep(limit=50, dry_run=True) == 8
        store = TimeShardSweeper(place.queue).sweeping
        options: Any = {"limit": 50, "random": lambda: 0.5, "dry_run": True}
        swept = [
            store.sweep(0, max_attempts=most, slice=Slice(50, SECONDS), **options)
            for most in (1, 2)
        ]
        assert [(one.returned, one.buried, one.cleared) for one in swept] == [(1, 4, 3), (5, 0, 3)]
        assert place.held() == before

    def test_its_backlog(self, place: Place) -> None:
        job = TimeShardSweeper(place.queue)
        assert job.backlog() == Backlog(0, 0.0, "messages to sweep")
        place.put(*"abcde")
        taken = place.lose(3)
        place.queue.ack(*taken[:2])
        every = range(place.queue.rotation.time_shards)
        unswept = job.sweeping.unswept(every)
        assert (sum(each.ended for each in unswept), sum(each.consumed for each in unswept)) == (
            3,
            2,
        )
        backlog = job.backlog()
        assert (backlog.count, backlog.exact) == (5, True)
        assert backlog.oldest_seconds is not None
        assert backlog.oldest_seconds > 1e9

    def test_nobody_knows_how_long_a_consumed_message_has_waited(self, place: Place) -> None:
        ids = place.put(*"ab")
        place.queue.ack(*ids)
        assert TimeShardSweeper(place.queue).backlog() == Backlog(2, None, "messages to sweep")

    def test_what_it_observes(self, place: Place) -> None:
        place.put(*"abcde")
        place.queue.ack(place.lose(3)[0])
        place.at_period(4)
        slice = Slice(5, SECONDS)
        TimeShardSweeper(place.queue).perform(slice)
        assert slice.backlog == 4
        assert slice.oldest_seconds is not None
        assert slice.oldest_seconds > 1e9
        assert slice.operations > 0
        slice = Slice(5, SECONDS)
        TimeShardSweeper(place.queue).perform(slice)
        assert (slice.backlog, slice.oldest_seconds) == (0, 0.0)

    def test_its_name_and_dependency(self, place: Place) -> None:
        job = TimeShardSweeper(place.queue)
        assert job.name == "time_shard_sweeper.queue"
        assert job.dependency == job.sweeping.identity
        assert TimeShardSweeper(place.queue, name="mine").name == "mine"

    @pytest.mark.parametrize("most", [0, -1, 1.5, True, "5"])
    def test_a_number_of_attempts_that_is_none(self, place: Place, most: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"max_attempts is .*expected a number"):
            TimeShardSweeper(place.queue, max_attempts=most)

    @pytest.mark.parametrize("what", [None, "queue", object()])
    def test_what_is_no_queue(self, what: Any) -> None:
        with pytest.raises(ConfigurationError, match="cannot be swept: give a TimeShardQueue"):
            TimeShardSweeper(what)

    def test_a_foreign_mark_is_refused_and_nothing_changed(self, place: Place) -> None:
        place.put("a")
        place.queue.ack(*place.take(1))
        place.client.set(SHARD.mark, "1:7:60000")
        before = place.held()
        with pytest.raises(LayoutError, match="says 1:7:60000"):
            place.sweep()
        assert place.held() == before

    def test_a_foreign_key_is_refused(self, place: Place) -> None:
        place.put("a")
        place.client.set(SHARD.leased, "somebody else's")
        place.at_period(4)
        with pytest.raises(LayoutError, match="nothing was changed"):
            TimeShardSweeper(place.queue).perform(Slice(5, SECONDS))


@pytest.mark.real
class TestRaces:
    """Somebody comes between the read of an attempt and its EXEC."""

    @pytest.mark.parametrize("how", ["ack", "cancel"])
    def test_a_late_acknowledgement_wins(self, real: Place, how: str) -> None:
        real.put("a")
        (taken,) = real.lose(1)

        def between() -> float:
            assert getattr(real.queue, how)(taken.id) == 1
            return 0.5

        assert real.sweep(random=once(between)) == 1
        assert real.take(1) == []
        real.sweep()
        only_layout_is_left([real.client])

    def test_a_late_release_wins(self, real: Place) -> None:
        real.put("a")
        (taken,) = real.lose(1)

        def between() -> float:
            assert real.queue.release(taken, due=3.0)
            return 0.5

        assert real.sweep(random=once(between)) == 1
        found = real.held()
        assert (found["waiting"], found["released"]) == ({taken.id.encode(): 3000.0}, {})

    @pytest.mark.parametrize("other", ["put", "take", "sweeper"])
    def test_who_comes_first_aborts_it_and_nothing_is_changed(
        self, real: Place, other: str
    ) -> None:
        real.put(*"abc")
        real.lose(2)
        after: list[dict[str, Any]] = []

        def between() -> float:
            if other == "put":
                real.put("d")
            elif other == "take":
                assert len(real.take(1)) == 1
            else:
                assert real.sweep(limit=1) == 1
            after.append(real.held())
            return 0.5

        with pytest.raises(Aborted):
            real.sweep(random=once(between))
        assert real.held() == after[0]


def once(call: Callable[[], float]) -> Callable[[], float]:
    """Return what does something at its first call alone: the choice of what to sweep."""
    left = [call]

    def random() -> float:
        return left.pop()() if left else 0.5

    return random


@pytest.mark.real
class TestFullMemory:
    """A full server refuses a MULTI; the script alone, which removes first, passes."""

    @pytest.fixture
    def full(self, start_redis: Callable[..., RedisServer]) -> Place:
        place = Place(start_redis(7, maxmemory_policy="noeviction"))
        place.put(*(f"message {number}" for number in range(30)))
        return place

    def test_what_was_consumed_is_cleared(self, full: Place) -> None:
        taken = full.take(30)
        full.client.config_set("maxmemory", 1)
        assert full.queue.ack(*taken) == 30
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            full.put("more")
        while full.sweep(limit=10):
            pass
        only_layout_is_left([full.client])

    def test_ended_leases_come_back_and_poison_is_set_aside(self, full: Place) -> None:
        full.lose(30)
        full.client.config_set("maxmemory", 1)
        assert full.sweep(limit=10) == 10
        assert full.sweep(limit=50, max_attempts=1) == 20
        found = full.held()
        assert (len(found["waiting"]), len(found["dead"])) == (10, 20)

    def test_the_script_alone_looks_again(self, full: Place) -> None:
        taken = full.lose(2)
        full.client.config_set("maxmemory", 1)

        def between() -> float:
            full.queue.ack(taken[0])
            full.client.config_set("maxmemory", 0)
            full.client.zadd(SHARD.leased, {taken[1].id: 9e12})
            full.client.config_set("maxmemory", 1)
            return 0.5

        assert full.sweep(random=once(between)) == 1
        found = full.held()
        assert taken[0].id.encode() not in found["messages"]
        assert list(found["leased"]) == [taken[1].id.encode()]


@pytest.mark.slow
@pytest.mark.real
def test_much_garbage_is_swept_in_windows(real: Place) -> None:
    """However much there is, a slice reads a few entries of each kind and no more."""
    ended = {f"0-ended{number}": number for number in range(100_000)}
    consumed = [f"0-consumed{number}" for number in range(100_000)]
    real.put("a")
    real.client.zadd(SHARD.leased, ended)
    real.client.hset(SHARD.history, mapping=dict.fromkeys(ended, "1 0 1 0 c"))
    real.client.hset(SHARD.messages, mapping=dict.fromkeys([*ended, *consumed], "m"))
    real.client.sadd(SHARD.consumed, *consumed)
    real.client.zadd(SHARD.waiting, dict.fromkeys(consumed, 1))
    replies: list[int] = []
    real.at_period(4)
    job = TimeShardSweeper(real.queue)
    real.client.config_resetstat()
    before = real.client.info("stats")["total_net_output_bytes"]
    for _ in range(20):
        assert job.perform(Slice(25, SECONDS)) == 25
    replies.append(real.client.info("stats")["total_net_output_bytes"] - before)
    # 100 ended and 100 consumed ids each time, of some 30 bytes.
    assert replies[0] < 20 * 250 * 40
    slowest = real.client.info("commandstats")
    for name in ("eval", "zrange", "srandmember"):
        assert slowest[f"cmdstat_{name}"]["usec_per_call"] < 5_000
    assert real.client.zcard(SHARD.leased) == 100_000 - 500


@pytest.mark.real
class TestWhere:
    """At the end of a period nothing reaches into the next one."""

    def test_a_slice_that_would_last_into_the_next_period_does_nothing(self, real: Place) -> None:
        real.put("a")
        real.lose(1)
        job = TimeShardSweeper(real.queue)
        real.client.config_resetstat()
        for before_the_end in (0.001, 0.05, 0.99, 1.04):
            real.wall.seconds = real.start + 5 * 60 - before_the_end
            assert job.perform(Slice(5, 1.0)) == 0
        assert "cmdstat_watch" not in real.client.info("commandstats")
        real.wall.seconds = real.start + 5 * 60 - 1.06
        assert job.perform(Slice(5, 1.0)) == 1

    def test_in_another_period_time_shard_0_is_left_alone(self, real: Place) -> None:
        real.put("a")
        real.lose(1)
        job = TimeShardSweeper(real.queue)
        for number in (5, 6, 7, 8, 9):
            real.at_period(number)
            assert job.perform(Slice(5, SECONDS)) == 0
        real.at_period(10)
        assert job.perform(Slice(5, SECONDS)) == 1

    @pytest.mark.parametrize(("shards", "careful"), [(4, True), (5, True), (6, False), (16, False)])
    def test_with_fewer_than_6_it_is_careful(self, real: Place, shards: int, careful: bool) -> None:
        assert TimeShardSweeper(queue_on(real.client, real.wall, shards=shards)).careful is careful
