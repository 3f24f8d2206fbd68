"""Spark's classes as an archive that JVMs share: with it a driver starts in half the CPU time.

Each driver, master and executor of the tests loads some ten thousand classes, and reading and
checking them is most of its start. An archive that does not fit a JVM is left aside by the JVM.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache"
# Starts of a JVM that pay for making it.
WORTH = 5
# Batches, a Python worker and a stream, so that their classes are in it.
LOADS = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "512m")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
spark.range(9).select(udf(str)("id").alias("name")).groupBy("name").count().collect()
writer = spark.readStream.format("rate").load().writeStream.format("noop")
writer = writer.trigger(availableNow=True).option("checkpointLocation", sys.argv[1])
writer.start().awaitTermination()
spark.stop()
"""


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


def _archive() -> Path:
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    said = subprocess.run([java, "-version"], capture_output=True, check=True).stderr
    # It names the jars by their paths.
    about = f"{version('pyspark')} {sys.prefix} {said.decode()}"
    return CACHE / f"spark-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa"


def _make(archive: Path) -> None:
    """Make it beside its place, so that no other process finds half of it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="workstealing-archive-", dir="/tmp") as folder:
        made = Path(folder, "spark.jsa")
        options = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable -XX:+UseSerialGC -Xss4m"
        environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        subprocess.run(
            [sys.executable, "-P", "-c", LOADS, str(Path(folder, "checkpoint"))],
            env={**os.environ, **environment, "SPARK_SUBMIT_OPTS": options},
            capture_output=True,
            check=False,
            timeout=300,
        )
        if made.exists():
            CACHE.mkdir(exist_ok=True)
            part = archive.with_suffix(f".{os.getpid()}")
            part.write_bytes(made.read_bytes())
            part.replace(archive)
