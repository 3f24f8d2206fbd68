"""The check at the end, which is a Spark job itself: its tasks enlist like all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_pipeline.parts import open_database
from workstealing.spark import enlisting

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

TASKS = 12
CHECK = """
SELECT count(*), count(*) FILTER (
    WHERE search.version IS DISTINCT FROM documents.version
       OR search.words IS DISTINCT FROM
          to_tsvector('english', documents.title || ' ' || documents.body))
FROM documents LEFT JOIN search USING (id)
WHERE abs(hashtext(id)::bigint) %% %s = %s
"""


@enlisting
def count(numbers: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield how many documents there are in a part of the table, and how many search rows lie."""
    import pandas as pd

    with open_database("check") as database:
        for part in numbers:
            rows = [
                database.execute(CHECK, (TASKS, number)).fetchone()
                for number in part["id"].tolist()
            ]
            yield pd.DataFrame(rows, columns=["documents", "wrong"])


def check(spark: SparkSession) -> tuple[int, int]:
    """Return how many documents there are, and how many search rows differ from theirs."""
    counted = spark.range(0, TASKS, 1, TASKS).mapInPandas(count, "documents long, wrong long")
    row = counted.groupBy().sum().first()
    assert row is not None
    return int(row[0]), int(row[1])
