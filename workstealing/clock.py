"""The local clock, as an argument: what this process measures with and what tests set by hand.

Nothing that is shared is ever judged by it: expiry, leases and staleness go by the TIME of the
server that holds the keys. The choice of a time shard is the one exception.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What measures durations in this process."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment, never going back."""
        ...


class WallClock(Protocol):
    """What chooses a time shard: the one use of a client's own time of day, and on purpose."""

    def time(self) -> float:
        """Return seconds since the Unix epoch."""
        ...


class SystemClock:
    """The operating system's clocks."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def __repr__(self) -> str:
        # Signatures show it as the default of an argument.
        return "SYSTEM_CLOCK"


SYSTEM_CLOCK = SystemClock()
