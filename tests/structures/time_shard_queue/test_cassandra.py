"""What is a TimeShardQueue's on Cassandra alone: its table, its races, the driver's ways."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from operator import call
from typing import Any

import pytest

from support.cassandra import KEYSPACE, CassandraServer
from support.processes import spawn
from support.set_clock import SetClock
from support.time_shard_queues import TURN, queue_on, totals
from workstealing.errors import ConfigurationError, LayoutError, OutOfTime
from workstealing.store.operations import drive
from workstealing.structures import Taken, TimeShardQueue
from workstealing.structures.time_shard_queue.cassandra_rows import (
    DEAD,
    FIRST_ID,
    Lock,
    Query,
    RowBatch,
    id_of,
    order_of,
    row_of,
    timeuuid,
)
from workstealing.structures.time_shard_queue.cassandra_store import CassandraStore

pytestmark = pytest.mark.cassandra

CONSUMERS = 4


def lock_of(queue: TimeShardQueue, time_shard: int = 0) -> Lock:
    """Return what the lock of a time shard says."""
    opened = queue.store.run(queue.time_shards.read(time_shard))
    assert opened is not None
    lock: Lock = opened.lock
    return lock


class Recording(CassandraStore):
    """A store that notes the steps it sends, and calls `before` ahead of each batch."""

    before: Any = None
    steps: list[Any]

    def sender(self, end: float | None = None) -> Any:
        """Return a function that notes a step and sends it."""
        send = super().sender(end)
        self.steps = []

        def noted(step: Any) -> Any:
            self.steps.append(step)
            if isinstance(step, RowBatch) and step.conditional and self.before is not None:
                before, self.before = self.before, None
                before()
            return send(step)

        return noted


def recording(server: CassandraServer, clock: SetClock) -> tuple[Recording, TimeShardQueue]:
    store = Recording(server.session, KEYSPACE, server.table)
    return store, TimeShardQueue(store, "letters", 6, 60, clock=clock)


class TestRaces:
    def test_consumers_at_once_get_each_message_once(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        ids = {queue_on(cassandra, clock).put(str(n), due=1000.0 + n) for n in range(200)}
        clock.go(TURN)
        taken: list[str] = []
        lock = threading.Lock()

        def consume(number: int) -> None:
            queue = queue_on(cassandra, clock)
            chance = random.Random(number)
            while some := queue.take_many(f"c{number}", chance.randrange(1, 12), 600):
                with lock:
                    taken.extend(each.id for each in some)
                queue.ack(*some)

        with ThreadPoolExecutor(CONSUMERS) as pool:
            list(pool.map(consume, range(CONSUMERS)))
        assert len(taken) == len(ids)
        assert set(taken) == ids
        assert totals(queue_on(cassandra, clock)) == {}

    def test_one_who_comes_between_a_look_and_its_batch_gets_the_message(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        first, second = queue_on(cassandra, clock), recording(cassandra, clock)
        for number in range(3):
            first.put(str(number), due=1000.0 + number)
        clock.go(TURN)
        came: list[Taken | None] = []
        second[0].before = lambda: came.append(first.take("quick"))
        taken = second[1].take("slow")
        assert taken is not None
        assert came[0] is not None
        assert (came[0].message, taken.message) == (b"0", b"1")

    def test_an_acknowledgement_that_comes_between_wins(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue, (store, slow) = queue_on(cassandra, clock), recording(cassandra, clock)
        message_id = queue.put("hello")
        clock.go(TURN)
        store.before = lambda: queue.ack(message_id)
        assert slow.take("slow") is None
        assert totals(queue) == {}

    def test_an_extension_holds_whatever_a_late_taker_has_seen(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        queue.put("hello")
        clock.go(TURN)
        taken = queue.take("slow", 0.2)
        assert taken is not None
        time.sleep(0.3)
        store, late = recording(cassandra, clock)
        store.before = lambda: queue.extend(taken, 600)
        assert late.take("late") is None

    def test_consumers_that_are_killed_lose_nothing(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        ids = {queue.put(str(number), due=1000.0 + number) for number in range(120)}
        clock.go(TURN)
        port, chance = cassandra.node.cql, random.Random(16)
        done: set[str] = set()
        for _ in range(6):
            command = [sys.executable, "-c", CONSUMER, str(port), cassandra.table, str(clock.now)]
            with spawn(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(chance.uniform(0.0, 0.3))
                process.kill()
                # A line that was cut off says nothing.
                done |= {line.strip() for line in process.stdout if line.endswith("\n")}
        time.sleep(0.6)
        left = set()
        while some := queue.take_many("last", 100, 600):
            left |= {each.id for each in some}
            queue.ack(*some)
        # An acknowledgement may have come through before its line was written, by one a process.
        assert len(ids - left - done) <= 6 * 5
        assert not left & done
        assert totals(queue) == {}


CONSUMER = f"""
import sys
from cassandra.cluster import Cluster
from workstealing.structures import TimeShardQueue
from workstealing.structures.time_shard_queue.cassandra_store import CassandraStore

