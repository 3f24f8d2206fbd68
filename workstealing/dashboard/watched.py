"""What the dashboard asks of a structure: how large it is, what is due there, and what is dead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Due:
    """What a job of the structure would find: how many, the age of the oldest, and what they are.

    Fields: count; oldest_seconds, None: unknown; what, such as "expired fields"; exact: False for a
    projection.
    """

    count: int
    oldest_seconds: float | None
    what: str
    exact: bool = True


@dataclass(frozen=True, slots=True)
class DeadItem:
    """A dead item as the dashboard lists it.

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
    shown: str | None = None


class DeadBox(Protocol):
    """What sets items aside for a person: an `Ick` does."""

    def dead(self, n: int = 100) -> Iterable[Any]:
        """List up to n dead items: names, or objects with some of the fields of a `DeadItem`."""
        ...

    def revive(self, *members: Any) -> int:
        """Put dead items back; return how many were dead."""
        ...

    def discard(self, *members: Any) -> int:
        """Forget dead items for good; return how many were dead."""
        ...


@dataclass(frozen=True, slots=True)
class Watched:
    """A structure as the dashboard sees it; make one for a structure of your own.

    Fields: name; kind, what it is; size: returns how many items it holds; due: returns what is due,
    a `Due`; dead: what holds its dead items, each an object by its name (a structure may have
    several parts); dead_size: returns how many dead items there are; job: the name of the job that
    handles what is due. What it cannot tell is None.
    """

    name: str
    kind: str
    size: Callable[[], int | None] | None = None
    due: Callable[[], Due] | None = None
    dead: Callable[[], Sequence[tuple[str, DeadBox]]] | None = None
    dead_size: Callable[[], int] | None = None
    job: str | None = None

    @property
    def id(self) -> str:
        """A short name of letters and digits that stands for this one in forms."""
        return short_id(f"{self.kind}\0{self.name}")


def short_id(name: str | bytes) -> str:
    """Return what stands for a name of any length and any content in forms and pages."""
    raw = name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")
    return hashlib.sha256(raw).hexdigest()[:24]


def named_with(end: str, members: Iterable[Any]) -> list[str]:
    """Return the names of those members that end so, without that end."""
    named = [str(each) for each in members]
    return [each.removesuffix(end) for each in named if each.endswith(end)]
