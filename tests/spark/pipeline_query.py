"""The driver of examples/spark_pipeline, to be killed; its application runs elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from spark_pipeline import indexing

from support.dying_drivers import SUNK, DyingSource, die, session
from workstealing.spark import install, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(checkpoint: str, most: str) -> None:
    """Index what is dirty, until it is killed; argv: checkpoint, and the most of a batch."""
    spark = session()
    install(spark, "spark_pipeline.parts:make_recruiter", interval=1.0)
    register(spark)
    spark.dataSource.register(DyingSource)
    index_batch = indexing.index_batch

    def dying(batch: DataFrame, number: int) -> None:
        index_batch(batch, number)
        die(SUNK)

    indexing.index_batch = dying
    indexing.start(spark, checkpoint, int(most)).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
