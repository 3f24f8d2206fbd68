"""TimeShardQueues under contention, death, cut connections, full memory and chance."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError
from redis.retry import Retry

from support.at_once import at_once
from support.deaths import died_of_the_switch
from support.faulty_server import FaultyServer, KillSwitch
from support.processes import end, spawn
from support.servers import AnyServer, FakeRedisServer, RedisCluster3, RedisServer
from support.set_clock import START, SetClock
from support.time_shard_queues import TURN, ahead_of, everything, queue_on
from workstealing.errors import EvictionPolicyError
from workstealing.store.keys import key_slot
from workstealing.structures import RedisStore, Taken, TimeShardQueue
from workstealing.structures.time_shard_queue.redis_store import TimeShardNames

LEASE = 30.0
LATER_MS = 60_000
EXTENSION = 1e6
"""Longer than all that passes in the model, in seconds."""


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    found: AnyServer = request.getfixturevalue(request.param)
    yield found
    found.wipe()


class TestNames:
    ODD = ("plain", "a}b", "{}x", "x{y", "{a}b", "}{", "\u00fc{\u2603}", b"\xff\x00{\xfe}")

    @pytest.mark.parametrize("name", ODD)
    def test_each_time_shard_has_all_its_keys_in_a_slot_of_its_own(self, name: str | bytes) -> None:
        raw = name if isinstance(name, bytes) else name.encode()
        slots = []
        for time_shard in range(1024):
            names = TimeShardNames(raw, time_shard)
            assert len(set(names.all)) == 8
            (slot,) = {key_slot(key) for key in names.all}
            slots.append(slot)
        assert len(set(slots)) == 1024
        masters = [slot * 3 // 16384 for slot in slots[:6]]
        assert max(masters.count(master) for master in range(3)) <= 3

    @pytest.mark.parametrize("name", ODD)
    def test_any_name_serves(
        self, any_server: AnyServer, clock: SetClock, name: str | bytes
    ) -> None:
        queue = queue_on(any_server, clock, name=name)
        message_id = queue.put("hello")
        clock.go(TURN)
        taken = queue.take("reader")
        assert taken is not None
        assert taken.id == message_id

    @pytest.mark.slow
    def test_a_thousand_messages_of_many_untagged_names(
        self, cluster: RedisCluster3, clock: SetClock
    ) -> None:
        client = cluster.client()
        queues: list[TimeShardQueue] = [
            TimeShardQueue(RedisStore(client), f"queue {number}", 5, 60, clock=clock)
            for number in range(200)
        ]
        written: set[str] = set()
        for _ in range(5):
            written |= {queue.put("hello") for queue in queues}
            clock.go(60)
        slots = {key_slot(key) for key in client.scan_iter(count=1000)}
        assert len(slots) > 500
        taken = [each for queue in queues for each in queue.take_many("c", 10, drain_all=True)]
        assert {each.id for each in taken} == written
        assert len(taken) == len(written) == 1000


class TestSeveralConsumers:
    def test_threads_take_different_messages(self, server: AnyServer, clock: SetClock) -> None:
        writer = queue_on(server, clock)
        ids = [writer.put(str(number), due=1000.0 + number % 7) for number in range(400)]
        clock.go(TURN)
        found: list[list[str]] = [[] for _ in range(6)]

        def consume(number: int) -> Callable[[], None]:
            def work() -> None:
                queue = queue_on(server, clock)
                while taken := queue.take_many(f"thread {number}", 1 + number % 3, LEASE):
                    found[number] += [each.id for each in taken]
                    if number % 2:
                        assert queue.ack(*taken) == len(taken)

            return work

        at_once([consume(number) for number in range(6)])
        assert sorted(message_id for mine in found for message_id in mine) == sorted(ids)
        assert sum(bool(mine) for mine in found) > 1, "only one has worked, so this proves nothing"

    CONSUMER = """
import sys
import redis
from workstealing.structures import RedisStore, TimeShardQueue