class Clock:
    def time(self):
        return float(sys.argv[3])

session = Cluster(["127.0.0.1"], port=int(sys.argv[1]), protocol_version=5).connect()
store = CassandraStore(session, "{KEYSPACE}", sys.argv[2])
queue = TimeShardQueue(store, "letters", 6, 60, clock=Clock())
queue.stats()
print("ready", flush=True)
while some := queue.take_many("dies", 5, 0.5):
    queue.ack(*some)
    print("\\n".join(each.id for each in some), flush=True)
"""


class TestReads:
    def test_a_take_reads_from_the_last_consumed_due_time_on(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        ids = [queue.put(str(number), due=1000.0 + number) for number in range(150)]
        clock.go(TURN)
        for _ in range(3):
            queue.ack(*queue.take_many("reader", 50))
        assert lock_of(queue).head == row_of(ids[-1])
        # From its start the time shard has 150 tombstones; a take meets none of them.
        assert tombstones(queue, (0, row_of(ids[0])[1])) >= 149  # type: ignore[index]
        assert tombstones(queue, lock_of(queue).head) == 0

    def test_a_message_that_is_due_before_the_head_is_put_behind_it(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        queue.put("now")
        clock.go(TURN)
        queue.ack(queue.take("reader"))  # type: ignore[arg-type]
        clock.go(6 * 60 - TURN)
        late = queue.put("long ago", due=1000.0)
        queue.put("later", due=2000.0)
        clock.go(TURN)
        first = queue.take("reader")
        assert first is not None
        assert (first.id, first.due.timestamp()) == (late, 1000.0)

    def test_every_read_is_bounded(self, cassandra: CassandraServer, clock: SetClock) -> None:
        store, queue = recording(cassandra, clock)
        for number in range(30):
            queue.put(str(number), due=1000.0)
        clock.go(TURN)
        queue.take_many("reader", 3)
        for step in store.steps:
            for each in step if isinstance(step, list) else [step]:
                if isinstance(each, Query) and each.name in {"fresh", "places", "further_places"}:
                    assert 0 < each.args[-1] <= 500

    def test_a_poll_of_an_empty_time_shard_writes_at_most_once_in_ten_seconds(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        store, queue = recording(cassandra, clock)
        queue.ack(queue.put("gone"))
        clock.go(TURN)
        batches = 0
        for _ in range(5):
            assert queue.take("reader") is None
            batches += sum(isinstance(step, RowBatch) for step in store.steps)
        assert batches == 1


def tombstones(queue: TimeShardQueue, after: Any) -> int:
    """Return how many tombstones a consumer's read from a row on meets, as its trace says."""
    query = queue.time_shards.fresh(0, after, 10**13, 50)
    met = queue.store.met(queue.store.begin_traced(query, 10), 10)
    assert met is not None
    count: int = met.tombstones
    return count


