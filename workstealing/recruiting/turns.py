"""What jobs of several structures share: a slice serves one of them, and a sweep divides them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from workstealing.recruiting.job import PartJob, checked_parts
from workstealing.recruiting.slice import Slice


def drawn(size: int, random: Callable[[], float]) -> int:
    """Return the number of the one that a slice serves, of so many; draws only among several."""
    return int(random() * size) if size > 1 else 0


def groups_of(numbers: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """Divide numbers into at most n groups for a sweep, neighbours into different ones.

    Errors: ConfigurationError unless n is 1 or more.
    """
    return [tuple(numbers[i::n]) for i in range(min(checked_parts(n), len(numbers)))]


class InTurn(PartJob):
    """Serves some structures in turn until each has had nothing left to do.

    Arguments: name; limit: most items a slice; serve: does a slice of a structure by its number,
    and returns how many items it handled; numbers.
    """

    def __init__(
        self, name: str, limit: int, serve: Callable[[int, Slice], int], numbers: Sequence[int]
    ) -> None:
        self.name, self.limit = name, limit
        self._serve = serve
        self._left = deque(numbers)

    @property
    def is_drained(self) -> bool:
        """Whether each was found without anything to do."""
        return not self._left

    def perform(self, slice: Slice) -> int:
        """Do a slice of the next one; errors as of the job's."""
        if not self._left:
            return 0
        # Whatever comes of it, the next slice goes on with another one.
        self._left.rotate(-1)
        handled = self._serve(self._left[-1], slice)
        if not handled:
            self._left.pop()
        return handled
