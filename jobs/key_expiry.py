"""The job that frees the memory of durable keys whose deadline has passed."""

from __future__ import annotations

import random
from collections.abc import Callable

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.structures.durable_keys import AsyncDurableKeys, DurableKeys
from workstealing.structures.durable_keys.collecting import KeyBacklog, KeyCollector
from workstealing.structures.durable_keys.keys import checked_keys
from workstealing.structures.namespaces.due_collecting import CollectingJob
from workstealing.structures.namespaces.due_index import DueIndex

__all__ = ["KeyBacklog", "KeyExpiry"]


class KeyExpiry(CollectingJob[KeyCollector]):
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
        script, shift_ms = keys.translator.script, keys.translator.clock_shift_ms
        index = DueIndex(keys.twin, keys.names, shift_ms, random, clock, on_loss=keys.forget)
        super().__init__(
            KeyCollector(index, script),
            f"key_expiry.{keys.namespace}" if name is None else name,
            limit,
            dry_run=dry_run,
        )

    def backlog(self, seconds: float = 5.0) -> KeyBacklog:
        """Count the namespace's garbage: how many keys, and how old the oldest is.

        Arguments: seconds: how long it may take. Two round trips to each node.
        """
        return self._collector.backlog(seconds)
