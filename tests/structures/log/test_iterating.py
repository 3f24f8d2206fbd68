"""Iteration: the right entries both ways, each block read once, and the next one ahead."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, wait_until
from workstealing.errors import ConfigurationError
from workstealing.jobs import LogCompactor
from workstealing.recruiting import Slice
from workstealing.structures import Log
from workstealing.structures.log.log import iterate, iterate_async

THREAD = "workstealing-log-prefetch"


class Info(NamedTuple):
    first: int


class Source:
    """A log of the numbers 0, 1, 2, ..., which notes what is read of it."""

    def __init__(self, end: int, first: int = 0) -> None:
        self.end, self.first = end, first
        self.reads: list[tuple[int, int]] = []
        self.used: list[Any] = []

    @property
    def bounds(self) -> tuple[int, int]:
        return self.first, self.end

    def read(self, offset: int, number: int) -> tuple[Info, list[Any]]:
        self.reads.append((offset, number))
        stop = min(self.end, offset + number)
        return Info(self.first), [i if i >= self.first else None for i in range(offset, stop)]

    async def read_async(self, offset: int, number: int) -> tuple[Info, list[Any]]:
        await asyncio.sleep(0)
        return self.read(offset, number)

    def blocks_read(self, block: int) -> list[int]:
        """Return the blocks of all reads, those that are in two reads twice."""
        return [
            number
            for offset, count in sorted(self.reads)
            for number in range(offset // block, (offset + count - 1) // block + 1)
        ]


def threads() -> int:
    return sum(each.name.startswith(THREAD) for each in threading.enumerate())


@given(
    end=st.integers(0, 3500),
    first=st.integers(0, 3500),
    block=st.sampled_from([1, 7, 300, 1000, 1500]),
    start=st.integers(-4000, 4000),
    stop=st.none() | st.integers(-4000, 4000),
    reverse=st.booleans(),
    prefetch=st.integers(0, 3),
)
def test_both_ways_from_anywhere(
    *, end: int, first: int, block: int, start: int, stop: int | None, reverse: bool, prefetch: int
) -> None:
    first = min(first, end)
    expected = [i if i >= first else None for i in range(end)][start:stop]
    if reverse:
        expected.reverse()
    options: Any = {"reverse": reverse, "prefetch": prefetch}

    source = Source(end, first)
    assert list(iterate(source.read, source.bounds, block, start, stop, **options)) == expected
    blocks = source.blocks_read(block)
    assert len(set(blocks)) == len(blocks), "a block was loaded twice"
    assert all((number + 1) * block > first for number in blocks) or block < 1000

    other = Source(end, first)

    async def collect() -> list[Any]:
        walk = iterate_async(other.read_async, other.bounds, block, start, stop, **options)
        return [entry async for entry in walk]

    assert asyncio.run(collect()) == expected
    assert sorted(other.reads) == sorted(source.reads)


def test_what_is_evicted_costs_no_read() -> None:
    source = Source(10_000, 9_500)
    assert list(iterate(source.read, source.bounds, 1000))[:9_500] == [None] * 9_500
    assert source.reads == [(9000, 1000)]


def test_what_is_evicted_meanwhile_is_none() -> None:
    source = Source(10_000)
    walk = iterate(source.read, source.bounds, 1000, prefetch=0)
    assert next(walk) == 0
    source.first = 8_500
    left = list(walk)
    assert left[:999] == list(range(1, 1000))
    assert left[999:] == [None] * 7_500 + list(range(8_500, 10_000))
    # The first of these reads has told what is evicted.
    assert [offset for offset, _ in source.reads] == [0, 1000, 8000, 9000]


def test_what_is_appended_meanwhile_is_not_part_of_it() -> None:
    source = Source(1500)
    walk = iterate(source.read, source.bounds, 1000)
    seen = [next(walk)]
    source.end = 9000
    assert [*seen, *walk] == list(range(1500))


def test_a_log_that_is_deleted_meanwhile_ends_in_none() -> None:
    source = Source(2500)
    walk = iterate(source.read, source.bounds, 1000, prefetch=0)
    assert next(walk) == 0
    source.end = 0
    assert list(walk) == [*range(1, 1000), *[None] * 1500]


@pytest.mark.parametrize("prefetch", [1, 2])
def test_so_many_reads_are_ahead_and_no_more(prefetch: int) -> None:
    source = Source(10_000)
    walk = iterate(source.read, source.bounds, 1000, prefetch=prefetch)
    for number in range(6):
        assert next(walk) == number * 1000
        wait_until(lambda n=number: len(source.reads) == n + 1 + prefetch, "the reads ahead")
        assert list(itertools.islice(walk, 999))[-1] == number * 1000 + 999
        assert len(source.reads) == number + 1 + prefetch
    walk.close()  # type: ignore[attr-defined]


def test_the_next_block_is_loaded_while_this_one_is_used() -> None:
    used = threading.Event()

    class Slow(Source):
        def read(self, offset: int, number: int) -> Any:
            # Without reading ahead this never comes to its end.
            assert offset != 1000 or used.wait(120)
            return super().read(offset, number)

    source = Slow(2000)
    walk = iterate(source.read, source.bounds, 1000)
    assert next(walk) == 0
    used.set()
    assert next(walk) == 1


def test_no_thread_without_need_and_none_left_behind() -> None:
    source = Source(5000)
    wait_until(lambda: threads() == 0, "threads of other tests to end")
    assert list(iterate(source.read, source.bounds, 1000, 0, 1000)) == list(range(1000))
    assert len(list(iterate(source.read, source.bounds, 1000, prefetch=0))) == 5000
    walk = iterate(source.read, source.bounds, 1000)
    assert next(walk) == 0
    assert threads() == 1
    del walk
    wait_until(lambda: threads() == 0, "the thread to end")


class BrokenError(Exception):
    pass


class Broken(Source):
    def read(self, offset: int, number: int) -> Any:
        if offset >= 2000:
            raise BrokenError(offset)
        return super().read(offset, number)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_error_comes_where_its_entries_would_have(prefetch: int) -> None:
    source = Broken(5000)
    walk = iterate(source.read, source.bounds, 1000, prefetch=prefetch)
    assert list(itertools.islice(walk, 2000)) == list(range(2000))
    with pytest.raises(BrokenError, match="2000"):
        next(walk)
    assert list(walk) == []
    wait_until(lambda: threads() == 0, "the thread to end")


async def test_an_error_of_an_awaited_read() -> None:
    source = Broken(5000)
    walk: Any = iterate_async(source.read_async, source.bounds, 1000, prefetch=3)
    assert [await anext(walk) for _ in range(2000)] == list(range(2000))
    with pytest.raises(BrokenError, match="2000"):
        await anext(walk)
    assert len(asyncio.all_tasks()) == 1


async def test_breaking_off_leaves_no_task() -> None:
    cancelled = []

    class Hanging(Source):
        async def read_async(self, offset: int, number: int) -> Any:
            if offset:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(offset)
                    raise
            return self.read(offset, number)

    source = Hanging(5000)
    walk: Any = iterate_async(source.read_async, source.bounds, 1000, prefetch=2)
    assert await anext(walk) == 0
    await asyncio.sleep(0)
    await walk.aclose()
    assert sorted(cancelled) == [1000, 2000]
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancelled_iteration_leaves_no_task() -> None:
    started = asyncio.Event()

    async def read(offset: int, number: int) -> Any:
        started.set()
        await asyncio.Event().wait()

    async def walk() -> None:
        async for _ in iterate_async(read, (0, 5000), 1000):
            pass

    task = asyncio.create_task(walk())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    "wrong", [{"start": "a"}, {"stop": 1.5}, {"start": True}, {"prefetch": -1}]
)
def test_arguments_that_are_none_are_refused_at_once(wrong: dict[str, Any]) -> None:
    source = Source(10)
    with pytest.raises(ConfigurationError):
        iterate(source.read, source.bounds, 1000, **wrong)
    with pytest.raises(ConfigurationError):
        iterate_async(source.read_async, source.bounds, 1000, **wrong)
    assert source.reads == []


def test_iterations_at_once() -> None:
    source = Source(3000)
    walks: list[Iterator[Any]] = [
        iterate(source.read, source.bounds, 1000, reverse=bool(i % 2)) for i in range(4)
    ]
    for number, entries in enumerate(zip(*walks, strict=True)):
        assert entries == (number, 2999 - number, number, 2999 - number)


@pytest.mark.real
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_server_sends_each_compressed_block_once(
    redis7: RedisServer, prefetch: int, reverse: bool
) -> None:
    """Nothing hides a second one: the client keeps no blocks."""
    client = redis7.client()
    log = Log(client, "log", 1200, cache_blocks=0)
    log.append(*(b"entry %d" % number for number in range(7000)))
    compactor = LogCompactor(log, 10, cold=0, codec="zlib")
    while compactor.backlog().count:
        compactor.perform(Slice(10, 10.0))
    assert log.stats().compressed == 5
    client.config_resetstat()
    expected = [b"entry %d" % number for number in range(100, 6500)]
    found = list(log.iterate(100, 6500, reverse=reverse, prefetch=prefetch))
    assert found == (expected[::-1] if reverse else expected)
    commands = client.info("commandstats")
    assert commands["cmdstat_get"]["calls"] == 5
    # Each header, and the block that is still a list, which comes in pieces.
    assert commands["cmdstat_getrange"]["calls"] == 5
    assert commands["cmdstat_type"]["calls"] == 6
