"""A log: entries in their order, each with an offset that it keeps for ever; and its iteration.

An iteration goes block by block, both ways, and loads the next one while this one is used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count
from workstealing.store.operations import (
    AS_BYTES,
    AsynchronousWaiting,
    BlockingWaiting,
    Operation,
    Steps,
    command,
)
from workstealing.store.pipeline import (
    AsyncPipeline,
    BlockingPipeline,
    OwnedPipeline,
    queued_operations,
)
from workstealing.structures.layout import as_text
from workstealing.structures.log.base import LOG_VERSION, MOST_BLOCK
from workstealing.structures.log.blocks import HEADER_BYTES, compress_codec, head_of
from workstealing.structures.log.group import AsyncLogGroup, GroupDead, LogGroup
from workstealing.structures.log.group_reading import stored_settings
from workstealing.structures.log.ids import checked_id
from workstealing.structures.log.reading import LogRange, ReadingEntries
from workstealing.structures.log.writing import Appending, Removing, Together, check_append
from workstealing.structures.stored import holding_ours, stored_number
from workstealing.structures.structure import NOTE, OK, Check, DeadLetters

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


class _LogOperations(Appending, ReadingEntries, Removing):
    """The operations of a log, and its reports on itself."""

    def size_steps(self) -> Steps[int]:
        """Return how many entries are available. One round trip."""
        return self._length()

    def dead_steps(self) -> Steps[Sequence[DeadLetters]]:
        """Return the acknowledged groups, each with the entries that it has set aside.

        Two round trips. Each group is opened by its own settings, so a look makes no group and
        changes none.
        """
        with holding_ours(self.keys.base):
            fields = yield command("HKEYS", self.keys.meta, options=AS_BYTES)
        names = sorted(each[6:] for each in fields if each.startswith(b"group:"))
        asked: list[Operation] = []
        for name in names:
            keys = self.keys.group(name)
            asked.append(command("HGET", keys.state, "kind", options=AS_BYTES))
            asked.append(command("HLEN", keys.dead))
        if not asked:
            return ()
        with holding_ours(self.keys.base):
            replies = yield asked
        boxes = []
        for name, kind, size in zip(names, replies[::2], replies[1::2], strict=True):
            state = self.keys.group(name).state
            settings = None if kind is None else stored_settings(state, kind)
            # A plain group sets nothing aside.
            if settings is not None:
                boxes.append(GroupDead(self, name, *settings, size))
        return boxes

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Say whether the log exists, and which form its oldest block has.

        Up to three round trips.
        """
        keys, named = self.keys, f"{self.kind} {self.name}"
        with holding_ours(keys.meta):
            mark, block, kept = yield command(
                "HMGET", keys.meta, "mark", "block", "kept", options=AS_BYTES
            )
        if mark is None:
            return (Check("", NOTE, f"{named}: nothing has been written yet"),)
        if mark != LOG_VERSION.encode():
            # A script knows the rule of versions, and refuses what this release cannot read.
            yield self._stats_of(())
        size = stored_number(keys.meta, "block", block, 1, MOST_BLOCK)
        oldest = keys.block(stored_number(keys.meta, "kept", kept))
        kind = yield command("TYPE", oldest, options=AS_BYTES)
        form = ""
        # redis-py decodes some replies always.
        if kind in (b"string", "string"):
            head = yield command("GETRANGE", oldest, 0, HEADER_BYTES - 1, options=AS_BYTES)
            codec = head_of(head).codec
            if codec == "zstd":
                # Raises if it is not installed here.
                compress_codec(codec)
            done = "sealed" if codec == "raw" else f"compressed by {codec}"
            form = f", the oldest of them {done}"
        said = f"{named}: blocks of {size} entries{form}, layout version {as_text(mark)}"
        return (Check("", OK, said),)


