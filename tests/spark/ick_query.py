"""A driver with a streaming query on a ShardedIck, to be killed; argv: URL and checkpoint."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import redis
from pyspark.sql import SparkSession

from workstealing.spark.sources.ick import IckSource

ICK = "workstealing.ick"

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(url: str, checkpoint: str) -> None:
    """Write the members of each batch to the list `seen`, slowly."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.dataSource.register(IckSource)
    client = redis.Redis.from_url(url)

    def sink(batch: DataFrame, number: int) -> None:
        rows = [row.member for row in batch.collect()]
        client.rpush("seen", *rows[: len(rows) // 2])
        client.set("batch", number)
        time.sleep(0.5)
        client.rpush("seen", *rows[len(rows) // 2 :])

    table = spark.readStream.format(ICK).options(url=url, maxMembersPerTrigger=40).load("orders")
    query = table.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
