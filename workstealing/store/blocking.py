"""Commands that block, on connections of their own: nothing else waits behind them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import Moved, OutOfTime, Unmapped, is_connection_fault
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, spelled
from workstealing.store.job_client import JobClient

# How much longer than the block the connection waits for the reply.
MARGIN_SECONDS = 5.0
# After a fault while waiting: the application's own client then looks, and says what is wrong.
_PAUSE_SECONDS = 0.05


def block_ms(seconds: float) -> int:
    """Return a time as a BLOCK option takes it, where 0 would mean for ever."""
    return max(1, math.ceil(seconds * 1000))


def ask(  # noqa: PLR0917 - as the fields of `Wait`
    job_client: JobClient,
    slot: int,
    command: Command,
    seconds: float,
    look: Callable[[], float] | None = None,
    pause: float = 0.0,
) -> Any:
    """Send a command that blocks for at most so many seconds, on a connection of its own.

    Arguments:
        job_client: of the application's client.
        slot: whose node is asked.
        command: its keys share that slot.
        look: see `Wait`.
        pause: see `Wait`.

    Returns: the reply; None after a fault of that connection or an error reply, because both only
    end the wait, as a time-out does. Raises: what `look` raises. One round trip, and those of the
    looks.
    """
    failed: list[Exception] = []
    try:
        limit = seconds + MARGIN_SECONDS
        node = job_client.node_of(slot)
        with job_client.connection(node) as connection, connection.untimed():
            budget = Budget.whole(limit)
            if look is None or _is_fake(connection):
                (reply,) = connection.call([_within(command, seconds, look, pause)], budget)
            else:
                connection.call((), budget)
                reply = _looking(connection, command, limit, look, pause, failed)
        if not failed and not isinstance(reply, ResponseError):
            return reply
    except (Moved, OutOfTime, ResponseError, Unmapped):
        # MOVED is one too: the next look lets the client learn the new node.
        pass
    except Exception as error:
        if not is_connection_fault(error):
            raise
    if failed:
        raise failed[0]
    time.sleep(min(seconds, _PAUSE_SECONDS))
    return None


def _is_fake(connection: Any) -> bool:
    return any(base.__module__.startswith("fakeredis") for base in type(connection).__mro__)


def _within(
    command: Command, seconds: float, look: Callable[[], float] | None, pause: float
) -> Command:
    """Return the command; with looks, a command that ends at the first look.

    fakeredis waits while it is sent the command, so such a command waits in pieces, without a place
    in a line.
    """
    return command if look is None else (*command[:-1], min(seconds, pause))


def _looking(  # noqa: PLR0917 - as `ask`
    connection: Any,
    command: Command,
    limit: float,
    look: Callable[[], float],
    pause: float,
    failed: list[Exception],
) -> Any:
    """Wait for the reply, and look in between; what a look raises comes into `failed`."""
    end = time.monotonic() + limit
    try:
        connection.send_command(*spelled(command))
        while not connection.can_read(pause):
            if time.monotonic() > end:
                raise TimeoutError("the server does not end a wait in time")
            try:
                pause = look()
            except Exception as error:  # noqa: BLE001 - raised where none mistakes it for a fault
                failed.append(error)
                connection.disconnect()
                return None
        return connection.read_response()
    except BaseException:
        # The reply may still be under way.
        connection.disconnect()
        raise


class AsyncAsker:
    """Connections on which coroutines wait: one connection for each coroutine that waits.

    Arguments:
        job_client: knows the client's settings and the cluster's nodes.
    """

    def __init__(self, job_client: JobClient) -> None:
        self._job_client = job_client
        self._idle: list[tuple[Any, Any, Any]] = []

    async def ask(
        self,
        slot: int,
        command: Command,
        seconds: float,
        look: Callable[[], Awaitable[float]] | None = None,
        pause: float = 0.0,
    ) -> Any:
        """Send a command as `ask` does, without holding up the event loop."""
        loop = asyncio.get_running_loop()
        connection = None
        failed: list[Exception] = []
        try:
            node = self._job_client.node_of(slot)
            connection = self._take(loop, node)
            limit = seconds + MARGIN_SECONDS
            async with asyncio.timeout(limit if look is None else MARGIN_SECONDS):
                await connection.connect()
                await connection.send_command(*spelled(command))
                if look is None:
                    reply = await connection.read_response(timeout=limit)
            if look is not None:
                reply = await _looking_async(connection, limit, look, pause, failed)
        except BaseException as error:
            # A reply may still be under way, cancelled or not.
            await self._drop(connection)
            # MOVED is a ResponseError too: the next look lets the client learn the new node.
            is_fault = isinstance(error, Moved | ResponseError | Unmapped) or is_connection_fault(
                error
            )
            if failed or not is_fault:
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
        kind, options = self._job_client.settings_of(node)
        return kind(**{**options, "socket_timeout": None})

    async def _drop(self, connection: Any) -> None:
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            _, _, connection = self._idle.pop()
            await connection.disconnect(nowait=True)


async def _looking_async(
    connection: Any,
    limit: float,
    look: Callable[[], Awaitable[float]],
    pause: float,
    failed: list[Exception],
) -> Any:
    """Wait for the reply, and look in between; what a look raises comes into `failed`, too."""
    end = time.monotonic() + limit
    reading = asyncio.ensure_future(connection.read_response())
    try:
        while not (await asyncio.wait({reading}, timeout=pause))[0]:
            if time.monotonic() > end:
                raise TimeoutError("the server does not end a wait in time")
            try:
                pause = await look()
            except Exception as error:
                failed.append(error)
                raise
        return reading.result()
    except BaseException:
        reading.cancel()
        await asyncio.wait({reading}, timeout=_PAUSE_SECONDS)
        raise
