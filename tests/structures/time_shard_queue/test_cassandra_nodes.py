"""A TimeShardQueue on three Cassandra nodes: one dies, or was down for too long.

Of two nodes a quorum is both, so none may die. Three are the fewest of which one may.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.cassandra import (
    KEYSPACE,
    CassandraMissingError,
    CassandraNode,
    agreed,
    connected,
    find_jars,
)
from support.set_clock import SetClock
from support.time_shard_queues import TURN, totals
from workstealing.jobs import TimeShardSweeper
from workstealing.jobs.time_shard_sweeper.cassandra_sweeping import BROUGHT_BACK
from workstealing.recruiting import Slice
from workstealing.structures import TimeShardQueue
from workstealing.structures.time_shard_queue.cassandra_store import CassandraStore

pytestmark = pytest.mark.cassandra

GRACE_SECONDS = 5
TOKENS = (-(1 << 62), 0, 1 << 62)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[CassandraNode]]:
    """Three nodes, none of which keeps writes for one that is down."""
    try:
        find_jars()
    except CassandraMissingError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        found: list[CassandraNode] = []
        for number, token in enumerate(TOKENS, 1):
            seed = found[0].storage if found else None
            node = CassandraNode(f"127.0.0.{number}", seed, hints=False, token=token)
            found.append(stack.enter_context(node))
        yield found


@pytest.fixture(scope="module")
def session(nodes: list[CassandraNode]) -> Iterator[Any]:
    """A session on the two nodes that no test stops, with a keyspace of three replicas."""
    with connected(*nodes[:2]) as session:
        agreed(session, 3)
        session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        agreed(session, 3)
        yield session


@pytest.fixture
def clock() -> SetClock:
    """The time of day, which the test sets."""
    return SetClock()


def create_table_anew(session: Any, table: str, *grace_seconds: int) -> None:
    """Create a table; a second try of a test meets nothing of its first."""
    session.execute(f"DROP TABLE IF EXISTS {KEYSPACE}.{table}")
    agreed(session, 3)
    CassandraStore(session, KEYSPACE, table).create_table(*grace_seconds)
    agreed(session, 3)


def queue_of(session: Any, clock: SetClock, table: str, ahead_ms: int = 0) -> TimeShardQueue:
    store = CassandraStore(session, KEYSPACE, table, clock_shift_ms=ahead_ms)
    return TimeShardQueue(store, "letters", 6, 60, clock=clock)


def test_consumers_go_on_when_a_node_dies_that_held_their_leases(
    nodes: list[CassandraNode], session: Any, clock: SetClock
) -> None:
    create_table_anew(session, "dying")
    queue = queue_of(session, clock, "dying")
    ids = [queue.put(str(number), due=1000.0 + number) for number in range(30)]
    clock.go(TURN)
    held = queue.take_many("before", 10, 600)
    nodes[2].stop(kill=True)
    try:
        # Its leases hold, and nobody else gets them.
        rest = queue.take_many("meanwhile", 50, 600)
        assert [each.id for each in (*held, *rest)] == ids
        assert queue.extend(held[0], 900)
        assert queue.release(held[1])
        assert queue.ack(*held[2:], *rest[:10]) == 18
    finally:
        nodes[2].start()
    with connected(nodes[2]) as other:
        agreed(other, 3)
        back = queue_of(other, clock, "dying")
        assert totals(back) == {"waiting": 1, "due": 1, "leased": 11}
        again = back.take("after", 600)
        assert again is not None
        assert again.id == held[1].id
        assert back.ack(held[0], again, *rest[10:]) == 12
        assert totals(back) == {}
        ahead = queue_of(other, clock, "dying", 3_600_000)
        assert ahead.take_many("late", 50, drain_all=True) == []


def test_what_a_node_brings_back_that_was_down_for_too_long(
    nodes: list[CassandraNode], session: Any, clock: SetClock
) -> None:
    create_table_anew(session, "grace", GRACE_SECONDS)
    queue = queue_of(session, clock, "grace")
    ids = [queue.put(str(number), due=1000.0 + number) for number in range(20)]
    nodes[2].tool("flush", KEYSPACE, "grace")
    nodes[2].stop()
    clock.go(TURN)
    assert queue.ack(*queue.take_many("reader", 50)) == 20
    time.sleep(GRACE_SECONDS + 2)
    for node in nodes[:2]:
        node.tool("flush", KEYSPACE, "grace")
        node.tool("compact", KEYSPACE, "grace")
    nodes[2].start()
    with connected(nodes[2]) as other:
        agreed(other, 3)
        from cassandra import ConsistencyLevel
        from cassandra.query import SimpleStatement

        # All that the three nodes have together: the reader of a plain table gets them once more.
        everywhere = SimpleStatement(
            f"SELECT live, message FROM {KEYSPACE}.grace"
            " WHERE name = %s AND shard = 0 AND kind = 0",
            consistency_level=ConsistencyLevel.ALL,
        )
        assert len([row for row in other.execute(everywhere, (b"letters",)) if row.live]) == 20
        back = queue_of(other, clock, "grace")
        assert back.take_many("reader", 50) == []
        assert back.take_many("reader", 50, drain_all=True) == []
        clock.go(TURN)
        job = TimeShardSweeper(back, random=lambda: 0.5)
        assert job.perform(Slice(25, 30.0)) == 20
        clock.go(-TURN)
        assert back.take_many("reader", 50, drain_all=True) == []
        dead = back.dead()
        assert sorted(each.id for each in dead) == sorted(ids)
        assert {each.consumer for each in dead} == {BROUGHT_BACK}
