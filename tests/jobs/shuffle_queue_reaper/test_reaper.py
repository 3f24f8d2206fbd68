"""ShuffleQueueReaper: what it recovers, sets aside, trims, removes and puts right."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.reapers import reaper_after
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import ShuffleQueueReaper
from workstealing.jobs.shuffle_queue_reaper.job import WAITING
from workstealing.recruiting import Slice
from workstealing.recruiting.job import Backlog
from workstealing.structures.shuffle_queue import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue.names import LEGACY, RETURNED

pytestmark = pytest.mark.contract

OLD_MS = 1_000_000
IDLE_S = 500.0
Queue = ShuffleQueue


@pytest.fixture
def queue(any_server: AnyServer) -> Queue:
    return queue_on(any_server.client())


def queue_on(client: Any, streams: int = 8, **options: Any) -> Queue:
    made: Queue = ShuffleQueue(client, "q", streams=streams, streams_per_tenant=2, **options)
    return made


def age(queue: Queue, group: str = "g", *, consumers: bool = False) -> None:
    """Make every delivery to a group, or else when its consumers were seen, 1,000 s older."""
    client, names = queue.client, queue.keys.group(group)
    for number in () if consumers else (LEGACY, *range(queue.streams)):
        stream = queue.keys.stream(number)
        reader = queue.keys.name if number == LEGACY else group
        try:
            held = client.xpending_range(stream, reader, "-", "+", 10_000)
        except redis.ResponseError:
            continue
        for entry in held:
            if entry["consumer"] != RETURNED.encode():
                idle = entry["time_since_delivered"] + OLD_MS
                claim(client, stream, reader, entry, idle=idle)
    key = names.consumers if consumers else names.pending
    for member, score in client.zrange(key, 0, -1, withscores=True):
        client.zadd(key, {member: score - OLD_MS})


def claim(client: Any, stream: bytes, reader: Any, entry: dict[str, Any], **options: int) -> None:
    """Change what a pending entry says of its last delivery."""
    client.xclaim(
        *(stream, reader, entry["consumer"], 0, [entry["message_id"]]), justid=True, **options
    )


def reaper(queue: Any, *, max_attempts: int = 5, **options: Any) -> ShuffleQueueReaper:
    options = {"lease": IDLE_S, "consumer_idle": IDLE_S, **options}
    return reaper_after(max_attempts, queue, **options)


def reap(queue: Any, limit: int = 25, **options: Any) -> int:
    """Perform one slice: of the first group; its other chore puts right and trims."""
    return reaper(queue, random=lambda: 0.3, **options).perform(Slice(limit, 10.0))


def settle(queue: Any, **options: Any) -> int:
    """Perform slices, with every chore in turn, until none of them finds anything."""
    job = reaper(queue, random=random.Random(5).random, **options)
    handled, idle = 0, 0
    while idle < 24:
        done = job.perform(Slice(25, 10.0))
        handled += done
        idle = 0 if done else idle + 1
    return handled


def drained(queue: Queue, group: str = "g", consumer: str = "other") -> list[Any]:
    """Read and acknowledge until there is nothing more."""
    messages = []
    while (message := queue.read(group, consumer)) is not None:
        assert queue.ack(message) == 1
        messages.append(message)
    return messages


class TestDeadConsumers:
    def test_what_is_fresh_is_left(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        assert queue.read("g", "c") is not None
        assert settle(queue) == 0
        assert queue.read("g", "other") is None

    def test_what_is_stale_is_delivered_again_and_counted(self, queue: Queue) -> None:
        written = queue.write("t", {"a": 1}, tracking_id="x")
        first = queue.read("g", "c")
        assert first is not None
        assert first.attempts == 1
        age(queue)
        assert reap(queue) == 1
        again = queue.read("g", "other")
        assert again is not None
        assert (again.id, again.attempts, again.consumer) == (written, 2, "other")
        assert (again.fields, again.tracking_id) == (first.fields, "x")
        assert queue.ack(again) == 1
        assert settle(queue) == 0
        assert queue.length() == 0

    def test_the_slow_consumer_may_still_acknowledge(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        slow = queue.read("g", "c")
        age(queue)
        assert reap(queue) == 1
        assert queue.ack(slow) == 1
        assert queue.read("g", "other") is None
        assert queue.length() == 0

    def test_who_extends_is_left_alone(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        message = queue.read("g", "c")
        age(queue)
        assert queue.extend(message) == 1
        assert reap(queue) == 0
        assert queue.read("g", "other") is None

    def test_never_more_than_the_limit(self, queue: Queue) -> None:
        for number in range(23):
            queue.write(f"t{number}", {"a": number})
        taken = queue.read_many("g", "c", 23)
        assert len(taken) == 23
        age(queue)
        left, handled = 23, []
        while left:
            handled.append(reap(queue, limit=5))
            left -= handled[-1]
            assert len(handled) < 60
        assert max(handled) <= 5
        assert sorted(m.id for m in drained(queue)) == sorted(m.id for m in taken)

    def test_every_group_and_the_legacy_stream(self, queue: Queue) -> None:
        queue.client.xadd("q", {"old": "1"})
        queue.write("t", {"a": 1})
        taken = {group: queue.read_many(group, "c", 9) for group in ("g", "h")}
        # The groups share what the legacy stream holds.
        assert sorted(len(messages) for messages in taken.values()) == [1, 2]
        for group in taken:
            age(queue, group)
        assert settle(queue) >= 3
        again = [message for group in taken for message in drained(queue, group)]
        assert sorted((m.id, m.attempts) for m in again) == sorted(
            (m.id, 2) for messages in taken.values() for m in messages
        )

    def test_turns_are_what_they_were(self, queue: Queue) -> None:
        """A tenant whose consumers die does not come before the others, nor behind them."""
        first, second = two_apart(queue)
        for number in range(6):
            queue.write(first, {"n": number})
        dead = queue.read_many("g", "c", 6)
        for number in range(6):
            queue.write(first, {"n": 10 + number})
            queue.write(second, {"n": number})
            queue.write(second, {"n": number})
        age(queue)
        assert settle(queue) >= len(dead)
        served = drained(queue)
        streams = [message.stream for message in served]
        live = len(set(streams))
        # While all have something, each is served once in every round.
        assert all(len(set(streams[i : i + live])) == live for i in range(0, 8, live))
        returned = [m for m in served if m.attempts == 2]
        assert {m.id for m in returned} == {m.id for m in dead}
        for stream in {m.stream for m in dead}:
            own = [m.attempts for m in served if m.stream == stream]
            assert own == sorted(own, reverse=True)

    def test_a_lap_goes_on_where_the_last_slice_has_stopped(self, queue: Queue) -> None:
        """A head of fresh entries hides no stale one behind it."""
        one = ShuffleQueue(queue.client, "q", streams=1, streams_per_tenant=1)
        for number in range(200):
            one.write("t", {"n": number})
        held = one.read_many("g", "c", 200)
        age(one)
        assert one.extend(*held[:150]) == 150
        job = reaper(one)
        slices = 0
        while job.backlog().count:
            job.perform(Slice(10, 10.0))
            slices += 1
            assert slices < 60
        assert {m.id for m in drained(one)} == {m.id for m in held[150:]}

    def test_a_message_that_went_meanwhile(self, queue: Queue) -> None:
        queue.write("t", {"a": 1}, tracking_id="x")
        assert queue.read("g", "c") is not None
        age(queue)
        assert queue.cancel("x")
        settle(queue)
        names = queue.keys.group("g")
        assert queue.client.zcard(names.returned) == 0
        assert queue.client.zcard(names.pending) == 0
        assert queue.read("g", "other") is None

    def test_what_it_says_of_itself(self, queue: Queue) -> None:
        job = reaper(queue)
        assert job.backlog() == Backlog(0, 0.0, WAITING)
        for number in range(4):
            queue.write(f"t{number}", {"a": 1})
        queue.read_many("g", "c", 3)
        age(queue)
        queue.read("g", "c")
        backlog = job.backlog()
        assert (backlog.count, backlog.exact) == (3, True)
        assert OLD_MS / 1000 <= backlog.oldest_seconds < OLD_MS / 1000 + 60
        assert not job.backlog(most_entries=1).exact
        dry = reaper(queue, dry_run=True)
        assert dry.perform(Slice(25, 10.0)) == 3
        assert dry.perform(Slice(2, 10.0)) == 2
        assert job.backlog().count == 3
        slice = Slice(25, 10.0)
        job.perform(slice)
        assert slice.backlog == 3
        assert slice.oldest_seconds is not None
        assert 500 <= slice.oldest_seconds < 560
        assert slice.operations > 3


def two_apart(queue: Queue) -> tuple[str, str]:
    """Return two tenants that share no stream."""
    tenants = [f"tenant{i}" for i in range(50)]
    for one, other in itertools.combinations(tenants, 2):
        if not set(queue.streams_of(one)) & set(queue.streams_of(other)):
            return one, other
    raise AssertionError


class TestPoison:
    def die_of(self, queue: Queue, times: int, **options: Any) -> None:
        for _ in range(times):
            assert queue.read("g", "c") is not None
            age(queue)
            assert settle(queue, **options) == 1

    def test_past_the_cap_it_is_set_aside_as_it_is(self, queue: Queue) -> None:
        fields = {b"a": b"\x00\xff:,", b"3:": b""}
        written = queue.write("t", fields, deadline=4e9, tracking_id="x")
        self.die_of(queue, 3, max_attempts=3)
        assert queue.read("g", "c") is None
        assert queue.length() == 0
        (dead,) = queue.dead("g")
        assert (dead.id, dead.group, dead.tenant, dead.attempts) == (written, "g", "t", 3)
        assert (dead.fields, dead.deadline, dead.tracking_id) == (fields, 4e9, "x")
        assert dead.delivered <= dead.set_aside - OLD_MS / 1000 + 1
        assert dead.written <= dead.set_aside
        assert not queue.cancel("x")
        assert queue.stats("g")["dead"] == 1

    def test_revived_it_begins_anew(self, queue: Queue) -> None:
        queue.write("t", {b"a": b"1"}, tracking_id="x")
        self.die_of(queue, 2, max_attempts=2)
        (dead,) = queue.dead("g")
        assert queue.revive("g", dead.id, "7-1-1") == 1
        assert queue.dead("g") == []
        again = queue.read("g", "c")
        assert again is not None
        assert (again.fields, again.tenant, again.attempts) == ({b"a": b"1"}, "t", 1)
        assert again.tracking_id == "x"
        assert queue.cancel("x")

    def test_revived_for_the_group_that_it_failed(self, queue: Queue) -> None:
        assert queue.read("g", "c") is None
        queue.write("t", {b"a": b"1"})
        assert len(drained(queue, "h")) == 1
        self.die_of(queue, 2, max_attempts=2)
        (dead,) = queue.dead("g")
        assert queue.dead("h") == []
        for _ in range(2):
            assert queue.revive("g", dead.id) == 1
            assert queue.read("h", "c") is None
            self.die_of(queue, 2, max_attempts=2)
            (dead,) = queue.dead("g")
            assert dead.fields == {b"a": b"1"}
        assert queue.revive("g", dead.id) == 1
        assert [m.fields for m in drained(queue)] == [{b"a": b"1"}]
        assert queue.read("h", "c") is None
        settle(queue)
        assert queue.length() == 0

    def test_a_nack_counts(self, queue: Queue) -> None:
        queue.write("t", {b"a": b"1"})
        assert queue.nack(queue.read("g", "c")) == 1
        assert queue.read("g", "c") is not None
        age(queue)
        assert settle(queue, max_attempts=2) == 1
        assert [dead.attempts for dead in queue.dead("g")] == [2]
        assert queue.read("g", "c") is None

    def test_what_was_given_back_by_a_more_patient_process(self, queue: Queue) -> None:
        queue.write("t", {b"a": b"1"})
        for _ in range(2):
            assert queue.nack(queue.read("g", "c")) == 1
        assert queue.dead("g") == []
        age(queue)
        assert settle(queue, max_attempts=2) == 1
        assert [dead.attempts for dead in queue.dead("g")] == [2]
        assert queue.read("g", "c") is None

    def test_a_delayed_one_is_left_until_then(self, queue: Queue) -> None:
        queue.write("t", {b"a": b"1"})
        assert queue.nack(queue.read("g", "c"), delay=1000) == 1
        age(queue)
        assert settle(queue) == 0
        assert queue.read("g", "c") is None

    def test_discarded(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        self.die_of(queue, 1, max_attempts=1)
        (dead,) = queue.dead("g")
        assert queue.discard("g", dead.id) == 1
        assert queue.discard("g", dead.id) == 0
        assert queue.dead("g") == []

    def test_the_other_groups_keep_it(self, queue: Queue) -> None:
        queue.write("t", {b"a": b"1"})
        assert queue.read("h", "c") is not None
        self.die_of(queue, 1, max_attempts=1)
        assert len(queue.dead("g")) == 1
        age(queue, "h")
        assert settle(queue) == 1
        assert [m.fields for m in drained(queue, "h")] == [{b"a": b"1"}]
        assert queue.length() == 0

    def test_of_the_legacy_stream(self, queue: Queue) -> None:
        queue.client.xadd("q", {"old": "1"})
        self.die_of(queue, 1, max_attempts=1)
        (dead,) = queue.dead("g")
        assert dead.id.startswith("default-")
        assert (dead.tenant, dead.fields) == (None, {b"old": b"1"})
        assert queue.revive("g", dead.id) == 1
        assert [m.fields for m in drained(queue)] == [{b"old": b"1"}]

    def test_they_are_listed_from_the_oldest_on_and_it_is_said_how_many_more_there_are(
        self, queue: Queue
    ) -> None:
        """They came at random, a hundred by default, and nothing said that there were more."""
        drained(queue)
        assert (queue.dead("g"), queue.dead("g").more) == ([], 0)
        order = [i * 7 % 450 for i in range(450)]
        for i in order:
            parts = ("2", "1", str(1000 + i), "n", str(i), "ws:tenant", "t")
            grave = "".join(f"{len(part)}:{part}," for part in parts)
            queue.client.hset(queue.keys.group("g").dead, f"3:1-{i}", grave)
        listed = queue.dead("g")
        assert [each.id for each in listed] == [f"3-1-{i}" for i in range(100)]
        assert [each.set_aside for each in listed] == [(1000 + i) / 1000 for i in range(100)]
        assert {each.attempts for each in listed} == {2}
        assert (listed.total, listed.more) == (450, 350)
        assert (len(queue.dead("g", 450)), queue.dead("g", 450).more) == (450, 0)

    @pytest.mark.parametrize("n", [0, -1, True, 1.5, 10_001])
    def test_a_number_that_is_none(self, queue: Queue, n: Any) -> None:
        with pytest.raises(ConfigurationError, match="dead messages"):
            queue.dead("g", n)

    def test_an_id_that_is_none(self, queue: Queue) -> None:
        for call in (queue.revive, queue.discard):
            with pytest.raises(ConfigurationError, match="no id of a message"):
                call("g", "nonsense")


class TestTrimming:
    def test_what_somebody_else_has_acknowledged(self, queue: Queue) -> None:
        queue.write("t", {"a": 1}, tracking_id="x")
        queue.write("t", {"a": 2})
        mine, other = queue.read("g", "c"), queue.read("g", "c")
        assert mine is not None
        assert other is not None
        queue.client.xack(queue.keys.stream(mine.number), "g", mine.entry_id)
        assert queue.length() == 2
        assert settle(queue) == 1
        assert queue.length() == 1
        assert queue.client.hlen(queue.keys.tracking) == (mine.tracking_id is None)
        assert queue.ack(other) == 1

    def test_what_a_late_group_still_needs_is_kept(self, queue: Queue) -> None:
        for number in range(3):
            queue.write("t", {"a": number})
        queue.read("h", "c")
        assert len(drained(queue)) == 3
        assert queue.length() == 3
        settle(queue)
        assert queue.length() == 3
        assert len(drained(queue, "h")) == 2
        # h has one in hand.
        assert queue.length() == 1
        settle(queue)
        assert queue.length() == 1

    def test_a_group_that_has_just_joined(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        message = queue.read("g", "c")
        assert message is not None
        queue.client.xack(queue.keys.stream(message.number), "g", message.entry_id)
        # It has registered, and has not come to the stream.
        assert queue.read("h", "c", prefer_stream=7) is not None
        assert settle(queue) == 0
        assert queue.length() == 1

    def test_many_in_slices(self, queue: Queue) -> None:
        for number in range(120):
            queue.write("t", {"a": number})
        held = queue.read_many("g", "c", 120)
        kept = held[::7]
        for message in held:
            if message not in kept:
                queue.client.xack(queue.keys.stream(message.number), "g", message.entry_id)
        assert settle(queue) == 120 - len(kept)
        assert queue.length() == len(kept)
        assert queue.ack(*kept) == len(kept)


class TestConsumers:
    def consumers(self, queue: Queue) -> set[bytes]:
        found = set()
        for number in range(queue.streams):
            try:
                listed = queue.client.xinfo_consumers(queue.keys.stream(number), "g")
            except redis.ResponseError:
                continue
            found |= {consumer["name"] for consumer in listed}
        return found - {RETURNED.encode()}

    def test_an_idle_one_that_owns_nothing_goes(self, queue: Queue) -> None:
        for consumer in ("a", "b"):
            queue.write("t", {"a": 1})
            queue.ack(queue.read("g", consumer))
        age(queue, consumers=True)
        queue.write("t", {"a": 1})
        assert self.consumers(queue) == {b"a", b"b"}
        queue.client.zadd(queue.keys.group("g").consumers, {"b": 4e12})
        assert settle(queue) == 1
        assert self.consumers(queue) == {b"b"}
        assert queue.client.zrange(queue.keys.group("g").consumers, 0, -1) == [b"b"]

    def test_one_that_owns_anything_stays(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        message = queue.read("g", "c")
        age(queue, consumers=True)
        queue.extend(message)
        settle(queue)
        assert self.consumers(queue) == {b"c"}
        assert queue.client.zcard(queue.keys.group("g").consumers) == 1
        assert queue.ack(message) == 1
        assert settle(queue) == 1
        assert self.consumers(queue) == set()

    def test_more_streams_than_one_script_looks_at(self, redis7: RedisServer) -> None:
        wide = ShuffleQueue(redis7.client(), "q", streams=600, streams_per_tenant=4)
        for number in range(30):
            wide.write(f"t{number}", {"a": 1})
        drained(wide, consumer="a")
        kept = wide.write("t", {"a": 1})
        held = wide.read("g", "b")
        assert held is not None
        assert held.id == kept
        age(wide, consumers=True)
        wide.extend(held)
        settle(wide)
        assert self.consumers(wide) == {b"b"}
        assert wide.ack(held) == 1
        settle(wide)
        assert self.consumers(wide) == set()

    def test_those_that_no_list_names(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        queue.ack(queue.read("g", "c"))
        queue.client.delete(queue.keys.group("g").consumers)
        settle(queue)
        assert queue.client.zrange(queue.keys.group("g").consumers, 0, -1) == [b"c"]


class TestTracking:
    def test_an_id_whose_message_has_gone_is_forgotten(self, queue: Queue) -> None:
        for number in range(3):
            queue.write("t", {"a": number}, tracking_id=f"x{number}")
        queue.read("g", "c")
        gone = queue.client.hget(queue.keys.tracking, "x1").decode()
        number, entry = gone.split(":")
        queue.client.xdel(queue.keys.stream(int(number)), entry)
        settle(queue)
        assert set(queue.client.hkeys(queue.keys.tracking)) == {b"x0", b"x2"}


class TestHealing:
    """What a loss of some of the keys beside the streams has left."""

    @pytest.fixture
    def busy(self, queue: Queue) -> Queue:
        for number in range(12):
            queue.write(f"t{number}", {"n": number})
        queue.read_many("g", "c", 8)
        age(queue)
        # Four are returned, four are stale, four wait.
        lost = reaper(queue, random=lambda: 0.99)
        while queue.client.zcard(queue.keys.group("g").returned) < 4:
            lost.perform(Slice(1, 10.0))
        return queue

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "lost",
        [
            *itertools.combinations(["ring", "pending", "returned", "state", "consumers"], 2),
            ("laps", "delayed"),
            ("ring", "pending", "returned", "state", "consumers", "delayed", "laps"),
        ],
        ids="-".join,
    )
    def test_keys_that_are_lost(self, busy: Queue, lost: tuple[str, ...]) -> None:
        names = busy.keys.group("g")
        busy.client.delete(*[getattr(names, name) for name in lost])
        assert settle(busy) > 0
        age(busy)
        settle(busy)
        other = queue_on(busy.client)
        assert {m.fields[b"n"] for m in drained(other)} == {b"%d" % n for n in range(12)}
        age(busy)
        settle(busy)
        assert busy.length() == 0
        assert busy.client.zcard(names.pending) == 0

    def test_facts_that_are_lost(self, busy: Queue) -> None:
        busy.client.hdel(busy.keys.meta, "span", "back:g", "turn")
        settle(busy)
        other = queue_on(busy.client)
        assert len(drained(other)) == 12

    def test_a_sleeper_is_woken(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        queue.ack(queue.read("g", "c"))
        assert queue.read("g", "c") is None
        queue.write("t", {"a": 2})
        queue.client.delete(queue.keys.group("g").ring, queue.keys.notifications)
        settle(queue)
        assert queue.client.xlen(queue.keys.notifications) == 1

    def test_a_dry_run_changes_nothing(self, busy: Queue) -> None:
        names = busy.keys.group("g")
        busy.client.delete(names.ring, names.pending)
        before = [busy.client.dump(key) for key in (busy.keys.meta, *names.all)]
        assert reap(busy, dry_run=True) > 0
        assert [busy.client.dump(key) for key in (busy.keys.meta, *names.all)] == before


class TestSweep:
    def test_parts_do_it_all(self, queue: Queue) -> None:
        for number in range(40):
            queue.write(f"t{number}", {"n": number}, tracking_id=f"x{number}")
        queue.client.xadd("q", {"old": "1"})
        for group in ("g", "h"):
            queue.read_many(group, "c", 25)
            age(queue, group)
        queue.client.delete(queue.keys.group("g").pending, queue.keys.group("h").ring)
        job = reaper(queue)
        parts = job.parts(3)
        assert sorted(number for part in parts for number in part) == list(range(-1, 8))
        for part in parts:
            one = job.for_part(part)
            slices = 0
            while not one.is_drained:
                one.perform(Slice(10, 10.0))
                slices += 1
                assert slices < 300
        assert job.backlog() == Backlog(0, 0.0, WAITING)
        assert len(drained(queue)) + len(drained(queue, "h")) == 81
        assert queue.length() == 0

    def test_nothing_to_divide(self, queue: Queue) -> None:
        assert reaper(queue).parts(4) == []
        part = reaper(queue).for_part((0, 1))
        assert part.perform(Slice(5, 10.0)) == 0
        assert part.is_drained

    def test_a_dry_run_is_no_sweep(self, queue: Queue) -> None:
        with pytest.raises(ConfigurationError, match="dry run"):
            reaper(queue, dry_run=True).parts(2)


class TestRefusals:
    def test_an_empty_queue(self, queue: Queue) -> None:
        assert reap(queue) == 0
        assert reap(queue, dry_run=True) == 0

    def test_foreign_keys(self, queue: Queue) -> None:
        queue.write("t", {"a": 1})
        queue.read("g", "c")
        age(queue)
        names = queue.keys.group("g")
        for key in (names.returned, names.dead, queue.keys.tracking, names.laps):
            kept = queue.client.dump(key)
            queue.client.delete(key)
            queue.client.set(key, "foreign")
            with pytest.raises(LayoutError, match="nothing was changed"):
                reap(queue)
            queue.client.delete(key)
            if kept:
                queue.client.restore(key, 0, kept)
        assert reap(queue) == 1

    @pytest.mark.parametrize("mark", ["2", "x"])
    def test_a_newer_layout(self, queue: Queue, mark: str) -> None:
        queue.write("t", {"a": 1})
        queue.read("g", "c")
        age(queue)
        queue.client.hset(queue.keys.meta, "mark", mark)
        for call in (lambda: reap(queue), lambda: queue.dead("g"), reaper(queue).backlog):
            with pytest.raises(LayoutError, match=f"says {mark}"):
                call()

    @pytest.mark.parametrize(
        "options",
        [{"lease": 0}, {"consumer_idle": -1}, {"limit": 0}],
    )
    def test_settings_that_are_none(self, queue: Queue, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            ShuffleQueueReaper(queue, **options)

    def test_what_is_no_queue(self) -> None:
        with pytest.raises(ConfigurationError, match="give a ShuffleQueue"):
            ShuffleQueueReaper("q")  # type: ignore[arg-type]

    def test_what_it_is_called(self, queue: Queue) -> None:
        assert reaper(queue).name == "shuffle_queue_reaper.q"
        assert reaper(queue, name="mine").name == "mine"


def test_a_reaper_that_may_not_look_says_so(redis7: RedisServer) -> None:
    queue = queue_on(redis7.client())
    queue.write("t", {"n": 1})
    queue.read("g", "c")
    age(queue)
    admin = redis7.client()
    admin.execute_command("ACL", "SETUSER", "poor", "on", ">x", "~*", "+@all", "-xpending")
    try:
        poor = queue_on(redis7.client(username="poor", password="x"))
        # The stream is no foreign key, and not empty either.
        with pytest.raises(redis.ResponseError, match=r"permission|can't run"):
            reap(poor)
        with pytest.raises(redis.ResponseError, match=r"permission|can't run"):
            reaper(poor).backlog()
    finally:
        admin.execute_command("ACL", "DELUSER", "poor")
    assert reap(queue) == 1


def test_an_asyncio_queue(redis7: RedisServer) -> None:
    async def work() -> None:
        client = redis.asyncio.Redis(port=redis7.port)
        queue: Any = AsyncShuffleQueue(client, "q", streams=8, streams_per_tenant=2)
        await queue.write("t", {b"a": b"1"})
        await queue.read("g", "c")
        age(queue_on(redis7.client()))
        assert reap(queue) == 1
        message = await queue.read("g", "d")
        assert message.attempts == 2
        age(queue_on(redis7.client()))
        assert reap(queue, max_attempts=2) == 1
        (dead,) = await queue.dead("g")
        assert await queue.revive("g", dead.id) == 1
        assert await queue.discard("g", dead.id) == 0
        assert await queue.delete() > 0
        await queue.aclose()
        await client.aclose()

    asyncio.run(work())


def fill(client: Any, size: int) -> None:
    """Write until the server refuses values of that size."""
    for number in itertools.count():
        client.set(f"{size}:{number}", b"x" * size)


def test_a_full_server_is_reaped(start_redis: Callable[..., RedisServer]) -> None:
    client = start_redis(7, maxmemory="6mb").client()
    queue = queue_on(client)
    for number in range(20):
        queue.write(f"t{number}", {"n": number})
    held = queue.read_many("g", "c", 20)
    poison = held[:5]
    for message in poison:
        entry = {"consumer": "c", "message_id": message.entry_id}
        claim(client, queue.keys.stream(message.number), "g", entry, retrycount=9)
    age(queue)
    for size in (10_000, 1):
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            fill(client, size)
    handled = 0
    while reaper(queue).backlog().count:
        handled += reap(queue, limit=10)
    assert handled == 20
    client.config_set("maxmemory", "0")
    assert sorted(dead.id for dead in queue.dead("g")) == sorted(m.id for m in poison)
    assert len(drained(queue)) == 15


@pytest.mark.cluster
def test_a_thousand_names_on_a_cluster(cluster: Any) -> None:
    client = cluster.client()
    for number in range(40):
        queue: Queue = ShuffleQueue(client, f"q{number}", streams=4, streams_per_tenant=2)
        queue.write("t", {"a": 1})
        assert queue.read("g", "c") is not None
        age(queue)
        assert reap(queue) == 1
        assert len(drained(queue)) == 1
