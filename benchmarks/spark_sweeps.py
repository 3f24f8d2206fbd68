"""A million overdue fields swept and a million ids reconciled, by one and by two executor cores.

Each number of cores is a process with a Spark session of its own, and they take turns: the parent
says go, and one of them works while the other waits. Before each turn the server loads the same
data anew from its snapshot.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import redis
from figures import Figure, Target, in_turn, speed_figure
from servers import PostgresServer, RedisCluster3, RedisServer, ServerMissingError, find_server

from workstealing.jobs import HashFieldExpiry
from workstealing.structures import TrackedSet, VolatileHashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 3
FIELDS, FIELDS_A_HASH = 1_000_000, 10
IDS, DIFFERENT = 1_000_000, 20_000
JAR = "/usr/share/java/postgresql.jar"
LEAST = Target(least=1.4)


def measure() -> list[Figure]:
    """Measure both, each with two cores beside one."""
    figures = []
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer())
        for name, load, unit in (
            ("sweep", _load_fields, FIELDS),
            ("sweep_one_server", _load_fields, FIELDS),
            ("reconcile", _load_ids, IDS),
        ):
            with ExitStack() as servers:
                # One Redis has one thread, which is most of what a sweep takes: so the figure is
                # that of a cluster, and the other one says what a single server allows.
                server = servers.enter_context(_snapshotting(is_cluster=name == "sweep"))
                load(server, postgres)
                for node in _nodes(server):
                    node.client().save()
                one, two = (
                    servers.enter_context(_Worker(name, cores, server, postgres))
                    for cores in (1, 2)
                )
                # A JVM needs a turn more than others to be warm.
                one.turn()
                two.turn()
                costs = in_turn(two.turn, one.turn, ROUNDS)
            spent = ([c / unit for c in costs[0]], [c / unit for c in costs[1]])
            figures.append(
                speed_figure(
                    f"spark_{name}_million_2_cores",
                    "the same on local[1]",
                    spent,
                    None if name == "sweep_one_server" else LEAST,
                )
            )
    return figures


def _snapshotting(*, is_cluster: bool) -> RedisServer | RedisCluster3:
    # DEBUG RELOAD reads the snapshot again; without a save of its own it takes about a second.
    options: dict[str, Any] = {"enable_debug_command": "local", "hz": 10}
    kind = RedisCluster3 if is_cluster else RedisServer
    for version in (8, 7):
        try:
            return kind(find_server("redis", version), version, **options)
        except ServerMissingError:
            continue
    raise ServerMissingError("no redis-server of version 7 or 8 is at hand")


def _nodes(server: RedisServer | RedisCluster3) -> list[RedisServer]:
    return server.nodes if isinstance(server, RedisCluster3) else [server]


def _load_fields(server: RedisServer | RedisCluster3, _: PostgresServer) -> None:
    hashes = VolatileHashes(server.client(), "bench", backend="emulated")
    fields = {f"field:{i}": f"value:{i}" for i in range(FIELDS_A_HASH)}
    for start in range(0, FIELDS // FIELDS_A_HASH, 2_000):
        with hashes.pipeline(transaction=False) as pipe:
            for number in range(start, start + 2_000):
                pipe.hsetex(f"hash:{number}", mapping=fields, px=1)
            pipe.execute()


def _load_ids(server: RedisServer | RedisCluster3, postgres: PostgresServer) -> None:
    tracked = TrackedSet(server.client(), "bench")
    for start in range(0, IDS, 50_000):
        tracked.track(range(start, start + 50_000))
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("CREATE TABLE bench (id bigint PRIMARY KEY)")
        connection.exec_driver_sql(
            f"INSERT INTO bench SELECT generate_series({DIFFERENT}, {IDS + DIFFERENT - 1})"
        )
        connection.exec_driver_sql("ANALYZE bench")


class _Worker:
    """A process with a Spark session of so many cores, which does a turn when it is told to."""

    def __init__(
        self,
        kind: str,
        cores: int,
        server: RedisServer | RedisCluster3,
        postgres: PostgresServer,
    ) -> None:
        settings = {
            "kind": kind,
            "cores": cores,
            "redis": [node.port for node in _nodes(server)],
            "postgres": postgres.port,
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The end of its input ends it, and its JVM with it.
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)

    def turn(self) -> float:
        """Let it do one turn; return how many seconds that took."""
        pipes = self._process.stdin, self._process.stdout
        if pipes[0] is None or pipes[1] is None:
            raise RuntimeError("the process has no pipes")
        pipes[0].write("go\n")
        pipes[0].flush()
        line = pipes[1].readline()
        if not line:
            raise RuntimeError(f"the process with Spark ended with {self._process.wait()}")
        return float(line)


def _session(cores: int) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.jars", JAR)
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parent))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _client(ports: list[int]) -> Any:
    kind = redis.Redis if len(ports) == 1 else redis.RedisCluster
    return kind(host="127.0.0.1", port=ports[0])


def _swept(spark: SparkSession, ports: list[int]) -> Callable[[], None]:
    from workstealing.spark import sweep

    def make_job() -> HashFieldExpiry:
        return HashFieldExpiry(VolatileHashes(_client(ports), "bench"))

    def work() -> None:
        rows = sweep(spark, make_job, partitions=8).collect()
        done = sum(row["items"] for row in rows)
        if done != FIELDS:
            raise RuntimeError(f"{done} fields were swept")

    return work


def _reconciled(spark: SparkSession, ports: list[int], postgres: int) -> Callable[[], None]:
    from workstealing.spark import reconcile

    def make_tracked() -> TrackedSet:
        return TrackedSet(_client(ports), "bench")

    bounds = {
        "column": "id",
        "lowerBound": 0,
        "upperBound": IDS,
        "numPartitions": 4,
        "properties": {"driver": "org.postgresql.Driver", "fetchsize": "10000"},
    }
    url = f"jdbc:postgresql://127.0.0.1:{postgres}/postgres?user=workstealing"

    def work() -> None:
        table = spark.read.jdbc(url, "bench", **bounds)
        done = reconcile(spark, make_tracked, table, partitions=8)
        if (done.added, done.removed, done.left_to_jobs) != (DIFFERENT, DIFFERENT, 0):
            raise RuntimeError(f"reconciled otherwise than expected: {done}")

    return work


def main(settings: dict[str, Any]) -> None:
    """Do a turn for each line of the input, and say how many seconds it took."""
    spark = _session(settings["cores"])
    ports = settings["redis"]
    if settings["kind"] == "reconcile":
        work = _reconciled(spark, ports, settings["postgres"])
    else:
        work = _swept(spark, ports)
    nodes = [redis.Redis(port=port, socket_timeout=120) for port in ports]
    for _ in sys.stdin:
        for node in nodes:
            node.execute_command("DEBUG", "RELOAD", "NOSAVE")
        started = time.perf_counter()
        work()
        print(time.perf_counter() - started, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
