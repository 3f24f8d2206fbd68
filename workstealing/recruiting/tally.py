"""One job's findings and errors in this process, by which its health is assessed."""

from __future__ import annotations

import re
from collections import deque
from typing import TypedDict

from workstealing.recruiting.health import GOOD, Findings, Health, assess
from workstealing.recruiting.slice import Outcome, Report

_SPAN_SECONDS = 30.0
_SPANS = 40
ERRORS_NAMED = 8
"""The number of error classes that are counted apart; all others are counted together."""

OTHER_ERRORS = "_other"
_UNSAFE = re.compile(r"\W", re.ASCII)
_NAME_LENGTH = 60


def error_name(error: BaseException) -> str:
    """Return the class name of an error for figures and labels: 60 letters at most."""
    return _UNSAFE.sub("_", type(error).__name__[:_NAME_LENGTH]) or OTHER_ERRORS


class RaisedError(TypedDict):
    """The count of a class of errors in this process, and the seconds since the last one."""

    count: int
    seconds_ago: float


class Tally:
    """Remembers one job's findings in spans of half a minute, and its errors.

    It is bounded: 40 spans with a recruit, and 8 classes of errors. Times are monotonic seconds.
    """

    __slots__ = ("_errors", "_last", "_spans", "ran_at")

    ran_at: float | None
    """The time of the last slice; a skipped recruit is none. None: there was none."""

    def __init__(self) -> None:
        self.ran_at = None
        self._spans: deque[Findings] = deque(maxlen=_SPANS)
        # By class: the count, and the time of the last one.
        self._errors: dict[str, tuple[int, float]] = {}
        self._last: str | None = None

    def add(self, now: float, seen: Report) -> bool:
        """Note a slice that has ended now; say whether it is the first of its span."""
        self.ran_at = now
        span, is_new = self._span(now)
        if seen.outcome in (Outcome.WORKED, Outcome.IDLE):
            span.full = (span.full or 0) + (seen.is_full or seen.ran_out)
        if seen.outcome.value in GOOD:
            span.until = now
        if seen.oldest_seconds is not None:
            span.oldest_seconds = max(seen.oldest_seconds, span.oldest_seconds or 0.0)
        span.counts[seen.outcome.value] += 1
        return is_new

    def skip(self, now: float) -> bool:
        """Note a skipped recruit; say whether it is the first of its span."""
        span, is_new = self._span(now)
        span.counts[Outcome.SKIPPED.value] += 1
        return is_new

    def fail(self, now: float, error: BaseException) -> None:
        """Note an error of a slice."""
        name = error_name(error)
        if name not in self._errors and len(self._errors) >= ERRORS_NAMED:
            name = OTHER_ERRORS
        count, _ = self._errors.get(name, (0, now))
        self._errors[name] = (count + 1, now)
        self._last = name

    def errors(self, now: float) -> dict[str, RaisedError]:
        """Return the errors by class."""
        return {
            name: {"count": count, "seconds_ago": now - at}
            for name, (count, at) in self._errors.items()
        }

    def health(self, now: float, lag: float | None = None) -> Health:
        """Say whether the job keeps up, and why not.

        Arguments:
            lag: the lag target in seconds, None: no target.
        """
        return assess(self._spans, now, lag, self._last)

    def _span(self, now: float) -> tuple[Findings, bool]:
        if self._spans and 0.0 <= now - self._spans[-1].at < _SPAN_SECONDS:
            return self._spans[-1], False
        if self._spans and now < self._spans[-1].at:
            # The clock stepped back, so the earlier spans have no place in time.
            self._spans.clear()
        span = Findings(now)
        self._spans.append(span)
        return span, True
