"""What a shuffle queue refuses, and that a call that is refused has changed nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisCluster3, RedisServer
from workstealing.errors import CrossSlotError, EvictionPolicyError, LayoutError
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting.slice import Slice
from workstealing.structures import DurableKeys, Message, ShuffleQueue

pytestmark = pytest.mark.contract

HOUR_MS = 3_600_000


def got(message: Message | None) -> Message:
    assert message is not None
    return message


def everything(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


def used(client: Any) -> tuple[ShuffleQueue, Message]:
    """Return a queue with a group, of which one message is pending, one waits, one is tracked."""
    queue = ShuffleQueue(client, "q", streams=8)
    for n in range(3):
        queue.write("a", {"n": n}, tracking_id=f"t{n}")
    return queue, got(queue.read("g", "c"))


def fresh(client: Any) -> ShuffleQueue:
    """Return the queue as another process has it, which has opened the layout."""
    queue = ShuffleQueue(client, "q", streams=8)
    queue.write("other", {})
    return queue


CALLS: dict[str, Callable[[ShuffleQueue, Message], Any]] = {
    "write": lambda q, _: q.write("a", {"n": 9}, tracking_id="new"),
    "first read": lambda q, _: ShuffleQueue(q.client, "q", streams=8).read("g", "c"),
    "read of a new group": lambda q, _: q.read("new", "c"),
    "nack": lambda q, m: q.nack(m),
    "cancel": lambda q, _: q.cancel("t2"),
    "ack": lambda q, m: q.ack(m),
}


@pytest.mark.real
@pytest.mark.parametrize(
    ("call", "key"),
    [
        *(("write", name) for name in ("meta", "s", "tracking", "ring:g", "due", "mark")),
        *(
            ("first read", name)
            for name in ("meta", "ring:g", "state:g", "pending:g", "returned:g")
        ),
        *(("first read", name) for name in ("delayed:g", "consumers:g", "dead:g", "tracking")),
        *(("first read", name) for name in ("due", "mark")),
        *(("read of a new group", name) for name in ("ring:new", "s", "notifications", "legacy")),
        *(("nack", name) for name in ("meta", "returned:g", "delayed:g", "ring:g", "due")),
        *(("nack", name) for name in ("notifications", "mark")),
        *(("cancel", name) for name in ("meta", "tracking", "s")),
        *(("ack", name) for name in ("meta", "s")),
    ],
)
def test_a_foreign_key_is_refused_and_nothing_is_changed(
    redis7: RedisServer, call: str, key: str
) -> None:
    client = redis7.client()
    queue, message = used(client)
    due, mark, _ = queue._place or (b"", b"", "")
    keys = {"due": due, "mark": mark, "legacy": queue.keys.legacy}
    if key == "s":
        numbers = {message.number} if call == "ack" else set(range(8))
        names = [queue.keys.stream(number) for number in numbers]
    else:
        names = [keys.get(key) or queue.keys.base + key.encode()]
    for name in names:
        client.delete(name)
        client.sadd(name, "foreign")
        if key == "mark":
            client.delete(name)
            client.set(name, "2:streams")
    before = everything(client)
    with pytest.raises(LayoutError, match="nothing was changed"):
        CALLS[call](queue, message)
    assert everything(client) == before


@pytest.mark.real
@pytest.mark.parametrize("call", [*CALLS, "length", "groups", "read", "extend"])
def test_a_newer_queue_is_refused(redis7: RedisServer, call: str) -> None:
    client = redis7.client()
    queue, message = used(client)
    client.hset(queue.keys.meta, "mark", "2")
    before = everything(client)
    calls = {
        **CALLS,
        "length": lambda q, _: q.length(),
        "groups": lambda q, _: q.groups(),
        "read": lambda q, _: q.read("g", "c"),
        "extend": lambda q, m: q.extend(m),
    }
    with pytest.raises(LayoutError, match="says 2 where 1 was expected"):
        calls[call](queue, message)
    assert everything(client) == before


def upgrade(queue: ShuffleQueue, *, readable_from: int = 1, writable_from: int = 1) -> None:
    """Mark a queue as a newer release might."""
    marks = {"mark": 2, "readable_from": readable_from, "writable_from": writable_from}
    queue.client.hset(queue.keys.meta, mapping=marks)


class TestANewerQueue:
    """As in the middle of a rolling upgrade."""

    LOOKS: ClassVar[dict[str, Callable[[ShuffleQueue], Any]]] = {
        "length": lambda q: q.length(),
        "groups": lambda q: q.groups(),
        "stats": lambda q: q.stats("g")["waiting"],
        "dead": lambda q: list(q.dead("g")),
        "overdue": lambda q: list(q.overdue()),
        "backlog": lambda q: ShuffleQueueReaper(q, lease=1).backlog().count,
    }

    def test_one_that_may_be_read_is_read_and_not_written(self, redis7: RedisServer) -> None:
        client = redis7.client()
        queue, message = used(client)
        seen = {name: look(queue) for name, look in self.LOOKS.items()}
        upgrade(queue, writable_from=2)
        before = everything(client)
        assert {name: look(queue) for name, look in self.LOOKS.items()} == seen
        calls: dict[str, Callable[[ShuffleQueue, Message], Any]] = {
            **CALLS,
            "read": lambda q, _: q.read("g", "c"),
            "extend": lambda q, m: q.extend(m),
            "revive": lambda q, _: q.revive("g", "1-1-1"),
            "discard": lambda q, _: q.discard("g", "1-1-1"),
            "delete": lambda q, _: q.delete(),
            "reaper": lambda q, _: ShuffleQueueReaper(q, lease=0.001).perform(Slice(5, 5.0)),
        }
        for name, call in calls.items():
            with pytest.raises(LayoutError, match="may read but not write: upgrade workstealing"):
                pytest.fail(f"{name}: {call(queue, message)}")
            assert everything(client) == before, name

    def test_one_that_may_be_written_is_used_and_keeps_its_mark(
        self, any_server: AnyServer
    ) -> None:
        client = any_server.client()
        queue, message = used(client)
        upgrade(queue)
        queue.write("b", {"n": 3})
        assert queue.extend(message) == 1
        assert queue.nack(message)
        read = queue.read_many("g", "c", 9)
        assert len(read) == 4
        assert queue.ack(*read) == 4
        assert queue.read("new", "c") is None
        queue = ShuffleQueue(client, "q", streams=16)
        queue.write("a", {})
        got(queue.read("g", "c"))
        ShuffleQueueReaper(queue, lease=60).perform(Slice(5, 5.0))
        assert client.hget(queue.keys.meta, "mark") == b"2"
        (check,) = queue.inspect(queue.check_steps())
        assert check.level == "ok"
        queue.delete()
        assert not client.exists(queue.keys.meta)

    def test_one_that_only_newer_releases_read_is_refused(self, redis7: RedisServer) -> None:
        queue, message = used(redis7.client())
        upgrade(queue, readable_from=2, writable_from=2)
        before = everything(queue.client)
        looks = {name: lambda q, _, look=look: look(q) for name, look in self.LOOKS.items()}
        for name, call in {**CALLS, **looks}.items():
            with pytest.raises(LayoutError, match=r"version 2, which this release .* cannot read"):
                pytest.fail(f"{name}: {call(queue, message)}")
            assert everything(queue.client) == before, name


@pytest.mark.real
def test_a_legacy_key_of_another_type_is_refused(redis7: RedisServer) -> None:
    client = redis7.client()
    queue, _ = used(client)
    assert len(queue.read_many("g", "c", 2)) == 2
    client.set("q", "foreign")
    with pytest.raises(LayoutError, match="the key q does not hold a stream"):
        queue.read("g", "c")


@pytest.mark.real
def test_a_namespace_of_another_structure_is_refused(redis7: RedisServer) -> None:
    DurableKeys(redis7.client(), "mine").set("k", 1)
    before = everything(redis7.client())
    with pytest.raises(LayoutError, match="shuffle queues"):
        ShuffleQueue(redis7.client(), "q", namespace="mine").write("a", {"n": 1})
    assert everything(redis7.client()) == before


@pytest.mark.real
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_policy_that_evicts_messages_is_refused(
    start_redis: Callable[..., RedisServer], policy: str
) -> None:
    client = start_redis(7, maxmemory_policy=policy).client()
    with pytest.raises(EvictionPolicyError, match=policy):
        ShuffleQueue(client, "q").write("a", {"n": 1})
    assert client.dbsize() == 0
    ShuffleQueue(client, "q", allow_eviction=[policy]).write("a", {"n": 1})


@pytest.mark.real
@pytest.mark.parametrize("name", ["a}b", "{}x", "x{y"])
def test_a_name_of_several_slots_is_refused_on_a_cluster(cluster: RedisCluster3, name: str) -> None:
    with pytest.raises(CrossSlotError):
        ShuffleQueue(cluster.client(), name)


@pytest.mark.real
def test_many_untagged_names_work_on_a_cluster(cluster: RedisCluster3) -> None:
    client = cluster.client()
    for n in range(60):
        queue = ShuffleQueue(client, f"queue {n} {{t{n}}}" if n % 2 else f"queue {n}", streams=4)
        queue.write("a", {"n": n})
        message = got(queue.read("g{x}", "c"))
        assert (message.fields, queue.nack(message)) == ({b"n": str(n).encode()}, 1)
        again = got(queue.read("g{x}", "c"))
        assert (again.attempts, queue.ack(again), queue.length()) == (2, 1, 0)


@pytest.mark.real
@pytest.mark.parametrize("version", [7, 8])
def test_a_full_server_refuses_a_write_whole_and_lets_readers_empty_it(
    start_redis: Callable[..., RedisServer], version: int
) -> None:
    client = start_redis(version, maxmemory_policy="noeviction").client()
    queue = ShuffleQueue(client, "q", streams=8)
    assert queue.read("g", "c") is None
    ids = [queue.write("a", {"n": n}, tracking_id=f"t{n}") for n in range(12)]
    queue.nack(got(queue.read("g", "c")), delay=3600)
    client.config_set("maxmemory", 1)
    before = everything(client)
    for tenant in ("a", "new"):
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            queue.write(tenant, {"n": 9}, tracking_id="new")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        queue.read("another group", "c")
    assert everything(client) == before
    # A process that has never been here can empty it, in streams that no group has read yet.
    other = ShuffleQueue(client, "q", streams=8, clock_shift_ms=2 * HOUR_MS)
    found = []
    while (message := other.read("g", "d")) is not None:
        if message.attempts == 1 and len(found) == 3:
            assert other.nack(message) == 1
            message = got(other.read("g", "d", prefer_stream=message.stream))
        found.append(message.id)
        assert other.ack(message) == 1
    assert sorted(found) == sorted(ids)
    assert other.length() == 0


@pytest.mark.real
def test_eviction_takes_no_message(start_redis: Callable[..., RedisServer]) -> None:
    """The published queue's EXPIRE made its streams the first that volatile-lru evicts."""
    client = start_redis(7, maxmemory="6mb", maxmemory_policy="volatile-lru").client()
    queue = ShuffleQueue(client, "q", streams=16)
    ids = [queue.write(f"tenant {n}", {"n": n}) for n in range(200)]
    pipe = client.pipeline(transaction=False)
    for n in range(3000):
        pipe.set(f"cache {n}", "x" * 5000, ex=1000)
    pipe.execute()
    assert client.info("stats")["evicted_keys"] > 0
    assert all(client.pttl(key) == -1 for key in client.keys("q/*"))
    assert sorted(message.id for message in queue.read_many("g", "c", 1000)) == sorted(ids)


