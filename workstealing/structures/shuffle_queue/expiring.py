"""Removing the idle queues of a namespace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workstealing.clock import Clock
from workstealing.errors import LayoutError, OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store.connection import Budget
from workstealing.store.twin import Twin
from workstealing.structures.namespaces.due_index import DueIndex, DueKey
from workstealing.structures.namespaces.due_walk import (
    PATIENCE_SECONDS,
    DuePart,
    DuePartJob,
    Served,
    divided,
    due_backlog,
)
from workstealing.structures.shuffle_queue.deleting import KEYS_A_SCRIPT, Deleted, delete_some
from workstealing.structures.shuffle_queue.names import IndexNames, QueueNames


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """How many queues of a namespace are idle now.

    Fields: queues: how many; oldest_seconds: how long ago the first of them came to its ttl.
    """

    queues: int
    oldest_seconds: float


class QueueCollector:
    """Collects the idle queues of one namespace, through a twin's one-attempt connections.

    Arguments: twin and names of the namespace; clock_shift_ms: for tests; random: returns a float
    in [0, 1); clock: measures how old this process's copy of the registry is.
    """

    def __init__(
        self,
        twin: Twin,
        names: IndexNames,
        clock_shift_ms: int,
        random: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._index = DueIndex(twin, names, clock_shift_ms, random, clock)
        self._names = names
        self._shift_ms = clock_shift_ms

    def collect(self, slice: Slice) -> int:
        """Delete keys of idle queues until the slice's limit or time is reached.

        Returns: how many keys were deleted. Errors: LayoutError for something foreign, and
        OutOfTime, if nothing was deleted; connection faults. At most two round trips to look, and
        two for each script.
        """
        layout = self._index.layout(Budget(slice.remaining()))
        if layout is not None:
            layout.require_writable()
        deleted = 0
        problem: LayoutError | None = None
        try:
            for found in self._index.looks(slice):
                for due in found:
                    if deleted >= slice.limit or slice.expired:
                        break
                    try:
                        deleted += self._delete(due, slice.limit - deleted, slice)
                    except LayoutError as error:
                        # One that was damaged must not keep the others alive.
                        problem = error
                if deleted >= slice.limit or slice.expired:
                    break
        except OutOfTime:
            if not deleted:
                raise
        if problem is not None and not deleted:
            raise problem
        return deleted

    def count(self, slice: Slice) -> int:
        """Return how many queues are found idle, at most the limit; change nothing."""
        counted = 0
        for found in self._index.looks(slice):
            counted += len(found)
            if counted >= slice.limit or slice.expired:
                break
        return min(counted, slice.limit)

    def backlog(self, seconds: float) -> QueueBacklog:
        """Count the idle queues of the namespace. Two round trips to each node.

        Arguments: seconds: how long it may take. Errors: as `collect`.
        """
        return QueueBacklog(*due_backlog(self._index, seconds))

    def parts(self, n: int, seconds: float = 10.0) -> list[DuePart]:
        """Divide the namespace for a sweep; see `divided`."""
        return divided(self._index, n, seconds)

    def for_part(self, name: str, limit: int, part: DuePart) -> DuePartJob:
        """Return the job that collects inside one part."""
        return DuePartJob(name, limit, self._index, part, self._serve)

    def _serve(self, found: list[DueKey], most: int, slice: Slice) -> Served:
        deleted, served = 0, 0
        problem: LayoutError | None = None
        for due in found:
            if deleted >= most:
                break
            try:
                deleted += self._delete(due, most - deleted, slice, PATIENCE_SECONDS)
            except LayoutError as error:
                problem = error
            else:
                served += 1
        return Served(deleted, served, problem)

    def _delete(self, due: DueKey, limit: int, slice: Slice, patience: float | None = None) -> int:
        """Delete at most so many keys of one queue; fewer if somebody has come back."""
        deleted = 0
        while deleted < limit:
            remaining = slice.remaining()
            budget = Budget(remaining) if patience is None else Budget(remaining, patience)
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
            self._names.due(due.shard),
            limit,
            is_forced=False,
            clock_shift_ms=self._shift_ms,
        )
        return self._index.drive(steps, budget)
