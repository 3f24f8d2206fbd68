"""Sources: they ask the database table behind a tracked set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from workstealing.doors import light_door

if TYPE_CHECKING:
    from workstealing.structures.tracked_set.sources.sql import SqlSource

__all__ = ["Source", "SqlSource"]


class Source(Protocol):
    """The two questions that the jobs of a tracked set ask about a table, each in a slice.

    Both methods must read all data committed so far (no lagging replica, no cache), and end within
    the given seconds. Both raise `errors.Skipped` if the database cannot be asked now. A source may
    have more methods: `warm_up(seconds)`; `random_ids(n, seconds)`, which draws the ids of n rows
    with work at random, for `TrackedSet.drift`; and `require_ready()`, which raises Skipped before
    anything is touched.
    """

    def rows_after(self, cursor: str, n: int, seconds: float) -> Sequence[tuple[str, str]]:
        """Return (id, cursor) of up to n rows with work after a cursor, in the cursor's order.

        Arguments:
            cursor: the last row's; "" or an unreadable cursor means the beginning.

        Fewer than n rows mean the end.
        """
        ...

    def with_work(self, ids: Sequence[str], seconds: float) -> Collection[str]:
        """Return the ids that still have work; an id that cannot be in the table has none.

        Bytes of a stored id that are not UTF-8 come as Python's surrogate escapes.
        """
        ...


if not TYPE_CHECKING:
    __getattr__, __dir__ = light_door(
        __name__,
        {"workstealing.structures.tracked_set.sources.sql": "SqlSource"},
        needs={"sqlalchemy": "SqlSource"},
    )
