"""A clock that stands still until a test moves it."""

from __future__ import annotations

from workstealing.errors import ConfigurationError


class ManualClock:
    """A Clock that a test sets by hand, so that no test needs to sleep.

    A job that loops until its slice has expired never ends on this clock unless something advances
    it. Arguments: start, the seconds that it shows at first.
    """

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = float(start)

    def monotonic(self) -> float:
        """Return the seconds that the clock shows."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move the clock forward and return what it shows then.

        Raises: ConfigurationError for negative seconds: a monotonic clock never goes back.
        """
        if not seconds >= 0:
            raise ConfigurationError(
                f"a clock cannot advance by {seconds!r} seconds; expected >= 0"
            )
        self._now += seconds
        return self._now
