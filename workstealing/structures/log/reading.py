"""Reading: entries from an offset on, whatever form their blocks have, and a log's facts.

The keys of the blocks follow from the offset, so one script finds all entries of a read. Of a raw
block it sends only the wanted part, with the ends of the entries there. A compressed block is sent
as a whole, opened here and kept, because it never changes.

A read may wait for one offset. The last entry of the stream `news` has the offset of the next entry
as its id: 18-0 once entry 17 is there. So XREAD BLOCK from the id 17-0 returns when entry 17
exists, and at once if it has come since the look. So no reader misses it, and earlier entries do
not wake its readers. The stream keeps some entries before the last one, because it would take
longer to keep exactly one.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Never

from redis.exceptions import ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import LayoutError
from workstealing.store.blocking import block_ms
from workstealing.store.operations import AS_BYTES, Operation, Steps, Wait, command, operation
from workstealing.structures.log.base import (
    HOLES_VERSION,
    LOG_VERSION,
    MOST_OFFSET,
    Known,
    LogBase,
    checked_integer,
    refuse_options,
)
from workstealing.structures.log.blocks import SealedBlock, damaged, head_of, open_block
from workstealing.structures.log.codecs import decode_all
from workstealing.structures.stored import stored_number

BYTES_A_SCRIPT = 1024 * 1024
"""The most bytes of entries that one script returns; a single entry or compressed block may have
more."""
BLOCKS_A_SCRIPT = 8
ENTRIES_A_SCRIPT = 5_000
"""The most entries that one script returns, so that it is over soon."""
BLOCKS_LOOKED_AT = 128
"""The most blocks that `stats` measures."""
# A look now and then shows that the connection is alive.
_MOST_SECONDS = 30.0
_FACTS = ("mark", "epoch", "next", "first")
_MARKS = (LOG_VERSION.encode(), HOLES_VERSION.encode())
# The letters of a reply's items.
_LIST, _RAW, _KEPT = b"LRC"


class LogRange(NamedTuple):
    """The range of a log's available entries, and of a read's reply.

    Fields: first: the offset of the first available entry, or of the next one if there is none;
    last: of the last entry, first - 1 if there is none; offset: of the first entry of the reply;
    number: of entries in the reply, evicted ones included.
    """

    first: int
    last: int
    offset: int
    number: int


class LogStats(NamedTuple):
    """The parts of a log, and the memory that they take.

    Fields: entries: that are available, with the holes of `compact_by`; blocks: that take memory;
    open: blocks that are still lists; sealed: blocks that are one string each; compressed: sealed
    blocks that are compressed; bytes: of memory that the blocks take, as the server counts it, an
    estimate from 128 blocks at random if there are more; bytes_per_entry: of all entries in these
    blocks, 0 if there are none.
    """

    entries: int
    blocks: int
    open: int
    sealed: int
    compressed: int
    bytes: int
    bytes_per_entry: float


class ReadingEntries(LogBase):
    """Reading entries of a log, and describing it."""

    @operation
    def read(
        self, /, offset: int, count: int = 1, block: Duration = 0, **others: Never
    ) -> Steps[list[Any]]:
        """Return entries from an offset on; None stands for each that was evicted or compacted.

        Arguments:
            offset: of the first; a negative one counts from the end, -1 being the last entry.
            count: how many at most, 0 for none.
            block: how long to wait for the entry of that offset if it has not come yet, in seconds
                or as a timedelta, 0 not to wait.

        Returns: a list, which ends at the log's end. Raises: ConfigurationError; LayoutError;
        MissingExtraError for a block whose compression is not installed here; DamagedBlockError;
        UndecodableEntryError for an entry that another codec has written. One round trip for each
        MiB, 5,000 entries or 8 blocks; one more if the client knows too little of the log. Mostly
        two to five Redis commands for each block, wherever in the log it is. Each round trip is a
        look of its own: if an entry is evicted before the last one, it may be None though it was
        available at the first.
        """
        refuse_options(others)
        return self._values(*_checked_read(offset, count, block))

    @operation
    def read_range(
        self, offset: int, count: int = 1, block: Duration = 0
    ) -> Steps[tuple[LogRange, list[Any]]]:
        """Read as `read` does, and return the log's range too.

        Arguments, errors and cost: as of `read`; a count of 0 returns only the range. Returns: a
        `LogRange`, and the list.
        """
        return self._reading(*_checked_read(offset, count, block))

    @operation
    def length(self) -> Steps[int]:
        """Return how many entries are available: last() - first() + 1. Raises: LayoutError.

        One round trip.
        """
        return self._length()

    @operation
    def first(self) -> Steps[int]:
        """Return the offset of the first available entry.

        If there is none, it is the offset that the next entry will have. Raises: LayoutError. One
        round trip.
        """
        return self._first()

    @operation
    def last(self) -> Steps[int]:
        """Return the offset of the last entry, first() - 1 if there is none. Raises: LayoutError.

        One round trip.
        """
        return self._last()

    @operation
    def stats(self) -> Steps[LogStats]:
        """Describe the log: its entries, its blocks and its memory, as a `LogStats`.

        Raises: LayoutError. Two round trips; a Redis command for each block, at most 128.
        """
        return self._stats()

    def _length(self) -> Steps[int]:
        found, _ = yield from self.read_steps(0, 0)
        return found.last - found.first + 1

    def _first(self) -> Steps[int]:
        return (yield from self.read_steps(0, 0))[0].first

    def _last(self) -> Steps[int]:
        return (yield from self.read_steps(0, 0))[0].last

    def _values(self, offset: int, count: int, seconds: float) -> Steps[list[Any]]:
        return (yield from self._reading(offset, count, seconds))[1]

    def _reading(
        self, offset: int, count: int, seconds: float
    ) -> Steps[tuple[LogRange, list[Any]]]:
        """Look, wait and look again, until something is found or the time is over."""
        end = time.monotonic() + seconds if seconds and count else None
        while True:
            there, found = yield from self.read_steps(offset, count)
            left = 0.0 if end is None or found else end - time.monotonic()
            if left <= 0:
                return there, decode_all(self.codec, found, there.offset)
            left = min(left, _MOST_SECONDS)
            waiting = (
                *("XREAD", "COUNT", 1, "BLOCK", block_ms(left)),
                *("STREAMS", self.keys.news, b"%d-0" % there.offset),
            )
            yield Wait(self.keys.slot, waiting, left)

    def read_steps(self, offset: int, count: int) -> Steps[tuple[LogRange, list[bytes | None]]]:
        """Read entries as bytes, without waiting; see `read`.

        Both arguments are checked already. One round trip for each MiB, 5,000 entries or 8 blocks.
        """
        known = self.known
        low, begin = divmod(offset, known.block)
        kept = self._kept(known.epoch, low, begin + count) if count and offset >= 0 else None
        if kept is None:
            return (yield from self._read_there(offset, count))
        # Most seeks come here: a script's start would cost more than all else.
        try:
            mark, epoch, tail, first = yield self._look
        except ResponseError:
            # The script reports the fault.
            mark = epoch = None
        # The blocks of one making are all of the size that is known.
        if mark in _MARKS and epoch == known.epoch:
            tail = stored_number(self.keys.meta, "next", tail)
            first = stored_number(self.keys.meta, "first", first, 0, tail)
            if first <= offset and offset + count <= tail and known.next <= tail:
                if tail != known.next:
                    self.note(next=tail)
                found: list[bytes | None] = []
                stop = begin + count
                for block in kept:
                    found += block.entries(begin, stop)
                    begin, stop = 0, stop - known.block
                return LogRange(first, tail - 1, offset, count), found
        return (yield from self._read_there(offset, count))

    def _kept(self, epoch: bytes, low: int, entries: int) -> list[SealedBlock] | None:
        """Return the kept blocks that have so many entries, from block `low` on, or None."""
        kept: list[SealedBlock] = []
        while entries > 0:
            block = self.cache.get(epoch, low)
            if block is None or len(kept) == BLOCKS_A_SCRIPT:
                return None
            kept.append(block)
            low += 1
            entries -= block.count
        return kept

    @cached_property
    def _look(self) -> Operation:
        return command("HMGET", self.keys.meta, *_FACTS, options=AS_BYTES)

    def _read_there(self, offset: int, count: int) -> Steps[tuple[LogRange, list[bytes | None]]]:
        """Read entries by a script, which sends nothing of the blocks that are kept here."""
        found: list[bytes | None] = []
        made: bytes | None = None
        position, left = offset, count
        start = stop = 0
        # Each time at least one entry is read, except at first, when block or end are not known.
        while True:
            known = self.known
            some = min(left, ENTRIES_A_SCRIPT)
            low, number = self.expected_blocks(known, position, some)
            kept = [self.cache.get(known.epoch, low + each) for each in range(number)]
            tail, first, lowest, block, epoch, where, kinds, *items = yield self.on_keys(
                "read",
                (self.keys.meta, self.keys.news, *self.keys.blocks(low, number)),
                *(position, some, known.block, low, BYTES_A_SCRIPT, known.epoch),
                "".join("0" if each is None else "1" for each in kept),
            )
            self._note_read(known, tail, lowest, block, epoch)
            if made is None:
                made, start = epoch, where
                position, stop = where, min(where + count, tail)
            elif epoch != made:
                # The log was deleted meanwhile: the present entries are another log's.
                break
            stop = min(stop, tail)
            if self.has_lost(known, tail):
                # The blocks that were kept here may be another log's.
                kinds, items = b"", []
            if position < min(first, stop):
                found += [None] * (min(first, stop) - position)
                position = min(first, stop)
            for kind, item in zip(kinds, items, strict=True):
                if position >= stop:
                    # The log ends before a block that is kept.
                    break
                entries = self.entries_in(kind, item, position, stop, kept, low, block, epoch)
                found += entries
                position += len(entries)
            left = stop - position
            if left <= 0:
                break
        return LogRange(first, tail - 1, start, len(found)), found

    def _note_read(self, known: Known, tail: int, lowest: int, block: int, epoch: bytes) -> None:
        """Remember the facts that a read has told, if they are new."""
        if (tail, lowest, block, epoch) != (known.next, known.kept, known.block, known.epoch):
            self.note(next=tail, kept=lowest, block=block, epoch=epoch)

    def expected_blocks(self, known: Known, position: int, left: int) -> tuple[int, int]:
        """Return the first block that a read needs, and how many of them it may pass."""
        start = position if position >= 0 else max(0, known.next + position)
        low = start // known.block
        if not left:
            return low, 0
        high = (start + left - 1) // known.block
        return low, min(high - low + 1, BLOCKS_A_SCRIPT)

    def entries_in(  # noqa: PLR0917 - what a reply and its question have
        self,
        kind: int,
        item: Any,
        position: int,
        stop: int,
        kept: list[SealedBlock | None],
        low: int,
        size: int,
        epoch: bytes,
    ) -> Sequence[bytes | None]:
        """Return the entries of one item of a reply, from the offset `position` on.

        Arguments:
            kind: of `read_entries` in Lua.
            item: of `read_entries` in Lua.
            stop: after the last entry.
            kept: this client's blocks from block `low` on.
            size: how many entries a block has, and the log's making, by the same reply.
            epoch: how many entries a block has, and the log's making, by the same reply.

        Raises: LayoutError if another program has written to a block.
        """
        if kind == _LIST:
            return item  # type: ignore[no-any-return]
        if kind == _RAW:
            start, ends, data = item
            return split(start, ends, data)
        number, begin = divmod(position, size)
        if kind == _KEPT:
            block = kept[number - low]
        else:
            head = head_of(item)
            if head.entries != size:
                raise LayoutError(
                    f"block {number} of the log {self.name!r} has {head.entries} entries where"
                    f" {size} were expected: another program has written to its key, so restore it"
                    " from a backup, or evict() its entries; nothing was changed"
                )
            block = open_block(item)
            self.cache.put(epoch, number, block)
        assert block is not None
        return block.entries(begin, min(size, begin + stop - position))

    def _stats(self) -> Steps[LogStats]:
        reply = yield self._stats_of(())
        tail, first, kept, block, *_ = reply
        if not block:
            return LogStats(0, 0, 0, 0, 0, 0, 0.0)
        numbers: Sequence[int] = range(kept, -(-tail // block))
        if len(numbers) > BLOCKS_LOOKED_AT:
            numbers = random.sample(numbers, BLOCKS_LOOKED_AT)
        reply = yield self._stats_of(tuple(self.keys.block(number) for number in numbers))
        tail, first, kept, block, full, raw, sizes = reply
        blocks = -(-tail // block) - kept if block else 0
        # A block that has gone since the first look has no size.
        sizes = [size for size in sizes if size]
        size = round(blocks * sum(sizes) / len(sizes)) if sizes else 0
        lists = full + (1 if block and tail % block else 0)
        sealed = blocks - lists
        entries = tail - kept * block
        return LogStats(
            entries=tail - first,
            blocks=blocks,
            open=lists,
            sealed=sealed,
            compressed=sealed - raw,
            bytes=size,
            bytes_per_entry=size / entries if entries else 0.0,
        )

    def _stats_of(self, blocks: tuple[bytes, ...]) -> Operation:
        keys = self.keys
        return self.on_keys("stats", (keys.meta, keys.news, keys.full, keys.raw, *blocks))


def split(start: int, ends: bytes, data: bytes) -> list[bytes]:
    """Return the entries of a part of a raw block.

    Arguments:
        start: where the first of them begins.
        ends: where each one ends, 4 bytes each.
        data: the bytes from start on.

    Raises: DamagedBlockError if the ends are not in order. O(entries).
    """
    found = []
    begin = 0
    for end in struct.unpack(f">{len(ends) // 4}I", ends):
        stop = end - start
        if stop < begin:
            break
        found.append(data[begin:stop])
        begin = stop
    if 4 * len(found) != len(ends) or begin != len(data):
        raise damaged("its table of ends is not in order")
    return found


def _checked_read(offset: int, count: int, block: Duration) -> tuple[int, int, float]:
    count = checked_integer(count, "count", 0)
    return checked_integer(offset, "offset", -MOST_OFFSET), count, seconds_of(block, "block")
