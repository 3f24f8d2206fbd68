"""Collecting what a due index names: a slice of it by sampling, or all of it part by part."""

from __future__ import annotations

import abc
from collections.abc import Hashable
from typing import ClassVar, Generic, TypeVar

from workstealing.errors import LayoutError, OutOfTime
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import DivisibleJob, PartJob, refuse_dry_run
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.namespaces.due_index import DueIndex, DueKey
from workstealing.structures.namespaces.due_walk import (
    PATIENCE_SECONDS,
    DuePart,
    DuePartJob,
    Served,
    divided,
)


class DueCollector(abc.ABC):
    """Collects the garbage of one namespace, through its due index.

    Arguments: index: of the namespace. A subclass names its scripts and writes `serve`.
    """

    scripts: ClassVar[str]
    """How the names of the structure's scripts begin."""

    def __init__(self, index: DueIndex) -> None:
        self._index = index

    @property
    def dependency(self) -> Hashable:
        """What a job of this collector talks to."""
        return self._index.twin.identity

    def warm_up(self) -> None:
        """Prepare a first slice; no round trip."""
        self._index.twin.warm_up(self.scripts, LAYOUT_SCRIPTS)

    @abc.abstractmethod
    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Remove at most so many items of keys that the due index names and that lie on one node.

        Arguments: found: the keys; most; slice: bounds the time; timeout: of a single wait, in
        seconds, None: as for every job. Errors: OutOfTime if nothing was removed; Aborted;
        connection faults.
        """

    def collect(self, slice: Slice) -> int:
        """Remove what is due until the slice's limit or time is reached.

        Returns: how many items were removed. Errors: LayoutError for something foreign, and
        OutOfTime, if nothing was removed; connection faults. At most two round trips to look, and
        those of `serve` after each look that found something.
        """
        self._require_writable(slice)
        removed = 0
        # What was damaged must not keep the others alive.
        problem: LayoutError | None = None
        try:
            for found in self._index.looks(slice):
                served = self.serve(found, slice.limit - removed, slice, None)
                removed += served.items
                problem = served.problem or problem
                if removed >= slice.limit or slice.expired:
                    break
        except OutOfTime:
            if not removed:
                raise
        if problem is not None and not removed:
            raise problem
        return removed

    def count(self, slice: Slice) -> int:
        """Return how many keys are due now, at most the limit; change nothing."""
        counted = 0
        for found in self._index.looks(slice):
            counted += len(found)
            if counted >= slice.limit or slice.expired:
                break
        return min(counted, slice.limit)

    def parts(self, n: int, seconds: float = 10.0) -> list[DuePart]:
        """Divide the namespace for a sweep; see `divided`."""
        return divided(self._index, n, seconds)

    def for_part(self, name: str, limit: int, part: DuePart) -> DuePartJob:
        """Return the job that collects inside one part."""
        return DuePartJob(name, limit, self._index, part, self.serve)

    def _require_writable(self, slice: Slice) -> None:
        layout = self._index.layout(Budget(slice.remaining()))
        if layout is not None:
            layout.require_writable()


def left_of(slice: Slice, timeout: float | None) -> Budget:
    """Return the time that is left of a slice; timeout: as of `DueCollector.serve`."""
    return Budget(slice.remaining()) if timeout is None else Budget(slice.remaining(), timeout)


C = TypeVar("C", bound=DueCollector)


class CollectingJob(DivisibleJob, Generic[C]):
    """A job that has a collector remove the garbage of a namespace.

    Arguments: collector; name; limit: the most items a slice removes; dry_run: count what would be
    removed, at most `limit`, and remove nothing. Errors: ConfigurationError.
    """

    def __init__(self, collector: C, name: str, limit: int, *, dry_run: bool) -> None:
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.name = name
        self.dependency: Hashable = collector.dependency
        self._collector = collector

    def perform(self, slice: Slice) -> int:
        """Remove up to ``slice.limit`` items that are due.

        Returns: how many were removed; on a dry run, how many would be, or what the job says that
        it counts. Errors: Aborted if another writer came first; LayoutError; OutOfTime if nothing
        was removed; connection faults.
        """
        if self.dry_run:
            return self._collector.count(slice)
        return self._collector.collect(slice)

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self._collector.warm_up()

    def parts(self, n: int) -> list[DuePart]:
        """Divide the namespace for a sweep, by index shards; see `DivisibleJob.parts`.

        No part if the namespace is not in use, or native. Two round trips.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return self._collector.parts(n)

    def for_part(self, part: DuePart) -> PartJob:
        """Return the job that removes inside one part, by scripts; see `DuePartJob`."""
        return self._collector.for_part(self.name, self.limit, part)