class Clock:
    def time(self):
        return float(sys.argv[2])

store = RedisStore(redis.Redis(port=int(sys.argv[1])))
queue = TimeShardQueue(store, "letters", 6, 60, clock=Clock())
queue.open()
print("ready", flush=True)
sys.stdin.readline()
while (taken := queue.take(sys.argv[3], 30)) is not None:
    print(taken.id, taken.message.decode(), flush=True)
    if sys.argv[3] == "dies":
        sys.stdin.readline()
    assert queue.ack(taken) == 1
"""

    def consumer(self, server: RedisServer, clock: SetClock, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", self.CONSUMER, str(server.port), str(clock.now), name]
        return spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @pytest.mark.slow
    def test_processes_take_different_messages(self, redis7: RedisServer, clock: SetClock) -> None:
        queue = queue_on(redis7, clock)
        ids = [queue.put(str(number)) for number in range(600)]
        clock.go(TURN)
        workers = [self.consumer(redis7, clock, f"process {number}") for number in range(3)]
        try:
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == b"ready\n"
            outputs = []
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(b"go\n")
                worker.stdin.flush()
            for worker in workers:
                outputs.append(worker.communicate(timeout=120)[0].decode().splitlines())
                assert worker.returncode == 0
        finally:
            for worker in workers:
                end(worker)
        found = [line.split()[0] for output in outputs for line in output]
        assert sorted(found) == sorted(ids)
        assert sum(bool(output) for output in outputs) > 1

    def test_a_process_that_is_killed_loses_nothing(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        queue = queue_on(redis7, clock)
        message_id = queue.put("hello")
        clock.go(TURN)
        worker = self.consumer(redis7, clock, "dies")
        try:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(b"go\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == b"ready\n"
            assert worker.stdout.readline() == f"{message_id} hello\n".encode()
            worker.kill()
            worker.wait(120)
        finally:
            end(worker)
        assert queue.take("other") is None
        # Its lease ends in this turn, or before the time shard's next one.
        for minutes in (0, 6):
            clock.go(60 * minutes)
            later = ahead_of(queue, clock, LATER_MS * (minutes + 1))
            again = later.take("other", LEASE)
            assert again is not None
            assert (again.id, again.attempts) == (message_id, 2 + bool(minutes))


class TestCutConnections:
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["cut", "half"])
    def test_at_each_command_nothing_is_lost(
        self, redis7: RedisServer, clock: SetClock, kind: str
    ) -> None:
        """The command has been done, its reply is lost: at every point of a message's life."""
        with FaultyServer(redis7.port) as faulty:
            redis7.client().script_flush()
            commands = self.life(redis7, faulty, clock, 0, kind)
            assert commands.count("EVALSHA") > 8
            doubles = 0
            for at in range(1, len(commands) + 1):
                redis7.client().flushall()
                # So that each life has the same commands.
                redis7.client().script_flush()
                doubles += "DOUBLE" in self.life(redis7, faulty, clock, at, kind)
            assert doubles > 0, "no put was ever done and not answered, so this proves little"

    def life(
        self, server: RedisServer, faulty: FaultyServer, clock: SetClock, at: int, kind: str
    ) -> list[str]:
        """Put, take, release, take and acknowledge; say again what has failed. Check the end."""
        faulty.reset()
        if at:
            faulty.fail(at, kind)
        client = redis.Redis(port=faulty.port, protocol=2, retry=Retry(NoBackoff(), 0))
        clock.now = START
        queue: TimeShardQueue = TimeShardQueue(RedisStore(client), "letters", 6, 60, clock=clock)
        failed: list[str] = []

        def insist(what: str, call: Callable[[], Any]) -> Any:
            for _ in range(3):
                try:
                    return call()
                except (RedisError, OSError):
                    failed.append(what)
            raise AssertionError("it fails again and again")

        written = {insist("put", lambda number=number: queue.put(str(number))) for number in "ab"}
        clock.go(TURN)
        first = insist("take", lambda: queue.take("one", LEASE))
        if first is not None:
            insist("release", lambda: queue.release(first))
        done: set[str] = set()
        while (taken := insist("take", lambda: queue.take("two", LEASE))) is not None:
            insist("ack", lambda each=taken: queue.ack(each))
            assert taken.id not in done, "acknowledged, and given to somebody again"
            done.add(taken.id)
        seen = faulty.names()
        client.close()
        # A take whose reply was lost has a lease that ends.
        later = queue_on(server, clock, ahead_ms=LATER_MS)
        rest = {each.id: each.message for each in later.take_many("three", 9)}
        assert not done & rest.keys()
        assert done | rest.keys() >= written
        extra = len(done | rest.keys()) - len(written)
        # A put whose reply was lost is there twice, since its caller has put it again.
        assert 0 <= extra <= failed.count("put")
        assert len(failed) == (1 if at else 0)
        return [*seen, *(["DOUBLE"] * extra)]


