"""What a log consists of, and how much memory it takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from workstealing.store.operations import Steps
from workstealing.structures.log.base import LogBase, as_bytes

BLOCKS_LOOKED_AT = 128


class LogFacts(NamedTuple):
    """What a log consists of.

    Fields: entries: that are available; blocks: that take memory; open: those of them that are
    still lists; sealed: those that are one string each; compressed: those of the sealed that are
    compressed; bytes: of memory that the blocks take, as the server counts it, an estimate from 128
    of them at random where there are more; bytes_per_entry: of all entries in these blocks, 0 if
    there are none.
    """

    entries: int
    blocks: int
    open: int
    sealed: int
    compressed: int
    bytes: int
    bytes_per_entry: float


class Describing(LogBase):
    """The steps of `info`."""

    def facts_steps(self) -> Steps[LogFacts]:
        """Describe the log; see `Log.info`."""
        reply = yield from self._facts(())
        tail, first, kept, block, *_ = reply
        if not block:
            return LogFacts(0, 0, 0, 0, 0, 0, 0.0)
        numbers: Sequence[int] = range(kept, -(-tail // block))
        if len(numbers) > BLOCKS_LOOKED_AT:
            numbers = random.sample(numbers, BLOCKS_LOOKED_AT)
        reply = yield from self._facts(tuple(self.keys.block(number) for number in numbers))
        tail, first, kept, block, full, raw, sizes = reply
        blocks = -(-tail // block) - kept if block else 0
        # One that has gone since the first look has no size.
        sizes = [size for size in sizes if size]
        size = round(blocks * sum(sizes) / len(sizes)) if sizes else 0
        lists = full + (1 if block and tail % block else 0)
        sealed = blocks - lists
        entries = tail - kept * block
        return LogFacts(
            entries=tail - first,
            blocks=blocks,
            open=lists,
            sealed=sealed,
            compressed=sealed - raw,
            bytes=size,
            bytes_per_entry=size / entries if entries else 0.0,
        )

    def _facts(self, blocks: tuple[bytes, ...]) -> Steps[Any]:
        keys = self.keys
        return (
            yield from as_bytes(self.operation("facts", (keys.meta, keys.full, keys.raw, *blocks)))
        )
