"""What a fleet has spent today, for hosts that charge by the command."""

from __future__ import annotations

from typing import Protocol

from workstealing.clock import SYSTEM_CLOCK, Clock

_DAY_SECONDS = 86_400.0


class Spending(Protocol):
    """Where an adaptive rate asks what has been spent, and says what it spends.

    Both are called in callers' time, `spent_today` about once a second: they answer from memory,
    and what is shared is sent and read later.
    """

    def spent_today(self) -> int:
        """Return the operations that all who share this have spent since the day began."""
        ...

    def spend(self, operations: int) -> None:
        """Note that this process has spent so many more operations."""
        ...


class OwnSpending:
    """What this process alone has spent; its days are 24 hours from its start.

    Arguments: clock, what the days are measured with.
    """

    __slots__ = ("_clock", "_ends", "_spent")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + _DAY_SECONDS
        self._spent = 0

    def spent_today(self) -> int:
        """Return the operations that this process has spent in its day."""
        late = self._clock.monotonic() - self._ends
        if late >= 0.0:
            self._ends += _DAY_SECONDS * (1 + late // _DAY_SECONDS)
            self._spent = 0
        return self._spent

    def spend(self, operations: int) -> None:
        """Note that this process has spent so many more operations."""
        self._spent = self.spent_today() + operations
