"""What answers for the table behind a tracked set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from workstealing.structures.tracked_set.sources.sql import SqlSource

__all__ = ["Source", "SqlSource"]


class Source(Protocol):
    """The two questions that the jobs of a tracked set ask of a table, each in a slice.

    Both must look at what is committed now (no lagging replica, no cache), and end within the given
    seconds. They raise `errors.Skipped` when they cannot be asked now. A source may have more:
    `warm_up(seconds)`, and `random_ids(n, seconds)`, ids of n rows with work drawn at random, which
    `TrackedSet.drift` needs; `require_ready()`, which raises Skipped before anything is touched.
    """

    def rows_after(self, cursor: str, n: int, seconds: float) -> Sequence[tuple[str, str]]:
        """Return (id, cursor) of the next at most n rows with work after a cursor, in its order.

        Arguments: cursor: what was returned with the last row, "" for the beginning; one that
        cannot be read stands for the beginning too. Fewer than n rows mean the end.
        """
        ...

    def with_work(self, ids: Sequence[str], seconds: float) -> Collection[str]:
        """Return which of these ids still have work; those that cannot be in the table have none.

        Bytes of a stored id that are no UTF-8 come as Python's surrogate escapes.
        """
        ...


def __getattr__(name: str) -> Any:
    """Load SqlSource, which needs SQLAlchemy, when it is first used."""
    if name == "SqlSource":
        from workstealing.structures.tracked_set.sources.sql import SqlSource

        return SqlSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
