"""Reading large keys page by page, by the cursors of Redis' SCAN commands, many in a round trip."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

BEGINNING = b"0"
"""The cursor of a first page, and what the last page's reply gives."""


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
