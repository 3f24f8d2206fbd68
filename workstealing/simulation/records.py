"""What a simulation writes down: every slice, and how old the oldest garbage was, second by second."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Record:
    """What happened in one simulated run.

    Fields: seconds: when each slice was done; items, operations: of all slices; ages: the oldest
    garbage's age, every `step` seconds; worst: the longest that any item waited; waited: item
    seconds of waiting in all; enlisted: callers in all.
    """

    step: float = 1.0
    slices: list[float] = field(default_factory=list)
    items: int = 0
    operations: int = 0
    ages: list[float] = field(default_factory=list)
    worst: float = 0.0
    waited: float = 0.0
    enlisted: float = 0.0

    def add(self, now: float, items: int, operations: int) -> None:
        """Note one slice."""
        self.slices.append(now)
        self.items += items
        self.operations += operations

    def back_under(self, lag: float, after: float) -> float | None:
        """Return after how many seconds from `after` on the oldest age last exceeded `lag`.

        Returns: 0.0 if it never did; None if it still does at the end.
        """
        late = None
        for number, age in enumerate(self.ages):
            if number * self.step >= after and age > lag:
                late = number
        if late is None:
            return 0.0
        if late == len(self.ages) - 1:
            return None
        return (late + 1) * self.step - after

    def windows(self, since: float, until: float, size: int = 400) -> list[float]:
        """Return the slices per second of consecutive windows of `size` slices."""
        some = [at for at in self.slices if since <= at < until]
        return [size / (some[end] - some[end - size]) for end in range(size, len(some), size)]

    def swing(self, since: float, until: float, size: int = 400) -> float:
        """Return by how much those windows differ at most from their mean, as a share of it."""
        windows = self.windows(since, until, size)
        if not windows:
            return 0.0
        mean = sum(windows) / len(windows)
        return max(abs(window / mean - 1.0) for window in windows)

    def pace(self, since: float, until: float) -> float:
        """Return the slices per second between two moments."""
        return sum(1 for at in self.slices if since <= at < until) / (until - since)
