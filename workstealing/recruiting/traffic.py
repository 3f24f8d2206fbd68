"""How often callers enlist in this process, now and usually: adaptive rates are divided by it."""

from __future__ import annotations

import math

_SHORTEST_SECONDS = 2.0
_ENLISTS = 10.0
_USUAL_SECONDS = 6 * 3600.0
_PATIENCE_SECONDS = 30.0


class Traffic:
    """Two means of the enlist frequency, fed about once a second.

    `now` follows within two seconds, or within the time of ten enlists where they are rarer: fast
    enough that a spike costs few slices, slow enough that chance does not shake the rates. `usual`
    follows within six hours, so that a quiet night does not make the process forget the day.

    Arguments: now, the clock's monotonic seconds; enlisted, how many there have been so far.
    """

    __slots__ = ("_at", "_enlisted", "_started", "now", "usual")

    now: float | None
    """Enlists per second of late; None until it is known."""

    usual: float
    """Enlists per second, on average over the last hours."""

    def __init__(self, now: float, enlisted: int = 0) -> None:
        self._started = self._at = now
        self._enlisted = enlisted
        self.now = None
        self.usual = 0.0

    def update(self, now: float, enlisted: int) -> None:
        """Take in the time and how many have enlisted so far; both only grow."""
        seconds = now - self._at
        if seconds <= 0.0:
            return
        count = enlisted - self._enlisted
        if self.now is None and count < _ENLISTS and (not count or seconds < _PATIENCE_SECONDS):
            if not count:
                # The time before the first caller says nothing.
                self._started = self._at = now
            return
        seen = count / seconds
        if self.now is None:
            self.now = self.usual = seen
        else:
            span = max(_SHORTEST_SECONDS, _ENLISTS / max(self.now, 1e-9))
            self.now += (seen - self.now) * -math.expm1(-seconds / span)
            # A plain mean until six hours have passed.
            span = min(_USUAL_SECONDS, now - self._started)
            self.usual += (seen - self.usual) * min(1.0, seconds / span)
        self._at = now
        self._enlisted = enlisted
