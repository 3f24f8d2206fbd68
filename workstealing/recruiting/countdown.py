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

BLOCK_LIMIT = 1024
# Looking up a member of an enum costs as much as a whole dismissal.
_DISMISSED = Outcome.DISMISSED
_WINDOW_SECONDS = 0.25


class Blocks:
    """The exact number of the enlisted, and the callers still to dismiss, block by block.

    A block is never longer than the enlists of the last quarter of a second, nor than 1,024: at its
    end the slow path looks at the clock, and that must still happen about once a second in a
    process with one request a second. A lower bound than 1,024 would make every dismissal dearer in
    a process with thousands of enlists a second. The caller holds the recruiter's lock.

    A time-out may be raised between any two steps. So a block's size and what came before it are
    noted in one step, before the block is in use, and which block is in use says what counts.

    Arguments: now, the clock's monotonic seconds.
    """

    __slots__ = ("_added", "_counts", "_window_count", "_window_end", "ahead", "limit")

    ahead: int
    """How many more callers to dismiss once the running block has ended."""

    limit: int
    """How many callers the next block may hold."""

    def __init__(self, now: float) -> None:
        self._added = 0
        # The last two blocks, each with how many enlisted before it, and with its size.
        self._counts: tuple[tuple[Iterator[Outcome], int, int], ...] = ()
        self._window_count = 0
        self._window_end = now + _WINDOW_SECONDS
        self.ahead = 0
        self.limit = 1

    def renew(self, block: Iterator[Outcome], now: float) -> Iterator[Outcome]:
        """Return the block to use next; then one has run out, and so counts who found it so."""
        known = self._of(block)
        count = known[2] + 1
        self._window_count += count
        limit = self.limit
        if now >= self._window_end:
            windows = 1.0 + (now - self._window_end) / _WINDOW_SECONDS
            limit = max(1, min(BLOCK_LIMIT, int(self._window_count / windows)))
            self.limit = limit
            self._window_count = 0
            self._window_end = now + _WINDOW_SECONDS
        elif limit < BLOCK_LIMIT:
            limit = max(limit, min(BLOCK_LIMIT, self._window_count))
            self.limit = limit
        size = self.ahead
        # min() would cost a tenth of all of this where it is most frequent.
        if size > limit:  # noqa: PLR1730
            size = limit
        self.ahead -= size
        following = repeat(_DISMISSED, size)
        self._counts = (known, (following, known[1] + count, size))
        return following

    def cut(self, block: Iterator[Outcome]) -> None:
        """End a running block early; it yields nothing to anybody from here on."""
        # list() over a C iterator never lets another thread in, so that each item goes either to a
        # caller or into this list.
        left = len(list(block))
        _, ended, size = self._of(block)
        self._counts = ((block, ended + size - left, 0),)
        self._window_count += size - left

    def add(self, count: int) -> None:
        """Count callers who took no part in any block."""
        self._added += count

    def enlisted(self, block: Iterator[Outcome]) -> int:
        """Return how many callers have enlisted, those of the running block included."""
        _, ended, size = self._of(block)
        return self._added + ended + size - length_hint(block)

    def _of(self, block: Iterator[Outcome]) -> tuple[Iterator[Outcome], int, int]:
        for known in self._counts:
            if known[0] is block:
                return known
        return (block, 0, 0)
