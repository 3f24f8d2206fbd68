"""``exactlyOnce`` of ``format("workstealing.redis")``: entries of streams, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructType
from redis.exceptions import ResponseError

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.errors import ConfigurationError, ReplayDiffersError
from workstealing.spark.sources import redis_once
from workstealing.spark.sources.origins import Origin
from workstealing.spark.sources.pipelines import Group, KeyCalls
from workstealing.spark.sources.redis_options import RedisOptions
from workstealing.spark.sources.redis_remembering import remembered_bytes
from workstealing.spark.sources.redis_writing import PlainWrite, checked_for_writing
from workstealing.store.budget import Budget
from workstealing.store.job_client import JobClient, Node

Server = RedisServer | RedisCluster3
SCHEMA = StructType().add("key", StringType()).add("n", LongType()).add("of", StringType())
ROWS = [{"key": f"s{n % 3}", "n": n, "of": None if n % 5 else "five"} for n in range(900)]


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """All keys on one server, and keys on several."""
    found: Server = request.getfixturevalue(request.param)
    yield found
    found.wipe()


ONCE, NAMED = {"exactlyOnce": "true"}, {"query": "q", "batch": "0"}


class Killed(Exception):
    """The task ends here."""


def write(
    server: Server,
    rows: list[dict[str, Any]],
    batch: int = 0,
    partition: int = 0,
    *,
    killed: bool = False,
    **options: Any,
) -> None:
    """Write rows as one task of a batch, in Arrow batches of 100; it may be killed behind them."""
    given = {"url": server.url, "type": "stream", "exactlyOnce": "true", **options}
    parsed = RedisOptions.parse({name: str(value) for name, value in given.items()})
    shape = checked_for_writing(parsed, SCHEMA, overwrite=False, is_stream=True)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), 100):
            some = rows[start : start + 100]
            columns = {name: [row[name] for row in some] for name in ("key", "n", "of")}
            types = [("key", pa.string()), ("n", pa.int64()), ("of", pa.string())]
            yield pa.record_batch(columns, schema=pa.schema(types))
        if killed:
            raise Killed

    writing = PlainWrite(
        parsed, shape, KeyCalls(parsed.client.connected()), Origin("query", batch, partition)
    )
    writing.write(batches())


def entries(server: Server, key: str) -> list[tuple[str, int]]:
    found = server.client().xrange(key)
    return [(entry_id.decode(), int(fields[b"n"])) for entry_id, fields in found]


def numbers(key: str, rows: list[dict[str, Any]]) -> list[int]:
    return [row["n"] for row in rows if row["key"] == key]


class TestReplays:
    @pytest.mark.parametrize("done", [0, 1, 99, 100, 350, 899, 900])
    def test_a_task_that_died_goes_on(self, server: Server, done: int) -> None:
        if done:
            with pytest.raises(Killed):
                write(server, ROWS[:done], 4, 7, killed=True)
        for _ in range(2):
            write(server, ROWS, 4, 7)
            for key in ("s0", "s1", "s2"):
                assert [n for _, n in entries(server, key)] == numbers(key, ROWS)
        assert entries(server, "s1")[0][0] == f"5-{(7 << 40) + 1}"
        assert server.client().xrange("s0", count=1)[0][1] == {b"n": b"0", b"of": b"five"}

    def test_each_batch_and_partition_has_ids_of_its_own(self, server: Server) -> None:
        write(server, ROWS[:300], 0, 1)
        write(server, [row for row in ROWS[300:600] if row["key"] == "s0"], 1, 1)
        write(server, [row for row in ROWS[300:600] if row["key"] != "s0"], 1, 0)
        write(server, ROWS[600:], 2, 5)
        for key in ("s0", "s1", "s2"):
            assert [n for _, n in entries(server, key)] == numbers(key, ROWS)

    def test_rows_that_the_server_has_no_room_for_keep_back_those_behind_them(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else these would have greater ids, and no later attempt could write the first ones."""
        nodes = [each.client() for each in server.nodes] if server.is_cluster else [server.client()]
        rows = [{"key": "s0", "n": n, "of": "all"} for n in range(150)]
        call_each = JobClient.call_each

        def with_room_later(self: JobClient, node: Node, commands: Any, budget: Budget) -> Any:
            names = [command[0] for command in commands]
            if "XADD" not in names:
                return call_each(self, node, commands, budget)
            # Somebody makes room in the midst of the commands, or between two transactions.
            half = len(names) // 2
            at = names.index("MULTI", half) if "MULTI" in names[half:] else half
            more = [*commands[:at], ("CONFIG", "SET", "maxmemory", 0), *commands[at:]]
            replies, moved = call_each(self, node, more, budget)
            return [*replies[:at], *replies[at + 1 :]], moved

        write(server, rows[:2])
        monkeypatch.setattr(JobClient, "call_each", with_room_later)
        try:
            for node in nodes:
                node.config_set("maxmemory", 1)
            with pytest.raises(ResponseError, match=r"the stream b's0' was not written: .*memory"):
                write(server, rows, 1)
        finally:
            for node in nodes:
                node.config_set("maxmemory", 0)
        write(server, rows, 1)
        assert [n for _, n in entries(server, "s0")] == [0, 1, *range(150)]

    def test_keys_may_come_in_another_order(self, server: Server) -> None:
        with pytest.raises(Killed):
            write(server, ROWS[:500], killed=True)
        write(server, sorted(ROWS, key=lambda row: str(row["key"])))
        for key in ("s0", "s1", "s2"):
            assert [n for _, n in entries(server, key)] == numbers(key, ROWS)


