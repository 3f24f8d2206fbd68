"""FairQueueReaper: what a slice handles, how much, and what it leaves alone."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import WatchError

from support.fair_queues import drained, got, leftovers, queue_on
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import FairQueueReaper
from workstealing.jobs.fair_queue_reaper import PARTS, WHAT
from workstealing.recruiting import Slice
from workstealing.recruiting.job import Backlog
from workstealing.structures import AsyncFairQueue, ShuffleQueue
from workstealing.structures.fair_queue import FairQueue

pytestmark = pytest.mark.contract

SOON_MS, HOUR_MS, DAY_MS = 600_000, 3_600_000, 86_400_000


@pytest.fixture
def queue(any_server: AnyServer) -> FairQueue:
    return queue_on(any_server.client())


def reap(queue: FairQueue, limit: int = 100, ahead_ms: int = SOON_MS, **options: Any) -> int:
    """Do a slice of a reaper that looks so much later."""
    later = queue_on(queue.client, ahead_ms, max_attempts=queue.max_attempts)
    # The last part, the receipts of earlier readers, would be counted too.
    options.setdefault("random", lambda: random.random() * (1 - 1 / len(PARTS)))
    return FairQueueReaper(later, **options).perform(Slice(limit, 10.0))


def everything(client: Any) -> dict[bytes, Any]:
    """Return what the keys of the queue hold."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client.hgetall,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange,
    }
    own = keys_of(client)
    return {key: read[client.type(key)](key) for key in sorted(own)}


def keys_of(client: Any) -> list[bytes]:
    everywhere = {"target_nodes": "primaries"} if isinstance(client, redis.RedisCluster) else {}
    return list(client.keys("q/fair/*", **everywhere))


def busy(queue: FairQueue) -> None:
    """Let consumers die with messages, and others be past their deadlines."""
    queue.set_rule("capped", max_in_flight=2)
    for number in range(12):
        queue.write(f"t{number % 4}", {"n": number}, tracking_id=f"x{number}")
    for number in range(5):
        queue.write("capped", {"n": number})
    for number in range(6):
        queue.write("late", {"n": number}, ttl=60 + number, dedupe=(f"k{number}", 60))
    queue.write("slow", {"n": 0}, delay=10)
    assert len(queue.read_many("dead", 14)) == 14


class TestLapsed:
    def test_what_is_fresh_is_left(self, queue: FairQueue) -> None:
        queue.write("t", {"n": 1})
        message = got(queue.read("c"))
        assert reap(queue, ahead_ms=59_000) == 0
        assert reap(queue, ahead_ms=59_000, dry_run=True) == 0
        assert queue.ack(message) == 1

    def test_what_has_lapsed_is_served_again_and_counted(self, queue: FairQueue) -> None:
        queue.write("t", {"n": 1}, tracking_id="x")
        queue.write("t", {"n": 2})
        first = got(queue.read("dead"))
        assert reap(queue) >= 1
        again = got(queue.read("c"))
        assert (again.id, again.attempts, again.tracking_id) == (first.id, 2, "x")
        assert queue.ack(first) == 0
        assert queue.ack(again) == 1
        assert queue.stats()["lapsed"] == 1

    def test_who_extends_is_left_alone(self, queue: FairQueue) -> None:
        queue.write("t", {"n": 1})
        message = got(queue.read("c"))
        later = queue_on(queue.client, 50_000)
        assert later.extend(message) == 1
        assert reap(queue, ahead_ms=70_000) == 0
        assert reap(queue, ahead_ms=111_000) == 1

    def test_dead_consumers_slots_are_free_without_a_reader(self, queue: FairQueue) -> None:
        queue.set_rule("capped", max_in_flight=2)
        for number in range(4):
            queue.write("capped", {"n": number})
        assert len(drained(queue, "dead")) == 2
        assert queue.explain_wait("capped").state.in_flight == 2  # type: ignore[union-attr]
        assert reap(queue) == 2
        assert queue.explain_wait("capped").state.in_flight == 0  # type: ignore[union-attr]
        assert [each.attempts for each in drained(queue)] == [2, 2]

    def test_a_poison_message_is_set_aside(self, any_server: AnyServer) -> None:
        queue = queue_on(any_server.client(), max_attempts=2)
        written = queue.write("t", {"n": 1}, tracking_id="x", dedupe=("k", 60))
        for _ in range(2):
            assert got(queue.read("dead")).id == written
            assert reap(queue) >= 1
        assert queue.read("c") is None
        (dead,) = queue.dead()
        assert (dead.id, dead.attempts, dead.tracking_id) == (written, 2, "x")
        assert leftovers(queue).keys() <= {"dead", "accounts", "idle"}

    def test_a_sleeper_is_woken(self, any_server: AnyServer) -> None:
        queue = queue_on(any_server.client())
        queue.write("t", {"n": 1})
        assert queue.read("dead") is not None
        before = queue.client.xlen(queue.keys.notifications)
        assert reap(queue) >= 1
        assert queue.client.xlen(queue.keys.notifications) > before


