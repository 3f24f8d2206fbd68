"""The local clock, as an argument: what this process measures with and what tests set by hand.

Nothing that is shared is ever judged by it: expiry, leases and staleness go by the TIME of the
server that holds the keys.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What measures durations in this process."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment, never going back."""
        ...


class SystemClock:
    """The operating system's clock."""

    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK = SystemClock()
