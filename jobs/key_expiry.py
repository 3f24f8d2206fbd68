"""The job that frees the memory of durable keys whose deadline has passed."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import DivisibleJob, PartJob, refuse_dry_run
from workstealing.recruiting.slice import Slice
from workstealing.structures.durable_keys import AsyncDurableKeys, DurableKeys
from workstealing.structures.durable_keys.collecting import KeyBacklog, KeyCollector
from workstealing.structures.durable_keys.keys import checked_keys
from workstealing.structures.namespaces.due_walk import DuePart

__all__ = ["KeyBacklog", "KeyExpiry"]


class KeyExpiry(DivisibleJob):
    """Deletes durable keys of one namespace whose deadline has passed.

    Arguments: keys: the namespace; limit: the most keys a slice deletes; dry_run: count what would
    be deleted, at most `limit`, and delete nothing; name: what the job is called, by default
    ``key_expiry.<namespace>``; random: returns a float in [0, 1), for the choice among due keys.

    One slice: at most two round trips to find keys that are due, and one after each to delete
    them. A script looks at each deadline once more: an extended lease shows in the due index alone,
    which many keys share, so that a WATCH would either miss it or be broken by everybody.

    Source: seed of Jim Nelson's talk on work stealing at the Internet Archive.
    """

    def __init__(
        self,
        keys: DurableKeys | AsyncDurableKeys,
        limit: int = 25,
        *,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.keys = checked_keys(keys)
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.name = f"key_expiry.{keys.namespace}" if name is None else name
        self.dependency: Hashable = keys.twin.identity
        self._collector = KeyCollector(
            keys.twin, keys.names, keys.translator, random, clock, on_loss=keys.forget
        )

    def perform(self, slice: Slice) -> int:
        """Delete up to ``slice.limit`` keys whose deadline has passed.

        Returns: how many were deleted (would be, on a dry run). Errors: LayoutError; connection
        faults.
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
        """Return the job that deletes inside one part, by scripts; see `DuePartJob`."""
        return self._collector.for_part(self.name, self.limit, part)

    def backlog(self, seconds: float = 5.0) -> KeyBacklog:
        """Count the namespace's garbage: how many keys, and how old the oldest is.

        Arguments: seconds: how long it may take. Two round trips to each node.
        """
        return self._collector.backlog(seconds)
