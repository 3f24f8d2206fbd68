"""What a queue holds as tables: printed, or drawn in place on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workstealing.cli.output import printable, table


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
