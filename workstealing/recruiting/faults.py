"""Errors inside a host: which ones it must receive, and how all others are logged."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import Any

from workstealing.clock import Clock
from workstealing.errors import ConfigurationError, WorkStealingError, is_connection_fault

# By name: neither package is imported for the sake of one class.
_KNOWN = frozenset(
    {
        ("billiard.exceptions", "SoftTimeLimitExceeded"),
        ("rq.exceptions", "StopRequested"),
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

        Raises: ConfigurationError for what is no exception class; then none is added.
        """
        for each in types:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise ConfigurationError(f"reraise() expects exception classes, not {each!r}")
        self._types += types

    def include(self, error: BaseException) -> bool:
        """Say whether the error is a host's time-out."""
        return isinstance(error, self._types) or any(
            (base.__module__, base.__qualname__) in _KNOWN for base in type(error).__mro__
        )


_LOGGER = logging.getLogger("workstealing")
_SECONDS_BETWEEN = 60.0


class FaultLog:
    """Logs the first error of each subject at once, and then at most one a minute, with a count.

    Arguments: clock, what the minute is measured with; timeouts, which errors must reach the host
    when they are raised while this logs. The lines go to the logger `workstealing` at level ERROR,
    with a traceback unless the error says all there is to say: this package's own do, and so does a
    server that could not be reached.
    """

    __slots__ = ("_clock", "_lock", "_silent", "_timeouts")

    def __init__(self, clock: Clock, timeouts: HostTimeouts | None = None) -> None:
        self._clock = clock
        self._timeouts = HostTimeouts() if timeouts is None else timeouts
        self._silent: dict[str, tuple[float, int]] = {}
        self.after_fork()

    def after_fork(self) -> None:
        """Take a new lock: the old one's holder may not exist in this process."""
        # Re-entrant: a signal handler may log while the interrupted frame holds it.
        self._lock = threading.RLock()

    def report(self, subject: str, error: BaseException) -> None:
        """Log that the subject failed, or count it when the subject's minute is not over.

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
        """Log a complaint that is no error, at level WARNING, or count it in its minute.

        Arguments: subject, whose minute is its own, apart from that of its errors; complaint, a
        sentence.
        """
        missed = self._missed(f"{subject}: a warning")
        if missed is None:
            return
        times = f" ({missed + 1} times since the last report)" if missed else ""
        log_safely(
            *(_LOGGER, logging.WARNING, "%s: %s%s", subject, complaint, times),
            timeouts=self._timeouts,
        )

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


def log_safely(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    exc_info: BaseException | None = None,
    timeouts: HostTimeouts | None = None,
) -> None:
    """Log a line in the host's time; a filter, handler or formatter that fails harms nobody.

    As with errors that `logging` itself catches, one line on standard error says so, unless
    `logging.raiseExceptions` is false. Arguments: as of Logger.log(); timeouts, the recruiter's.
    Raises: what is no Exception, and a host's time-out.
    """
    try:
        logger.log(level, message, *args, exc_info=exc_info)
    except Exception as error:
        if (timeouts or HostTimeouts()).include(error):
            raise
        if logging.raiseExceptions and sys.stderr is not None:
            # Where standard error is closed, there is nobody left to tell.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(
                    f"workstealing could not log a line: {type(error).__qualname__}, raised by one"
                    f" of the handlers or filters of the logger {logger.name!r}\n"
                )


def shown(thing: Any, timeouts: HostTimeouts | None = None) -> str:
    """Return the text of a user's object, whose `__str__` may raise; see `log_safely`."""
    try:
        return str(thing)
    except Exception as error:
        if (timeouts or HostTimeouts()).include(error):
            raise
        return f"<a {type(thing).__qualname__} without a text>"
