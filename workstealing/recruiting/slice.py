"""The bound on one performance of a job: a number of items and a deadline."""

from __future__ import annotations

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.recruiting.checks import checked_limit, checked_seconds


class Slice:
    """The bound on one performance: at most `limit` items, and no command after the deadline.

    Arguments: limit, a number of items of at least 1; seconds, the length, above 0; clock, what
    the length is measured with. The deadline counts from construction.
    Raises: ConfigurationError for a limit or a length that bounds nothing.
    """

    __slots__ = ("_clock", "deadline", "limit", "seconds")

    limit: int
    """The most items that this performance may handle."""

    seconds: float
    """The length of this slice, in seconds."""

    deadline: float
    """The clock's monotonic value, in seconds, at which this slice ends."""

    def __init__(self, limit: int, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.limit = checked_limit(limit)
        self.seconds = checked_seconds(seconds, "a slice's length")
        self._clock = clock
        self.deadline = clock.monotonic() + self.seconds

    def remaining(self) -> float:
        """Return the seconds until the deadline; negative once it has passed."""
        return self.deadline - self._clock.monotonic()

    @property
    def expired(self) -> bool:
        """True from the deadline on."""
        return self._clock.monotonic() >= self.deadline

    def __repr__(self) -> str:
        return f"Slice(limit={self.limit}, remaining={self.remaining():.4f} of {self.seconds} s)"
