"""A breaker: after a connection fault, nobody touches that server for a while."""

from __future__ import annotations

import random as _random
from collections.abc import Callable


class Breaker:
    """Closed until a connection fault, then open for a period, then closed again.

    The period is jittered between half and one and a half times its length, so that the processes
    of a fleet do not all try a recovering server at once. Whoever asks a breaker holds the one
    slice of its process; so the first slice after the period is the only trial there is, and either
    it opens the breaker again or nothing needs to be done.

    Arguments: seconds, the mean period; random, what the jitter is drawn with. (It is not the
    lottery's own, which tests script.)
    """

    __slots__ = ("__weakref__", "_open_until", "_random", "_seconds")

    def __init__(self, seconds: float, random: Callable[[], float] = _random.random) -> None:
        self._seconds = seconds
        self._random = random
        self._open_until: float | None = None

    def is_open(self, now: float) -> bool:
        """Say whether the server is to be left alone at that moment (monotonic seconds)."""
        return self._open_until is not None and now < self._open_until

    def trip(self, now: float) -> None:
        """Open, or stay open, for one period from that moment (monotonic seconds)."""
        self._open_until = now + self._seconds * (0.5 + self._random())
