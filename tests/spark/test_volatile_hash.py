"""The volatile hashes format: what is written is there with its deadlines, and is read back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from redis.exceptions import ResponseError

from support.hash_places import NAMESPACE, Place
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import MigrateToNative
from workstealing.recruiting import Slice
from workstealing.spark.sources.volatile_hashes import (
    VolatileHashOptions,
    VolatileHashReader,
    checked_for_writing,
    columns_of,
    write_batch,
)
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes.scanning import HashScan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(
    params=[
        ("redis7", "emulated"),
        ("redis8", "emulated"),
        ("redis8", "native"),
        ("cluster", "emulated"),
        pytest.param(("cluster8", "native"), marks=pytest.mark.cluster),
    ],
    ids="-".join,
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each kind of server, with each backend that it can have."""
    name, backend = request.param
    server: AnyServer = request.getfixturevalue(name)
    yield Place(server, backend)
    server.wipe()


def batch(**columns: Any) -> pa.RecordBatch:
    """Return an Arrow batch, as Spark hands them over."""
    return pa.record_batch(columns)


def wait_until_gone(is_gone: Callable[[], bool]) -> None:
    """Wait for a deadline some ms away, of a server whose clock nobody can set."""
    deadline = time.monotonic() + 120
    while not is_gone():
        assert time.monotonic() < deadline


# What is written


def test_rows_become_fields_with_their_deadlines(place: Place) -> None:
    rows = batch(
        key=["a", "a", "b{}x", "c"],
        field=["f", "g", "f", "f"],
        value=["1", "2", "3", "4"],
        ttl=[60.5, 60.5, 0.25e6, None],
    )
    # One command for each hash and deadline.
    assert write_batch(place.hashes(), rows) == 3
    hashes = place.hashes()
    assert hashes.hgetall("a") == {"f": "1", "g": "2"}
    left = hashes.hpttl("a", "f", "g") + hashes.hpttl("b{}x", "f")
    assert 50_000 < left[0] <= 60_500
    assert left[0] == pytest.approx(left[1], abs=5_000)
    assert 249_000_000 < left[2] <= 250_000_000
    assert hashes.hpttl("c", "f") == [-1]


def test_a_thousand_hashes_are_written_and_read_back(place: Place) -> None:
    keys = [f"item:{number % 1000}" for number in range(3000)]
    fields = [f"f{number // 1000}" for number in range(3000)]
    write_batch(place.hashes(), batch(key=keys, field=fields, value=list(range(3000))), 100.0)
    found = place.read()
    wanted = sorted(
        (key.encode(), field.encode(), b"%d" % number)
        for number, (key, field) in enumerate(zip(keys, fields, strict=True))
    )
    assert [(each.key, each.field, each.value) for each in found] == wanted
    assert all(each.left_ms and 0 < each.left_ms <= 100_000 for each in found)


def test_writing_the_same_again_changes_nothing(place: Place) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    rows = batch(key=["a", "b"], field=["f", "f"], value=["1", "2"], expire_at=[at, None])
    times = []
    for _ in range(2):
        write_batch(place.hashes(), rows)
        hashes = place.hashes()
        times.append(hashes.hpexpiretime("a", "f") + hashes.hpexpiretime("b", "f"))
        assert (hashes.hgetall("a"), hashes.hgetall("b")) == ({"f": "1"}, {"f": "2"})
    assert times[0] == times[1] == [int(at.timestamp() * 1000), -1]


def test_later_rows_replace_earlier_ones_whatever_their_deadlines(place: Place) -> None:
    rows = batch(
        key=["a"] * 4,
        field=["f", "g", "f", "g"],
        value=["old", "old", "new", "new"],
        ttl=[10.0, 20.0, 20.0, 10.0],
    )
    write_batch(place.hashes(), rows)
    assert place.hashes().hgetall("a") == {"f": "new", "g": "new"}
    first, second = place.hashes().hpttl("a", "f", "g")
    assert second <= 10_000 < first <= 20_000


def test_a_null_deadline_takes_an_earlier_one_away(place: Place) -> None:
    place.hashes().hsetex("a", "f", "1", ex=100)
    write_batch(place.hashes(), batch(key=["a"], field=["f"], value=["2"]))
    assert place.hashes().hpttl("a", "f") == [-1]


