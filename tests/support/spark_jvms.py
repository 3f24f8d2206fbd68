"""How the JVMs of Spark start in the tests: small, on loopback, with an archive of their classes.

Each driver, master and executor loads some ten thousand classes; to read and check them is most of
its start. An archive that they share halves the CPU time. A JVM that it does not fit leaves it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from support.processes import RUN

# Small data: compiling thoroughly costs more of two cores than it saves.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
# Of a driver.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
}
# And of its two executors, on a cluster.
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.cores.max": "2",
}
TESTS = Path(__file__).resolve().parents[1]
CACHE = TESTS.parent / ".cache"
# Starts of a JVM that pay for making it.
WORTH = 5
# Batches, a Python worker and a stream, so that their classes are in it.
LOADS = """
import sys
from pyspark.sql.functions import udf
from support.spark_jvms import builder

spark = builder("local[1]").getOrCreate()
spark.range(9).select(udf(str)("id").alias("name")).groupBy("name").count().collect()
writer = spark.readStream.format("rate").load().writeStream.format("noop")
writer = writer.trigger(availableNow=True).option("checkpointLocation", sys.argv[1])
writer.start().awaitTermination()
spark.stop()
"""


def builder(master: str) -> Any:
    """Return the builder of a session with a SparkContext."""
    from pyspark.sql import SparkSession

    made: Any = SparkSession.builder
    return made.master(master).config(map=SETTINGS)


def options() -> str:
    """Return the JVM's options that use the archive; none where it has not been made."""
    archive = _archive()
    # Nothing is said of an archive that does not fit.
    return f"-XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else ""


def use(starts: int) -> None:
    """Let the drivers that this process starts use the archive; make it for so many starts."""
    archive = _archive()
    if starts >= WORTH and not archive.exists():
        _make(archive)
    if said := options():
        before = os.environ.get("SPARK_SUBMIT_OPTS", "")
        os.environ["SPARK_SUBMIT_OPTS"] = f"{before} {said}".strip()


@functools.cache
def _archive() -> Path:
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    said = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    # It names the jars by their paths.
    about = f"{version('pyspark')} {sys.prefix} {said.decode()}"
    return CACHE / f"spark-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path) -> None:
    """Make it beside its place, so that no other process finds half of it."""
    with tempfile.TemporaryDirectory(prefix="workstealing-archive-", dir=RUN) as folder:
        made = Path(folder, "spark.jsa")
        environment = {
            "SPARK_SUBMIT_OPTS": " ".join(
                [
                    os.environ.get("SPARK_SUBMIT_OPTS", ""),
                    f"-XX:ArchiveClassesAtExit={made} -Xlog:disable",
                ]
            ),
            "PYTHONPATH": str(TESTS),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-P", "-c", LOADS, str(Path(folder, "checkpoint"))],
                env={**os.environ, **environment},
                capture_output=True,
                check=False,
                timeout=300,
            )
        if made.exists():
            CACHE.mkdir(exist_ok=True)
            part = archive.with_suffix(f".{os.getpid()}")
            part.write_bytes(made.read_bytes())
            part.replace(archive)
