"""QueueExpiry: which queues it deletes, whom it gives way to, and what it leaves when it dies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.reapers import reaper_after
from support.servers import AnyServer, RedisCluster3, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import Backlog, QueueExpiry
from workstealing.recruiting import Slice
from workstealing.structures.shuffle_queue import ShuffleQueue
from workstealing.testing import ManualClock

pytestmark = pytest.mark.contract

Queue = ShuffleQueue
LONG_AGO_MS = 1_000


def queue_on(client: Any, name: str = "q", streams: int = 8, **options: Any) -> Queue:
    made: Queue = ShuffleQueue(client, name, streams=streams, streams_per_tenant=2, **options)
    return made


@pytest.fixture
def queue(any_server: AnyServer) -> Queue:
    return queue_on(any_server.client())


def place_of(queue: Queue) -> bytes:
    """Return the due index that a queue stands in."""
    place = queue._place
    assert place is not None
    return place[0]


def used(queue: Queue, messages: int = 6, groups: tuple[str, ...] = ("g", "h")) -> Queue:
    """Give a queue something of everything."""
    for number in range(messages):
        queue.write(f"t{number}", {"n": number}, tracking_id=f"x{number}")
    for group in groups:
        taken = queue.read_many(group, "c", 4)
        queue.nack(taken[0])
        queue.nack(taken[1], delay=100)
    return queue


def idle(queue: Queue) -> Queue:
    """Let a queue's time to live have passed long ago."""
    queue.client.zadd(place_of(queue), {queue.keys.name: LONG_AGO_MS})
    return queue


def keys_of(client: Any, name: str = "q") -> set[bytes]:
    """Return the keys of a queue that are there, but for receipts, which end by themselves."""
    everywhere = {"target_nodes": "primaries"} if isinstance(client, redis.RedisCluster) else {}
    own = b"%b/queue/" % name.encode()
    found = client.keys("*", **everywhere)
    mine = {key for key in found if key == name.encode() or key.startswith(own)}
    return {key for key in mine if b"}/read." not in key}


def expiry(queues: Any, **options: Any) -> QueueExpiry:
    return QueueExpiry(queues, **options)


def expire(queues: Any, limit: int = 1000, **options: Any) -> int:
    return expiry(queues, **options).perform(Slice(limit, 10.0))


def expire_all(queues: Any, limit: int = 1000) -> int:
    """Perform slices until none finds anything, wherever on a cluster it looks."""
    client = getattr(queues, "client", queues)
    most = 40 if isinstance(client, redis.RedisCluster) else 1
    deleted, idle_slices = 0, 0
    while idle_slices < most:
        done = expire(queues, limit)
        assert done <= limit
        deleted += done
        idle_slices = 0 if done else idle_slices + 1
    return deleted


