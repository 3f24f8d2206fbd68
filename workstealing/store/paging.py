"""Large keys page by page: by the cursors of Redis' SCAN commands, and as what a call lists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LOOKED_AT = 1000
"""How many items a call that lists the oldest ones looks at, at least: in any dead set of up to so
many they are the oldest, in a larger one the oldest of so many."""
BEGINNING = b"0"
"""The cursor of a first page, and what the last page's reply gives."""


class Page(list[T]):
    """A list of what was asked for, which says how much more there is.

    Arguments: items; total: how many there are in all; start: how many were passed over.
    Attributes: total; start.
    """

    def __init__(self, items: Iterable[T] = (), total: int = 0, start: int = 0) -> None:
        super().__init__(items)
        self.start = start
        self.total = max(total, start + len(self)) if self else total

    @property
    def more(self) -> int:
        """How many come after those listed, 0 if these are the last."""
        return max(0, self.total - self.start - len(self))


def oldest(items: Iterable[T], n: int, age: Callable[[T], Any], total: int) -> Page[T]:
    """Return the first n items in the order of a key, as a page of so many in all."""
    found = sorted(items, key=age)
    return Page(found[:n], max(total, len(found)))


def paged(
    items: Iterable[T], at_once: int, ask: Callable[[list[tuple[T, bytes]]], Sequence[Any]]
) -> Iterator[list[tuple[T, Any]]]:
    """Yield all pages of some items, as lists of an item and a page of it.

    Arguments: items: what is read; at_once: of how many a page is asked for together; ask: returns
    for each item and cursor the next cursor and a page, or None where there is nothing to be read.
    """
    pending = deque((item, BEGINNING) for item in items)
    while pending:
        asked = [pending.popleft() for _ in range(min(at_once, len(pending)))]
        pages: list[tuple[T, Any]] = []
        for (item, _), reply in zip(asked, ask(asked), strict=True):
            if reply is None:
                continue
            cursor, page = reply
            if int(cursor):
                pending.append((item, b"%d" % int(cursor)))
            pages.append((item, page))
        yield pages
