"""What a queue holds as tables: printed, or drawn in place on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from workstealing.cli.output import printable, table
from workstealing.store.paging import Page

LISTED = 5
"""How many of the dead or overdue messages a look lists, the oldest first."""


def listed(page: Page[Any], *names: str) -> dict[str, Any]:
    """Return a page as a look prints it: how many, these attributes of each, and how many more."""
    found = [{name: _plain(getattr(each, name)) for name in names} for each in page]
    return {"total": page.total, "listed": found, "more": page.more}


def list_picture(what: str, found: dict[str, Any]) -> list[Picture]:
    """Draw what `listed` returned, with how many more there are; nothing for none."""
    items = found["listed"]
    if not items:
        return []
    more = f", and {found['more']:,} more" if found["more"] else ""
    rows = [["-" if value is None else str(value) for value in each.values()] for each in items]
    names = [name.replace("_", " ") for name in items[0]]
    return [Picture(f"{what}, the oldest first{more}", names, rows, left=len(names))]


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


@dataclass(frozen=True, slots=True)
class Picture:
    """A table of a look. Fields: title; headings; rows; left: columns aligned so; bad: red rows."""

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left: int = 1
    bad: frozenset[int] = frozenset()

    def text(self) -> str:
        """Return it for people."""
        title = printable(self.title)
        return f"{title}\n{table(self.headings, self.rows, self.left)}" if self.rows else title

    def drawn(self) -> Any:
        """Return it as rich draws it."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        title = Text(printable(self.title), style="bold")
        if not self.rows:
            return title
        made = Table()
        for number, heading in enumerate(self.headings):
            made.add_column(heading, justify="left" if number < self.left else "right")
        for number, row in enumerate(self.rows):
            cells = [Text(printable(cell)) for cell in row]
            made.add_row(*cells, style="red" if number in self.bad else "")
        return Group(title, made)
