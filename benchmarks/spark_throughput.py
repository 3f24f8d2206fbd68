"""Our sources and sinks beside the code that a Spark user writes by hand, in one session.

By hand are: foreachPartition with redis-py's pipelines, 1,000 commands a round trip; the same
without a pipeline, on a twentieth of the rows; SCAN and HGETALL, ZSCAN or XRANGE in tasks; and an
anti-join of a set with a table. `python benchmarks/spark_throughput.py --rows 1000000` takes
another number of rows than 100,000.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from figures import Figure, Target, in_turn, show, speed_figure
from servers import RedisServer, newest_redis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3
ROWS = 100_000
FIELDS_A_HASH = 10
TASKS = 4
A_CALL = 1_000
ALONE = 20
AT_LEAST_THE_SAME, THRICE = Target(least=1.0), Target(least=3.0)


def measure(server: RedisServer, rows: int = ROWS, only: str = "") -> list[Figure]:
    """Measure each pair in turn; only: names of pairs that have this in them."""
    from workstealing.spark.sources import register

    spark = session()
    register(spark)
    figures = []
    try:
        for name, ours, by_hand, alone in _pairs(spark, server.port, rows):
            if only not in name:
                continue
            costs = in_turn(ours, by_hand, ROUNDS)
            figures.append(
                speed_figure(f"spark_{name}", "by hand, with pipelines", costs, AT_LEAST_THE_SAME)
            )
            print(f"{name}: {figures[-1].value} times as fast", file=sys.stderr, flush=True)
            if alone is not None:
                slow = [alone() for _ in costs[0]]
                figures.append(
                    speed_figure(
                        f"spark_{name}_foreach", "a command a row", (costs[0], slow), THRICE
                    )
                )
    finally:
        spark.stop()
    return figures


def session() -> SparkSession:
    """Return a session on two cores of this machine, whose tasks find these modules."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(TASKS))
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parent))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


Batch = Callable[[], float]
Partition = Callable[[Iterable[Any]], None]


