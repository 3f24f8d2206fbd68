"""QueueExpiry of fair queues: which it deletes, whom it gives way to, and what it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.fair_queues import drained, got, queue_on
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import LayoutError
from workstealing.jobs import Backlog, QueueExpiry
from workstealing.recruiting import Slice
from workstealing.structures import ShuffleQueue
from workstealing.structures.fair_queue import FairQueue

pytestmark = pytest.mark.contract

LONG_AGO_MS = 1_000


@pytest.fixture
def queue(any_server: AnyServer) -> FairQueue:
    return queue_on(any_server.client())


def place_of(queue: FairQueue) -> bytes:
    """Return the due index that a queue stands in."""
    place = queue._place
    assert place is not None
    return place[0]


def used(queue: FairQueue) -> FairQueue:
    """Give a queue something of everything but dead messages."""
    queue.set_rule("t1", max_in_flight=1)
    for number in range(8):
        queue.write(f"t{number % 3}", {"n": number}, 2e9, f"x{number}", dedupe=(f"{number}", 60))
    queue.write("t0", {"n": "later"}, delay=500)
    taken = queue.read_many("c", 4)
    assert queue.nack(taken[0]) == 1
    assert queue.nack(taken[1], delay=100) == 1
    return queue


def idle(queue: FairQueue) -> FairQueue:
    """Let a queue's time to live have passed long ago."""
    queue.client.zadd(place_of(queue), {queue.keys.name: LONG_AGO_MS})
    return queue


def keys_of(client: Any, name: str = "q") -> set[bytes]:
    """Return the keys of a queue that are there, but for receipts, which end by themselves."""
    everywhere = {"target_nodes": "primaries"} if isinstance(client, redis.RedisCluster) else {}
    found = client.keys(f"{name}/fair/*", **everywhere)
    return {key for key in found if b"}/read." not in key}


def expire(queue: FairQueue, limit: int = 1000, **options: Any) -> int:
    return QueueExpiry(queue, **options).perform(Slice(limit, 10.0))


def expire_all(queue: FairQueue) -> int:
    """Perform slices until none finds anything, wherever on a cluster it looks."""
    most = 40 if isinstance(queue.client, redis.RedisCluster) else 1
    deleted, idle_slices = 0, 0
    while idle_slices < most:
        done = expire(queue)
        deleted += done
        idle_slices = 0 if done else idle_slices + 1
    return deleted


def expire_all_or_raise(queue: FairQueue) -> None:
    """Perform as many slices as find a queue on any node of a cluster."""
    for _ in range(40):
        expire(queue)


class TestDeleting:
    def test_a_queue_in_use_stays(self, queue: FairQueue) -> None:
        before = keys_of(used(queue).client)
        assert expire_all(queue) == 0
        assert keys_of(queue.client) == before

    def test_an_idle_one_goes_as_a_whole(self, queue: FairQueue) -> None:
        size = len(keys_of(idle(used(queue)).client))
        assert size > 12
        assert QueueExpiry(queue).backlog() == Backlog(
            size, pytest.approx(QueueExpiry(queue).backlog().oldest_seconds, 0.1), BACKLOG
        )
        assert expire_all(queue) == size
        assert keys_of(queue.client) == set()
        assert queue.client.zcard(place_of(queue)) == 0
        assert QueueExpiry(queue).backlog() == Backlog(0, 0.0, BACKLOG)

    def test_it_can_be_used_again(self, queue: FairQueue) -> None:
        expire_all(idle(used(queue)))
        written = queue.write("t1", {b"a": b"1"})
        (message,) = drained(queue)
        assert (message.id, message.attempts) == (written, 1)
        assert queue.ack(message) == 1
        assert (queue.length(), queue.rules()) == (0, {})

    def test_one_of_many(self, queue: FairQueue) -> None:
        client = queue.client
        others = [used(queue_on(client, name=f"q{number}")) for number in range(6)]
        waiting = [len(keys_of(client, f"q{number}")) for number in (2, 4)]
        idle(others[2])
        idle(others[4])
        counted = [expire(queue, dry_run=True) for _ in range(50)]
        assert min(waiting) <= max(counted) <= sum(waiting)
        assert expire(queue, limit=3, dry_run=True) <= 3
        assert all(keys_of(client, f"q{number}") for number in range(6))
        assert expire_all(queue) == sum(waiting)
        left = [bool(keys_of(client, f"q{number}")) for number in range(6)]
        assert left == [True, True, False, True, False, True]

    def test_queues_of_another_namespace_or_kind_are_none_of_its_business(
        self, queue: FairQueue
    ) -> None:
        idle(used(queue))
        other = queue_on(queue.client, name="other", namespace="shop")
        assert expire_all(other) == 0
        shuffle = ShuffleQueue(queue.client, "q")
        shuffle.write("t", {"a": 1})
        assert QueueExpiry(shuffle).perform(Slice(100, 10.0)) == 0
        assert QueueExpiry(queue.client).perform(Slice(100, 10.0)) == 0
        assert expire_all(queue) > 0
        assert shuffle.length() == 1

    def test_the_dead_are_left(self, any_server: AnyServer) -> None:
        queue = used(queue_on(any_server.client()))
        written = queue.write("poison", {b"a": b"1"}, tracking_id="p", dedupe=("p", 60))
        strict = queue_on(queue.client, max_attempts=1)
        (poison,) = [each for each in drained(queue) if each.account == "poison"]
        assert strict.nack(poison) == 1
        expire_all(idle(queue))
        assert keys_of(queue.client) == {queue.keys.meta, queue.keys.of("dead")}
        # It is not looked at again at once, but will be.
        score = queue.client.zscore(place_of(queue), "q")
        assert score is not None
        assert score > LONG_AGO_MS
        assert expire_all(queue) == 0
        assert queue.rules() == {}
        assert [each.id for each in queue.dead()] == [written]
        # A process that knows the queue of before goes on with it, and a new one too.
        assert queue.revive(written) == 1
        message = got(queue_on(queue.client).read("c"))
        assert (message.fields, message.attempts) == ({b"a": b"1"}, 1)
        assert message.id != written
        assert queue.cancel("p")
        expire_all(idle(queue))
        assert keys_of(queue.client) == set()

    def test_discarded_dead_are_no_reason_to_stay(self, any_server: AnyServer) -> None:
        queue = queue_on(any_server.client(), max_attempts=1)
        written = queue.write("t", {"a": 1})
        assert queue.nack(got(queue.read("c"))) == 1
        expire_all(idle(queue))
        assert queue.discard(written) == 1
        assert expire_all(idle(queue)) == 1
        assert keys_of(queue.client) == set()

    def test_facts_that_were_lost(self, queue: FairQueue) -> None:
        idle(used(queue))
        queue.client.delete(queue.keys.meta)
        expire_all(queue)
        assert keys_of(queue.client) == set()
        assert queue.client.zcard(place_of(queue)) == 0

    def test_a_newer_one_is_refused_and_stays(self, queue: FairQueue) -> None:
        idle(used(queue))
        queue.client.hset(queue.keys.meta, "mark", "2")
        before = keys_of(queue.client)
        with pytest.raises(LayoutError, match="says 2"):
            expire_all_or_raise(queue)
        assert keys_of(queue.client) == before


