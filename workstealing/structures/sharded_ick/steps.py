"""What a ShardedIck does, written once as generators: they yield operations and get their results.

A list of operations goes to the server in one round trip. The same generator runs on a client, is
awaited on an asyncio client, or begins on a pipeline.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from workstealing.store.operations import (
    Operation,
    Plain,
    Plan,
    as_layout_error,
    perform,
    perform_async,
)
from workstealing.store.pipeline import Filling, checked_results

T = TypeVar("T")
Steps = Generator[list[Operation] | Plain, Any, T]


def drive(client: Any, steps: Steps[T], reply: Any = None) -> T:
    """Run a generator on a blocking client and return what it returns.

    Arguments: reply: what it is sent first, if it has been begun. Errors: LayoutError; those of
    redis-py; the generator's own.
    """
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result
        if isinstance(step, Plain):
            reply = _checked(client.execute_command, step)
        elif len(step) == 1:
            reply = [perform(client, Plan((step[0],)))]
        else:
            filling = _filled(client, step)
            reply = checked_results(
                filling.results(filling.target.execute(raise_on_error=False)), True
            )


async def drive_async(client: Any, steps: Steps[T], reply: Any = None) -> T:
    """Run a generator on an asyncio client; see `drive`."""
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result
        if isinstance(step, Plain):
            reply = await _checked_async(client.execute_command, step)
        elif len(step) == 1:
            reply = [await perform_async(client, Plan((step[0],)))]
        else:
            filling = _filled(client, step)
            replies = await filling.target.execute(raise_on_error=False)
            reply = checked_results(filling.results(replies), True)


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
