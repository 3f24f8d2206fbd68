"""``format("workstealing.redis")`` through a real Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from support.patience import GUARD_SECONDS
from support.servers import RedisCluster3, RedisServer

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSourceReader

from workstealing.spark.sources.redis import RedisSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "workstealing.redis"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
TESTS = Path(__file__).resolve().parents[1]
# A driver of its own: a JVM keeps the standard error with which it was started.
UNHEARD = """
import sys
from support.spark_jvms import builder
from workstealing.spark import register

spark = builder("local[1]").getOrCreate()
register(spark)
read = spark.read.format("workstealing.redis").options(url=sys.argv[1], type="hash")
read = read.schema("key string, a bigint")
for asked in (True, False):
    frame = read.option("pushFilters", asked).load("item:*")
    print(frame.where("key = 'item:5'").count())
spark.stop()
"""


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with the format, and without what a failed test has left running."""
    spark.dataSource.register(RedisSource)
    yield spark
    for query in spark.streams.active:
        query.stop()


@contextmanager
def pushing(session: SparkSession) -> Iterator[None]:
    session.conf.set(PUSHDOWN, "true")
    try:
        yield
    finally:
        session.conf.unset(PUSHDOWN)


def plan_of(frame: DataFrame) -> str:
    """Return the physical plan, as explain() shows it."""
    plan: str = frame._jdf.queryExecution().explainString(  # type: ignore[operator]
        frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")  # type: ignore[union-attr]
    )
    return plan


def calls_of(server: RedisServer, command: str) -> int:
    stats = server.client().info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