class TestDeleting:
    def test_a_queue_in_use_stays(self, queue: Queue) -> None:
        before = keys_of(used(queue).client)
        assert expire(queue) == 0
        assert keys_of(queue.client) == before

    def test_an_idle_one_goes_as_a_whole(self, queue: Queue) -> None:
        size = len(keys_of(idle(used(queue)).client))
        assert size > 10
        assert expire_all(queue) == size
        assert keys_of(queue.client) == set()
        assert queue.client.zcard(place_of(queue)) == 0

    @pytest.mark.parametrize("limit", [1, 3, 7])
    def test_never_more_than_the_limit(self, queue: Queue, limit: int) -> None:
        size = len(keys_of(idle(used(queue)).client))
        slices = [expire(queue, limit) for _ in range(4 * size)]
        assert max(slices) <= limit
        assert sum(slices) == size
        assert keys_of(queue.client) == set()

    def test_it_can_be_used_again(self, queue: Queue) -> None:
        expire_all(idle(used(queue)))
        written = queue.write("t", {b"a": b"1"})
        taken = [queue.read(group, "c") for group in ("g", "h")]
        for message in taken:
            assert message is not None
            assert (message.id, message.attempts) == (written, 1)
        assert queue.ack(*taken) == 2
        assert queue.length() == 0

    def test_one_of_many(self, queue: Queue) -> None:
        client = queue.client
        others = [used(queue_on(client, f"q{number}")) for number in range(6)]
        idle(others[2])
        idle(others[4])
        waiting = [len(keys_of(client, f"q{number}")) for number in (2, 4)]
        assert expiry(client).backlog().count == sum(waiting)
        # A slice asks one node of a cluster, on which there may be neither.
        counted = [expire(client, dry_run=True) for _ in range(50)]
        assert min(waiting) <= max(counted) <= sum(waiting)
        before = sum(len(keys_of(client, f"q{number}")) for number in range(6))
        expire_all(client)
        after = sum(len(keys_of(client, f"q{number}")) for number in range(6))
        assert before - after == sum(waiting)
        left = [bool(keys_of(client, f"q{number}")) for number in range(6)]
        assert left == [True, True, False, True, False, True]
        assert expiry(client).backlog() == Backlog(0, 0.0, "keys of idle queues")

    def test_another_namespace_is_none_of_its_business(self, queue: Queue) -> None:
        idle(used(queue))
        assert expire(queue.client, namespace="other") == 0
        assert expire(queue.client) > 0

    def test_the_legacy_stream_is_left(self, queue: Queue) -> None:
        queue.client.xadd("q", {"a": "1"})
        expire_all(idle(used(queue)))
        assert keys_of(queue.client) == {b"q"}
        assert queue.delete() == 0
        assert queue.client.xlen("q") == 1

    def test_the_dead_are_left(self, queue: Queue) -> None:
        written = queue.write("t", {b"a": b"1"})
        assert queue.read("g", "c") is not None
        assert queue.read("h", "c") is not None
        reaper = reaper_after(1, queue, lease=0.001)
        while not (queue.dead("g") and queue.dead("h")):
            reaper.perform(Slice(25, 10.0))
        queue.discard("h", written)
        expire_all(idle(queue))
        names = queue.keys
        assert keys_of(queue.client) == {names.meta, names.group("g").dead}
        assert queue.groups() == ["g"]
        # It is not looked at again at once, but will be.
        score = queue.client.zscore(place_of(queue), "q")
        assert score is not None
        assert expire(queue) == 0
        assert queue.revive("g", written) == 1
        message = queue.read("g", "c")
        assert message is not None
        assert message.fields == {b"a": b"1"}
        assert queue.ack(message) == 1
        expire_all(idle(queue))
        assert keys_of(queue.client) == set()

    def test_facts_that_were_lost(self, queue: Queue) -> None:
        """The streams' number is not known any more; they are found all the same."""
        idle(used(queue))
        queue.client.delete(queue.keys.meta)
        expire_all(queue, limit=5000)
        assert not queue.client.exists(*queue.keys.streams(queue.streams))
        assert queue.client.zcard(place_of(queue)) == 0


class TestComingBack:
    """Whoever uses the queue between two scripts wins."""

    @pytest.mark.parametrize("after", [1, 2, 4, 7])
    def test_a_writer(self, queue: Queue, after: int) -> None:
        idle(used(queue))
        for _ in range(after):
            expire(queue, 3)
        other = queue_on(queue.client)
        written = {other.write(f"t{number}", {"n": "new"}) for number in range(20)}
        left = keys_of(queue.client)
        assert expire(queue) == 0
        assert keys_of(queue.client) == left
        # What is left is a whole queue: all that is new comes, to groups of before and of now.
        for group in ("g", "h", "i"):
            found = set()
            while (message := other.read(group, "c")) is not None:
                found.add(message.id)
            assert written <= found
        idle(other)
        expire_all(queue)
        assert keys_of(queue.client) == set()

    @pytest.mark.parametrize("after", [1, 3])
    def test_a_reader(self, queue: Queue, after: int) -> None:
        idle(used(queue))
        for _ in range(after):
            expire(queue, 3)
        queue_on(queue.client).read("g", "c")
        assert expire(queue) == 0

    def test_between_the_look_and_the_script(self, redis7: RedisServer) -> None:
        """Another slice has seen it idle; then somebody writes; the script sees that."""
        queue = idle(used(queue_on(redis7.client())))
        job = expiry(queue)
        collector = job._collectors[""]
        real = collector._delete

        def delete(due: Any, *args: Any, **options: Any) -> int:
            queue_on(redis7.client()).write("t", {"n": "new"})
            return int(real(due, *args, **options))

        collector._delete = delete  # type: ignore[method-assign]
        before = keys_of(queue.client)
        assert job.perform(Slice(1000, 10.0)) == 0
        assert keys_of(queue.client) >= before

    def test_one_of_another_namespace_in_use(self, queue: Queue) -> None:
        """A queue used under two namespaces was deleted by the one where it was idle."""
        used(queue)
        other = queue_on(queue.client, "{q}r", namespace="other")
        other.write("t", {})
        due = place_of(other)
        queue.client.zadd(due, {"q": LONG_AGO_MS})
        before = keys_of(queue.client)
        assert expire(other) == 0
        assert keys_of(queue.client) == before
        # Nor is it looked at for ever.
        assert queue.client.zrange(due, 0, -1) == [b"{q}r"]
        assert queue.client.zscore(place_of(queue), "q") is not None

    def test_a_writer_who_knows_a_group_that_has_gone(self, queue: Queue) -> None:
        """It must not fill the ring of a group that nobody would ever delete."""
        writer = queue_on(queue.client)
        writer.write("t", {"n": 1})
        idle(used(queue))
        while queue.groups():
            assert expire(queue, 2)
        writer.write("t", {"n": 2})
        assert not queue.client.exists(queue.keys.group("g").ring)


