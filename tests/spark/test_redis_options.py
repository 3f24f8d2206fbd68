"""The options and columns of ``format("workstealing.redis")``, without a server or a JVM."""

from __future__ import annotations

import math
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from workstealing.errors import ConfigurationError
from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.arrow import as_bytes
from workstealing.spark.sources.options import Positions
from workstealing.spark.sources.pushing import sorted_out
from workstealing.spark.sources.redis_columns import arrow_type, default_schema, shape_of, typed
from workstealing.spark.sources.redis_keys import (
    ListedKeys,
    ScannedKeys,
    columns_of,
    escaped,
    pushed_of,
    tasks,
)
from workstealing.spark.sources.redis_options import KINDS, RedisOptions
from workstealing.spark.sources.redis_writing import checked_for_writing

TEXT = StringType()
NAN = pytest.approx(math.nan, nan_ok=True)
NESTED_BY_NUMBER = MapType(LongType(), TEXT)
OF_ALL = StructType()
for _name, _kind in (
    ("n", LongType()),
    ("is_new", BooleanType()),
    ("name", TEXT),
    ("share", FloatType()),
    ("score", DoubleType()),
    ("price", DecimalType(6, 2)),
    ("raw", BinaryType()),
    ("day", DateType()),
    ("at", TimestampType()),
    ("local", TimestampNTZType()),
    ("tags", ArrayType(TEXT)),
    ("counts", MapType(TEXT, IntegerType())),
):
    OF_ALL = OF_ALL.add(_name, _kind)
NAMES = OF_ALL.fieldNames()
AT = datetime(2026, 11, 24, 22, 0, 1, tzinfo=UTC)


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


def parsed(**options: str) -> RedisOptions:
    return RedisOptions.parse({"type": "hash", **options})


class TestParsing:
    def test_defaults(self) -> None:
        options = RedisOptions.parse({"type": "set"})
        assert options == RedisOptions("set", ClientSettings())
        assert (options.tasks, options.fails_on_loss, options.prefix) == (16, True, b"")
        assert pickle.loads(pickle.dumps(options)) == options

    def test_all(self) -> None:
        options = RedisOptions.parse(
            {
                "TYPE": "stream",
                "keys": '["a,b", "c"]',
                "keyPrefix": "item:",
                "keyColumn": "id",
                "ttlcolumn": "left",
                "partitions": "3",
                "mode": "PERMISSIVE",
                "pushFilters": "true",
                "startingOffsets": '{"c": "17-0"}',
                "maxOffsetsPerTrigger": "50",
                "failOnDataLoss": "false",
                "writeMode": "overwrite",
                "ttlSeconds": "1.5",
                "maxLength": "9",
                "client": "my.module:make",
                "checkpointLocation": "/somewhere",
            }
        )
        assert options == RedisOptions(
            kind="stream",
            client=ClientSettings("my.module:make"),
            key_prefix="item:",
            key_column="id",
            ttl_column="left",
            keys=("a,b", "c"),
            partitions=3,
            permissive=True,
            pushes=True,
            starting=Positions("earliest", (("c", "17-0"),)),
            most_offsets=50,
            fail_on_data_loss=False,
            replaces=True,
            ttl_seconds=1.5,
            max_length=9,
        )
        assert options.starting is not None
        assert (options.starting.of("c"), options.starting.of("a,b")) == ("17-0", "earliest")

    def test_a_path_is_a_pattern(self) -> None:
        assert parsed(path="item:*").match == "item:*"

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({}, "'type' is missing: give the type of the keys, hash, string"),
            ({"type": "json"}, "'type' is 'json': give hash or string"),
            ({"type": "hash", "match": "a", "path": "b"}, "both the option 'match' and a path"),
            ({"type": "hash", "match": "a", "keys": "b"}, "both the options 'keys' and 'match'"),
            ({"type": "hash", "keys": "a,a"}, "the key 'a' is named twice in the option 'keys'"),
            ({"type": "hash", "keys": "a,,b"}, "'keys' holds no names of keys"),
            ({"type": "hash", "keys": "[]"}, "'keys' has 0 names"),
            ({"type": "hash", "match": "redis://u:secret@h"}, "'match' holds a URL"),
            ({"type": "hash", "pattern": "a"}, "unknown options: 'pattern'"),
            ({"type": "hash", "mode": "dropmalformed"}, "'mode' is 'dropmalformed': give failfast"),
            ({"type": "hash", "writeMode": "replace"}, "give append or overwrite"),
            ({"type": "set", "hashAs": "rows"}, "'hashAs' is for hashes"),
            ({"type": "hash", "keyColumn": "ttl"}, "both the key and the time to live"),
            ({"type": "hash", "ttlSeconds": "0"}, "give a number of seconds above 0"),
            ({"type": "hash", "ttlSeconds": "1e12"}, "above 60,000,000,000 seconds"),
            ({"type": "stream", "startingOffsets": "17-0"}, "'startingOffsets' is '17-0'"),
            ({"type": "stream", "startingOffsets": '{"a": 17}'}, "the id after which to begin"),
            (
                {"type": "stream", "keys": "a", "startingOffsets": '{"b": "1-0"}'},
                "names 'b', which",
            ),
        ],
    )
    def test_mistakes_are_said(self, options: dict[str, str], problem: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            RedisOptions.parse(options)
        assert problem in str(caught.value)
        assert str(caught.value).startswith("format 'workstealing.redis': ")
        assert "secret" not in str(caught.value)

    def test_the_url_is_never_shown(self) -> None:
        options = parsed(url="redis://u:secret@host:1", match="*")
        assert "secret" not in repr(options)
        with pytest.raises(ConfigurationError) as caught:
            shape_of(options, schema(key=MapType(TEXT, TEXT)))
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"match": "*", "ttlSeconds": "1"}, "'ttlSeconds' is for writing, and this is a read"),
            ({"match": "*", "writeMode": "append"}, "'writeMode' is for writing"),
            ({"match": "*", "failOnDataLoss": "true"}, "'failOnDataLoss' is for readStream"),
            ({}, "nothing says which keys are read"),
        ],
    )
    def test_what_does_not_go_with_a_read(self, options: dict[str, str], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=problem):
            parsed(**options).for_reading(is_stream=False)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"type": "hash", "keys": "a"}, "readStream reads Redis' streams, but type=hash"),
            ({"type": "stream", "match": "*"}, "give the streams as the option 'keys'"),
            ({"type": "stream"}, "'keys' is missing"),
        ],
    )
    def test_what_does_not_go_with_a_stream(self, options: dict[str, str], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=problem):
            RedisOptions.parse(options).for_reading(is_stream=True)


