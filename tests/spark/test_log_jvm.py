"""``format("workstealing.log")`` through a real Spark session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing.structures import Log

pytest.importorskip("pyspark")

from workstealing.spark.sources import log as source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

FORMAT = "workstealing.log"
ENTRIES = [json.dumps({"user": i % 7, "at": i}).encode() for i in range(500)]


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with the format, and without what a failed test has left running."""
    spark.dataSource.register(source.LogSource)
    yield spark
    for query in spark.streams.active:
        query.stop()


def log_on(server: RedisServer | RedisCluster3, name: str = "activity", block: int = 50) -> Any:
    return Log(server.client(), name, block)


def entries_of(server: RedisServer | RedisCluster3, name: str) -> list[bytes]:
    return log_on(server, name).read(0, 10_000)  # type: ignore[no-any-return]


def stream(session: SparkSession, url: str, **options: Any) -> DataFrame:
    given = {"logs": "activity", **options}
    return session.readStream.format(FORMAT).options(url=url, **given).load()


def ended(query: StreamingQuery, seconds: int = 120) -> None:
    assert query.awaitTermination(seconds), "the query goes on"
    assert query.exception() is None


class TestBatch:
    @pytest.mark.smoke
    def test_a_table_is_written_and_ranges_of_it_read(
        self, session: SparkSession, cluster: RedisCluster3
    ) -> None:
        rows = [(f"log {i % 3}", f"entry {i}") for i in range(600)]
        table = session.createDataFrame(rows, "log string, value string").repartition(2)
        table.write.format(FORMAT).options(url=cluster.url, block=50).mode("append").save()
        found = session.read.format(FORMAT).options(url=cluster.url, values="string")
        whole = found.option("logs", ["log 0", "log 1", "log 2"]).option("partitions", 4).load()
        assert whole.columns == ["log", "offset", "value"]
        assert whole.rdd.getNumPartitions() == 4
        read = whole.collect()
        assert sorted((row.log, row.value) for row in read) == sorted(rows)
        for i in range(3):
            assert [row.offset for row in read if row.log == f"log {i}"] == list(range(200))
        part = found.options(startingOffset='{"log 1": -20}', endingOffset=195)
        some = part.option("logs", "log 1").load().collect()
        assert [row.offset for row in some] == list(range(180, 195))
        assert [row.value for row in some] == [
            each.decode() for each in entries_of(cluster, "log 1")[180:195]
        ]

    def test_bytes_and_a_write_that_is_done_once(
        self, session: SparkSession, redis7: RedisServer
    ) -> None:
        table = session.createDataFrame([(b"\xff\x00",), (b"plain",)], "value binary")
        write = table.coalesce(1).write.format(FORMAT).mode("append").option("url", redis7.url)
        for batch in (1, 1, 2, 2):
            write.options(query="nightly", batch=batch).save("activity")
        write = table.coalesce(1).write.format(FORMAT).mode("append").option("url", redis7.url)
        write.save("activity")
        read = session.read.format(FORMAT).option("url", redis7.url)
        assert [bytes(row.value) for row in read.load("activity").collect()] == [
            b"\xff\x00",
            b"plain",
        ] * 3
        with pytest.raises(Exception, match="leave the option values=string out"):
            read.option("values", "string").load("activity").collect()

    def test_filters_are_pushed_into_a_read_where_spark_is_told_to(
        self, session: SparkSession, redis7: RedisServer
    ) -> None:
        log_on(redis7, "a").append(*ENTRIES)
        read = session.read.format(FORMAT).options(url=redis7.url, values="string", logs="a,gone")
        wanted = "log = 'a' AND offset >= 100 AND offset < 103 AND value LIKE '{%'"
        setting = "spark.sql.python.filterPushdown.enabled"
        # Without it Spark reads everything, and there is no other log.
        with pytest.raises(Exception, match="there is no log 'gone'"):
            read.load().where(wanted).collect()
        session.conf.set(setting, True)
        try:
            # Planned anew: a plan keeps what was pushed into it.
            some = read.option("pushFilters", True).load().where(wanted)
            plan = session._jvm.PythonSQLUtils.explainString(  # type: ignore[union-attr]
                some._jdf.queryExecution(), "formatted"
            )
            rows = some.collect()
        finally:
            session.conf.unset(setting)
        (pushed,) = [line for line in plan.splitlines() if "PushedFilters" in line]
        for name in ("EqualTo(log,a)", "GreaterThanOrEqual(offset,100)", "LessThan(offset,103)"):
            assert name in pushed
        assert "StringStartsWith" not in pushed
        assert [row.offset for row in rows] == [100, 101, 102]
        assert [row.value.encode() for row in rows] == ENTRIES[100:103]
        # A reader that takes filters is read as well where the setting is off.
        assert read.option("logs", "a").load().where("offset < 7").count() == 7

    def test_errors_come_before_any_task(self, session: SparkSession, redis7: RedisServer) -> None:
        def write(schema: str, mode: str = "append", **options: str) -> None:
            table = session.createDataFrame([], schema)
            table.write.format(FORMAT).options(url=redis7.url, **options).mode(mode).save()

        def read(**options: str) -> None:
            session.read.format(FORMAT).options(url=redis7.url, **options).load().collect()

        for match, call in (
            ("unknown options: 'log'", lambda: read(logs="a", log="b")),
            ("there is no log 'a'", lambda: read(logs="a")),
            ("'block' is for writing", lambda: read(logs="a", block="5")),
            ("never replaces", lambda: write("value string", "overwrite", logs="a")),
            ("'value' is missing", lambda: write("entry string", logs="a")),
            ("'value' has the type int", lambda: write("value int", logs="a")),
            ("nothing says where rows go", lambda: write("value string")),
            ("both the option 'logs'", lambda: write("value string, log string", logs="a")),
            (
                "'partitions' is for reading",
                lambda: write("value string", logs="a", partitions="2"),
            ),
        ):
            with pytest.raises(Exception, match=match):
                call()
        table = session.createDataFrame([(None,)], "value string")
        with pytest.raises(Exception, match="a value is null"):
            table.write.format(FORMAT).option("url", redis7.url).mode("append").save("a")