class TestComingBack:
    """Whoever uses the queue before the script wins."""

    @pytest.mark.parametrize("how", ["write", "read", "extend", "nack", "rule", "revive"])
    def test_between_the_look_and_the_script(self, redis7: RedisServer, how: str) -> None:
        """A slice has seen it idle; then somebody comes; the script sees that."""
        queue = queue_on(redis7.client(), max_attempts=2)
        used(queue)
        message = got(queue.read("d"))
        poison = queue.write("poison", {"a": 1})
        for _ in range(2):
            for each in drained(queue, "d"):
                if each.account == "poison":
                    queue.nack(each)
        idle(queue)
        other = queue_on(redis7.client(), max_attempts=2)
        uses = {
            "write": lambda: other.write("t", {"n": "new"}),
            "read": lambda: other.read("c"),
            "extend": lambda: other.extend(message),
            "nack": lambda: other.nack(message),
            "rule": lambda: other.set_rule("t", weight=2),
            "revive": lambda: other.revive(poison),
        }
        job = QueueExpiry(queue)
        collector = job._collectors[""]
        real = collector._delete

        def delete(due: Any, *args: Any, **options: Any) -> int:
            uses[how]()
            return int(real(due, *args, **options))

        collector._delete = delete  # type: ignore[method-assign]
        length = queue.length()
        assert job.perform(Slice(1000, 10.0)) == 0
        assert queue.length() >= length
        assert expire_all(queue) == 0

    def test_one_of_another_namespace_in_use(self, queue: FairQueue) -> None:
        used(queue)
        other = queue_on(queue.client, name="{q}r", namespace="other")
        other.write("t", {"a": 1})
        due = place_of(other)
        queue.client.zadd(due, {"q": LONG_AGO_MS})
        before = keys_of(queue.client)
        assert expire_all(other) == 0
        assert keys_of(queue.client) == before
        # Nor is it looked at for ever.
        assert queue.client.zrange(due, 0, -1) == [b"{q}r"]
        assert queue.client.zscore(place_of(queue), "q") is not None


BACKLOG = "keys of idle queues"


@pytest.mark.slow
@pytest.mark.parametrize("has_dead", [False, True])
def test_it_dies_at_every_command(redis7: RedisServer, has_dead: bool) -> None:
    direct = redis7.client()
    died = 0
    with FaultyServer(redis7.port) as door:

        def work() -> None:
            client = redis.Redis(port=door.port, protocol=2)
            QueueExpiry(queue_on(client)).perform(Slice(1000, 60.0))

        def prepare() -> None:
            direct.flushall()
            queue = used(queue_on(direct, max_attempts=1))
            assert (len(queue.dead()) > 0) is True
            if not has_dead:
                queue.discard(*(each.id for each in queue.dead()))
            idle(queue)

        for where in every_death([door], work, prepare):
            died += 1
            queue = queue_on(direct)
            queue._run(queue._placing())
            is_left = bool(keys_of(direct))
            # Nothing is left that a later slice would not find.
            assert (direct.zcard(place_of(queue)) > 0) == is_left, where
            expire_all(queue)
            if has_dead:
                assert keys_of(direct) == {queue.keys.meta, queue.keys.of("dead")}, where
                assert len(queue.dead()) > 0, where
            else:
                assert keys_of(direct) == set(), where
    assert died > 3
