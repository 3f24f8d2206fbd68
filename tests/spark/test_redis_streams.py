"""Redis' streams as the source of a stream: offsets, admission and losses, without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.errors import ConfigurationError, LostEntriesError
from workstealing.spark.sources import batches, redis_stream
from workstealing.spark.sources.compat import ReadAllAvailable, ReadMaxRows
from workstealing.spark.sources.redis import RedisSource, RedisStreamReader
from workstealing.spark.sources.redis_options import RedisOptions
from workstealing.spark.sources.redis_reading import id_of, number_of
from workstealing.spark.sources.redis_stream import (
    StreamLook,
    StreamOffset,
    StreamPlace,
    begun,
    cut,
)

Server = RedisServer | RedisCluster3
ALL = ReadAllAvailable()
COLUMNS = StructType().add("key", StringType()).add("n", StringType())


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """All keys on one server, and keys on several."""
    found: Server = request.getfixturevalue(request.param)
    yield found
    found.wipe()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "IDLE_SECONDS", 0.0)


class Query:
    """The calls that Spark makes for a query; `offset` is its checkpoint."""

    def __init__(self, server: Server, keys: str, **options: str) -> None:
        self._options = {"url": server.url, "type": "stream", "keys": keys, **options}
        self.reader = self._made()
        self.offset: dict[str, Any] = self.reader.initialOffset()

    def _made(self) -> RedisStreamReader:
        return RedisSource(dict(self._options)).stream_reader(COLUMNS)

    def restart(self, **options: str) -> None:
        """Begin anew with the checkpoint, which is text."""
        self._options |= options
        self.reader = self._made()
        self.offset = json.loads(json.dumps(self.offset))

    def plan(self, limit: Any = ALL) -> tuple[dict[str, Any], dict[str, Any]]:
        start = self.offset
        self.offset = self.reader.latestOffset(start, limit)
        return start, self.offset

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (row["key"], row["n"])
            for part in self.reader.partitions(start, end)
            for batch in self.reader.read(part)
            for row in batch.to_pylist()
        ]

    def batch(self, limit: Any = ALL) -> list[str]:
        """Return the n of the entries of the next batch."""
        return [n for _, n in self.read(*self.plan(limit))]


def add(server: Server, key: str, *numbers: int) -> None:
    for number in numbers:
        server.client().xadd(key, {"n": number})


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def test_every_entry_comes_once_over_batches_and_restarts(server: Server) -> None:
    add(server, "a", 1, 2)
    query = Query(server, "a,b")
    assert query.batch() == texts(1, 2)
    assert query.batch() == []
    start, end = query.plan()
    assert start is end
    add(server, "a", 3)
    add(server, "b", 4)
    start, end = query.plan()
    assert query.read(start, end) == [("a", "3"), ("b", "4")]
    query.restart()
    # A batch that was planned before a restart is the same one.
    add(server, "a", 5)
    assert query.read(start, end) == [("a", "3"), ("b", "4")]
    assert query.batch() == texts(5)
    assert query.reader.reportLatestOffset() == {
        name: server.client().xinfo_stream(name)["last-generated-id"].decode() for name in "ab"
    }


@pytest.mark.parametrize("page", [2, 100])
def test_a_limit_is_shared_evenly(
    server: Server, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_stream, "FIRST_PAGE", page)
    add(server, "a", *range(10))
    add(server, "b", *range(100, 103))
    query = Query(server, "a,b,none", maxOffsetsPerTrigger="8")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    first = query.batch(limit)
    assert len(first) == 8
    # What b does not need is left to a.
    assert sum(int(n) >= 100 for n in first) == 3
    assert sorted(first + query.batch(limit), key=int) == texts(*range(10), 100, 101, 102)
    assert query.batch(limit) == []


def test_more_streams_than_entries_take_turns(redis7: RedisServer) -> None:
    names = [f"s{number}" for number in range(5)]
    for name in names:
        add(redis7, name, *range(4))
    query = Query(redis7, ",".join(names))
    keys = [key for _ in range(5) for key, _ in query.read(*query.plan(ReadMaxRows(2)))]
    assert len(keys) == 10
    assert {keys.count(name) for name in names} == {2}


def test_without_a_limit_no_entry_is_read_to_plan(redis7: RedisServer) -> None:
    add(redis7, "a", *range(50))
    query = Query(redis7, "a")
    assert query.reader.getDefaultReadLimit() == ALL
    redis7.client().config_resetstat()
    query.plan()
    stats = redis7.client().info("commandstats")
    assert "cmdstat_xrange" not in stats
    assert stats["cmdstat_xinfo|stream"]["calls"] == 1


def test_available_now_ends_where_the_streams_ended(server: Server) -> None:
    add(server, "a", *range(5))
    query = Query(server, "a,b")
    query.reader.prepareForTriggerAvailableNow()
    add(server, "a", 5, 6)
    add(server, "b", 7)
    found = query.batch(ReadMaxRows(3))
    found += query.batch(ReadMaxRows(3))
    assert found == texts(*range(5))
    start, end = query.plan(ReadMaxRows(3))
    assert start is end
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert sorted(query.batch()) == texts(5, 6, 7)


@pytest.mark.parametrize("starting", ["earliest", "latest", "id"])
def test_where_a_query_begins(server: Server, starting: str) -> None:
    add(server, "a", 1, 2)
    (first, _), _ = server.client().xrange("a")
    given = json.dumps({"a": first.decode()}) if starting == "id" else starting
    query = Query(server, "a,b", startingOffsets=given)
    found = query.batch()
    # From now on it does not begin anew.
    query.restart(startingOffsets="latest")
    add(server, "a", 3)
    add(server, "b", 4)
    found += query.batch()
    assert (
        found
        == {
            "earliest": texts(1, 2, 3, 4),
            "latest": texts(3, 4),
            "id": texts(2, 3, 4),
        }[starting]
    )


def test_entries_that_are_trimmed_unread_are_an_error_or_passed_over(server: Server) -> None:
    add(server, "a", *range(4))
    query = Query(server, "a")
    query.batch()
    add(server, "a", *range(4, 10))
    server.client().xtrim("a", maxlen=5, approximate=False)
    before = query.offset
    with pytest.raises(LostEntriesError, match=r"'a' may have lost entries between .*failOnDataL"):
        query.plan()
    query.offset = before
    query.restart(failOnDataLoss="false")
    assert query.batch() == texts(*range(5, 10))
    add(server, "a", 10)
    query.restart(failOnDataLoss="true")
    assert query.batch() == texts(10)


def test_a_trim_of_what_was_read_is_no_loss(server: Server) -> None:
    add(server, "a", *range(6))
    query = Query(server, "a")
    query.batch(ReadMaxRows(4))
    add(server, "a", 6, 7)
    server.client().xtrim("a", maxlen=4, approximate=False)
    assert query.batch(ReadMaxRows(3)) == texts(4, 5, 6)
    server.client().xtrim("a", maxlen=1, approximate=False)
    assert query.batch() == texts(7)
    server.client().xtrim("a", maxlen=0, approximate=False)
    assert query.batch() == []
    add(server, "a", 8)
    assert query.batch() == texts(8)


def test_an_emptied_stream_has_lost_what_was_not_read(server: Server) -> None:
    add(server, "a", 1, 2)
    query = Query(server, "a")
    query.batch()
    add(server, "a", 3)
    server.client().xtrim("a", maxlen=0, approximate=False)
    with pytest.raises(LostEntriesError, match=r"and its end"):
        query.plan()


def test_a_deleted_entry_in_the_middle_is_no_gap(server: Server) -> None:
    add(server, "a", *range(5))
    client = server.client()
    ids = [entry_id for entry_id, _ in client.xrange("a")]
    query = Query(server, "a")
    planned = query.plan()
    client.xdel("a", ids[2])
    assert [n for _, n in query.read(*planned)] == texts(0, 1, 3, 4)
    add(server, "a", 5)
    assert query.batch() == texts(5)


def test_a_trim_between_plan_and_read(server: Server) -> None:
    add(server, "a", *range(5))
    query = Query(server, "a")
    planned = query.plan()
    server.client().xtrim("a", maxlen=2, approximate=False)
    with pytest.raises(LostEntriesError, match=r"3 of the 5 entries of this batch: they were trim"):
        query.read(*planned)
    query.restart(failOnDataLoss="false")
    assert [n for _, n in query.read(*planned)] == texts(3, 4)


def test_a_stream_that_was_deleted_or_made_anew(server: Server) -> None:
    add(server, "a", 1, 2)
    query = Query(server, "a")
    query.batch()
    server.client().delete("a")
    before = query.offset
    with pytest.raises(LostEntriesError, match="the stream 'a' was deleted; it had been read up"):
        query.plan()
    add(server, "a", 3)
    query.offset = before
    with pytest.raises(LostEntriesError, match="was deleted and made anew"):
        query.plan()
    query.offset = before
    query.restart(failOnDataLoss="false")
    assert query.batch() == texts(3)


def test_a_server_that_does_not_count_says_that_entries_may_be_lost() -> None:
    options = RedisOptions.parse({"type": "stream", "keys": "a"})
    before = StreamPlace(0, 5 << 64, -1, -1)
    there = StreamLook(last=9 << 64, first=6 << 64, length=4, added=None)
    assert begun(options, "a", before, there._replace(first=5 << 64)) == (5 << 64, -1, None)
    at, _, loss = begun(options, "a", before, there)
    assert at == 5 << 64
    assert loss is not None
    assert "between 5-0 and 6-0" in loss


def test_ids_are_numbers_in_the_same_order() -> None:
    ids = ["0-0", "0-1", "5-0", "5-18446744073709551615", "1700000000000-3"]
    numbers = [number_of(each.encode()) for each in ids]
    assert numbers == sorted(numbers)
    assert [id_of(number) for number in numbers] == ids
    assert number_of("7") == number_of("7-0")


def test_offsets_are_json_and_foreign_ones_are_refused() -> None:
    offset = StreamOffset({"a": StreamPlace(1, 5 << 64, -1, 7)})
    assert StreamOffset.parse(json.loads(json.dumps(offset.as_dict()))) == offset
    for foreign in ({}, {"streams": 7}, {"streams": {"a": {"from": "x"}}}, None):
        with pytest.raises(ConfigurationError, match="give this query a checkpoint of its own"):
            StreamOffset.parse(foreign)  # type: ignore[arg-type]


def test_tasks_have_whole_streams() -> None:
    places = {f"s{number}": StreamPlace(0, number, 0, number) for number in range(5)}
    parts = cut(StreamOffset(places), 3)
    names = [[span.name for span in part.spans] for part in parts]
    # Nothing is new in the first one.
    assert names == [["s1"], ["s2"], ["s3", "s4"]]


def test_a_key_of_another_type_and_a_stream_that_is_not_asked_for(redis7: RedisServer) -> None:
    redis7.client().set("a", "1")
    add(redis7, "b", 1)
    with pytest.raises(ConfigurationError, match="the key b'a' is no stream"):
        Query(redis7, "a").plan()
    query = Query(redis7, "b")
    query.batch()
    add(redis7, "c", 2)
    add(redis7, "b", 3)
    query.restart(keys="c")
    assert query.batch() == texts(2)
    query.restart(keys="b,c")
    assert query.batch() == texts(3)
    source = RedisSource({"url": redis7.url, "type": "stream", "keys": "a"})
    with pytest.raises(ConfigurationError, match="without the column 'ttl'"):
        source.stream_reader(StructType().add("ttl", "double"))
