"""The job that frees the memory of expired hash fields."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import DivisibleJob, PartJob, refuse_dry_run
from workstealing.recruiting.slice import Slice
from workstealing.structures.namespaces.due_walk import DuePart
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.collecting import Backlog, Collector
from workstealing.structures.volatile_hashes.hashes import checked_hashes

__all__ = ["Backlog", "HashFieldExpiry"]


class HashFieldExpiry(DivisibleJob):
    """Removes expired fields of one namespace's volatile hashes.

    Arguments: hashes: the namespace; limit: the most fields a slice removes (5 suits web requests;
    25 and 100 are common for queue workers); dry_run: count what would be removed, at most `limit`,
    and remove nothing; name: what the job is called, by default ``hash_field_expiry.<namespace>``;
    random: returns a float in [0, 1), for the choice among due hashes.

    On a native namespace the server itself expires the fields, and every slice is idle. One slice:
    one or two round trips to find hashes that are due, and two for each hash served.

    Source: the expiry job of Jim Nelson's talk on work stealing at the Internet Archive; the due
    index that spares it from looking in vain, and the random choice in a window larger than the
    slice (as in rails/solid_cache), are additions.
    """

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        limit: int = 5,
        *,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.hashes = checked_hashes(hashes)
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.name = f"hash_field_expiry.{hashes.namespace}" if name is None else name
        self.dependency: Hashable = hashes.twin.identity
        self._collector = Collector(
            hashes.twin, hashes.names, hashes.translator, random, clock, on_loss=hashes.forget
        )

    def perform(self, slice: Slice) -> int:
        """Remove up to ``slice.limit`` expired fields, each hash in one attempt.

        Returns: how many were removed (would be, on a dry run). Errors: Aborted if another writer
        came first; LayoutError; connection faults.
        """
        if self.dry_run:
            return self._collector.count(slice)
        return self._collector.collect(slice)

    def parts(self, n: int) -> list[DuePart]:
        """Divide the namespace for a sweep, by index shards; see `DivisibleJob.parts`.

        No part if the namespace is not in use, or native. Two round trips.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return self._collector.parts(n)

    def for_part(self, part: DuePart) -> PartJob:
        """Return the job that removes inside one part, by scripts; see `DuePartJob`."""
        return self._collector.for_part(self.name, self.limit, part)

    def backlog(self, most_hashes: int = 1000, seconds: float = 5.0) -> Backlog:
        """Count the namespace's garbage: overdue hashes, expired fields, the age of the oldest.

        Arguments: most_hashes: in how many hashes at most the fields are counted (beyond that the
        count is a projection, and says so); seconds: how long it may take. A few round trips to
        each node.
        """
        return self._collector.backlog(most_hashes, seconds)
