"""A log: entries in their order, each with an offset that it keeps for ever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from workstealing.clock import Duration
from workstealing.store.operations import (
    AS_BYTES,
    AsynchronousWaiting,
    BlockingWaiting,
    Operation,
    Steps,
    command,
)
from workstealing.structures.layout import as_text
from workstealing.structures.log.appending import Appending
from workstealing.structures.log.base import LOG_VERSION, MOST_BLOCK
from workstealing.structures.log.blocks import HEADER_BYTES, compress_codec, head_of
from workstealing.structures.log.group import AsyncLogGroup, GroupDead, LogGroup
from workstealing.structures.log.group_reading import stored_settings
from workstealing.structures.log.iterating import checked_iteration, iterate, iterate_async
from workstealing.structures.log.reading import LogRange, ReadingEntries
from workstealing.structures.log.removing import Removing
from workstealing.structures.stored import holding_ours, stored_number
from workstealing.structures.structure import NOTE, OK, Check, DeadLetters


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

    async def iterate(
        self, start: int = 0, stop: int | None = None, *, reverse: bool = False, prefetch: int = 1
    ) -> AsyncGenerator[Any, None]:
        """Yield as `Log.iterate` does; tasks read ahead."""
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
