"""Large keys page by page: over the cursors of Redis' SCAN commands, and in lists of results."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LOOKED_AT = 1000
"""The least number of items that a call looks at to list the oldest ones.

In a dead set of up to this size it finds the oldest of all; in a larger one the oldest of these.
"""
BEGINNING = b"0"
CURSOR = re.compile(rb"[0-9]{1,20}")
"""The form of every cursor of SCAN and its kind."""
"""The cursor of a first page, and the one that the last page returns."""


class Page(list[T]):
    """A list of the requested items, which also says how many more there are.

    Arguments:
        total: the number of items in all.
        start: the number of items passed over.

    Attributes: total; start.
    """

    def __init__(self, items: Iterable[T] = (), total: int = 0, start: int = 0) -> None:
        super().__init__(items)
        self.start = start
        self.total = max(total, start + len(self)) if self else total

    @property
    def more(self) -> int:
        """How many items come after the listed ones; 0 if these are the last."""
        return max(0, self.total - self.start - len(self))


def oldest(items: Iterable[T], n: int, age: Callable[[T], Any], total: int) -> Page[T]:
    """Return the first n items in the order of a key, as a page of so many in all."""
    found = sorted(items, key=age)
    return Page(found[:n], max(total, len(found)))


def paged(
    items: Iterable[T], at_once: int, ask: Callable[[list[tuple[T, bytes]]], Sequence[Any]]
) -> Iterator[list[tuple[T, Any]]]:
    """Yield all pages of some items, as lists of an item and a page of it.

    Arguments:
        items: the items to read.
        at_once: for how many items `ask` is called together.
        ask: returns for each item and cursor the next cursor and a page, or None if the item has
            nothing to read.
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
