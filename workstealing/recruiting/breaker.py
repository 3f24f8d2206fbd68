"""A breaker: after a connection fault, nobody touches that server for a while."""

from __future__ import annotations

import random as _random
from collections.abc import Callable

_FIRST_SHARE = 0.1


class Breaker:
    """Closed until a connection fault, then open for a period, then closed again.

    One slow reply in a slice of 10 ms is a fault too; so the first period is a tenth of the
    longest, and each further fault, without a slice in between that went well, doubles it. A period
    is jittered between half and one and a half times its length, so that the processes of a fleet
    do not all try a recovering server at once. Whoever asks a breaker holds the one slice of its
    process; so the first slice after the period is the only trial there is.

    Arguments: seconds, the longest period, on average; random, what the jitter is drawn with. (It
    is not the lottery's own, which tests script.)
    """

    __slots__ = ("__weakref__", "_longest", "_next", "_open_until", "_random", "_since")

    def __init__(self, seconds: float, random: Callable[[], float] = _random.random) -> None:
        self._longest = seconds
        self._next = seconds * _FIRST_SHARE
        self._random = random
        self._open_until: float | None = None
        # When the first fault was after which nothing went well.
        self._since: float | None = None

    def is_open(self, now: float) -> bool:
        """Say whether the server is to be left alone at that moment (monotonic seconds)."""
        return self._open_until is not None and now < self._open_until

    def trip(self, now: float) -> None:
        """Open, or stay open, for one period from that moment (monotonic seconds)."""
        self._since = now if self._since is None else self._since
        self._open_until = now + self._next * (0.5 + self._random())
        self._next = min(self._longest, 2 * self._next)

    def recover(self) -> None:
        """Note that a slice met no fault: the next one will be the first again."""
        self._since = None
        self._next = self._longest * _FIRST_SHARE

    def open_seconds(self, now: float) -> float | None:
        """Return for how long no slice has gone well, trials included; None: the last one did."""
        return None if self._since is None else max(0.0, now - self._since)
