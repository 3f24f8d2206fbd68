"""Commands sent aside: once, in a bounded time, on a connection of their own.

A caller that is interrupted gives back what it may have been granted. The caller's own connection
may still owe it a reply, its pool may be full, and redis-py would try again for a long time. A
job's connection is not taken either: what is sent on it must fit into a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from redis.exceptions import DataError, ResponseError, TimeoutError

from workstealing.errors import WorkStealingError, is_pool_full
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, spelled
from workstealing.store.job_client import JobClient, Node

# The time-out where the application's client has none; and how long a cancelled caller waits.
PATIENCE_SECONDS = 1.0
# An event loop itself holds its tasks weakly.
_tasks: set[asyncio.Task[Any]] = set()
_CERTAIN = (WorkStealingError, ResponseError, DataError)


def leaves_open(error: BaseException) -> bool:
    """Say whether nobody knows, after an error, what the server has done, and there is time to ask.

    A server's refusal is certain, and so is an error before anything was sent. After a time-out of
    the client's own, the caller has waited for as long as it wanted to. Every other error may be a
    cut connection, or an interruption: a cancelled task, a signal handler's exception.
    """
    return not (isinstance(error, (*_CERTAIN, TimeoutError)) or is_pool_full(error))


def send_aside(job_client: JobClient, node: Node, commands: Sequence[Command]) -> list[Any]:
    """Send commands to a node; return the replies, errors in their places.

    Arguments:
        job_client: of the application's client, whose time-out bounds it.

    Raises: connection faults; OutOfTime. One round trip, and those of a new connection.
    """
    seconds = _patience(job_client, node)
    connection = job_client.made_for(node)
    try:
        return connection.call_each(commands, Budget.whole(seconds))
    finally:
        connection.disconnect()


async def send_aside_async(
    job_client: JobClient, node: Node, commands: Sequence[Command]
) -> list[Any]:
    """Send commands to a node on an asyncio connection; see `send_aside`."""
    kind, options = job_client.settings_of(node)
    connection = kind(**options)
    try:
        async with asyncio.timeout(_patience(job_client, node)):
            await connection.connect()
            for each in commands:
                await connection.send_command(*spelled(each))
            return [await _reply(connection) for _ in commands]
    finally:
        await connection.disconnect(nowait=True)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _patience(job_client: JobClient, node: Node) -> float:
    return float(job_client.settings_of(node)[1].get("socket_timeout") or PATIENCE_SECONDS)


async def finish(work: Coroutine[Any, Any, Any], interruption: BaseException | None) -> bool:
    """Let work go on to its end in a task of its own, which a cancelled caller cannot cancel.

    The caller waits for it for a bounded time; not at all if it is being closed, when nobody can
    await any more. Returns: whether the work is done. Work that raises is over; it raises nothing
    here.
    """
    try:
        task = asyncio.get_running_loop().create_task(work)
    except RuntimeError:
        # A coroutine that is closed after its event loop.
        work.close()
        return False
    _tasks.add(task)
    task.add_done_callback(_forget)
    if not isinstance(interruption, GeneratorExit):
        await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    return task.done() and not task.cancelled() and task.exception() is None


def _forget(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        # Retrieved, so that the event loop does not log it.
        task.exception()
