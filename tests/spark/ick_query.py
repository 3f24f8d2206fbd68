"""A driver with a streaming query on a ShardedIck, to be killed; argv: see `main`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import redis

from support.dying_drivers import SUNK, DyingSource, die, session

ICK = "workstealing.ick"

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(url: str, checkpoint: str, available_now: str) -> None:
    """Write the members of each batch to the list `seen`; argv: URL, checkpoint, "now" or "on"."""
    spark = session()
    spark.dataSource.register(DyingSource)
    client = redis.Redis.from_url(url)

    def sink(batch: DataFrame, number: int) -> None:
        rows = [row.member for row in batch.collect()]
        if rows:
            client.rpush("seen", *rows)
        client.set("batch", number)
        die(SUNK)

    table = spark.readStream.format(ICK).options(url=url, maxMembersPerTrigger=40)
    table = table.option("leaseSeconds", 10_000)
    writer = (
        table.load("orders").writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    )
    if available_now == "now":
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
