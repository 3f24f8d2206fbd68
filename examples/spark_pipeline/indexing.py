"""What Spark does: it reads what is dirty, writes search rows, and sums documents up.

All of this may run twice (a task is tried again when its executor dies, a batch when the driver
does), so all of it is idempotent: the search row is guarded by the document's version.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from spark_pipeline.parts import DIRTY, SUMMARIES, open_database, summary_key
from workstealing.spark import enlist_batch, enlisting

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FETCH = "SELECT id, version, title, body FROM documents WHERE id = ANY(%s) ORDER BY id"
# A task that was held for dead and comes late must not bring an old version back.
WRITE = """
INSERT INTO search AS old (id, version, title, body, words)
VALUES (%s, %s, %s, %s, to_tsvector('english', %s || ' ' || %s))
ON CONFLICT (id) DO UPDATE
SET version = excluded.version, title = excluded.title, body = excluded.body, words = excluded.words
WHERE old.version < excluded.version
"""
SUMMARY_SCHEMA = "key string, field string, value string, ttl double"
# Seconds to live, by field; hours would do for a site.
TTLS = {"headline": 2.0, "length": 3.0, "version": 5.0}


@enlisting
def index(dirty: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Write the search rows of a partition's documents; yield their summaries.

    It is given to mapInPandas: `member` holds the ids. When the partition is finished the task
    enlists.
    """
    with open_database(f"index: {whoami()}") as database:
        for part in dirty:
            documents = database.execute(FETCH, (list(part["member"]),)).fetchall()
            write_search_rows(database, documents)
            yield summaries_of(documents)


def whoami() -> str:
    """Say which task this is, for PostgreSQL's list of its clients."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return f"pid {os.getpid()} partition {task.partitionId()} attempt {task.attemptNumber()}"


def write_search_rows(database: psycopg.Connection[Any], documents: list[Any]) -> None:
    """Write search rows, and commit. All writers take the rows in one order, so none deadlock."""
    rows = [
        (document, version, title, body, title, body)
        for document, version, title, body in documents
    ]
    with database.cursor() as cursor:
        cursor.executemany(WRITE, rows)
    database.commit()


def summaries_of(documents: list[Any]) -> pd.DataFrame:
    """Return the summaries as volatile hashes take them: a row for each field."""
    import pandas as pd

    rows = []
    for document, version, _, body in documents:
        fields = {"headline": f"{body[:60]} ...", "length": len(body), "version": version}
        rows += [
            (summary_key(document), field, str(value), TTLS[field])
            for field, value in fields.items()
        ]
    return pd.DataFrame(rows, columns=["key", "field", "value", "ttl"])


@enlist_batch
def index_batch(batch: DataFrame, number: int) -> None:  # noqa: ARG001 - foreachBatch's signature
    """Index one micro-batch: search rows to PostgreSQL, summaries to volatile hashes."""
    summaries = batch.select("member").mapInPandas(index, SUMMARY_SCHEMA)
    summaries.write.format("workstealing.volatile_hashes").mode("append").option(
        "namespace", SUMMARIES
    ).save()


def start(spark: SparkSession, checkpoint: str, most: int) -> StreamingQuery:
    """Start the query: each batch takes at most so many members of the Icks."""
    dirty = (
        spark.readStream.format("workstealing.ick")
        .option("name", DIRTY)
        .option("maxMembersPerTrigger", most)
        .load()
    )
    return (
        dirty.writeStream.queryName("index")
        .foreachBatch(index_batch)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="250 milliseconds")
        .start()
    )
