"""Huey itself; LangGraph's checkpointer and Feast by the layouts that their sources write."""

from __future__ import annotations

import datetime as dt
import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import huey
import pytest

from support.leftover_jobs import age_sightings, laps, to_the_end
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import spawn
from support.servers import RedisServer, wait_until
from workstealing.jobs import FeastLeftovers, HueyLeftovers
from workstealing.jobs.leftovers import Leftovers
from workstealing.jobs.leftovers.undoing import undo
from workstealing.jobs.library_leftovers import HueyResults, HueyRevocations, OrphanedWrites
from workstealing.testing import ShiftedTime, assert_safe, refute

pytestmark = pytest.mark.real

PROGRAM = Path(__file__).parents[2] / "support" / "huey_consumer.py"
KINDS = {
    "plain": huey.RedisHuey,
    "priority": huey.PriorityRedisHuey,
    "expiring": huey.RedisExpireHuey,
    "expiring priority": huey.PriorityRedisExpireHuey,
}


def again(client: Any, job: Leftovers) -> int:
    """Sight all items, let time pass, and remove what is the same; return how many items were."""
    assert laps(job) == 0
    age_sightings(client)
    return to_the_end(job)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def task_of(queue: Any) -> Any:
    @queue.task()
    def double(number: int) -> int:
        return 2 * number

    return double


