"""The job that frees the memory of expired hash fields."""

from __future__ import annotations

import random
from collections.abc import Callable

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.structures.namespaces.due_collecting import CollectingJob
from workstealing.structures.namespaces.due_index import DueIndex
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.collecting import Backlog, Collector
from workstealing.structures.volatile_hashes.hashes import checked_hashes

__all__ = ["Backlog", "HashFieldExpiry"]


class HashFieldExpiry(CollectingJob[Collector]):
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
        names, translator = hashes.names, hashes.translator
        index = DueIndex(
            hashes.twin, names, translator.clock_shift_ms, random, clock, on_loss=hashes.forget
        )
        super().__init__(
            Collector(index, names, translator.script, clock),
            f"hash_field_expiry.{hashes.namespace}" if name is None else name,
            limit,
            dry_run=dry_run,
        )

    def backlog(self, most_hashes: int = 1000, seconds: float = 5.0) -> Backlog:
        """Count the namespace's garbage: overdue hashes, expired fields, the age of the oldest.

        Arguments: most_hashes: in how many hashes at most the fields are counted (beyond that the
        count is a projection, and says so); seconds: how long it may take. A few round trips to
        each node.
        """
        return self._collector.backlog(most_hashes, seconds)
