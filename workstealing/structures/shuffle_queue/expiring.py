"""Removing the idle queues of a namespace."""

from __future__ import annotations

from dataclasses import dataclass

from workstealing.errors import LayoutError, OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.namespaces.due_collecting import DueCollector, left_of
from workstealing.structures.namespaces.due_index import DueIndex, DueKey
from workstealing.structures.namespaces.due_walk import PATIENCE_SECONDS, Served, due_backlog
from workstealing.structures.shuffle_queue.deleting import KEYS_A_SCRIPT, Deleted, delete_some
from workstealing.structures.shuffle_queue.names import QueueNames


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """How many queues of a namespace are idle now.

    Fields: queues: how many; oldest_seconds: how long ago the first of them came to its ttl.
    """

    queues: int
    oldest_seconds: float


class QueueCollector(DueCollector):
    """Collects the idle queues of one namespace, through a twin's one-attempt connections.

    Arguments: index: of the namespace; clock_shift_ms: for tests.
    """

    scripts = "shuffle_queue/"

    def __init__(self, index: DueIndex, clock_shift_ms: int) -> None:
        super().__init__(index)
        self._shift_ms = clock_shift_ms

    def backlog(self, seconds: float) -> QueueBacklog:
        """Count the idle queues of the namespace. Two round trips to each node.

        Arguments: seconds: how long it may take. Errors: as `collect`.
        """
        return QueueBacklog(*due_backlog(self._index, seconds))

    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Delete keys of queues, one queue after the other; two round trips for each script."""
        deleted, served = 0, 0
        problem: LayoutError | None = None
        for due in found:
            if deleted >= most:
                break
            try:
                deleted += self._delete(due, most - deleted, slice, timeout)
            except LayoutError as error:
                problem = error
            except OutOfTime:
                if not deleted:
                    raise
                break
            else:
                served += 1
        return Served(deleted, served, problem)

    def _delete(self, due: DueKey, limit: int, slice: Slice, timeout: float | None) -> int:
        """Delete at most so many keys of one queue; fewer if somebody has come back."""
        deleted = 0
        while deleted < limit:
            budget = left_of(slice, timeout)
            slice.spend(2)
            try:
                some = self._delete_some(due, min(limit - deleted, KEYS_A_SCRIPT), budget)
            except OutOfTime:
                if not deleted:
                    raise
                break
            deleted += some.keys
            if some.is_done or some.came_back:
                break
        return deleted

    def _delete_some(self, due: DueKey, limit: int, budget: Budget) -> Deleted:
        steps = delete_some(
            QueueNames(due.key),
            self._index.names.due(due.shard),
            limit,
            is_forced=False,
            clock_shift_ms=self._shift_ms,
        )
        return self._index.drive(steps, budget)
