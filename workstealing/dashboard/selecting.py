"""Which part of its long lists a page shows: what is searched for, and which page of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

SIZES = {"jobs": 25, "structures": 25, "dead": 10}
"""How many rows of each list a page shows."""

LONGEST_SEARCH = 100
_FURTHEST = 1_000_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Selection:
    """What somebody wants to see.

    Fields: searches and pages, by list: jobs, structures, dead. Pages count from 1.
    """

    searches: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, int] = field(default_factory=dict)

    def is_about(self, name: str) -> bool:
        """Say whether anything of a list was asked for."""
        return bool(self.searches.get(name)) or name in self.pages

    def arguments(self, without: str = "") -> dict[str, str]:
        """Return what an address carries to ask for this again, but for one list."""
        found: dict[str, str] = {}
        for name in SIZES:
            if name != without and self.searches.get(name):
                found[name] = self.searches[name]
            if name != without and self.pages.get(name, 1) > 1:
                found[f"{name}_page"] = str(self.pages[name])
        return found


@dataclass(frozen=True, slots=True)
class Pager:
    """Where in a list a page is.

    Fields: search; page, counted from 1, and pages; found: of total; first: number of the first row
    shown, from 0; size.
    """

    search: str
    page: int
    pages: int
    found: int
    total: int
    size: int

    def plain(self) -> dict[str, Any]:
        """Return it as plain data for JSON and for templates."""
        first = (self.page - 1) * self.size
        last = min(self.found, first + self.size)
        rows = f"{first + 1:,} to {last:,} of {self.found:,}" if self.found else "none found"
        return {
            "search": self.search,
            "previous": max(1, self.page - 1),
            "next": min(self.pages, self.page + 1),
            "is_first": self.page <= 1,
            "is_last": self.page >= self.pages,
            "is_needed": bool(self.search) or self.total > self.size,
            "rows": rows + (f" ({self.total:,} in all)" if self.search else ""),
        }


def selection_of(arguments: Mapping[str, str]) -> Selection:
    """Read what an address asks for; nonsense asks for nothing."""
    searches, pages = {}, {}
    for name in SIZES:
        searches[name] = arguments.get(name, "").strip()[:LONGEST_SEARCH]
        number = arguments.get(f"{name}_page", "")
        if number.isascii() and number.isdigit() and len(number) < len(str(_FURTHEST)):
            pages[name] = max(1, int(number))
    return Selection(searches, pages)


def select(
    selection: Selection, name: str, rows: Sequence[_T], texts: Callable[[_T], Sequence[str]]
) -> tuple[list[_T], list[_T], Pager]:
    """Return the rows that were searched for, those of the page, and where that is.

    Arguments: selection; name: of the list; rows, in their order; texts: returns what is searched
    in a row. A page beyond the last is the last one.
    """
    search = selection.searches.get(name, "")
    wanted = search.casefold()
    found = [
        row for row in rows if not wanted or any(wanted in each.casefold() for each in texts(row))
    ]
    size = SIZES[name]
    pages = max(1, -(-len(found) // size))
    page = min(selection.pages.get(name, 1), pages)
    some = found[(page - 1) * size : page * size]
    return found, some, Pager(search, page, pages, len(found), len(rows), size)
