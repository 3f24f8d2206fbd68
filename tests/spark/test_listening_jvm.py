"""The driver's listener on a real session: queries, streams and stages of the JVM alone."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.pages import running
from support.processes import spawn
from support.servers import RedisServer, wait_until
from workstealing import Recruiter
from workstealing.spark import install, installing, listen, listening, recruits, workers
from workstealing.spark.listening import gauges_of
from workstealing.spark.workers import VARIABLE
from workstealing.testing import always

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def recruiter() -> Recruiter:
    """A recruiter that recruits everybody for a job of one item."""
    recruiter = always(seconds=5.0)
    recruiter.job(rate=1.0, name="note")(lambda slice: 1)
    return recruiter


@pytest.fixture(autouse=True)
def _driver(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A driver where nothing listens, before and afterwards."""
    monkeypatch.setattr(installing, "_installation", None)
    monkeypatch.setattr(workers, "_worker", None)
    environment: dict[str, Any] = spark.sparkContext.environment
    monkeypatch.setitem(environment, VARIABLE, "")
    yield
    if listening._listener is not None:
        listening._listener.stop()
    monkeypatch.setattr(listening, "_listener", None)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "workstealing.spark"]


def gauges_in(spark: SparkSession) -> dict[str, int]:
    """Return the values of the application's gauges, as the JVM has them."""
    accumulators = gauges_of(spark.sparkContext)._accumulators
    return {name: accumulator.value() for name, accumulator in accumulators.items()}


@pytest.mark.smoke
def test_each_query_of_the_jvm_enlists_once_and_has_a_line(
    spark: SparkSession, recruiter: Recruiter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "workstealing.spark")
    listener = listen(spark, recruiter, stages=False)
    spark.range(10).count()
    spark.range(10).write.format("noop").mode("overwrite").save()
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        spark.sql("select raise_error('no')").collect()
    wait_until(lambda: len(lines_of(caplog)) == 3, "three lines")
    assert recruiter.stats()["jobs"]["note"]["worked"] == 3
    told = [line.partition(" after")[0].partition(";")[0] for line in lines_of(caplog)]
    assert told == ["query count ended", "query overwrite ended", "query collectToPython failed"]
    assert all("1 enlisted, 1 recruited, 1 items" in line for line in lines_of(caplog))
    gauges = gauges_in(spark)
    assert (gauges["enlisted"], gauges["recruited"], gauges["items"]) == (3, 3, 3)

    # It leaves Spark's bus when it is stopped; another one may come, with the same gauges.
    manager: Any = spark._jsparkSession.listenerManager()
    assert len(list(manager.listListeners())) == 1
    listener.stop()
    assert list(manager.listListeners()) == []
    other = listen(spark, recruiter, stages=False)
    spark.range(10).count()
    wait_until(lambda: gauges_in(spark)["enlisted"] == 4, "the gauges of the second listener")
    other.stop()


def test_a_stream_enlists_for_batches_and_has_one_line_a_minute_and_one_at_its_end(
    spark: SparkSession, recruiter: Recruiter, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "workstealing.spark")
    listener = listen(spark, recruiter, stages=False)
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text("a line\n")
    seen = []
    query = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", 1)
        .load(str(tmp_path / "in"))
        .writeStream.foreachBatch(lambda batch, number: seen.append(batch.count()))
        .queryName("lines_of_text")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    wait_until(lambda: any("ended" in line for line in lines_of(caplog)), "the stream's last line")
    listener.stop()
    assert seen == [1, 1, 1]
    # Three micro-batches, the stream's end, and the three counts inside the batches.
    assert recruiter.stats()["jobs"]["note"]["worked"] == 7
    told = [line.partition(";")[0] for line in lines_of(caplog)]
    assert told == ["stream lines_of_text has done batch 0", "stream lines_of_text ended"]


def test_a_long_stage_enlists_at_its_end(
    spark: SparkSession, recruiter: Recruiter, tmp_path: Path
) -> None:
    listener = listen(spark, recruiter)
    seen = tmp_path / "seen"

    def wait(_: Any) -> Any:
        while not seen.exists():
            time.sleep(0.05)
        return []

    # No query of SQL: only the stage can be heard of, and it lasts until a look has seen it.
    job = threading.Thread(
        target=lambda: spark.sparkContext.parallelize([0], 1).mapPartitions(wait).collect()
    )
    job.start()
    stages: Any = listener._stages
    wait_until(lambda: bool(stages.__self__._active), "a look at the running stage")
    assert recruiter.stats()["enlisted"] == 0
    seen.touch()
    job.join()
    wait_until(lambda: recruiter.stats()["enlisted"] == 1, "the look at its end")
    listener.stop()