class TestHuey:
    def test_revocations_of_tasks_that_are_gone(self, redis7: RedisServer, kind: str) -> None:
        client = redis7.client()
        queue = KINDS[kind]("the shop", url=redis7.url)
        double = task_of(queue)
        done, queued, later = double(1), double(2), double.schedule((3,), delay=3_600)
        for each in (done, queued, later):
            each.revoke()
        double.revoke()
        # The first one was executed by a worker that died before it could forget the revocation.
        queue.dequeue()
        job = HueyLeftovers(
            client, "the shop", expiring="expiring" in kind, gap=1, dry_run=False, undo=600
        )
        assert again(client, job) == 1
        assert not done.is_revoked() or double.is_revoked()
        assert queue.is_revoked(queued.task)
        double.restore()
        assert not queue.is_revoked(done.task)
        assert queue.is_revoked(queued.task)
        assert queue.is_revoked(later.task)
        assert [each.is_back for each in undo(client, "huey_leftovers")] == [True]
        assert queue.is_revoked(done.task)

    def test_one_that_is_revoked_anew_is_seen_anew(self, redis7: RedisServer) -> None:
        client = redis7.client()
        queue = huey.RedisHuey("shop", url=redis7.url)
        queue.revoke_by_id(str(uuid.uuid4()))
        job = HueyLeftovers(client, "shop", gap=1, dry_run=False)
        assert laps(job) == 0
        age_sightings(client)
        (field,) = client.hkeys("huey.results.shop")
        until = dt.datetime.now() + dt.timedelta(hours=1)  # noqa: DTZ005 - as Huey has it
        queue.revoke_by_id(field.decode()[2:], revoke_until=until)
        assert laps(job) == 0
        assert client.hlen("huey.results.shop") == 1

    @pytest.mark.parametrize("why", ["compressed", "long", "no uuid"])
    def test_what_cannot_be_known_stays(self, redis7: RedisServer, why: str) -> None:
        client = redis7.client()
        queue = huey.RedisHuey("shop", url=redis7.url, compression=why == "compressed")
        double = task_of(queue)
        for number in range(501 if why == "long" else 1):
            double(number)
        queue.revoke_by_id("mine" if why == "no uuid" else str(uuid.uuid4()))
        assert again(client, HueyLeftovers(client, "shop", gap=1, dry_run=False)) == 0
        assert client.hlen("huey.results.shop") == 1

    def test_results_that_nobody_fetches(self, redis7: RedisServer) -> None:
        client = redis7.client()
        queue = huey.RedisHuey("shop", url=redis7.url)
        double = task_of(queue)
        results = [double(number) for number in range(30)]
        for _ in results:
            queue.execute(queue.dequeue())
        lock = queue.lock_task("lock")
        lock.__enter__()
        # Rate limits came with Huey 3.
        limits = hasattr(queue, "rate_limit")
        if limits:
            queue.rate_limit("calls", 5, 60).acquire()
        fetched = results[0].get(preserve=True)
        job = HueyLeftovers(client, "shop", retention=1, dry_run=False)
        assert laps(job) == 0
        age_sightings(client)
        late = double(100)
        queue.execute(queue.dequeue())
        assert to_the_end(job) == 30
        assert fetched == 0
        assert late.get() == 200
        assert lock.is_locked()
        assert not limits or queue.get("shop.rl.calls.w", peek=True) is not None

    @pytest.mark.slow
    def test_workers_are_killed_and_others_go_on(self, redis7: RedisServer) -> None:
        """No revocation of a task that is yet to come is lost, and none is left in the end."""
        client = redis7.client()
        program = [sys.executable, "-P", PROGRAM, redis7.url, "shop"]
        ids = json.loads(subprocess.check_output([*program, "enqueue", "200"], timeout=60))
        revoked = set(ids[::2])
        job = HueyLeftovers(client, "shop", gap=1, dry_run=False)
        worker = spawn([*program, "work"], stderr=subprocess.DEVNULL)
        try:
            for _ in range(4):
                size = client.llen("huey.redis.shop")
                wait_until(lambda s=size: client.llen("huey.redis.shop") <= max(0, s - 40), "work")
                worker.send_signal(signal.SIGKILL)
                worker.wait()
                laps(job, slices=2)
                worker = spawn([*program, "work"], stderr=subprocess.DEVNULL)
            wait_until(lambda: not client.llen("huey.redis.shop"), "all tasks are taken")
        finally:
            worker.kill()
            worker.wait()
        done = {each.decode() for each in client.hkeys("huey.results.shop")}
        assert not done & revoked, "a revoked task was executed"
        laps(job)
        age_sightings(client)
        to_the_end(job)
        fields = client.hkeys("huey.results.shop")
        assert not [each for each in fields if each.startswith(b"r:")]
        assert {each.decode() for each in fields} == done & set(ids)

    @pytest.mark.slow
    @pytest.mark.parametrize("hidden", [False, True])
    def test_no_order_loses_a_revocation(self, redis7: RedisServer, hidden: bool) -> None:
        """But for the documented risk: a task that is in no queue for longer than the gap."""
        queue = huey.RedisHuey("shop", url=redis7.url)
        task = task_of(queue).s(1)
        message, revocation = queue.serialize_task(task), queue.serializer.serialize((None, False))

        def start(client: Any) -> None:
            client.hset("huey.results.shop", task.revoke_id, revocation)
            if not hidden:
                client.zadd("huey.schedule.shop", {message: 1})

        def enqueues(client: Any) -> None:
            with client.pipeline() as block:
                block.zrem("huey.schedule.shop", message)
                block.lpush("huey.redis.shop", message)
                block.execute()
            client.rpop("huey.redis.shop")

        def lost(client: Any) -> str | None:
            waits = client.llen("huey.redis.shop") or client.zcard("huey.schedule.shop")
            if waits and not client.hexists("huey.results.shop", task.revoke_id):
                return "a task waits whose revocation is gone"
            return None

        def collect(client: Any) -> Leftovers:
            rule = HueyRevocations("shop", gap=3_600)
            return Leftovers(client, [rule], name="h", dry_run=False, random=lambda: 0.0)

        if hidden:
            with pytest.raises(AssertionError, match="a task waits whose revocation is gone"):
                refuted_twice(redis7.client(), collect, enqueues, start, lost)
        else:
            refuted_twice(redis7.client(), collect, enqueues, start, lost)

    @pytest.mark.slow
    def test_no_order_loses_a_new_result(self, redis7: RedisServer) -> None:
        task = str(uuid.uuid4())

        def start(client: Any) -> None:
            client.hset("huey.results.shop", task, b"\x80old")

        def stores(client: Any) -> None:
            with client.pipeline() as block:
                block.hget("huey.results.shop", task)
                block.hdel("huey.results.shop", task)
                block.execute()
            with client.pipeline() as block:
                block.hset("huey.results.shop", task, b"\x80new")
                block.set("stored", 1)
                block.execute()

        def lost(client: Any) -> str | None:
            if client.exists("stored") and client.hget("huey.results.shop", task) != b"\x80new":
                return "a new result is gone"
            return None

        def collect(client: Any) -> Leftovers:
            rule = HueyResults("shop", 3_600)
            return Leftovers(client, [rule], name="h", dry_run=False, random=lambda: 0.0)

        client = redis7.client()
        refuted_twice(client, collect, stores, start, lost)
        assert refute(
            collect,
            [],
            setup=start,
            lost=lambda one: None if one.hexists("huey.results.shop", task) else "it is gone",
            client=client,
            slices=2,
            between=lambda clock: passes(client, clock),
        )


def passes(client: Any, clock: ShiftedTime) -> None:
    """Let the gap between two sightings pass, and the walk begin anew.

    A result that was new before it is as old by then as the user has declared.
    """
    clock.advance(4_000)
    client.delete(*client.scan_iter("*:place:*"), "stored")


