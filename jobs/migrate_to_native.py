"""The job that moves a namespace of volatile hashes over to the server's own field expiry."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import DivisibleJob, PartJob
from workstealing.recruiting.slice import Slice
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.namespaces.due_walk import DuePart
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.hashes import checked_hashes
from workstealing.structures.volatile_hashes.migrating import Migrator

__all__ = ["MigrateToNative"]


class MigrateToNative(DivisibleJob):
    """Moves a namespace from emulated to native, slice by slice, under traffic.

    Install it once all servers are on Redis 8 or Valkey 9 and every process runs a release that
    knows the job; when the namespace is native its slices are idle, and it can be uninstalled.
    Readers and writers go on meanwhile: a hash is handed over before its next use.

    Arguments: hashes: the namespace; limit: the most fields a slice hands over; name: by default
    ``migrate_to_native.<namespace>``; random: returns a float in [0, 1).
    """

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        limit: int = 25,
        *,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.hashes = checked_hashes(hashes)
        self.limit = checked_limit(limit)
        self.name = f"migrate_to_native.{hashes.namespace}" if name is None else name
        self.dependency: Hashable = hashes.twin.identity
        self._migrator = Migrator(hashes.twin, hashes.names, hashes.translator, random, clock)

    def perform(self, slice: Slice) -> int:
        """Hand over up to ``slice.limit`` fields; close the namespace when none is left.

        Returns: how many were handed over. Errors: ConfigurationError if the server cannot expire
        fields; LayoutError; connection faults. One or two round trips to look, one for each hash.
        """
        return self._migrator.migrate(slice)

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self.hashes.twin.warm_up("volatile_", LAYOUT_SCRIPTS, "server_facts")

    def parts(self, n: int) -> list[DuePart]:
        """Divide the namespace for a sweep, by index shards; see `DivisibleJob.parts`.

        No part if the namespace is not in use, or native. Two round trips.
        """
        return self._migrator.parts(n)

    def for_part(self, part: DuePart) -> PartJob:
        """Return the job that hands over inside one part, by scripts; see `DuePartJob`."""
        return self._migrator.for_part(self.name, self.limit, part)