class TestDying:
    def test_at_every_command(self, redis7: RedisServer) -> None:
        direct = redis7.client()
        died = 0
        with FaultyServer(redis7.port) as door:
            job = QueueExpiry(redis.Redis(port=door.port, protocol=2))

            def work() -> None:
                job.perform(Slice(1000, 60.0))

            def prepare() -> None:
                direct.flushall()
                idle(used(queue_on(direct, streams=120), groups=("g",)))

            for where in every_death([door], work, prepare):
                died += 1
                is_left = bool(keys_of(direct))
                # Nothing is left that a later slice would not find.
                assert (direct.zcount(place_of(placed(direct)), 0, LONG_AGO_MS) > 0) == is_left, (
                    where
                )
                expire_all(direct)
                assert keys_of(direct) == set(), where
        assert died > 30

    @pytest.mark.slow
    @pytest.mark.parametrize("is_there", [True, False])
    def test_a_deletion_at_every_command(self, redis7: RedisServer, is_there: bool) -> None:
        """Where there was no queue, or no place of it, the expiry did not find what was left."""
        direct, died = redis7.client(), 0
        with FaultyServer(redis7.port) as door:

            def work() -> None:
                with redis.Redis(port=door.port, protocol=2) as client:
                    queue_on(client).delete()

            def prepare() -> None:
                direct.flushall()
                if is_there:
                    used(queue_on(direct, streams=120), groups=("g",))
                    direct.delete(place_of(placed(direct)))

            for where in every_death([door], work, prepare):
                died += 1
                if keys_of(direct) and (not is_there or direct.exists(place_of(placed(direct)))):
                    expire_all(direct)
                    assert keys_of(direct) == set(), where
        assert died > 20


def placed(client: Any) -> Queue:
    """Return a queue that knows the due index that it stands in."""
    queue = queue_on(client)
    queue._run(queue._placing())
    return queue