def refuted_twice(client: Any, collect: Any, writer: Any, start: Any, lost: Any) -> None:
    """Fail if a history loses an item, with an hour and more between the two sightings."""
    assert_safe(
        collect,
        writer,
        setup=start,
        lost=lost,
        client=client,
        slices=2,
        between=lambda clock: passes(client, clock),
        most_histories=60_000,
    )


THREAD, TASK = "thread:1", str(uuid.UUID(int=7))
CHECKPOINT = str(uuid.UUID(int=9))


def write_key(checkpoint: str = CHECKPOINT, index: int = 0, namespace: str = "__empty__") -> str:
    return f"checkpoint_write:{THREAD}:{namespace}:{checkpoint}:{TASK}:{index}"


class TestLangGraph:
    """Strings stand for the JSON documents, which need a module: the rule reads none of them."""

    @staticmethod
    def job(client: Any, gap: float = 1.0, **options: Any) -> Leftovers:
        rule = OrphanedWrites(gap, "string")
        return Leftovers(client, [rule], name="g", dry_run=False, random=lambda: 0.0, **options)

    def test_writes_without_a_checkpoint(self, redis7: RedisServer) -> None:
        client = redis7.client()
        there, ulid = str(uuid.UUID(int=3)), "01ARZ3NDEKTSV4RRFFQ69G5FAV"
        gone = [write_key(), write_key(index=-3), write_key(ulid), write_key(namespace="sub|a:b")]
        for key in (*gone, write_key(there)):
            client.set(key, "{}")
            rest = key.removeprefix("checkpoint_write:").rsplit(":", 2)[0]
            client.zadd(f"write_keys_zset:{rest}", {key: 0})
        client.set(f"checkpoint:{THREAD}:__empty__:{there}", "{}")
        client.set("checkpoint_write:of:another:layout", "{}")
        client.set("checkpoint_write:no:uuid:here:0", "{}")
        job = self.job(client, undo=60)
        assert again(client, job) == len(gone)
        assert not client.exists(*gone)
        assert client.exists(write_key(there), "checkpoint_write:no:uuid:here:0") == 2
        assert client.exists("checkpoint_write:of:another:layout")
        assert client.keys("write_keys_zset:*") == [
            f"write_keys_zset:{THREAD}:__empty__:{there}".encode()
        ]
        assert all(each.is_back for each in undo(client, "g"))
        assert client.exists(*gone) == len(gone)
        assert len(client.keys("write_keys_zset:*")) == 4

    def test_a_shallow_savers_writes_stay(self, redis7: RedisServer) -> None:
        client = redis7.client()
        client.set(write_key(), "{}")
        client.set(f"checkpoint:{THREAD}:__empty__", "{}")
        assert again(client, self.job(client)) == 0

    def test_a_checkpoint_that_comes_late_and_a_write_that_changes(
        self, redis7: RedisServer
    ) -> None:
        client = redis7.client()
        late = str(uuid.UUID(int=4))
        client.set(write_key(), "{}")
        client.set(write_key(late), "{}")
        job = self.job(client)
        assert laps(job) == 0
        age_sightings(client)
        client.set(write_key(), "{1}")
        client.set(f"checkpoint:{THREAD}:__empty__:{late}", "{}")
        assert laps(job) == 0
        assert client.exists(write_key(), write_key(late)) == 2

    @pytest.mark.slow
    @pytest.mark.parametrize("late", [False, True])
    def test_no_order_loses_a_write(self, redis7: RedisServer, late: bool) -> None:
        """But for the documented risk: a checkpoint that comes later than the gap."""
        client = redis7.client()
        checkpoint = f"checkpoint:{THREAD}:__empty__:{CHECKPOINT}"
        register = f"write_keys_zset:{THREAD}:__empty__:{CHECKPOINT}"

        def start(client: Any) -> None:
            client.set(write_key(), "old")
            client.zadd(register, {write_key(): 0})

        def puts(client: Any) -> None:
            """As `put` and `put_writes` do it."""
            if not late:
                client.set(checkpoint, "{}")
            client.set(write_key(), "new")
            client.set("written", 1)
            if late:
                client.set(checkpoint, "{}")

        def lost(client: Any) -> str | None:
            there = client.exists(checkpoint, "written") == 2
            if there and client.get(write_key()) is None:
                return "a checkpoint's write is gone"
            return None

        collect = self.job

        def search() -> None:
            refuted_twice(client, lambda one: collect(one, 3_600), puts, start, lost)

        if late:
            with pytest.raises(AssertionError, match="a checkpoint's write is gone"):
                search()
        else:
            search()


