"""Single flight: at most one slice runs in a process, whichever recruiter it belongs to."""

from __future__ import annotations

import os


class Flight:
    """A place for one slice at a time.

    The holder is known by a token that it makes beforehand, not by an answer that it must not miss:
    a host's time-out may be raised by a signal between any two steps, and a place that nobody knows
    to be taken would never be free again. Nothing here waits, so threads, greenlets, signal
    handlers and finalizers may all ask.
    """

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: dict[str, object] = {}

    def claim(self, token: object) -> bool:
        """Take the place for the token if it is free; say whether the token holds it."""
        # setdefault on a dict with str keys is one step for every thread.
        return self._holder.setdefault("slice", token) is token

    def release(self, token: object) -> None:
        """Free the place if the token holds it; otherwise do nothing."""
        if self._holder.get("slice") is token:
            del self._holder["slice"]

    def reset(self) -> None:
        """Free the place, whoever holds it."""
        self._holder.clear()


FLIGHT = Flight()

if hasattr(os, "register_at_fork"):
    # The thread that ran the parent's slice does not exist in the child.
    os.register_at_fork(after_in_child=FLIGHT.reset)
