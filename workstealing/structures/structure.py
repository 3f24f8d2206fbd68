"""What every structure tells of itself: its kind and name, its size, what is dead, what is wrong.

The dashboard, `status`, `doctor` and `drain` ask these questions, and guess nothing. A question is
a generator of steps, which `Structure.inspect` runs on one-attempt connections, in bounded time; so
a structure on an asyncio client is asked like any other.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.keys import require_one_slot, to_bytes
from workstealing.store.operations import Operation, Steps, as_layout_error, command, drive_by
from workstealing.store.twin import Node, Twin

T = TypeVar("T")

INSPECT_SECONDS = 2.0
OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "fault"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that `doctor` has looked at.

    Fields: what: was looked at, empty for the structure as a whole; level: "ok", "note" (good to
    know), "warning" (works, with a drawback) or "fault" (does not work); said: one sentence.
    """

    what: str
    level: str
    said: str


@dataclass(frozen=True, slots=True)
class DeadItem:
    """A dead item, as people are shown it.

    Fields: member: what `revive` and `discard` take; attempts; times: when it was set aside, in
    Unix seconds; payload: what it carries: bytes, text, fields or anything that turns into text;
    tenant; error: why it died; shown: what it is called, if not as member. What is unknown is None.
    """

    member: Any
    attempts: int
    times: tuple[float, ...]
    payload: Any = None
    tenant: str | None = None
    error: str | None = None
    shown: str | bytes | None = None


class DeadBox(abc.ABC):
    """A part of a structure that sets items aside for a person.

    Attributes: name: of the part, empty where there is one only; size: how many dead items it held
    when it was looked at.
    """

    name: str = ""
    size: int = 0

    @abc.abstractmethod
    def list_steps(self, n: int) -> Steps[Sequence[DeadItem]]:
        """List up to n dead items, those of longest ago first: a `Page`."""

    @abc.abstractmethod
    def revive_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Put dead items back; return how many were dead."""

    @abc.abstractmethod
    def discard_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Forget dead items for good; return how many were dead."""


def times_text(count: int) -> str:
    """Return how often something happened, as people say it."""
    return "once" if count == 1 else f"{count:,} times"


class Structure:
    """What the structures share. A subclass has a `twin`, and answers what it can."""

    kind: ClassVar[str]
    """What it is, in a few words: "volatile hashes"."""
    name: str
    """What it is called, as text."""
    client: Any
    twin: Twin

    def size_steps(self) -> Steps[int | None]:
        """Return how many items it holds; None: it cannot tell."""
        return None
        yield

    def dead_steps(self) -> Steps[Sequence[DeadBox]]:
        """Return its parts that hold dead items now."""
        return ()
        yield

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Say whether its keys are there, and are its own."""
        return ()
        yield

    def inspect(self, steps: Steps[T], seconds: float = INSPECT_SECONDS) -> T:
        """Run a question's steps on one-attempt connections; return what they return.

        Arguments: steps; seconds: how long all of them may take. Raises: LayoutError; OutOfTime;
        connection faults; those of the steps. Replies come as bytes.
        """
        return inspect_steps(self.twin, steps, seconds)


def inspect_steps(twin: Twin, steps: Steps[T], seconds: float) -> T:
    """Run a question's steps on a twin's connections; see `Structure.inspect`."""
    budget = Budget(seconds)

    def send(step: Any) -> Any:
        several = isinstance(step, list)
        asked = step if several else [step]
        replies = _ask(twin, [_operation(each) for each in asked], budget)
        return replies if several else replies[0]

    return drive_by(send, steps)


def _operation(step: Any) -> Operation:
    if isinstance(step, Operation):
        return step
    if step[0] == "EVAL":
        # The text of a script is no key.
        return Operation(None, tuple(step[3:4]), step)
    return command(*step)


def _ask(twin: Twin, operations: Sequence[Operation], budget: Budget) -> list[Any]:
    """Run operations, those of a node together; one round trip to each node."""
    by_node: dict[Node, list[int]] = {}
    for position, operation in enumerate(operations):
        # One server holds all slots, and a script there may have its index in another one.
        slot = require_one_slot(tuple(map(to_bytes, operation.keys))) if twin.is_cluster else 0
        by_node.setdefault(twin.node_of(slot), []).append(position)
    results: list[Any] = [None] * len(operations)
    for node, positions in by_node.items():
        replies = twin.call(node, [operations[each].by_text() for each in positions], budget)
        for position, reply in zip(positions, replies, strict=True):
            problem = as_layout_error(reply) if isinstance(reply, Exception) else None
            if problem is not None:
                raise problem
            results[position] = operations[position].read(checked([reply])[0])
    return results
