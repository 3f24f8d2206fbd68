"""format(TRACKED_SET): every id once, by runs of sub-sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.spark import register
from workstealing.spark.sources.tracked_set import (
    TrackedSetOptions,
    TrackedSetReader,
    TrackedSetSource,
)
from workstealing.structures import TrackedSet
from workstealing.structures.tracked_set.sub_sets import scan

TRACKED_SET = "workstealing.tracked_set"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    """One server and a cluster."""
    found: AnyServer = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def reader_of(server: Any, **options: str) -> TrackedSetReader:
    """Return a reader as Spark makes one."""
    source = TrackedSetSource({"path": "ids", "url": server.url, **options})
    return source.reader(source.schema())


def rows_of(server: Any, **options: str) -> list[dict[str, Any]]:
    """Return all rows, read as Spark does."""
    reader = reader_of(server, **options)
    return [
        row
        for part in reader.partitions()
        for each in reader.read(part)
        for row in each.to_pylist()
    ]


def test_every_id_is_read_once_with_its_sub_set(server: AnyServer) -> None:
    tracked = TrackedSet(server.client(), "ids", sub_sets=40)
    wanted = {f"id-{number}" for number in range(3_000)}
    tracked.track(wanted)
    rows = rows_of(server)
    assert Counter(row["id"] for row in rows) == Counter(wanted)
    assert all(row["sub_set"] == tracked.names.sub_set_of(row["id"].encode()) for row in rows)


def test_partitions_are_runs_of_sub_sets(server: AnyServer) -> None:
    tracked = TrackedSet(server.client(), "ids", sub_sets=40)
    tracked.track(range(500))
    assert len(reader_of(server).partitions()) == 16
    assert len(reader_of(server, partitions="3").partitions()) == 3
    assert len(reader_of(server, partitions="99").partitions()) == 40
    for partitions in ("3", "99"):
        assert len(rows_of(server, partitions=partitions)) == 500


def test_large_sub_sets_are_read_by_pages(server: AnyServer) -> None:
    tracked = TrackedSet(server.client(), "ids", sub_sets=2)
    tracked.track(range(20_000))
    pages = list(scan(tracked.job_client, tracked.names, (0, 1)))
    assert {number for _, ids in pages for number in map(int, ids)} == set(range(20_000))
    # Two sub-sets a round trip, some more than asked for where the server's table has chains.
    assert max(len(ids) for _, ids in pages) < 3_000


def test_an_absent_tracked_set_is_refused_and_not_taken_for_an_empty_one(server: AnyServer) -> None:
    with pytest.raises(LayoutError, match="there is no tracked set 'ids' on this server: see"):
        rows_of(server)
    assert server.client().dbsize() == 0
    # As the sentence says.
    TrackedSet(server.client(), "ids", sub_sets=4).track([])
    assert rows_of(server) == []


def test_another_number_of_sub_sets_is_refused(server: AnyServer) -> None:
    TrackedSet(server.client(), "ids", sub_sets=8).track("a")
    assert len(rows_of(server, subSets="8")) == 1
    with pytest.raises(LayoutError, match="laid out over 8 sub-sets, not 9"):
        reader_of(server, subSets="9").partitions()


@pytest.mark.parametrize("foreign", ["a string", {"structure": "else"}, {"sub_sets": "9999"}])
def test_a_foreign_layout_is_refused(redis7: RedisServer, foreign: str | dict[str, str]) -> None:
    key = "ws:tracked:layout:ids"
    client = redis7.client()
    client.hset(key, mapping=foreign) if isinstance(foreign, dict) else client.set(key, foreign)
    with pytest.raises(LayoutError, match="does not hold the layout of a tracked set"):
        reader_of(redis7).partitions()


def test_a_foreign_sub_set_is_an_error(redis7: RedisServer) -> None:
    tracked = TrackedSet(redis7.client(), "ids", sub_sets=2)
    tracked.track(range(10))
    redis7.client().set(tracked.names.keys(1)[0], "foreign")
    with pytest.raises(LayoutError, match="holds another type than it should"):
        rows_of(redis7)


def test_ids_that_are_no_text_need_a_binary_column(redis7: RedisServer) -> None:
    TrackedSet(redis7.client(), "ids").track(b"\xff")
    with pytest.raises(ConfigurationError, match=r"the id .* is not UTF-8 text: .* ids=binary"):
        rows_of(redis7)
    (row,) = rows_of(redis7, ids="binary")
    assert row["id"] == b"\xff"


def test_another_schema_is_refused() -> None:
    options = TrackedSetOptions.parse({"name": "ids", "ids": "binary"})
    own = TrackedSetSource({"name": "ids", "ids": "binary"}).schema()
    with pytest.raises(ConfigurationError, match="has the columns id binary, sub_set int"):
        TrackedSetReader(options, own[:1])


def test_it_is_not_written_to() -> None:
    source = TrackedSetSource({"name": "ids"})
    for write in (source.writer, source.streamWriter):
        with pytest.raises(ConfigurationError, match=r"a table to read: .* TrackedSet.track\(\)"):
            write(source.schema(), overwrite=False)


def test_spark_reads_a_tracked_set(spark: SparkSession, server: AnyServer) -> None:
    register(spark)
    TrackedSet(server.client(), "ids", sub_sets=16).track(range(1_000))
    read = spark.read.format(TRACKED_SET).option("url", server.url).option("partitions", 2)
    found = read.load("ids")
    assert found.dtypes == [("id", "string"), ("sub_set", "int")]
    assert found.rdd.getNumPartitions() == 2
    assert {row.id for row in found.collect()} == {str(number) for number in range(1_000)}
    with pytest.raises(AnalysisException, match="unknown options: 'ickshards'"):
        read.option("ickShards", 4).load("ids")