class TestEviction:
    def fill(self, client: Any) -> None:
        """Write what may be evicted, well beyond the server's memory."""
        for number in range(3000):
            client.set(f"cache{number}", b"x" * 4000, ex=3600)

    def test_under_volatile_lru_a_full_server_takes_no_message(
        self, start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis(7, maxmemory="8mb", maxmemory_policy="volatile-lru")
        client = server.client()
        queue, other = queue_on(client), queue_on(client, "with-expire")
        kept = {queue.write(f"t{n}", {"n": n}, tracking_id=f"x{n}") for n in range(200)}
        other_ones = {other.write(f"t{n}", {"n": n}) for n in range(200)}
        queue.read_many("g", "c", 20)
        # As other libraries do it, so that an idle queue goes by itself.
        for key in keys_of(client, "with-expire"):
            client.expire(key, 3600)
        before = keys_of(client)
        assert not any(client.ttl(key) >= 0 for key in before)
        self.fill(client)
        assert client.info("stats")["evicted_keys"] > 1000
        assert keys_of(client) == before
        assert queue.length() == len(kept)
        assert other.length() < len(other_ones)

    def test_a_full_server_is_collected(self, start_redis: Callable[..., RedisServer]) -> None:
        server = start_redis(7, maxmemory="8mb")
        client = server.client()
        idle(used(queue_on(client)))
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            self.fill(client)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            fill_up(client)
        expire_all(client, limit=5)
        assert keys_of(client) == set()


def fill_up(client: Any) -> None:
    """Write until the server refuses even very little."""
    for number in itertools.count():
        client.set(f"little{number}", b"x")


class TestSweep:
    @pytest.mark.slow
    def test_parts_do_it_all(self, queue: Queue) -> None:
        client = queue.client
        for number in range(10):
            idle(used(queue_on(client, f"q{number}"), messages=4))
        job = expiry(client, limit=7)
        for part in job.parts(3):
            one = job.for_part(part)
            slices = 0
            while not one.is_drained:
                one.perform(Slice(7, 10.0))
                slices += 1
                assert slices < 1000
        assert not any(keys_of(client, f"q{number}") for number in range(10))

    def test_what_was_deleted_before_the_time_was_up_counts(self, redis7: RedisServer) -> None:
        """A slice that ran out of time at its second queue said that it had done nothing."""
        client = redis7.client()
        for name in ("{s}a", "{s}b"):
            idle(used(queue_on(client, name)))
        job, clock = expiry(client), ManualClock()
        collector = job._collectors[""]
        real = collector._delete

        def slowly(*args: Any) -> int:
            deleted = real(*args)
            clock.advance(10.0)
            return deleted

        collector._delete = slowly  # type: ignore[method-assign]
        (part,) = job.parts(1)
        before = len(client.keys("*/queue/*"))
        done = job.for_part(part).perform(Slice(1000, 10.0, clock))
        assert done == before - len(client.keys("*/queue/*")) > 0
        left = sum(len(keys_of(client, name)) for name in ("{s}a", "{s}b"))
        assert job.backlog().count == left > 0

    def test_nothing_to_divide(self, queue: Queue) -> None:
        assert expiry(queue).parts(2) == []
        with pytest.raises(ConfigurationError, match="dry run"):
            expiry(queue, dry_run=True).parts(2)


class TestDelete:
    def test_all_at_once(self, queue: Queue) -> None:
        queue.client.xadd("q", {"a": "1"})
        size = len(keys_of(used(queue).client))
        assert queue.delete() == size - 1
        assert keys_of(queue.client) == {b"q"}
        assert queue.client.zcard(place_of(queue)) == 0
        assert queue.delete() == 0
        queue.client.delete("q")
        assert queue.read("g", "c") is None
        queue.write("t", {"a": 1})
        assert queue.read("g", "c") is not None

    def test_its_dead_go_too(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        queue.read("g", "c")
        reaper = reaper_after(1, queue, lease=0.001)
        while not queue.dead("g"):
            reaper.perform(Slice(25, 10.0))
        queue.delete()
        assert keys_of(queue.client) == set()

    def test_a_client_that_decodes(self, redis7: RedisServer) -> None:
        queue = queue_on(redis.Redis(port=redis7.port, decode_responses=True))
        used(queue)
        assert queue.delete() > 10
        assert keys_of(redis7.client()) == set()

    def test_names_of_any_bytes(self, any_server: AnyServer) -> None:
        # fakeredis' refusal of a missing group cannot name a key that is not UTF-8.
        name = b"q/queue/\xff\x00" if any_server.is_real else b"q/queue/\xc3\xbf\x00"
        queue: Queue = ShuffleQueue(any_server.client(), name, streams=8)
        queue.write(b"\xff", {b"\xfe": b"\xff"})
        for group in ("g\0ü", "groups", "g:h"):
            assert queue.read(group, "g\0ü".encode()) is not None
        idle(queue)
        expire_all(queue)
        assert keys_of(queue.client) == set()


class TestRefusals:
    def test_a_namespace_that_nobody_uses(self, queue: Queue) -> None:
        assert expire(queue) == 0
        assert expire(queue, dry_run=True) == 0
        assert expiry(queue).backlog() == Backlog(0, 0.0, "keys of idle queues")

    def test_a_newer_queue(self, queue: Queue) -> None:
        idle(used(queue))
        queue.client.hset(queue.keys.meta, "mark", "2")
        before = keys_of(queue.client)
        with pytest.raises(LayoutError, match="says 2"):
            expire(queue)
        with pytest.raises(LayoutError, match="says 2"):
            queue.delete()
        assert keys_of(queue.client) == before

    def test_a_damaged_one_does_not_keep_the_others(self, queue: Queue) -> None:
        idle(used(queue))
        idle(used(queue_on(queue.client, "q2")))
        queue.client.delete(queue.keys.meta)
        queue.client.set(queue.keys.meta, "foreign")
        for _ in range(40):
            try:
                expire(queue)
            except LayoutError as error:
                assert "holds another type" in str(error)  # noqa: PT017 - the others go first
        assert keys_of(queue.client, "q2") == set()
        assert keys_of(queue.client) != set()

    def test_what_it_is_called(self, queue: Queue) -> None:
        assert expiry(queue).name == "queue_expiry.shuffle_queues"
        assert expiry(queue, name="mine").name == "mine"
        with pytest.raises(ConfigurationError, match="client of redis-py"):
            QueueExpiry("q")


@pytest.mark.slow
@pytest.mark.cluster
def test_many_slots_of_a_cluster(cluster: RedisCluster3) -> None:
    client = cluster.client()
    queues = [idle(used(queue_on(client, f"queue-{n}", streams=4))) for n in range(60)]
    job = expiry(client)
    keys = [len(keys_of(client, f"queue-{n}")) for n in range(60)]
    assert job.backlog().count == sum(keys)
    slices = 0
    while job.backlog().count:
        job.perform(Slice(100, 10.0))
        slices += 1
        assert slices < 2000
    for queue in queues:
        assert not any(client.exists(key) for key in (queue.keys.meta, *queue.keys.streams(4)))
