"""Callers are dismissed by counting down in C, and counted block by block.

A block is a C iterator that yields DISMISSED a fixed number of times. What it has yielded is what
it was built with less what is left in it, so nothing needs to be counted in the hot path, and no
interleaving of threads can lose a count: each caller takes either an item of some block, or the
slow path under the recruiter's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from operator import length_hint

from workstealing.recruiting.outcome import Outcome

BLOCK_LIMIT = 256
_WINDOW_SECONDS = 1.0


class Blocks:
    """The exact number of the enlisted, and how long the next block may be.

    A block is never longer than the enlists that the last second saw, nor than 256: at its end the
    slow path looks at the clock and at the settings, and that must still happen about once a second
    in a process with one request a second. The caller holds the recruiter's lock.

    Arguments: now, the clock's monotonic seconds.
    """

    __slots__ = ("_ended", "_size", "_window_count", "_window_start", "limit")

    def __init__(self, now: float) -> None:
        self._ended = 0
        self._size = 0
        self._window_start = now
        self._window_count = 0
        self.limit = 1

    def open(self, size: int) -> Iterator[Outcome]:
        """Begin a block that dismisses `size` callers, and return it."""
        self._size = size
        return repeat(Outcome.DISMISSED, size)

    def end(self, now: float) -> None:
        """Count a block that has run out, and the caller who found it so."""
        count, self._size = self._size + 1, 0
        self._ended += count
        self._window_count += count
        elapsed = now - self._window_start
        if elapsed >= _WINDOW_SECONDS:
            limit = int(self._window_count / elapsed)
            self._window_start = now
            self._window_count = 0
        else:
            limit = max(self.limit, self._window_count)
        self.limit = max(1, min(BLOCK_LIMIT, limit))

    def cut(self, block: Iterator[Outcome]) -> None:
        """End a running block early; it yields nothing to anybody from here on."""
        # list() over a C iterator never lets another thread in, so that each item goes either to a
        # caller or into this list.
        left = len(list(block))
        count, self._size = self._size - left, 0
        self._ended += count
        self._window_count += count

    def add(self, count: int) -> None:
        """Count callers who took no part in any block."""
        self._ended += count

    def enlisted(self, block: Iterator[Outcome]) -> int:
        """Return how many callers have enlisted, those of the running block included."""
        return self._ended + self._size - length_hint(block)
