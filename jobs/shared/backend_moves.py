"""The part that the moves of a namespace share: the layout's changes, their pauses, and the marks.

A process reads the layout again after 5 seconds, so it may go by a former one for so long. Marks
tell it of most changes at once. Where a mark cannot, the job waits until every process has noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import ResponseError

from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import Node
from workstealing.store.operations import Operation, Steps
from workstealing.store.scripts import load
from workstealing.structures.due_index import DueIndex
from workstealing.structures.namespace import MARKED, Layout
from workstealing.structures.stored import stored_number, unbelieved, wrong_type

# Every process reads a layout that is not emulated again after 5 seconds, before its next command.
GRACE_SECONDS = 15.0
# So long a sweep's task waits at once, before it looks again.
NAP_SECONDS = 1.0
_LEAST_WAIT, _BEHIND_MS = 0.001, 3_600_000
_MARKS_A_LOOK, _MARKS_A_CHANGE = 1024, 64


def change_backend(index: DueIndex, before: str, after: str, budget: Budget) -> float:
    """Change the backend in a namespace's layout, if it is still the one before.

    Returns: for how many seconds processes take notice. One round trip.
    """
    script = load("layout/change")
    change = Operation(script, (index.names.layout,), (before, after), bool)
    index.drive(_one(change), budget)
    index.forget_layout()
    return max(GRACE_SECONDS, _LEAST_WAIT)


def seconds_to_wait(index: DueIndex, budget: Budget) -> float:
    """Return for how long not every process has noticed the last change; 0.0 or less if all have.

    Raises: LayoutError for a moment to come. Two round trips; one for a namespace that was never
    moved.
    """
    since = index.drive(_one(("HGET", index.names.layout, "since")), budget)
    if not since:
        return 0.0
    now = index.server_ms(budget)
    # A server that has taken over may have a clock that is a little behind.
    changed = stored_number(index.names.layout, "since", since, 0, now + _BEHIND_MS)
    return min(GRACE_SECONDS, GRACE_SECONDS - (now - changed) / 1000)


def mark_shards(
    index: DueIndex,
    layout: Layout,
    after: str,
    replaced: tuple[str, ...],
    budget: Budget,
    *,
    if_empty: bool = False,
) -> bool:
    """Give each index shard in use the mark of a backend.

    Arguments:
        after: the backend.
        replaced: the backends whose marks it takes the place of.
        if_empty: only where the due index is empty.

    Returns: whether all have it now. Raises: LayoutError for any other mark. One round trip for
    each 1,024 index shards of a node, and one for each 64 without the mark: what is done is not
    done again.
    """
    # The registry is read after the layout was changed, and a writer reads the layout after it has
    # registered an index shard. So no index shard is missed.
    script = load("volatile_hashes/mark_shard")
    mark = layout.marks_of(after)
    are_all = True
    for node, found in _marks(index, layout, budget):
        others = [shard for shard, reply in found.items() if reply != mark.encode()]
        for start in range(0, len(others), _MARKS_A_CHANGE):
            commands: list[Command] = []
            for shard in others[start : start + _MARKS_A_CHANGE]:
                keys = [index.names.mark(shard), *([index.names.due(shard)] if if_empty else [])]
                values = (mark, layout.marks_of(*replaced))
                commands.append(("EVAL", script.body, len(keys), *keys, *values))
            are_all = all(checked(index.job_client.call(node, commands, budget))) and are_all
    return are_all


def has_other_marks(index: DueIndex, layout: Layout, backend: str, budget: Budget) -> bool:
    """Say whether an index shard in use has another mark than that of a backend.

    Raises: LayoutError for a mark of no backend. One round trip for each 1,024 index shards of a
    node.
    """
    right, others = layout.marks_of(backend), layout.marks_of(*MARKED).split()
    has_others = False
    for _, found in _marks(index, layout, budget):
        for shard, mark in found.items():
            if isinstance(mark, ResponseError):
                raise wrong_type(index.names.mark(shard), mark)
            if mark is None or mark == right.encode():
                continue
            if mark.decode(errors="replace") not in others:
                raise unbelieved(index.names.mark(shard), "its mark", mark, right)
            has_others = True
    return has_others


def _marks(
    index: DueIndex, layout: Layout, budget: Budget
) -> Iterator[tuple[Node, dict[int, Any]]]:
    """Yield the replies about the marks of index shards in use, some of one node at a time."""
    for node, shards in index.shards_by_node(layout, budget).items():
        for start in range(0, len(shards), _MARKS_A_LOOK):
            some = shards[start : start + _MARKS_A_LOOK]
            asked: list[Command] = [("GET", index.names.mark(shard)) for shard in some]
            yield node, dict(zip(some, index.job_client.call(node, asked, budget), strict=True))


def _one(step: Any) -> Steps[Any]:
    return (yield step)