class TestTheStore:
    def test_what_may_be_sent_twice(self, cassandra: CassandraServer, clock: SetClock) -> None:
        store, queue = recording(cassandra, clock)
        queue.put("hello")
        clock.go(TURN)
        taken = queue.take("reader")
        assert taken is not None
        queue.ack(taken)
        may = {name: prepared.is_idempotent for name, prepared in store._prepared.items()}
        assert may["put"]
        assert may["fresh"]
        assert may["messages"]
        assert not may["lock"]
        assert not may["change"]
        forgetting = [step for step in store.steps if isinstance(step, RowBatch)]
        assert [store._statement(each).is_idempotent for each in forgetting] == [True]

    def test_a_put_that_is_sent_twice_is_one_message(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        store, queue = recording(cassandra, clock)
        queue.put("hello")
        (again,) = (each for each in store.steps if isinstance(each, list))
        assert drive(store.sender(), iter_of(again), call)
        assert totals(queue) == {"waiting": 1, "due": 1}

    def test_a_session_whose_rows_are_mappings(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        from cassandra.cluster import Cluster
        from cassandra.query import dict_factory

        cluster = Cluster(["127.0.0.1"], port=cassandra.node.cql, protocol_version=5)
        try:
            session = cluster.connect()
            session.row_factory = dict_factory
            store = CassandraStore(session, KEYSPACE, cassandra.table)
            queue = TimeShardQueue(store, "letters", 6, 60, clock=clock)
            queue.put("hello")
            clock.go(TURN)
            taken = queue.take("reader")
            assert taken is not None
            assert taken.message == b"hello"
        finally:
            cluster.shutdown()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("no keyspace!",), "keyspace="),
            ((KEYSPACE, "drop table"), "table="),
            ((KEYSPACE, "t"), "consistency="),
        ],
    )
    def test_what_is_refused(self, cassandra: CassandraServer, arguments: Any, said: str) -> None:
        options = {"consistency": "ONE"} if said == "consistency=" else {}
        with pytest.raises(ConfigurationError, match=said):
            CassandraStore(cassandra.session, *arguments, **options)
        with pytest.raises(ConfigurationError, match="no session"):
            CassandraStore("127.0.0.1", KEYSPACE)

    def test_an_observer_waits_no_longer_than_it_may(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        queue = queue_on(cassandra, clock)
        queue.put("hello")
        with pytest.raises(OutOfTime):
            queue.inspect(queue.time_shards.counts(range(6)), 1e-9)

    @pytest.mark.parametrize("text", ["mine", '{"structure": "other", "version": 1}'])
    def test_a_foreign_layout_changes_nothing(
        self, cassandra: CassandraServer, clock: SetClock, text: str
    ) -> None:
        store, queue = recording(cassandra, clock)
        assert store.run(iter_of(Query("new_mark", (b"letters", -1, text, None))))[0][0]
        before = cassandra.rows()
        with pytest.raises(LayoutError, match="layout"):
            queue.put("hello")
        assert cassandra.rows() == before

    def test_a_delete_that_was_cut_off_is_finished(
        self, cassandra: CassandraServer, clock: SetClock
    ) -> None:
        store, queue = recording(cassandra, clock)
        for _ in range(3):
            queue.put("hello")
            clock.go(60)

        class Cut(Exception):
            pass

        left = [9]

        def send(step: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                raise Cut
            return store.sender()(step)

        with pytest.raises(Cut):
            drive(send, queue.time_shards.delete(), call)
        other = queue_on(cassandra, clock)
        with pytest.raises(LayoutError, match="is being deleted"):
            other.put("x")
        other.delete()
        assert cassandra.rows() == {}
        # And the name can be used anew, with other time shards.
        anew = queue_on(cassandra, clock, shards=8)
        anew.put("hello")
        clock.go(TURN)
        assert anew.take("reader") is not None


def test_a_row_whose_message_is_on_another_node_breaks_nothing(
    cassandra: CassandraServer, clock: SetClock
) -> None:
    """A foreign read at ALL has repaired the column `live` on this node, and no other."""
    queue = queue_on(cassandra, clock)
    queue.put("whole", due=2000.0)
    insert = (
        f"INSERT INTO {KEYSPACE}.{cassandra.table} (name, shard, kind, due, id, live)"
        " VALUES (%s, 0, 0, %s, %s, true)"
    )
    bare = timeuuid(1000.0)
    cassandra.session.execute(insert, (b"letters", 1_000_000, bare))
    clock.go(TURN)
    (taken,) = queue.take_many("reader", 5)
    assert taken.message == b"whole"
    into = f"INSERT INTO {KEYSPACE}.{cassandra.table} (name, shard, kind, due, id,"
    cassandra.session.execute(
        f"{into} state, until) VALUES (%s, 0, 0, %s, %s, %s, %s)",
        (b"letters", 1_000_000, bare, DEAD, 5_000_000),
    )
    cassandra.session.execute(
        f"{into} of_due) VALUES (%s, 0, %s, %s, %s, %s)",
        (b"letters", DEAD, 5_000_000, bare, 1_000_000),
    )
    assert queue.dead() == []
    assert queue.ack(taken)


def iter_of(step: Any) -> Any:
    """Return a generator of one step, which returns its reply."""
    return (yield step)


def test_an_id_says_where_its_message_is() -> None:
    for due in (-(10**15), -5, 0, 1_795_486_597_061, 253_402_300_799_999):
        row = (due, timeuuid(1_795_486_597.061))
        assert row_of(id_of(17, row)) == row
    assert row_of("0-abc") is None
    assert row_of("0-" + "f" * 48) is None


def test_keys_are_compared_as_cassandra_does(cassandra: CassandraServer, clock: SetClock) -> None:
    """Of one due time and one moment, the last bytes decide, each with its sign."""
    queue = queue_on(cassandra, clock)
    ids = [queue.put(str(number), due=1000.0) for number in range(60)]
    rows = cassandra.session.execute(
        f"SELECT id FROM {KEYSPACE}.{cassandra.table} WHERE name = %s AND shard = 0 AND kind = 0",
        (b"letters",),
    )
    mine = sorted((row_of(each) or (0, FIRST_ID) for each in ids), key=order_of)
    assert [row.id for row in rows] == [id_ for _, id_ in mine]


def test_timeuuids_are_in_the_order_of_their_times() -> None:
    found = [timeuuid(second) for second in (0.0, 1.0, 1.000001, 2e9)]
    assert sorted(found, key=lambda each: each.time) == found
    assert {each.version for each in found} == {1}
