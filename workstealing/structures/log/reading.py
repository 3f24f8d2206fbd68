"""Reading: entries from an offset on, whatever form their blocks have.

The keys of the blocks follow from the offset, so one script finds all entries of a read. Of a raw
block it sends the part that is asked for, with the ends of the entries there; a compressed one is
sent as a whole, opened here and kept, since it never changes.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError
from workstealing.store.operations import Operation, Plain, Steps
from workstealing.structures.log.base import (
    AS_BYTES,
    MOST_OFFSET,
    Known,
    LogBase,
    as_bytes,
    checked_integer,
)
from workstealing.structures.log.blocks import SealedBlock, damaged, head_of, open_block
from workstealing.structures.log.names import LOG_VERSION

BYTES_A_SCRIPT = 1024 * 1024
"""How many bytes of entries one script returns, or a single entry or compressed block more."""
BLOCKS_A_SCRIPT = 8
ENTRIES_A_SCRIPT = 5_000
"""How many entries one script returns at most: for so long it holds the server up."""
_FACTS = ("mark", "epoch", "next", "first")
_MARK = LOG_VERSION.encode()
# The letters of a reply's items.
_LIST, _RAW, _KEPT = b"LRC"


class LogInfo(NamedTuple):
    """What a log has, and what a read has returned of it.

    Fields: first: the offset of the first available entry, or of the next one if there is none;
    last: of the last entry, first - 1 if there is none; offset: of the first entry of the reply;
    number: of entries in the reply, evicted ones included.
    """

    first: int
    last: int
    offset: int
    number: int


class Reading(LogBase):
    """The steps of `read`, which never wait."""

    def read_steps(self, offset: int, count: int) -> Steps[tuple[LogInfo, list[bytes | None]]]:
        """Read entries as bytes; see `Log.read`.

        Arguments: both checked. One round trip for each MiB, 5,000 entries or 8 blocks.
        """
        known = self.known
        low, begin = divmod(offset, known.block)
        kept = self._kept(known.epoch, low, begin + count) if count and offset >= 0 else None
        if kept is None:
            return (yield from self._read_there(offset, count))
        # As of most seeks: without a script, whose start costs more than all else here.
        try:
            mark, epoch, tail, first = yield self._look
        except ResponseError:
            # The script says what is wrong.
            mark = epoch = None
        # The blocks of one making are all of the size that is known.
        if mark == _MARK and epoch == known.epoch:
            first = int(first)
            tail = int(tail)
            if first <= offset and offset + count <= tail and known.next <= tail:
                if tail != known.next:
                    self.note(next=tail)
                found: list[bytes | None] = []
                stop = begin + count
                for block in kept:
                    found += block.entries(begin, stop)
                    begin, stop = 0, stop - known.block
                return LogInfo(first, tail - 1, offset, count), found
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
        return Plain(("HMGET", self.keys.meta, *_FACTS), AS_BYTES)

    def _read_there(self, offset: int, count: int) -> Steps[tuple[LogInfo, list[bytes | None]]]:
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
            tail, first, lowest, block, epoch, where, kinds, *items = yield from as_bytes(
                self.operation(
                    "read",
                    (self.keys.meta, *self.keys.blocks(low, number)),
                    *(position, some, known.block, low, BYTES_A_SCRIPT, known.epoch),
                    "".join("0" if each is None else "1" for each in kept),
                )
            )
            self._note_read(known, tail, lowest, block, epoch)
            if made is None:
                made, start = epoch, where
                position, stop = where, min(where + count, tail)
            elif epoch != made:
                # The log was deleted meanwhile: what is there now is another one's.
                break
            stop = min(stop, tail)
            if self.has_lost(known, tail):
                # What was kept here may be none of it.
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
        return LogInfo(first, tail - 1, start, len(found)), found

    def _note_read(self, known: Known, tail: int, lowest: int, block: int, epoch: bytes) -> None:
        """Remember what a read has told, unless that is what is known."""
        if (tail, lowest, block, epoch) != (known.next, known.kept, known.block, known.epoch):
            self.note(next=tail, kept=lowest, block=block, epoch=epoch)

    def info_steps(self) -> Steps[LogInfo]:
        """Say which entries there are; one round trip."""
        info, _ = yield from self.read_steps(0, 0)
        return info

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
    ) -> list[bytes]:
        """Return the entries of one item of a reply, which begins at the offset `position`.

        Arguments: kind and item: of `read_entries` in Lua; stop: behind the last entry; kept: the
        blocks from block `low` on that this client has; size and epoch: entries a block, and the
        log's making, as the same reply says.
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
                    f" {size} were expected; nothing was changed"
                )
            block = open_block(item)
            self.cache.put(epoch, number, block)
        assert block is not None
        return block.entries(begin, min(size, begin + stop - position))


def split(start: int, ends: bytes, data: bytes) -> list[bytes]:
    """Return the entries of a part of a raw block.

    Arguments: start: where the first of them begins; ends: where each one ends, 4 bytes each; data:
    the bytes from start on. Errors: DamagedBlockError if the ends are not in order. O(entries).
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


def checked_read(offset: object, count: object) -> tuple[int, int]:
    """Return the offset and the count of a read. Errors: ConfigurationError."""
    checked_integer(count, "count", 0)
    return checked_integer(offset, "offset", -MOST_OFFSET), count  # type: ignore[return-value]
