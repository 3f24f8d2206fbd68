"""A program that uses each part of workstealing.spark once, by a session of either kind.

    python -m support.spark_whole classic|remote FOLDER [CHECK...]

It runs on every version of PySpark; what a version or a kind of session cannot do must be refused
there in one sentence. It prints one JSON object: check -> "" if all is well, or what went wrong.
The Redis is that of the environment (WORKSTEALING_REDIS_URL), of the executors' too; a server of
Spark Connect is that of SPARK_REMOTE.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

import workstealing
from support import spark_jvms
from support.servers import wait_until
from support.spark_recruits import NO_TASK, SLICES
from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry
from workstealing.spark import (
    accumulated,
    enlist_batch,
    enlisting,
    install,
    listen,
    recruits,
    register,
    sweep,
)
from workstealing.store.budget import Budget
from workstealing.structures import Log, ShardedIck, TrackedSet, VolatileHashes
from workstealing.testing import always

THIS = "support.spark_whole"
RECRUITS = "support.spark_recruits:make"
TESTS = str(Path(__file__).resolve().parents[1])
HAS_FORMATS = not pyspark.__version__.startswith("3.")


def patient_client() -> Any:
    """Return a client; the jobs' own waits become long enough for a busy machine."""
    Budget.__init__.__defaults__ = (None, 5.0, SYSTEM_CLOCK)
    return workstealing.connect()


def make_expiry() -> HashFieldExpiry:
    """Return a job for executors."""
    return HashFieldExpiry(VolatileHashes(patient_client(), "swept", backend="emulated"))


class Listed:
    """A source of tracked ids by which these alone have work."""

    def rows_after(self, cursor: str, n: int, seconds: float) -> list[tuple[str, str]]:
        """Return nothing: nobody walks here."""
        return []

    def with_work(self, ids: list[str], seconds: float) -> set[str]:
        """Return those that have work."""
        return {each for each in ids if each in {"both", "new"}}


def make_tracked() -> TrackedSet:
    """Return a tracked set with a source, for executors."""
    made: TrackedSet = TrackedSet(patient_client(), "sourced", Listed(), sub_sets=4)
    return made


def make_unsourced() -> TrackedSet:
    """Return a tracked set without a source, for executors."""
    made: TrackedSet = TrackedSet(patient_client(), "plain", sub_sets=4)
    return made


def builder() -> Any:
    """Return the builder of a session with a SparkContext."""
    return (
        spark_jvms.builder("local[2]")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", TESTS)
    )