class TestTables:
    @pytest.mark.smoke
    def test_a_table_is_written_and_read_back_with_and_without_pushed_filters(
        self, session: SparkSession, cluster: RedisCluster3
    ) -> None:
        table = session.range(500).selectExpr(
            "concat('item:', id) AS key",
            "id AS n",
            "CAST(id / 4 AS double) AS price",
            "id % 2 = 0 AS is_even",
            "CASE WHEN id % 5 > 0 THEN timestamp_seconds(1700000000 + id) END AS at",
        )
        table.repartition(2).write.format(FORMAT).options(
            url=cluster.url, type="hash", ttlSeconds=1000
        ).mode("append").save()
        assert cluster.client().hget("item:7", "price") == b"1.75"
        assert cluster.client().ttl("item:7") > 0
        read = session.read.format(FORMAT).options(url=cluster.url, type="hash")
        found = read.schema(table.schema).load("item:*")
        assert found.rdd.getNumPartitions() == 3
        assert sorted(found.collect()) == sorted(table.collect())
        few = found.where("key IN ('item:1', 'item:17', 'none') AND n > 5").select("n", "is_even")
        assert few.collect() == [(17, False)]
        with pushing(session):
            few = found.where("key IN ('item:1', 'item:17', 'none') AND n > 5")
            assert few.select("n", "is_even").collect() == [(17, False)]
            # One DataFrame, filtered in several ways.
            assert found.count() == 500
            begins = found.where("key LIKE 'item:49%'")
            assert (begins.union(few).count(), found.count()) == (12, 500)

    def test_pushed_filters_stand_in_the_plan_and_spare_the_server(
        self, session: SparkSession, redis7: RedisServer
    ) -> None:
        client = redis7.client()
        for number in range(300):
            client.hset(f"item:{number}", mapping={"a": number, "b": "x" * 10})
            client.set(f"other:{number}", number)
        read = session.read.format(FORMAT).options(url=redis7.url, type="hash")
        read = read.schema("key string, a bigint").option("pushFilters", True)
        with pushing(session):
            exact = read.load("*").where("key = 'item:5' AND a = 5")
            begins = read.load("*").where("key LIKE 'item:29%'")
            for frame, filters, rows in (
                (exact, "PushedFilters: [IsNotNull(key), EqualTo(key,item:5)]", 1),
                (begins, "PushedFilters: [IsNotNull(key), StringStartsWith(key,item:29)]", 11),
            ):
                plan = plan_of(frame)
                assert filters in plan, plan
                client.config_resetstat()
                assert frame.count() == rows
                assert calls_of(redis7, "hmget") == rows
                assert calls_of(redis7, "hgetall") + calls_of(redis7, "hscan") == 0
            assert calls_of(redis7, "scan") == 2  # by each of two tasks
            # A key that is named needs no scan.
            client.config_resetstat()
            exact.count()
            assert calls_of(redis7, "scan") == 0
        # With Spark's setting off, Spark does it all.
        client.config_resetstat()
        assert read.load("*").where("key = 'item:5'").count() == 1
        assert calls_of(redis7, "hmget") == 300

    @pytest.mark.slow
    def test_a_driver_is_told_that_its_setting_keeps_filters_from_redis(
        self, redis7: RedisServer
    ) -> None:
        if not hasattr(DataSourceReader, "pushFilters"):
            pytest.skip("this PySpark pushes no filters")
        for number in range(9):
            redis7.client().hset(f"item:{number}", "a", number)
        done = subprocess.run(
            [sys.executable, "-P", "-c", UNHEARD, redis7.url],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS * 4,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.split() == ["1", "1"]
        said = "format 'workstealing.redis': the option pushFilters=true is given, but Spark's"
        # Of the query that asked for it, and not of the other one.
        assert done.stderr.count(said) == 1, done.stderr[-3000:]
        assert f"{PUSHDOWN}', True) switches it on" in done.stderr

    def test_a_limit_ends_the_read(self, session: SparkSession, redis7: RedisServer) -> None:
        client = redis7.client()
        with client.pipeline(transaction=False) as pipe:
            for number in range(3000):
                pipe.set(f"k{number}", "x" * 5000)
            pipe.execute()
        client.config_resetstat()
        read = session.read.format(FORMAT).options(url=redis7.url, type="string")
        assert len(read.load("*").limit(3).collect()) == 3
        # Of 15 MB some pages were read.
        assert calls_of(redis7, "scan") < 4

    def test_each_row_shape_passes_through_arrow(
        self, session: SparkSession, redis7: RedisServer
    ) -> None:
        def write(kind: str, frame: DataFrame, **options: Any) -> None:
            given = {"url": redis7.url, "type": kind, **options}
            frame.coalesce(1).write.format(FORMAT).options(**given).mode("append").save()

        def read(kind: str, schema: str | None = None, **options: Any) -> list[Any]:
            given = {"url": redis7.url, "type": kind, "match": "*", **options}
            reading = session.read.format(FORMAT).options(**given)
            return sorted((reading.schema(schema) if schema else reading).load().collect())

        create = session.createDataFrame
        write("list", create([("l", "a"), ("l", "b")], "key string, value string"))
        assert read("list") == [("l", 0, "a"), ("l", 1, "b")]
        write("set", create([("s", b"\xff")], "key string, member binary"))
        assert read("set", "member binary") == [(bytearray(b"\xff"),)]
        write("zset", create([("z", "a", 1.5)], "key string, member string, score double"))
        assert read("zset") == [("z", "a", 1.5)]
        entries = create([("q", {"a": "1", "b": "2"})], "key string, fields map<string,string>")
        write("stream", entries)
        ((key, _, fields),) = read("stream")
        assert (key, fields) == ("q", {"a": "1", "b": "2"})
        binary = read("stream", "fields map<string,binary>")
        assert binary == [({"a": bytearray(b"1"), "b": bytearray(b"2")},)]
        strings = create([("t", 12, 60.0)], "key string, value int, ttl double")
        write("string", strings, writeMode="overwrite")
        ((value, left),) = read("string", "value int, ttl double")
        assert value == 12
        assert 0 < left <= 60
        assert read("hash") == []

    def test_nested_columns_are_json_and_come_back(
        self, session: SparkSession, redis7: RedisServer
    ) -> None:
        table = session.sql(
            """
            SELECT 'a' AS key, array(1, null) AS numbers, map('x', 0.5D) AS shares,
                   named_struct('day', DATE'2026-11-24', 'names', array('b')) AS more,
                   TIMESTAMP_NTZ'2026-11-24 22:00:00' AS local
            UNION ALL SELECT 'b', null, null, null, null
            """
        )
        given = {"url": redis7.url, "type": "hash"}
        table.write.format(FORMAT).options(**given).mode("append").save()
        assert redis7.client().hgetall("a") == {
            b"numbers": b"[1,null]",
            b"shares": b'{"x":0.5}',
            b"more": b'{"day":"2026-11-24","names":["b"]}',
            b"local": b"2026-11-24T22:00:00",
        }
        redis7.client().hset("b", "other", "1")
        found = session.read.format(FORMAT).options(**given).schema(table.schema).load("*")
        assert sorted(found.collect()) == sorted(table.collect())

    def test_the_save_mode_overwrite_is_refused_and_no_secret_is_shown(
        self, session: SparkSession, redis7: RedisServer
    ) -> None:
        table = session.createDataFrame([("k", "v")], "key string, a string")
        url = redis7.url.replace("redis://", "redis://user:secret@")
        write = table.write.format(FORMAT).options(url=url, type="hash").mode("overwrite")
        with pytest.raises(Exception, match="never empties") as caught:
            write.save()
        assert "secret" not in str(caught.value)
        read = session.read.format(FORMAT).options(url=url, type="hash").load("*")
        assert "secret" not in plan_of(read)


class TestStreams:
    def test_a_refused_stream_ends_with_our_sentence(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        reading = session.readStream.format(FORMAT).options(
            url=redis7.url, type="hash", keys="clicks"
        )
        query = (
            reading.schema("key string, n bigint")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(300)
        text = str(caught.value)
        assert "readStream reads Redis' streams, but type=hash is given" in text
        assert "UnboundLocalError" not in text

    def test_a_stream_is_read_in_batches_and_written_where_it_left_off(
        self, session: SparkSession, cluster: RedisCluster3, tmp_path: Path
    ) -> None:
        client = cluster.client()

        def add(first: int, last: int) -> None:
            for number in range(first, last):
                client.xadd(f"clicks:{number % 2}", {"user": f"u{number}", "n": number})

        def run() -> list[int]:
            reading = session.readStream.format(FORMAT).options(
                url=cluster.url, type="stream", keys=["clicks:0", "clicks:1"]
            )
            clicks = reading.option("maxOffsetsPerTrigger", 20).schema(
                "key string, id string, user string, n bigint"
            )
            rows = clicks.load().selectExpr("user AS key", "n", "id AS seen")
            writing = rows.writeStream.format(FORMAT).options(
                url=cluster.url, type="hash", keyPrefix="seen:", ttlSeconds=1000
            )
            checkpoint = str(tmp_path / "checkpoint")
            query = (
                writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            )
            assert query.awaitTermination(300), "the query goes on"
            assert query.exception() is None
            return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

        add(0, 50)
        assert run() == [20, 20, 10]
        assert client.hget("seen:u49", "n") == b"49"
        client.delete("seen:u3")
        add(50, 55)
        assert run() == [5]
        # What had been read before is not read again.
        assert client.exists("seen:u3") == 0
        assert len(list(client.scan_iter("seen:*"))) == 54
        assert client.hkeys("seen:u54") == [b"n", b"seen"]

    def test_a_stream_writes_streams(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        session.range(3).selectExpr("id").write.json(str(tmp_path / "in"))
        rows = session.readStream.schema("id bigint").json(str(tmp_path / "in"))
        query = (
            rows.selectExpr("'copy' AS key", "id AS n")
            .writeStream.format(FORMAT)
            .options(url=redis7.url, type="stream", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300), "the query goes on"
        entries = redis7.client().xrange("copy")
        assert sorted(fields[b"n"] for _, fields in entries) == [b"0", b"1", b"2"]

    def test_a_batch_that_died_half_way_is_written_once(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        url = redis7.url
        client = redis7.client()
        # One file is one task, whose rows a shuffle keeps in order.
        session.range(0, 3_000, 1, 1).write.json(str(tmp_path / "in"))
        rows = session.readStream.schema("id bigint").json(str(tmp_path / "in"))

        def dying(batches: Iterator[Any]) -> Iterator[Any]:
            with redis.Redis.from_url(url) as of_task:
                for number, batch in enumerate(batches):
                    if number == 10 and of_task.lpop("deaths"):
                        # The sink is a process of its own, and may be slower.
                        give_up = time.monotonic() + GUARD_SECONDS
                        while not of_task.exists("copy0", "copy1") and time.monotonic() < give_up:
                            time.sleep(0.05)
                        raise RuntimeError("this task dies")
                    yield batch

        def run() -> None:
            # Spark hands rows on when it has 64 KiB of them.
            columns = ("concat('copy', id % 2) AS key", "id AS n", "repeat('x', 400) AS pad")
            keyed = rows.selectExpr(*columns).repartition(2, "key")
            keyed = keyed.mapInArrow(dying, "key string, n bigint, pad string")
            query = (
                keyed.writeStream.format(FORMAT)
                .options(url=url, type="stream", exactlyOnce=True)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(300), "the query goes on"

        before = session.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
        try:
            written = []
            for _ in range(2):
                client.rpush("deaths", 1)
                with pytest.raises(StreamingQueryException, match="this task dies"):
                    run()
                written.append(client.xlen("copy0") + client.xlen("copy1"))
            assert 0 < written[0] < 3_000
            run()
        finally:
            session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(before))
        for number in range(2):
            found = [int(fields[b"n"]) for _, fields in client.xrange(f"copy{number}")]
            assert found == list(range(number, 3_000, 2))

    def test_a_batch_is_cut_alike_whatever_spark_measures(
        self, session: SparkSession, redis7: RedisServer, tmp_path: Path
    ) -> None:
        """Spark merges the partitions of a shuffle as it likes, unless it is told their number."""
        client = redis7.client()
        session.range(0, 200, 1, 1).write.json(str(tmp_path / "in"))
        rows = session.readStream.schema("id bigint").json(str(tmp_path / "in"))
        rows = rows.selectExpr("concat('cut', id % 4) AS key", "id AS n")

        def written(batch: DataFrame, number: int) -> None:
            ours = batch.repartition(4, "key").sortWithinPartitions("key", "n")
            write = ours.write.format(FORMAT).mode("append").option("url", redis7.url)
            write.options(type="stream", query="cut", batch=number).save()
            if client.lpop("deaths"):
                raise RuntimeError("this driver dies")

        def run() -> None:
            query = (
                rows.writeStream.foreachBatch(written)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(300), "the query goes on"

        sizes = {"spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b"}
        sizes["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = "100b"
        client.rpush("deaths", 1)
        with pytest.raises(StreamingQueryException, match="this driver dies"):
            run()
        for name, size in sizes.items():
            session.conf.set(name, size)
        try:
            run()
        finally:
            for name in sizes:
                session.conf.unset(name)
        for number in range(4):
            found = [int(fields[b"n"]) for _, fields in client.xrange(f"cut{number}")]
            assert found == list(range(number, 200, 4))
