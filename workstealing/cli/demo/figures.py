"""The figures of a run, while it goes on and at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

# Of the fields that were overdue for longer, this share is collected where the machine has time.
OVERDUE_MS = 2000
WANTED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Figures:
    """What `--json` prints, in its order.

    Fields: requests answered, enlisted, recruited, and what became of the recruited (worked, idle,
    aborted, failed, out of time, skipped); items: fields collected; garbage_peak and garbage_end:
    expired fields in memory, at most and at the end; garbage_without: how many the same traffic
    would have left without work stealing; oldest_garbage_s: how long the oldest of them has been
    expired, seconds; p50_ms and p99_ms of the requests; errors: requests that failed.
    """

    requests: int
    enlisted: int
    recruited: int
    worked: int
    idle: int
    aborted: int
    failed: int
    out_of_time: int
    skipped: int
    items: int
    garbage_peak: int
    garbage_end: int
    garbage_without: int
    oldest_garbage_s: float
    p50_ms: float
    p99_ms: float
    errors: int

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name, in order."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the laws held, and whether the garbage was kept down.

    Fields: overdue: fields that were overdue for more than two seconds at the end, had nobody
    collected them; left: how many of those were still there; readable: expired fields that a reader
    was still given; drained: expired fields that one process removed after the load had ended;
    lost: expired fields that it did not find, None where it had no time to look everywhere; faults:
    requests that the app answered with an error.
    """

    overdue: int = 0
    left: int = 0
    readable: int = 0
    drained: int = 0
    lost: int | None = 0
    faults: int = 0

    @property
    def share(self) -> float:
        """The share that was collected; 1.0 when nothing was overdue."""
        return 1.0 - self.left / self.overdue if self.overdue else 1.0

    @property
    def is_enough(self) -> bool:
        """Whether as many were collected as on a machine that has time for it."""
        return self.share >= WANTED_SHARE

    @property
    def broken(self) -> list[str]:
        """The laws that were broken, as clauses; how busy the machine is has no part in them."""
        return [
            *([f"readers were given {self.readable} expired fields"] if self.readable else ()),
            *([f"no job found {self.lost} expired fields"] if self.lost else ()),
            *([f"the app answered {self.faults} requests with an error"] if self.faults else ()),
        ]


def garbage_without(last_deadlines: Mapping[tuple[str, str], int], now_ms: int) -> int:
    """Return how many fields had expired by then and were never rewritten.

    Arguments: (key, field) -> the deadline of its last write; now_ms, on the same clock.
    """
    return sum(deadline <= now_ms for deadline in last_deadlines.values())


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the sorted values that this share does not exceed; 0.0 for none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
