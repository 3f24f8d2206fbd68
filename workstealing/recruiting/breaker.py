"""A breaker: after a connection fault, nobody touches that server for a while."""

from __future__ import annotations

import random as _random
from collections.abc import Callable


class Breaker:
    """Closed until a connection fault, then open for a period, then open to one trial at a time.

    The period is jittered between half and one and a half times its length, so that the processes
    of a fleet do not all try a recovering server at once. That a single trial runs at a time is the
    single flight's doing: whoever asks a breaker holds the process's one slice.

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

    def close(self) -> None:
        """Close: the server has answered."""
        self._open_until = None
