"""Waiting for a message without missing one.

Why no wake-up is lost. Whoever puts a stream into a group's ring that is empty adds a notification
in the same script. A look that finds nothing has left the ring empty, and returns the last id that
the notifications had in that same script. So whatever comes into the ring after the look comes with
a notification of a greater id; and XREAD BLOCK from that id returns at once if the notification was
added before it, however many others were: the stream keeps the last one, and one is enough, since
everybody who wakes looks for himself. While a ring holds anything, whoever sleeps has therefore a
notification coming that is newer than his look. The legacy stream's writers add no notification, so
the same XREAD waits on that stream too, from its last id at the look. A delayed message returns by
the clock: a look tells when the next one does, and who delays one adds a notification.

A notification names the stream that came in, and so whoever wakes looks there first. That is a
guess, like all that a reader expects: the look serves the stream whose turn it is, whatever it was
told, and finds nothing only where the ring is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workstealing.store.blocking import AsyncAsker, ask, checked_block, milliseconds
from workstealing.store.twin import Twin
from workstealing.structures.shuffle_queue.names import LEGACY, MOST_STREAMS, QueueNames
from workstealing.structures.shuffle_queue.reading import Nothing

__all__ = ["AsyncWaiter", "Patience", "block_command", "checked_block", "wait"]

# A look now and then shows that the consumer is alive, and that the connection is.
MOST_SECONDS = 30.0
# Where writers do not notify, the queue is looked at so often.
POLL_SECONDS = 0.1


class Patience:
    """How long a blocking read goes on, and how long it waits before each further look.

    Arguments: seconds: of the whole read; ttl: of the queue, which a look keeps; polls: whether
    nobody notifies; monotonic: this process's own clock.
    """

    def __init__(
        self, seconds: float, ttl: float, polls: bool, monotonic: Callable[[], float]
    ) -> None:
        self._monotonic = monotonic
        # Whoever sleeps uses the queue too.
        self._most = min(MOST_SECONDS, ttl / 3)
        self._end = monotonic() + seconds if seconds else None
        self._polls = polls

    def next_seconds(self, nothing: Nothing) -> float | None:
        """Return how long to wait after a look; None when the time is over."""
        if self._end is None:
            return None
        left = self._end - self._monotonic()
        if left <= 0:
            return None
        wait = min(left, self._most)
        if self._polls:
            wait = min(wait, POLL_SECONDS)
        if nothing.wait_ms is not None:
            # The server's clock has whole milliseconds.
            wait = min(wait, (nothing.wait_ms + 1) / 1000)
        return wait


def block_command(keys: QueueNames, nothing: Nothing, seconds: float) -> tuple[Any, ...]:
    """Return the command that waits from the very moment of a look."""
    return (
        *("XREAD", "COUNT", 1, "BLOCK", milliseconds(seconds)),
        *("STREAMS", keys.notifications, keys.legacy, nothing.notification, nothing.legacy),
    )


def woken_by(keys: QueueNames, reply: Any) -> int | None:
    """Return the number of the stream that a wait's reply names, None where it names none."""
    if not reply:
        return None
    # A dict of streams by RESP3, a list of pairs by RESP2.
    found = dict(reply.items() if isinstance(reply, dict) else reply)
    if keys.legacy in found:
        return LEGACY
    try:
        ((_, (_, number)),) = found[keys.notifications]
        named = int(number)
    except (KeyError, TypeError, ValueError):
        # Others may have written anything there.
        return None
    return named if LEGACY <= named < MOST_STREAMS else None


def wait(twin: Twin, keys: QueueNames, nothing: Nothing, seconds: float) -> int | None:
    """Wait until something may be there, or the time is over, on a connection of its own.

    A fault of that connection only ends the wait. Returns: the number of the stream that came in,
    None where nobody says. One round trip.
    """
    return woken_by(keys, ask(twin, keys.slot, block_command(keys, nothing, seconds), seconds))


class AsyncWaiter(AsyncAsker):
    """Connections of their own on which coroutines wait; one for each that waits at a time."""

    async def wait(self, keys: QueueNames, nothing: Nothing, seconds: float) -> int | None:
        """Wait as `wait` does, without holding up the event loop."""
        command = block_command(keys, nothing, seconds)
        return woken_by(keys, await self.ask(keys.slot, command, seconds))
