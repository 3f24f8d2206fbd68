"""LogCompactor: what it seals, what it compresses, and that readers see no difference."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.compacted_logs import (
    BLOCK,
    COLD_S,
    LATER_MS,
    assert_sound,
    assert_whole,
    compact,
    compactor,
    entries,
    entry,
    forms,
    json_entry,
    made,
)
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import (
    ConfigurationError,
    DamagedBlockError,
    LayoutError,
    MissingExtraError,
)
from workstealing.jobs import LogCompactor
from workstealing.recruiting import Slice
from workstealing.recruiting.job import Backlog
from workstealing.structures.log import AsyncLog, Log

pytestmark = pytest.mark.contract


@pytest.fixture
def client(any_server: AnyServer) -> Any:
    return any_server.client()


class TestForms:
    def test_full_blocks_are_sealed_and_the_open_one_is_not(self, client: Any) -> None:
        log = made(client)
        assert forms(client, log) == "LLLL"
        assert compact(client) == 3
        assert forms(client, log) == "RRRL"
        assert_sound(client, log)
        assert_whole(client, 35)
        assert compact(client) == 0

    @pytest.mark.parametrize(("codec", "letter"), [("zstd", "S"), ("zlib", "Z"), ("auto", "S")])
    def test_cold_ones_are_compressed(self, client: Any, codec: str, letter: str) -> None:
        log = made(client)
        assert compact(client, codec=codec) == 3
        assert compact(client, codec=codec) == 0
        assert compact(client, codec=codec, later=True) == 3
        assert forms(client, log) == letter * 3 + "L"
        assert_sound(client, log)
        assert_whole(client, 35)
        assert compact(client, codec=codec, later=True) == 0

    def test_one_that_has_long_been_full_is_compressed_at_once(self, client: Any) -> None:
        log = made(client)
        assert compact(client, later=True) == 3
        assert forms(client, log) == "SSSL"
        assert_sound(client, log)
        assert_whole(client, 35)

    def test_sealing_alone(self, client: Any) -> None:
        log = made(client)
        assert compact(client, codec="none", later=True) == 3
        assert compact(client, codec="none", later=True) == 0
        assert forms(client, log) == "RRRL"
        assert compactor(client, codec="none", later=True).backlog() == Backlog(
            0, 0.0, "blocks to compact"
        )
        # A compactor that compresses finds them cold, counted from their sealing.
        again = Log(client, "l", clock_shift_ms=2 * LATER_MS)
        assert LogCompactor(again, cold=COLD_S).perform(Slice(5, 10.0)) == 3
        assert_sound(client, log)

    def test_each_form_at_once(self, client: Any) -> None:
        log = made(client, 10)
        compact(client, codec="zstd", later=True)
        log.append(*entries(20, 10))
        compact(client, codec="zlib", later=True)
        log.append(*entries(30, 20))
        compact(client)
        log.append(*entries(45, 30))
        assert forms(client, log) == "SZRLL"
        assert_sound(client, log)
        assert_whole(client, 45)

    def test_it_goes_on_as_a_log(self, client: Any) -> None:
        log = made(client)
        compact(client, later=True)
        assert log.append(*entries(52, 35)) == 35
        compact(client)
        assert forms(client, log) == "SSSRRL"
        assert log.evict(14) == 15
        assert forms(client, log) == "SSRRL"
        assert log.read(0, 60) == [None] * 15 + entries(52, 15)
        assert_sound(client, log)
        log.append(*entries(60, 52), keep=20)
        assert log.first() == 40
        assert_sound(client, log)
        log.delete()
        assert list(client.scan_iter("*")) == []

    def test_a_reader_that_keeps_blocks_reads_the_same(self, client: Any) -> None:
        log = made(client)
        for later in (False, True):
            compact(client, later=later)
            for _ in range(2):
                assert log.read(0, 35) == entries(35)
                assert log.read(17, 5) == entries(22, 17)
                assert log.read(-3, 3) == entries(35, 32)

    @pytest.mark.parametrize("odd", [b"", b"\x00", b"\xff\n", "\u00e9".encode(), b"x" * 70_000])
    def test_any_entry(self, client: Any, odd: bytes) -> None:
        log = Log(client, "l", BLOCK)
        log.append(*[odd] * 20)
        for later in (False, True):
            compact(client, later=later)
            assert Log(client, "l").read(0, 20) == [odd] * 20

    def test_what_gets_no_smaller_is_tried_once(self, client: Any) -> None:
        log = Log(client, "l", BLOCK)
        noise = [os.urandom(400) for _ in range(20)]
        log.append(*noise)
        assert compact(client, limit=1) == 1
        assert compact(client, later=True) == 2
        assert forms(client, log) == "RR"
        assert compact(client, later=True) == 0
        assert client.zcard(log.keys.raw) == client.zcard(log.keys.full) == 0
        assert log.read(0, 20) == noise

    async def test_the_job_takes_an_async_log(self, any_server: AnyServer) -> None:
        client = any_server.client()
        made(client)
        async with any_server.async_client() as async_client:
            if hasattr(async_client, "initialize"):
                await async_client.initialize()
            log = AsyncLog(async_client, "l")
            assert LogCompactor(log).perform(Slice(5, 10.0)) == 3
            assert await log.read(0, 35) == entries(35)


class TestChoice:
    def test_never_more_than_the_limit(self, client: Any) -> None:
        log = made(client, 120)
        assert [compact(client, limit=5) for _ in range(4)] == [5, 5, 2, 0]
        assert_sound(client, log)

    @pytest.mark.parametrize(("chance", "rank"), [(0.0, 0), (0.5, 6), (0.999, 11)])
    def test_at_random_among_all_candidates(self, client: Any, chance: float, rank: int) -> None:
        log = made(client, 125)
        candidates = client.zrange(log.keys.full, 0, -1)
        assert compact(client, limit=1, random=lambda: chance) == 1
        assert client.zrange(log.keys.raw, 0, -1) == [candidates[rank]]

    def test_cold_ones_far_from_the_oldest_are_reached(self, client: Any) -> None:
        log = made(client, 300)
        compact(client)
        left = client.zrange(log.keys.raw, 0, -1)
        job = compactor(client, later=True, random=lambda: 0.999)
        # The first look does not know how many there are, and begins with the oldest.
        assert [job.perform(Slice(1, 10.0)) for _ in range(2)] == [1, 1]
        del left[7], left[-1]
        assert client.zrange(log.keys.raw, 0, -1) == left

    def test_somebody_else_has_been_faster_than_the_last_look_expects(self, client: Any) -> None:
        log = made(client, 300)
        compact(client)
        job = compactor(client, later=True, random=lambda: 0.999)
        assert job.perform(Slice(1, 10.0)) == 1
        compact(client, later=True, limit=26)
        assert forms(client, log).count("R") == 3
        assert job.perform(Slice(5, 10.0)) == 3

    def test_both_kinds_get_their_turn(self, client: Any) -> None:
        made(client, 100)
        compact(client, limit=5)
        chances = random.Random(4)
        job = compactor(client, later=True, random=chances.random)
        while job.perform(Slice(1, 10.0)):
            pass
        assert forms(client, Log(client, "l")) == "S" * 10

    def test_several_logs(self, client: Any) -> None:
        names = ["a", "b", "c"]
        logs = [made(client, 25, name) for name in names]
        job = LogCompactor(logs, limit=1, random=random.Random(1).random)
        assert job.name == "log_compactor.a"
        assert job.backlog().count == 6
        done = sum(job.perform(Slice(1, 10.0)) or 0 for _ in range(60))
        assert done == 6
        for name in names:
            assert_whole(client, 25, name)
        assert job.backlog() == Backlog(0, 0.0, "blocks to compact")

    def test_parts_of_a_sweep_are_logs(self, client: Any) -> None:
        logs = [made(client, 25, name) for name in "abc"]
        job = LogCompactor(logs)
        parts = job.parts(2)
        assert sorted(number for part in parts for number in part) == [0, 1, 2]
        for part in parts:
            one = job.for_part(part)
            while not one.is_drained:
                one.perform(Slice(1, 10.0))
        assert job.backlog().count == 0
        assert [forms(client, log) for log in logs] == ["RRL"] * 3


class TestWhatItSays:
    def test_the_backlog(self, client: Any) -> None:
        job = compactor(client)
        assert job.backlog() == Backlog(0, 0.0, "blocks to compact")
        made(client)
        found = job.backlog()
        assert (found.count, found.what, found.exact) == (3, "blocks to compact", True)
        assert 0.0 <= found.oldest_seconds < 60
        compact(client)
        assert job.backlog() == Backlog(0, 0.0, "blocks to compact")
        cold = compactor(client, later=True).backlog()
        assert cold.count == 3
        assert LATER_MS / 1000 - COLD_S <= cold.oldest_seconds < LATER_MS / 1000

    def test_the_slice_is_told(self, client: Any) -> None:
        made(client)
        slice = Slice(1, 10.0)
        assert compactor(client, later=True).perform(slice) == 1
        assert slice.backlog == 3
        assert slice.oldest_seconds is not None
        assert slice.oldest_seconds >= LATER_MS / 1000
        assert slice.operations >= 10
        empty = Slice(1, 10.0)
        compactor(client, name="nothing").perform(empty)
        assert (empty.backlog, empty.oldest_seconds) == (0, 0.0)

    def test_a_dry_run_changes_nothing(self, client: Any) -> None:
        log = made(client, 105)
        for later in (False, True):
            assert compact(client, dry_run=True, later=later) == 10
            assert compact(client, dry_run=True, later=later, limit=4) == 4
        assert forms(client, log) == "L" * 11
        with pytest.raises(ConfigurationError, match="is a dry run"):
            compactor(client, dry_run=True).parts(2)

    def test_a_log_that_is_not_there(self, client: Any) -> None:
        assert compact(client) == 0
        assert list(client.scan_iter("*")) == []


class TestWhatItRefuses:
    def test_a_newer_log(self, client: Any) -> None:
        log = made(client)
        client.hset(log.keys.meta, "mark", "3")
        job = compactor(client)
        for call in (lambda: job.perform(Slice(1, 10.0)), job.backlog):
            with pytest.raises(LayoutError, match="says 3 where 2 was expected"):
                call()
        assert forms(client, log) == "LLLL"

    @pytest.mark.parametrize("part", ["meta", "full", "raw"])
    def test_a_foreign_key(self, client: Any, part: str) -> None:
        log = made(client)
        client.delete(getattr(log.keys, part))
        client.set(getattr(log.keys, part), "mine")
        with pytest.raises(LayoutError, match="holds another type"):
            compact(client)

    def test_a_block_that_was_written_to(self, client: Any) -> None:
        log = made(client)
        client.rpush(log.keys.block(1), b"mine")
        with pytest.raises(LayoutError, match="has 11 entries where a block of the log has 10"):
            compact(client)
        assert forms(client, log) == "LLLL"

    def test_a_block_of_another_type(self, client: Any) -> None:
        log = made(client)
        client.delete(log.keys.block(1))
        client.hset(log.keys.block(1), "a", "b")
        with pytest.raises(LayoutError, match="is a hash where the log has a list"):
            compact(client)

    def test_a_damaged_block(self, client: Any) -> None:
        log = made(client)
        compact(client)
        client.append(log.keys.block(1), b"more")
        before = client.get(log.keys.block(1))
        with pytest.raises(DamagedBlockError):
            compact(client, later=True)
        assert client.get(log.keys.block(1)) == before

    def test_a_block_that_the_server_has_evicted_is_not_looked_for_again(self, client: Any) -> None:
        log = made(client)
        client.delete(log.keys.block(1))
        assert compact(client) == 3
        assert client.exists(log.keys.block(1)) == 0
        assert client.zrange(log.keys.full, 0, -1) == []
        assert set(client.zrange(log.keys.raw, 0, -1)) == {b"0", b"2"}

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"codec": "lz4"}, "codec is 'lz4'"),
            ({"codec": "zlib", "level": 10}, "level is 10"),
            ({"codec": "none", "level": 1}, "level is of no use"),
            ({"cold": -1}, "cold=-1 is no such time"),
            ({"idle": "a"}, "idle='a' is no such time"),
            ({"most_bytes": -1}, "most_bytes is -1"),
            ({"limit": 0}, "limit"),
        ],
    )
    def test_settings(self, fakeredis_server: Any, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            compactor(fakeredis_server.client(), **options)

    @pytest.mark.parametrize("wrong", [[], ["a"]])
    def test_what_is_no_log(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="cannot be compacted"):
            LogCompactor(wrong)


class TestWithoutTheExtra:
    def test_zlib_does(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zstandard", None)
        log = made(client)
        compact(client, later=True)
        assert forms(client, log) == "ZZZL"
        assert_whole(client, 35)
        with pytest.raises(MissingExtraError, match=r"workstealing\[log\]"):
            compactor(client, codec="zstd")

    def test_a_reader_without_the_codec_is_told(
        self, client: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made(client)
        compact(client, later=True)
        monkeypatch.setitem(sys.modules, "zstandard", None)
        log = Log(client, "l")
        with pytest.raises(MissingExtraError, match=r"pip install 'workstealing\[log\]'"):
            log.read(12, 1)
        assert log.read(31, 2) == entries(33, 31)


@pytest.mark.real
class TestSizes:
    @pytest.mark.slow
    def test_a_quarter_of_a_stream(self, any_server: AnyServer) -> None:
        """The target of the issue; `make bench` has the figures."""
        if not any_server.is_real:
            pytest.skip("fakeredis does not say what memory is used")
        client = any_server.client()
        chances = random.Random(7)
        lines = [json_entry(number, chances) for number in range(10_000)]
        assert 90 <= sum(map(len, lines)) / len(lines) <= 110
        pipeline = client.pipeline()
        for line in lines:
            pipeline.xadd("stream", {"e": line})
        pipeline.execute()
        log = Log(client, "l", 1000)
        log.append(*lines)
        assert compact(client, later=True) == 10
        used = sum(client.memory_usage(key, samples=0) for key in client.scan_iter("l/log/*"))
        assert used <= client.memory_usage("stream", samples=0) / 4
        assert Log(client, "l").read(0, 10_000) == lines

    def test_a_block_that_is_too_large_is_left_and_said(
        self, redis7: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = redis7.client()
        log = made(client, 40)
        log.append(*[b"x" * 20_000] * 10)
        log.append(*entries(70, 50))
        job = compactor(client, most_bytes=100_000)
        assert job.perform(Slice(100, 10.0)) == 6
        assert [job.perform(Slice(100, 10.0)) for _ in range(2)] == [0, 0]
        assert job.too_large == 1
        (said,) = [each.getMessage() for each in caplog.records]
        assert "block 4 of the log 'l' takes" in said
        assert "a slice of its compactor handles 100000" in said
        assert forms(client, log) == "RRRRLRR"
        # One with more room does it.
        assert compact(client) == 1

    def test_a_slice_reads_no_more_than_it_may(self, redis7: RedisServer) -> None:
        client = redis7.client()
        log = Log(client, "l", BLOCK)
        log.append(*[b"x" * 4_000] * 50)
        job = compactor(client, most_bytes=100_000)
        assert [job.perform(Slice(100, 10.0)) for _ in range(4)] == [2, 2, 1, 0]
        assert job.too_large == 0

    def test_a_slice_is_too_short_for_a_block(
        self, redis7: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = redis7.client()
        log = Log(client, "l", BLOCK)
        log.append(*[b"x" * 100_000] * 10)
        # 2 MB/s, by what is reckoned with: half a second for this block.
        job = compactor(client, codec="zstd", level=22)
        assert job.perform(Slice(1, 0.2)) == 0
        assert job.too_large == 1
        # A longer one does it, and a busy machine has the time for it.
        assert compactor(client, codec="zstd").perform(Slice(1, 10.0)) == 1

    def test_what_is_read_is_not_idle(self, start_redis: Callable[..., RedisServer]) -> None:
        client = start_redis(7).client()
        log = made(client)
        compact(client)
        assert compact(client, later=True, idle=1000.0) == 0
        assert forms(client, log) == "RRRL"
        assert compact(client, later=True, idle=0.0) == 3
        client.config_set("maxmemory-policy", "allkeys-lfu")
        log.append(entry(35))
        made(client, 10, "other")
        compact(client, name="other")
        with pytest.raises(redis.ResponseError, match="idle time"):
            compact(client, later=True, idle=1.0, name="other")