def _pairs(
    spark: SparkSession, port: int, rows: int
) -> Iterator[tuple[str, Batch, Batch, Batch | None]]:
    """Yield the name of each pair, ours, by hand, and without a pipeline."""
    client = redis.Redis(port=port)
    url = f"redis://127.0.0.1:{port}"

    def timed(work: Callable[[], Any], of: int = rows, *, empty: bool = True) -> Batch:
        def batch() -> float:
            if empty:
                client.flushall()
            started = time.perf_counter()
            work()
            return (time.perf_counter() - started) / of

        return batch

    def save(table: DataFrame, kind: str, name: str, **options: Any) -> Callable[[], None]:
        write = table.write.format(f"workstealing.{kind}").option("url", url).options(**options)
        return lambda: write.mode("append").save(name)

    def read(kind: str, name: str, **options: Any) -> DataFrame:
        found = spark.read.format(f"workstealing.{kind}").option("url", url).options(**options)
        return found.load(name)

    def written(name: str, table: DataFrame, ours: Callable[[], None], queue: Any) -> Any:
        few = table.limit(rows // ALONE).repartition(TASKS).cache()
        few.count()
        return (
            name,
            timed(ours),
            timed(lambda: table.foreachPartition(_pipelined(port, queue))),
            timed(lambda: few.foreachPartition(_alone(port, queue)), rows // ALONE),
        )

    def summed(table: DataFrame, columns: int) -> None:
        # Every column of every row is looked at.
        found = table.selectExpr("count(*)", *(f"sum(length({c}))" for c in table.columns))
        if (got := found.first()[0]) != rows:  # type: ignore[index]
            raise RuntimeError(f"{got} rows of {columns} columns were read")

    def by_tasks(parts: list[Any], rows_of: Any, schema: str) -> DataFrame:
        found = spark.sparkContext.parallelize(parts, TASKS).mapPartitions(rows_of(port))
        return spark.createDataFrame(found, schema)

    number = spark.range(0, rows, 1, TASKS)
    fields = _kept(
        number.selectExpr(
            f"concat('item:', id div {FIELDS_A_HASH}) as key",
            f"concat('field:', id % {FIELDS_A_HASH}) as field",
            "concat('value:', id) as value",
        )
    )
    to_hashes = save(fields, "volatile_hashes", "items", ttlSeconds=3_600)
    yield written("hashes_write", fields, to_hashes, _hsetex)
    client.flushall()
    to_hashes()
    yield (
        "hashes_read",
        timed(lambda: summed(read("volatile_hashes", "items", match="item:*"), 4), empty=False),
        timed(
            lambda: summed(
                by_tasks(list(client.scan_iter("item:*", A_CALL)), _hgetall, "key string, field"
                         " string, value string"),
                3,
            ),
            empty=False,
        ),
        None,
    )  # fmt: skip
    members = _kept(
        number.selectExpr("concat('member:', id) as member", "cast(id as double) score")
    )
    to_ick = save(members, "ick", "work", ickShards=TASKS)
    yield written("ick_write", members, to_ick, _zadd)
    client.flushall()
    members.foreachPartition(_pipelined(port, _zadd))
    to_ick()
    yield (
        "ick_read",
        timed(lambda: summed(read("ick", "work"), 4), empty=False),
        timed(
            lambda: summed(by_tasks(["hand"], _zscan, "member string, score double"), 2),
            empty=False,
        ),
        None,
    )
    entries = _kept(number.selectExpr("concat('{\"number\": ', id, '}') as value"))
    to_log = save(entries, "log", "activity")
    yield written("log_append", entries, to_log, _xadd)
    client.flushall()
    entries.foreachPartition(_pipelined(port, _xadd))
    to_log()
    yield (
        "log_read",
        timed(lambda: summed(read("log", "activity"), 3), empty=False),
        timed(
            lambda: summed(by_tasks(_ranges(client), _xrange, "id string, value string"), 2),
            empty=False,
        ),
        None,
    )
    yield ("reconcile", *_reconciling(spark, client, port, rows, timed), None)


def _kept(table: DataFrame) -> DataFrame:
    """Hold a table in memory, so that no side pays for making it."""
    table = table.cache()
    table.count()
    return table


def _batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some


def _hsetex(pipe: Any, row: Any) -> None:
    pipe.hsetex(row.key, mapping={row.field: row.value}, ex=3_600)


def _zadd(pipe: Any, row: Any) -> None:
    pipe.zadd("hand", {row.member: row.score}, lt=True)


def _xadd(pipe: Any, row: Any) -> None:
    pipe.xadd("hand", {"value": row.value})


def _pipelined(port: int, queue: Callable[[Any, Any], None]) -> Partition:
    def write(rows: Iterable[Any]) -> None:
        client = redis.Redis(port=port)
        for some in _batched(rows, A_CALL):
            with client.pipeline(transaction=False) as pipe:
                for row in some:
                    queue(pipe, row)
                pipe.execute()

    return write


def _alone(port: int, queue: Callable[[Any, Any], None]) -> Partition:
    def write(rows: Iterable[Any]) -> None:
        client = redis.Redis(port=port)
        for row in rows:
            queue(client, row)

    return write


def _hgetall(port: int) -> Any:
    def read(keys: Iterable[bytes]) -> Iterator[tuple[str, str, str]]:
        client = redis.Redis(port=port, decode_responses=True)
        for some in _batched(keys, A_CALL):
            with client.pipeline(transaction=False) as pipe:
                for key in some:
                    pipe.hgetall(key)
                for key, found in zip(some, pipe.execute(), strict=True):
                    for field, value in found.items():
                        yield key.decode(), field, value

    return read


def _zscan(port: int) -> Any:
    def read(keys: Iterable[str]) -> Iterator[tuple[str, float]]:
        client = redis.Redis(port=port, decode_responses=True)
        for key in keys:
            yield from client.zscan_iter(key, count=A_CALL)

    return read


def _ranges(client: Any) -> list[tuple[str, str]]:
    """Divide a stream by time, as far as its ends tell."""
    first, last = (
        int(client.execute_command(*each)[0][0].split(b"-")[0])
        for each in (
            ("XRANGE", "hand", "-", "+", "COUNT", 1),
            ("XREVRANGE", "hand", "+", "-", "COUNT", 1),
        )
    )
    step = (last + 1 - first) / TASKS
    bounds = [first + round(n * step) for n in range(TASKS + 1)]
    # An end without a number after the dash would be that moment's last entry.
    return [(str(one), f"({other}-0") for one, other in pairwise(bounds)]


def _xrange(port: int) -> Any:
    def read(ranges: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        client = redis.Redis(port=port, decode_responses=True)
        for start, end in ranges:
            at = start
            while page := client.xrange("hand", at, end, A_CALL):
                for entry, found in page:
                    yield entry, found["value"]
                at = f"({page[-1][0]}"

    return read


def _reconciling(
    spark: SparkSession, client: Any, port: int, rows: int, timed: Callable[..., Batch]
) -> tuple[Batch, Batch]:
    """Return a reconciliation and an anti-join; a fiftieth of the ids is on one side alone."""
    from workstealing.spark import reconcile
    from workstealing.structures import TrackedSet

    different = rows // 50

    def fill(ours: bool) -> None:
        client.flushall()
        ids = range(rows)
        tracked = TrackedSet(client, "bench")
        for some in _batched(ids, 10_000):
            if ours:
                tracked.track(some)
            else:
                client.sadd("hand", *some)

    def table() -> DataFrame:
        return spark.range(different, rows + different, 1, TASKS).selectExpr("string(id) as id")

    def make_tracked() -> TrackedSet:
        return TrackedSet(redis.Redis(port=port), "bench")

    def ours() -> None:
        done = reconcile(spark, make_tracked, table(), partitions=TASKS)
        if (done.added, done.removed) != (different, different):
            raise RuntimeError(f"reconciled otherwise than expected: {done}")

    def by_hand() -> None:
        def scan(keys: Iterable[str]) -> Iterator[tuple[str]]:
            ours = redis.Redis(port=port, decode_responses=True)
            for key in keys:
                for member in ours.sscan_iter(key, count=A_CALL):
                    yield (member,)

        def change(command: str) -> Partition:
            def write(some: Iterable[Any]) -> None:
                ours = redis.Redis(port=port)
                for page in _batched(some, A_CALL):
                    ours.execute_command(command, "hand", *(row.id for row in page))

            return write

        found = spark.sparkContext.parallelize(["hand"], 1).mapPartitions(scan)
        members = spark.createDataFrame(found, "id string").cache()
        members.join(table(), "id", "left_anti").foreachPartition(change("SREM"))
        table().join(members, "id", "left_anti").foreachPartition(change("SADD"))
        members.unpersist()

    def filled(work: Callable[[], None], is_ours: bool) -> Batch:
        batch = timed(work, empty=False)

        def whole() -> float:
            fill(is_ours)
            return batch()

        return whole

    return filled(ours, True), filled(by_hand, False)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N")
    parser.add_argument("--only", default="", metavar="NAME", help="pairs with this in their names")
    options = parser.parse_args()
    with newest_redis() as server:
        show(measure(server, options.rows, options.only))


if __name__ == "__main__":
    # As the module that tasks import.
    from spark_throughput import main as run

    run()
