"""Commands that block, on connections of their own: nothing else waits behind them."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, Moved, OutOfTime, is_connection_fault
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.store.twin import Twin

# How much longer than the block the connection waits for the reply.
MARGIN_SECONDS = 5.0
LONGEST_MS = 100 * 365 * 86400 * 1000
# After a fault while waiting: the application's own client then looks, and says what is wrong.
_PAUSE_SECONDS = 0.05


def checked_block(block_ms: object) -> float:
    """Return for how many seconds to wait. Errors: ConfigurationError for what is no such time."""
    if (
        isinstance(block_ms, bool)
        or not isinstance(block_ms, int | float)
        or not 0 <= block_ms <= LONGEST_MS
    ):
        raise ConfigurationError(
            f"block_ms={block_ms!r} is no time to wait: give milliseconds, 0 for not at all"
        )
    return block_ms / 1000


def milliseconds(seconds: float) -> int:
    """Return a time as a BLOCK option takes it, where 0 would mean for ever."""
    return max(1, math.ceil(seconds * 1000))


def ask(twin: Twin, slot: int, command: Command, seconds: float) -> Any:
    """Send a command that blocks for at most so many seconds, on a connection of its own.

    Arguments: twin: of the application's client; slot: whose node is asked; command: its keys share
    that slot. Returns: the reply; None too after a fault of that connection, which only ends the
    wait, or an error reply. One round trip.
    """
    limit = seconds + MARGIN_SECONDS
    try:
        (reply,) = twin.call(twin.node_of(slot), [command], Budget(limit, timeout=limit))
        if not isinstance(reply, ResponseError):
            return reply
    except (Moved, OutOfTime):
        pass
    except Exception as error:
        if not is_connection_fault(error):
            raise
    time.sleep(min(seconds, _PAUSE_SECONDS))
    return None


class AsyncAsker:
    """Connections of their own on which coroutines wait; one for each that waits at a time.

    Arguments: twin: knows the client's settings and the cluster's nodes.
    """

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._idle: list[tuple[Any, Any, Any]] = []

    async def ask(self, slot: int, command: Command, seconds: float) -> Any:
        """Send a command as `ask` does, without holding up the event loop."""
        loop = asyncio.get_running_loop()
        connection = None
        try:
            node = self._twin.node_of(slot)
            connection = self._take(loop, node)
            limit = seconds + MARGIN_SECONDS
            async with asyncio.timeout(limit):
                await connection.connect()
                await connection.send_command(*command)
                reply = await connection.read_response(timeout=limit)
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
            return reply
        return None

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
