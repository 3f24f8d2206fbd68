"""Pickup delays that a client has seen, until one of its next calls hands them over."""

from __future__ import annotations

from collections import deque

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
        """Return them as a text of numbers, and forget them."""
        taken = []
        while self._delays:
            try:
                taken.append(str(self._delays.popleft()))
            except IndexError:
                # Another thread has taken the last one.
                break
        return " ".join(taken)

    def put_back(self, taken: str) -> None:
        """Keep what could not be handed over."""
        self._delays.extend(map(int, taken.split()))
