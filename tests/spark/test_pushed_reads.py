"""Reads with filters pushed into them find what Spark would have left, and ask Redis for no more.

Each reader is called as Spark calls it, without a JVM; `test_log_jvm.py` shows a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import make_dataclass
from typing import Any

import pytest

from support.hash_places import NAMESPACE, Place
from support.servers import AnyServer, RedisServer
from workstealing.errors import LayoutError
from workstealing.structures import Ick, Log, ShardedIck, TrackedSet, VolatileHashes

pytest.importorskip("pyspark")

from pyspark.sql import datasource

from workstealing.spark.sources.ick import IckSource
from workstealing.spark.sources.log import LogSource
from workstealing.spark.sources.tracked_set import TrackedSetSource
from workstealing.spark.sources.volatile_hashes import VolatileHashSource

Rows = list[dict[str, Any]]
Said = tuple[str, str, Any]
PUSH = {"pushFilters": "true"}

# What a filter means, by the name of its class.
MEANINGS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda mine, value: mine == value,
    "In": lambda mine, value: mine in value,
    "StringStartsWith": lambda mine, value: mine.startswith(value),
    "GreaterThan": lambda mine, value: mine > value,
    "GreaterThanOrEqual": lambda mine, value: mine >= value,
    "LessThan": lambda mine, value: mine < value,
    "LessThanOrEqual": lambda mine, value: mine <= value,
}


def filter_of(column: str, kind: str, value: Any) -> Any:
    """Return a filter, also on PySpark 4.0, which has none."""
    made = getattr(datasource, kind, None) or make_dataclass(kind, ["attribute", "value"])
    return made((column,), value)


def read(source: Any, *filters: Said) -> tuple[Rows, int]:
    """Return what a reader finds that takes all the filters, and how many partitions it has."""
    reader = source.reader(source.schema())
    assert list(reader.pushFilters([filter_of(*each) for each in filters])) == []
    partitions = reader.partitions()
    assert len(partitions) > 0
    rows = [
        row
        for partition in partitions
        for page in reader.read(partition)
        for row in page.to_pylist()
    ]
    return sorted(rows, key=repr), len(partitions)


def assert_as_spark(source: Any, *filters: Said) -> Rows:
    """Assert that a filtered read has the rows of a whole one that Spark would leave of it."""
    whole, _ = read(source)
    wanted = [
        row
        for row in whole
        if all(MEANINGS[kind](row[column], value) for column, kind, value in filters)
    ]
    found, _ = read(source, *filters)
    for row in (*found, *wanted):
        row.pop("ttl", None)
    assert found == wanted
    return found


def commands(server: RedisServer, call: Callable[[], object]) -> Mapping[str, int]:
    """Return how often each command was called meanwhile."""
    client = server.client()
    client.config_resetstat()
    call()
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    """A single server, and a cluster."""
    found: AnyServer = request.getfixturevalue(request.param)
    yield found
    found.wipe()


class TestLog:
    FILTERS: tuple[tuple[Said, ...], ...] = (
        (("log", "EqualTo", "b"),),
        (("log", "EqualTo", "none"),),
        (("log", "In", ("a", "c", None)), ("offset", "LessThan", 5)),
        (("log", "StringStartsWith", "b"),),
        (("offset", "GreaterThan", 30), ("offset", "LessThanOrEqual", 55)),
        (("offset", "GreaterThanOrEqual", 110),),
        (("offset", "EqualTo", 0),),
        (("offset", "EqualTo", -1),),
        (("offset", "In", (3, 50, 4, 49, 5, 119, 120, 7_000)),),
        (("offset", "In", (3, 4, 90)), ("offset", "LessThan", 50), ("log", "EqualTo", "c")),
        (("offset", "LessThan", 10), ("offset", "GreaterThan", 20)),
    )

    def source(self, server: AnyServer, **options: str) -> LogSource:
        client: Any = server.client()
        for name, count in (("a", 120), ("b", 40), ("c", 60)):
            log = Log(client, name, 25)
            if not log.length():
                log.append(*[f"{name} {number}".encode() for number in range(count)])
        Log(client, "c", 25).evict(52)
        given = {"logs": "a,b,c", "url": server.url, "partitions": "3", **options}
        return LogSource({**given, **PUSH})

    @pytest.mark.parametrize("filters", FILTERS)
    def test_as_spark(self, server: AnyServer, filters: tuple[Said, ...]) -> None:
        assert_as_spark(self.source(server), *filters)
        assert_as_spark(self.source(server, startingOffset="-30", endingOffset="-3"), *filters)

    def test_other_logs_and_blocks_are_not_looked_at(self, redis7: RedisServer) -> None:
        source = self.source(redis7)
        whole = commands(redis7, lambda: read(source))
        one = commands(
            redis7,
            lambda: read(source, ("log", "EqualTo", "a"), ("offset", "GreaterThan", 100)),
        )
        # A look at the log, and one block of it.
        assert one["evalsha"] <= 3
        assert whole["evalsha"] >= 3 * one["evalsha"]
        assert read(source, ("offset", "EqualTo", 3), ("log", "EqualTo", "a"))[1] == 1
        # A log that is not wanted need not be there.
        missing = self.source(redis7, logs="a,missing")
        assert len(read(missing, ("log", "EqualTo", "a"))[0]) == 120

    def test_a_log_without_entries_in_the_range(self, redis7: RedisServer) -> None:
        """Spark asks for one partition even if there is nothing to read."""
        source = self.source(redis7, logs="a", startingOffset="500")
        assert read(source) == ([], 1)


class TestIck:
    FILTERS: tuple[tuple[Said, ...], ...] = (
        (("member", "EqualTo", "member 7"),),
        (("member", "EqualTo", "nobody"),),
        (("member", "In", ("member 1", "member 2", "member 3", "nobody", None)),),
        (("member", "In", ("member 1", "member 2")), ("reserved", "EqualTo", True)),
        (("reserved", "EqualTo", True),),
        (("reserved", "EqualTo", False), ("ick_shard", "EqualTo", 1)),
        (("reserved", "EqualTo", False), ("reserved", "EqualTo", True)),
        (("ick_shard", "GreaterThan", 1),),
        (("ick_shard", "In", (0, 2, 9)),),
        (("ick_shard", "EqualTo", 7),),
    )

    def source(self, server: AnyServer, **options: str) -> IckSource:
        sharded: ShardedIck = ShardedIck(server.client(), "orders", 3)
        sharded.add({f"member {number}": float(number) for number in range(90)})
        with sharded.lease("somebody") as ick:
            ick.reserve(20)
        # Dirty and reserved: these have two rows.
        sharded.add({f"member {number}": float(number) for number in range(10)})
        return IckSource({"name": "orders", "url": server.url, **PUSH, **options})

    @pytest.mark.parametrize("filters", FILTERS)
    def test_as_spark(self, server: AnyServer, filters: tuple[Said, ...]) -> None:
        assert_as_spark(self.source(server), *filters)

    def test_other_ick_shards_are_not_looked_at(self, redis7: RedisServer) -> None:
        source = self.source(redis7)
        assert read(source)[1] == 3
        asked = ("member", "In", ("member 1", "nobody"))
        told = commands(redis7, lambda: read(source, asked))
        assert "zscan" not in told
        # Those who wait, are being moved, or are reserved, in one ick shard or two.
        assert told["zmscore"] <= 6
        assert read(source, ("member", "EqualTo", "member 1"))[1] == 1
        told = commands(redis7, lambda: read(source, ("reserved", "EqualTo", True)))
        assert told["zscan"] == 3

    def test_amid_a_resize(self, redis7: RedisServer) -> None:
        source = self.source(redis7)
        sharded: ShardedIck = ShardedIck(redis7.client(), "orders")
        assert not sharded.resize(5, limit=20).done
        for filters in self.FILTERS[:4]:
            assert_as_spark(source, *filters)

    def test_a_single_ick_of_bytes(self, redis7: RedisServer) -> None:
        ick: Ick = Ick(redis7.client(), "dirty")
        ick.add({b"\xff": 1.0, b"b": 2.0, b"c": 3.0})
        source = IckSource({"key": "dirty", "url": redis7.url, "members": "binary", **PUSH})
        found = assert_as_spark(source, ("member", "In", (b"\xff", b"c", b"d")))
        assert [row["score"] for row in found] == [1.0, 3.0]
        assert assert_as_spark(source, ("ick_shard", "GreaterThan", 0)) == []


class TestTrackedSet:
    FILTERS: tuple[tuple[Said, ...], ...] = (
        (("id", "EqualTo", "id 7"),),
        (("id", "EqualTo", "nobody"),),
        (("id", "In", (*(f"id {number}" for number in range(40)), "nobody", None)),),
        (("sub_set", "EqualTo", 3),),
        (("sub_set", "LessThan", 5), ("sub_set", "GreaterThanOrEqual", 2)),
        (("sub_set", "EqualTo", 99),),
        (("id", "In", ("id 1", "id 2", "id 3")), ("sub_set", "LessThan", 10)),
    )

    def source(self, server: AnyServer, **options: str) -> TrackedSetSource:
        tracked = TrackedSet(server.client(), "ids", sub_sets=20)
        tracked.track({f"id {number}" for number in range(300)})
        return TrackedSetSource({"path": "ids", "url": server.url, **PUSH, **options})

    @pytest.mark.parametrize("filters", FILTERS)
    def test_as_spark(self, server: AnyServer, filters: tuple[Said, ...]) -> None:
        assert_as_spark(self.source(server), *filters)

    def test_other_sub_sets_are_not_looked_at(self, redis7: RedisServer) -> None:
        source = self.source(redis7)
        told = commands(redis7, lambda: read(source, ("id", "In", ("id 1", "nobody"))))
        assert "sscan" not in told
        assert 1 <= told["smismember"] <= 2
        told = commands(redis7, lambda: read(source, ("sub_set", "EqualTo", 3)))
        assert told["sscan"] == 1

    def test_a_foreign_sub_set(self, redis7: RedisServer) -> None:
        source = self.source(redis7, ids="binary")
        names = TrackedSet(redis7.client(), "ids", sub_sets=20).names
        key = names.keys(names.sub_set_of(b"id 1"))[0]
        redis7.client().set(key, "foreign")
        with pytest.raises(LayoutError, match="holds another type than it should"):
            read(source, ("id", "EqualTo", b"id 1"))


class TestVolatileHashes:
    FILTERS: tuple[tuple[Said, ...], ...] = (
        (("key", "EqualTo", "item:7"),),
        (("key", "EqualTo", "nobody"),),
        (("key", "In", ("item:1", "other:2", "item:[x]", "nobody", "no hash", None)),),
        (("key", "StringStartsWith", "item:1"),),
        (("key", "StringStartsWith", "item:["),),
        (("key", "StringStartsWith", "i"), ("key", "StringStartsWith", "item:2")),
        (("key", "StringStartsWith", "other"), ("key", "In", ("other:1", "item:1"))),
        (("key", "StringStartsWith", "a"), ("key", "StringStartsWith", "b")),
        (("key", "StringStartsWith", ""),),
    )

    @pytest.fixture(
        params=[("redis7", "emulated"), ("redis8", "native"), ("cluster", "emulated")],
        ids="-".join,
    )
    def place(self, request: pytest.FixtureRequest) -> Iterator[Place]:
        """Each way in which hashes are found."""
        name, backend = request.param
        found: AnyServer = request.getfixturevalue(name)
        yield Place(found, backend)
        found.wipe()

    def source(self, place: Place, **options: str) -> VolatileHashSource:
        hashes: VolatileHashes = place.hashes()
        for number in range(30):
            for key in (f"item:{number}", f"other:{number}"):
                hashes.hsetex(key, mapping={"f": str(number), "g": "2"}, ex=5_000)
        hashes.hsetex("item:[x]", "f", "1", ex=5_000)
        hashes.hset("item:without any deadline", "f", "1")
        client: Any = place.server.client()
        client.set("no hash", 1)
        given = {"path": NAMESPACE, **place.options, "match": "*", **options}
        return VolatileHashSource({**given, **PUSH})

    @pytest.mark.parametrize("match", ["*", "item:*", "item:1", "[io]t*", "other:\\*"])
    def test_as_spark(self, place: Place, match: str) -> None:
        source = self.source(place, match=match)
        for filters in self.FILTERS:
            assert_as_spark(source, *filters)

    def test_a_hash_that_a_whole_read_misses_is_missed_by_name_too(self, place: Place) -> None:
        source = self.source(place)
        found, _ = read(source, ("key", "EqualTo", "item:without any deadline"))
        assert len(found) == (1 if place.backend == "native" else 0)

    def test_other_hashes_are_not_looked_at(self, redis7: RedisServer) -> None:
        source = self.source(Place(redis7, "emulated"), partitions="50")
        whole = commands(redis7, lambda: read(source))
        told = commands(redis7, lambda: read(source, ("key", "In", ("item:1", "nobody"))))
        assert "zscan" not in told
        assert told["zscore"] == 2
        assert told["hscan"] == 1
        told = commands(redis7, lambda: read(source, ("key", "StringStartsWith", "item:1")))
        # Item 1, and 10 to 19.
        assert told["hscan"] == 11
        assert whole["hscan"] == 61

    def test_nodes_are_not_scanned_for_keys_that_are_named(self, redis8: RedisServer) -> None:
        source = self.source(Place(redis8, "native"))
        told = commands(redis8, lambda: read(source, ("key", "In", ("item:1", "nobody"))))
        assert "scan" not in told
        assert told["hscan"] == 2
