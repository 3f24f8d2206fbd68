"""The standalone cluster that other tests rely on: it works, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from support.spark_cluster import StandaloneCluster

pytestmark = pytest.mark.spark_cluster

# A driver of its own: this process may have another session already.
DRIVER = """
import os
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master({url!r})
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "512m")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.cores.max", "2")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

def look(_):
    return [(os.getpid(), os.environ["TOLD"])]

print(*spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect(), flush=True)
sys.stdin.read()
"""


def test_a_session_runs_on_it_and_what_is_killed_takes_its_children_along(
    spark_cluster: Callable[..., StandaloneCluster],
) -> None:
    cluster = spark_cluster(workers=2, cores=1, environment={"TOLD": "by the environment"})
    assert cluster.alive_workers() == 2
    assert not cluster.executors()
    driver = subprocess.Popen(
        [sys.executable, "-P", "-c", DRIVER.format(url=cluster.url)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with driver:
        try:
            assert driver.stdout is not None
            assert driver.stdin is not None
            said = driver.stdout.readline()
            assert said.count("by the environment") == 4
            python_workers = [int(part.strip("(,")) for part in said.split() if part[0] == "("]
            executors = {cluster.executor_of(pid) for pid in python_workers}
            assert None not in executors
            assert cluster.executor_of(os.getpid()) is None
            assert len(cluster.executors()) == 2

            # The dead worker's executor, and that executor's Python processes, go by themselves.
            (first, *_) = cluster.executors()
            mine = {
                each.pid for each in cluster.processes() if cluster.executor_of(each.pid) == first
            }
            assert len(mine) > 1
            cluster.kill_worker(first.parent)
            cluster.wait(
                lambda: not mine & {each.pid for each in cluster.processes()},
                "the children of a killed worker to end",
            )
            cluster.wait(lambda: cluster.alive_workers() == 1, "the master to miss the worker")
        finally:
            driver.stdin.close()
            driver.wait(60)
    assert driver.returncode == 0
    assert cluster.stop() == []
