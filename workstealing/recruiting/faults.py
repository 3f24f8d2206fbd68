"""Errors in a host's time: its own time-outs pass through, all others are logged."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import Any

from workstealing.clock import Clock
from workstealing.errors import ConfigurationError, WorkStealingError, is_connection_fault

# By name, because one class is no reason to import its package.
_KNOWN = frozenset(
    {
        ("billiard.exceptions", "SoftTimeLimitExceeded"),
        ("rq.exceptions", "StopRequested"),
        ("rq.worker", "StopRequested"),  # its place in RQ 2.0
        ("rq.timeouts", "JobTimeoutException"),
    }
)


class HostTimeouts:
    """The time-outs that a host raises into running code: Celery's, RQ's and registered ones."""

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: tuple[type[BaseException], ...] = ()

    def register(self, *types: type[BaseException]) -> None:
        """Add exception classes.

        Raises: ConfigurationError if one is no exception class; then none is added.
        """
        for each in types:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise ConfigurationError(f"reraise() expects exception classes, not {each!r}")
        self._types += types

    def include(self, error: BaseException) -> bool:
        """Say whether an error is a time-out that a host raises into running code."""
        return isinstance(error, self._types) or any(
            (base.__module__, base.__qualname__) in _KNOWN for base in type(error).__mro__
        )


_LOGGER = logging.getLogger("workstealing")
_SECONDS_BETWEEN = 60.0


class FaultLog:
    """Logs the first error of each subject at once, and then one a minute at most, with a count.

    Arguments:
        clock: it measures the minute.
        timeouts: the host's own, which pass through while this logs.

    The lines go to the logger `workstealing` at level ERROR. The lines have a traceback, except for
    this package's own errors and for a server out of reach, which explain themselves.
    """

    __slots__ = ("_clock", "_lock", "_silent", "_timeouts")

    def __init__(self, clock: Clock, timeouts: HostTimeouts | None = None) -> None:
        self._clock = clock
        self._timeouts = HostTimeouts() if timeouts is None else timeouts
        self._silent: dict[str, tuple[float, int]] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """Take a new lock, because the old one's holder may not exist in this process."""
        # Re-entrant: a signal handler may log while the interrupted frame holds it.
        self._lock = threading.RLock()

    def report(self, subject: str, error: BaseException) -> None:
        """Log a subject's error, or count it until the subject's minute is over.

        Raises: only a host's time-out; see `log_safely`.
        """
        missed = self._missed(subject)
        if missed is None:
            return
        times = f"failed {missed + 1} times since the last report" if missed else "failed"
        speaks = isinstance(error, WorkStealingError) or is_connection_fault(error)
        text = (subject, times, type(error).__name__, shown(error, self._timeouts))
        log_safely(
            _LOGGER,
            logging.ERROR,
            *("%s %s: %s: %s", *text),
            exc_info=None if speaks else error,
            timeouts=self._timeouts,
        )

    def warn(self, subject: str, complaint: str) -> None:
        """Log a complaint at level WARNING, or count it until its minute is over.

        Arguments:
            subject: whose warnings have a minute apart from its errors.
            complaint: a sentence.
        """
        missed = self._missed(f"{subject}: a warning")
        if missed is None:
            return
        times = f" ({missed + 1} times since the last report)" if missed else ""
        log_safely(
            *(_LOGGER, logging.WARNING, "%s: %s%s", subject, complaint, times),
            timeouts=self._timeouts,
        )

    def tell(self, subject: str, outcome: str, why: Exception) -> None:
        """Log at level DEBUG why a slice came to nothing: each time, for who looks for it."""
        if _LOGGER.isEnabledFor(logging.DEBUG):
            log_safely(
                *(_LOGGER, logging.DEBUG, "%s: a slice was %s: %s: %s"),
                *(subject, outcome, type(why).__name__, shown(why, self._timeouts)),
                timeouts=self._timeouts,
            )

    def _missed(self, subject: str) -> int | None:
        """Return the number of counted reports; None: this one is only counted, too."""
        now = self._clock.monotonic()
        with self._lock:
            logged, missed = self._silent.get(subject, (now - _SECONDS_BETWEEN, 0))
            if now - logged < _SECONDS_BETWEEN:
                self._silent[subject] = (logged, missed + 1)
                return None
            self._silent[subject] = (now, 0)
        return missed


def log_safely(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    exc_info: BaseException | None = None,
    timeouts: HostTimeouts | None = None,
) -> None:
    """Log a line; host time-outs may end it. A failing filter, handler or formatter harms nobody.

    One line on standard error names it, unless `logging.raiseExceptions` is false: `logging` treats
    the errors that it catches alike. Arguments as of Logger.log(); timeouts, the recruiter's.
    Raises: host time-outs, and errors that are no Exception.
    """
    try:
        logger.log(level, message, *args, exc_info=exc_info)
    except Exception as error:
        if (timeouts or HostTimeouts()).include(error):
            raise
        if logging.raiseExceptions and sys.stderr is not None:
            # Standard error may be closed.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(
                    f"workstealing could not log a line: {type(error).__qualname__}, raised by one"
                    f" of the handlers or filters of the logger {logger.name!r}\n"
                )


def shown(thing: Any, timeouts: HostTimeouts | None = None) -> str:
    """Return the text of a user's object; its `__str__` may raise. See `log_safely`."""
    try:
        return str(thing)
    except Exception as error:
        if (timeouts or HostTimeouts()).include(error):
            raise
        return f"<a {type(thing).__qualname__} without a text>"