class TestTheRest:
    def test_messages_past_their_deadline_go_but_for_those_in_hand(self, queue: FairQueue) -> None:
        for number in range(4):
            queue.write("t", {"n": number}, ttl=10, tracking_id=f"x{number}", dedupe=("k", 0.001))
            time.sleep(0.002)
        held = got(queue.read("c"))
        assert reap(queue, ahead_ms=20_000) >= 3
        assert queue.length() == 1
        assert queue.stats()["overdue"] == 3
        assert queue.ack(held) == 1
        assert leftovers(queue).keys() <= {"accounts", "idle"}

    def test_idle_accounts_are_forgotten_once_nothing_rests_on_their_tag(
        self, queue: FairQueue
    ) -> None:
        for number in range(30):
            queue.write(f"t{number}", {"n": number})
        queue.write("kept", {"n": 1})
        taken = queue.read_many("c", 31)
        kept = next(each for each in taken if each.account == "kept")
        assert queue.ack(*(each for each in taken if each is not kept)) == 30
        # The tags of those that were served are ahead of the virtual time, as long as one works.
        assert reap(queue, ahead_ms=0) <= 30
        assert "kept" in {each.account for each in queue.accounts()}
        assert queue.ack(kept) == 1
        for _ in range(5):
            reap(queue, ahead_ms=0)
        assert queue.accounts() == []

    def test_consumers_that_were_not_seen_for_long(self, queue: FairQueue) -> None:
        for number in range(5):
            queue.read(f"c{number}")
        assert reap(queue, ahead_ms=60_000, consumer_idle=120) == 0
        assert len(queue.stats()["consumers"]) == 5
        assert reap(queue, limit=3, ahead_ms=121_000, consumer_idle=120) == 3
        assert reap(queue, ahead_ms=121_000, consumer_idle=120) == 2
        assert queue.stats()["consumers"] == {}

    def test_names_of_messages_that_have_gone(self, queue: FairQueue) -> None:
        queue.write("t", {"n": 1}, tracking_id="x", dedupe=("k", 60))
        queue.client.delete(queue.keys.of("messages"))
        for part in ("tracking", "dedupe"):
            where = (PARTS.index(part) + 0.5) / len(PARTS)
            job = FairQueueReaper(queue, random=lambda where=where: where)
            assert job.perform(Slice(25, 10.0)) == 1
            assert job.perform(Slice(25, 10.0)) == 0
        assert "tracking" not in leftovers(queue)
        assert "dedupe" not in leftovers(queue)


class TestTheBounds:
    @pytest.mark.parametrize("limit", [1, 3, 7])
    def test_never_more_than_the_limit(self, queue: FairQueue, limit: int) -> None:
        busy(queue)
        done, idle = [], 0
        while idle < 12:
            done.append(reap(queue, limit, DAY_MS))
            idle = 0 if done[-1] else idle + 1
        assert max(done) <= limit
        assert sum(done) >= 14 + 6

    @pytest.mark.slow
    def test_a_slice_looks_at_no_more_items_however_many_there_are(
        self, redis7: RedisServer
    ) -> None:
        """Each command of its scripts counts, by the server's own statistics."""
        queue, most = queue_on(redis7.client()), []
        for size in (100, 3000):
            for first in range(0, size, 100):
                for number in range(first, first + 100):
                    queue.write(f"t{number}", {"n": number}, ttl=60, tracking_id=f"{number}")
            queue.read_many("dead", 1000)
            spent = 0
            for part in range(len(PARTS)):
                later = queue_on(redis7.client(), DAY_MS)
                job = FairQueueReaper(later, random=lambda part=part: (part + 0.5) / len(PARTS))
                redis7.client().config_resetstat()
                job.perform(Slice(10, 10.0))
                stats = redis7.client().info("commandstats")
                spent = max(spent, sum(each["calls"] for each in stats.values()))
            most.append(spent)
        assert most[1] < 1.3 * most[0]

    def test_two_round_trips(self, redis7: RedisServer) -> None:
        queue = queue_on(redis7.client())
        busy(queue)
        slice = Slice(25, 10.0)
        later = queue_on(redis7.client(), HOUR_MS)
        FairQueueReaper(later).perform(slice)
        assert slice.operations == 2


