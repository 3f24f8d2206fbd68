"""The driver of the Spark job that keeps the index up to date: `python -m archive.spark_job`.

It takes dirty pages out of the Ick, lets Spark's tasks index them, and acknowledges them for the
next ones, in one round trip. SIGTERM ends it after its batch. If it is killed, its reservation goes
stale, and a recruit returns it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from archive.indexer import index
from archive.parts import parts
from workstealing.spark import install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH, TASKS = 12, 2
NAP_SECONDS = 0.2
# For seconds of life: compiling thoroughly costs more of two cores than it saves.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"


def session(folder: Path) -> SparkSession:
    """Return a session on this machine, which leaves nothing outside the folder."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} {SHORT_LIVED}",
        "spark.local.dir": str(folder),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("archive").master(f"local[{TASKS}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Index what is dirty, until SIGTERM."""
    stop = threading.Event()
    spark = session(Path(sys.argv[1]))
    spark.sparkContext.setLogLevel("ERROR")
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # Each Python worker calls the function once; it has no arguments, and is found by its name.
    install(spark, "archive.parts:spark_recruiter")
    # The first batch must not wait for the first Python worker: it would go stale meanwhile.
    spark.sparkContext.parallelize(range(TASKS), TASKS).foreach(abs)
    print("the driver is ready", flush=True)

    dirty = parts().dirty
    batch = dirty.reserve(BATCH)
    while not stop.is_set():
        if batch:
            spark.sparkContext.parallelize(batch.members, TASKS).mapPartitions(index).sum()
        else:
            stop.wait(NAP_SECONDS)
        batch = dirty.exchange(BATCH, *batch.members)
    # What it has reserved since goes back at once, for the next driver.
    dirty.reserve(0, backwash=True)
    spark.stop()


if __name__ == "__main__":
    main()