def entity(user: int) -> bytes:
    """Return the key that Feast makes for an entity (serialization version 3) of its project."""
    name = b"user_id"
    value = user.to_bytes(8, "little")
    key = b"\x01\0\0\0\x02\0\0\0" + len(name).to_bytes(4, "little") + name
    return key + b"\x04\0\0\0" + len(value).to_bytes(4, "little") + value + b"shop"


def stamp(seconds: int, nanos: int = 0) -> bytes:
    """Return a protobuf Timestamp, as Feast writes an event time."""
    return b"".join(
        bytes([tag]) + varint(value) for tag, value in ((8, seconds), (16, nanos)) if value
    )


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


# MurmurHash3 of 32 bits of "stats:rate", "stats:trips" and "plan:name", by mmh3, little-endian.
RATE, TRIPS, PLAN = (bytes.fromhex(each) for each in ("3433b125", "eb342a65", "02ecfce9"))


class TestFeast:
    @staticmethod
    def job(client: Any, **options: Any) -> Leftovers:
        views = {"stats": (["rate", "trips"], 3_600), "plan": (["name"], 86_400)}
        return FeastLeftovers(client, "shop", views, dry_run=False, **options)

    def test_a_stale_view_goes_and_a_fresh_one_stays(self, redis7: RedisServer) -> None:
        client = redis7.client()
        now = int(client.time()[0])
        fields = {RATE: b"\x21r", TRIPS: b"\x20t", PLAN: b"\x12p", b"_ts:plan": stamp(now, 5)}
        for user in range(20):
            client.hset(entity(user), mapping={**fields, b"_ts:stats": stamp(now - 4_000, 7)})
        client.hset(entity(20), mapping={**fields, b"_ts:stats": stamp(now - 3_000)})
        client.hset(entity(21), mapping={**fields, b"_ts:stats": b"tomorrow"})
        client.hset(entity(22), mapping={RATE: b"r", b"_ts:stats": stamp(now - 4_000)})
        client.hset(b"x" + entity(1)[:-4] + b"other", mapping={b"_ts:stats": stamp(1)})
        # Of a project whose name ends like this one's, of version 2, and of nobody known.
        others = [
            entity(1)[:-4] + b"workshop",
            entity(1)[8:],
            b"\0\0\0\0shop",
            b"shop",
            b"workshop",
        ]
        for each in others:
            client.hset(each, mapping={RATE: b"r", b"_ts:stats": stamp(1)})
        before = {key: client.hgetall(key) for key in client.keys("*")}
        job = self.job(client, undo=60)
        assert to_the_end(job) == 21
        for user in range(20):
            assert client.hgetall(entity(user)) == {PLAN: b"\x12p", b"_ts:plan": stamp(now, 5)}
        assert client.hlen(entity(20)) == client.hlen(entity(21)) == 5
        assert not client.exists(entity(22))
        assert client.exists(b"x" + entity(1)[:-4] + b"other")
        assert all(client.hlen(each) == 2 for each in others)
        assert all(each.is_back for each in undo(client, "feast_leftovers"))
        assert {key: client.hgetall(key) for key in before} == before

    @pytest.mark.slow
    @pytest.mark.parametrize("skips_dedup", [False, True])
    def test_no_order_loses_a_fresh_value(self, redis7: RedisServer, skips_dedup: bool) -> None:
        now = int(redis7.client().time()[0])

        def start(client: Any) -> None:
            client.hset(entity(1), mapping={RATE: b"old", b"_ts:stats": stamp(now - 9_000)})

        def writes(client: Any) -> None:
            if not skips_dedup:
                client.hmget(entity(1), "_ts:stats")
            client.hset(entity(1), mapping={b"_ts:stats": stamp(now), RATE: b"new", TRIPS: b"new"})
            client.expire(entity(1), 86_400)

        def lost(client: Any) -> str | None:
            found = client.hgetall(entity(1))
            if found.get(b"_ts:stats") == stamp(now) and len(found) != 3:
                return "a fresh view has lost a value"
            if found and b"_ts:stats" not in found:
                return "values are left without their time"
            return None

        client = redis7.client()

        def collect(client: Any) -> Leftovers:
            return self.job(client, random=lambda: 0.0)

        assert_safe(collect, writes, setup=start, lost=lost, client=client)
        assert refute(
            collect,
            [],
            setup=start,
            lost=lambda one: None if one.exists(entity(1)) else "it is gone",
            client=client,
        )
