"""Pickup delays that a client has seen, until one of its next calls hands them over."""

from __future__ import annotations

from collections import Counter, deque

MOST_DELAYS = 64
"""With so many of them a read takes the script that counts them."""


class PickupDelays:
    """Pickup delays in ms of messages that the usual read has served; threads may share it."""

    __slots__ = ("_delays", "add")

    def __init__(self) -> None:
        # Appending and taking one are whole for every thread.
        self._delays: deque[int] = deque()
        self.add = self._delays.append

    @property
    def is_full(self) -> bool:
        """Whether they are to be handed over before there are more."""
        return len(self._delays) >= MOST_DELAYS

    def take(self) -> str:
        """Return them as a text of `top:how many`, and forget them.

        A top is the power of two that the histogram counts a delay under, so that a server that
        is told of many delays works on a few numbers.
        """
        tops: Counter[int] = Counter()
        while self._delays:
            try:
                tops[1 << max(0, self._delays.popleft() - 1).bit_length()] += 1
            except IndexError:
                # Another thread has taken the last one.
                break
        return " ".join(f"{top}:{count}" for top, count in tops.items())

    def put_back(self, taken: str) -> None:
        """Keep what could not be handed over."""
        for counted in taken.split():
            top, count = map(int, counted.split(":"))
            self._delays.extend([top] * count)