class TestColumns:
    @pytest.mark.parametrize(
        ("kind", "columns"),
        [
            ("string", "key string, value string, ttl double"),
            ("hash", "key string, field string, value string"),
            ("list", "key string, position bigint, value string"),
            ("set", "key string, member string"),
            ("zset", "key string, member string, score double"),
            ("stream", "key string, id string, fields map<string,string>"),
        ],
    )
    def test_the_default_columns_are_valid_ones(self, kind: str, columns: str) -> None:
        options = RedisOptions.parse({"type": kind})
        found = default_schema(options)
        shown = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in found.fields)
        assert shown == columns
        assert shape_of(options, found).named == ()
        assert {*KINDS} >= {kind}

    def test_a_hash_is_read_as_rows_or_as_columns(self) -> None:
        as_rows = schema(key=TEXT, field=TEXT, value=TEXT)
        assert shape_of(parsed(), as_rows).own == ("field", "value")
        assert shape_of(parsed(hashAs="columns"), as_rows).named == ("field", "value")
        assert shape_of(parsed(), schema(key=TEXT, value=TEXT)).named == ("value",)
        assert shape_of(parsed(hashAs="rows"), schema(key=TEXT, value=TEXT)).own == ("value",)
        with_time = shape_of(parsed(), schema(id=TEXT, price=DoubleType(), ttl=DoubleType()))
        assert (with_time.has_key, with_time.has_ttl, with_time.named) == (
            False,
            True,
            ("id", "price"),
        )

    @pytest.mark.parametrize(
        ("kind", "columns", "problem"),
        [
            ("set", {"value": TEXT}, "'value' is none of type=set: it has key, member, ttl"),
            ("zset", {"score": TEXT}, "'score' has the type string: give a double column"),
            ("zset", {"score": TEXT}, "such as CAST(score AS double)"),
            ("list", {"position": IntegerType()}, "'position' has the type int: give a bigint"),
            ("list", {"position": IntegerType()}, "such as CAST(position AS bigint)"),
            ("set", {"member": NESTED_BY_NUMBER}, "such as to_json(member)"),
            (
                "hash",
                {"a": DayTimeIntervalType()},
                "timestamp or timestamp_ntz, or an array, a map with keys",
            ),
            ("hash", {"a": DayTimeIntervalType()}, "such as CAST(a AS string)"),
            ("hash", {"key": ArrayType(TEXT)}, "such as to_json(key)"),
            ("hash", {"ttl": LongType()}, "a double column, such as CAST(ttl AS double)"),
            ("stream", {"fields": TEXT}, "'fields' has the type string: give a map"),
            ("stream", {"fields": MapType(TEXT, TEXT), "a": TEXT}, "both the column 'fields' and"),
        ],
    )
    def test_mistakes_are_said(self, kind: str, columns: dict[str, DataType], problem: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            shape_of(RedisOptions.parse({"type": kind}), schema(**columns))
        assert problem in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "columns", "problem"),
        [
            ({"type": "hash"}, {"a": TEXT}, "the column 'key' is missing from a"),
            ({"type": "hash"}, {"key": TEXT}, "no column with a field"),
            ({"type": "hash", "hashAs": "rows"}, {"key": TEXT, "field": TEXT}, "'value' is miss"),
            ({"type": "zset"}, {"key": TEXT, "member": TEXT}, "the column 'score' is missing"),
            ({"type": "stream"}, {"key": TEXT}, "no column with a field"),
            ({"type": "set", "keys": "a"}, {"key": TEXT, "member": TEXT}, "'keys' is for reading"),
            ({"type": "set", "maxLength": "1"}, {"key": TEXT, "member": TEXT}, "is for streams"),
            (
                {"type": "set", "ttlSeconds": "1"},
                {"key": TEXT, "member": TEXT, "ttl": DoubleType()},
                "both the column 'ttl' and the option 'ttlSeconds'",
            ),
        ],
    )
    def test_what_cannot_be_written(
        self, options: dict[str, str], columns: dict[str, DataType], problem: str
    ) -> None:
        with pytest.raises(ConfigurationError) as caught:
            checked_for_writing(
                RedisOptions.parse(options), schema(**columns), overwrite=False, is_stream=False
            )
        assert problem in str(caught.value)

    def test_sparks_overwrite_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"never empties .* writeMode=overwrite"):
            checked_for_writing(parsed(), schema(key=TEXT, a=TEXT), overwrite=True, is_stream=False)


