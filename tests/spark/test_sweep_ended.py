"""A sweep that nobody waits for any more ends: its tasks do not go on with their turns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import RedisError

from support.patience import GUARD_SECONDS
from support.processes import end, spawn
from support.servers import RedisServer, wait_until
from support.spark_connect import connect_server
from support.sweep_jobs import NAMESPACE, SLICES, endless, field_expiry
from workstealing.errors import ConfigurationError
from workstealing.spark import register, sweep
from workstealing.structures import VolatileHashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TURN_SECONDS = 10 * GUARD_SECONDS
# A slice takes some 10 ms, so this is silence.
SILENT_SECONDS = 2.0


def slices(client: Any) -> int:
    return int(client.get(SLICES) or 0)


def require_silence(client: Any) -> None:
    """Fail unless the tasks come to rest, long before the end of their turns."""

    def is_silent() -> bool:
        before = slices(client)
        time.sleep(SILENT_SECONDS)
        return slices(client) == before

    wait_until(is_silent, "the sweep's tasks to end", GUARD_SECONDS)


def once_at_work(server: RedisServer, do: Callable[[], object]) -> threading.Thread:
    """Do something when the sweep has begun, in a thread."""
    client = server.client()

    def wait() -> None:
        with suppress(RedisError):
            wait_until(lambda: slices(client) > 0, "the sweep to begin", GUARD_SECONDS)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def write(spark: SparkSession, server: RedisServer, prefix: str) -> None:
    """Write a few strings by a source of Python."""
    rows = spark.range(3).selectExpr("id AS key", "id AS value").write
    place = {"type": "string", "keyPrefix": prefix, "url": server.url}
    rows.format("workstealing.redis").mode("append").options(**place).save()


def test_ctrl_c_ends_the_stage_of_a_sweep(spark: SparkSession, redis7: RedisServer) -> None:
    register(spark)
    interrupting = once_at_work(redis7, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        sweep(spark, endless(redis7.port), partitions=2, turn_seconds=TURN_SECONDS)
    interrupting.join()
    require_silence(redis7.client())
    # PySpark has closed this thread's connection to the JVM, and the new one's thread there has no
    # active session, in which Spark looks for sources of Python. The sweep has made it active.
    write(spark, redis7, "after:")
    assert redis7.client().get("after:2") == b"2"
    # The session can be used, and has none of the sweep's names.
    assert spark.range(7).count() == 7
    assert not spark.sparkContext.getLocalProperty("spark.jobGroup.id")


def test_another_thread_finds_the_formats_once_it_has_registered_them(
    spark: SparkSession, redis7: RedisServer
) -> None:
    register(spark)
    failed: list[Exception] = []

    def try_twice() -> None:
        try:
            write(spark, redis7, "thread:")
        except Exception as error:  # noqa: BLE001 - it is looked at below
            failed.append(error)
        register(spark)
        write(spark, redis7, "thread:")

    thread = threading.Thread(target=try_twice)
    thread.start()
    thread.join()
    assert redis7.client().get("thread:2") == b"2"
    # Should Spark find them by itself one day, the sentence of the docs may go.
    assert "DATA_SOURCE_NOT_FOUND" in str(failed[0])


def test_a_held_sweep_is_looked_at_and_cancelled(spark: SparkSession, redis7: RedisServer) -> None:
    client = redis7.client()
    held = sweep(spark, endless(redis7.port), partitions=2, turn_seconds=TURN_SECONDS, wait=False)
    wait_until(lambda: slices(client) > 0, "the sweep to begin", GUARD_SECONDS)
    seen = held.progress()
    assert (seen.state, seen.parts, seen.left, seen.rounds, seen.turns) == ("running", 2, 2, 0, 0)
    assert not held.is_done
    with pytest.raises(TimeoutError, match="still goes on"):
        held.result(0.1)
    assert held.cancel(GUARD_SECONDS)
    assert held.is_done
    assert held.progress().state == "cancelled"
    with pytest.raises(CancelledError, match="cancelled after 0 rounds"):
        held.result()
    require_silence(client)
    # A second cancel does no harm, and the session can be used.
    assert held.cancel()
    assert spark.range(7).count() == 7


def test_a_held_sweep_gives_what_a_waiting_one_returns(
    spark: SparkSession, redis7: RedisServer
) -> None:
    hashes = VolatileHashes(redis7.client(), NAMESPACE, backend="emulated")
    for number in range(20):
        hashes.hsetex(f"item:{number}", mapping={"f": "v"}, px=1)
    held = sweep(spark, field_expiry(redis7, 10_000), partitions=2, wait=False)
    rows = held.result(GUARD_SECONDS).collect()
    seen = held.progress()
    assert (seen.state, seen.left, seen.items) == ("done", 0, 20)
    assert seen.rounds >= 1
    assert seen.seconds > 0
    assert sum(row["items"] for row in rows) == 20
    refused = sweep(spark, "support.sweep_jobs:no_job", partitions=1, wait=False)
    with pytest.raises(ConfigurationError, match="made str"):
        refused.result(GUARD_SECONDS)
    assert refused.progress().state == "failed"


def test_cancelling_the_job_group_ends_the_stage_of_a_sweep(
    spark: SparkSession, redis7: RedisServer
) -> None:
    context = spark.sparkContext

    def cancel() -> None:
        tracker = context.statusTracker()
        groups: set[str] = set()
        for job in tracker.getActiveJobsIds():
            found = context._jsc.sc().statusStore().job(job).jobGroup()
            groups |= {found.get()} if found.isDefined() else set()
        (group,) = (each for each in groups if each.startswith("workstealing-sweep-"))
        context.cancelJobGroup(group)

    cancelling = once_at_work(redis7, cancel)
    with pytest.raises(Exception, match="cancelled"):
        sweep(spark, endless(redis7.port), partitions=2, turn_seconds=TURN_SECONDS)
    cancelling.join()
    require_silence(redis7.client())


STOPPED = """
import sys
import threading