class Log(_LogOperations, BlockingWaiting):
    """A log: entries in their order, each with an offset that it keeps for ever.

    Offsets are 0, 1, 2, ... without a gap, however many append at once. Blocks of entries are lists
    while they are written to; `LogCompactor` makes a string of each full block, and compresses
    blocks that have gone cold. The cost of a read does not depend on its offset.

    Arguments:
        client: a redis.Redis or redis.RedisCluster (`AsyncLog` takes an asyncio client).
        name: the log's; all its keys share one hash slot, and on a cluster a name with a lone brace
            is refused.
        block: how many entries a block has, 1 to 100,000, if this client makes the log; an existing
            log keeps its own number.
        codec: None for bytes, "json", "msgpack", or an object with encode() and decode().
        cache_blocks: how many blocks, of those sent as a whole, this client keeps.
        id_window: for how long an `id` of an append is known at least, in seconds or a timedelta,
            30 days at most; of a log's writers the longest one counts.
        most_ids: how many ids of each producer are known at most, 1 to 100,000.
        compact_by: by which key a `LogCompactor` of this object compacts: the name of a field of
            entries that are dicts, or a function of an entry, which returns a str, bytes, or None
            for an entry without a key; None not to compact by key. All compactors of a log need the
            same key; readers and writers need none.
        clock_shift_ms: for tests.

    Makes no connection before the first call. Attributes: name: the log's, as a text.

    Source: Redis' RCP 11, the proposal that led to streams, with its logical offsets and the
    compression of blocks.
    """

    def group(
        self,
        name: str | bytes,
        start: str | int = "first",
        ack: bool = False,
        lease: Duration = 60,
        max_attempts: int = 5,
    ) -> LogGroup:
        """Return a group of readers that share the entries; see `LogGroup`. No round trip."""
        return LogGroup(self, name, start, ack, lease, max_attempts)

    def pipeline(self, transaction: bool = True) -> LogPipeline:
        """Return a pipeline: its calls are sent, with the user's own commands, by `execute`."""
        return LogPipeline(self, transaction)

    def iterate(
        self, start: int = 0, stop: int | None = None, *, reverse: bool = False, prefetch: int = 1
    ) -> Iterator[Any]:
        """Yield the entries start..stop-1 in order, or from the last to the first.

        None stands for each evicted entry. Entries that are appended meanwhile do not belong to it:
        `read` with block waits for them. If the log is deleted and made anew meanwhile, the entries
        from there on are the new log's.

        Arguments:
            start: offsets, negative ones from the end, clamped as Python's slices are.
            stop: offsets, negative ones from the end, clamped as Python's slices are.
            prefetch: how many reads are made ahead, by a thread.

        Raises: ConfigurationError; the errors of `read`. One round trip at first, and one for each
        block, which is read only once; several small blocks are read at a time.
        """
        checked_iteration(start, stop, prefetch)
        there, _ = self.read_range(0, 0)
        return iterate(
            self._load,
            (there.first, there.last + 1),
            self.known.block,
            start,
            stop,
            reverse=reverse,
            prefetch=prefetch,
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield all entries in order, from offset 0 on, None for each evicted one; see `iterate`.

        So enumerate() tells the offsets; `iterate(log.first())` begins with the first available
        entry.
        """
        return self.iterate()

    def __reversed__(self) -> Iterator[Any]:
        """Yield all entries from the last to offset 0; see `iterate`."""
        return self.iterate(reverse=True)

    def _load(self, offset: int, number: int) -> tuple[LogRange, list[Any]]:
        return self.read_range(offset, number)


class AsyncLog(_LogOperations, AsynchronousWaiting):
    """A `Log` on a redis.asyncio client: every method is awaited."""

    def group(
        self,
        name: str | bytes,
        start: str | int = "first",
        ack: bool = False,
        lease: Duration = 60,
        max_attempts: int = 5,
    ) -> AsyncLogGroup:
        """Return a group of readers that share the entries; see `LogGroup`. No round trip."""
        return AsyncLogGroup(self, name, start, ack, lease, max_attempts)

    def pipeline(self, transaction: bool = True) -> AsyncLogPipeline:
        """Return a pipeline whose `execute` is awaited; see `Log.pipeline`."""
        return AsyncLogPipeline(self, transaction)

    async def iterate(
        self, start: int = 0, stop: int | None = None, *, reverse: bool = False, prefetch: int = 1
    ) -> AsyncGenerator[Any, None]:
        """Yield as `Log.iterate` does; tasks of the event loop read ahead."""
        checked_iteration(start, stop, prefetch)
        there, _ = await self.read_range(0, 0)
        entries = iterate_async(
            self._load,
            (there.first, there.last + 1),
            self.known.block,
            start,
            stop,
            reverse=reverse,
            prefetch=prefetch,
        )
        async with aclosing(entries):
            async for entry in entries:
                yield entry

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        """Yield all entries in order, from offset 0 on; see `Log.iterate`."""
        async with aclosing(self.iterate()) as entries:
            async for entry in entries:
                yield entry

    async def _load(self, offset: int, number: int) -> tuple[LogRange, list[Any]]:
        return await self.read_range(offset, number)


if TYPE_CHECKING:

    class _QueuedLog(OwnedPipeline, _LogOperations):
        pass

else:
    _QueuedLog = queued_operations(_LogOperations)


class _EitherLogPipeline(_QueuedLog):
    """Both forms of a pipeline learn the log's end before anything is queued."""

    def __init__(self, log: Log | AsyncLog, transaction: bool) -> None:
        super().__init__(log, transaction)
        self._appends = Together(log.known)

    def append(
        self,
        /,
        *entries: Any,
        keep: int | None = None,
        producer: str | bytes | None = None,
        id: str | bytes | None = None,  # noqa: A002 - what it is everywhere
        **others: Never,
    ) -> Self:
        """Append entries behind those of the pipeline's former appends; see `Log.append`."""
        check_append(entries, others)
        self._require_kept("append")
        ids = checked_id(producer, id)
        steps = self._owner.append_steps(entries, keep, together=self._appends, ids=ids)
        return self._run(steps)

    def append_each(
        self,
        entries: Sequence[Any],
        ids: Sequence[str | bytes],
        producer: str | bytes,
        *,
        keep: int | None = None,
    ) -> Self:
        """Append entries with ids of their own, in the pipeline's order; see `Log.append_each`."""
        self._require_kept("append_each")
        steps = self._owner.each_steps(entries, ids, producer, keep, self._appends)
        return self._run(steps)

    def reset(self) -> None:
        """Forget what is queued."""
        super().reset()
        self._appends = Together(self._owner.known)

    def _opening(self) -> Steps[Any]:
        log = self._owner
        if self._appends.number and not log.known.next:
            yield from log.read_steps(0, 0)
        self._appends.known = log.known


class LogPipeline(_EitherLogPipeline, BlockingPipeline):
    """The methods of a `Log`, and the user's own commands, sent together by `execute`.

    One round trip, and one more at first; entries stay in the order of their appends. If others
    have appended so much that an append does not find the end, it and those behind it are finished
    after the rest, outside of the transaction: nothing of them had been done.
    """


class AsyncLogPipeline(_EitherLogPipeline, AsyncPipeline):
    """A `LogPipeline` whose `execute` is awaited."""
