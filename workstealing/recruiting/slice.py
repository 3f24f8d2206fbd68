"""The bound on one performance of a job: a number of items and a deadline."""

from __future__ import annotations

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.recruiting.checks import (
    checked_age,
    checked_count,
    checked_limit,
    checked_seconds,
)


class Slice:
    """The bound on one performance: at most `limit` items, and no command after the deadline.

    Arguments: limit, a number of items of at least 1; seconds, the length, above 0; clock, what
    the length is measured with. The deadline counts from construction.
    Raises: ConfigurationError for a limit or a length that bounds nothing.
    """

    __slots__ = (
        "_clock",
        "backlog",
        "deadline",
        "limit",
        "oldest_seconds",
        "operations",
        "seconds",
    )

    limit: int
    """The most items that this performance may handle."""

    seconds: float
    """The length of this slice, in seconds."""

    deadline: float
    """The clock's monotonic value, in seconds, at which this slice ends."""

    oldest_seconds: float | None
    """The age of the oldest garbage that the job has seen in this slice; None: it did not say."""

    backlog: int | None
    """How many items the job has seen waiting in this slice; None: it did not say."""

    operations: int
    """How many commands the job has said that it sent in this slice."""

    def __init__(self, limit: int, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.limit = checked_limit(limit)
        self.seconds = checked_seconds(seconds, "a slice's length")
        self._clock = clock
        self.oldest_seconds = None
        self.backlog = None
        self.operations = 0
        self.deadline = clock.monotonic() + self.seconds

    def remaining(self) -> float:
        """Return the seconds until the deadline; negative once it has passed."""
        return self.deadline - self._clock.monotonic()

    @property
    def expired(self) -> bool:
        """True from the deadline on."""
        return self._clock.monotonic() >= self.deadline

    def observe(self, *, oldest_seconds: float | None = None, backlog: int | None = None) -> None:
        """Say what this job has seen of its garbage; metrics and adaptive rates go by it.

        Call it whenever a look has found something out; the highest age and the last backlog of a
        slice stand. Arguments: oldest_seconds, how long the oldest item seen has been overdue, 0
        where nothing is (what a clock that stepped back makes negative counts as 0); backlog, how
        many items wait. None says nothing. Raises: ConfigurationError for what is no number. No
        command.
        """
        if oldest_seconds is not None:
            age = checked_age(oldest_seconds)
            if self.oldest_seconds is None or age > self.oldest_seconds:
                self.oldest_seconds = age
        if backlog is not None:
            self.backlog = checked_count(backlog, "the backlog that a slice observes")

    def spend(self, operations: int) -> None:
        """Say that so many more commands have been sent; a daily cap goes by it. No command.

        Arguments: operations, 0 or more. Raises: ConfigurationError for what is no count.
        """
        self.operations += checked_count(operations, "what a slice spends")

    def __repr__(self) -> str:
        return f"Slice(limit={self.limit}, remaining={self.remaining():.4f} of {self.seconds} s)"
