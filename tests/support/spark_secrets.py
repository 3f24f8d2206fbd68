"""A Spark driver that uses sources and sinks with a password, and says all that it can say.

Run by test_volatile_hash_in_spark.py: `python -m support.spark_secrets DIRECTORY`, and the URL in
SECRET_URL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support import spark_jvms
from workstealing.spark import register

HASHES = "workstealing.volatile_hashes"

ICK = "workstealing.ick"

# Into a file: what goes to the console, PySpark filters.
LOG = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.spark.name = org.apache.spark
logger.spark.level = info
appender.file.type = File
appender.file.name = file
appender.file.fileName = {directory}/driver.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%p] %c: %m%n%ex
"""


def session(directory: Path) -> SparkSession:
    """Return a session that logs into the directory."""
    (directory / "log4j2.properties").write_text(LOG.format(directory=directory))
    (directory / "events").mkdir()
    return (
        spark_jvms.builder("local[1]")
        .config(
            "spark.driver.extraJavaOptions",
            f"{spark_jvms.SHORT_LIVED} "
            f"-Dlog4j2.configurationFile=file:{directory}/log4j2.properties",
        )
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file:{directory}/events")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )


def refuse(act: Callable[[], Any]) -> None:
    """Print the error of what must not work."""
    try:
        act()
    except PySparkException as error:
        sys.stdout.write(f"refused: {error!r} {error}\n")


def main(directory: Path, url: str) -> None:
    """Write, read and stream; print plans and errors."""
    spark = session(directory)
    # PySpark's own default is above the log's.
    spark.sparkContext.setLogLevel("INFO")
    register(spark)
    rows = spark.sql("select 'k' key, concat('f', id) field, id value, 600 ttl from range(3)")
    rows.write.format(HASHES).mode("append").option("url", url).save("items")
    read = spark.read.format(HASHES).option("url", url).option("partitions", 1)
    found = read.load("items")
    found.explain(True)
    shown = (found._jdf.queryExecution().toString(), found, found.count())
    sys.stdout.write(f"{shown}\n")
    edits = spark.sql("select 'a' member").write.format(ICK).option("url", url)
    edits.option("ickShards", 1).mode("append").save("edits")
    edited = spark.read.format(ICK).option("url", url).load("edits")
    edited.explain(True)
    dirty = spark.readStream.format(ICK).options(url=url, path="edits")
    stream = dirty.load().writeStream.format("noop").trigger(availableNow=True)
    consumed = stream.option("checkpointLocation", f"{directory}/consumed").start()
    consumed.awaitTermination(120)
    consumed.explain(True)
    sys.stdout.write(f"{consumed.lastProgress} {consumed.exception()}\n")
    ids = spark.read.format("workstealing.tracked_set").option("url", url).load("ids")
    ids.explain("formatted")
    rows.write.parquet(f"{directory}/rows")
    query = (
        spark.readStream.schema(rows.schema)
        .parquet(f"{directory}/rows")
        .writeStream.format(HASHES)
        .options(url=url, path="items", checkpointLocation=f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    query.explain(True)
    sys.stdout.write(f"{query.lastProgress} {query.exception()}\n")
    wrong = spark.read.format(HASHES).option("partitions", 1)
    refuse(lambda: wrong.option("url", url.replace("@", "x@")).load("items").count())
    refuse(lambda: spark.read.format(HASHES).load(url))
    refuse(lambda: spark.read.format("workstealing.tracked_set").option("client", url).load("ids"))
    refuse(lambda: spark.read.format(ICK).option("url", url).load("nowhere").count())
    refuse(lambda: rows.write.format(HASHES).mode("append").option("url", url).save("-;"))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ["SECRET_URL"])
