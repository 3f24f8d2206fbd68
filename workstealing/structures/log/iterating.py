"""Iteration over a log: block by block, both ways, the next one loaded while this one is used."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count
from workstealing.structures.log.reading import LogRange

# Small blocks are read several at a time: a round trip costs as much as hundreds of entries.
_FEWEST_ENTRIES = 1000

T = TypeVar("T")


Loaded = tuple[LogRange, list[Any]]


def checked_iteration(start: object, stop: object, prefetch: object) -> None:
    """Check the beginning, the end and the number of reads ahead.

    Raises: ConfigurationError if one of the three is unusable.
    """
    for what, offset in (("start", start), ("stop", stop)):
        if isinstance(offset, bool) or not isinstance(offset, int | None):
            raise ConfigurationError(f"{what}={offset!r} is no offset: give a whole number")
    checked_count(prefetch, "prefetch")


def iterate(
    read: Callable[[int, int], Loaded],
    bounds: tuple[int, int],
    block: int,
    start: int = 0,
    stop: int | None = None,
    *,
    reverse: bool = False,
    prefetch: int = 1,
) -> Iterator[Any]:
    """Yield entries start..stop-1 in order, or from stop-1 down to start; None for evicted ones.

    Arguments:
        read: returns the range and the entries of an offset and a number.
        bounds: the first available offset and the end (the offset of the next entry) as they are
            now: later entries do not belong to it.
        block: how many entries a block has.
        start: offsets, negative ones from the end, clamped as Python's slices are.
        stop: offsets, negative ones from the end, clamped as Python's slices are.
        reverse: from the last to the first.
        prefetch: how many reads are made ahead of the one whose entries are used, by a thread of
            this iteration's own; 0 for none, and no thread.

    Raises: ConfigurationError at once; the errors of read, in place of its entries.

    Each block costs one read (several blocks share a read if a block has less than 1,000 entries),
    and no block is in two reads; entries known to be evicted are not read. Memory: the entries of
    prefetch + 1 reads. Source: read-ahead, as of any operating system's sequential files.
    """
    return _iterated(read, _Spans(bounds, block, start, stop, reverse=reverse, prefetch=prefetch))


def iterate_async(
    read: Callable[[int, int], Awaitable[Loaded]],
    bounds: tuple[int, int],
    block: int,
    start: int = 0,
    stop: int | None = None,
    *,
    reverse: bool = False,
    prefetch: int = 1,
) -> AsyncGenerator[Any, None]:
    """Yield as `iterate` does, for an awaitable read; tasks of the loop read ahead."""
    return _iterated_async(
        read, _Spans(bounds, block, start, stop, reverse=reverse, prefetch=prefetch)
    )


def _iterated(
    read: Callable[[int, int], Loaded], spans: _Spans[Callable[[], Loaded]]
) -> Iterator[Any]:
    pool: ThreadPoolExecutor | None = None

    def begin(offset: int, number: int) -> Callable[[], Loaded]:
        return (
            partial(read, offset, number)
            if pool is None
            else pool.submit(read, offset, number).result
        )

    try:
        while (next_one := spans.next(begin)) is not None:
            number, load = next_one
            loaded = None if load is None else load()
            if spans.goes_on and spans.prefetch and pool is None:
                pool = ThreadPoolExecutor(1, "workstealing-log-prefetch")
            yield from spans.shown(number, loaded, begin)
    finally:
        if pool is not None:
            # A caller that breaks off does not wait for the read under way.
            pool.shutdown(wait=False, cancel_futures=True)


async def _iterated_async(
    read: Callable[[int, int], Awaitable[Loaded]], spans: _Spans[asyncio.Future[Loaded]]
) -> AsyncGenerator[Any, None]:
    def begin(offset: int, number: int) -> asyncio.Future[Loaded]:
        return asyncio.ensure_future(read(offset, number))

    # The awaited one too: a cancelled iteration leaves no task behind.
    try:
        while (next_one := spans.next(begin)) is not None:
            number, load = next_one
            loaded = None if load is None else await load
            for entry in spans.shown(number, loaded, begin):
                yield entry
    finally:
        left = spans.left()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class _Spans(Generic[T]):
    """The spans to read, the spans that have begun, and the end of the evicted ones."""

    def __init__(
        self,
        bounds: tuple[int, int],
        block: int,
        start: int,
        stop: int | None,
        *,
        reverse: bool,
        prefetch: int,
    ) -> None:
        checked_iteration(start, stop, prefetch)
        self.prefetch = prefetch
        self._first, end = bounds
        self._at, self._stop, _ = slice(start, stop).indices(end)
        self._reverse = reverse
        self._length = block * max(1, _FEWEST_ENTRIES // block)
        self._begun: deque[tuple[int, T | None]] = deque()

    @property
    def goes_on(self) -> bool:
        """Whether there are spans that have not begun."""
        return self._at < self._stop

    def next(self, begin: Callable[[int, int], T]) -> tuple[int, T | None] | None:
        """Return a span's number of entries and its load, or None after the last."""
        self._begin(1, begin)
        return self._begun.popleft() if self._begun else None

    def shown(
        self, number: int, loaded: Loaded | None, begin: Callable[[int, int], T]
    ) -> Iterator[Any]:
        """Begin to read ahead, and return a span's entries in their order."""
        if loaded is not None:
            self._first = max(self._first, loaded[0].first)
        self._begin(self.prefetch, begin)
        if loaded is None:
            return repeat(None, number)
        entries = loaded[1]
        # Shorter than it was: the log has been deleted.
        entries += [None] * (number - len(entries))
        return reversed(entries) if self._reverse else iter(entries)

    def left(self) -> list[T]:
        """Return the reads that have begun and are not used."""
        return [load for _, load in self._begun if load is not None]

    def _begin(self, most: int, begin: Callable[[int, int], T]) -> None:
        while len(self._begun) < most and self._at < self._stop:
            offset, number = self._span()
            gone = offset + number <= self._first
            self._begun.append((number, None if gone else begin(offset, number)))

    def _span(self) -> tuple[int, int]:
        """Cut the next span off, at the end of a whole block."""
        if self._reverse:
            stop = self._stop
            self._stop = max(self._at, (stop - 1) // self._length * self._length)
            return self._stop, stop - self._stop
        offset = self._at
        self._at = min(self._stop, (offset // self._length + 1) * self._length)
        return offset, self._at - offset
