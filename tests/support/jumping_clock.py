"""The system's clock, with a way to jump forward."""

from __future__ import annotations

import time


class JumpingClock:
    """Real time, so that deadlines are real, and jumps, so that no test waits for a breaker."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def jump(self, seconds: float) -> None:
        """Go forward at once."""
        self._ahead += seconds
