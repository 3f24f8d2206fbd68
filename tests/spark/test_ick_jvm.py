"""``format(ICK)`` through a real Spark session."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import dying_drivers
from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing.structures import Ick, ShardedIck

pytest.importorskip("pyspark")

from workstealing.spark.sources import ick as source

ICK = "workstealing.ick"

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

MEMBERS = {f"member {i}": float(i) for i in range(500)}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with the format, and without what a failed test has left running."""
    spark.dataSource.register(source.IckSource)
    yield spark
    for query in spark.streams.active:
        query.stop()


def sharded_on(server: RedisServer | RedisCluster3, ick_shards: int = 3) -> ShardedIck:
    made: ShardedIck = ShardedIck(server.client(), "orders", ick_shards)
    made.open()
    return made


class TestBatch:
    @pytest.mark.smoke
    def test_a_table_is_written_and_read_again(
        self, session: SparkSession, cluster: RedisCluster3
    ) -> None:
        table = session.createDataFrame(list(MEMBERS.items()), "member string, score double")
        write = table.write.format(ICK).options(url=cluster.url, ickShards=3).mode("append")
        write.save("orders")
        # Once more: nothing is there twice.
        write.save("orders")
        sharded: ShardedIck = ShardedIck(cluster.client(), "orders")
        assert sharded.stats()["total_size"] == len(MEMBERS)
        with sharded.lease("somebody", lease=3600) as ick:
            reserved = {member.decode() for member in ick.reserve(50).members}
            before = sharded.stats()
            found = session.read.format(ICK).options(url=cluster.url, name="orders").load()
            assert found.rdd.getNumPartitions() == 3
            rows = found.collect()
            after = sharded.stats()
        assert {row.member: row.score for row in rows} == MEMBERS
        assert len(rows) == len(MEMBERS)
        assert {row.member for row in rows if row.reserved} == reserved
        assert {row.ick_shard for row in rows if row.reserved} == {ick.ick_shard}
        for stats in (before, after):
            for each in stats["shards"]:
                each.pop("lease_ms")
        assert before == after

    def test_a_single_ick_binary_members_and_the_time_of_now(
        self, session: SparkSession, redis7: RedisServer
    ) -> None:
        members = [b"\xff\x00", b"plain"]
        table = session.createDataFrame(
            [(member, None) for member in members], "member binary, score int"
        )
        before = time.time()
        table.write.format(ICK).options(url=redis7.url, key="dirty").mode("append").save()
        assert Ick(redis7.client(), "dirty").stats()["pset_size"] == 2
        options = {"url": redis7.url, "key": "dirty", "members": "binary"}
        rows = session.read.format(ICK).options(**options).load().collect()
        assert sorted(bytes(row.member) for row in rows) == sorted(members)
        assert all(before - 1 <= row.score <= time.time() + 1 for row in rows)
        options["members"] = "string"
        with pytest.raises(Exception, match="is not UTF-8 text: give the option members=binary"):
            session.read.format(ICK).options(**options).load().collect()

    def test_errors_come_before_any_task(self, session: SparkSession, redis7: RedisServer) -> None:
        def write(rows: list[Any], schema: str, mode: str = "append", **options: str) -> None:
            table = session.createDataFrame(rows, schema)
            table.write.format(ICK).options(url=redis7.url, **options).mode(mode).save()

        for match, call in (
            ("unknown options: 'shards'", lambda: write([], "member int", name="a", shards="2")),
            ("never replaces", lambda: write([], "member int", "overwrite", name="a")),
            ("'member' is missing", lambda: write([], "id int", name="a")),
            (
                "'score' has the type timestamp",
                lambda: write([], "member int, score timestamp", name="a"),
            ),
            ("there is no ShardedIck", lambda: write([], "member int", name="a")),
            (
                "there is no ShardedIck",
                lambda: session.read.format(ICK).option("url", redis7.url).load("a").collect(),
            ),
            (
                "neither the option",
                lambda: session.read.format(ICK).load().collect(),
            ),
        ):
            with pytest.raises(Exception, match=match):
                call()
        with pytest.raises(Exception, match="a member is null"):
            write([(None,)], "member int", name="a", ickShards="1")


def stream(session: SparkSession, url: str, **options: Any) -> DataFrame:
    return session.readStream.format(ICK).options(url=url, name="orders", **options).load()


def ended(query: StreamingQuery, seconds: int = 120) -> None:
    assert query.awaitTermination(seconds), "the query goes on"
    assert query.exception() is None


