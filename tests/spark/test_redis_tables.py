"""``format("workstealing.redis")`` on a server and a cluster, without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from redis.exceptions import ResponseError

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.errors import ConfigurationError, Moved
from workstealing.spark.sources import (
    pipelines,
    pushing,
    redis_keys,
    redis_packing,
    redis_reading,
    redis_remembering,
    redis_writing,
)
from workstealing.spark.sources.compat import DataSourceReader
from workstealing.spark.sources.pipelines import KeyCalls
from workstealing.spark.sources.redis import RedisReader, RedisSource
from workstealing.spark.sources.redis_keys import matcher
from workstealing.spark.sources.redis_writing import WrittenKeys

Server = RedisServer | RedisCluster3
TEXT, NUMBER = StringType(), DoubleType()


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """All keys on one server, and keys on several."""
    found: Server = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


def source_of(server: Server, kind: str, **options: Any) -> RedisSource:
    """Return the source with options as Spark hands them over, as texts."""
    given = {"url": server.url, "type": kind, **options}
    return RedisSource({name: str(value) for name, value in given.items()})


def write(server: Server, kind: str, columns: StructType, *batches: Any, **options: Any) -> Any:
    """Write batches, columns by their names, as one task."""
    source = source_of(server, kind, **options)
    writer = source.writer(columns, overwrite=False)
    return writer.write(pa.record_batch(batch) for batch in batches)


def reader(
    server: Server, kind: str, columns: StructType | None = None, **options: Any
) -> RedisReader:
    source = source_of(server, kind, **options)
    return source.reader(columns or source.schema())


def rows_of(reading: RedisReader) -> list[tuple[Any, ...]]:
    """Return the rows of all tasks, sorted."""
    return sorted(
        (
            tuple(row.values())
            for part in reading.partitions()
            for batch in reading.read(part)
            for row in batch.to_pylist()
        ),
        key=repr,
    )


def read(server: Server, kind: str, *args: Any, **options: Any) -> list[tuple[Any, ...]]:
    return rows_of(reader(server, kind, *args, **options))


def calls_of(server: Server, command: str) -> int:
    """Return how often the nodes have run a command since they were asked to forget."""
    nodes = server.nodes if isinstance(server, RedisCluster3) else [server]
    stats = [node.client().info("commandstats") for node in nodes]
    return sum(each.get(f"cmdstat_{command}", {"calls": 0})["calls"] for each in stats)


def forget_calls(server: Server) -> None:
    for node in server.nodes if isinstance(server, RedisCluster3) else [server]:
        node.client().config_resetstat()


class TestEachType:
    def test_strings(self, server: Server) -> None:
        columns = schema(key=TEXT, value=TEXT, ttl=NUMBER)
        rows = {"key": ["a", "b", "a"], "value": ["1", "2", "3"], "ttl": [None, 100.5, None]}
        assert write(server, "string", columns, rows) == WrittenKeys(3, 3)
        client = server.client()
        assert (client.get("a"), client.get("b")) == (b"3", b"2")
        assert 0 < client.pttl("b") <= 100_500
        found = read(server, "string", match="*")
        assert [row[:2] for row in found] == [("a", "3"), ("b", "2")]
        assert found[0][2] is None
        assert 0 < found[1][2] <= 100.5
        values = schema(value=IntegerType())
        assert read(server, "string", values, match="*") == [(2,), (3,)]

    def test_hashes_as_columns(self, server: Server) -> None:
        at = datetime(2026, 11, 24, 22, tzinfo=UTC)
        columns = schema(
            id=LongType(),
            name=TEXT,
            price=NUMBER,
            is_new=BooleanType(),
            seen=TimestampType(),
        )
        batch = {
            "id": pa.array([1, 2], pa.int64()),
            "name": ["ä", None],
            "price": [0.1, None],
            "is_new": [True, False],
            "seen": pa.array([at, None], pa.timestamp("us", tz="Europe/Berlin")),
        }
        given = {"keyPrefix": "item:", "keyColumn": "id"}
        assert write(server, "hash", columns, batch, **given) == WrittenKeys(2, 2)
        assert server.client().hgetall("item:1") == {
            b"name": "ä".encode(),
            b"price": b"0.1",
            b"is_new": b"true",
            b"seen": b"2026-11-24T22:00:00Z",
        }
        # A null leaves a field out.
        assert server.client().hgetall("item:2") == {b"is_new": b"false"}
        assert read(server, "hash", columns, **given) == [
            (1, "ä", 0.1, True, at),
            (2, None, None, False, None),
        ]

    def test_hashes_as_rows(self, server: Server) -> None:
        # The columns stand in another order than the default one.
        columns = schema(value=TEXT, key=TEXT, field=TEXT)
        batch = {"value": ["1", "2", "3"], "key": ["a", "b", "a"], "field": ["f", "f", "f"]}
        assert write(server, "hash", columns, batch) == WrittenKeys(3, 2)
        assert read(server, "hash", match="*") == [("a", "f", "3"), ("b", "f", "2")]

    def test_lists(self, server: Server) -> None:
        columns = schema(key=TEXT, value=TEXT)
        batch = {"key": ["a", "b", "a"], "value": ["1", "2", "3"]}
        assert write(server, "list", columns, batch, batch) == WrittenKeys(6, 4)
        assert server.client().lrange("a", 0, -1) == [b"1", b"3", b"1", b"3"]
        assert read(server, "list", match="b") == [("b", 0, "2"), ("b", 1, "2")]
        copied = schema(key=TEXT, position=LongType(), value=TEXT)
        turned = {"key": ["a"] * 3, "position": [2, 0, 1], "value": ["z", "x", "y"]}
        write(server, "list", copied, turned, writeMode="overwrite")
        assert read(server, "list", match="a") == [("a", 0, "x"), ("a", 1, "y"), ("a", 2, "z")]

    def test_sets_and_sorted_sets(self, server: Server) -> None:
        members = {"key": ["s", "s", "t"], "member": ["1", "2", "1"]}
        write(server, "set", schema(key=TEXT, member=TEXT), members, members)
        assert read(server, "set", match="*") == [("s", "1"), ("s", "2"), ("t", "1")]
        scored = {"key": ["z", "z"], "member": ["a", "b"], "score": [0.1, float("inf")]}
        write(server, "zset", schema(key=TEXT, member=TEXT, score=NUMBER), scored, scored)
        found = read(server, "zset", match="*")
        assert found == [("z", "a", 0.1), ("z", "b", float("inf"))]

    def test_streams(self, server: Server) -> None:
        columns = schema(key=TEXT, user=TEXT, at=LongType())
        batch = {"key": ["q", "q"], "user": ["x", "y"], "at": pa.array([1, None], pa.int64())}
        write(server, "stream", columns, batch)
        client = server.client()
        entries = client.xrange("q")
        assert [fields for _, fields in entries] == [{b"user": b"x", b"at": b"1"}, {b"user": b"y"}]
        client.xadd("q", {"user": "z"})
        found = reader(server, "stream", match="*")
        assert [dict(row[2]) for row in rows_of(found)] == [
            {"user": "x", "at": "1"},
            {"user": "y"},
            {"user": "z"},
        ]
        named = schema(id=TEXT, at=LongType(), user=TEXT)
        ids = [entry_id.decode() for entry_id, _ in client.xrange("q")]
        assert read(server, "stream", named, keys="q") == [
            (ids[0], 1, "x"),
            (ids[1], None, "y"),
            (ids[2], None, "z"),
        ]
        # A stream is copied with its ids.
        whole = schema(key=TEXT, id=TEXT, fields=MapType(TEXT, TEXT))
        (copy,) = reader(server, "stream", match="q").read(
            reader(server, "stream", keys="q").partitions()[0]
        )
        given = {"keyPrefix": "copy:", "writeMode": "overwrite"}
        for _ in range(2):
            source = source_of(server, "stream", **given)
            source.writer(whole, overwrite=False).write(iter([copy]))
        assert client.xrange("copy:q") == client.xrange("q")

    def test_a_stream_is_kept_short(self, redis7: RedisServer) -> None:
        columns = schema(key=TEXT, n=LongType())
        batch = {"key": ["q"] * 1000, "n": list(range(1000))}
        write(redis7, "stream", columns, batch, maxLength=100)
        assert 100 <= redis7.client().xlen("q") < 400


class TestReading:
    def test_a_thousand_keys_come_once_each_from_several_tasks(self, server: Server) -> None:
        keys = [f"item:{number}" for number in range(1000)]
        columns = schema(key=TEXT, n=LongType())
        write(server, "hash", columns, {"key": keys, "n": list(range(1000))})
        server.client().set("item:string", "of another type")
        wanted = sorted(((key, n) for n, key in enumerate(keys)), key=repr)
        nodes = 3 if isinstance(server, RedisCluster3) else 1
        for partitions in (None, 6):
            given = {} if partitions is None else {"partitions": partitions}
            reading = reader(server, "hash", columns, match="item:*", **given)
            assert len(reading.partitions()) == (partitions or max(nodes, 2))
            assert rows_of(reading) == wanted
        reading = reader(server, "hash", columns, keys=keys, partitions=5)
        assert len(reading.partitions()) == 5
        assert rows_of(reading) == wanted

    def test_large_keys_come_page_by_page(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_reading, "ELEMENTS_A_PAGE", 10)
        many = [str(number) for number in range(700)]
        client = server.client()
        client.rpush("l", *many)
        client.sadd("s", *many)
        client.zadd("z", dict(zip(many, range(700), strict=True)))
        client.hset("h", mapping={each: each for each in many})
        for each in many[:95]:
            client.xadd("x", {"n": each})
        forget_calls(server)
        assert [row[1:] for row in sorted(read(server, "list", match="*"), key=lambda r: r[1])] == [
            (number, str(number)) for number in range(700)
        ]
        assert {row[1] for row in read(server, "set", match="*")} == set(many)
        assert {row[1:] for row in read(server, "zset", match="*")} == {
            (each, float(each)) for each in many
        }
        assert {row[1:] for row in read(server, "hash", match="*")} == {
            (each, each) for each in many
        }
        entries = {int(dict(row[2])["n"]): row[1] for row in read(server, "stream", match="*")}
        assert sorted(entries) == list(range(95))
        for command in ("smembers", "hgetall", "keys"):
            assert calls_of(server, command) == 0
        assert calls_of(server, "lrange") == 71
        assert calls_of(server, "xrange") == 10
        assert min(calls_of(server, each) for each in ("sscan", "zscan", "hscan")) > 30

    def test_keys_that_are_missing_or_of_another_type(self, server: Server) -> None:
        client = server.client()
        client.hset("h", "a", "1")
        client.set("s", "secret value")
        columns = schema(key=TEXT, a=TEXT, b=TEXT)
        # A hash without the field is there; a key that is not there makes no row.
        assert read(server, "hash", columns, keys="h,none") == [("h", "1", None)]
        with pytest.raises(ConfigurationError) as caught:
            read(server, "hash", columns, keys="h,s")
        assert "the key b's' is a string, and type=hash is given" in str(caught.value)
        assert "secret" not in str(caught.value)

    def test_a_key_that_goes_meanwhile_makes_no_row(self, server: Server) -> None:
        client = server.client()
        for key in ("a", "b", "c"):
            client.hset(key, "x", "1")
        reading = reader(server, "hash", schema(key=TEXT, x=TEXT, ttl=NUMBER), match="*")

        class Late(KeyCalls):
            def on_keys(self, groups: Any) -> Any:
                # Found by the scan, and then gone, or another type.
                client.delete("a", *["b"] if not isinstance(server, RedisCluster3) else ())
                client.delete("b")
                client.set("b", "now a string")
                return super().on_keys(groups)

        calls = Late(client)
        found = redis_reading.PlainRead(reading._options, reading._shape, None, calls)
        rows = [
            row
            for part in reading.partitions()
            for batch in found.of_part(part)  # type: ignore[arg-type]
            for row in batch.to_pylist()
        ]
        assert rows == [{"key": "c", "x": "1", "ttl": None}]

    def test_a_value_that_does_not_fit(self, server: Server) -> None:
        server.client().hset("item:1", mapping={"n": "12", "m": "top secret"})
        columns = schema(key=TEXT, n=LongType(), m=LongType())
        with pytest.raises(ConfigurationError) as caught:
            read(server, "hash", columns, match="*")
        said = str(caught.value)
        assert "a value of the hash b'item:1', column 'm', is no bigint" in said
        assert "mode=permissive" in said
        assert "secret" not in said
        assert read(server, "hash", columns, match="*", mode="permissive") == [("item:1", 12, None)]

    def test_columns_that_are_not_asked_for_are_not_read(self, server: Server) -> None:
        write(
            server,
            "hash",
            schema(key=TEXT, a=TEXT, b=TEXT),
            {"key": ["k1", "k2"], "a": ["1", "2"], "b": ["x" * 1000] * 2},
        )
        forget_calls(server)
        assert read(server, "hash", schema(key=TEXT), match="*") == [("k1",), ("k2",)]
        assert calls_of(server, "hmget") + calls_of(server, "hscan") == 0
        assert read(server, "hash", schema(a=TEXT), match="*") == [("1",), ("2",)]
        assert (calls_of(server, "hmget"), calls_of(server, "hscan")) == (2, 0)
        server.client().set("s", "v")
        forget_calls(server)
        assert read(server, "string", schema(key=TEXT), match="*") == [("s",)]
        assert calls_of(server, "get") + calls_of(server, "mget") + calls_of(server, "pttl") == 0

    def test_chunks_shrink_for_large_values(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_reading, "BYTES_A_CALL", 100_000)
        columns = schema(key=TEXT, value=TEXT)
        batch = {"key": [f"k{n}" for n in range(300)], "value": ["x" * 10_000] * 300}
        write(redis7, "string", columns, batch)
        forget_calls(redis7)
        assert len(read(redis7, "string", columns, match="*", partitions=1)) == 300
        # The first 100 at once, and then by nine.
        assert calls_of(redis7, "mget") > 20

    def test_patterns_are_read_as_the_server_reads_them(self, redis7: RedisServer) -> None:
        client = redis7.client()
        keys = ["a", "ab", "abc", "a*c", "a[c", "a-c", "^", "b^", "a\nc", "a\\c", "]", "ä", "z"]
        client.mset(dict.fromkeys(keys, "1"))
        pieces = [
            "a",
            "*",
            "?",
            "[a-c]",
            "[^a]",
            "[c-a]",
            r"\*",
            "[]",
            "[^]",
            "[b",
            r"[\]]",
            "[-^]",
        ]
        patterns = ["".join(each) for each in product(pieces, repeat=2)] + pieces + ["[a-", "a\\"]
        for pattern in patterns:
            wanted = sorted(client.scan_iter(match=pattern, count=1000))
            found = [
                key.encode() for key in keys if matcher(pattern.encode()).fullmatch(key.encode())
            ]
            assert sorted(found) == wanted, pattern


OF_KINDS: dict[str, dict[str, DataType]] = {
    "hash": {"f": TEXT},
    "list": {"value": TEXT},
    "set": {"member": TEXT},
    "zset": {"member": TEXT, "score": NUMBER},
    "stream": {"f": TEXT},
}


class TestWriting:
    def test_appending_keeps_and_overwriting_replaces(self, server: Server) -> None:
        client = server.client()
        columns = schema(key=TEXT, a=TEXT)
        for mode, kept in (("append", True), ("overwrite", False)):
            client.hset("k", mapping={"a": "0", "old": "1"})
            client.expire("k", 1000)
            client.hset("other", "a", "0")
            batch = {"key": ["k", "k"], "a": ["1", "2"]}
            write(server, "hash", columns, batch, writeMode=mode)
            found = client.hgetall("k")
            assert found == ({b"a": b"2", b"old": b"1"} if kept else {b"a": b"2"})
            assert (client.ttl("k") > 0) is kept
            # Keys that the DataFrame does not have stay.
            assert client.hgetall("other") == {b"a": b"0"}

    @pytest.mark.parametrize(
        ("kind", "columns", "batch"),
        [
            ("list", {"value": TEXT}, {"value": ["new"]}),
            ("set", {"member": TEXT}, {"member": ["new"]}),
            ("zset", {"member": TEXT, "score": NUMBER}, {"member": ["new"], "score": [1.0]}),
            ("stream", {"f": TEXT}, {"f": ["new"]}),
            ("hash", {"field": TEXT, "value": TEXT}, {"field": ["f"], "value": ["new"]}),
            ("hash", {"f": TEXT}, {"f": ["new"]}),
            ("string", {"value": TEXT}, {"value": ["new"]}),
        ],
    )
    def test_a_key_is_replaced_whatever_it_was(
        self, server: Server, kind: str, columns: dict[str, DataType], batch: dict[str, Any]
    ) -> None:
        client = server.client()
        for old in ("string", "set"):
            client.delete("k")
            client.set("k", "old") if old == "string" else client.sadd("k", "old")
            given = {"writeMode": "overwrite", "ttlSeconds": 1000}
            for _ in range(2):
                write(server, kind, schema(key=TEXT, **columns), {"key": ["k"], **batch}, **given)
                assert client.type("k") == kind.encode()
                assert 0 < client.ttl("k") <= 1000
                (row,) = read(server, kind, match="*")
                assert "old" not in str(row)

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_a_key_that_cannot_have_its_time_to_live_is_not_written(
        self, start_redis: Any, mode: str
    ) -> None:
        server = start_redis(7)
        client = server.client()
        # As if the task died between both commands: what was written would stay for ever.
        client.execute_command("ACL", "SETUSER", "default", "-pexpire")
        for kind, columns in (*OF_KINDS.items(), ("stream", {"id": TEXT, "f": TEXT})):
            batch: dict[str, list[Any]] = {name: ["1"] for name in columns} | {"key": [kind]}
            if kind == "zset":
                batch["score"] = [1.0]
            with pytest.raises(ResponseError, match=f"the {kind} b'{kind}' was not written"):
                write(
                    server, kind, schema(key=TEXT, **columns), batch, writeMode=mode, ttlSeconds=9
                )
        assert server.size() == 0

    @pytest.mark.parametrize("mode", ["packed", "one by one"])
    def test_a_key_of_another_type_gets_no_deadline(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, mode: str
    ) -> None:
        client = server.client()
        if mode == "one by one":
            monkeypatch.setattr(redis_packing, "packed_rows", lambda *_: None)
        for kind, columns in OF_KINDS.items():
            if kind == "string":
                continue
            client.set("foreign", "of another program")
            batch: dict[str, list[Any]] = {name: ["1", "1"] for name in columns}
            batch["key"] = ["ours", "foreign"]
            if kind == "zset":
                batch["score"] = [1.0, 2.0]
            with pytest.raises(ResponseError, match=f"the {kind} b'foreign' was not written"):
                write(server, kind, schema(key=TEXT, **columns), batch, ttlSeconds=1000)
            assert client.get("foreign") == b"of another program"
            assert client.ttl("foreign") == -1
            assert 0 < client.ttl("ours") <= 1000
            client.delete("ours")

    @pytest.mark.parametrize("most", [{}, {"maxLength": 1000}])
    def test_a_stream_that_refuses_an_id_gets_no_deadline(
        self, server: Server, most: dict[str, int]
    ) -> None:
        client = server.client()
        client.xadd("foreign", {"of": "another program"}, "9-9")
        client.xadd("foreign", {"of": "another program"}, "9-10")
        columns = schema(key=TEXT, id=TEXT, f=TEXT)
        for keys, ids in ((["ours", "foreign"], ["1-1", "9-9"]), (["foreign"], ["9" * 20])):
            batch = {"key": keys, "id": ids, "f": ["1"] * len(keys)}
            with pytest.raises(ResponseError, match="the stream b'foreign' was not written"):
                write(server, "stream", columns, batch, ttlSeconds=1000, **most)
            assert client.ttl("foreign") == -1
            assert client.xlen("foreign") == 2
        assert 0 < client.ttl("ours") <= 1000

    def test_a_stream_that_takes_some_ids_has_its_deadline(self, server: Server) -> None:
        client = server.client()
        count = 1_200
        ids = [f"{n}-1" for n in range(1, count + 1)]
        batch = {"key": ["s"] * count, "id": [*ids[:-1], "5-1"], "f": ["1"] * count}
        columns = schema(key=TEXT, id=TEXT, f=TEXT)
        with pytest.raises(ResponseError, match=r"the stream b's' was not written: .*equal or"):
            write(server, "stream", columns, batch, ttlSeconds=1000)
        assert 0 < client.ttl("s") <= 1000
        assert [entry_id.decode() for entry_id, _ in client.xrange("s")] == ids[:-1]
        client.delete("s")
        batch["id"] = [*ids[:-1], None]
        batch["ttl"] = [None] * (count - 1) + [50.0]
        write(server, "stream", schema(key=TEXT, id=TEXT, f=TEXT, ttl=NUMBER), batch, maxLength=700)
        assert 0 < client.ttl("s") <= 50
        assert client.xrevrange("s", count=2)[1][0].decode() == ids[-2]
        assert 700 <= client.xlen("s") < 900

    def test_a_key_without_a_value_left_goes(self, redis7: RedisServer) -> None:
        redis7.client().hset("k", "a", "1")
        batch = {"key": ["k"], "a": pa.array([None], pa.string())}
        columns = schema(key=TEXT, a=TEXT)
        assert write(redis7, "hash", columns, batch) == WrittenKeys(1, 0)
        assert redis7.client().hgetall("k") == {b"a": b"1"}
        write(redis7, "hash", columns, batch, writeMode="overwrite")
        assert redis7.size() == 0

    def test_rows_of_a_replaced_key_are_gathered_over_batches(self, server: Server) -> None:
        columns = schema(key=TEXT, value=TEXT)
        client = server.client()
        client.rpush("b", "old")
        batches = [
            {"key": ["a", "b"], "value": ["1", "2"]},
            {"key": ["b", "b"], "value": ["3", "4"]},
            {"key": ["b", "c"], "value": ["5", "6"]},
        ]
        write(server, "list", columns, *batches, writeMode="overwrite")
        assert client.lrange("b", 0, -1) == [b"2", b"3", b"4", b"5"]
        assert (client.lrange("a", 0, -1), client.lrange("c", 0, -1)) == ([b"1"], [b"6"])
        apart = [*batches, {"key": ["a"], "value": ["7"]}]
        with pytest.raises(ConfigurationError, match=r"rows of the key b'a' stand apart.*repartit"):
            write(server, "list", columns, *apart, writeMode="overwrite")

    @pytest.mark.parametrize("rows_a_batch", [1, 2, 5, 100])
    def test_rows_that_stand_apart_are_an_error_whatever_the_batches(
        self, redis7: RedisServer, rows_a_batch: int
    ) -> None:
        columns = schema(key=TEXT, value=TEXT)
        keys = ["b", "c", "b", "a"]
        batches = [
            {
                "key": keys[at : at + rows_a_batch],
                "value": ["1"] * len(keys[at : at + rows_a_batch]),
            }
            for at in range(0, len(keys), rows_a_batch)
        ]
        with pytest.raises(ConfigurationError, match=r"rows of the key b'b' stand apart.*repartit"):
            write(redis7, "list", columns, *batches, writeMode="overwrite")

    @pytest.mark.parametrize("kind", ["text", "number"])
    def test_more_keys_than_a_task_remembers_must_come_sorted(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        monkeypatch.setattr(redis_remembering, "MOST_REMEMBERED", 1000)
        numbers = list(range(90, 130)) if kind == "number" else list(range(100, 140))
        keys: list[Any] = numbers if kind == "number" else [str(each) for each in numbers]
        columns = schema(key=LongType() if kind == "number" else TEXT, value=TEXT)

        def batches(keys: list[Any]) -> list[dict[str, Any]]:
            return [
                {"key": keys[at : at + 7], "value": ["x"] * len(keys[at : at + 7])}
                for at in range(0, len(keys), 7)
            ]

        twice = [key for key in keys for _ in range(2)]
        write(redis7, "list", columns, *batches(twice), writeMode="overwrite")
        assert redis7.client().dbsize() == 40
        assert redis7.client().llen(str(keys[0])) == 2
        for wrong in (twice[::-1], [*twice, keys[0]], [*twice[4:8], *twice[:4], *twice[8:]]):
            with pytest.raises(ConfigurationError, match=r"not sorted.*sortWithinPartitions"):
                write(redis7, "list", columns, *batches(wrong), writeMode="overwrite")

    def test_a_key_that_is_too_large_to_replace(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_writing, "MOST_OF_A_KEY", 1 << 20)
        redis7.client().rpush("k", "old")
        batch = {"key": ["k"] * 20, "value": ["x" * 60_000] * 20}
        with pytest.raises(ConfigurationError, match="more than 1 MiB"):
            write(redis7, "list", schema(key=TEXT, value=TEXT), batch, writeMode="overwrite")
        assert redis7.client().lrange("k", 0, -1) == [b"old"]

    def test_commands_and_calls_are_bounded(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pipelines, "FIELDS_A_COMMAND", 10)
        monkeypatch.setattr(pipelines, "COMMANDS_A_CALL", 4)
        sent: list[int] = []
        on_keys = KeyCalls.on_keys

        def noted(self: KeyCalls, groups: Any) -> Any:
            sent.append(sum(len(commands) for _, commands in groups))
            return on_keys(self, groups)

        monkeypatch.setattr(KeyCalls, "on_keys", noted)
        batch = {"key": ["s"] * 95, "member": [str(number) for number in range(95)]}
        assert write(redis7, "set", schema(key=TEXT, member=TEXT), batch) == WrittenKeys(95, 10)
        assert sent == [4, 4, 2]
        assert redis7.client().scard("s") == 95

    @pytest.mark.parametrize(
        ("kind", "batch", "problem"),
        [
            ("hash", {"key": ["a", None], "f": ["1", "2"]}, "row 2 of a batch: the key is null"),
            ("set", {"key": ["a", "b"], "member": ["1", None]}, "the member of the key b'b' is nu"),
            ("stream", {"key": ["a", "b"], "f": ["1", None]}, "stream b'b' has no field that is"),
            (
                "hash",
                {"key": ["a", "b"], "f": ["1", "2"], "ttl": [1.0, 0.0]},
                "time to live of the key b'b' is 0.0",
            ),
            ("hash", {"key": ["a", "ws:x:layout"], "f": ["1", "2"]}, "one of workstealing's own"),
            (
                "zset",
                {"key": ["a", "b"], "member": ["1", "2"], "score": [1.0, float("nan")]},
                "row 2 of a batch: the score of a member of b'b' is NaN",
            ),
        ],
    )
    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_a_bad_row_writes_nothing_of_its_batch(
        self, redis7: RedisServer, kind: str, batch: dict[str, Any], problem: str, mode: str
    ) -> None:
        numbers = ("ttl", "score")
        columns = schema(**{name: NUMBER if name in numbers else TEXT for name in batch})
        with pytest.raises(ConfigurationError) as caught:
            write(redis7, kind, columns, batch, writeMode=mode)
        assert problem in str(caught.value)
        assert redis7.size() == 0

    @pytest.mark.parametrize("ttl", [{}, {"ttlSeconds": 1000}])
    @pytest.mark.parametrize("given", ["", "MAXLEN", "NOMKSTREAM", "last", "1-", "1-2-3", "-1"])
    def test_an_id_that_is_none(self, server: Server, given: str, ttl: dict[str, Any]) -> None:
        client = server.client()
        client.xadd("s", {"a": 1}, id="1-1")
        # With "MAXLEN" it would be XADD s MAXLEN 0 * f v, which leaves nothing there.
        fields = pa.array([[("0", "*"), ("f", "v")]] * 2, pa.map_(pa.string(), pa.string()))
        batch = {"key": ["s", "s"], "id": ["9-1", given], "fields": fields}
        columns = schema(key=TEXT, id=TEXT, fields=MapType(TEXT, TEXT))
        with pytest.raises(ConfigurationError, match="row 2 of a batch: the id of an entry of the"):
            write(server, "stream", columns, batch, **ttl)
        assert client.xrange("s") == [(b"1-1", {b"a": b"1"})]
        assert client.ttl("s") == -1

    @pytest.mark.parametrize(
        ("count", "has_ids", "options", "is_written"),
        [
            (3_900, True, {"ttlSeconds": 1000, "maxLength": 100}, True),
            (3_901, True, {"ttlSeconds": 1000}, False),
            (9_000, True, {}, True),
            (9_000, True, {"ttlSeconds": 1000, "writeMode": "overwrite"}, True),
            (9_000, False, {"ttlSeconds": 1000}, True),
        ],
    )
    def test_entries_with_thousands_of_fields(
        self, server: Server, count: int, has_ids: bool, options: dict[str, Any], is_written: bool
    ) -> None:
        """A script of the server cannot give a command more than 8,000 arguments."""
        row = [(f"f{n}", "v") for n in range(count)]
        batch: dict[str, Any] = {
            "key": ["s", "s"],
            "fields": pa.array([row[:1], row], pa.map_(pa.string(), pa.string())),
        }
        columns = schema(key=TEXT, fields=MapType(TEXT, TEXT))
        if has_ids:
            batch["id"], columns = ["1-1", "1-2"], columns.add("id", TEXT)
        if is_written:
            write(server, "stream", columns, batch, **options)
            assert [len(fields) for _, fields in server.client().xrange("s")] == [1, count]
            return
        with pytest.raises(ConfigurationError, match=r"row 2 of a batch: .* 3,901 fields"):
            write(server, "stream", columns, batch, **options)
        assert not server.client().exists("s")

    @pytest.mark.parametrize("ids", [["1-1", "1-1"], ["3-0", "3"], ["0-0"], ["1-1", "9" * 20]])
    def test_ids_that_the_server_would_refuse_replace_no_stream(
        self, server: Server, ids: list[str]
    ) -> None:
        """It would do so when the old stream is gone."""
        client = server.client()
        client.xadd("s", {"a": 1}, id="1-1")
        columns = schema(key=TEXT, id=TEXT, f=TEXT)
        # They may come in several Arrow batches.
        batches = [{"key": ["s"], "id": [each], "f": ["1"]} for each in ids]
        for given in ([{"key": ["s"] * len(ids), "id": ids, "f": ["1"] * len(ids)}], batches):
            with pytest.raises(ConfigurationError, match=r"the stream b's' is to have the id '\d"):
                write(server, "stream", columns, *given, writeMode="overwrite")
            assert client.xrange("s") == [(b"1-1", {b"a": b"1"})]

    def test_a_stream_is_replaced_in_the_order_of_its_ids(self, server: Server) -> None:
        """A shuffle brings them in any, and Spark sorts them as texts."""
        ids = ["7-10", "7-9", None, "10", "2-1", None]
        columns = schema(key=TEXT, id=TEXT, f=TEXT)
        for _ in range(2):
            batch = {"key": ["s"] * 6, "id": ids, "f": list("abcdef")}
            write(server, "stream", columns, batch, writeMode="overwrite", ttlSeconds=1000)
            found = server.client().xrange("s")
            assert b"".join(entry[b"f"] for _, entry in found) == b"ebadcf"
            assert [entry_id.decode() for entry_id, _ in found[:4]] == [
                "2-1",
                "7-9",
                "7-10",
                "10-0",
            ]

    def test_a_refused_command_names_the_key(self, server: Server) -> None:
        server.client().set("k", "v")
        for mode, size in (("append", 1), ("overwrite", 300)):
            ids = [f"{2**64 - 1}-{2**64 - 1}", *["*"] * (size - 1)]
            batch = {"key": ["k"] * size, "id": ids, "f": ["v"] * size}
            with pytest.raises(ResponseError, match="the stream b'k' was not written"):
                write(server, "stream", schema(key=TEXT, id=TEXT, f=TEXT), batch, writeMode=mode)
        server.client().sadd("s", "m")
        with pytest.raises(ResponseError, match=r"the list b's' was not written: WRONGTYPE"):
            write(server, "list", schema(key=TEXT, value=TEXT), {"key": ["s"], "value": ["v"]})


class TestPackedRows:
    """Rows that are packed all at once are written as rows that are packed one by one."""

    COLUMNS = schema(key=LongType(), a=TEXT, b=NUMBER, c=BooleanType(), d=LongType(), ttl=NUMBER)
    BATCH: ClassVar[dict[str, Any]] = {
        "key": list(range(700)),
        "a": [None if n % 3 == 0 else "ä\r\n$1" * (n % 5) for n in range(700)],
        "b": [None if n % 5 == 0 else n / 4 for n in range(700)],
        "c": pa.array([n % 2 == 0 for n in range(700)], pa.bool_()),
        "d": pa.array([-n for n in range(700)], pa.int64()),
        "ttl": [None if n % 4 else 1000.0 for n in range(700)],
    }

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_hashes(self, server: Server, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
        client = server.client()

        def written() -> list[Any]:
            keys = [f"item:{n}" for n in range(700)]
            for key in keys:
                client.delete(key)
            for n in range(0, 700, 50):
                client.hset(f"item:{n}", "old", "1")
                client.expire(f"item:{n}", 5000)
            found = write(
                server, "hash", self.COLUMNS, self.BATCH, keyPrefix="item:", writeMode=mode
            )
            lefts = [(client.pttl(key) + 4999) // 5000 for key in keys]
            return [found.rows, *map(client.hgetall, keys), lefts]

        packed = written()
        monkeypatch.setattr(redis_packing, "packed_rows", lambda *_: None)
        assert packed == written()
        assert packed[8] == {
            b"a": "ä\r\n$1ä\r\n$1".encode(),
            b"b": b"1.75",
            b"c": b"false",
            b"d": b"-7",
        }

    @pytest.mark.parametrize("ttl", [{}, {"ttlSeconds": 1000}])
    def test_strings(self, server: Server, ttl: dict[str, Any]) -> None:
        batch = {"key": [str(n) for n in range(600)], "value": ["x" * n for n in range(600)]}
        assert write(server, "string", schema(key=TEXT, value=TEXT), batch, **ttl).commands == 600
        client = server.client()
        assert [len(client.get(str(n))) for n in range(600)] == list(range(600))
        assert (client.ttl("7") > 0) is bool(ttl)

    def test_a_row_without_a_field_and_a_large_one(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        columns = schema(key=TEXT, a=TEXT, b=TEXT)
        batch = {"key": ["k", "l"], "a": ["1", None], "b": pa.array([None, None], pa.string())}
        assert write(redis7, "hash", columns, batch) == WrittenKeys(2, 1)
        assert redis7.client().keys() == [b"k"]
        for module in (redis_packing, redis_writing, pipelines):
            monkeypatch.setattr(module, "BYTES_A_CALL", 1000)
        batch = {"key": ["k", "l"], "a": ["1" * 900, "1"], "b": ["2" * 900, "2"]}
        assert write(redis7, "hash", columns, batch) == WrittenKeys(2, 3)
        assert redis7.client().hgetall("k") == {b"a": b"1" * 900, b"b": b"2" * 900}

    def test_many_keys_with_a_time_to_live_are_one_transaction_of_a_server(
        self, redis7: RedisServer
    ) -> None:
        batch = {"key": [str(n) for n in range(300)], "a": ["1"] * 300}
        forget_calls(redis7)
        found = write(redis7, "hash", schema(key=TEXT, a=TEXT), batch, ttlSeconds=1000)
        assert found == WrittenKeys(300, 302)
        assert (calls_of(redis7, "exec"), calls_of(redis7, "hset")) == (2, 300)
        assert calls_of(redis7, "eval") == 2

    def test_a_refused_row_is_named(self, server: Server) -> None:
        server.client().rpush("17", "of another type")
        batch = {"key": [str(n) for n in range(30)], "a": ["1"] * 30}
        for options in ({}, {"ttlSeconds": 1000}):
            with pytest.raises(ResponseError, match=r"the hash b'17' was not written: WRONGTYPE"):
                write(server, "hash", schema(key=TEXT, a=TEXT), batch, **options)

    def test_a_transaction_that_is_not_done_leaves_nothing(self, start_redis: Any) -> None:
        server = start_redis(7)
        # As if the task died before the last command of a call.
        server.client().execute_command("ACL", "SETUSER", "default", "-exec")
        batch = {"key": [str(n) for n in range(30)], "a": ["1"] * 30}
        with pytest.raises(ResponseError, match="b'0' was not written"):
            write(server, "hash", schema(key=TEXT, a=TEXT), batch, ttlSeconds=1000)
        assert server.size() == 0


class TestMovingSlots:
    """Commands that a cluster turns away are sent again, all others once."""

    def test_a_slot_that_has_moved(self, cluster: RedisCluster3) -> None:
        client = cluster.client()
        client.get("x")
        calls = KeyCalls(client, sleep=lambda _: None)
        nodes = calls.job_client.nodes()
        slots = client.nodes_manager.slots_cache
        before = dict(slots)
        # The client's map is out of date: it takes every slot for the next node's.
        found = {(each[0].host, each[0].port): each for each in before.values()}
        turned = {node: nodes[number - 1] for number, node in enumerate(nodes)}
        for slot, each in before.items():
            slots[slot] = found[turned[(each[0].host, each[0].port)]]
        try:
            groups = [(b"k%d" % n, (("RPUSH", b"k%d" % n, n),)) for n in range(30)]
            assert calls.on_keys(groups) == [[1]] * 30
        finally:
            slots.update(before)
        assert all(client.llen(f"k{n}") == 1 for n in range(30))

    def test_a_slot_that_keeps_moving(self, cluster: RedisCluster3) -> None:
        client = cluster.client()
        pauses: list[float] = []
        calls = KeyCalls(client, sleep=pauses.append)
        moving = Moved("the cluster is moving the slot", {})
        asked: list[int] = []

        class Turning:
            is_cluster = True

            def node_of(self, slot: int) -> tuple[str, int]:
                asked.append(slot)
                return ("node", 1)

            def call_each(self, _: Any, commands: Any, __: Any) -> Any:
                from redis.exceptions import TryAgainError

                return [TryAgainError("TRYAGAIN")] * len(commands), moving

        calls.job_client = Turning()  # type: ignore[assignment]
        with pytest.raises(Moved):
            calls.on_keys([(b"k", (("GET", "k"),))])
        assert len(asked) == len(pauses) + 1 == 5


def test_names_are_sorted_by_slots_so_that_a_task_asks_few_nodes(cluster: RedisCluster3) -> None:
    keys = [f"k{number}" for number in range(600)]
    reading = reader(cluster, "string", keys=keys, partitions=6)
    calls = KeyCalls(cluster.client())
    of_a_task = [
        {calls.job_client.node_of(redis_keys.key_slot(key)) for key in part.keys}  # type: ignore[attr-defined]
        for part in reading.partitions()
    ]
    assert sum(map(len, of_a_task)) <= 8


def test_filters_are_pushed_only_where_spark_keeps_reads_apart(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PySpark 4.0 has neither filters nor the method.
    given = type("EqualTo", (), {"attribute": ("key",), "value": "a"})()
    redis7.client().mset({"a": "1", "b": "2"})
    for is_mended, option, rows in (
        (False, {}, 2),
        (False, {"pushFilters": "true"}, 1),
        (True, {}, 1),
        (True, {"pushFilters": "false"}, 2),
    ):
        monkeypatch.setattr(pushing, "KEEPS_READS_APART", is_mended)
        reading = reader(redis7, "string", match="*", **option)
        # Spark refuses a reader with this method of its own as long as the setting is off.
        inherited = getattr(DataSourceReader, "pushFilters", None)
        assert reading.pushFilters.__func__ is inherited
        left = reading.pushFilters([given])
        assert left == ([] if rows == 1 else [given])
        assert len(rows_of(pickle.loads(pickle.dumps(reading)))) == rows
