"""The names by which structures run steps, until the last has taken them from the store."""

from __future__ import annotations

from typing import Any

from workstealing.store.operations import Operation, Steps, drive, drive_async
from workstealing.store.pipeline import (
    AsyncPlanPipeline as AsyncStepsPipeline,
)
from workstealing.store.pipeline import (
    BlockingPlanPipeline as BlockingStepsPipeline,
)
from workstealing.store.pipeline import PlanPipeline as StepsPipeline

__all__ = [
    "AsyncStepsPipeline",
    "BlockingStepsPipeline",
    "Steps",
    "StepsPipeline",
    "drive",
    "drive_async",
    "send",
    "send_async",
]


def _one(step: Any) -> Steps[Any]:
    return (yield step)


def send(client: Any, step: Operation | list[Operation]) -> Any:
    """Run one step on a blocking client."""
    return drive(client, _one(step))


async def send_async(client: Any, step: Operation | list[Operation]) -> Any:
    """Run one step on an asyncio client."""
    return await drive_async(client, _one(step))
