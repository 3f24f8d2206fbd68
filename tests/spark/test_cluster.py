"""The standalone cluster that other tests rely on: it works, speculates, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.hash_checks import check_index
from support.patience import GUARD_SECONDS
from support.processes import spawn
from support.servers import RedisServer
from support.spark_cluster import StandaloneCluster
from support.spark_recruits import FACTORIES, SLICES
from support.sweep_jobs import ATTEMPTS, NAMESPACE
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

pytestmark = [pytest.mark.spark_cluster, pytest.mark.slow]

TESTS = str(Path(__file__).resolve().parents[1])
# A driver of its own: this process may have another session already.
DRIVER = """
import os
import sys
from support.spark_jvms import EXECUTORS, builder
from workstealing.spark import install

spark = (
    install(builder({url!r}), "support.spark_recruits:make", every_task=True)
    .config(map=EXECUTORS)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

def look(_):
    return [(os.getpid(), os.environ["TOLD"])]

print(*spark.sparkContext.parallelize(range(4), 4).mapPartitions(look).collect(), flush=True)
sys.stdin.read()
"""


def test_a_session_runs_on_it_and_what_is_killed_takes_its_children_along(
    spark_cluster: Callable[..., StandaloneCluster], redis7: RedisServer
) -> None:
    cluster = spark_cluster(
        workers=2,
        cores=1,
        # Executors alone know the server; the driver sends the factory's name and no address.
        environment={
            "TOLD": "by the environment",
            "WORKSTEALING_REDIS_URL": redis7.url,
            "PYTHONPATH": TESTS,
        },
    )
    assert cluster.alive_workers() == 2
    assert not cluster.executors()
    driver = spawn(
        [sys.executable, "-P", "-c", DRIVER.format(url=cluster.url)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": TESTS},
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
            # Nothing in the driver's program enlists: the hook of every task does, once for each.
            notes = redis7.client(decode_responses=True)
            cluster.wait(lambda: notes.llen(SLICES) == 4, "each task to be recruited")
            assert set(notes.lrange(FACTORIES, 0, -1)) == {str(pid) for pid in python_workers}

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


SPECULATING = """
import sys
from types import SimpleNamespace
from support.spark_jvms import EXECUTORS, builder
from support.sweep_jobs import straggling
from workstealing.spark import sweep

spark = (
    builder({url!r})
    .config(map=EXECUTORS)
    .config("spark.speculation", "true")
    .config("spark.speculation.interval", "100ms")
    .config("spark.speculation.multiplier", "1.1")
    .config("spark.speculation.quantile", "0.5")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
server = SimpleNamespace(port={port}, is_cluster=False)
found = sweep(spark, straggling(server, {ahead_ms}), partitions=4, turn_seconds=3_600)
for row in found.collect():
    print(row.part, row.items, row.drained, row.failed, row.rounds, flush=True)
spark.stop()
"""


def test_a_sweep_survives_the_speculation_of_spark(
    spark_cluster: Callable[..., StandaloneCluster], redis7: RedisServer
) -> None:
    ahead_ms, hashes_count, fields = 3_600_000_000, 400, 5
    hashes: VolatileHashes = VolatileHashes(redis7.client(), NAMESPACE, backend="emulated")
    with hashes.pipeline(transaction=False) as pipe:
        for i in range(hashes_count):
            pipe.hsetex(f"h{i}", mapping={f"f{j}": "v" for j in range(fields)}, ex=60)
            pipe.hset(f"h{i}", "lasting", i)
        pipe.execute()
    cluster = spark_cluster(workers=2, cores=1, environment={"PYTHONPATH": TESTS}, apart=True)
    code = SPECULATING.format(url=cluster.url, port=redis7.port, ahead_ms=ahead_ms)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": TESTS},
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS * 4,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [line.split() for line in done.stdout.splitlines()]
    # The first attempt would have gone on for an hour: another one has done its part.
    assert {tuple(row[2:]) for row in rows} == {("True", "0", "1")}
    client = redis7.client(decode_responses=True)
    assert {"0:0", "0:1"} <= client.smembers(ATTEMPTS)
    # What both attempts have removed is removed once, and counted by the one whose row counts.
    assert sum(int(row[1]) for row in rows) <= hashes_count * fields
    later: VolatileHashes = VolatileHashes(
        redis7.client(), NAMESPACE, backend="emulated", clock_shift_ms=ahead_ms
    )
    assert HashFieldExpiry(later).backlog().count == 0
    for i in range(hashes_count):
        assert client.hgetall(f"h{i}") == {"lasting": str(i)}
    check_index(later)
