"""The pipelines of a ShardedIck: its calls and the user's own commands, sent together.

A call whose first round trip an ick shard has refused, because the layout has changed since this
process read it, is finished after that: nothing of what was refused had been done.
"""

from __future__ import annotations

from typing import Any, Self

from workstealing.structures.sharded_ick.core import Core
from workstealing.structures.sharded_ick.surface import Surface
from workstealing.structures.steps import (
    AsyncStepsPipeline,
    BlockingStepsPipeline,
    Steps,
    StepsPipeline,
)


class _Queued(Surface, StepsPipeline):
    """What both forms share: every call queues, and returns the pipeline."""

    def __init__(self, sharded: Any, transaction: bool) -> None:
        super().__init__(sharded.client, transaction)
        self.core: Core = sharded.core

    def _perform(self, steps: Steps[Any]) -> Self:
        return self.queue_steps(steps)

    def _opening(self) -> Steps[Any]:
        return self.core.open()


class ShardedIckPipeline(_Queued, BlockingStepsPipeline):
    """The calls of a `ShardedIck`, and the user's own commands, sent together by `execute`.

    One round trip; one more if the layout is not known yet, or has changed.
    """


class AsyncShardedIckPipeline(_Queued, AsyncStepsPipeline):
    """A `ShardedIckPipeline` whose `execute` is awaited."""