class Checks:
    """The checks, each of one part.

    Arguments:
        folder: for checkpoints; remote or not.
    """

    def __init__(self, spark: Any, folder: Path, is_remote: bool) -> None:
        self.spark, self.folder, self.is_remote = spark, folder, is_remote
        self.redis = patient_client()

    def hashes_as_a_sink_and_a_table(self) -> None:
        """A DataFrame goes into a namespace, and comes back."""
        rows = self.spark.range(0, 40, 1, 2).selectExpr(
            "concat('item:', id % 7) key", "concat('f', id) field", "id value", "9000.5 ttl"
        )
        rows.write.format("workstealing.volatile_hashes").mode("append").save("items")
        found = self.spark.read.format("workstealing.volatile_hashes").load("items").collect()
        assert {(row.key, row.field, row.value) for row in found} == {
            (f"item:{n % 7}", f"f{n}", str(n)) for n in range(40)
        }
        assert all(0 < row.ttl <= 9000.5 for row in found)
        with pytest.raises(Exception, match="only appends"):
            rows.write.format("workstealing.volatile_hashes").mode("overwrite").save("items")

    def tracked_ids_as_a_table(self) -> None:
        """Ids that are tracked are rows."""
        TrackedSet(self.redis, "ids", sub_sets=4).track(range(50))
        found = self.spark.read.format("workstealing.tracked_set").load("ids").collect()
        assert {row.id for row in found} == {str(n) for n in range(50)}

    def an_ick_as_a_sink_a_table_and_a_stream(self) -> None:
        """Members are added, read, and consumed by a query, which is started once more."""
        table = self.spark.createDataFrame(
            [(f"m{n}", float(n)) for n in range(60)], "member string, score double"
        )
        write = table.write.format("workstealing.ick").option("ickShards", 2).mode("append")
        write.save("orders")
        found = self.spark.read.format("workstealing.ick").load("orders").collect()
        assert {(row.member, row.score) for row in found} == {
            (f"m{n}", float(n)) for n in range(60)
        }
        self._consumed("orders", range(60))
        if self.is_remote:
            # Its driver is the same as any other's.
            return
        sharded: ShardedIck = ShardedIck(self.redis, "orders")
        sharded.add({f"m{n}": float(n) for n in range(60, 70)})
        self._consumed("orders", range(70))
        # What the first run had read is done with at the latest when the second one reads on.
        assert sharded.stats()["total_size"] <= 10

    def _consumed(self, name: str, numbers: range) -> None:
        """Run a query until it ends: members become fields of a hash, by the sink of a stream."""
        read = self.spark.readStream.format("workstealing.ick").load(name)
        rows = read.selectExpr("'seen' AS key", "member AS field", "score AS value")
        writer = rows.writeStream.format("workstealing.volatile_hashes")
        writer = writer.option("checkpointLocation", str(self.folder / name))
        self._ended(writer.option("path", "consumed").trigger(availableNow=True).start())
        hashes: VolatileHashes = VolatileHashes(self.redis, "consumed")
        assert set(hashes.hkeys("seen")) == {f"m{n}".encode() for n in numbers}

    @staticmethod
    def _ended(query: Any) -> None:
        assert query.awaitTermination(300), "the query goes on"
        assert query.exception() is None

    def logs_as_a_sink_a_table_and_a_stream(self) -> None:
        """Entries are appended, read, and copied exactly once by a query that is started twice."""
        rows = self.spark.range(0, 30, 1, 1).selectExpr("cast(id AS string) AS value")
        rows.write.format("workstealing.log").mode("append").save("events")
        read = self.spark.read.format("workstealing.log").option("values", "string")
        found = read.option("startingOffset", -10).load("events").collect()
        assert [(row.offset, row.value) for row in found] == [(n, str(n)) for n in range(20, 30)]
        log: Any = Log(self.redis, "events")
        for wanted in (range(30), range(31))[: 1 if self.is_remote else 2]:
            stream = self.spark.readStream.format("workstealing.log").load("events")
            writer = stream.select("value").writeStream.format("workstealing.log")
            writer = writer.options(checkpointLocation=str(self.folder / "copy"), exactlyOnce=True)
            self._ended(writer.trigger(availableNow=True).start("copy"))
            copy: Any = Log(self.redis, "copy")
            assert copy.read(0, 100) == [str(n).encode() for n in wanted]
            log.append(str(len(wanted)).encode())

    def plain_keys_as_a_sink_a_table_and_a_stream(self) -> None:
        """Hashes are written and read; a stream's entries become hashes, in two runs."""
        plain = "workstealing.redis"
        rows = self.spark.range(0, 40, 1, 2).selectExpr("id", "concat('n', id) AS name")
        as_items = {"type": "hash", "keyPrefix": "item:", "keyColumn": "id"}
        rows.write.format(plain).options(**as_items, ttlSeconds=900).mode("append").save()
        assert self.redis.hgetall("item:7") == {b"name": b"n7"}
        assert 0 < self.redis.pttl("item:7") <= 900_000
        read = self.spark.read.format(plain).options(**as_items).schema("id bigint, name string")
        found = read.load().where("id >= 30").collect()
        assert {(row.id, row.name) for row in found} == {(n, f"n{n}") for n in range(30, 40)}
        entries = rows.selectExpr("'clicks' AS key", "concat('seen:', id) AS user", "id AS n")
        clicks = self.spark.readStream.format(plain).options(type="stream", keys="clicks")
        stream = clicks.schema("key string, user string, n bigint")
        for last in (20, 40)[: 1 if self.is_remote else 2]:
            added = entries.where(f"n >= {last - 20} AND n < {last}")
            added.write.format(plain).option("type", "stream").mode("append").save()
            seen = stream.load().selectExpr("user AS key", "n").writeStream.format(plain)
            seen = seen.options(type="hash", checkpointLocation=str(self.folder / "clicks"))
            self._ended(seen.trigger(availableNow=True).start())
            wanted = {f"seen:{n}".encode() for n in range(last)}
            assert set(self.redis.scan_iter("seen:*", count=1000)) == wanted

    def formats_are_refused_in_a_sentence(self) -> None:
        """PySpark 3.5 has no data sources of Python."""
        with pytest.raises(ConfigurationError, match=r"formats need PySpark 4\.0 or newer, and"):
            register(self.spark)

    def executors_are_asked(self) -> None:
        """Each of them has the package and reaches Redis."""
        checks = register(self.spark, check=True)
        assert checks
        assert all(each.is_well and each.has_url for each in checks), checks

    def a_sweep(self) -> None:
        """Everything overdue goes, by as many tasks as there are cores times four."""
        hashes: VolatileHashes = VolatileHashes(self.redis, "swept", backend="emulated")
        for n in range(50):
            hashes.hset(f"live:{n}", "f", "v")
            hashes.hsetex(f"old:{n}", mapping={"a": "1", "b": "2"}, px=1)
        time.sleep(0.05)
        rows = sweep(self.spark, f"{THIS}:make_expiry").collect()
        assert len(rows) == 2 * 4
        assert sum(row["items"] for row in rows) == 100, rows
        assert all(row["drained"] for row in rows), rows
        assert sum(bool(self.redis.exists(f"live:{n}")) for n in range(50)) == 50
        with pytest.raises(ConfigurationError, match="no_such"):
            sweep(self.spark, "support.no_such:make")
        held = sweep(self.spark, f"{THIS}:make_expiry", partitions=2, wait=False)
        assert held.result(600).count() == 2
        seen = held.progress()
        assert (seen.state, seen.left, seen.rounds) == ("done", 0, 1)

    def reconciling(self) -> None:
        """A tracked set becomes its table, with a source and without; old rows are refused."""
        from workstealing.spark import reconcile

        tracked = make_tracked()
        tracked.track(["both", "stale"])
        table = self.spark.createDataFrame([("both",), ("new",), (None,)], "id string")
        done = reconcile(self.spark, f"{THIS}:make_tracked", table)
        assert (done.tracked, done.in_table, done.added, done.removed) == (2, 2, 1, 1), done
        assert tracked.are_tracked(["both", "new", "stale"]) == [True, True, False]
        plain = make_unsourced()
        plain.track(["1", "2", "99"])
        for old in (table, self.spark.range(3).cache()):
            with pytest.raises(ConfigurationError, match="are held by Spark already"):
                reconcile(self.spark, f"{THIS}:make_unsourced", old)
        self.spark.catalog.clearCache()
        done = reconcile(self.spark, f"{THIS}:make_unsourced", self.spark.range(1, 4))
        assert (done.added, done.removed, done.failed) == (1, 1, 0), done
        assert plain.are_tracked(["1", "2", "3", "99"]) == [True, True, True, False]

    def tasks_enlist(self) -> None:
        """Each task of a wrapped function enlists once, and the totals say so."""
        install(self.spark, RECRUITS, interval=0.2, accumulate=not self.is_remote)

        @enlisting
        def same(frames: Iterator[Any]) -> Iterator[Any]:
            yield from frames

        frame = self.spark.range(30, numPartitions=3)
        assert frame.mapInPandas(same, "id long").count() == 30
        assert frame.mapInArrow(same, "id long").count() == 30

        def are_told() -> bool:
            # A report may go out between a recruit's call and the end of its slice.
            found = recruits(self.spark)
            return found.enlisted >= 6 and found.jobs["note"].worked >= 6

        wait_until(are_told, "the counts", 60)
        totals = recruits(self.spark)
        assert totals.enlisted == totals.jobs["note"].worked == 6, totals
        if not self.is_remote:
            assert accumulated(self.spark).enlisted == 6

    def batches_of_a_stream_enlist(self) -> None:
        """A function of foreachBatch enlists where it is called."""
        install(self.spark, RECRUITS, interval=0.2)
        before = self.redis.lrange(SLICES, 0, -1)
        noted = str(self.folder / "batch")

        @enlist_batch
        def write(batch: Any, number: int) -> None:
            with open(noted, "a") as file:  # noqa: PTH123 - pickled for a server
                file.write(f"{number} {batch.count()}\n")

        source = self.folder / "rows"
        self.spark.range(7).coalesce(1).write.parquet(str(source))
        stream = self.spark.readStream.schema("id long").parquet(str(source))
        writer = stream.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.folder / "batches"))
        self._ended(writer.trigger(availableNow=True).start())
        assert Path(noted).read_text() == "0 7\n"
        # Outside of any task: in the driver, or in a process of the server for this query.
        (slice,) = self.redis.lrange(SLICES, len(before), -1)
        assert slice.startswith(NO_TASK.encode()), slice

    def the_driver_enlists_when_queries_and_streams_have_ended(self) -> None:
        """A listener hears of a query's end, of a batch's and of a stream's; of Connect not all."""
        recruiter = always(seconds=5.0)
        recruiter.job(rate=1.0, name="heard")(lambda slice: 1)
        listener = listen(self.spark, recruiter, stages=False)
        self.spark.range(7).coalesce(1).write.parquet(str(self.folder / "heard"))
        if not self.is_remote:
            wait_until(lambda: recruiter.stats()["enlisted"] > 0, "the query to be heard of", 60)
        # A write may be heard of twice, as the command and as the query that it runs.
        before = recruiter.stats()["enlisted"]
        stream = self.spark.readStream.schema("id long").parquet(str(self.folder / "heard"))
        writer = stream.writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self.folder / "heard_to"))
        self._ended(writer.trigger(availableNow=True).start())
        wait_until(lambda: recruiter.stats()["enlisted"] >= before + 2, "the batch and the end", 60)
        listener.stop()

    def what_connect_cannot_do_is_refused_in_a_sentence(self) -> None:
        """No accumulators, and no hook in executors that run already."""
        with pytest.raises(ConfigurationError, match="every_task=True needs a SparkSession with"):
            install(self.spark, RECRUITS, every_task=True)
        with pytest.raises(ConfigurationError, match="accumulate=True needs a SparkSession with"):
            install(self.spark, RECRUITS, accumulate=True)
        install(self.spark, RECRUITS)
        with pytest.raises(ConfigurationError, match="no accumulators; use recruits"):
            accumulated(self.spark)

    def of_this_session(self) -> list[Callable[[], None]]:
        """Return the checks that go with the version and the kind of session."""
        with_formats = [
            self.executors_are_asked,
            self.hashes_as_a_sink_and_a_table,
            self.tracked_ids_as_a_table,
            self.an_ick_as_a_sink_a_table_and_a_stream,
            self.logs_as_a_sink_a_table_and_a_stream,
            self.plain_keys_as_a_sink_a_table_and_a_stream,
        ]
        return [
            *(with_formats if HAS_FORMATS else [self.formats_are_refused_in_a_sentence]),
            self.a_sweep,
            self.reconciling,
            self.tasks_enlist,
            self.batches_of_a_stream_enlist,
            self.the_driver_enlists_when_queries_and_streams_have_ended,
            *([self.what_connect_cannot_do_is_refused_in_a_sentence] if self.is_remote else []),
        ]


def main(kind: str, folder: str, *only: str) -> None:
    """Run the checks, or some of them by their names."""
    if kind == "remote":
        # The address is SPARK_REMOTE's.
        spark = SparkSession.builder.getOrCreate()
    else:
        spark = builder().getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    if HAS_FORMATS:
        register(spark)
    found: dict[str, str] = {}
    for check in Checks(spark, Path(folder), kind == "remote").of_this_session():
        if only and check.__name__ not in only:
            continue
        begin = time.monotonic()
        try:
            check()
            found[check.__name__] = ""
        except Exception:  # noqa: BLE001 - reported
            found[check.__name__] = traceback.format_exc()[-3_000:]
        sys.stderr.write(f"{check.__name__}: {time.monotonic() - begin:.1f} s\n")
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
