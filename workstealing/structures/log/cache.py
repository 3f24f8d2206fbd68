"""The sealed blocks that a client has read last, kept so that nothing is sent twice."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from workstealing.recruiting.checks import checked_count
from workstealing.structures.log.blocks import SealedBlock

__all__ = ["BlockCache"]

# One for all caches, held for less than a microsecond: so that a fork never copies it held.
_lock = threading.Lock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


class BlockCache:
    """Keeps the sealed blocks that were used last, decompressed; safe for threads and forks.

    A sealed block never changes while its log lives, and compressing it changes nothing of its
    entries. A log that was deleted and made anew has another epoch, so its blocks are others.
    Only a server that comes back with older data fills blocks anew: then `clear` them. Whether an
    entry was evicted is not known here: ask the server first.

    Arguments: blocks: the most it keeps, 0 to keep none; most_bytes: the most that they may take
    together, decompressed.
    """

    __slots__ = ("_blocks", "_kept", "_most_bytes", "_size")

    def __init__(self, blocks: int = 16, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._blocks = checked_count(blocks, "cache_blocks")
        self._most_bytes = checked_count(most_bytes, "most_bytes")
        self._kept: OrderedDict[tuple[bytes, int], SealedBlock] = OrderedDict()
        self._size = 0

    def get(self, epoch: bytes, number: int) -> SealedBlock | None:
        """Return a kept block, which is then the one used last; None if it is not here. O(1)."""
        key = (epoch, number)
        with _lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, epoch: bytes, number: int, block: SealedBlock) -> None:
        """Keep a block, and let go of those used longest ago that are too many. O(1)."""
        if not self._blocks or block.size > self._most_bytes:
            return
        key = (epoch, number)
        with _lock:
            old = self._kept.pop(key, None)
            self._size += block.size - (old.size if old else 0)
            self._kept[key] = block
            while len(self._kept) > self._blocks or self._size > self._most_bytes:
                self._size -= self._kept.popitem(last=False)[1].size

    def clear(self) -> None:
        """Let go of all blocks. O(blocks kept)."""
        with _lock:
            self._kept.clear()
            self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """How many bytes the kept blocks take together."""
        return self._size
