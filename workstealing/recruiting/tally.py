"""What this process remembers of a job's last slices: for a verdict, and of what went wrong."""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, TypedDict

from workstealing.recruiting.health import Span, Verdict, judge
from workstealing.recruiting.outcome import Outcome

if TYPE_CHECKING:
    from workstealing.recruiting.adaptive import Seen

_SPAN_SECONDS = 30.0
_SPANS = 40
ERRORS_NAMED = 8
"""How many classes of errors are told apart; all others are counted together."""

OTHER_ERRORS = "_other"
_UNSAFE = re.compile(r"\W", re.ASCII)
_NAME_LENGTH = 60


def error_name(error: BaseException) -> str:
    """Return the name of an error's class as figures and labels show it: 60 letters at most."""
    return _UNSAFE.sub("_", type(error).__name__[:_NAME_LENGTH]) or OTHER_ERRORS


class RaisedError(TypedDict):
    """How often a class of errors was raised in this process, and how many seconds ago last."""

    count: int
    seconds_ago: float


class Tally:
    """Remembers what one job's slices have found, in spans of half a minute, and its errors.

    Bounded: 40 spans in which there was a recruit, and 8 classes of errors. Times are monotonic
    seconds.
    """

    __slots__ = ("_errors", "_last", "_spans")

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=_SPANS)
        # By class: how often, and when last.
        self._errors: dict[str, tuple[int, float]] = {}
        self._last: str | None = None

    def add(self, now: float, seen: Seen) -> bool:
        """Note a slice that ended at that moment; say whether it is the first of its span."""
        span, is_new = self._span(now)
        if seen.outcome in (Outcome.WORKED, Outcome.IDLE):
            span.full = (span.full or 0) + (seen.is_full or seen.ran_out)
        if seen.oldest_seconds is not None:
            span.oldest_seconds = max(seen.oldest_seconds, span.oldest_seconds or 0.0)
        span.counts[seen.outcome.value] += 1
        return is_new

    def skip(self, now: float) -> bool:
        """Note a recruit who could not perform; say whether it is the first of its span."""
        span, is_new = self._span(now)
        span.counts[Outcome.SKIPPED.value] += 1
        return is_new

    def fail(self, now: float, error: BaseException) -> None:
        """Note what a slice has raised."""
        name = error_name(error)
        if name not in self._errors and len(self._errors) >= ERRORS_NAMED:
            name = OTHER_ERRORS
        count, _ = self._errors.get(name, (0, now))
        self._errors[name] = (count + 1, now)
        self._last = name

    def errors(self, now: float) -> dict[str, RaisedError]:
        """Return what was raised, by class."""
        return {
            name: {"count": count, "seconds_ago": now - at}
            for name, (count, at) in self._errors.items()
        }

    def verdict(self, now: float, lag: float | None = None) -> Verdict:
        """Say whether the job keeps up, and why not.

        Arguments: now; lag, the seconds within which garbage should be removed, None: no target.
        """
        return judge(self._spans, now, lag, self._last)

    def _span(self, now: float) -> tuple[Span, bool]:
        if self._spans and 0.0 <= now - self._spans[-1].at < _SPAN_SECONDS:
            return self._spans[-1], False
        if self._spans and now < self._spans[-1].at:
            # A clock that stepped back: what was before then has no place in time.
            self._spans.clear()
        span = Span(now)
        self._spans.append(span)
        return span, True
