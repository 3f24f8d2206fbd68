"""What is odd, late, or gone must neither strand a message nor take one from somebody else."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.reapers import reaper_after
from support.servers import AnyServer, RedisServer, wait_until
from workstealing.errors import ConfigurationError
from workstealing.jobs import QueueExpiry, ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import AsyncShuffleQueue, Message, ShuffleQueue

LONG_SECONDS = 600.0
NOT_UTF8 = b"\xff\xfe"


def queue_on(server: AnyServer | RedisServer, name: str | bytes = "q", **options: Any) -> Any:
    return ShuffleQueue(server.client(), name, **{"streams": 8, **options})


@pytest.fixture
def queue(any_server: AnyServer) -> Any:
    return queue_on(any_server)


def got(message: Message | None) -> Message:
    assert message is not None
    return message


class TestNames:
    def test_a_queue_knows_its_name(self, redis7: RedisServer) -> None:
        assert queue_on(redis7, "ä:{1}").name == "ä:{1}"
        assert queue_on(redis7, b"orders").name == "orders"

    @pytest.mark.parametrize("bad", [NOT_UTF8, "\ud800", "", b"", None, 5])
    def test_a_name_that_no_text_can_hold_is_refused(self, redis7: RedisServer, bad: Any) -> None:
        """A message tells its group and consumer as texts, by which it is acknowledged."""
        queue = queue_on(redis7)
        for call in (
            lambda: queue.read(bad, "c"),
            lambda: queue.read("g", bad),
            lambda: queue.stats(bad),
            lambda: queue.cancel(bad),
        ):
            with pytest.raises(ConfigurationError):
                call()
        if bad is not None:
            with pytest.raises(ConfigurationError):
                queue.write("t", {}, tracking_id=bad)
        assert queue.length() == 0

    def test_the_name_of_those_that_wait_is_no_consumers(self, redis7: RedisServer) -> None:
        queue = queue_on(redis7)
        for name in ("workstealing:returned", b"workstealing:returned"):
            with pytest.raises(ConfigurationError, match=r"the queue.s own"):
                queue.read("g", name)

    @pytest.mark.parametrize(
        "odd", ["a:b", "a{b}c", "{x}", "a b\n", "ünï", "group:g", "0", "-1", "%d", "^(.*)$", "a\0b"]
    )
    def test_odd_names_of_everything(self, any_server: AnyServer, odd: str) -> None:
        queue = ShuffleQueue(any_server.client(), "{x}" + odd, streams=8)
        written = queue.write(odd, {odd: odd, "": b""}, tracking_id=odd)
        message = got(queue.read(odd, odd))
        assert (message.id, message.tenant, message.tracking_id) == (written, odd, odd)
        assert (message.group, message.consumer) == (odd, odd)
        assert message.fields == {odd.encode(): odd.encode(), b"": b""}
        assert (queue.extend(message), queue.nack(message)) == (1, 1)
        again = got(queue.read(odd.encode(), odd.encode()))
        assert (again.id, again.attempts) == (written, 2)
        assert queue.stats(odd)["pending"] == 1
        assert (queue.groups(), queue.ack(again), queue.length()) == ([odd], 1, 0)
        assert not queue.cancel(odd)
        queue.delete()

    def test_a_block_without_an_end_is_refused(self, redis7: RedisServer) -> None:
        for endless in (10**400, float("nan"), float("inf"), -1):
            with pytest.raises(ConfigurationError):
                queue_on(redis7).read("g", "c", block=endless)


class TestFields:
    @pytest.mark.parametrize("deadline", ["soon", "", "1.5", "9" * 400, "nan", "0x10"])
    def test_a_foreign_deadline_hides_no_message(self, queue: Any, deadline: str) -> None:
        """Whoever writes the legacy stream may write anything."""
        queue.client.xadd("q", {"ws:deadline": deadline, "n": 1})
        queue.client.xadd("q", {"n": 2})
        found = queue.read_many("g", "c", 5)
        assert [message.fields for message in found] == [{b"n": b"1"}, {b"n": b"2"}]
        assert [message.deadline for message in found] == [None, None]
        assert queue.ack(*found) == 2

    def test_wide_and_large_ones(self, queue: Any) -> None:
        fields = {f"f{n}": bytes(range(256)) for n in range(999)}
        queue.write(b"t", {**fields, "big": b"\0" * 2_000_000}, time.time() + 60, "x")
        message = got(queue.read("g", "c"))
        assert len(message.fields) == 1000
        assert len(message.fields[b"big"]) == 2_000_000
        queue.nack(message)
        assert got(queue.read("g", "c")).fields == message.fields


class TestFormerOwners:
    """A consumer that was too slow cannot take its message from whoever has it now."""

    def recovered(self, queue: Any, by: str) -> tuple[Message, Message]:
        queue.write("t", {"n": 1})
        first = got(queue.read("g", "c"))
        time.sleep(0.005)
        job = ShuffleQueueReaper(queue, lease=0.001, random=lambda: 0.3)
        wait_until(lambda: job.perform(Slice(25, 10.0)) > 0, "the reaper to return it")
        return first, got(queue.read("g", by))

    @pytest.mark.parametrize("by", ["d", "c"])
    def test_a_late_nack_and_extend_do_nothing(self, queue: Any, by: str) -> None:
        first, second = self.recovered(queue, by)
        assert (first.attempts, second.attempts) == (1, 2)
        assert queue.nack(first) == queue.nack(first, delay=1.0) == queue.extend(first) == 0
        assert queue.read("g", "e") is None
        assert queue.extend(second) == 1
        assert queue.nack(second) == 1
        assert got(queue.read("g", "e")).attempts == 3

    @pytest.mark.parametrize("by", ["d", "c"])
    def test_a_late_ack_says_that_the_work_is_done(self, queue: Any, by: str) -> None:
        first, second = self.recovered(queue, by)
        assert (queue.ack(first), queue.ack(second), queue.nack(second)) == (1, 0, 0)
        assert (queue.read("g", "e"), queue.length()) == (None, 0)

    def test_a_nack_that_is_repeated_after_its_reply_was_lost(self, queue: Any) -> None:
        queue.write("t", {"n": 1})
        first = got(queue.read("g", "c"))
        assert queue.nack(first) == 1
        assert queue.nack(first) == 0
        second = got(queue.read("g", "c"))
        assert queue.nack(first) == 0
        assert queue.ack(second) == 1


class TestSleepers:
    """Whoever sleeps while a queue vanishes beneath it still hears of the first message after."""

    def reads(self, queue: Any, groups: tuple[str, ...], loss: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []

        def read(group: str) -> None:
            found.append(queue.read(group, f"c {group}", block=LONG_SECONDS))

        threads = [threading.Thread(target=read, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        wait_until(
            lambda: queue.client.info("clients")["blocked_clients"] == len(groups), "sleepers"
        )
        loss()
        began = time.monotonic()
        queue.write("t", {"n": 1})
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < LONG_SECONDS / 4
        return found

    @pytest.mark.real
    @pytest.mark.parametrize("loss", ["flushall", "delete", "expiry"])
    @pytest.mark.parametrize("groups", [("g",), ("g", "h")])
    def test_a_queue_that_went(
        self, redis7: RedisServer, loss: str, groups: tuple[str, ...]
    ) -> None:
        queue = queue_on(redis7)
        for group in groups:
            assert queue.read(group, "before") is None

        def expire() -> None:
            queue.client.zadd(queue._place[0], {queue.keys.name: 1})
            wait_until(lambda: not QueueExpiry(queue).perform(Slice(100, 10.0)), "the end")
            assert not queue.client.exists(queue.keys.meta)

        losses = {"flushall": queue.client.flushall, "delete": queue.delete, "expiry": expire}
        found = self.reads(queue, groups, losses[loss])
        assert [message.fields for message in found] == [{b"n": b"1"}] * len(groups)

    @pytest.mark.real
    def test_one_that_is_read_by_others_at_once(self, redis7: RedisServer) -> None:
        """Another group comes back first, and has not read what is there yet."""
        queue = queue_on(redis7)

        def loss() -> None:
            queue.client.flushall()
            other = queue_on(redis7)
            other.write("u", {"n": 0})
            assert other.read("h", "d") is not None
            other.write("u", {"n": 0})

        (found,) = self.reads(queue, ("g",), loss)
        assert found is not None


@pytest.mark.parametrize("by", ["writer", "reader", "reader of others"])
def test_a_queue_that_came_after_a_loss_of_everything_is_found_when_it_is_idle(
    redis7: RedisServer, by: str
) -> None:
    queue = queue_on(redis7)
    queue.read("g", "c")
    queue.write("t", {"n": 1})
    queue.client.flushall()
    if by == "writer":
        queue.write("t", {"n": 2})
    else:
        if by == "reader of others":
            # It has not to be announced, and learns of the loss from the read itself.
            assert queue._view("g").announced
        else:
            queue._view("g").announced.clear()
        assert queue.read("g", "c") is None
        # Nobody but readers has been here since.
        assert queue.client.exists(queue.names.layout)
    queue.client.zadd(queue._place[0], {"q": 1})
    job = QueueExpiry(redis7.client())
    wait_until(lambda: not job.perform(Slice(100, 10.0)), "the end")
    assert not queue.client.keys("q/*")


class TestShortLives:
    """A queue that somebody works on is in use, however short its time to live."""

    @pytest.mark.parametrize("use", ["read", "extend", "nothing"])
    def test_who_reads_or_extends_keeps_it(self, redis7: RedisServer, use: str) -> None:
        queue = queue_on(redis7, ttl=1.0)
        now = 0.0
        queue.monotonic = lambda: now
        queue.write("t", {"n": 1})
        held = got(queue.read("g", "c"))
        lived = 0
        # Both clocks are the test's: the reader's own, and the one by which the server judges.
        for _ in range(20):
            now += 0.2
            queue.clock_shift_ms += 200
            if use == "read":
                assert queue.read("g", "c") is None
            elif use == "extend":
                assert queue.extend(held) == 1
            QueueExpiry(queue).perform(Slice(100, 10.0))
            if not queue.client.exists(queue.keys.meta):
                break
            lived += 1
        assert lived < 6 if use == "nothing" else lived == 20

    @pytest.mark.real
    def test_who_sleeps_keeps_it(self, redis7: RedisServer) -> None:
        queue = queue_on(redis7, ttl=1.0)
        assert queue.read("g", "sleeper") is None

        def idle_from() -> float:
            return float(queue.client.zscore(queue._place[0], queue.keys.name) or 0.0)

        sleeper = threading.Thread(
            target=queue.read, args=("g", "sleeper"), kwargs={"block": LONG_SECONDS}
        )
        sleeper.start()
        for _ in range(3):
            before = idle_from()
            wait_until(lambda before=before: idle_from() > before, "the sleeper to keep the queue")
        queue.write("t", {"n": 1})
        sleeper.join()


@pytest.mark.parametrize("n", [1, 2])
def test_who_prefers_a_stream_without_messages_takes_ordinary_turns(
    any_server: AnyServer, n: int
) -> None:
    first, second = queue_on(any_server, streams_per_tenant=4), queue_on(any_server)
    assert first.read("g", "c") is second.read("g", "d") is None
    for number in range(24):
        first.write("t", {"n": number})
    order = []
    for _ in range(24 // (1 + n)):
        order.append(got(first.read("g", "c")).stream)
        order += [found.stream for found in second.read_many("g", "d", n, prefer_stream=4095)]
    rounds = [set(order[at : at + 4]) for at in range(0, 24, 4)]
    assert rounds == [set(first.streams_of("t"))] * 6


class TestSpans:
    def test_the_pickup_delay_stands_on_the_current_span(self, queue: Any) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
            InMemorySpanExporter,
        )

        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        queue.write("t", {"n": 1})
        with provider.get_tracer("test").start_as_current_span("work"):
            message = got(queue.read("g", "c"))
        with provider.get_tracer("test").start_as_current_span("nothing"):
            assert queue.read("g", "c") is None
        work, nothing = exporter.get_finished_spans()
        assert work.attributes == {"queue.pickup_delay_ms": message.pickup_delay_ms}
        assert not nothing.attributes

    def test_opentelemetry_is_not_imported_for_it(self, redis7: RedisServer) -> None:
        code = (
            "import builtins, redis\n"
            "usual, ours = builtins.__import__, []\n"
            "def note(name, globals=None, *rest, **more):\n"
            "    if name.startswith('opentelemetry'):\n"
            "        ours.append((globals or {}).get('__name__', ''))\n"
            "    return usual(name, globals, *rest, **more)\n"
            "builtins.__import__ = note\n"
            "from workstealing.structures import ShuffleQueue\n"
            f"queue = ShuffleQueue(redis.Redis.from_url({redis7.url!r}), 'q')\n"
            "queue.write('t', {'n': 1})\n"
            "assert queue.ack(queue.read('g', 'c')) == 1\n"
            "assert not [name for name in ours if name.startswith('workstealing')], ours\n"
        )
        subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


def test_the_asyncio_form_has_a_name_too(redis7: RedisServer) -> None:
    assert AsyncShuffleQueue(redis7.async_client(), "orders").name == "orders"


@pytest.mark.real
@pytest.mark.parametrize("version", [7, 8])
def test_a_full_server_is_served_by_every_call_that_frees_memory(
    start_redis: Callable[..., RedisServer], version: int
) -> None:
    client = start_redis(version, maxmemory_policy="noeviction").client()
    queue = ShuffleQueue(client, "q", streams=8)
    assert queue.read("g", "c") is None
    for number in range(6):
        queue.write("a", {"n": number}, tracking_id=f"t{number}")
    held = queue.read_many("g", "c", 3)
    due = queue._place[0]
    client.delete(due)
    client.config_set("maxmemory", 1)
    assert queue.extend(*held) == 3
    assert client.zscore(due, "q") is not None
    assert queue.nack(held[0], delay=5) == 1
    assert queue.cancel("t5")
    # A consumer whose coming could not be written down, and work that somebody else has settled.
    other = ShuffleQueue(client, "q", streams=8)
    taken = other.read_many("g", "d", 9)
    assert len(taken) == 2
    for message in taken:
        client.xack(queue.keys.stream(message.stream), "g", message.entry_id)
    before = queue.length()
    time.sleep(0.005)
    job = reaper_after(1, queue, lease=0.001, random=random.Random(3).random)
    wait_until(lambda: not sum(job.perform(Slice(25, 10.0)) for _ in range(12)), "the reaper")
    assert (before, queue.length()) == (5, 0)
    assert len(queue.dead("g")) == 3
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        queue.revive("g", queue.dead("g")[0].id)
    assert queue.discard("g", queue.dead("g")[0].id) == 1
    assert len(queue.dead("g")) == 2
    assert queue.delete() > 0
    assert all(client.pttl(key) > 0 for key in client.keys("q*"))
