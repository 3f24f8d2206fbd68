"""Tests of what needs Spark: without pyspark or Java this folder is skipped, in CI it fails.

Options and offsets are tested without a JVM; one session, `local[2]`, serves a whole worker.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import spark_jvms
from support.postgres import PostgresServer
from support.spark_cluster import StandaloneCluster, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
MISSING = [name for name in ("pyspark", "pandas", "pyarrow") if find_spec(name) is None]
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    MISSING.append("java")
TESTS = Path(__file__).resolve().parents[1]

if MISSING and not IN_CI:
    # By folder: nothing here is imported.
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str | None:
    """Say at the top of the run why the folder is skipped."""
    if not MISSING:
        return None
    return f"tests/spark: {', '.join(MISSING)} missing: {'failing' if IN_CI else 'skipped'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count whatever asks for the JVM as slow: it takes seconds, beside many that take none."""
    for item in items:
        if {"spark", "spark_cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the starts of JVMs cheaper, where many will come."""
    here = Path(__file__).parent
    mine = [each for each in session.items if each.path.is_relative_to(here)]
    if starts := sum(each.get_closest_marker("slow") is not None for each in mine):
        spark_jvms.use(starts)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session, `local[2]`, whose Python workers can import `support` and the tests' modules."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        spark_jvms.builder("local[2]")
        .appName("workstealing tests")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.executorEnv.PYTHONPATH", str(TESTS))
        .config("spark.jars", "/usr/share/java/postgresql.jar")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def spark_cluster() -> Iterator[Callable[..., StandaloneCluster]]:
    """Start standalone clusters for one test, `spark_cluster(environment={...})`.

    They end with the test, which fails if any of their processes outlives them. A driver for one
    must be a process of its own, because a Python process has one Spark context.
    """
    with ExitStack() as stack:

        def start(**options: Any) -> StandaloneCluster:
            return stack.enter_context(standalone_cluster(**options))

        yield start


@pytest.fixture
def pipeline_database(postgres: PostgresServer) -> Iterator[str]:
    """A database of its own for examples/spark_pipeline, by its address as libpq takes it."""
    import psycopg

    whole = postgres.url.replace("+psycopg", "")
    with psycopg.connect(whole, autocommit=True) as connection:
        connection.execute("CREATE DATABASE spark_pipeline")
        yield whole.rpartition("/")[0] + "/spark_pipeline"
        connection.execute("DROP DATABASE spark_pipeline WITH (FORCE)")
