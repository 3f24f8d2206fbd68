"""The pipelines of a ShardedIck: its calls and the user's own commands, sent together.

A call whose first round trip an ick shard has refused, because the layout has changed since this
process read it, is finished after that: nothing of what was refused had been done.
"""

from __future__ import annotations

from typing import Any, Self

from workstealing.store.operations import Plan
from workstealing.store.pipeline import (
    AsyncPlanPipeline,
    BlockingPlanPipeline,
    Filling,
    PlanPipeline,
    checked_results,
)
from workstealing.structures.sharded_ick.core import Core
from workstealing.structures.sharded_ick.steps import Steps, drive, drive_async
from workstealing.structures.sharded_ick.surface import Surface


class _Begun:
    """A call whose first operations have been run, with their replies."""

    def __init__(self, steps: Steps[Any], replies: list[Any]) -> None:
        self.steps, self.replies = steps, replies


class _Queued(Surface, PlanPipeline):
    """What both forms share: every call queues, and returns the pipeline."""

    def __init__(self, sharded: Any, transaction: bool) -> None:
        super().__init__(sharded.client, transaction)
        self.core: Core = sharded.core

    def _perform(self, steps: Steps[Any]) -> Self:
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


class ShardedIckPipeline(_Queued, BlockingPlanPipeline):
    """The calls of a `ShardedIck`, and the user's own commands, sent together by `execute`."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results in order.

        Arguments: raise_on_error: whether the first error is raised, or returned in its place. One
        round trip; one more if the layout is not known yet, or has changed.
        """
        try:
            if not self._queue:
                return []
            drive(self._client, self.core.open())
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


class AsyncShardedIckPipeline(_Queued, AsyncPlanPipeline):
    """A `ShardedIckPipeline` whose `execute` is awaited."""

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results; see `ShardedIckPipeline.execute`."""
        try:
            if not self._queue:
                return []
            await drive_async(self._client, self.core.open())
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
