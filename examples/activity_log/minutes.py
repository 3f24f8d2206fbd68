"""Spark counts the entries by minute, as they come."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# For seconds of life: compiling thoroughly costs more of two cores than it saves.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
PACKAGES = ("pyspark", "pandas", "pyarrow")


def missing() -> list[str]:
    """Return what Spark would need and is not there."""
    found = [name for name in PACKAGES if find_spec(name) is None]
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        found.append("Java")
    return found


def start_spark(folder: Path) -> SparkSession:
    """Start Spark on two threads of this machine; what it leaves on disk is in the folder."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} {SHORT_LIVED}",
        "spark.local.dir": str(folder),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("activity_log").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    handler = signal.getsignal(signal.SIGINT)
    # What it says at its start is no news.
    with (folder / "spark.log").open("wb") as file, errors_to(file.fileno()):
        spark = builder.getOrCreate()
    # Spark has put its own there, which would cancel the jobs that are waited for.
    signal.signal(signal.SIGINT, handler)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def errors_to(file: int) -> Iterator[None]:
    """Let what this process starts meanwhile write its errors to a file."""
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Minutes:
    """A query that counts the entries of a log by minute.

    Fields: counts: entries by minute, as text, of all batches so far. Where Redis is, Spark's
    Python processes read from this one's environment.
    """

    def __init__(self, spark: SparkSession, log: str, folder: Path) -> None:
        from pyspark.sql import functions as F  # noqa: N812 - its name in everybody's programs

        from workstealing.spark import register

        register(spark)
        self.counts: dict[str, int] = {}
        entries = (
            spark.readStream.format("workstealing.log")
            .option("values", "string")
            .option("startingOffset", "earliest")
            .option("partitions", 2)
            .load(log)
        )
        minute = F.substring(F.get_json_object("value", "$.at"), 1, 16).alias("minute")
        self._query: StreamingQuery = (
            entries.select(minute)
            .groupBy("minute")
            .count()
            .writeStream.queryName("minutes")
            .outputMode("complete")
            .foreachBatch(self._keep)
            .trigger(processingTime="1 second")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )

    def catch_up(self) -> None:
        """Wait until everything that is in the log now is counted."""
        self._query.processAllAvailable()

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()

    @property
    def batches(self) -> int:
        """How many batches there were."""
        progress: Any = self._query.lastProgress
        return progress["batchId"] + 1 if progress else 0

    def _keep(self, batch: DataFrame, number: int) -> None:  # noqa: ARG002 - foreachBatch's signature
        self.counts = {row["minute"]: row["count"] for row in batch.collect()}