class TestWhatTheSweeperWatches:
    def test_acknowledging_and_releasing_name_none_of_its_keys(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        shards = queue_on(redis7, clock).time_shards
        names = shards.names(3)
        for steps in (
            shards.consume(3, ["3-ab"]),
            shards.release(3, "3-ab", "1", None),
        ):
            assert not set(names.watched) & set(next(steps).keys)
        assert set(names.watched) == {names.waiting, names.leased}

    @pytest.mark.parametrize("which", ["redis7", "redis8", "valkey8"])
    def test_a_real_watch_of_them_holds(
        self, request: pytest.FixtureRequest, clock: SetClock, which: str
    ) -> None:
        server: RedisServer = request.getfixturevalue(which)
        queue = queue_on(server, clock)
        ids = [queue.put(str(number), due=1000.0 + number) for number in range(6)]
        clock.go(TURN)
        taken = queue.take_many("reader", 3)
        calls: list[tuple[Callable[[], Any], bool]] = [
            (lambda: queue.ack(taken[0]), False),
            (lambda: queue.ack(ids[5]), False),
            (lambda: queue.release(taken[1]), False),
            (lambda: queue.release(taken[2], due=5.0), False),
            (lambda: queue.cancel(ids[4]), False),
            (queue.stats, False),
            (lambda: queue.take("other"), True),
        ]
        for call, breaks in calls:
            with server.client().pipeline() as pipeline:
                pipeline.watch(*queue.time_shards.names(0).watched)
                assert call()
                pipeline.multi()
                pipeline.ping()
                if breaks:
                    with pytest.raises(redis.WatchError):
                        pipeline.execute()
                else:
                    pipeline.execute()
        server.wipe()

    @pytest.mark.parametrize("which", ["redis7", "redis8", "valkey8"])
    def test_every_put_and_revival_breaks_a_watch(
        self, request: pytest.FixtureRequest, clock: SetClock, which: str
    ) -> None:
        """As everything must that may come in between."""
        server: RedisServer = request.getfixturevalue(which)
        queue = queue_on(server, clock)
        with server.client().pipeline() as pipeline:
            pipeline.watch(*queue.time_shards.names(0).watched)
            queue.put("hello")
            pipeline.multi()
            pipeline.ping()
            with pytest.raises(redis.WatchError):
                pipeline.execute()
        server.wipe()


class TestManyAtOnce:
    def taken(self, server: RedisServer, clock: SetClock) -> list[bytes]:
        return [each.message for each in queue_on(server, clock).take_many("r", 1000, LEASE)]

    @pytest.mark.parametrize("retries", [0, 3])
    def test_a_lost_reply_leaves_each_message_once(
        self, redis7: RedisServer, clock: SetClock, retries: int
    ) -> None:
        with FaultyServer(redis7.port) as between:
            client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
            queue = TimeShardQueue(RedisStore(client), "letters", clock=clock)
            queue.put("0")
            between.fail(len(between.names()) + 2, "cut")
            numbers = [str(number) for number in range(1, 300)]
            if retries:
                assert len(queue.put_many(numbers)) == 299
            else:
                with pytest.raises(redis.ConnectionError):
                    queue.put_many(numbers)
        clock.go(120)
        # Without a retry the third script was not sent.
        there = 300 if retries else 201
        assert sorted(map(int, self.taken(redis7, clock))) == list(range(there))

    def test_a_killed_producer_has_put_whole_scripts(
        self, redis7: RedisServer, clock: SetClock
    ) -> None:
        def produce(port: int) -> None:
            client = redis.Redis(port=port, protocol=2)
            queue = TimeShardQueue(RedisStore(client), "letters", clock=clock)
            queue.put_many([str(number) for number in range(250)])

        sizes = set()
        with FaultyServer(redis7.port) as door:
            for number in range(8):
                redis7.wipe()
                switch = KillSwitch(7 + number, after=number % 2 == 0)
                died_of_the_switch(switch, [door], partial(produce, door.port))
                clock.go(120)
                found = self.taken(redis7, clock)
                assert sorted(map(int, found)) == list(range(len(found)))
                sizes.add(len(found))
                clock.go(-120)
        assert sizes <= {0, 100, 200, 250}
        assert sizes & {100, 200}


class TestFullMemory:
    @pytest.mark.parametrize(("product", "version"), [("redis", 7), ("redis", 8), ("valkey", 8)])
    def test_a_put_changes_nothing_and_the_queue_can_still_be_emptied(
        self, start_redis: Callable[..., RedisServer], clock: SetClock, product: str, version: int
    ) -> None:
        server = start_redis(version, product, maxmemory_policy="noeviction")
        queue = queue_on(server, clock)
        for number in range(30):
            queue.put(str(number), due=1000.0 + number)
        admin = server.client()
        before = everything(server)
        admin.config_set("maxmemory", 1)
        with pytest.raises(OutOfMemoryError):
            queue.put("no room")
        with pytest.raises(OutOfMemoryError):
            queue.put_many(["no room", "none at all"])
        clock.go(60)
        with pytest.raises(OutOfMemoryError):
            queue.put("no room in an empty time shard")
        assert everything(server) == before
        clock.go(60)
        first = queue.take("reader", LEASE)
        assert first is not None
        assert queue.release(first)
        taken = queue.take_many("reader", 30, LEASE)
        assert taken[0].id == first.id
        assert len(taken) == 30
        assert queue.ack(*taken[:20]) == 20
        assert queue.cancel(taken[20]) is True
        later = ahead_of(queue, clock, LATER_MS)
        rest = later.take_many("other", 30)
        assert {each.id for each in rest} == {each.id for each in taken[21:]}
        assert later.ack(*rest) == 9
        assert ahead_of(queue, clock, 3 * LATER_MS).take("third") is None
        names = queue.time_shards.names(0)
        assert admin.exists(*names.all) == 1, "only the mark is left"
        admin.config_set("maxmemory", 0)
        assert queue.put("room again")

    def test_a_server_that_may_evict_messages_is_refused(
        self, start_redis: Callable[..., RedisServer], clock: SetClock
    ) -> None:
        server = start_redis(7, maxmemory_policy="allkeys-lru")
        with pytest.raises(EvictionPolicyError, match="allkeys-lru"):
            queue_on(server, clock).put("hello")
        assert everything(server) == {}
        store = RedisStore(server.client(), allow_eviction=["allkeys-lru"])
        allowed: TimeShardQueue = TimeShardQueue(store, "letters", clock=clock)
        assert allowed.put("hello")


class TestModel:
    """Any calls in any order do what a plain dictionary does."""

    KINDS = (
        *("put", "future", "take", "take", "ack", "delete", "release", "put off", "late", "end"),
        *("extend", "late put off"),
    )
    LATE = ("late put off", 3)

    # A message that waits again is released once more: it was counted twice until the next take.
    @pytest.mark.slow
    @example([*[("future", 3)] * 2, ("put", 4), ("take", 0), ("put off", 4), ("end", 5), LATE])
    @given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5)), max_size=40))
    def test_against_a_dictionary(self, calls: list[tuple[str, int]]) -> None:
        server = FakeRedisServer("model")
        clock = SetClock()
        queues = [
            queue_on(server, clock, ahead_ms=ends * LATER_MS * 1000)
            for ends in range(len(calls) + 1)
        ][:4]
        ends = 0
        # id -> (due, number of takes, holder's Taken or None, released takes)
        waiting: dict[str, float] = {}
        leased: dict[str, Taken] = {}
        dues: dict[str, float] = {}
        former: list[Taken] = []
        extended: set[str] = set()
        taken_in_vain: Counter[str] = Counter()
        for step, (kind, number) in enumerate(calls):
            queue = queues[ends]
            if kind in ("put", "future"):
                clock.now = START
                due = 1000.0 + number + step / 1000 if kind == "put" else 4e9 + step
                message_id = queue.put(str(step), due=due)
                waiting[message_id] = dues[message_id] = due
                clock.go(TURN)
            elif kind == "take":
                clock.now = START + TURN
                ready = sorted((due, each) for each, due in waiting.items() if due < 3e9)
                taken = queue.take("reader", LEASE)
                if ready:
                    assert taken is not None
                    assert (taken.due.timestamp(), taken.id) == pytest.approx(ready[0]) or (
                        taken.id == ready[0][1]
                    )
                    del waiting[taken.id]
                    leased[taken.id] = taken
                    taken_in_vain[taken.id] += 1
                    assert taken.attempts == taken_in_vain[taken.id]
                else:
                    assert taken is None
            elif kind in ("ack", "delete"):
                known = sorted([*waiting, *leased])
                if known:
                    chosen = known[number % len(known)]
                    assert queue.ack(chosen) == 1
                    assert queue.cancel(chosen) is False
                    waiting.pop(chosen, None)
                    leased.pop(chosen, None)
                    extended.discard(chosen)
            elif kind in ("release", "put off") and leased:
                chosen = sorted(leased)[number % len(leased)]
                due = dues[chosen] if kind == "release" else 4e9
                assert queue.release(leased[chosen], due=None if kind == "release" else due)
                former.append(leased.pop(chosen))
                extended.discard(chosen)
                waiting[chosen] = dues[chosen] = due
                taken_in_vain[chosen] -= 1
            elif kind == "late" and former:
                late = former[number % len(former)]
                if late.id in leased and leased[late.id].token != late.token:
                    assert queue.release(late) is False
                if late.id not in leased or leased[late.id].token != late.token:
                    assert queue.extend(late, EXTENSION) is False
            elif kind == "late put off" and former:
                late = former[number % len(former)]
                is_last = late == [each for each in former if each.id == late.id][-1]
                if is_last and late.id in waiting:
                    # Whether or not its release has been applied meanwhile.
                    assert queue.release(late, due=4e9) is True
                    waiting[late.id] = dues[late.id] = 4e9
            elif kind == "extend" and leased:
                chosen = sorted(leased)[number % len(leased)]
                assert queue.extend(leased[chosen], EXTENSION) is True
                extended.add(chosen)
            elif kind == "end" and ends + 1 < len(queues):
                ends += 1
                queue = queues[ends]
                # Those that wait come first, then all whose lease has ended, as new attempts.
                clock.now = START + TURN
                everybody = queue.take_many("reader", 1000, LEASE)
                found = {each.id for each in everybody}
                expected = {each for each, due in waiting.items() if due < 3e9} | set(leased)
                expected -= extended
                assert found == expected
                assert len(everybody) == len(found)
                former += [each for each in leased.values() if each.id not in extended]
                for each in everybody:
                    waiting.pop(each.id, None)
                    taken_in_vain[each.id] += 1
                    assert each.attempts == taken_in_vain[each.id]
                    leased[each.id] = each
        counts = queues[ends].stats()
        assert sum(each.total for each in counts) == len(waiting) + len(leased)
