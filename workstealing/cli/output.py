"""Output of the commands: one JSON object, or a plain table."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from workstealing.errors import UnwritableError

if TYPE_CHECKING:
    from workstealing.store.paging import Page


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add --json to a command's options."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object on stdout, and nothing else",
    )


def print_json(answer: Mapping[str, Any]) -> None:
    """Print one JSON object; a number that JSON cannot hold becomes null."""
    say(json.dumps(_plain(answer), default=str))


def say(text: str, end: str = "\n") -> None:
    """Print text on stdout, at once. Raises: BrokenPipeError; UnwritableError."""
    try:
        sys.stdout.write(f"{text}{end}")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnwritableError(f"stdout cannot be written to: {error.strerror}") from error


def note(text: str) -> None:
    """Print text on stderr, for a person and no program."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Return foreign text with each character spelled out that would steer a terminal."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table for people.

    Arguments:
        rows: of as many cells each.
        left: how many columns from the first on are aligned to the left, the others being figures.
    """
    lines = [list(map(printable, row)) for row in (headings, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    )


@dataclass(frozen=True, slots=True)
class Picture:
    """A table of a look.

    Fields: title; headings; rows; left: how many columns are aligned to the left; bad: the numbers
    of the red rows.
    """

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left: int = 1
    bad: frozenset[int] = frozenset()

    def text(self) -> str:
        """Return the table for people."""
        title = printable(self.title)
        return f"{title}\n{table(self.headings, self.rows, self.left)}" if self.rows else title

    def drawn(self) -> Any:
        """Return the table as rich draws it."""
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


def listed(page: Page[Any], *names: str) -> dict[str, Any]:
    """Return a page as a look prints it.

    Returns: how many items there are, these attributes of each one listed, and how many more.
    """
    found = [{name: _timed(getattr(each, name)) for name in names} for each in page]
    return {"total": page.total, "listed": found, "more": page.more}


def list_picture(title: str, found: dict[str, Any]) -> list[Picture]:
    """Return the table of a `listed` page, with the number of items left out; [] if it is empty."""
    items = found["listed"]
    if not items:
        return []
    more = f", and {found['more']:,} more" if found["more"] else ""
    rows = [["-" if value is None else str(value) for value in each.values()] for each in items]
    names = [name.replace("_", " ") for name in items[0]]
    return [Picture(f"{title}, the oldest first{more}", names, rows, left=len(names))]


def _timed(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


def figure(value: float) -> str:
    """Return a number for people, with three significant digits and its thousands marked."""
    if not math.isfinite(value):
        return "no bound"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):.10f}".rstrip("0").rstrip(".")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