class TestValues:
    @pytest.mark.parametrize(
        ("kind", "text", "value"),
        [
            (TEXT, "ä", "ä"),
            (BooleanType(), "true", True),
            (BooleanType(), "0", False),
            (ByteType(), "-128", -128),
            (ShortType(), "300", 300),
            (IntegerType(), "-5", -5),
            (LongType(), "9223372036854775807", 2**63 - 1),
            (FloatType(), "0.5", 0.5),
            (DoubleType(), "1e300", 1e300),
            (DecimalType(6, 2), "12.50", Decimal("12.50")),
            (DateType(), "2026-11-24", date(2026, 11, 24)),
            (TimestampType(), "2026-11-24T22:00:01.5Z", AT + timedelta(seconds=0.5)),
            (TimestampType(), "2026-11-24 23:00:01+01:00", AT),
            (TimestampType(), "2026-11-24T22:00:01", AT),
            (TimestampType(), "1.5", datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
            (TimestampNTZType(), "2026-11-24T22:00:01", AT.replace(tzinfo=None)),
            (
                TimestampNTZType(),
                "1.5",
                datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC).replace(tzinfo=None),
            ),
            (ArrayType(LongType()), "[1, null, 3]", [1, None, 3]),
            (MapType(TEXT, DoubleType()), '{"a": 1, "b": "NaN"}', [("a", 1.0), ("b", NAN)]),
            (OF_ALL, '{"n": 7, "more": "unknown"}', dict.fromkeys(NAMES) | {"n": 7}),
        ],
    )
    def test_a_text_becomes_a_value(self, kind: DataType, text: str, value: Any) -> None:
        found = typed([text.encode(), None], kind, str, is_permissive=False).to_pylist()
        assert found == [value, None]

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            (TEXT, b"\xff"),
            (BooleanType(), b"maybe"),
            (ByteType(), b"128"),
            (IntegerType(), b"12.0"),
            (LongType(), b"1 item"),
            (DoubleType(), b"1,5"),
            (DecimalType(4, 2), b"123.45"),
            (DateType(), b"yesterday"),
            (TimestampType(), b"inf"),
            (TimestampType(), b"24.11.2026"),
            (TimestampNTZType(), b"2026-11-24T22:00:01Z"),
            (ArrayType(LongType()), b'["a"]'),
            (ArrayType(ByteType()), b"[300]"),
            (ArrayType(LongType()), b"[true]"),
            (ArrayType(LongType()), b"[1"),
            (ArrayType(LongType()), b"[" * 100_000),
            (MapType(TEXT, TEXT), b"[]"),
            (ArrayType(DoubleType()), b"[NaN]"),
            (ArrayType(DecimalType(4, 2)), b"[123.45]"),
            (ArrayType(BinaryType()), b'["%"]'),
        ],
    )
    def test_what_does_not_fit_is_an_error_or_null(self, kind: DataType, text: bytes) -> None:
        is_time = isinstance(kind, DateType | TimestampType | TimestampNTZType)
        fits = b"1970-01-01" if is_time else b"1"
        if isinstance(kind, ArrayType | MapType):
            fits = b"{}" if isinstance(kind, MapType) else b"[]"
        values = [fits, text, None]
        with pytest.raises(ConfigurationError) as caught:
            typed(values, kind, lambda position: f"value {position}", is_permissive=False)
        assert str(caught.value).startswith(f"value 1 is no {kind.simpleString()}: read")
        assert text.decode("latin1") not in str(caught.value)
        found = typed(values, kind, str, is_permissive=True).to_pylist()
        assert found[0] is not None
        assert found[1:] == [None, None]

    def test_what_is_written_as_json_is_read_back(self) -> None:
        at, row = AT.replace(tzinfo=None), dict.fromkeys(NAMES)
        full = {
            "n": -5,
            "is_new": True,
            "name": 'ä "quoted"\n',
            "share": 0.1,
            "score": 1e-7,
            "price": Decimal("12.50"),
            "raw": b"\xff",
            "day": date(2026, 11, 24),
            "at": AT,
            "local": at,
            "tags": ["a", None],
            "counts": [("x", 1), ("y", None)],
        }
        column = pa.array([full, row, None], arrow_type(OF_ALL))
        texts = as_bytes(column)
        assert texts[0] is not None
        assert texts[0].decode() == (
            '{"n":-5,"is_new":true,"name":"ä \\"quoted\\"\\n","share":0.1,"score":1e-07,'
            '"price":12.50,"raw":"/w==","day":"2026-11-24","at":"2026-11-24T22:00:01Z",'
            '"local":"2026-11-24T22:00:01","tags":["a",null],"counts":{"x":1,"y":null}}'
        )
        assert texts[1:] == [b"{}", None]
        assert typed(texts, OF_ALL, str, is_permissive=False).equals(column)

    def test_what_is_no_number_is_read_back_too(self) -> None:
        kind = ArrayType(DoubleType())
        column = pa.array([[math.inf, -math.inf, math.nan]], arrow_type(kind))
        assert as_bytes(column) == [b'["Infinity","-Infinity","NaN"]']
        (found,) = typed(as_bytes(column), kind, str, is_permissive=False).to_pylist()
        assert found[:2] == [math.inf, -math.inf]
        assert math.isnan(found[2])

    def test_bytes_stay(self) -> None:
        values = [b"\xff", None]
        assert typed(values, BinaryType(), str, is_permissive=False).to_pylist() == values