class TestStream:
    def test_restarts_go_on_where_the_checkpoint_says(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        found: list[list[tuple[str, int]]] = []
        fails = [False, True]

        def sink(batch: DataFrame, number: int) -> None:
            # Two actions: the batch is read twice.
            count = batch.count()
            rows = [(row.member, number) for row in batch.collect()]
            assert len(rows) == count
            found.append(rows)
            if fails and fails.pop(0):
                raise RuntimeError("the sink has failed")

        def started() -> StreamingQuery:
            # The limit of a batch, and one that the last batch of this run stops at.
            writer = stream(session, redis7.url, maxMembersPerTrigger=100).writeStream
            writer = writer.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
            return writer.trigger(availableNow=True).start()

        first = started()
        with pytest.raises(Exception, match="the sink has failed"):
            first.awaitTermination(60)
        assert len(found) == 2
        stats = sharded.stats()
        assert (stats["cset_size"], stats["total_size"]) == (100, 400)
        # It holds its leases still, and the next run of it takes them over at once.
        assert stats["shards"][0]["lease_ms"] > 0
        late = {f"late {i}": float(i) for i in range(10)}
        sharded.add(late)
        ended(started())
        # The batch that failed came again, as it was.
        assert {number for _, number in found[2]} == {1}
        assert sorted(found[2]) == sorted(found[1])
        assert {name for rows in found for name, _ in rows} == {*MEMBERS, *late}
        assert sum(len(rows) for rows in found) == 510 + 100
        assert max(len(rows) for rows in found) == 100
        stats = sharded.stats()
        assert stats["total_size"] == 0
        assert [each["lease_ms"] for each in stats["shards"]] == [0, 0, 0]

    def test_available_now_ends_although_producers_go_on(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)
        found: set[str] = set()

        def sink(batch: DataFrame, number: int) -> None:
            found.update(row.member for row in batch.collect())
            sharded.add({f"added in batch {number}, {i}": 1e9 for i in range(200)})

        writer = stream(session, redis7.url, maxMembersPerTrigger=250).writeStream
        writer = writer.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        ended(query)
        # Each batch with the backlog behind it: what there was when it was planned.
        told = [each for each in query.recentProgress if each.numInputRows]
        assert [json.loads(each.sources[0].latestOffset) for each in told] == [
            {"membersInBatch": 250, "membersBehind": 250},
            {"membersInBatch": 250, "membersBehind": 200},
        ]
        assert [json.loads(each.sources[0].endOffset)["seq"] for each in told] == [1, 2]
        stats = sharded.stats()
        assert stats["cset_size"] == 0
        assert stats["total_size"] + len(found) == 500 + 2 * 200

    def test_a_second_query_is_told_of_the_first(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        sharded = sharded_on(redis7)
        sharded.add(MEMBERS)

        def started(name: str) -> StreamingQuery:
            table = stream(session, redis7.url).select("member", "score")
            writer = table.writeStream.format(ICK)
            writer = writer.options(url=redis7.url, key=f"copy {name}")
            return writer.option("checkpointLocation", str(tmp_path / name)).start()

        first = started("first")
        # Written as a stream, too, which folds.
        wait_until(lambda: _size(redis7, "copy first") == len(MEMBERS), "the copy", 60)
        wait_until(lambda: sharded.stats()["total_size"] == 0, "the end of the batch", 60)
        second = started("second")
        with pytest.raises(Exception, match="is being read by another consumer, 'spark query"):
            second.awaitTermination(60)
        assert "stop that one" in str(second.exception())
        assert first.isActive
        sharded.add({"one more": 1.0})
        wait_until(lambda: _size(redis7, "copy first") == len(MEMBERS) + 1, "one more", 60)
        assert _size(redis7, "copy second") == 0
        first.stop()


# In this order, and whether the driver that dies there was to read what is there now. The driver of
# the pipeline is killed at others, in test_pipeline.py.
DEATHS = [
    (dying_drivers.FIRST_LEASED, "on"),
    (dying_drivers.WRITTEN, "now"),
    (dying_drivers.RESERVED, "now"),
    (dying_drivers.SUNK, "on"),
]


def test_a_driver_killed_at_each_phase_and_started_again_at_once(
    session: SparkSession, redis7: RedisServer, tmp_path: Path
) -> None:
    """SIGKILL, again and again on one checkpoint, while producers go on: nothing is lost or left.

    The leases hold for hours. Only those of the first run have no name to know them by.
    """
    # One partition a batch: a JVM is slow enough.
    sharded, client = sharded_on(redis7, 1), redis7.client()
    sharded.add(MEMBERS)
    added, checkpoint = set(MEMBERS), str(tmp_path / "checkpoint")
    script = Path(__file__).with_name("ick_query.py")
    for phase, trigger in DEATHS:
        arguments = [redis7.url, checkpoint, trigger]
        dying_drivers.Drivers(script, arguments, tmp_path / "log").killed_at(phase)
        if phase in (dying_drivers.RESERVED, dying_drivers.SUNK):
            # The next run meets leases of its own that would hold for long.
            assert sharded.stats()["shards"][0]["lease_ms"] > 1_000_000
        late = {f"added after {phase} {i}": float(i) for i in range(3)}
        sharded.add(late)
        added |= set(late)
    assert sharded.stats()["cset_size"] > 0

    def sink(batch: DataFrame, number: int) -> None:
        assert number >= 1
        client.rpush("seen", *[row.member for row in batch.collect()])

    table = session.readStream.format(ICK).options(url=redis7.url, leaseSeconds=10_000)
    writer = table.load("orders").writeStream.foreachBatch(sink).trigger(availableNow=True)
    ended(writer.option("checkpointLocation", checkpoint).start(), 600)
    seen = [member.decode() for member in client.lrange("seen", 0, -1)]
    assert {*seen} == added
    # A batch that was killed came again, and nothing else did.
    assert len(seen) <= len(added) + 40 * len(DEATHS)
    stats = sharded.stats()
    assert stats["total_size"] == 0
    assert stats["shards"][0]["lease_ms"] == 0


def _size(server: RedisServer, key: str) -> int:
    stats = Ick(server.client(), key).stats()
    return int(stats["total_size"]) if stats else 0