class TestWhatItSaysOfItself:
    def test_backlog(self, queue: FairQueue) -> None:
        job = FairQueueReaper(queue_on(queue.client, 100_000))
        assert job.backlog() == Backlog(0, 0.0, WHAT)
        for number in range(4):
            queue.write(f"t{number}", {"n": number})
        queue.read_many("dead", 3)
        before = everything(queue.client)
        backlog = job.backlog()
        assert (backlog.count, backlog.exact, backlog.what) == (3, True, WHAT)
        assert 40 <= backlog.oldest_seconds < 100
        assert everything(queue.client) == before
        slice = Slice(25, 10.0)
        assert job.perform(slice) >= 3
        assert slice.backlog == 3
        assert slice.oldest_seconds is not None
        assert 40 <= slice.oldest_seconds < 100
        assert job.backlog() == Backlog(0, 0.0, WHAT)

    @pytest.mark.parametrize("lost", [(), ("accounts",), ("leases", "held"), ("ready", "back")])
    def test_a_dry_run_changes_nothing(self, queue: FairQueue, lost: tuple[str, ...]) -> None:
        busy(queue)
        for each in lost:
            queue.client.delete(queue.keys.of(each))
        before = everything(queue.client)
        counted = 0
        for part in range(len(PARTS)):
            later = queue_on(queue.client, DAY_MS)
            where = (part + 0.5) / len(PARTS)
            dry = FairQueueReaper(later, dry_run=True, random=lambda where=where: where)
            counted = max(counted, dry.perform(Slice(100, 10.0)))
            assert dry.perform(Slice(2, 10.0)) <= 2
        assert everything(queue.client) == before
        assert counted >= 6
        with pytest.raises(ConfigurationError, match="dry run"):
            dry.parts(2)


class TestSweep:
    def test_parts_do_it_all(self, queue: FairQueue) -> None:
        busy(queue)
        for number in range(300):
            queue.write(f"m{number % 7}", {"n": number})
        queue.client.delete(queue.keys.of("ready"), queue.keys.of("leases"))
        job = FairQueueReaper(queue_on(queue.client, HOUR_MS))
        parts = job.parts(3)
        assert sorted(number for part in parts for number in part) == list(range(len(PARTS)))
        for part in parts:
            one, slices = job.for_part(part), 0
            while not one.is_drained:
                one.perform(Slice(10, 10.0))
                slices += 1
                assert slices < 300
        # What it has found again has lapsed since.
        while job.perform(Slice(100, 10.0)):
            pass
        assert job.backlog() == Backlog(0, 0.0, WHAT)
        later = queue_on(queue.client, HOUR_MS)
        found = drained(later)
        while found:
            assert later.ack(*found) == len(found)
            found = drained(later)
        assert later.length() == 0

    def test_nothing_to_divide(self, queue: FairQueue) -> None:
        job = FairQueueReaper(queue)
        for part in job.parts(4):
            one = job.for_part(part)
            for _ in range(4):
                assert one.perform(Slice(5, 10.0)) == 0
            assert one.is_drained


