"""What the dashboard asks of a structure: how large it is, what waits there, and what is dead."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from workstealing.recruiting.job import Backlog
from workstealing.structures.structure import DeadBox as InspectedBox
from workstealing.structures.structure import DeadItem, Structure


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
    """A structure as the dashboard sees it; make one for what is no `Structure`.

    Fields: name; kind: what it is; size: returns how many items it holds; due: returns what waits
    for a job, a `Backlog`; dead: returns what holds its dead items, each an object by its name (a
    structure may have several parts); dead_size: returns how many dead items there are; job: the
    name of the job that handles what is due. What it cannot tell is None.
    """

    name: str
    kind: str
    size: Callable[[], int | None] | None = None
    due: Callable[[], Backlog | None] | None = None
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


class PartDead:
    """The dead items of a part of a structure; other parts may have items of the same names.

    Arguments: structure; box: the part, as `Structure.dead_steps` returns it; name: of the part,
    empty for that of a structure that has one only.
    """

    def __init__(self, structure: Structure, box: InspectedBox, name: str) -> None:
        self._structure, self._box = structure, box
        self._end = f" of {name}" if name else ""
        self._raw_end = self._end.encode()
        self.size = box.size

    def dead(self, n: int = 100) -> list[DeadItem]:
        """List up to n dead items, those of longest ago first."""
        found = self._structure.inspect(self._box.list_steps(n))
        if not self._end:
            return list(found)
        return [
            replace(
                each,
                member=self._with_end(each.member),
                shown=_shown(each.member) if each.shown is None else each.shown,
            )
            for each in found
        ]

    def revive(self, *members: Any) -> int:
        """Put dead items of this part back; return how many were dead."""
        return self._structure.inspect(self._box.revive_steps(self._own(members)))

    def discard(self, *members: Any) -> int:
        """Forget dead items of this part for good; return how many were dead."""
        return self._structure.inspect(self._box.discard_steps(self._own(members)))

    def _own(self, members: Iterable[Any]) -> list[Any]:
        if not self._end:
            return list(members)
        named = [_shown(each) for each in members]
        ends = [self._raw_end if isinstance(each, bytes) else self._end for each in named]
        pairs = zip(named, ends, strict=True)
        return [each.removesuffix(end) for each, end in pairs if each.endswith(end)]

    def _with_end(self, member: Any) -> Any:
        return member + self._raw_end if isinstance(member, bytes) else f"{member}{self._end}"


def _shown(member: Any) -> Any:
    # Bytes stay what they are: as text they would be another member.
    return member if isinstance(member, bytes) else str(member)