def test_install_counts_the_drivers_recruits_beside_those_of_tasks(
    spark: SparkSession,
    redis7: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "workstealing.spark")
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    from support import spark_recruits

    spark_recruits.client.cache_clear()
    install(spark, "support.spark_recruits:make")
    listener = listen(spark, stages=False)
    spark.range(10).count()
    wait_until(lambda: lines_of(caplog) != [], "the line")
    assert "1 enlisted, 1 recruited, 2 items" in lines_of(caplog)[0]
    totals = recruits(spark)
    assert (totals.enlisted, totals.jobs["note"].items) == (1, 2)
    listener.stop()
    spark_recruits.client.cache_clear()


def test_the_block_of_the_docs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    # The module of docs/spark_epilogues.md, with a recruiter of this test's.
    made = always(seconds=5.0)
    made.job(rate=1.0, name="note")(lambda slice: 1)
    module = types.ModuleType("shop_recruiting")
    module.make_recruiter = lambda: made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_recruiting", module)
    logger = logging.getLogger("workstealing.spark")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    with running("docs/spark_listener.md") as page:
        names = page.run(spark=spark)
        wait_until(lambda: made.stats()["enlisted"] == 1, "the driver's enlist")
        names["listener"].stop()
        page.run()
    assert logger.level == logging.INFO


DRIVER = """
import sys
from support.spark_jvms import builder
from workstealing.spark import listen
from workstealing.testing import always

spark = (
    builder("local[2]")
    .config("spark.ui.enabled", "true")
    .config("spark.ui.port", "0")
    .config("spark.metrics.conf.*.sink.prometheusServlet.class",
            "org.apache.spark.metrics.sink.PrometheusServlet")
    .config("spark.metrics.conf.*.sink.prometheusServlet.path", "/metrics/prometheus")
    .getOrCreate()
)
recruiter = always(seconds=5.0)
recruiter.job(rate=1.0, name="<b>note</b>")(lambda slice: 7)
listener = listen(spark, recruiter, stages=False)
spark.range(10).count()
print(spark.sparkContext.uiWebUrl, flush=True)
sys.stdin.readline()
listener.stop()
print("stopped", flush=True)
sys.stdin.read()
spark.stop()
"""


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as page:
        text: str = page.read().decode()
    return text


@pytest.mark.slow
@pytest.mark.spark_cluster
def test_the_ui_and_the_metrics_show_the_totals() -> None:
    # A driver of its own, because the tests' session has no UI.
    driver = spawn(
        [sys.executable, "-P", "-c", DRIVER],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with driver:
        try:
            assert driver.stdin is not None
            assert driver.stdout is not None
            ui = driver.stdout.readline().strip()
            assert ui.startswith("http://127.0.0.1:")

            def figures() -> dict[str, Any]:
                said: dict[str, Any] = json.loads(read(f"{ui}/workstealing/json"))
                return said

            wait_until(lambda: figures()["totals"]["items"] == 7, "the page's figures")
            assert figures()["jobs"]["<b>note</b>"]["recruited"] == 1
            page = read(f"{ui}/workstealing/")
            assert "&lt;b&gt;note&lt;/b&gt;" in page
            assert "1 enlisted, 1 recruited, 7 items" in page
            metrics = json.loads(read(f"{ui}/metrics/json/"))["gauges"]
            found = {
                name.rpartition("AccumulatorSource.")[2]: gauge["value"]
                for name, gauge in metrics.items()
                if "AccumulatorSource.workstealing." in name
            }
            assert found["workstealing.items"] == 7
            assert found["workstealing.enlisted"] == 1
            prometheus = read(f"{ui}/metrics/prometheus/")
            assert "AccumulatorSource_workstealing_items_Value" in prometheus
            # The page goes with the listener, and the UI stays.
            print(file=driver.stdin, flush=True)
            assert driver.stdout.readline() == "stopped\n"
            assert "1 enlisted" not in read(f"{ui}/workstealing/")
            assert "Spark" in read(f"{ui}/jobs/")
            driver.stdin.close()
            assert driver.wait(120) == 0
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
