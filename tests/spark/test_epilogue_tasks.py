"""Epilogues on a real session: one enlist of each task attempt, whatever kind of task it is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import PicklingError
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

from support.servers import RedisServer, wait_until
from support.spark_recruits import (
    DRAWS,
    FACTORIES,
    NO_TASK,
    SLICES,
    TASKS,
    attempt,
    client,
    doubled,
)
from workstealing.errors import ConfigurationError
from workstealing.spark import accumulated, enlist_batch, enlisting, install, installing, recruits
from workstealing.spark.workers import VARIABLE

FACTORY = "support.spark_recruits:make"
INTERVAL = 0.2


@pytest.fixture
def redis(
    spark: SparkSession, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The Redis that the driver's and the workers' environment names."""
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    environment = spark.sparkContext.environment
    environment["WORKSTEALING_REDIS_URL"] = redis7.url
    monkeypatch.setattr(installing, "_installation", None)
    yield redis7.client()
    environment.pop("WORKSTEALING_REDIS_URL")
    environment.pop(VARIABLE, None)


def noted(redis: Any, key: str) -> Counter[str]:
    """Return what was noted under a key, with how often."""
    return Counter(each.decode() for each in redis.lrange(key, 0, -1))


def note_task() -> None:
    client().sadd(TASKS, attempt())


def assert_each_once(redis: Any, tasks: int) -> None:
    """Each of so many task attempts was recruited once."""
    slices = noted(redis, SLICES)
    assert set(slices) == {each.decode() for each in redis.smembers(TASKS)}
    assert set(slices.values()) == {1}
    assert len(slices) == tasks


@enlisting
def rows_plus_one(rows: Iterator[Any]) -> Iterator[int]:
    # Decorated while this module is imported, before anything is installed.
    note_task()
    for row in rows:
        yield row + 1


def map_partitions(spark: SparkSession) -> None:
    numbers = spark.sparkContext.parallelize(range(8), 3)
    assert sorted(numbers.mapPartitions(rows_plus_one).collect()) == list(range(1, 9))


def foreach_partition(spark: SparkSession) -> None:
    @enlisting
    def look(rows: Iterator[Any]) -> None:
        note_task()
        assert len(list(rows)) > 0

    spark.sparkContext.parallelize(range(8), 3).foreachPartition(look)


