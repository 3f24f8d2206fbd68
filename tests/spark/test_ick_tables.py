"""Reading and writing Icks as tables, without a JVM: what a task does with its partition."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.structures import Ick, ShardedIck

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from workstealing.spark.sources.ick import IckSource

KINDS: dict[str, DataType] = {
    "binary": BinaryType(),
    "bigint": LongType(),
    "decimal": DecimalType(5, 2),
    "double": DoubleType(),
    "float": FloatType(),
    "int": IntegerType(),
    "string": StringType(),
    "timestamp": TimestampType(),
}
MEMBERS = {f"member {i}": float(i) for i in range(3000)}


def columns_of(text: str) -> StructType:
    """Return what "name type, name type" says; Spark's own parser needs a session."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def source(server: RedisServer, **options: str) -> IckSource:
    return IckSource({"url": server.url, **options})


def read(made: IckSource) -> list[dict[str, Any]]:
    """Read all partitions as tasks do, by objects that were pickled on their way."""
    reader = pickle.loads(pickle.dumps(made.reader(made.schema())))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def write(made: IckSource, schema: str, **columns: list[Any]) -> tuple[int, int]:
    """Write one batch of rows as a task does."""
    writer = made.writer(columns_of(schema), overwrite=False)
    written: Any = writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
    return written.new, written.changed


class TestReading:
    def test_all_pages(self, redis7: RedisServer) -> None:
        sharded: ShardedIck = ShardedIck(redis7.client(), "orders", 3)
        sharded.add(MEMBERS)
        with sharded.lease("somebody", lease=3600) as ick:
            ick.reserve(100)
        rows = read(source(redis7, name="orders"))
        assert {row["member"]: row["score"] for row in rows} == MEMBERS
        assert len(rows) == 3000
        assert sum(row["reserved"] for row in rows) == 100
        assert {row["ick_shard"] for row in rows} == {0, 1, 2}

    def test_a_member_in_both_sets_has_two_rows(self, redis7: RedisServer) -> None:
        ick: Ick = Ick(redis7.client(), "dirty")
        ick.add({"a": 5.0})
        ick.reserve(1)
        ick.add({"a": 7.0})
        rows = read(source(redis7, key="dirty"))
        assert [(row["score"], row["reserved"]) for row in rows] == [(7.0, False), (5.0, True)]

    def test_while_members_are_moved(self, redis7: RedisServer) -> None:
        sharded: ShardedIck = ShardedIck(redis7.client(), "orders", 3)
        sharded.add(MEMBERS)
        assert not sharded.resize(5, limit=700).done
        rows = read(source(redis7, name="orders"))
        assert {row["member"]: row["score"] for row in rows} == MEMBERS
        assert {row["ick_shard"] for row in rows} == {0, 1, 2, 3, 4}

    def test_nothing_there(self, redis7: RedisServer) -> None:
        assert read(source(redis7, key="dirty")) == []
        with pytest.raises(ConfigurationError, match="there is no ShardedIck 'orders'"):
            read(source(redis7, name="orders", ickShards="3"))
        assert redis7.client().keys("*") == []

    def test_foreign_keys(self, redis7: RedisServer) -> None:
        redis7.client().set("dirty", "something")
        with pytest.raises(LayoutError, match="says something"):
            read(source(redis7, key="dirty"))

    def test_other_columns_are_refused(self, redis7: RedisServer) -> None:
        made = source(redis7, name="orders")
        for ask in (made.reader, made.stream_reader):
            with pytest.raises(ConfigurationError, match=r"leave .schema\(...\) out"):
                ask(columns_of("member string, score float"))


class TestWriting:
    def test_kinds_of_members_and_scores(self, redis7: RedisServer) -> None:
        made = source(redis7, name="orders", ickShards="2")
        assert write(made, "member string, score double", member=["a"], score=[1.5]) == (1, 0)
        assert write(made, "member binary", member=[b"\xff"]) == (1, 0)
        two = [Decimal("0.5"), Decimal("7")]
        schema = "member bigint, score decimal"
        assert write(made, schema, member=[17, 4], score=two) == (2, 0)
        # Again: nothing changes, but for a lower score.
        assert write(made, schema, member=[17, 4], score=two) == (0, 0)
        assert write(made, "score int, member int", score=[-3], member=[4]) == (0, 1)
        found = {
            row["member"]: row["score"]
            for row in read(source(redis7, name="orders", members="binary"))
        }
        assert found.pop(b"\xff") > 1.7e9
        assert found == {b"a": 1.5, b"17": 0.5, b"4": -3.0}

    @pytest.mark.parametrize(
        ("schema", "columns", "problem"),
        [
            ("member string", {"member": ["a", None]}, "a member is null"),
            ("member string, score double", {"member": ["a"], "score": [float("nan")]}, "score of"),
        ],
    )
    def test_rows_that_cannot_be_written(
        self, redis7: RedisServer, schema: str, columns: dict[str, list[Any]], problem: str
    ) -> None:
        made = source(redis7, name="orders", ickShards="2")
        with pytest.raises(ConfigurationError, match=problem):
            write(made, schema, **columns)
        assert ShardedIck(redis7.client(), "orders").stats()["total_size"] == 0

    @pytest.mark.parametrize(
        ("schema", "problem"),
        [
            ("id int", "'member' is missing from id: give a string, binary or whole-number column"),
            (
                "member int, score double, time timestamp",
                "the column 'time' is unknown: select member, score alone",
            ),
            (
                "member double",
                "'member' has the type double: give a string, binary or whole-number",
            ),
            ("member int, score string", "the column 'score' has the type string: give a number"),
        ],
    )
    def test_tables_that_cannot_be_written(
        self, redis7: RedisServer, schema: str, problem: str
    ) -> None:
        made = source(redis7, name="orders", ickShards="2")
        for ask in (made.writer, made.streamWriter):
            with pytest.raises(ConfigurationError, match=problem):
                ask(columns_of(schema), overwrite=False)
        assert redis7.client().keys("*") == []

    def test_what_is_refused_before_any_task(self, redis7: RedisServer) -> None:
        schema = columns_of("member int")

        def of(**options: str) -> tuple[Callable[..., Any], ...]:
            made = source(redis7, **options)
            return made.writer, made.streamWriter

        for options, overwrite, problem in (
            ({"name": "orders", "ickShards": "2"}, True, "only adds members and never replaces"),
            ({"name": "orders", "leaseSeconds": "9"}, False, "belongs to readStream"),
            ({"name": "orders"}, False, "give the option 'ickShards'"),
        ):
            for ask in of(**options):
                with pytest.raises(ConfigurationError, match=problem):
                    ask(schema, overwrite=overwrite)
