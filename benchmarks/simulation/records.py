"""What a simulated run leaves behind: when slices were done, and what they cost."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

BUCKET_SECONDS = 10


class Record:
    """The slices of one run, in the order in which they were done."""

    def __init__(self) -> None:
        self.slices: list[float] = []
        self.items = 0
        self.operations = 0
        self._buckets: Counter[int] = Counter()

    def add(self, now: float, items: int, operations: int) -> None:
        """Note one slice, or one run of something else that removes garbage."""
        self.slices.append(now)
        self.items += items
        self.operations += operations
        self._buckets[int(now) // BUCKET_SECONDS] += operations

    def operations_by_time(self, seconds: float) -> list[float]:
        """Return the operations per second of every ten seconds."""
        buckets = range(int(seconds) // BUCKET_SECONDS)
        return [self._buckets[bucket] / BUCKET_SECONDS for bucket in buckets]

    def pace(self, since: float, until: float) -> float:
        """Return the slices per second between two moments."""
        begin, end = bisect_left(self.slices, since), bisect_left(self.slices, until)
        return (end - begin) / (until - since)

    def swing(self, since: float, until: float, size: int = 400) -> float:
        """Return by how much windows of slices differ from their mean at most, as a share of it.

        Arguments:
            since: seconds.
            until: seconds.
            size: how many slices make one window.

        What is compared is each window's slices per second. 0.0 if there is no whole window.
        """
        begin, end = bisect_left(self.slices, since), bisect_left(self.slices, until)
        some = self.slices[begin:end]
        paces = [size / (some[n] - some[n - size]) for n in range(size, len(some), size)]
        if not paces:
            return 0.0
        mean = sum(paces) / len(paces)
        return max(abs(pace / mean - 1.0) for pace in paces)


def back_under(ages: Sequence[float], lag: float, after: float) -> float | None:
    """Return how many seconds after a moment the oldest age exceeded a lag for the last time.

    Arguments:
        ages: of each second.
        lag: seconds.
        after: seconds.

    Returns: 0.0 if it never did; None if it still does at the end.
    """
    late = [second for second, age in enumerate(ages, 1) if second > after and age > lag]
    if not late:
        return 0.0
    return None if late[-1] >= len(ages) else late[-1] + 1 - after
