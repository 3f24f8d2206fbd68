"""Sweeps that take over another program's hashes: all of them, beside writers, and only once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.adoptions import HOUR, KINDS, everything, hashes_on, to_the_end
from support.hash_checks import check_index
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.sweep_jobs import adoption, client_of, way_back
from workstealing.errors import ConfigurationError
from workstealing.recruiting.slice import Slice
from workstealing.spark import sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["redis7", "redis8", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server that the emulated backend is for, one with its own commands, and a cluster."""
    server = request.getfixturevalue(request.param)
    yield server
    server.wipe()


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda n: KINDS[n].name)
def test_a_sweep_adopts_everything_once(spark: SparkSession, server: Any, number: int) -> None:
    kind, client = KINDS[number], server.client()
    later = int(time.time()) + HOUR
    ends = {f"f{i}": later + i for i in range(3)}
    for i in range(300):
        kind.store(client, f"{{u{i}}}", ends)
    large = {f"f{i}": later + i for i in range(2500)}
    kind.store(client, "{large}", large)
    # The dry run first: it says what the sweep is going to do, and changes nothing.
    before = everything(client)
    report = kind.job(client).report()
    assert (report.hashes, report.fields, report.refused, report.is_all) == (301, 3400, 0, True)
    assert kind.job(client, dry_run=True).perform(Slice(7, 10.0)) == 7
    assert everything(client) == before
    rows = sweep(spark, adoption(server, number), partitions=4, limit=200).collect()
    assert all(row["drained"] and not row["failed"] for row in rows)
    assert sum(row["items"] for row in rows) == 3400
    assert sum(bool(row["items"]) for row in rows) > 1
    hashes = hashes_on(client)
    for who, fields in [*((f"{{u{i}}}", ends) for i in range(300)), ("{large}", large)]:
        times = hashes.hpexpiretime(f"hash:{who}", *fields)
        assert all(kind.is_due(at, end) for at, end in zip(times, fields.values(), strict=True))
    assert not list(client.scan_iter("zset:*"))
    check_index(hashes)
    before = everything(client)
    rows = sweep(spark, adoption(server, number), partitions=3).collect()
    assert sum(row["items"] for row in rows) == 0
    assert everything(client) == before


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda n: KINDS[n].name)
def test_two_sweeps_beside_old_and_new_writers(
    spark: SparkSession, redis7: RedisServer, number: int
) -> None:
    kind, client = KINDS[number], redis7.client()
    later = int(time.time()) + HOUR
    for i in range(400):
        kind.store(client, f"u{i}", {"f": later})
    hashes_on(client).open()
    old: dict[str, tuple[int, bytes]] = {}
    new: dict[str, tuple[int, bytes]] = {}
    is_over = threading.Event()

    def write() -> None:
        mine, n = client_of(redis7.port, is_cluster=False), 0
        hashes = hashes_on(mine)
        while not is_over.is_set():
            n += 1
            who = f"u{n % 400}"
            values = kind.store(mine, who, {"old": later + n}, n)
            old[who] = later + n, values["old"]
            hashes.hsetex(f"hash:{who}", "new", f"n{n}", exat=later + 2 * n)
            new[who] = later + 2 * n, b"n%d" % n

    results: list[list[Any]] = []

    def swept() -> None:
        results.append(sweep(spark, adoption(redis7, number), partitions=2, limit=50).collect())

    writing = threading.Thread(target=write)
    sweeps = [threading.Thread(target=swept) for _ in range(2)]
    writing.start()
    try:
        for each in sweeps:
            each.start()
        for each in sweeps:
            each.join()
    finally:
        is_over.set()
        writing.join()
    assert len(results) == 2
    assert not any(row["failed"] for rows in results for row in rows)
    hashes = hashes_on(client)
    # No field that was there before the sweeps is left out.
    assert all(kind.is_due(*hashes.hpexpiretime(f"hash:u{i}", "f"), later) for i in range(400))
    to_the_end(kind.job(client))
    assert old
    for who, (end, value) in old.items():
        assert hashes.hget(f"hash:{who}", "old") == value
        assert kind.is_due(*hashes.hpexpiretime(f"hash:{who}", "old"), end)
    for who, (end, value) in new.items():
        assert hashes.hget(f"hash:{who}", "new") == value
        assert hashes.hpexpiretime(f"hash:{who}", "new") == [1000 * end]
    check_index(hashes)


def test_a_dry_run_is_not_swept(spark: SparkSession, redis7: RedisServer) -> None:
    port = redis7.port
    client = redis7.client()
    KINDS[2].store(client, "u", {"f": 1})

    def make() -> Any:
        return KINDS[2].job(client_of(port, is_cluster=False), dry_run=True)

    with pytest.raises(ConfigurationError, match="is a dry run"):
        sweep(spark, make)
    assert everything(client) == {b"hash:u": {b"f": b"0"}}


def test_a_namespace_is_swept_back_to_emulated(spark: SparkSession, redis8: RedisServer) -> None:
    client = redis8.client()
    hashes = hashes_on(client, backend="native")
    for i in range(400):
        hashes.hsetex(f"hash:u{i}", mapping={"a": 1, "b": 2}, ex=HOUR + i)
    times = [hashes.hpexpiretime(f"hash:u{i}", "a", "b") for i in range(400)]
    written: dict[str, int] = {}
    is_over = threading.Event()

    def write() -> None:
        mine, n = hashes_on(client_of(redis8.port, is_cluster=False)), 0
        while not is_over.is_set():
            n += 1
            who = f"hash:u{n % 500}"
            mine.hsetex(who, "new", n, ex=2 * HOUR + n)
            written[who] = n

    writing = threading.Thread(target=write)
    writing.start()
    try:
        rows = sweep(spark, way_back(redis8), partitions=2, limit=100).collect()
    finally:
        is_over.set()
        writing.join()
    assert all(row["drained"] and not row["failed"] for row in rows)
    assert sum(row["items"] for row in rows) >= 800
    fresh = hashes_on(client, backend="emulated")
    for i, before in enumerate(times):
        assert fresh.hpexpiretime(f"hash:u{i}", "a", "b") == before
    for who, n in written.items():
        assert fresh.hget(who, "new") == b"%d" % n
        assert 0 <= 2 * HOUR + n - fresh.httl(who, "new")[0] < 300
        assert client.httl(who, "a", "b", "new") in ([-1, -1, -1], [-2, -2, -1])
    assert sweep(spark, way_back(redis8), partitions=2).collect() == []
