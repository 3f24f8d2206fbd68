"""Plain Redis by ``format("workstealing.redis")`` beside what a Spark user writes by hand.

By hand: foreachPartition with redis-py's pipelines of 1,000 commands, and the same without a
pipeline, to write (hashes of one field and of eight too, with and without a PEXPIRE for each, and
sets of ten members); SCAN at the driver and HGETALL in pipelines by mapPartitions, to read. All are
warm, work on the same rows of one server, and take turns in one session of two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import redis
from figures import Figure, Target, in_turn, show, speed_figure
from servers import RedisServer, newest_redis
from spark_throughput import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, ROUNDS = 100_000, 3
# Without a pipeline a row takes so long that a part of them says enough: figures are for each row.
PART_WITHOUT_PIPELINE = 10
COMMANDS_A_PIPELINE = 1000
# The values of columns, in turn.
_OF_WIDE = ("name", "stock", "price", "string(stock)")
SCHEMA = "key string, name string, price double, stock bigint"
FORMAT = "workstealing.redis"


def measure(server: RedisServer, rows: int = ROWS, only: str = "") -> list[Figure]:
    """Measure writes and reads of hashes.

    Arguments:
        rows: how many hashes.
        only: names of figures that have this in them.
    """
    spark = session()
    try:
        return _figures(spark, server, rows, only)
    finally:
        spark.stop()


def _figures(spark: SparkSession, server: RedisServer, rows: int, only: str) -> list[Figure]:
    from workstealing.spark import register

    register(spark)
    table = spark.range(0, rows, 1, 2).selectExpr(
        "concat('item:', id) AS key",
        "concat('item number ', id) AS name",
        "id / 4 AS price",
        "id % 1000 AS stock",
    )
    table = table.cache()
    table.count()
    part = table.sample(1 / PART_WITHOUT_PIPELINE, seed=1).cache()
    some = part.count()
    client = server.client()
    url, port = server.url, server.port

    def ours_writes(frame: DataFrame, **options: Any) -> Callable[[], None]:
        write = frame.write.format(FORMAT).mode("append").option("url", url)
        return lambda: write.options(**{"type": "hash", **options}).save()

    def by_hand(frame: DataFrame, expires: bool) -> Callable[[], None]:
        return lambda: frame.foreachPartition(lambda part: _write_hashes(port, part, expires))

    def by_pipeline() -> None:
        table.foreachPartition(lambda part: _write_by_pipeline(port, part))

    def without_pipeline() -> None:
        part.foreachPartition(lambda part: _write_one_by_one(port, part))

    def ours_reads(**options: Any) -> Callable[[], None]:
        given = {"url": url, "type": "hash", **options}
        found = spark.read.format(FORMAT).options(**given).schema(SCHEMA)
        return lambda: _all_of(found.load("item:*"), rows)

    def keys_at_the_driver() -> None:
        keys = list(client.scan_iter("item:*", count=1000))
        parts = spark.sparkContext.parallelize(keys, 2)
        _all_of(
            spark.createDataFrame(parts.mapPartitions(lambda it: _read(port, it)), SCHEMA), rows
        )

    def scan_in_a_task() -> None:
        one = spark.sparkContext.parallelize([0], 1)
        _all_of(spark.createDataFrame(one.mapPartitions(lambda _: _scan(port)), SCHEMA), rows)

    def timed(
        work: Callable[[], None], count: int, *, wipes: bool = False, keys: int | None = None
    ) -> Callable[[], float]:
        def once() -> float:
            if wipes:
                client.flushall()
            started = time.perf_counter()
            work()
            seconds = time.perf_counter() - started
            if wipes and client.dbsize() != (keys or count):
                raise RuntimeError(f"{client.dbsize()} keys were written")
            return seconds / count

        return once

    def figure(
        name: str,
        ours: Callable[[], float],
        theirs: Callable[[], float],
        by: str,
        least: float = 1.0,
    ) -> None:
        if only not in name:
            return
        costs = in_turn(ours, theirs, ROUNDS)
        found = speed_figure(f"spark_redis_{name}", by, costs, Target(least=least))
        # With a million rows the whole takes many minutes.
        print(f"{found.name}: {found.value}", file=sys.stderr, flush=True)
        figures.append(found)

    figures: list[Figure] = []
    figure(
        "write_without_pipeline",
        timed(ours_writes(table), rows, wipes=True),
        timed(without_pipeline, some, wipes=True),
        "foreachPartition, a round trip each",
        3.0,
    )
    figure(
        "write",
        timed(ours_writes(table), rows, wipes=True),
        timed(by_pipeline, rows, wipes=True),
        "foreachPartition, pipelines of 1,000",
    )
    for width, expires in product((1, 8), (False, True)):
        name = f"write_{'narrow' if width == 1 else 'wide'}{'_ttl' if expires else ''}"
        if only in name:
            wide = _kept(
                table.selectExpr("key", *(f"{_OF_WIDE[n % 4]} AS f{n}" for n in range(width)))
            )
            given = {"ttlSeconds": 1000} if expires else {}
            figure(
                name,
                timed(ours_writes(wide, **given), rows, wipes=True),
                timed(by_hand(wide, expires), rows, wipes=True),
                f"the same commands, {width} fields, by pipelines of 1,000",
            )
            wide.unpersist()
    if only in "write_sets":
        members = _kept(table.selectExpr("concat('set:', stock) AS key", "name AS member"))
        figure(
            "write_sets",
            timed(ours_writes(members, type="set"), rows, wipes=True, keys=min(rows, 1000)),
            timed(
                lambda: members.foreachPartition(lambda part: _write_sets(port, part)),
                rows,
                wipes=True,
                keys=min(rows, 1000),
            ),
            "SADD for each row, by pipelines of 1,000",
            2.0,
        )
    client.flushall()
    ours_writes(table)()
    for name, ours, theirs, by in (
        ("read", ours_reads(), keys_at_the_driver, "keys at the driver, HGETALL by 2 tasks"),
        (
            "read_in_one_task",
            ours_reads(partitions=1),
            scan_in_a_task,
            "SCAN and HGETALL by 1 task",
        ),
    ):
        figure(name, timed(ours, rows), timed(theirs, rows), by)
    return figures


def _kept(frame: DataFrame) -> DataFrame:
    """Hold rows in memory, so that no side pays for making them."""
    frame = frame.cache()
    frame.count()
    return frame


def _write_hashes(port: int, rows: Iterable[Any], expires: bool) -> None:
    pipe = redis.Redis(port=port).pipeline(transaction=False)
    names: list[str] = []
    for row in rows:
        names = names or [name for name in row.__fields__ if name != "key"]
        pipe.hset(row.key, mapping={name: row[name] for name in names})
        if expires:
            pipe.pexpire(row.key, 1_000_000)
        if len(pipe) >= COMMANDS_A_PIPELINE:
            pipe.execute()
    pipe.execute()


def _write_sets(port: int, rows: Iterable[Any]) -> None:
    pipe = redis.Redis(port=port).pipeline(transaction=False)
    for row in rows:
        pipe.sadd(row.key, row.member)
        if len(pipe) >= COMMANDS_A_PIPELINE:
            pipe.execute()
    pipe.execute()


def _all_of(frame: DataFrame, rows: int) -> None:
    row = frame.selectExpr("count(1)", "sum(stock)", "max(price)", "max(name)").first()
    if row is None or row[0] != rows:
        raise RuntimeError(f"{row} was read")


def _commands(port: int, rows: Iterable[Any], flush: int) -> None:
    pipe = redis.Redis(port=port).pipeline(transaction=False)
    for number, row in enumerate(rows, 1):
        pipe.hset(row.key, mapping={"name": row.name, "price": row.price, "stock": row.stock})
        if number % flush == 0:
            pipe.execute()
    pipe.execute()


def _write_by_pipeline(port: int, rows: Iterable[Any]) -> None:
    _commands(port, rows, COMMANDS_A_PIPELINE)


def _write_one_by_one(port: int, rows: Iterable[Any]) -> None:
    client = redis.Redis(port=port)
    for row in rows:
        client.hset(row.key, mapping={"name": row.name, "price": row.price, "stock": row.stock})


def _read(port: int, keys: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    pipe = redis.Redis(port=port).pipeline(transaction=False)
    asked: list[bytes] = []

    def rows() -> Iterator[tuple[Any, ...]]:
        for key, found in zip(asked, pipe.execute(), strict=True):
            name, price, stock = found[b"name"], found[b"price"], found[b"stock"]
            yield key.decode(), name.decode(), float(price), int(stock)
        asked.clear()

    for key in keys:
        pipe.hgetall(key)
        asked.append(key)
        if len(asked) == COMMANDS_A_PIPELINE:
            yield from rows()
    yield from rows()


def _scan(port: int) -> Iterator[tuple[Any, ...]]:
    return _read(port, redis.Redis(port=port).scan_iter("item:*", count=1000))


def main() -> None:
    """Measure and show the figures."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"how many hashes; {ROWS}")
    parser.add_argument("--only", default="", metavar="NAME", help="figures with this in the name")
    options = parser.parse_args()
    with newest_redis() as server:
        show(measure(server, options.rows, options.only))


if __name__ == "__main__":
    main()