# Names as PySpark has them; PySpark 4.0 lacks the classes.
def a_filter(name: str, column: str, value: Any = None) -> Any:
    return type(name, (), {"attribute": (column,), "value": value})()


class TestTasks:
    NODES = (("a", 1), ("b", 2), ("c", 3))

    def of(self, filters: list[Any], **options: str) -> tuple[list[Any], list[Any]]:
        """Return the tasks, and the filters that are left."""
        given = parsed(**options)
        shape = shape_of(given, schema(key=TEXT, field=TEXT, value=TEXT))
        wanted, left = sorted_out(filters, columns_of(given, shape))
        return tasks(given, pushed_of(given, wanted), lambda: list(self.NODES)), left

    def test_a_task_for_each_node_or_for_shares_of_it(self) -> None:
        found, _ = self.of([], match="item:*")
        assert found == [ScannedKeys(node, b"item:*", b"") for node in self.NODES]
        found, _ = self.of([], match="*", partitions="4")
        assert found == [
            ScannedKeys(node, None, b"", share, 2) for node in self.NODES for share in (0, 1)
        ]

    def test_names_are_divided_by_slots(self) -> None:
        names = [f"k{number}" for number in range(40)]
        found, _ = self.of([], keys=",".join(names))
        assert len(found) == 1
        found, _ = self.of([], keys=",".join(names), partitions="4")
        assert [len(part.keys) for part in found] == [10] * 4
        assert sorted(key for part in found for key in part.keys) == sorted(
            name.encode() for name in names
        )
        assert all(part.is_strict for part in found)

    def test_a_prefix_stands_before_names_and_patterns(self) -> None:
        found, _ = self.of([], keyPrefix="a[1]:", keys="x")
        assert found == [ListedKeys((b"a[1]:x",), is_strict=True)]
        found, _ = self.of([], keyPrefix="a[1]:")
        assert found[0].pattern == rb"a\[1]:*"
        found, _ = self.of([], keyPrefix="a:", match="?")
        assert found[0].pattern == b"a:?"

    def test_filters_on_the_key_become_names(self) -> None:
        filters = [
            a_filter("IsNotNull", "key"),
            a_filter("In", "key", ("item:1", "item:2", "other", None)),
            a_filter("StringStartsWith", "key", "item:"),
            a_filter("GreaterThan", "key", "item:"),
            a_filter("EqualTo", "value", "x"),
        ]
        found, left = self.of(filters, match="i*")
        assert left == filters[3:]
        (part,) = found
        assert (sorted(part.keys), part.is_strict) == ([b"item:1", b"item:2"], False)
        found, left = self.of([a_filter("EqualTo", "key", "x")], keys="x,y")
        assert (found, left) == ([ListedKeys((b"x",), is_strict=True)], [])
        found, _ = self.of([a_filter("EqualNullSafe", "key", "7")], keyPrefix="item:")
        assert found == [ListedKeys((b"item:7",), is_strict=False)]
        two = [a_filter("EqualTo", "key", "x"), a_filter("EqualTo", "key", "y")]
        assert self.of(two, match="*") == ([ListedKeys((), is_strict=False)], [])

    @pytest.mark.parametrize(
        ("match", "prefixes", "pattern"),
        [
            ("*", ["item:"], b"item:*"),
            ("item:*", ["item:1"], b"item:1*"),
            ("item:*", ["it"], b"item:*"),
            ("item:*", ["x"], b"item:*"),
            ("i?em:*", ["item:1"], b"i?em:*"),
            (r"a\*", ["a*x"], rb"a\*"),
            (r"a\**", ["a*x"], rb"a\*x*"),
            ("*", ["a", "a*"], rb"a\**"),
        ],
    )
    def test_a_prefix_narrows_a_pattern(
        self, match: str, prefixes: list[str], pattern: bytes
    ) -> None:
        filters = [a_filter("StringStartsWith", "key", prefix) for prefix in prefixes]
        found, left = self.of(filters, match=match)
        assert left == []
        assert {part.pattern for part in found} == {pattern}
        assert found[0].prefix == prefixes[-1].encode()

    def test_prefixes_that_no_key_can_have_read_nothing(self) -> None:
        filters = [a_filter("StringStartsWith", "key", prefix) for prefix in ("a", "b")]
        assert self.of(filters, match="*") == ([ListedKeys((), is_strict=False)], [])

    def test_a_number_is_not_compared_as_text(self) -> None:
        options = parsed(match="*")
        given = a_filter("EqualTo", "key", 5)
        shape = shape_of(options, schema(key=LongType(), a=TEXT))
        assert sorted_out([given], columns_of(options, shape)) == ({}, [given])

    def test_a_pattern_of_a_text(self) -> None:
        assert escaped(rb"a*[b]?\c") == rb"a\*\[b]\?\\c"
