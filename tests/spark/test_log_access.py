"""What tasks do with logs, without a JVM: they read parts of them, and append rows exactly once."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.at_once import at_once
from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.errors import LayoutError, LostEntriesError, ReplayDiffersError
from workstealing.jobs import LogCompactor
from workstealing.recruiting import Slice
from workstealing.spark.sources.log import Appender, Origin
from workstealing.spark.sources.log_offsets import LogLook, Span, looks, pages
from workstealing.spark.sources.log_options import LogOptions
from workstealing.structures import Log

ENTRIES = [b"entry %d %s" % (i, b"." * (i % 50)) for i in range(5_000)]
AnyReal = RedisServer | RedisCluster3


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A single server, and a cluster."""
    made = request.getfixturevalue(request.param)
    yield made
    made.wipe()


def log_on(server: AnyReal, name: str = "activity", block: int = 100) -> Any:
    return Log(server.client(), name, block)


def options_on(server: AnyReal, **more: str) -> LogOptions:
    return LogOptions.parse({"logs": "activity", "url": server.url, **more})


def read(options: LogOptions, span: Span) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for offsets, entries in pages(options, span):
        assert not set(found) & set(offsets)
        found.update(zip(offsets, entries, strict=True))
    return found


class TestReading:
    def test_looks(self, server: AnyReal) -> None:
        names = [f"log {i}" for i in range(20)]
        for i, name in enumerate(names[1:], 1):
            log_on(server, name).append(*ENTRIES[: 10 * i])
        log_on(server, "log 19").evict(42)
        found = looks(server.client(), names)
        assert found["log 0"] == LogLook()
        epochs = {look.epoch for look in found.values()}
        assert all(epochs - {""})
        for i in range(1, 20):
            assert found[f"log {i}"][1:] == (43 if i == 19 else 0, 10 * i, 100)
        # Nothing was made by looking.
        assert server.client().exists("log 0/log/{log 0}/meta") == 0

    def test_a_foreign_key(self, redis7: RedisServer) -> None:
        redis7.client().set("activity/log/{activity}/meta", "x")
        with pytest.raises(LayoutError, match="does not hold the facts of a log"):
            looks(redis7.client(), ["activity"])

    def test_parts_in_whatever_form_their_blocks_are(self, server: AnyReal) -> None:
        log = log_on(server)
        log.append(*ENTRIES)
        for codec in ("none", "zlib"):
            LogCompactor(log, limit=12, cold=0, codec=codec).perform(Slice(12, 60))
        facts = log.stats()
        assert min(facts.open, facts.sealed, facts.compressed) > 0
        (now,) = looks(server.client(), ["activity"]).values()
        rng = random.Random(3)
        for _ in range(10):
            start = rng.randrange(5_000)
            stop = rng.randint(start + 1, 5_000)
            found = read(options_on(server), Span("activity", now.epoch, start, stop))
            assert found == dict(enumerate(ENTRIES[start:stop], start))

    def test_pages_are_bounded_in_bytes(self, redis7: RedisServer) -> None:
        log = log_on(redis7)
        for _ in range(30):
            log.append(*[b"x" * 400_000] * 10)
        (now,) = looks(redis7.client(), ["activity"]).values()
        sizes = [
            len(offsets)
            for offsets, _ in pages(options_on(redis7), Span("activity", now.epoch, 0, 300))
        ]
        assert sum(sizes) == 300
        assert max(sizes[1:]) == 10

    def test_what_was_evicted_since(
        self, redis7: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = log_on(redis7)
        log.append(*ENTRIES)
        (now,) = looks(redis7.client(), ["activity"]).values()
        span = Span("activity", now.epoch, 1_000, 2_000)
        log.evict(1_449)
        with pytest.raises(LostEntriesError, match=r"has no entries 1,\d+ to 1,\d+ any more"):
            read(options_on(redis7), span)
        with caplog.at_level(logging.WARNING, "workstealing.spark"):
            found = read(options_on(redis7, failOnDataLoss="false"), span)
        assert found == dict(enumerate(ENTRIES[1_450:2_000], 1_450))
        assert "failOnDataLoss=false" in caplog.text
        log.evict(2_500)
        assert read(options_on(redis7, failOnDataLoss="false"), span) == {}

    def test_all_that_was_evicted_is_said_at_once(
        self, redis7: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = log_on(redis7)
        log.append(*ENTRIES)
        (now,) = looks(redis7.client(), ["activity"]).values()
        log.evict(4_499)
        span = Span("activity", now.epoch, 0, 4_000)
        with pytest.raises(LostEntriesError, match="has no entries 0 to 3,999 any more"):
            read(options_on(redis7), span)
        lenient = options_on(redis7, failOnDataLoss="false")
        with caplog.at_level(logging.WARNING, "workstealing.spark"):
            assert read(lenient, span) == {}
            assert read(lenient, span._replace(stop=4_600)) == dict(
                enumerate(ENTRIES[4_500:4_600], 4_500)
            )
        assert [record.message.split(" any more")[0] for record in caplog.records] == [
            f"the log 'activity' has no entries 0 to {last}" for last in ("3,999", "4,499")
        ]

    def test_what_is_evicted_in_the_midst_of_a_page(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = log_on(redis7, block=5)
        log.append(*ENTRIES[:200])
        (now,) = looks(redis7.client(), ["activity"]).values()
        operation, calls = Log.on_keys, 0

        def delayed(self: Any, name: str, *settings: Any) -> Any:
            nonlocal calls
            calls += name == "read"
            # The first one only tells how large the blocks are.
            if name == "read" and calls == 3:
                log.evict(69)
            return operation(self, name, *settings)

        monkeypatch.setattr(Log, "on_keys", delayed)
        span = Span("activity", now.epoch, 0, 150)
        found = read(options_on(redis7, failOnDataLoss="false"), span)
        assert found == {i: ENTRIES[i] for i in (*range(40), *range(70, 150))}

    def test_holes_are_left_out_and_are_no_loss(self, server: AnyReal) -> None:
        log = Log(server.client(), "activity", 100, compact_by=lambda data: data[-1:])
        log.append(*ENTRIES[:1_050])
        (now,) = looks(server.client(), ["activity"]).values()
        job = LogCompactor(log, 20, cold=0, superseded=0)
        while job.backlog().count:
            job.perform(Slice(20, 10.0))
        newest = {each[-1:]: i for i, each in enumerate(ENTRIES[:1_000])}
        left = {i: ENTRIES[i] for i in (*newest.values(), *range(1_000, 1_050))}
        assert len(left) < 400
        assert read(options_on(server), Span("activity", now.epoch, 0, 1_050)) == left
        log.evict(499)
        with pytest.raises(LostEntriesError, match="has no entries 300 to 499 any more"):
            read(options_on(server), Span("activity", now.epoch, 300, 1_050))
        found = read(
            options_on(server, failOnDataLoss="false"), Span("activity", now.epoch, 300, 1_050)
        )
        assert found == {i: each for i, each in left.items() if i >= 500}

    def test_a_log_that_was_made_anew(self, redis7: RedisServer) -> None:
        log = log_on(redis7)
        log.append(*ENTRIES)
        (now,) = looks(redis7.client(), ["activity"]).values()
        span = Span("activity", now.epoch, 0, 2_000)
        begun = pages(options_on(redis7), span)
        next(begun)
        log.delete()
        with pytest.raises(LostEntriesError, match="to 1,999 any more"):
            list(begun)
        log_on(redis7).append(*ENTRIES)
        with pytest.raises(LostEntriesError, match="has no entries 0 to 1,999 any more"):
            read(options_on(redis7), span)
        assert read(options_on(redis7, failOnDataLoss="false"), span) == {}


TURN = Origin("query 1", 7, 3)


def write(
    server: Any, rows: list[bytes], turn: Origin | None = TURN, stop: int | None = None
) -> tuple[int, int]:
    """Write rows as a task does; with `stop` it dies before the row of that number."""
    appender = Appender(server.client(), 100, turn)
    for row in rows[:stop]:
        appender.add("activity", row)
    return (0, 0) if stop is not None else appender.finish()


def entries_of(server: AnyReal, name: str = "activity") -> list[bytes]:
    log: Any = log_on(server, name)
    return log.read(0, 100_000)  # type: ignore[no-any-return]


class TestOnce:
    def test_without_a_turn_rows_come_again(self, redis7: RedisServer) -> None:
        assert write(redis7, ENTRIES, None) == (5_000, 0)
        write(redis7, ENTRIES, None, stop=3_000)
        assert entries_of(redis7) == ENTRIES + ENTRIES[: 3_000 // 999 * 999]

    @pytest.mark.parametrize("stop", [0, 1, 998, 999, 1_000, 3_000, 4_999])
    def test_a_task_that_is_tried_again_goes_on(self, redis7: RedisServer, stop: int) -> None:
        write(redis7, ENTRIES, stop=stop)
        before = stop // 999 * 999
        assert write(redis7, ENTRIES) == (5_000 - before, before)
        assert write(redis7, ENTRIES) == (0, 5_000)
        assert entries_of(redis7) == ENTRIES

    def test_however_rows_are_cut_into_calls(
        self, server: AnyReal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rng = random.Random(5)
        done = 0
        while done < len(ENTRIES):
            size = rng.randint(1, 999)
            monkeypatch.setattr("workstealing.spark.sources.log.ENTRIES_A_CALL", size)
            done += rng.randint(1, 1_500)
            write(server, ENTRIES, stop=min(done, len(ENTRIES)))
        write(server, ENTRIES)
        assert entries_of(server) == ENTRIES

    def test_turns_do_not_touch_each_other(self, server: AnyReal) -> None:
        turns = [Origin(query, 0, part) for query in ("q", "q/written:x") for part in range(3)]
        for turn in (*turns, *turns):
            write(server, ENTRIES[:10], turn)
        assert len(entries_of(server)) == 60
        for turn in turns:
            write(server, ENTRIES[:10], turn._replace(batch=1))
        assert len(entries_of(server)) == 120

    def test_many_logs(self, server: AnyReal, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workstealing.spark.sources.log.BYTES_KEPT", 5_000)
        for stop in (2_345, 5_000):
            appender = Appender(server.client(), 100, TURN)
            for i, row in enumerate(ENTRIES[:stop]):
                appender.add(f"log {i % 7}", row)
            if stop == 5_000:
                appended, before = appender.finish()
        assert appended + before == 5_000
        assert min(appended, before) > 1_000
        for i in range(7):
            assert entries_of(server, f"log {i}") == ENTRIES[i::7]

    def test_two_tries_at_the_same_time(self, server: AnyReal) -> None:
        results: list[tuple[int, int]] = []
        at_once([lambda: results.append(write(server, ENTRIES)) for _ in range(4)])
        assert entries_of(server) == ENTRIES
        assert sum(appended for appended, _ in results) == 5_000
        assert [sum(each) for each in results] == [5_000] * 4

    def test_a_batch_that_has_other_rows_than_before(self, redis7: RedisServer) -> None:
        write(redis7, ENTRIES, stop=2_000)
        for rows, problem in (
            (ENTRIES[1:], r"written to the log 'activity' 1,998 rows, and now it has others"),
            (ENTRIES[:10] + ENTRIES[11:9:-1] + ENTRIES[12:], "now it has others"),
            (ENTRIES[:1_000], r"1,998 rows, now it has 1,000"),
        ):
            with pytest.raises(ReplayDiffersError, match=problem) as caught:
                write(redis7, rows)
            assert "partition 3 of batch 7 of the query 'query 1'" in str(caught.value)
        assert entries_of(redis7) == ENTRIES[:1_998]
        assert write(redis7, ENTRIES) == (3_002, 1_998)
        assert entries_of(redis7) == ENTRIES

    def test_the_bounds_of_rows_are_part_of_them(self, redis7: RedisServer) -> None:
        write(redis7, [b"ab", b"c"])
        with pytest.raises(ReplayDiffersError, match="others"):
            write(redis7, [b"a", b"bc"])

    def test_a_task_that_comes_too_late(self, redis7: RedisServer) -> None:
        write(redis7, ENTRIES[:10], TURN)
        write(redis7, ENTRIES[10:20], TURN._replace(batch=8))
        with pytest.raises(ReplayDiffersError, match="batch 8 has been, so this is a task that"):
            write(redis7, ENTRIES[:10], TURN)
        assert entries_of(redis7) == ENTRIES[:20]

    def test_a_log_that_is_deleted_meanwhile(self, redis7: RedisServer) -> None:
        appender = Appender(redis7.client(), 100, TURN)
        for row in ENTRIES[:1_500]:
            appender.add("activity", row)
        log_on(redis7).delete()
        # Nothing of it is left, the notes of queries included.
        assert redis7.client().keys("*") == []
        with pytest.raises(ReplayDiffersError, match=r"not know any more of 999 rows of partition"):
            appender.finish()
        assert write(redis7, ENTRIES) == (5_000, 0)

    def test_what_is_no_note_is_refused(self, redis7: RedisServer) -> None:
        write(redis7, ENTRIES[:5])
        key = "activity/log/{activity}/written:query 1"
        assert redis7.client().hkeys(key) == [b"3"]
        redis7.client().hset(key, "3", "garbage")
        with pytest.raises(LayoutError, match="does not hold what a query has written"):
            write(redis7, ENTRIES[:5])

    def test_killed_at_any_command(self, redis7: RedisServer) -> None:
        rows = ENTRIES[:2_500]
        with FaultyServer(redis7.port) as faulty:

            def work() -> None:
                appender = Appender(redis.Redis(port=faulty.port, protocol=2), 100, TURN)
                for row in rows:
                    appender.add("activity", row)
                appender.finish()

            for _ in every_death([faulty], work, redis7.wipe):
                write(redis7, rows)
                assert entries_of(redis7) == rows
