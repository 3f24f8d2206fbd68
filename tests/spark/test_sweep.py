"""Sweeps by Spark: all garbage goes, nothing else does, beside traffic and beside each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.hash_checks import check_index
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.sweep_jobs import NAMESPACE, client_of, field_expiry, tag_sets
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry, UntrackDone
from workstealing.recruiting.job import FunctionJob
from workstealing.spark import sweep
from workstealing.structures import TrackedSet, VolatileHashes
from workstealing.structures.volatile_hashes.commands import HashNames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AHEAD_MS = 3_600_000_000


def hashes_on(server: Any, ahead_ms: int = 0) -> VolatileHashes:
    hashes: VolatileHashes = VolatileHashes(
        server.client(), NAMESPACE, backend="emulated", clock_shift_ms=ahead_ms
    )
    return hashes


def fill(hashes: VolatileHashes, count: int, fields: int, ex: int = 60, name: str = "old") -> None:
    with hashes.pipeline(transaction=False) as pipe:
        for i in range(count):
            pipe.hsetex(f"{name}:{i}", mapping={f"f{j}": "v" for j in range(fields)}, ex=ex)
        pipe.execute()


def totals(rows: list[Any]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in ("items", "failed", "operations")}


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One server, and a cluster of three."""
    server = request.getfixturevalue(request.param)
    yield server
    server.wipe()


def test_a_sweep_collects_everything_overdue(
    spark: SparkSession, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hashes = hashes_on(server)
    fill(hashes, 400, 5)
    fill(hashes, 50, 2, ex=AHEAD_MS, name="live")
    if server.is_cluster:
        # What an outage took with it is found again.
        server.client().delete(HashNames(NAMESPACE).registry)
    with caplog.at_level(logging.INFO, logger="workstealing.spark"):
        done = sweep(spark, field_expiry(server, AHEAD_MS), partitions=4)
    assert done.columns == [
        "part", "items", "slices", "aborted", "failed", "operations", "seconds", "drained",
        "error", "rounds",
    ]  # fmt: skip
    rows = done.collect()
    assert [row["part"] for row in rows] == [0, 1, 2, 3]
    assert all(row["drained"] and row["slices"] and row["rounds"] == 1 for row in rows)
    assert totals(rows)["items"] == 2_000
    assert all(row["operations"] for row in rows)
    later = hashes_on(server, AHEAD_MS)
    assert HashFieldExpiry(later).backlog().count == 0
    assert sum(bool(later.client.exists(f"live:{i}")) for i in range(50)) == 50
    check_index(later)
    assert "hash_field_expiry.swept, round 1: 2000 items by 4 parts" in caplog.text


def test_a_sweep_by_rules(spark: SparkSession, server: Any) -> None:
    client = server.client()
    for number in range(30):
        client.sadd(f"conj:{{{number}}}", *(f"{{{number}}}:{row}" for row in range(40)))
        client.set(f"{{{number}}}:7", 1)
    rows = sweep(spark, tag_sets(server), partitions=4).collect()
    assert all(row["drained"] for row in rows)
    assert totals(rows)["items"] == 30 * 39
    assert all(client.smembers(f"conj:{{{n}}}") == {f"{{{n}}}:7".encode()} for n in range(30))


def test_two_sweeps_beside_writers_leave_what_is_live(
    spark: SparkSession, redis7: RedisServer
) -> None:
    hashes = hashes_on(redis7)
    fill(hashes, 600, 4)
    written: dict[str, int] = {}
    is_over = threading.Event()

    def write() -> None:
        # Hashes that are being swept get fields that live, and fields that are given more time.
        writer: VolatileHashes = VolatileHashes(
            client_of(redis7.port, is_cluster=False), NAMESPACE, clock_shift_ms=AHEAD_MS
        )
        number = 0
        while not is_over.is_set():
            key = f"old:{number % 600}"
            writer.hsetex(key, mapping={"live": number, "f0": number}, ex=3_600)
            written[key] = number
            number += 1

    results: list[list[Any]] = []

    def swept() -> None:
        make = field_expiry(redis7, AHEAD_MS)
        results.append(sweep(spark, make, partitions=3, limit=50).collect())

    threads = [threading.Thread(target=swept) for _ in range(2)]
    writing = threading.Thread(target=write)
    writing.start()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        is_over.set()
        writing.join()
    assert len(results) == 2
    assert all(row["drained"] for rows in results for row in rows)
    assert all(not row["failed"] for rows in results for row in rows)
    later = hashes_on(redis7, AHEAD_MS)
    for key, number in written.items():
        assert later.hmget(key, ["live", "f0"]) == [b"%d" % number] * 2
    assert HashFieldExpiry(later).backlog().count == 0
    # No other field is left, in Redis' own view.
    raw = redis7.client()
    assert sum(raw.hlen(f"old:{i}") for i in range(600)) == 2 * len(written)
    # What one sweep removed the other did not: writers overwrote some of the f0 before.
    removed = sum(totals(rows)["items"] for rows in results)
    assert 600 * 3 <= removed <= 600 * 4
    check_index(later)


def test_a_plain_job_is_swept_by_identical_workers(
    spark: SparkSession, redis7: RedisServer
) -> None:
    client = redis7.client()
    client.rpush("chores", *range(200))
    port = redis7.port

    def make() -> FunctionJob:
        ours = client_of(port, is_cluster=False)

        def drop(slice: Any) -> int:
            return len(ours.lpop("chores", slice.limit) or ())

        return FunctionJob(drop, name="chores", limit=7)

    rows = sweep(spark, make, partitions=3).collect()
    assert totals(rows)["items"] == 200
    assert client.llen("chores") == 0
    assert all(row["drained"] for row in rows)


def test_an_import_path_names_the_job(spark: SparkSession) -> None:
    rows = sweep(spark, "support.sweep_jobs:idle_job", partitions=2).collect()
    assert [(row["items"], row["slices"], row["drained"]) for row in rows] == [(0, 5, True)] * 2


def test_a_namespace_that_nobody_uses_has_no_rows(spark: SparkSession, redis7: RedisServer) -> None:
    assert sweep(spark, field_expiry(redis7, 0)).collect() == []


def test_what_cannot_be_swept_is_refused(spark: SparkSession, redis7: RedisServer) -> None:
    port = redis7.port

    def sampling() -> UntrackDone:
        class Source:
            pass

        client = client_of(port, is_cluster=False)
        return UntrackDone(TrackedSet(client, "t", Source()))  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="reconcile"):
        sweep(spark, sampling)
    with pytest.raises(ConfigurationError, match="made str, where Job was expected"):
        sweep(spark, "support.sweep_jobs:no_job")
    with pytest.raises(ConfigurationError, match="has no 'nowhere'"):
        sweep(spark, "support.sweep_jobs:nowhere")
    wrong = ({"limit": 0}, {"max_ops": 0}, {"partitions": 0}, {"seconds": 0}, {"max_share": 1.5})
    for options in wrong:
        with pytest.raises(ConfigurationError):
            sweep(spark, "support.sweep_jobs:idle_job", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="import path"):
        sweep(spark, 17)  # type: ignore[arg-type]


def test_a_server_that_is_down_is_said_at_once(spark: SparkSession, start_redis: Any) -> None:
    server = start_redis(7)
    make = field_expiry(server, 0)
    server.kill()
    with pytest.raises(ConnectionError, match="could not be asked"):
        sweep(spark, make)
