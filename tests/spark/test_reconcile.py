"""Reconciling a tracked set with a table by Spark: exact both ways, and exact beside changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.postgres import PostgresServer
from support.servers import RedisServer
from support.sweep_jobs import client_of, tracked_set
from workstealing.errors import ConfigurationError, LayoutError, TooManyRemovals
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.spark import reconcile, reconciling, register
from workstealing.spark.reconciling import Reconciled
from workstealing.structures import TrackedSet
from workstealing.structures.tracked_set.layout import TrackedSetNames, id_bytes
from workstealing.structures.tracked_set.sources import SqlSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ODD_IDS = ["", " ", "Ünïcödé", "日本語", "\u0000x", "a" * 300, "17", "-3", "😀", "{tag}"]
ODD_IDS += ["6f1c2f64-9b9c-4e08-a3a1-1c3e6b8f5c11", "6F1C2F64-9B9C-4E08-A3A1-1C3E6B8F5C11"]


def rows_of(spark: SparkSession, ids: list[Any], kind: str = "string") -> DataFrame:
    return spark.createDataFrame([(each,) for each in ids], f"id {kind}")


class Never:
    """A source by which nothing has work."""

    def rows_after(self, cursor: str, n: int, seconds: float) -> list[tuple[str, str]]:
        raise AssertionError("nobody walks here")

    def with_work(self, ids: list[str], seconds: float) -> set[str]:
        return set()


class Always(Never):
    """A source by which everything has work."""

    def with_work(self, ids: list[str], seconds: float) -> set[str]:
        return set(ids)


def tracked_on(server: Any, source: Any = None) -> TrackedSet:
    tracked: TrackedSet = TrackedSet(server.client(), "t", source, sub_sets=16)
    return tracked


def test_sparks_crc32_finds_the_layouts_sub_sets(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    from workstealing.spark.reconciling import _ids_of

    cases: list[tuple[list[Any], str]] = [
        (ODD_IDS, "string"),
        ([0, 17, -3, 2**31 - 1, -(2**63), 2**63 - 1], "bigint"),
        ([b"\xff\xfe", b"", b"17"], "binary"),
    ]
    for ids, kind in cases:
        table = _ids_of(rows_of(spark, ids, kind).coalesce(1), None)
        rows = table.select("id", f.crc32("id").alias("crc")).collect()
        for row in rows:
            raw = bytes(row["id"])
            for sub_sets in (1, 16, 256, 4_096):
                assert row["crc"] % sub_sets == TrackedSetNames("t", sub_sets).sub_set_of(raw)
        assert [bytes(row["id"]) for row in rows] == [id_bytes(each) for each in ids]


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One server, and a cluster of three."""
    server = request.getfixturevalue(request.param)
    yield server
    server.wipe()


