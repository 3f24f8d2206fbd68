"""What a ShardedIck does, written once as generators: they yield operations and get their results.

A list of operations goes to the server in one round trip. The same generator runs on a client, is
awaited on an asyncio client, or begins on a pipeline.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from workstealing.store.operations import (
    Operation,
    Plain,
    Plan,
    as_layout_error,
    driven,
    driven_async,
    perform,
    perform_async,
)
from workstealing.store.pipeline import Filling, checked_results

T = TypeVar("T")
Step = list[Operation] | Plain
Steps = Generator[Step, Any, T]


def drive(client: Any, steps: Steps[T], reply: Any = None) -> T:
    """Run a generator on a blocking client and return what it returns.

    Arguments: reply: what it is sent first, if it has been begun. Errors: LayoutError; those of
    redis-py; the generator's own.
    """
    return driven(steps, partial(send, client), reply)


async def drive_async(client: Any, steps: Steps[T], reply: Any = None) -> T:
    """Run a generator on an asyncio client; see `drive`."""
    return await driven_async(steps, partial(send_async, client), reply)


def send(client: Any, step: Step) -> Any:
    """Run one step on a blocking client: a command, or operations in one round trip."""
    if isinstance(step, Plain):
        return _checked(client.execute_command, step)
    if len(step) == 1:
        return [perform(client, Plan((step[0],)))]
    filling = _filled(client, step)
    return checked_results(filling.results(filling.target.execute(raise_on_error=False)), True)


async def send_async(client: Any, step: Step) -> Any:
    """Run one step on an asyncio client; see `send`."""
    if isinstance(step, Plain):
        return await _checked_async(client.execute_command, step)
    if len(step) == 1:
        return [await perform_async(client, Plan((step[0],)))]
    filling = _filled(client, step)
    replies = await filling.target.execute(raise_on_error=False)
    return checked_results(filling.results(replies), True)


def _filled(client: Any, operations: list[Operation]) -> Filling:
    filling = Filling(client, transaction=False)
    for operation in operations:
        filling.plan(Plan((operation,)))
    return filling


def _checked(execute: Any, step: Plain) -> Any:
    try:
        return execute(*step.args, **step.options)
    except ResponseError as error:
        raise as_layout_error(error) or error from None


async def _checked_async(execute: Any, step: Plain) -> Any:
    try:
        return await execute(*step.args, **step.options)
    except ResponseError as error:
        raise as_layout_error(error) or error from None