def test_a_time_that_has_passed_removes_the_field(place: Place) -> None:
    place.hashes().hset("a", mapping={"f": "1", "g": "1", "h": "1"})
    old = [datetime(2001, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)]
    rows = batch(key=["a", "a"], field=["f", "g"], value=["2", "2"], expire_at=old)
    write_batch(place.hashes(), rows)
    assert place.hashes().hgetall("a") == {"h": "1"}
    assert [each.field for each in place.read()] == ([b"h"] if place.backend == "native" else [])


def test_a_time_to_live_is_never_rounded_to_none(place: Place) -> None:
    write_batch(place.hashes(), batch(key=["a"], field=["f"], value=["1"], ttl=[0.0001]))
    hashes = place.hashes()
    wait_until_gone(lambda: hashes.hget("a", "f") is None)


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([1, -(2**63)], pa.int64(), ["1", "-9223372036854775808"]),
        ([7], pa.uint8(), ["7"]),
        ([0.1, 1e300, 2.0], pa.float64(), ["0.1", "1e+300", "2.0"]),
        ([0.1, 2.0], pa.float32(), ["0.1", "2.0"]),
        ([Decimal("12.50"), Decimal("0.00")], pa.decimal128(10, 2), ["12.50", "0.00"]),
        (["ä", ""], pa.string(), ["ä", ""]),
        (["ä"], pa.large_string(), ["ä"]),
        ([b"x"], pa.large_binary(), ["x"]),
    ],
)
def test_values_are_written_as_redis_would_hold_them(
    redis7: RedisServer, values: list[Any], kind: pa.DataType, texts: list[str]
) -> None:
    hashes = VolatileHashes(redis7.client(decode_responses=True), NAMESPACE)
    fields = [str(number) for number in range(len(values))]
    write_batch(
        hashes, batch(key=["a"] * len(values), field=fields, value=pa.array(values, kind)), 9.0
    )
    assert hashes.hmget("a", fields) == texts


def test_bytes_are_kept_as_they_are(redis7: RedisServer) -> None:
    hashes = VolatileHashes(redis7.client(), NAMESPACE)
    write_batch(hashes, batch(key=[b"\xff"], field=[b"\xfe"], value=[b"\x00\xfd"]), 9.0)
    assert hashes.hgetall(b"\xff") == {b"\xfe": b"\x00\xfd"}


def test_large_batches_are_sent_in_several_round_trips(redis7: RedisServer) -> None:
    hashes = VolatileHashes(redis7.client(), NAMESPACE)
    many = 1_300
    rows = batch(key=["a"] * many, field=[str(n) for n in range(many)], value=["x" * 9_000] * many)
    assert write_batch(hashes, rows, 60.0) == 3
    assert hashes.hlen("a") == many


def test_no_command_is_larger_than_a_call(redis7: RedisServer) -> None:
    hashes = VolatileHashes(redis7.client(), NAMESPACE)
    sizes = [1_500_000] * 5 + [6_000_000] + [10] * 3
    rows = batch(
        key=["a"] * len(sizes),
        field=[str(n) for n in range(len(sizes))],
        value=["x" * size for size in sizes],
    )
    assert write_batch(hashes, rows, 60.0) == 5
    assert [hashes.hstrlen("a", str(n)) for n in range(len(sizes))] == sizes


GOOD = {"key": ["a", "b"], "field": ["f", "f"], "value": ["1", "2"]}
LATE = datetime(4200, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"key": ["a", None]}, "row 2 of a batch: the key is null"),
        ({"field": ["f", None]}, "row 2 of a batch: the field of the key b'b' is null"),
        ({"value": ["1", None]}, "row 2 of a batch: the value of the key b'b' is null"),
        ({"ttl": [1.0, math.nan]}, "row 2 of a batch: the ttl of the key b'b' is nan"),
        ({"ttl": [1.0, math.inf]}, "the ttl of the key b'b' is inf"),
        ({"ttl": [1.0, 0.0]}, "the ttl of the key b'b' is 0.0: give seconds above 0"),
        ({"ttl": [1, -1]}, "the ttl of the key b'b' is -1"),
        ({"ttl": [1.0, 1e11]}, "the ttl of the key b'b' is 100000000000.0"),
        ({"expire_at": [None, LATE]}, "the expire_at of the key b'b' is beyond the year 4199"),
    ],
)
def test_one_bad_row_and_nothing_of_its_batch_is_written(
    redis7: RedisServer, bad: dict[str, Any], problem: str
) -> None:
    hashes = VolatileHashes(redis7.client(), NAMESPACE)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        write_batch(hashes, batch(**{**GOOD, **bad}))
    assert "nothing of the batch was written" in str(caught.value)
    assert redis7.client().dbsize() == 0


