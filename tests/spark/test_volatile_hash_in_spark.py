"""Volatile hashes in a Spark session: batch, stream, errors, and no password to be seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from support.hash_places import NAMESPACE, Place
from support.pages import run_page, text_of
from support.servers import RedisServer
from workstealing.spark import register
from workstealing.structures import VolatileHashes

HASHES = "workstealing.volatile_hashes"

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def items(spark: SparkSession, rows: int = 40) -> DataFrame:
    """Return rows of some hashes in two partitions."""
    return spark.range(0, rows, 1, 2).selectExpr(
        "concat('item:', id % 7) key", "concat('f', id) field", "id value", "100.5 ttl"
    )


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "backend"), [("redis7", "emulated"), ("redis8", "native"), ("cluster", "emulated")]
)
def test_a_data_frame_is_written_and_read_back(
    spark: SparkSession, request: pytest.FixtureRequest, name: str, backend: str
) -> None:
    place = Place(request.getfixturevalue(name), backend)
    try:
        register(spark)
        written = items(spark)
        written.write.format(HASHES).mode("append").options(**place.options).save(NAMESPACE)
        match = {"match": "item:*"} if backend == "native" else {}
        read = spark.read.format(HASHES).options(**place.options, **match, partitions=2)
        found = read.load(NAMESPACE)
        assert dict(found.dtypes) == {
            "key": "string",
            "field": "string",
            "value": "string",
            "ttl": "double",
        }
        rows = found.collect()
        wanted = {(row.key, row.field, str(row.value)) for row in written.collect()}
        assert {(row.key, row.field, row.value) for row in rows} == wanted
        assert len(rows) == 40
        assert all(0 < row.ttl <= 100.5 for row in rows)
    finally:
        place.server.wipe()


def test_a_streaming_query_writes_every_micro_batch(
    spark: SparkSession, redis7: RedisServer, tmp_path: Path
) -> None:
    register(spark)
    written = items(spark)
    written.write.parquet(str(tmp_path / "rows"))
    query = (
        spark.readStream.schema(written.schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "rows"))
        .drop("ttl")
        .writeStream.format(HASHES)
        .options(url=redis7.url, path=NAMESPACE, ttlSeconds="60")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert len(query.recentProgress) == 2
    hashes = VolatileHashes(redis7.client(decode_responses=True), NAMESPACE)
    found = {field: value for n in range(7) for field, value in hashes.hgetall(f"item:{n}").items()}
    assert found == {f"f{n}": str(n) for n in range(40)}
    assert 0 < hashes.httl("item:0", "f0")[0] <= 60


def test_spark_shows_our_errors_before_any_task(spark: SparkSession, redis8: RedisServer) -> None:
    register(spark)
    Place(redis8, "native").hashes().hsetex("a", "f", "1", ex=500)
    reads = spark.read.format(HASHES).option("url", redis8.url)
    writes = items(spark, 2).write.format(HASHES).option("url", redis8.url)
    cases: list[tuple[Callable[[], Any], str]] = [
        (reads.load, "'namespace' is missing"),
        (lambda: reads.load(NAMESPACE).collect(), "give the pattern of their keys as match"),
        (lambda: writes.mode("append").save("no spaces"), "'no spaces' is not usable"),
        (lambda: writes.mode("overwrite").save(NAMESPACE), "only appends"),
    ]
    for act, problem in cases:
        with pytest.raises(AnalysisException, match=problem):
            act()
    assert redis8.client().hgetall("a") == {b"f": b"1"}


def test_a_bad_row_fails_its_task_in_words(spark: SparkSession, redis7: RedisServer) -> None:
    register(spark)
    rows = items(spark, 4).selectExpr("key", "field", "value", "if(value = 3, -1.0, 5.0) ttl")
    with pytest.raises(PySparkException, match=r"the ttl of the key b'item:3' is -1.0"):
        rows.write.format(HASHES).mode("append").option("url", redis7.url).save(NAMESPACE)


@pytest.mark.parametrize("name", ["redis7", "redis8"])
def test_the_examples_of_the_docs_run(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server: RedisServer = request.getfixturevalue(name)
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", server.url)
    # The session's processes have another environment than this test's.
    formats = re.findall(r"\.format\([^)]*\)", text_of("docs/spark_hashes_and_sets.md"))
    here = {each: f"{each}.option('url', '{server.url}')" for each in formats}
    here["spark.read."] = "spark.read.option('partitions', 2)."
    names = run_page("docs/spark_hashes_and_sets.md", {"spark": spark}, replace=here)
    assert names["left"].count() == 10
    assert names["tracked"].count() == 2
    assert "sub_set" in capsys.readouterr().out


PASSWORD = "pw-Zq81xk"


@pytest.mark.slow
def test_a_password_is_nowhere_to_be_seen(redis7: RedisServer, tmp_path: Path) -> None:
    """A driver of its own, whose output, event log and checkpoint are searched."""
    client = redis7.client()
    client.execute_command("ACL", "SETUSER", "reporter", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    try:
        run = subprocess.run(
            [sys.executable, "-P", "-m", "support.spark_secrets", str(tmp_path)],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SECRET_URL": f"redis://reporter:{PASSWORD}@127.0.0.1:{redis7.port}/0",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        client.execute_command("ACL", "DELUSER", "reporter")
    assert run.returncode == 0, run.stderr[-3000:]
    # That there is something to search in: plans, the driver's own log, errors.
    assert "BatchScan workstealing.volatile_hashes" in run.stdout
    assert "BatchScan workstealing.ick" in run.stdout
    assert "WriteToMicroBatchDataSource" in run.stdout
    assert run.stdout.count("refused: ") == 5
    assert "[INFO]" in (tmp_path / "driver.log").read_text()
    logs = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("SparkListenerSQLExecutionStart" in path.read_text("latin-1") for path in logs)
    assert PASSWORD not in run.stdout
    assert PASSWORD not in run.stderr
    assert [path for path in logs if PASSWORD in path.read_text("latin-1")] == []
