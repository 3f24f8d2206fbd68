"""Something that changes in steps over time: a traffic, or an inflow of garbage."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Steps:
    """A frequency that is constant between changes.

    Arguments: first, events a second from the beginning on; then, pairs of a whole second and the
    frequency from then on.
    """

    def __init__(self, first: float, then: Sequence[tuple[float, float]] = ()) -> None:
        self.changes = [at for at, _ in then]
        self._values = [first, *(value for _, value in then)]

    def __call__(self, now: float) -> float:
        """Return the frequency at a moment."""
        return self._values[bisect_right(self.changes, now)]

    def total(self, seconds: float) -> float:
        """Return how many events are expected until a moment."""
        ends = [*(min(at, seconds) for at in self.changes), seconds]
        begins = [0.0, *ends[:-1]]
        return sum(
            value * max(0.0, end - begin)
            for value, begin, end in zip(self._values, begins, ends, strict=True)
        )
