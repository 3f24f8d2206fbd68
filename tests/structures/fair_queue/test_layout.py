"""Foreign, newer and other namespaces' keys are refused, and a queue in use is found and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.fair_queues import drained, got, queue_on
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisCluster3, RedisServer, wait_until
from workstealing.errors import CrossSlotError, EvictionPolicyError, LayoutError
from workstealing.jobs import FairQueueReaper, QueueExpiry
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys, ShuffleQueue
from workstealing.structures.fair_queue import FairMessage, FairQueue, NewMessage

HOUR_MS = 3_600_000
LONG_SECONDS = 60.0
Call = Callable[[FairQueue, FairMessage], Any]


def everything(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


def used(client: Any) -> tuple[FairQueue, FairMessage]:
    """Return a queue with one message in hand, one dead, one late, and others that wait."""
    queue = queue_on(client, max_attempts=1)
    queue.set_rule("b*", max_in_flight=3)
    queue.write("poison", {"n": "dead"})
    assert queue.nack(got(queue.read("c"))) == 1
    for n in range(3):
        queue.write("a", {"n": n}, 2e9, f"t{n}", dedupe=(f"k{n}", 60))
    queue.write("a", {"n": 3}, delay=500)
    return queue, got(queue.read("c"))


CHANGES: dict[str, Call] = {
    "write": lambda q, _: q.write("a", {"n": 9}, tracking_id="new"),
    "write_many": lambda q, _: q.write_many([NewMessage("new", {"n": 9})]),
    "first read": lambda q, _: queue_on(q.client).read("c"),
    "read": lambda q, _: q.read("c"),
    "read_many": lambda q, _: q.read_many("c", 2, same_account=True),
    "exchange": lambda q, m: q.exchange(m, consumer="c"),
    "ack": lambda q, m: q.ack(m),
    "nack": lambda q, m: q.nack(m),
    "extend": lambda q, m: q.extend(m),
    "cancel": lambda q, _: q.cancel("t2"),
    "purge": lambda q, _: q.purge("a"),
    "revive": lambda q, _: q.revive(*(each.id for each in q.dead())),
    "discard": lambda q, _: q.discard("x-0-0"),
    "set_rule": lambda q, _: q.set_rule("a", weight=2),
    "remove_rule": lambda q, _: q.remove_rule("b*"),
    "pause": lambda q, _: q.pause("a"),
    "delete": lambda q, _: q.delete(),
    "reaper": lambda q, _: FairQueueReaper(q).perform(Slice(5, 5.0)),
}
LOOKS: dict[str, Callable[[FairQueue], Any]] = {
    "length": lambda q: q.length(),
    "stats": lambda q: q.stats()["waiting"],
    "accounts": lambda q: [each.account for each in q.accounts()],
    "explain_wait": lambda q: q.explain_wait("a").ready,
    "rules": lambda q: q.rules(),
    "peek": lambda q: [each.id for each in q.peek("a")],
    "overdue": lambda q: list(q.overdue()),
    "dead": lambda q: list(q.dead()),
    "backlog": lambda q: FairQueueReaper(q).backlog().count,
}
CALLS: dict[str, Call] = {
    **CHANGES,
    **{name: lambda q, _, look=look: look(q) for name, look in LOOKS.items()},  # type: ignore[misc]
}
PLACED = ("write", "first read", "nack", "extend", "set_rule", "delete")


@pytest.mark.real
@pytest.mark.parametrize("call", CALLS)
def test_foreign_facts_are_refused_and_nothing_is_changed(redis7: RedisServer, call: str) -> None:
    client = redis7.client()
    queue, message = used(client)
    client.delete(queue.keys.meta)
    client.sadd(queue.keys.meta, "foreign")
    before = everything(client)
    with pytest.raises(LayoutError, match="nothing was changed"):
        CALLS[call](queue, message)
    assert everything(client) == before


@pytest.mark.real
@pytest.mark.parametrize("call", ["first write", "first read", "reaper"])
def test_each_foreign_key_is_refused_by_who_comes(redis7: RedisServer, call: str) -> None:
    """Each process checks the types of the keys at its first call, and now and then."""
    client = redis7.client()
    queue, _ = used(client)
    calls: dict[str, Callable[[], Any]] = {
        "first write": lambda: queue_on(client).write("a", {"n": 1}),
        "first read": lambda: queue_on(client).read("c"),
        "reaper": lambda: FairQueueReaper(queue).perform(Slice(5, 5.0)),
    }
    assert len(queue.keys.parts) > 13
    for key in queue.keys.parts:
        kept = client.dump(key)
        client.delete(key)
        client.set(key, "foreign")
        before = everything(client)
        with pytest.raises(LayoutError, match="nothing was changed"):
            pytest.fail(f"{key!r}: {calls[call]()!r}")
        assert everything(client) == before
        client.delete(key)
        if kept is not None:
            client.restore(key, 0, kept)


@pytest.mark.real
@pytest.mark.parametrize("key", ["due", "mark"])
@pytest.mark.parametrize("call", PLACED)
def test_a_foreign_place_is_refused(redis7: RedisServer, call: str, key: str) -> None:
    client = redis7.client()
    queue, message = used(client)
    due, mark, _ = queue._place or (b"", b"", "")
    if key == "due":
        client.delete(due)
        client.sadd(due, "foreign")
    else:
        client.set(mark, "2:streams")
    before = everything(client)
    if call == "delete" and key == "mark":
        # It needs no mark, and is the way out.
        assert queue.delete() > 3
        return
    with pytest.raises(LayoutError, match="nothing was changed"):
        CALLS[call](queue, message)
    assert everything(client) == before


def upgrade(queue: FairQueue, *, readable_from: int = 1, writable_from: int = 1) -> None:
    """Mark a queue as a newer release might."""
    marks = {"mark": 2, "readable_from": readable_from, "writable_from": writable_from}
    queue.client.hset(queue.keys.meta, mapping=marks)


@pytest.mark.real
class TestANewerQueue:
    """As in the middle of a rolling upgrade."""

    def test_one_that_says_nothing_else_is_refused(self, redis7: RedisServer) -> None:
        queue, message = used(redis7.client())
        queue.client.hset(queue.keys.meta, "mark", "2")
        before = everything(queue.client)
        for name, call in CALLS.items():
            with pytest.raises(LayoutError, match="says 2 where 1 was expected"):
                pytest.fail(f"{name}: {call(queue, message)}")
            assert everything(queue.client) == before, name

    def test_one_that_may_be_read_is_read_and_not_written(self, redis7: RedisServer) -> None:
        queue, message = used(redis7.client())
        seen = {name: look(queue) for name, look in LOOKS.items()}
        upgrade(queue, writable_from=2)
        before = everything(queue.client)
        assert {name: look(queue) for name, look in LOOKS.items()} == seen
        for name, call in CHANGES.items():
            with pytest.raises(LayoutError, match="may read but not write: upgrade workstealing"):
                pytest.fail(f"{name}: {call(queue, message)}")
            assert everything(queue.client) == before, name

    def test_one_that_may_be_written_is_used_and_keeps_its_mark(
        self, any_server: AnyServer
    ) -> None:
        queue, message = used(any_server.client())
        upgrade(queue)
        queue.write("b", {"n": 4})
        assert queue.extend(message) == 1
        assert queue.exchange(message, consumer="c").done == 1
        queue.set_rule("a", weight=2)
        FairQueueReaper(queue).perform(Slice(5, 5.0))
        read = drained(queue)
        assert queue.ack(*read) == len(read) == 2
        assert queue.client.hget(queue.keys.meta, "mark") == b"2"
        (check,) = queue.inspect(queue.check_steps())
        assert check.level == "ok"
        queue.delete()
        assert not queue.client.exists(queue.keys.meta)

    def test_one_that_only_newer_releases_read_is_refused(self, redis7: RedisServer) -> None:
        queue, message = used(redis7.client())
        upgrade(queue, readable_from=2, writable_from=2)
        before = everything(queue.client)
        for name, call in CALLS.items():
            with pytest.raises(LayoutError, match=r"version 2, which this release .* cannot read"):
                pytest.fail(f"{name}: {call(queue, message)}")
            assert everything(queue.client) == before, name


class TestNamespaces:
    """A queue is one namespace's: a second one's job would delete it while it is in use."""

    CALLS: ClassVar[dict[str, Call]] = {
        name: CHANGES[name] for name in ("write", "nack", "extend", "revive", "set_rule", "delete")
    }

    @pytest.mark.parametrize("call", [*CALLS, "read"])
    def test_another_namespace_is_refused(self, any_server: AnyServer, call: str) -> None:
        client = any_server.client()
        _, message = used(client)
        other = queue_on(client, namespace="other")
        # Its layout is written down by the first queue that it has.
        queue_on(client, name="r", namespace="other").write("a", {"n": 1})
        before = {key: client.type(key) for key in client.keys("*")}
        with pytest.raises(LayoutError, match="namespace fair_queues and not to other: give"):
            CHANGES[call](other, message)
        assert {key: client.type(key) for key in client.keys("*")} == before
        assert other._place is not None
        assert client.zscore(other._place[0], "q") is None

    def test_the_other_namespace_may_have_it_once_it_is_gone(self, any_server: AnyServer) -> None:
        client = any_server.client()
        queue, _ = used(client)
        queue.delete()
        other = queue_on(client, namespace="other")
        other.write("a", {"n": 1})
        assert client.hget(other.keys.meta, "namespace") == b"other"
        with pytest.raises(LayoutError, match="namespace other and not to fair_queues"):
            queue.write("a", {"n": 1})

    @pytest.mark.real
    def test_one_of_another_structure_is_refused(self, redis7: RedisServer) -> None:
        client = redis7.client()
        DurableKeys(client, "mine").set("k", 1)
        ShuffleQueue(client, "s", namespace="theirs").write("a", {"n": 1})
        before = everything(client)
        for namespace in ("mine", "theirs"):
            with pytest.raises(LayoutError, match="fair queues"):
                queue_on(client, namespace=namespace).write("a", {"n": 1})
        assert everything(client) == before


@pytest.mark.real
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_policy_that_evicts_messages_is_refused(
    start_redis: Callable[..., RedisServer], policy: str
) -> None:
    client = start_redis(7, maxmemory_policy=policy).client()
    for call in (lambda q: q.write("a", {"n": 1}), lambda q: q.read("c")):
        with pytest.raises(EvictionPolicyError, match=policy):
            call(queue_on(client))
    assert client.dbsize() == 0
    queue_on(client, allow_eviction=[policy]).write("a", {"n": 1})


@pytest.mark.real
def test_eviction_takes_no_message(start_redis: Callable[..., RedisServer]) -> None:
    client = start_redis(7, maxmemory="6mb", maxmemory_policy="volatile-lru").client()
    queue = queue_on(client)
    ids = [queue.write(f"tenant {n}", {"n": n}) for n in range(200)]
    pipe = client.pipeline(transaction=False)
    for n in range(3000):
        pipe.set(f"cache {n}", "x" * 5000, ex=1000)
    pipe.execute()
    assert client.info("stats")["evicted_keys"] > 0
    assert all(client.pttl(key) == -1 for key in client.keys("q/*"))
    assert sorted(message.id for message in queue.read_many("c", 1000)) == sorted(ids)


@pytest.mark.real
@pytest.mark.parametrize("name", ["a}b", "{}x", "x{y"])
def test_a_name_of_several_slots_is_refused_on_a_cluster(cluster: RedisCluster3, name: str) -> None:
    with pytest.raises(CrossSlotError):
        FairQueue(cluster.client(), name)


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_reply_of_a_write_leaves_one_message(redis7: RedisServer, retries: int) -> None:
    queue = queue_on(redis7.client())
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
        writer = queue_on(client)
        writer.write("t", {"n": 0})
        between.fail(len(between.names()) + 1, "cut")
        with pytest.raises(redis.ConnectionError):
            writer.write("t", {"n": 1})
    assert sorted(each.fields[b"n"] for each in drained(queue)) == [b"0", b"1"]


class TestInUse:
    """A queue that somebody works on is found by its job, and kept, however short its ttl."""

    @pytest.mark.parametrize("use", ["read", "read_many", "extend", "exchange", "nothing"])
    def test_who_works_on_it_keeps_it(self, redis7: RedisServer, use: str) -> None:
        # A message in hand keeps its queue for as long as its lease.
        lease = 0.5 if use == "nothing" else 60.0
        queue = queue_on(redis7.client(), ttl=1.0, lease=lease)
        now = 0.0
        queue.monotonic = lambda: now  # type: ignore[method-assign]
        queue.write("t", {"n": 1})
        held = got(queue.read("c"))
        lived = 0
        # Both clocks are the test's: the reader's own, and the one by which the server judges.
        for _ in range(20):
            now += 0.2
            queue.clock_shift_ms += 200
            if use == "read":
                assert queue.read("c") is None
            elif use == "read_many":
                assert queue.read_many("c", 2) == []
            elif use == "extend":
                assert queue.extend(held) == 1
            elif use == "exchange":
                assert queue.exchange(consumer="c").messages == []
            QueueExpiry(queue).perform(Slice(100, 10.0))
            if not queue.client.exists(queue.keys.meta):
                break
            lived += 1
        assert lived < 9 if use == "nothing" else lived == 20

    @pytest.mark.parametrize("window", [3, 10])
    def test_a_key_that_outlives_its_message_keeps_it(
        self, redis7: RedisServer, window: int
    ) -> None:
        """Else a message comes twice within the window, after a pause. In hours."""
        queue = queue_on(redis7.client(), ttl=4 * 3600.0, lease=3600.0)
        queue.write("t", {"n": 1}, dedupe=("k", window * 3600), dedupe_ended=True)
        assert queue.ack(got(queue.read("c"))) == 1
        held = []
        for hour in range(13):
            soon = queue_on(queue.client, hour * 3_600_000)
            QueueExpiry(soon).perform(Slice(100, 10.0))
            held.append(queue.client.hexists(queue.keys.of("dedupe"), "k"))
        assert all(held[:window])
        # Not for much longer than either.
        assert not any(held[max(window, 5) + 2 :])

    @pytest.mark.real
    def test_who_sleeps_keeps_it(self, redis7: RedisServer) -> None:
        queue = queue_on(redis7.client(), ttl=1.0)
        assert queue.read("sleeper") is None

        def idle_from() -> float:
            place = queue._place
            assert place is not None
            return float(queue.client.zscore(place[0], queue.keys.name) or 0.0)

        sleeper = threading.Thread(
            target=queue.read, args=("sleeper",), kwargs={"block": LONG_SECONDS}
        )
        sleeper.start()
        for _ in range(3):
            before = idle_from()
            wait_until(lambda before=before: idle_from() > before, "the sleeper to keep the queue")
        queue.write("t", {"n": 1})
        sleeper.join()

    @pytest.mark.parametrize("by", ["writer", "reader", "rule"])
    def test_one_that_came_after_a_loss_of_everything_is_found_when_it_is_idle(
        self, redis7: RedisServer, by: str
    ) -> None:
        queue = queue_on(redis7.client())
        queue.read("c")
        queue.write("t", {"n": 1})
        queue.client.flushall()
        if by == "writer":
            queue.write("t", {"n": 2})
        elif by == "rule":
            queue.set_rule("t", weight=2)
        else:
            now = queue.monotonic() + 10
            queue.monotonic = lambda: now  # type: ignore[method-assign]
            assert queue.read("c") is None
        assert queue.client.exists(queue.names.layout)
        place = queue._place
        assert place is not None
        queue.client.zadd(place[0], {"q": 1})
        job = QueueExpiry(queue)
        wait_until(lambda: not job.perform(Slice(100, 10.0)), "the end")
        left = [key for key in queue.client.keys("q/*") if queue.client.pttl(key) == -1]
        assert left == []

    @pytest.mark.real
    @pytest.mark.parametrize("loss", ["flushall", "delete", "expiry"])
    def test_who_sleeps_is_woken_after_the_queue_went(self, redis7: RedisServer, loss: str) -> None:
        queue = queue_on(redis7.client())
        assert queue.read("before") is None
        found: list[Any] = []
        sleeper = threading.Thread(
            target=lambda: found.append(
                queue_on(redis7.client()).read("sleeper", block=LONG_SECONDS)
            )
        )
        sleeper.start()
        wait_until(
            lambda: queue.client.info("clients")["blocked_clients"] == 1, "the reader to wait"
        )
        later = queue_on(queue.client, 10**10)
        losses: dict[str, Callable[[], Any]] = {
            "flushall": queue.client.flushall,
            "delete": queue.delete,
            "expiry": lambda: QueueExpiry(later).perform(Slice(100, 10.0)),
        }
        losses[loss]()
        queue.write("t", {"n": 1})
        sleeper.join(2 * LONG_SECONDS)
        assert [each.fields for each in found] == [{b"n": b"1"}]


def test_the_pickup_delay_stands_on_the_current_span(any_server: AnyServer) -> None:
    finished = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(finished))
    tracer = provider.get_tracer("tests")
    queue = queue_on(any_server.client())
    queue.write("t", {"a": 1})
    with tracer.start_as_current_span("work"):
        message = got(queue.read("c"))
    with tracer.start_as_current_span("idle"):
        assert queue.read("c") is None
    work, idle = finished.get_finished_spans()
    assert dict(work.attributes or {}) == {"queue.pickup_delay_ms": message.pickup_delay_ms}
    assert dict(idle.attributes or {}) == {}