def test_what_is_no_hash_is_named(place: Place) -> None:
    place.server.client().set("b", "a string")
    with pytest.raises(ResponseError, match=r"the hash b'b' was not written: .*WRONGTYPE"):
        write_batch(place.hashes(), batch(**GOOD), 9.0)
    assert place.server.client().get("b") == b"a string"


@pytest.mark.parametrize(
    ("schema", "options", "overwrite", "problem"),
    [
        ("key string, value string", {}, False, "the column 'field' is missing from key, value"),
        ("key int, field string, value string", {}, False, "'key' has the type int"),
        ("key string, field string, value boolean", {}, False, "'value' has the type boolean"),
        ("key string, field string, value int, ttl string", {}, False, "'ttl' has the type string"),
        (
            "key string, field string, value int, expire_at timestamp_ntz",
            {},
            False,
            "'expire_at' has the type timestamp_ntz: give a timestamp .with time zone",
        ),
        ("key string, field string, value int, TTL int", {}, False, "'TTL' is unknown"),
        (
            "key string, field string, value int, ttl int, expire_at timestamp",
            {},
            False,
            "ttl and expire_at are given",
        ),
        (
            "key string, field string, value int, ttl int",
            {"ttlSeconds": "5"},
            False,
            "ttl and the option 'ttlSeconds' are given",
        ),
        ("key string, field string, value int", {"match": "*"}, False, "'match' is for reading"),
        ("key string, field string, value int", {}, True, "only appends"),
    ],
)
def test_columns_and_options_are_checked_before_anything_is_asked(
    spark: SparkSession, schema: str, options: dict[str, str], overwrite: bool, problem: str
) -> None:
    # Nobody listens there: whoever asked would get another error.
    parsed = VolatileHashOptions.parse(
        {"namespace": NAMESPACE, "url": "redis://127.0.0.1:1", **options}
    )
    with pytest.raises(ConfigurationError, match=problem):
        checked_for_writing(parsed, StructType.fromDDL(schema), overwrite)


# What is read


def test_expired_fields_never_appear(place: Place) -> None:
    hashes = place.hashes()
    hashes.hsetex("a", mapping={"soon": "1"}, px=40)
    hashes.hsetex("a", mapping={"late": "2"}, ex=500)
    hashes.hsetex("gone", mapping={"soon": "1"}, px=40)
    wait_until_gone(
        lambda: hashes.hget("a", "soon") is None and hashes.hget("gone", "soon") is None
    )
    (only,) = place.read()
    assert (only.key, only.field, only.value) == (b"a", b"late", b"2")
    assert only.left_ms is not None
    assert 400_000 < only.left_ms <= 500_000


def test_a_large_hash_is_read_by_pages(place: Place) -> None:
    hashes = place.hashes()
    many = 5_000
    hashes.hsetex("large", mapping={f"f{n}": n for n in range(many)}, ex=500)
    hashes.hset("large", "lasting", "x")
    found = place.read()
    assert {each.field for each in found} == {b"f%d" % n for n in range(many)} | {b"lasting"}
    assert [each.left_ms for each in found if each.field == b"lasting"] == [None]
    assert max(map(len, place.pages())) < 1_000


def test_a_pattern_picks_the_hashes(place: Place) -> None:
    hashes = place.hashes()
    for key in ("a:1", "a:2", "b:1"):
        hashes.hsetex(key, "f", "1", ex=500)
    assert [each.key for each in place.read("a:*")] == [b"a:1", b"a:2"]


