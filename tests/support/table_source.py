"""A table of work in this process, as the source of a tracked set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


class TableSource:
    """Rows of ids with work, in the order of their text.

    Attributes: work: the ids; before and after: called with the question's name around each
    question, before and after the table is looked at.
    """

    def __init__(self, work: Iterable[str] = ()) -> None:
        self.work = set(work)
        self.questions: list[str] = []
        self.before: Callable[[str], Any] = lambda _: None
        self.after: Callable[[str], Any] = lambda _: None

    def rows_after(self, cursor: str, n: int, seconds: float) -> list[tuple[str, str]]:
        self.questions.append("rows_after")
        self.before("rows_after")
        rows = sorted(each for each in self.work if each > cursor)[:n]
        self.after("rows_after")
        return [(each, each) for each in rows]

    def with_work(self, ids: Sequence[str], seconds: float) -> set[str]:
        self.questions.append("with_work")
        self.before("with_work")
        found = self.work.intersection(ids)
        self.after("with_work")
        return found