def map_in_pandas(spark: SparkSession) -> None:
    @enlisting
    def grow(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        note_task()
        for frame in frames:
            yield frame + 1

    rows = spark.range(8, numPartitions=3).mapInPandas(grow, "id long").collect()
    assert sorted(row.id for row in rows) == list(range(1, 9))


def map_in_arrow(spark: SparkSession) -> None:
    @enlisting
    def same(batches: Iterator[Any]) -> Iterator[Any]:
        note_task()
        yield from batches

    rows = spark.range(8, numPartitions=3).mapInArrow(same, "id long").collect()
    assert sorted(row.id for row in rows) == list(range(8))


def iterator_pandas_udf(spark: SparkSession) -> None:
    @enlisting
    def grow(columns: Iterator[pd.Series]) -> Iterator[pd.Series]:
        note_task()
        for column in columns:
            yield column + 1

    # By its type hints.
    grown = spark.range(8, numPartitions=3).select(pandas_udf("long")(grow)("id").alias("id"))
    assert sorted(row.id for row in grown.collect()) == list(range(1, 9))


KINDS = [map_partitions, foreach_partition, map_in_pandas, map_in_arrow, iterator_pandas_udf]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_task(
    kind: Callable[[SparkSession], None], spark: SparkSession, redis: Any
) -> None:
    install(spark, FACTORY, counters=None)
    kind(spark)
    assert_each_once(redis, tasks=3)


@pytest.mark.smoke
def test_several_functions_in_one_task(spark: SparkSession, redis: Any) -> None:
    install(spark, FACTORY, counters=None)
    numbers = spark.sparkContext.parallelize(range(8), 3)
    assert numbers.mapPartitions(rows_plus_one).mapPartitions(rows_plus_one).sum() == 28 + 16
    assert_each_once(redis, tasks=3)

    # Spark runs these two steps of a task in two workers, which know nothing of each other.
    redis.delete(SLICES, TASKS)

    @enlisting
    def same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        note_task()
        yield from frames

    frame = spark.range(8, numPartitions=3).mapInPandas(same, "id long")
    assert frame.mapInPandas(same, "id long").count() == 8
    assert_each_once(redis, tasks=6)


def test_a_group_at_a_time(spark: SparkSession, redis: Any) -> None:
    install(spark, FACTORY, counters=None)

    @enlisting
    def grow(key: tuple[Any, ...], group: pd.DataFrame) -> pd.DataFrame:
        note_task()
        client().incr("test:groups")
        return group + 1

    frame = spark.range(40).selectExpr("id", "id % 10 as kind")
    assert frame.groupBy("kind").applyInPandas(grow, "id long, kind long").count() == 40
    assert int(redis.get("test:groups")) == 10
    assert 1 <= redis.scard(TASKS) <= 2
    assert_each_once(redis, tasks=redis.scard(TASKS))


def test_an_error_in_the_task_and_rows_that_nobody_wants(spark: SparkSession, redis: Any) -> None:
    # So long an interval that only an end of the worker makes it send.
    install(spark, FACTORY, interval=3600.0)

    @enlisting
    def fail(rows: Iterator[Any]) -> Iterator[Any]:
        note_task()
        for row in rows:
            yield row
            raise ValueError("the task's own error")

    # Neither the error nor what Spark makes of it is changed by the epilogue.
    with pytest.raises(Exception, match="the task's own error"):
        spark.sparkContext.parallelize(range(4), 1).mapPartitions(fail).collect()
    assert_each_once(redis, tasks=1)
    wait_until(lambda: recruits(spark).enlisted == 1, "the failed task's counts")

    @enlisting
    def many(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        note_task()
        for _ in frames:
            for _ in range(1_000):
                yield pd.DataFrame({"id": range(1_000)})

    frame = spark.range(2_000_000, numPartitions=1)
    assert len(frame.mapInPandas(many, "id long").limit(3).collect()) == 3
    wait_until(lambda: redis.llen(SLICES) == 2, "the epilogue of a task that was cut short")
    assert_each_once(redis, tasks=2)
    wait_until(lambda: recruits(spark).enlisted == 2, "the counts of a task that was cut short")


def test_totals_and_one_factory_call_in_each_worker(spark: SparkSession, redis: Any) -> None:
    assert install(spark, FACTORY, accumulate=True, interval=INTERVAL) is spark
    before = accumulated(spark)

    @enlisting
    def halved(rows: Iterator[int]) -> list[int]:
        return [row // 2 for row in rows]

    for _ in range(3):
        # One pickled by value, and one by its name, from a module that decorates it anew.
        for function in (halved, doubled):
            spark.sparkContext.parallelize(range(8), 4).mapPartitions(function).count()
    wait_until(lambda: recruits(spark).enlisted == 24, "all counts")
    totals = recruits(spark)
    assert set(totals.jobs) == {"note"}
    job = totals.jobs["note"]
    assert (job.recruited, job.worked, job.items) == (24, 24, 48)
    assert (job.idle, job.aborted, job.failed, job.skipped) == (0, 0, 0, 0)
    assert 0 < job.seconds < 120
    # The accumulator alone knows of successful tasks at once; and here all have succeeded.
    assert (before.enlisted, accumulated(spark)) == (0, totals)
    factories = noted(redis, FACTORIES)
    assert 1 <= len(factories) <= 2
    assert set(factories.values()) == {1}
    key = f"ws:spark:recruits:{spark.sparkContext.applicationId}"
    assert 6 * 24 * 3600 < redis.ttl(key) <= 7 * 24 * 3600


def test_each_worker_draws_for_itself(spark: SparkSession, redis: Any) -> None:
    install(spark, "support.spark_recruits:make_drawing", counters=None)

    @enlisting
    def together(rows: Iterator[Any]) -> list[int]:
        # Neither of the two tasks ends before both run, each in a worker of its own.
        mine = attempt()
        client().sadd(TASKS, mine)
        wait_until(lambda: client().scard(TASKS) == 2, "the other task")
        return [1]

    spark.sparkContext.parallelize(range(2), 2).mapPartitions(together).collect()
    draws = [each.decode() for each in redis.lrange(DRAWS, 0, -1)]
    assert len(draws) == len(set(draws)) == 2


def test_a_broken_factory_fails_no_task(spark: SparkSession, redis: Any) -> None:
    install(spark, "support.spark_recruits:make_broken")
    map_partitions(spark)
    assert 1 <= redis.llen(FACTORIES) <= 2
    install(spark, "no_such_package:make")
    map_partitions(spark)
    assert redis.llen(SLICES) == 0


def test_batches_of_a_stream(spark: SparkSession, redis: Any, tmp_path: Path) -> None:
    install(spark, FACTORY, interval=3600.0)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text(f"{number}\n", "utf-8")
    batches = []

    @enlist_batch
    def write(rows: Any, batch: int) -> None:
        batches.append((batch, rows.count()))

    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert batches == [(0, 1), (1, 1), (2, 1)]
    assert noted(redis, SLICES) == {f"{NO_TASK} in {os.getpid()}": 3}
    # The driver's own counts are sent before they are read.
    assert recruits(spark).enlisted == 3


def test_without_install_nothing_starts(spark: SparkSession, redis: Any) -> None:
    for ask in (recruits, accumulated):
        with pytest.raises(ConfigurationError, match=r"call workstealing\.spark\.install"):
            ask(spark)
    wrapped = enlisting(lambda rows: rows)
    with pytest.raises(PicklingError, match=r"call workstealing\.spark\.install"):
        spark.sparkContext.parallelize(range(2), 1).mapPartitions(wrapped).collect()
    with pytest.raises(PicklingError, match=r"call workstealing\.spark\.install"):
        spark.range(1).mapInPandas(wrapped, "id long").collect()
    # Pickled by its name, the function finds out in the worker, and the task goes on.
    assert spark.sparkContext.parallelize(range(4), 1).mapPartitions(doubled).sum() == 12
    assert redis.llen(FACTORIES) == 0