def test_an_absent_namespace_is_refused_and_not_taken_for_an_empty_one(place: Place) -> None:
    reader = reader_of(place)
    with pytest.raises(LayoutError, match=r"there is no namespace '.+' on this server: see"):
        reader.partitions()
    assert place.server.client().dbsize() == 0
    # As the sentence says.
    place.hashes().open()
    assert not any(list(reader.read(each)) for each in reader.partitions())


def test_what_has_become_something_else_is_passed_over(place: Place) -> None:
    place.hashes().hsetex("a", "f", "1", ex=500)
    place.hashes().hsetex("b", "f", "1", ex=500)
    client = place.server.client()
    client.delete("b")
    client.set("b", "a string")
    assert [each.key for each in place.read()] == [b"a"]


def test_a_foreign_due_index_is_an_error(redis7: RedisServer) -> None:
    place = Place(redis7, "emulated")
    hashes = place.hashes()
    hashes.hsetex("a", "f", "1", ex=500)
    for shard in range(16):
        redis7.client().set(hashes.names.due(shard), "foreign")
    with pytest.raises(LayoutError, match="does not hold a due index of the namespace 'items'"):
        place.read()


def test_a_native_namespace_needs_a_pattern(redis8: RedisServer) -> None:
    place = Place(redis8, "native")
    place.hashes().hsetex("a", "f", "1", ex=500)
    with pytest.raises(ConfigurationError, match=r"is native and has no due index .* as match"):
        HashScan(place.hashes()).layout()


def test_a_namespace_that_is_being_migrated_is_not_read(redis8: RedisServer) -> None:
    place = Place(redis8, "emulated")
    emulated = place.hashes()
    for number in range(50):
        emulated.hsetex(f"k{number}", "f", "1", ex=500)
    hashes = VolatileHashes(redis8.client(), NAMESPACE)
    MigrateToNative(hashes, limit=1).perform(Slice(1, 5.0))
    with pytest.raises(LayoutError, match="is being migrated"):
        HashScan(VolatileHashes(redis8.client(), NAMESPACE), "*").layout()


def test_partitions_follow_index_shards_and_nodes(place: Place) -> None:
    hashes = place.hashes()
    for number in range(200):
        hashes.hsetex(f"k{number}", "f", "1", ex=500)
    few, many = (reader_of(place, partitions=n).partitions() for n in ("2", "50"))
    if place.backend == "native":
        # As many shares of each node as give that many tasks, or somewhat more.
        assert (len(few), len(many)) == ((3, 51) if place.server.is_cluster else (2, 50))
    else:
        assert (len(few), len(many)) == (2, 50 if place.server.is_cluster else 16)
    for parts in (few, many):
        reader = reader_of(place)
        keys = [
            key
            for part in parts
            for each in reader.read(part)
            for key in each.column("key").to_pylist()
        ]
        assert sorted(keys) == sorted(f"k{number}" for number in range(200))


def test_what_is_no_text_needs_binary_columns(redis7: RedisServer) -> None:
    place = Place(redis7, "emulated")
    place.hashes().hsetex(b"\xff", "f", "1", ex=500)
    place.hashes().hsetex("a", "f", b"se\xffcret", ex=500)
    with pytest.raises(ConfigurationError, match=r"the option (names|values)=binary"):
        read_all(place)
    with pytest.raises(ConfigurationError, match="a value of the key b'a', field b'f'") as caught:
        read_all(place, names="binary")
    assert "cret" not in str(caught.value)
    rows = read_all(place, names="binary", values="binary")
    assert sorted(row["value"] for row in rows) == [b"1", b"se\xffcret"]


def reader_of(place: Place, **options: str) -> VolatileHashReader:
    """Return a reader as Spark makes one."""
    match = {"match": "*"} if place.backend == "native" else {}
    parsed = VolatileHashOptions.parse({"path": NAMESPACE, **place.options, **match, **options})
    return VolatileHashReader(parsed, columns_of(parsed))


def read_all(place: Place, **options: str) -> list[dict[str, Any]]:
    """Return all rows, read as Spark does."""
    reader = reader_of(place, **options)
    return [
        row
        for part in reader.partitions()
        for each in reader.read(part)
        for row in each.to_pylist()
    ]
