"""Errors are logged once per job and minute, with a count."""

from __future__ import annotations

import logging
import threading

from workstealing.clock import Clock
from workstealing.errors import WorkStealingError, is_connection_fault

_LOGGER = logging.getLogger("workstealing")
_SECONDS_BETWEEN = 60.0


class FaultLog:
    """Logs the first error of each subject at once, and then at most one a minute, with a count.

    Arguments: clock, what the minute is measured with. The lines go to the logger `workstealing` at
    level ERROR, with a traceback unless the error says all there is to say: this package's own do,
    and so does a server that could not be reached.
    """

    __slots__ = ("_clock", "_lock", "_silent")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._silent: dict[str, tuple[float, int]] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """Take a new lock: the old one's holder may not exist in this process."""
        # Re-entrant: a signal handler may log while the interrupted frame holds it.
        self._lock = threading.RLock()

    def report(self, subject: str, error: BaseException) -> None:
        """Log that the subject failed, or count it when the subject's minute is not over."""
        missed = self._missed(subject)
        if missed is None:
            return
        times = f"failed {missed + 1} times since the last report" if missed else "failed"
        speaks = isinstance(error, WorkStealingError) or is_connection_fault(error)
        _LOGGER.error(
            *("%s %s: %s: %s", subject, times, type(error).__name__, error),
            exc_info=None if speaks else error,
        )

    def warn(self, subject: str, complaint: str) -> None:
        """Log a complaint that is no error, at level WARNING, or count it in its minute.

        Arguments: subject, whose minute is its own, apart from that of its errors; complaint, a
        sentence.
        """
        missed = self._missed(f"{subject}: a warning")
        if missed is None:
            return
        times = f" ({missed + 1} times since the last report)" if missed else ""
        _LOGGER.warning("%s: %s%s", subject, complaint, times)

    def _missed(self, subject: str) -> int | None:
        """Return how many reports were passed over; None: this one is, too."""
        now = self._clock.monotonic()
        with self._lock:
            logged, missed = self._silent.get(subject, (now - _SECONDS_BETWEEN, 0))
            if now - logged < _SECONDS_BETWEEN:
                self._silent[subject] = (logged, missed + 1)
                return None
            self._silent[subject] = (now, 0)
        return missed
