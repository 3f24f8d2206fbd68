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
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, Moved, OutOfTime, is_connection_fault
from workstealing.store.connection import Budget
from workstealing.store.twin import Twin
from workstealing.structures.shuffle_queue.names import QueueNames
from workstealing.structures.shuffle_queue.reading import Nothing

# How much longer than the block the connection waits for the reply.
MARGIN_SECONDS = 5.0
_LONGEST_MS = 100 * 365 * 86400 * 1000
# A look now and then shows that the consumer is alive, and that the connection is.
MOST_SECONDS = 30.0
# Where writers do not notify, the queue is looked at so often.
POLL_SECONDS = 0.1
# After a fault while waiting: the application's own client then looks, and says what is wrong.
_PAUSE_SECONDS = 0.05


def checked_block(block_ms: object) -> float:
    """Return for how many seconds to wait. Errors: ConfigurationError for what is no such time."""
    if (
        isinstance(block_ms, bool)
        or not isinstance(block_ms, int | float)
        or not 0 <= block_ms <= _LONGEST_MS
    ):
        raise ConfigurationError(
            f"block_ms={block_ms!r} is no time to wait: give milliseconds, 0 for not at all"
        )
    return block_ms / 1000


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
        *("XREAD", "COUNT", 1, "BLOCK", max(1, math.ceil(seconds * 1000))),
        *("STREAMS", keys.notifications, keys.legacy, nothing.notification, nothing.legacy),
    )


def wait(twin: Twin, keys: QueueNames, nothing: Nothing, seconds: float) -> None:
    """Wait until something may be there, or the time is over, on a connection of its own.

    A fault of that connection only ends the wait. One round trip.
    """
    limit = seconds + MARGIN_SECONDS
    try:
        replies = twin.call(
            twin.node_of(keys.slot),
            [block_command(keys, nothing, seconds)],
            Budget(limit, timeout=limit),
        )
        if isinstance(replies[0], ResponseError):
            time.sleep(min(seconds, _PAUSE_SECONDS))
    except (Moved, OutOfTime):
        time.sleep(min(seconds, _PAUSE_SECONDS))
    except Exception as error:
        if not is_connection_fault(error):
            raise
        time.sleep(min(seconds, _PAUSE_SECONDS))


class AsyncWaiter:
    """Connections of their own on which coroutines wait; one for each that waits at a time.

    Arguments: twin: knows the client's settings and the cluster's nodes.
    """

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._idle: list[tuple[Any, Any, Any]] = []

    async def wait(self, keys: QueueNames, nothing: Nothing, seconds: float) -> None:
        """Wait as `wait` does, without holding up the event loop."""
        loop = asyncio.get_running_loop()
        connection = None
        try:
            node = self._twin.node_of(keys.slot)
            connection = self._take(loop, node)
            limit = seconds + MARGIN_SECONDS
            async with asyncio.timeout(limit):
                await connection.connect()
                await connection.send_command(*block_command(keys, nothing, seconds))
                await connection.read_response(timeout=limit)
        except ResponseError:
            # MOVED is one too: the next look lets the client learn the new node.
            await self._drop(connection)
            await asyncio.sleep(min(seconds, _PAUSE_SECONDS))
        except BaseException as error:
            # A reply may still be under way, cancelled or not.
            await self._drop(connection)
            if not isinstance(error, Moved) and not is_connection_fault(error):
                raise
            await asyncio.sleep(min(seconds, _PAUSE_SECONDS))
        else:
            self._idle.append((loop, node, connection))

    def _take(self, loop: Any, node: Any) -> Any:
        while self._idle:
            its_loop, its_node, connection = self._idle.pop()
            if its_loop is loop and its_node == node:
                return connection
        kind, options = self._twin.settings_of(node)
        return kind(**{**options, "socket_timeout": None})

    async def _drop(self, connection: Any) -> None:
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            _, _, connection = self._idle.pop()
            await connection.disconnect(nowait=True)