def test_the_difference_goes_both_ways(spark: SparkSession, server: Any) -> None:
    tracked = tracked_on(server)
    tracked.track([f"both{i}" for i in range(600)] + [f"stale{i}" for i in range(700)])
    odd = ODD_IDS[: len(ODD_IDS) // 2]
    tracked.track(odd)
    table = [f"both{i}" for i in range(600)] + [f"new{i}" for i in range(300)] + ODD_IDS
    # The table itself is the source here: its rows do not change.
    make = tracked_set(server, "t", lambda: _Listed(table))
    rows = rows_of(spark, [*table, *table[:50], None])
    looked = reconcile(spark, make, rows, partitions=2, dry_run=True)
    assert (looked.tracked, looked.in_table) == (600 + 700 + len(odd), len(table))
    assert (looked.removed, looked.added) == (700, 300 + len(ODD_IDS) - len(odd))
    assert looked.dry_run
    assert tracked.count() == 600 + 700 + len(odd)
    done = reconcile(spark, make, rows, partitions=2, max_removed=700)
    assert not done.dry_run
    assert done.tracked == 600 + 700 + len(odd)
    assert done.in_table == len(table)
    assert (done.removed, done.added) == (700, 300 + len(ODD_IDS) - len(odd))
    assert (done.left_to_jobs, done.failed, done.error) == (0, 0, "")
    assert tracked.count() == len(table)
    assert all(tracked.are_tracked(table))
    # A second one finds nothing to do.
    again = reconcile(spark, make, rows_of(spark, table), partitions=1)
    assert (again.added, again.removed, again.left_to_jobs) == (0, 0, 0)
    assert again.tracked == again.in_table == len(table)


class _Listed(Never):
    def __init__(self, ids: list[str]) -> None:
        self.ids = set(ids)

    def with_work(self, ids: list[str], seconds: float) -> set[str]:
        return self.ids.intersection(ids)


def test_the_source_has_the_last_word(spark: SparkSession, redis7: RedisServer) -> None:
    tracked = tracked_on(redis7)
    tracked.track(["stale"])
    # The table as Spark read it is behind: by now "stale" has work, and "new" has none.
    done = reconcile(
        spark,
        tracked_set(redis7, "t", Always),
        rows_of(spark, []),
        partitions=1,
        max_removed=1.0,
    )
    assert (done.removed, done.left_to_jobs) == (0, 1)
    done = reconcile(
        spark, tracked_set(redis7, "t", Never), rows_of(spark, ["stale", "new"]), partitions=1
    )
    assert (done.added, done.left_to_jobs) == (0, 1)
    assert tracked.are_tracked(["stale", "new"]) == [True, False]


@pytest.mark.parametrize("has_source", [True, False], ids=["source", "generation"])
def test_a_wrong_table_is_stopped_before_the_first_removal(
    spark: SparkSession, redis7: RedisServer, has_source: bool
) -> None:
    make = tracked_set(redis7, "t", Never if has_source else None)
    tracked = tracked_on(redis7)
    tracked.track(range(1_000))

    def compare(low: int, high: int, **options: Any) -> Reconciled:
        table = spark.range(low, high).selectExpr("cast(id as string) as id")
        found: Reconciled = reconcile(spark, make, table, partitions=2, **options)
        return found

    # The whole table is another one; half of the set is one too many; a number; none at all.
    for low, high, options in [
        (5_000, 6_000, {}),
        (501, 1_000, {}),
        (100, 1_000, {"max_removed": 99}),
        (100, 1_000, {"max_removed": 0.0999}),
        (1, 1_000, {"max_removed": 0}),
    ]:
        heard, _ = ANNOUNCEMENTS.since(0)
        with pytest.raises(TooManyRemovals, match="so nothing was changed: see whether it is"):
            compare(low, high, **options)
        _, (told,) = ANNOUNCEMENTS.since(heard)
        assert told[:2] == ("braked", "a reconcile by Spark")
        assert tracked.count() == 1_000
        assert all(tracked.are_tracked(range(1_000)))
    with pytest.raises(TooManyRemovals, match=r"lacks 1,000 of 1,000 .* and has 0 ids itself; .*"):
        compare(0, 0)
    looked = compare(5_000, 6_000, dry_run=True)
    assert (looked.removed, looked.added, looked.left_to_jobs) == (1_000, 1_000, 0)
    assert len(looked.removed_sample) == len(looked.added_sample) == 10
    assert {int(each) for each in looked.removed_sample} <= set(range(1_000))
    assert {int(each) for each in looked.added_sample} <= set(range(5_000, 6_000))
    # What is allowed, is done: half of them, a number, all.
    assert compare(500, 1_000).removed == 500
    assert compare(600, 1_000, max_removed=100).removed == 100
    assert compare(0, 0, max_removed=1.0).removed == 400
    assert tracked.count() == 0


@pytest.mark.parametrize("most_removed", [0.5, 1.0], ids=["counted", "at once"])
def test_what_others_have_changed_meanwhile_is_read_anew(
    spark: SparkSession, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, most_removed: float
) -> None:
    """Without a source: between generations and table, somebody changes every sub-set once."""
    client, tracked = redis7.client(), tracked_on(redis7)
    busy = [f"busy{i}" for i in range(200)]
    client.sadd("table", *busy, *(f"new{i}" for i in range(100)))
    build, calls = reconciling._by_sub_set, []

    def by_sub_set(*arguments: Any) -> DataFrame:
        calls.append(arguments)
        if len(calls) == 1:
            tracked.track(busy)
        else:
            client.sadd("table", "late")
        return build(*arguments)

    monkeypatch.setattr(reconciling, "_by_sub_set", by_sub_set)
    register(spark)
    read = spark.read.format("workstealing.redis").options(type="set", keys="table")
    table = read.option("url", redis7.url).load().select("member")
    options: dict[str, Any] = {"partitions": 1, "max_removed": most_removed}
    make = tracked_set(redis7, "t")
    done = reconcile(spark, make, table, **options, try_seconds=600.0)
    assert (done.rounds, done.added, done.left_to_jobs) == (2, 101, 0)
    assert (done.busy_sub_sets, done.error) == (0, "")
    assert tracked.count() == 301
    # Once more, and without the time for it.
    client.sadd("table", "more")
    calls.clear()
    done = reconcile(spark, make, table, **options, try_seconds=0)
    assert (done.rounds, done.added, done.left_to_jobs, done.busy_sub_sets) == (1, 0, 1, 1)
    assert done.error.startswith("1 sub-sets were changed by others each time")


@pytest.mark.parametrize("most", [-1, 1.5, -0.1, float("nan"), True, "half", None])
def test_what_is_no_number_and_no_share_is_refused(spark: SparkSession, most: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_removed is"):
        reconcile(spark, "support.sweep_jobs:no_job", spark.range(3), max_removed=most)


def test_an_empty_set_is_filled_and_marked(spark: SparkSession, redis7: RedisServer) -> None:
    done = reconcile(
        spark, tracked_set(redis7, "t", Always), rows_of(spark, ["a", "b"]), partitions=1
    )
    assert (done.tracked, done.in_table, done.added) == (0, 2, 2)
    tracked = tracked_on(redis7)
    assert tracked.are_tracked(["a", "b"]) == [True, True]
    names = tracked.names
    state = names.keys(names.sub_set_of(b"a"))[1]
    assert redis7.client().hget(state, "mark") == names.mark


def test_what_cannot_be_reconciled_is_refused(spark: SparkSession, redis7: RedisServer) -> None:
    make = tracked_set(redis7, "t")
    two = spark.createDataFrame([("a", 1.0)], "id string, weight double")
    with pytest.raises(ConfigurationError, match="id_column"):
        reconcile(spark, make, two)
    with pytest.raises(ConfigurationError, match="no column 'x'"):
        reconcile(spark, make, two, id_column="x")
    with pytest.raises(ConfigurationError, match="double"):
        reconcile(spark, make, two, id_column="weight")
    with pytest.raises(ConfigurationError, match="held by Spark already"):
        reconcile(spark, make, two, id_column="id")
    fresh = spark.range(3).selectExpr("cast(id as string) as id")
    cached = fresh.persist()
    with pytest.raises(ConfigurationError, match="held by Spark already"):
        reconcile(spark, make, cached.where("id <> '1'"))
    cached.unpersist()
    assert reconcile(spark, make, spark.range(3).selectExpr("id + 10 as id")).added == 3
    # Spark keeps the plan of a table that it has run, as it was before the cache.
    seen = spark.range(3).selectExpr("id + 10 as id")
    assert len(seen.collect()) == 3
    seen.persist()
    with pytest.raises(ConfigurationError, match="held by Spark already"):
        reconcile(spark, make, seen)
    seen.unpersist()
    assert reconcile(spark, make, seen).added == 0
    with pytest.raises(LayoutError, match="sub-sets"):
        reconcile(spark, tracked_set(redis7, "t", sub_sets=8), spark.range(3))
    with pytest.raises(ConfigurationError, match="made str"):
        reconcile(spark, "support.sweep_jobs:no_job", spark.range(3))


@pytest.fixture
def docs(postgres: PostgresServer) -> Iterator[tuple[sa.Engine, str]]:
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE reconciled (id text PRIMARY KEY, state text)")
    yield engine, "reconciled"
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE reconciled")


QUEUED = "SELECT id FROM reconciled WHERE state = 'queued'"


def jdbc(spark: SparkSession, postgres: PostgresServer, query: str = QUEUED) -> DataFrame:
    url = f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres?user=workstealing"
    options = {"driver": "org.postgresql.Driver"}
    return spark.read.jdbc(url, f"({query}) AS work", properties=options)


def test_ids_that_are_filled_up_with_blanks_are_refused(
    spark: SparkSession, redis7: RedisServer, postgres: PostgresServer
) -> None:
    tracked = tracked_on(redis7)
    tracked.track(["abc"])
    table = jdbc(spark, postgres, "SELECT cast('abc' AS char(5)) AS id")
    with pytest.raises(ConfigurationError, match=r"char\(5\), .* blanks: give .*rtrim\(id\)"):
        reconcile(spark, tracked_set(redis7, "t"), table)
    trimmed = table.selectExpr("rtrim(id) AS id")
    done = reconcile(spark, tracked_set(redis7, "t"), trimmed, partitions=1)
    assert (done.tracked, done.in_table, done.added, done.removed) == (1, 1, 0, 0)


def sql_source(url: str) -> Callable[[], SqlSource]:
    return lambda: SqlSource(sa.create_engine(url), "reconciled", where={"state": "queued"})


@pytest.mark.parametrize("has_source", [True, False], ids=["source", "generation"])
def test_beside_an_application_on_postgresql(
    spark: SparkSession,
    redis7: RedisServer,
    postgres: PostgresServer,
    docs: tuple[sa.Engine, str],
    has_source: bool,
) -> None:
    engine, _ = docs
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO reconciled SELECT 'd' || n,"
            " CASE WHEN mod(n, 2) = 0 THEN 'queued' ELSE 'done' END FROM generate_series(0, 3999) n"
        )
    tracked = tracked_on(redis7)
    # Even ids have work; of these the first half is tracked, and some odd ones, without work.
    tracked.track([f"d{n}" for n in range(0, 2_000, 2)] + [f"d{n}" for n in range(1, 1_000, 2)])
    is_over = threading.Event()
    worked: set[str] = set()

    def serve() -> None:
        ours: TrackedSet = TrackedSet(client_of(redis7.port, is_cluster=False), "t", sub_sets=16)
        number = 1
        while not is_over.is_set():
            name = f"d{number % 1_000}"
            with engine.begin() as connection:
                connection.execute(
                    sa.text("UPDATE reconciled SET state = 'queued' WHERE id = :id"), {"id": name}
                )
            ours.track(name)
            worked.add(name)
            number += 2
            is_over.wait(0.01)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        make_source = sql_source(postgres.url) if has_source else None
        done = reconcile(
            spark, tracked_set(redis7, "t", make_source), jdbc(spark, postgres), partitions=2
        )
    finally:
        is_over.set()
        thread.join()
    assert done.failed == 0
    # Of a busy sub-set nothing is said to be well that was left.
    assert (done.error == "") == (done.busy_sub_sets == 0)
    assert not (has_source and done.error)
    assert done.in_table >= 2_000
    # Nothing whose work was committed, and which was tracked, has gone.
    assert worked
    assert all(tracked.are_tracked(sorted(worked)))
    # Afterwards, in peace, both are made equal; what had changed was left.
    rest = reconcile(spark, tracked_set(redis7, "t"), jdbc(spark, postgres), partitions=2)
    assert rest.left_to_jobs == 0
    with engine.begin() as connection:
        queued = set(
            connection.scalars(sa.text("SELECT id FROM reconciled WHERE state = 'queued'"))
        )
    assert tracked.count() == len(queued)
    assert all(tracked.are_tracked(sorted(queued)))
    if has_source:
        assert done.removed + done.added > 0