class TestStream:
    def test_restarts_go_on_where_the_checkpoint_says(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        log = log_on(redis7)
        log.append(*ENTRIES)
        found: list[list[tuple[int, bytes]]] = []
        fails = [False, True]

        def sink(batch: DataFrame, number: int) -> None:
            rows = [(row.offset, bytes(row.value)) for row in batch.collect()]
            assert len(rows) == batch.count()
            found.append(rows)
            if fails and fails.pop(0):
                raise RuntimeError("the sink has failed")
            # It grows meanwhile.
            log.append(b"late")

        def started(**options: Any) -> StreamingQuery:
            writer = stream(session, redis7.url, maxOffsetsPerTrigger=120, **options).writeStream
            writer = writer.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
            return writer.trigger(availableNow=True).start()

        first = started(startingOffset=100)
        with pytest.raises(Exception, match="the sink has failed"):
            first.awaitTermination(60)
        assert [[offset for offset, _ in rows] for rows in found] == [
            list(range(100, 220)),
            list(range(220, 340)),
        ]
        # Options that have changed change nothing of a batch that was begun.
        ended(started(startingOffset="latest", partitions=1))
        assert found[2] == found[1]
        rows = [row for batch in (found[0], *found[2:]) for row in batch]
        # Up to where it ended when the run began: one entry came by the first run.
        assert [offset for offset, _ in rows] == list(range(100, 501))
        assert [value for _, value in rows] == [*ENTRIES[100:], b"late"]

    def test_exactly_once_into_another_log(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        log_on(redis7, "a").append(*ENTRIES)
        log_on(redis7, "b").append(*ENTRIES[:150])
        table = stream(session, redis7.url, logs="a,b", maxOffsetsPerTrigger=200).select("value")
        writer = table.writeStream.format(FORMAT).options(url=redis7.url, exactlyOnce=True)

        def started() -> StreamingQuery:
            return writer.option("checkpointLocation", str(tmp_path)).start("copy")

        def copied() -> int:
            return log_on(redis7, "copy").length()  # type: ignore[no-any-return]

        query = started()
        wait_until(lambda: copied() == 650, "the copy", 60)
        query.processAllAvailable()
        progress = query.lastProgress.sources[0]
        assert json.loads(progress.latestOffset) == {
            "logs": {"a": 500, "b": 150},
            "offsetsBehindLatest": 0,
        }
        end = json.loads(progress.endOffset)["logs"]
        assert {log: place["next"] for log, place in end.items()} == {"a": 500, "b": 150}
        query.stop()
        # Its last batch is run again, as after a crash before Spark noted its end.
        notes = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        notes[-1].unlink()
        notes[-1].with_name(f".{notes[-1].name}.crc").unlink(missing_ok=True)
        log_on(redis7, "b").append(b"more")
        query = started()
        wait_until(lambda: copied() >= 651, "the copy of what came later", 60)
        query.processAllAvailable()
        query.stop()
        assert sorted(entries_of(redis7, "copy")) == sorted([*ENTRIES, *ENTRIES[:150], b"more"])

    def test_what_was_evicted_unread(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        log = log_on(redis7)
        log.append(*ENTRIES)
        found: list[int] = []

        def sink(batch: DataFrame, number: int) -> None:
            found.extend(row.offset for row in batch.collect())

        def started(**options: Any) -> StreamingQuery:
            writer = stream(session, redis7.url, **options).writeStream.foreachBatch(sink)
            writer = writer.option("checkpointLocation", str(tmp_path))
            return writer.trigger(availableNow=True).start()

        ended(started())
        log.append(*ENTRIES)
        log.evict(599)
        with pytest.raises(Exception, match="has lost its entries 500 to 599: they were evicted"):
            started().awaitTermination(60)
        ended(started(failOnDataLoss=False))
        assert found == [*range(500), *range(600, 1_000)]
