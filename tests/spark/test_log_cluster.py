"""A log copied by a real cluster, of which an executor is killed amid its work, and the driver."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import spawn
from support.servers import RedisServer
from support.spark_cluster import StandaloneCluster
from workstealing.structures import Log

pytestmark = [pytest.mark.spark_cluster, pytest.mark.slow]

PADDING = b"." * 3_000
BEFORE = 8_000
PACE_SECONDS = 0.1


def entry(number: int) -> bytes:
    return b"%d %s" % (number, PADDING)


@contextlib.contextmanager
def producer(server: RedisServer) -> Iterator[Callable[[], int]]:
    """Fill the log, and go on appending to it; yield what ends that and returns how many it has."""
    log: Any = Log(server.client(), "activity", 100)
    ended = threading.Event()
    numbers = [0]

    def append(count: int) -> None:
        log.append(*[entry(number) for number in range(numbers[0], numbers[0] + count)])
        numbers[0] += count

    def go_on() -> None:
        while not ended.wait(PACE_SECONDS):
            append(10)

    while numbers[0] < BEFORE:
        append(500)
    thread = threading.Thread(target=go_on)
    thread.start()

    def end() -> int:
        ended.set()
        thread.join()
        return numbers[0]

    try:
        yield end
    finally:
        end()


@contextlib.contextmanager
def driver(
    cluster: StandaloneCluster, server: RedisServer, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the query; it is killed at the end, its JVM too, as a crash would."""
    script = Path(__file__).with_name("log_query.py")
    with (folder / "log").open("ab") as log:
        process = spawn(
            [sys.executable, "-P", script, cluster.url, str(folder / "checkpoint")],
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "PYTHONPATH": str(script.parents[1]),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "WORKSTEALING_REDIS_URL": server.url,
            },
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_each_entry_once_although_an_executor_and_the_driver_are_killed(
    spark_cluster: Callable[..., StandaloneCluster], redis7: RedisServer, tmp_path: Path
) -> None:
    client: Any = redis7.client(decode_responses=True)
    copy: Any = Log(redis7.client(), "copy")
    cluster = spark_cluster(workers=1, cores=2, environment={"WORKSTEALING_REDIS_URL": redis7.url})

    def held_in_the_midst(running: subprocess.Popen[bytes]) -> tuple[int, int]:
        """Wait for a task that has written a part of its rows; return its process and how many."""

        def is_held() -> bool:
            assert running.poll() is None, (tmp_path / "log").read_text("utf-8")[-3_000:]
            return bool(client.llen("held"))

        cluster.wait(is_held, "a task to be held")
        pid, partition, batch = map(int, client.lpop("held").split())

        def rows() -> int:
            for key in client.keys("copy/log/{copy}/written:*"):
                found = (client.hget(key, partition) or "-1 0 x").split()
                if int(found[0]) == batch:
                    return int(found[1])
            return 0

        cluster.wait(lambda: rows() > 0, "the held task to have written some of its rows")
        assert rows() < 1_000
        return pid, rows()

    with producer(redis7) as end_production:
        with driver(cluster, redis7, tmp_path) as running:
            client.rpush("hold", "one")
            pid, _ = held_in_the_midst(running)
            executor = cluster.executor_of(pid)
            assert executor is not None
            before = copy.length()
            cluster.kill_executor(executor)
            cluster.wait(
                lambda: executor.pid not in {each.pid for each in cluster.executors()},
                "the executor to end",
            )
            # Another one has taken over, and the next batch has begun.
            cluster.wait(lambda: copy.length() > before + 2_000, "the batch to be done")
            client.rpush("hold", "one")
            held_in_the_midst(running)
        before = copy.length()
        with driver(cluster, redis7, tmp_path) as running:
            cluster.wait(lambda: copy.length() > before + 2_000, "the query to go on")
            count = end_production()

            def is_copied() -> bool:
                assert running.poll() is None, (tmp_path / "log").read_text("utf-8")[-3_000:]
                return bool(copy.length() >= count)

            cluster.wait(is_copied, "all to be copied")
        cluster.wait(lambda: not cluster.executors(), "the executors to miss their driver")
    source: Any = Log(redis7.client(), "activity")
    assert source.length() == count
    found = [
        entry_number(each) for start in range(0, count, 1_000) for each in copy.read(start, 1_000)
    ]
    assert copy.length() == count
    assert sorted(found) == list(range(count))


def entry_number(found: bytes | None) -> int:
    assert found is not None
    number, _, padding = found.partition(b" ")
    assert padding == PADDING
    return int(number)