class TestAge:
    """A reaper judges by the server's clock and the records, while others rewrite them."""

    def test_accounts_that_drain_and_are_written_again_lose_nothing(self, queue: FairQueue) -> None:
        draw, seen, written = random.Random(38), set(), set()
        held: list[Any] = []
        for _ in range(800):
            chance = draw.random()
            if chance < 0.3:
                written.add(queue.write(f"t{draw.randrange(3)}", {"n": len(written)}))
            elif chance < 0.55:
                if message := queue.read("c"):
                    held.append(message)
            elif chance < 0.8 and held:
                message = held.pop(draw.randrange(len(held)))
                assert message.id not in seen
                seen.add(message.id)
                assert queue.ack(message) == 1
            else:
                reap(queue, draw.randint(1, 30), ahead_ms=draw.choice([0, 30_000]))
        for message in (*held, *drained(queue)):
            assert message.id not in seen
            seen.add(message.id)
            assert queue.ack(message) == 1
        # No id was used twice, though the accounts' records came and went.
        assert seen == written
        assert queue.length() == 0
        for _ in range(20):
            reap(queue, ahead_ms=0)
        assert leftovers(queue) == {}

    @pytest.mark.slow
    def test_beside_threads(self, redis7: RedisServer) -> None:
        messages, done = 400, threading.Event()
        acked: list[str] = []
        failures: list[BaseException] = []

        def guarded(work: Callable[[FairQueue], None]) -> None:
            try:
                with redis7.client() as client:
                    work(queue_on(client))
            except BaseException as error:  # noqa: BLE001 - the test raises it
                failures.append(error)
                done.set()

        def write(queue: FairQueue) -> None:
            for number in range(messages):
                queue.write(f"t{number % 3}", {"n": number}, ttl=600, dedupe=(f"{number}", 60))

        def work(queue: FairQueue) -> None:
            while not done.is_set():
                message = queue.read("c", block=0.05)
                if message is not None:
                    assert queue.ack(message) == 1
                    acked.append(message.id)
                    if len(acked) == 2 * messages:
                        done.set()

        def clean(queue: FairQueue) -> None:
            job = FairQueueReaper(queue, consumer_idle=0.001)
            while not done.is_set():
                try:
                    job.perform(Slice(25, 10.0))
                except WatchError as error:  # pragma: no cover - its scripts watch nothing
                    raise AssertionError from error

        threads = [
            threading.Thread(target=guarded, args=(each,))
            for each in (write, write, work, work, work, clean, clean)
        ]
        # Each writer's dedupe keys are the other's, too: so many at least are written.
        for each in threads[1:]:
            each.start()
        threads[1].join(120)
        threads[0].start()
        threads[0].join(120)
        queue = queue_on(redis7.client())
        end = time.monotonic() + 120
        while queue.length() and time.monotonic() < end and not failures:
            time.sleep(0.02)
        done.set()
        for each in threads:
            each.join(120)
        assert failures == []
        assert len(set(acked)) == len(acked) >= messages
        for _ in range(20):
            reap(queue, ahead_ms=0)
        assert leftovers(queue) == {}


class TestRefusals:
    def test_an_empty_queue(self, queue: FairQueue) -> None:
        assert reap(queue) == 0
        assert reap(queue, dry_run=True) == 0
        assert keys_of(queue.client) == []

    def test_foreign_keys(self, queue: FairQueue) -> None:
        busy(queue)
        for part in ("leases", "held", "back", "ready", "dead", "deadlines", "tracking"):
            key = queue.keys.of(part)
            kept = queue.client.dump(key)
            queue.client.delete(key)
            queue.client.set(key, "foreign")
            before = queue.client.dump(queue.keys.of("messages"))
            for call in (lambda: reap(queue), lambda: reap(queue, dry_run=True)):
                with pytest.raises(LayoutError, match="nothing was changed"):
                    call()
            assert queue.client.dump(queue.keys.of("messages")) == before
            queue.client.delete(key)
            if kept:
                queue.client.restore(key, 0, kept)
        assert reap(queue) > 0

    @pytest.mark.parametrize("mark", ["2", "x"])
    def test_a_newer_layout(self, queue: FairQueue, mark: str) -> None:
        busy(queue)
        queue.client.hset(queue.keys.meta, "mark", mark)
        for call in (lambda: reap(queue), FairQueueReaper(queue).backlog, queue.dead):
            with pytest.raises(LayoutError, match=f"says {mark}"):
                call()

    @pytest.mark.parametrize("options", [{"consumer_idle": -1}, {"limit": 0}, {"limit": 2.5}])
    def test_settings_that_are_none(self, queue: FairQueue, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            FairQueueReaper(queue, **options)

    def test_what_is_no_queue(self) -> None:
        for wrong in (ShuffleQueue(redis.Redis(), "q"), redis.Redis(), None):
            with pytest.raises(ConfigurationError, match="give a FairQueue"):
                FairQueueReaper(wrong)  # type: ignore[arg-type]


async def test_of_an_asyncio_queue(redis7: RedisServer) -> None:
    queue = AsyncFairQueue(redis7.async_client(), "q", lease=0.001)
    await queue.write("t", {"n": 1})
    assert await queue.read("dead") is not None
    job = FairQueueReaper(queue)
    for _ in range(10_000):
        if job.perform(Slice(25, 10.0)):
            break
        await asyncio.sleep(0.005)
    message = await queue.read("c")
    assert message is not None
    assert message.attempts == 2
    await queue.aclose()
