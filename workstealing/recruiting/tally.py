"""Whether a job keeps up, by what its last slices found."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from workstealing.recruiting.forecast import keeps_up
from workstealing.recruiting.outcome import Outcome

if TYPE_CHECKING:
    from workstealing.recruiting.adaptive import Seen

_WINDOW = 40


class Tally:
    """Remembers of one job's last 40 slices when they were, whether full, and the age they saw."""

    __slots__ = ("_slices",)

    def __init__(self) -> None:
        self._slices: deque[tuple[float, bool, float | None]] = deque(maxlen=_WINDOW)

    def add(self, now: float, seen: Seen) -> None:
        """Note a slice that ended at that moment (monotonic seconds)."""
        if seen.outcome in (Outcome.WORKED, Outcome.IDLE):
            self._slices.append((now, seen.is_full or seen.ran_out, seen.oldest_seconds))

    def keeps_up(self, lag: float | None = None) -> bool | None:
        """Say whether the job keeps up; None: unknown.

        Arguments: lag, the seconds within which it is enough if garbage is removed; None: there is
        no target, so that garbage that grows older is taken for a job that does not keep up.
        """
        ages = [(now, age) for now, _, age in self._slices if age is not None]
        if lag is not None and ages and ages[-1][1] <= lag:
            return True
        full = sum(1 for _, is_full, _ in self._slices if is_full)
        return keeps_up(slices=len(self._slices), full=full, oldest_growth=_growth(ages))


def _growth(ages: list[tuple[float, float]]) -> float | None:
    """Return by how many seconds a second the age grows, by least squares; None: unknown."""
    if len(ages) < 2:
        return None
    count = len(ages)
    middle = sum(now for now, _ in ages) / count
    mean = sum(age for _, age in ages) / count
    spread = sum((now - middle) ** 2 for now, _ in ages)
    if not spread:
        return None
    return sum((now - middle) * (age - mean) for now, age in ages) / spread
