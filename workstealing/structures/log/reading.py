"""Reading: entries from an offset on, whatever form their blocks have.

The keys of the blocks follow from the offset, so one script finds all entries of a read. Of a raw
block it sends the part that is asked for, with the ends of the entries there; a compressed one is
sent as a whole, opened here and kept, since it never changes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from workstealing.errors import LayoutError
from workstealing.store.operations import Steps
from workstealing.structures.log.base import (
    MOST_OFFSET,
    Known,
    LogBase,
    as_bytes,
    checked_integer,
)
from workstealing.structures.log.blocks import SealedBlock, open_block

BYTES_A_SCRIPT = 8 * 1024 * 1024
BLOCKS_A_SCRIPT = 8
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

        Arguments: both checked. One round trip for each 8 MiB or 8 blocks.
        """
        found: list[bytes | None] = []
        made: bytes | None = None
        position, left = offset, count
        start = stop = 0
        # Each time at least one entry is read, except at first, when block or end are not known.
        while True:
            known = self.known
            low, number = self.expected_blocks(known, position, left)
            kept = [self.cache.get(known.epoch, low + each) for each in range(number)]
            reply = yield from as_bytes(
                self.operation(
                    "read",
                    (self.keys.meta, *self.keys.blocks(low, number)),
                    *(position, left, known.block, low, BYTES_A_SCRIPT, known.epoch),
                    "".join("0" if each is None else "1" for each in kept),
                )
            )
            tail, first, lowest, block, epoch, where, kinds, *items = reply
            self.note(next=tail, kept=lowest, block=block, epoch=epoch)
            if made is None:
                made, start = epoch, where
                position, stop = where, min(where + count, tail)
            elif epoch != made:
                # The log was deleted meanwhile: what is there now is another one's.
                break
            if position < min(first, stop):
                found += [None] * (min(first, stop) - position)
                position = min(first, stop)
            for kind, item in zip(kinds, items, strict=True):
                entries = self.entries_in(kind, item, position, stop, kept, low)
                found += entries
                position += len(entries)
            left = stop - position
            if left <= 0:
                break
        return LogInfo(first, tail - 1, start, len(found)), found

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

    def entries_in(  # noqa: PLR0917 - one caller, which has these
        self,
        kind: int,
        item: Any,
        position: int,
        stop: int,
        kept: list[SealedBlock | None],
        low: int,
    ) -> list[bytes]:
        """Return the entries of one item of a reply, which begins at the offset `position`."""
        if kind == _LIST:
            return item  # type: ignore[no-any-return]
        if kind == _RAW:
            start, ends, data = item
            return split(start, ends, data)
        known = self.known
        number, begin = divmod(position, known.block)
        if kind == _KEPT:
            block = kept[number - low]
        else:
            block = open_block(item)
            if block.count != known.block:
                raise LayoutError(
                    f"block {number} of the log {self.name!r} has {block.count} entries where"
                    f" {known.block} were expected; nothing was changed"
                )
            self.cache.put(known.epoch, number, block)
        assert block is not None
        return block.entries(begin, min(known.block, begin + stop - position))


def split(start: int, ends: bytes, data: bytes) -> list[bytes]:
    """Return the entries of a part of a raw block.

    Arguments: start: where the first of them begins; ends: where each one ends, 4 bytes each; data:
    the bytes from start on. O(entries).
    """
    found = []
    begin = 0
    for (end,) in struct.iter_unpack(">I", ends):
        stop = end - start
        found.append(data[begin:stop])
        begin = stop
    return found


def checked_read(offset: object, count: object) -> tuple[int, int]:
    """Return the offset and the count of a read. Errors: ConfigurationError."""
    checked_integer(count, "count", 0)
    return checked_integer(offset, "offset", -MOST_OFFSET), count  # type: ignore[return-value]
