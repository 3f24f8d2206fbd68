"""A driver that copies a log into another one exactly once, to be killed; argv: see `main`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
import redis
from pyspark import TaskContext

from support import spark_jvms
from workstealing.spark import register

# A task that is held has written some of its rows by then, but not all.
HELD_AT_BATCH = 8


def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand rows on; where the list `hold` has an element, say who this is, and stand still."""
    client = redis.Redis.from_url(os.environ["WORKSTEALING_REDIS_URL"], socket_timeout=None)
    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == HELD_AT_BATCH and client.lpop("hold"):
            spark_batch = context.getLocalProperty("streaming.sql.batchId")
            client.rpush("held", f"{os.getpid()} {context.partitionId()} {spark_batch}")
            client.blpop(["release"], 300)
        yield batch


def main(master: str, checkpoint: str) -> None:
    """Copy `activity` into `copy`, batch by batch, until it is killed."""
    spark = (
        spark_jvms.builder(master)
        .config(map=spark_jvms.EXECUTORS)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    table = spark.readStream.format("workstealing.log").option("logs", "activity")
    table = table.option("maxOffsetsPerTrigger", 2_000).option("partitions", 2)
    rows = table.load().select("value").mapInArrow(held, "value binary")
    sink = rows.writeStream.format("workstealing.log").option("exactlyOnce", True)
    sink.option("checkpointLocation", checkpoint).start("copy").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