class TestRefusals:
    def test_other_rows_than_before(self, server: Server) -> None:
        with pytest.raises(Killed):
            write(server, ROWS[:500], killed=True)
        before = {key: entries(server, key) for key in ("s0", "s1", "s2")}
        others = [{**row, "n": -row["n"] - 1} for row in ROWS[:500]]
        with pytest.raises(
            ReplayDiffersError, match=r"another entry 1-1 than partition 0 of batch"
        ):
            write(server, others)
        swapped = [ROWS[3], *ROWS[1:3], ROWS[0], *ROWS[4:500]]
        with pytest.raises(ReplayDiffersError, match="must come again in the same order"):
            write(server, swapped)
        assert {key: entries(server, key) for key in ("s0", "s1", "s2")} == before

    def test_fewer_rows_than_before(self, server: Server) -> None:
        write(server, ROWS[:30])
        write(server, ROWS[:30])
        with pytest.raises(
            ReplayDiffersError, match=r"'s0' has 10 rows of partition 0 .* that has 9 now"
        ):
            write(server, ROWS[:27])
        # Others may have taken them out by now.
        server.client().xtrim("s0", maxlen=0, approximate=False)
        with pytest.raises(ReplayDiffersError, match="'s0' has no entry 1-1"):
            write(server, ROWS[:27])

    @pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
    def test_rows_of_a_key_in_two_partitions(self, server: Server, first: int, second: int) -> None:
        write(server, ROWS[:30], partition=first)
        with pytest.raises(
            ConfigurationError,
            match=r"'s0' stand in the partitions .*repartition\(8, \"key\"\), with a number",
        ):
            write(server, ROWS[30:], partition=second)
        assert [n for _, n in entries(server, "s0")] == numbers("s0", ROWS[:30])

    def test_rows_of_a_key_in_two_partitions_whose_reader_deletes_them(
        self, server: Server
    ) -> None:
        write(server, ROWS[:30], partition=0)
        for key in ("s0", "s1", "s2"):
            server.client().xtrim(key, maxlen=0, approximate=False)
        with pytest.raises(ConfigurationError, match=r"'s0' stand in the partitions 0 and 1"):
            write(server, ROWS[30:], partition=1)

    def test_a_user_that_may_not_look_at_streams(self, start_redis: Any) -> None:
        server = start_redis(7)
        write(server, ROWS[:30], partition=0)
        server.client().execute_command("ACL", "SETUSER", "default", "-xinfo", "-xrevrange")
        with pytest.raises(ResponseError, match=r"the stream b's0' was not read: .*xinfo"):
            write(server, ROWS[30:], partition=1)
        assert [n for _, n in entries(server, "s0")] == numbers("s0", ROWS[:30])

    def test_rows_of_a_key_that_two_partitions_write_at_once(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked = KeyCalls.on_keys
        others = [lambda: write(server, ROWS[:30], partition=1)]

        def on_keys(calls: KeyCalls, groups: Sequence[Group]) -> list[list[Any]]:
            replies = looked(calls, groups)
            # The stream was still empty for this task.
            if others and "XINFO" in str(groups[0][1]):
                others.pop()()
            return replies

        monkeypatch.setattr(KeyCalls, "on_keys", on_keys)
        with pytest.raises(
            ConfigurationError, match=r"'s0' stand in the partitions 1 and 0 .*repa"
        ):
            write(server, ROWS[30:], partition=0)
        assert [n for _, n in entries(server, "s0")] == numbers("s0", ROWS[:30])

    def test_more_streams_than_can_be_remembered(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_once, "MOST_REMEMBERED", 50 * remembered_bytes(b"s10"))
        rows = [{"key": f"s{n:02}", "n": n, "of": "many"} for n in range(51)]
        with pytest.raises(ConfigurationError, match=r"more streams than .* more partitions"):
            write(redis7, rows)
        assert redis7.size() == 0
        write(redis7, rows[:50] * 3)
        assert len(entries(redis7, "s49")) == 3

    def test_an_entry_that_was_deleted(self, server: Server) -> None:
        write(server, ROWS)
        (gone, _), *_ = entries(server, "s2")
        server.client().xdel("s2", gone)
        with pytest.raises(ReplayDiffersError, match=f"'s2' has no entry {gone}"):
            write(server, ROWS)

    def test_another_program_adds_entries(self, server: Server) -> None:
        server.client().xadd("s1", {"n": 1})
        with pytest.raises(ReplayDiffersError, match="'s1' has no entry 1-1"):
            write(server, ROWS)

    def test_a_query_that_begins_anew(self, server: Server) -> None:
        write(server, ROWS[:30], 0)
        write(server, ROWS[30:60], 1)
        # Its batch 0 has other rows.
        with pytest.raises(ReplayDiffersError, match="another entry 1-1"):
            write(server, ROWS[60:90], 0)

    def test_a_key_of_another_type(self, server: Server) -> None:
        server.client().set("s0", "foreign")
        with pytest.raises(ResponseError, match="the stream b's0' was not written: WRONGTYPE"):
            write(server, ROWS[:3])
        assert server.client().get("s0") == b"foreign"

    @pytest.mark.parametrize(
        ("options", "column", "is_stream", "problem"),
        [
            ({"type": "list", **ONCE}, "value", True, "are for streams, not for type=list"),
            ({"type": "list", **NAMED}, "value", False, "are for streams, not for type=list"),
            ({"type": "stream", **ONCE}, "n", False, "'exactlyOnce' is True: leave it out"),
            ({"type": "stream", "query": "q"}, "n", False, "'query' and 'batch' is missing"),
            ({"type": "stream", **NAMED}, "n", True, "'query' is for write: writeStream has"),
            ({"type": "stream", **ONCE, "maxLength": "5"}, "n", True, "once and maxLength do not"),
            (
                {"type": "stream", **NAMED, "writeMode": "overwrite"},
                *("n", False, "exactly once and writeMode=overwrite do not go together"),
            ),
            ({"type": "stream", **ONCE}, "id", True, "there is a column 'id': leave it out"),
            ({"type": "stream", **ONCE, "ttlSeconds": "5"}, "n", True, "not get a time to live"),
            ({"type": "stream", **NAMED, "ttlColumn": "more"}, "n", False, "the column 'more'"),
            ({"type": "stream", **NAMED}, "id", False, "there is a column 'id': leave it out"),
        ],
    )
    def test_what_does_not_go_together(
        self, options: dict[str, str], column: str, is_stream: bool, problem: str
    ) -> None:
        schema = StructType().add("key", StringType()).add(column, StringType())
        schema = schema.add("more", DoubleType())
        parsed = RedisOptions.parse(options)
        with pytest.raises(ConfigurationError) as caught:
            checked_for_writing(parsed, schema, overwrite=False, is_stream=is_stream)
        assert problem in str(caught.value)

    def test_it_is_no_option_of_reads(self) -> None:
        parsed = RedisOptions.parse({"type": "stream", "keys": "a", "exactlyOnce": "true"})
        for is_stream in (False, True):
            with pytest.raises(ConfigurationError, match="'exactlyOnce' is for writing"):
                parsed.for_reading(is_stream=is_stream)
