"""A time of day that a test sets, for what chooses time shards."""

from __future__ import annotations

START = 1_800_000_000.0


class SetClock:
    """Says the time that it was set to.

    Arguments:
        now: Unix seconds; by default the beginning of a minute that is a multiple of 4 and 6
            minutes since the epoch.
    """

    def __init__(self, now: float = START) -> None:
        self.now = now

    def time(self) -> float:
        """Return the time that was set."""
        return self.now

    def go(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class ApartClock:
    """A clock that is always the same number of seconds apart from another one."""

    def __init__(self, clock: SetClock, apart: float) -> None:
        self._clock = clock
        self._apart = apart

    def time(self) -> float:
        """Return the other clock's time and the difference."""
        return self._clock.now + self._apart
