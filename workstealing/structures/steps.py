"""Calls of several round trips, written once as generators that yield operations and get results.

A list of operations goes to the server in one round trip. The same generator runs on a client, is
awaited on an asyncio client, or begins on a pipeline: its first round trip is the pipeline's, and
what it needs beyond that is done as soon as the pipeline has been executed.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, Self, TypeVar

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
from workstealing.store.pipeline import (
    AsyncPlanPipeline,
    BlockingPlanPipeline,
    Filling,
    PlanPipeline,
    checked_results,
)

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


class _Begun:
    """A call whose first operations have been run, with their replies."""

    def __init__(self, steps: Steps[Any], replies: list[Any]) -> None:
        self.steps, self.replies = steps, replies


class StepsPipeline(PlanPipeline):
    """A `PlanPipeline` that queues generators of steps too; both its forms share this."""

    def queue_steps(self, steps: Steps[Any]) -> Self:
        """Queue a call; its first step is run by `execute`, and the others after that."""

        def fill(filling: Filling) -> None:
            try:
                operations = next(steps)
            except StopIteration as done:
                result = done.value
                filling.plan(Plan((), lambda _: result))
            else:
                assert isinstance(operations, list)
                filling.plan(Plan(tuple(operations), lambda replies: _Begun(steps, replies)))

        self._queue.append(fill)
        return self

    def _opening(self) -> Steps[Any]:
        """Do what must be known before anything is queued; by default nothing."""
        yield from ()


class BlockingStepsPipeline(StepsPipeline, BlockingPlanPipeline):
    """A `StepsPipeline` on a blocking client."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results in order.

        Arguments: raise_on_error: whether the first error is raised, or returned in its place. One
        round trip, and those of calls that need more than one by themselves.
        """
        try:
            if not self._queue:
                return []
            drive(self._client, self._opening())
            filling = self._filled()
            results = filling.results(filling.target.execute(raise_on_error=False))
            for position, result in enumerate(results):
                if isinstance(result, _Begun):
                    try:
                        results[position] = drive(self._client, result.steps, result.replies)
                    except Exception as error:  # noqa: BLE001 - it is a result like the others
                        results[position] = error
            return checked_results(results, raise_on_error)
        finally:
            self.reset()


class AsyncStepsPipeline(StepsPipeline, AsyncPlanPipeline):
    """A `StepsPipeline` whose `execute` is awaited."""

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results; see `BlockingStepsPipeline.execute`."""
        try:
            if not self._queue:
                return []
            await drive_async(self._client, self._opening())
            filling = self._filled()
            results = filling.results(await filling.target.execute(raise_on_error=False))
            for position, result in enumerate(results):
                if isinstance(result, _Begun):
                    try:
                        results[position] = await drive_async(
                            self._client, result.steps, result.replies
                        )
                    except Exception as error:  # noqa: BLE001 - it is a result like the others
                        results[position] = error
            return checked_results(results, raise_on_error)
        finally:
            self.reset()