@pytest.mark.real
def test_a_ring_that_was_lost_is_mended_by_a_join(redis7: RedisServer) -> None:
    client = redis7.client()
    queue, _ = used(client)
    client.delete(queue.keys.group("g").ring)
    assert queue.read("g", "c") is None
    queue._run(queue._joining(queue._view("g")))
    assert len(queue.read_many("g", "c", 5)) == 2


class TestNamespaces:
    """A queue is one namespace's: a second one's job would delete it while it is in use."""

    CALLS: ClassVar[dict[str, Callable[[ShuffleQueue, Message], Any]]] = {
        "write": lambda q, _: q.write("a", {"n": 9}),
        "read": lambda q, _: q.read("g", "c"),
        "read of a new group": lambda q, _: q.read("new", "c"),
        "nack": lambda q, m: q.nack(m),
        "extend": lambda q, m: q.extend(m),
        "delete": lambda q, _: q.delete(),
    }

    @pytest.mark.parametrize("call", CALLS)
    def test_another_namespace_is_refused(self, any_server: AnyServer, call: str) -> None:
        client = any_server.client()
        _, message = used(client)
        other = ShuffleQueue(client, "q", streams=8, namespace="other")
        # Its layout is written down by the first queue that it has.
        ShuffleQueue(client, "r", streams=8, namespace="other").write("a", {})
        before = {key: client.type(key) for key in client.keys("*")}
        with pytest.raises(LayoutError, match="namespace shuffle_queues and not to other: give"):
            self.CALLS[call](other, message)
        assert {key: client.type(key) for key in client.keys("*")} == before
        assert other._place is not None
        assert client.zscore(other._place[0], "q") is None

    def test_the_other_namespace_may_have_it_once_it_is_gone(self, any_server: AnyServer) -> None:
        client = any_server.client()
        queue, _ = used(client)
        queue.delete()
        other = ShuffleQueue(client, "q", streams=8, namespace="other")
        other.write("a", {})
        assert client.hget(other.keys.meta, "namespace") == b"other"
        with pytest.raises(LayoutError, match="namespace other and not to shuffle_queues"):
            queue.write("a", {})

    def test_a_queue_of_before_is_of_whom_first_uses_it(self, any_server: AnyServer) -> None:
        client = any_server.client()
        queue, message = used(client)
        client.hdel(queue.keys.meta, "namespace")
        assert queue.extend(message) == 1
        assert client.hget(queue.keys.meta, "namespace") == b"shuffle_queues"
