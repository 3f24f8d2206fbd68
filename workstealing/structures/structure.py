"""The questions that every structure answers: kind, name, size, dead items, faults.

The dashboard, `status`, `doctor` and `drain` ask these questions, and guess nothing. A question is
a generator of steps. `Structure.inspect` runs it on one-attempt connections, in bounded time, so a
structure on an asyncio client is asked in the same way.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from workstealing.clock import Duration, seconds_of
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import require_one_slot, to_bytes
from workstealing.store.operations import Operation, Steps, command, drive
from workstealing.structures.access import Access

T = TypeVar("T")

INSPECT_SECONDS = 2.0
OK, NOTE, WARNING, FAULT = "ok", "note", "warning", "fault"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that `doctor` has looked at.

    Fields: what: the part that was looked at, empty for the whole structure; level: "ok", "note"
    (good to know), "warning" (works, with a drawback) or "fault" (does not work); said: one
    sentence.
    """

    what: str
    level: str
    said: str


@dataclass(frozen=True, slots=True)
class DeadItem:
    """A dead item, as people are shown it.

    Fields: member: the argument for `revive` and `discard`; attempts; times: when it was set aside,
    in Unix seconds; payload: its content: bytes, text, fields or anything that turns into text;
    tenant; error: why it died; shown: its name for people, if not member. An unknown field is None.
    """

    member: Any
    attempts: int
    times: tuple[float, ...]
    payload: Any = None
    tenant: str | None = None
    error: str | None = None
    shown: str | bytes | None = None


class DeadLetters(abc.ABC):
    """A part of a structure that sets items aside for a person.

    Attributes: name: of the part, empty if it is the only one; size: the number of dead items when
    it was looked at.
    """

    name: str = ""
    size: int = 0

    @abc.abstractmethod
    def list_steps(self, n: int) -> Steps[Sequence[DeadItem]]:
        """List up to n dead items, the oldest first: a `Page`."""

    @abc.abstractmethod
    def revive_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Put dead items back; return how many were dead."""

    @abc.abstractmethod
    def discard_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Forget dead items for good; return how many were dead."""


_INNER = {
    *("access", "asking", "clock_shift_ms", "core", "fleet_form", "layout", "monotonic", "names"),
    *("note", "notify", "on_keys", "other_names", "receipts", "script", "translator", "job_client"),
    *("entries_in", "entry_keys", "expected_blocks", "has_lost", "keys", "known", "ttl_ms"),
    "withdrawal",
}


def _is_inner(name: str) -> bool:
    return name in _INNER or name.endswith(("_steps", "_internal"))


def times_text(count: int) -> str:
    """Return a number of times in words."""
    return "once" if count == 1 else f"{count:,} times"


class Structure:
    """The base of all structures: a subclass answers the questions that it can.

    Attributes: namespace: of the keys that it keeps beside others, empty without one; client: None
    if its store is no Redis; job_client: of its client; fleet: the one on a node of which it lies,
    None without a fleet.
    """

    kind: ClassVar[str]
    """The kind of structure, in a few words: "volatile hashes"."""
    name: str
    """The structure's name, as text."""
    access: ClassVar[Access | None] = None
    """The rights that it needs on its server; None: unknown."""
    other_names: ClassVar[Mapping[str, str]] = {}
    """The names of its operations elsewhere, in small letters, and the names here."""
    namespace: str = ""
    client: Any = None
    job_client: JobClient
    fleet: Any = None

    def __dir__(self) -> list[str]:
        """List the operations for users: the parts that only this package uses are left out."""
        return [name for name in super().__dir__() if not _is_inner(name)]

    if not TYPE_CHECKING:
        # For a type checker an unknown name stays one.
        def __getattr__(self, name: str) -> Any:
            here = self.other_names.get(name.lower())
            if here is not None:
                raise AttributeError(f"{self.kind} has no {name!r}: write {here}")
            return object.__getattribute__(self, name)

    def size_steps(self) -> Steps[int | None]:
        """Return the number of its items; None if it cannot tell."""
        return None
        yield

    def halt_steps(self) -> Steps[str | None]:
        """Say in a sentence that a job on it has paused itself, and how it goes on; else None."""
        return None
        yield

    def dead_steps(self) -> Steps[Sequence[DeadLetters]]:
        """Return the parts that now hold dead items."""
        return ()
        yield

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Check that the structure's keys exist and are its own."""
        return ()
        yield

    def inspect(self, steps: Steps[T], seconds: Duration = INSPECT_SECONDS) -> T:
        """Run a question's steps on one-attempt connections; return what they return.

        Arguments:
            seconds: the most time for all of them, in seconds or a timedelta.

        Raises: ConfigurationError for another length; LayoutError; OutOfTime; connection faults;
        the steps' own errors. Replies come as bytes.
        """
        return inspect_steps(self.job_client, steps, seconds_of(seconds, "seconds"))


def inspect_steps(job_client: JobClient, steps: Steps[T], seconds: float) -> T:
    """Run a question's steps on a job client's connections; see `Structure.inspect`."""
    # A person waits for the answer, not a host: one reply may take longer than a job would wait.
    budget = Budget(seconds, timeout=seconds / 2)

    def send(job_client: JobClient, step: Any) -> Any:
        several = isinstance(step, list)
        asked = step if several else [step]
        replies = _ask(job_client, [_operation(each) for each in asked], budget)
        return replies if several else replies[0]

    return drive(job_client, steps, send)


def _operation(step: Any) -> Operation:
    if isinstance(step, Operation):
        return step
    if step[0] == "EVAL":
        # The text of a script is no key.
        return Operation(None, tuple(step[3:4]), step)
    return command(*step)


def _ask(job_client: JobClient, operations: Sequence[Operation], budget: Budget) -> list[Any]:
    """Run operations, grouped by node; one round trip to each node."""
    by_node: dict[Node, list[int]] = {}
    for position, operation in enumerate(operations):
        # A single server holds all slots, so a script's keys there may lie in several slots.
        slot = (
            require_one_slot(tuple(map(to_bytes, operation.keys))) if job_client.is_cluster else 0
        )
        by_node.setdefault(job_client.node_of(slot), []).append(position)
    results: list[Any] = [None] * len(operations)
    for node, positions in by_node.items():
        replies = job_client.call(node, [operations[each].by_text() for each in positions], budget)
        for position, reply in zip(positions, checked(replies), strict=True):
            results[position] = operations[position].read(reply)
    return results
