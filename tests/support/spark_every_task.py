"""A program for a test of `every_task=True`: one application after another, on a JVM of its own.

It prints one JSON object: of each kind of task, how many task attempts each process had and how
often it enlisted; and whether all of them went well beside a broken factory.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf, udf

import workstealing
from support import spark_jvms
from support.servers import wait_until
from support.spark_recruits import FACTORIES, SLICES, TASKS
from workstealing.spark import enlisting, install, recruits

THIS = "support.spark_recruits"


def note() -> None:
    # Not at the top: this module is pickled by value, and so would be what it holds.
    from support.spark_recruits import attempt, client

    client().sadd(TASKS, attempt())


def sink() -> Any:
    """Return a data source that takes numbers and keeps none; PySpark 3.5 has no such classes."""
    from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

    class SinkWriter(DataSourceWriter):
        """Notes its tasks."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            """Look at the rows."""
            note()
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Sink(DataSource):
        """The sink."""

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return "sink"

        def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
            """Return the writer."""
            return SinkWriter()

    return Sink


def map_partitions(spark: SparkSession) -> None:
    def same(rows: Iterator[Any]) -> Iterator[Any]:
        note()
        return rows

    assert spark.sparkContext.parallelize(range(6), 3).mapPartitions(same).sum() == 15


def map_in_pandas(spark: SparkSession) -> None:
    def same(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        note()
        yield from frames

    assert spark.range(6, numPartitions=3).mapInPandas(same, "id long").count() == 6


def pandas_udf_in_sql(spark: SparkSession) -> None:
    @pandas_udf("long")
    def same(column: pd.Series) -> pd.Series:
        note()
        return column

    spark.udf.register("same", same)
    spark.range(6, numPartitions=3).createOrReplaceTempView("numbers")
    assert spark.sql("SELECT sum(same(id)) FROM numbers").first()[0] == 15


def plain_udf_in_sql(spark: SparkSession) -> None:
    @udf("long")
    def next_one(number: int) -> int:
        note()
        return number + 1

    spark.udf.register("next_one", next_one)
    spark.range(6, numPartitions=3).createOrReplaceTempView("numbers")
    assert spark.sql("SELECT sum(next_one(id)) FROM numbers").first()[0] == 21


def write(spark: SparkSession) -> None:
    spark.dataSource.register(sink())
    spark.range(6, numPartitions=3).write.format("sink").mode("append").save()


def wrapped_too(spark: SparkSession) -> None:
    # It has enlisted already when the hook comes.
    @enlisting
    def same(rows: Iterator[Any]) -> Iterator[Any]:
        note()
        yield from rows

    assert spark.sparkContext.parallelize(range(6), 3).mapPartitions(same).sum() == 15


def failing(spark: SparkSession) -> None:
    def fail(rows: Iterator[Any]) -> Iterator[Any]:
        note()
        raise ValueError("the task's own error")

    with pytest.raises(Exception, match="the task's own error"):
        spark.sparkContext.parallelize(range(6), 1).mapPartitions(fail).count()


KINDS: list[Callable[[SparkSession], None]] = [
    map_partitions,
    map_in_pandas,
    pandas_udf_in_sql,
    plain_udf_in_sql,
    *([] if pyspark.__version__.startswith("3.") else [write]),
    wrapped_too,
    failing,
]


def builder() -> Any:
    """Return what all sessions here have in common."""
    return (
        spark_jvms.builder("local[2]")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.executorEnv.PYTHONPATH", sys.argv[1])
    )


def by_process(noted: Iterable[bytes]) -> dict[str, int]:
    """Return how many of the noted attempts each process had."""
    return dict(Counter(each.decode().partition(" in ")[2] for each in noted))


def counted(redis: Any, kind: Callable[[SparkSession], None], spark: SparkSession) -> Any:
    """Run one kind of task; return how many attempts and how many slices each process had."""
    redis.delete(SLICES, TASKS)
    kind(spark)
    tasks = redis.smembers(TASKS)
    # The hook comes when the task's result has been sent.
    wait_until(lambda: redis.llen(SLICES) >= len(tasks), kind.__name__)
    return by_process(tasks), by_process(redis.lrange(SLICES, 0, -1))


def main() -> None:
    """Run everything; the Redis is that of the environment."""
    redis = workstealing.connect()
    report: dict[str, Any] = {}
    spark = install(builder(), f"{THIS}:make", every_task=True, interval=0.2).getOrCreate()
    report["kinds"] = {kind.__name__: counted(redis, kind, spark) for kind in KINDS}
    tasks = sum(sum(had.values()) for had, _ in report["kinds"].values())
    wait_until(lambda: recruits(spark).enlisted >= tasks, "the counts")
    report["tasks"], report["enlisted"] = tasks, recruits(spark).enlisted
    report["factories"] = Counter(each.decode() for each in redis.lrange(FACTORIES, 0, -1))
    # A session that has the hook may tell it something else.
    install(spark, f"{THIS}:make_broken", every_task=True)
    redis.delete(FACTORIES, SLICES)
    for kind in (map_partitions, plain_udf_in_sql, wrapped_too, failing):
        kind(spark)
    wait_until(lambda: redis.llen(FACTORIES) > 0, "a call of the broken factory")
    report["slices_of_a_broken_factory"] = redis.llen(SLICES)
    spark.stop()
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
