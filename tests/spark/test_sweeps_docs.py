"""What docs/spark_sweeps.md says about jobs is so, and its code is the API's."""

from __future__ import annotations

import ast
import inspect
import os
from typing import TYPE_CHECKING, Any

import pytest

from support.pages import blocks_of, running, text_of
from support.postgres import PostgresServer
from support.servers import RedisServer
from workstealing.jobs import (
    AdoptHashes,
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    MigrateToEmulated,
    MigrateToNative,
)
from workstealing.jobs.hash_field_expiry import FIELDS_A_SCRIPT
from workstealing.jobs.shared.due_collecting import KEYS_A_CALL, SHARDS_A_LOOK
from workstealing.recruiting.job import DivisibleJob
from workstealing.spark import reconcile, sweep
from workstealing.spark.reconciling import IDS_A_STEP
from workstealing.spark.stages import IDLE_IN_A_ROW, SLICE_SECONDS
from workstealing.spark.sweeping import SCHEMA, VAIN_ROUNDS
from workstealing.structures import TrackedSet, VolatileHashes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = text_of("docs/spark_sweeps.md")


def test_the_code_calls_the_functions_as_they_are() -> None:
    calls = [
        node
        for block in blocks_of("docs/spark_sweeps.md")
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    known = {"sweep": sweep, "reconcile": reconcile}
    found = [call for call in calls if call.func.id in known]  # type: ignore[attr-defined]
    assert len(found) == 2
    for call in found:
        names = [keyword.arg for keyword in call.keywords if keyword.arg]
        signature = inspect.signature(known[call.func.id])  # type: ignore[attr-defined]
        signature.bind(*call.args, **dict.fromkeys(names))


@pytest.mark.slow
def test_the_code_runs(
    spark: SparkSession,
    redis7: RedisServer,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment: dict[str, Any] = spark.sparkContext.environment
    for each in (os.environ, environment):
        monkeypatch.setitem(each, "WORKSTEALING_REDIS_URL", redis7.url)  # type: ignore[arg-type]
    hashes = VolatileHashes(redis7.client(), namespace="items")
    for number in range(20):
        hashes.hsetex(f"item:{number}", mapping={"f": "v"}, px=1)
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS jobs")
        connection.exec_driver_sql("CREATE TABLE jobs (id text PRIMARY KEY, state text)")
        connection.exec_driver_sql("INSERT INTO jobs VALUES ('a', 'queued'), ('b', 'done')")
    here = {
        "jdbc:postgresql://db.example:5432/shop": (
            f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres?user=workstealing"
        ),
        "postgresql+psycopg://db.example/shop": postgres.url,
    }
    try:
        with running("docs/spark_sweeps.md", replace=here) as page:
            names = page.run(spark=spark)
            assert sum(row["items"] for row in names["done"].collect()) == 20
            assert redis7.client().keys("item:*") == []
            assert isinstance(names["make_field_expiry"](), DivisibleJob)
            names = page.run()
        done = names["done"]
        assert (done.in_table, done.added, done.removed) == (1, 1, 0)
        tracked: TrackedSet = TrackedSet(redis7.client(), "jobs")
        assert tracked.are_tracked(["a", "b"]) == [True, False]
    finally:
        with postgres.engine().begin() as connection:
            connection.exec_driver_sql("DROP TABLE jobs")


def test_the_jobs_and_numbers_are_those_of_the_code() -> None:
    moves = (MigrateToNative, MigrateToEmulated, AdoptHashes)
    for kind in (HashFieldExpiry, KeyExpiry, *moves, IckReaper):
        assert issubclass(kind, DivisibleJob)
        assert f"| {kind.__name__} |" in DOCS
    assert all(f"`{name}`" in DOCS for name in SCHEMA.fieldNames())
    assert (SHARDS_A_LOOK, KEYS_A_CALL, IDS_A_STEP) == (128, 64, 500)
    assert (FIELDS_A_SCRIPT, SLICE_SECONDS) == (1_000, 0.002)
    assert (IDLE_IN_A_ROW, VAIN_ROUNDS) == (5, 3)