from support import spark_jvms
from support.servers import wait_until
from support.sweep_jobs import SLICES, client_of, endless
from workstealing.spark import sweep

port, seconds = int(sys.argv[1]), float(sys.argv[2])
spark = spark_jvms.builder("local[2]").getOrCreate()
client = client_of(port, is_cluster=False)


def stop():
    wait_until(lambda: client.get(SLICES), "the sweep to begin")
    spark.stop()


threading.Thread(target=stop).start()
try:
    swept = sweep(spark, endless(port), partitions=2, turn_seconds=seconds, wait=WAIT)
    swept.result()
except Exception as error:
    print("ended by", type(error).__name__, error, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [True, False])
def test_stopping_the_session_ends_the_stage_of_a_sweep(redis7: RedisServer, wait: bool) -> None:
    tests = Path(__file__).resolve().parents[1]
    program = STOPPED.replace("WAIT", str(wait))
    process = spawn(
        [sys.executable, "-c", program, str(redis7.port), str(TURN_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tests), "PYSPARK_PYTHON": sys.executable},
    )
    try:
        assert process.stdout is not None
        said = next(line for line in process.stdout if line.startswith("ended by"))
        assert said.startswith(
            "ended by SessionStoppedError the session of Spark was stopped before sweep() had ended"
        ), said
        # The driver itself lives on.
        require_silence(redis7.client())
        assert slices(redis7.client()) > 0
    finally:
        end(process)


REMOTE = """
import os
import signal
import sys
import threading

from pyspark.sql import SparkSession

from support.servers import wait_until
from support.sweep_jobs import SLICES, client_of, endless
from workstealing.spark import sweep

port, seconds, way = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
spark = SparkSession.builder.getOrCreate()
client = client_of(port, is_cluster=False)
tags = []
add = spark.addTag
spark.addTag = lambda tag: (tags.append(tag), add(tag))


def interrupt():
    wait_until(lambda: client.get(SLICES), "the sweep to begin")
    if way == "ctrl-c":
        os.kill(os.getpid(), signal.SIGINT)
    else:
        # One for each of its jobs: the first asks for the number of cores.
        spark.interruptTag(tags[-1])


threading.Thread(target=interrupt).start()
try:
    sweep(spark, endless(port), partitions=2, turn_seconds=seconds)
except BaseException as error:
    print("ended by", type(error).__name__, flush=True)
print("still", spark.range(7).count(), spark.getTags(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ctrl-c", "tag"])
def test_an_interrupted_sweep_of_spark_connect_ends(
    redis7: RedisServer, tmp_path: Path, way: str
) -> None:
    variables = {
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
    }
    with connect_server(tmp_path, variables) as address:
        process = spawn(
            [sys.executable, "-P", "-c", REMOTE, str(redis7.port), str(TURN_SECONDS), way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "SPARK_REMOTE": address},
        )
        try:
            assert process.stdout is not None
            said = [next(process.stdout).strip() for _ in range(2)]
            # The session can be used, and has none of the sweep's tags.
            assert said[1] == "still 7 set()", said
            # The class of Spark's own error is not the same in each of its releases.
            assert (said[0] == "ended by KeyboardInterrupt") == (way == "ctrl-c"), said
            # The server lives on, and the driver, too.
            require_silence(redis7.client())
            assert slices(redis7.client()) > 0
        finally:
            end(process)
