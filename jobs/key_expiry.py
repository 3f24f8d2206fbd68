"""The job that frees the memory of durable keys whose deadline has passed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.jobs.shared.due_collecting import (
    PATIENCE_SECONDS,
    CollectingJob,
    DueCollector,
    Served,
    left_of,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked, is_elsewhere
from workstealing.store.scripts import Script
from workstealing.structures.access import JobAccess
from workstealing.structures.due_index import DueIndex, DueKey
from workstealing.structures.durable_keys import AsyncDurableKeys, DurableKeys
from workstealing.structures.durable_keys.keys import checked_keys

__all__ = ["KeyExpiry"]


class KeyExpiry(CollectingJob):
    """Deletes durable keys of one namespace whose deadline has passed.

    Arguments:
        keys: the namespace.
        limit: the most keys a slice deletes.
        dry_run: count the keys that a slice would delete, at most `limit`, and delete nothing.
        name: of the job, by default ``key_expiry.<namespace>``.
        random: returns a float in [0, 1), for the choice among due keys.

    A slice takes at most two round trips to find keys that are due, and one after each to delete
    them. A script checks each deadline again, in place of WATCH: an extended lease changes only the
    due index. Many keys share that, so other writers would break a WATCH of it all the time.

    Source: seed of Jim Nelson's talk on work stealing at the Internet Archive.
    """

    access = JobAccess(("durable keys",))
    unit = "keys"

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
        self.structures = tuple(keys.on_nodes.values())
        name = f"key_expiry.{keys.namespace}" if name is None else name
        collectors = {}
        for node, each in keys.on_nodes.items():
            script, shift_ms = each.translator.script, each.translator.clock_shift_ms
            index = DueIndex(
                each.job_client, each.names, shift_ms, random, clock, on_loss=each.forget
            )
            collectors[node] = _KeyCollector(index, script)
        super().__init__(collectors, name, limit, dry_run=dry_run, random=random)


class _KeyCollector(DueCollector):
    """Collects the garbage of one namespace, through a job client's one-attempt connections.

    Arguments:
        index: of the namespace.
        script: gives a script of durable keys by its name.
    """

    scripts = "durable_keys/"
    what = "keys past their deadline"

    def __init__(self, index: DueIndex, script: Callable[[str], Script]) -> None:
        super().__init__(index)
        self._script = script

    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Remove keys in one round trip; entries whose key is gone already count too."""
        # A key whose lease was extended counts as served: the index has its new due time.
        some = found[:most]
        # One script for each index shard.
        slice.spend(len({due.shard for due in some}))
        return Served(self._remove(some, left_of(slice, timeout)), len(some))

    def _remove(self, found: list[DueKey], budget: Budget) -> int:
        """Remove keys of one node in one round trip, by a script for each index shard."""
        script = self._script("collect")
        by_shard: dict[int, list[bytes]] = {}
        for due in found:
            by_shard.setdefault(due.shard, []).append(due.key)
        commands = [
            ("EVAL", script.body, 1 + len(keys), self._index.names.due(shard), *keys)
            for shard, keys in by_shard.items()
        ]
        if not commands:
            return 0
        node = self._index.job_client.node_of(found[0].shard)
        replies, moved = self._index.job_client.call_each(node, commands, budget)
        here = [reply for reply in replies if not is_elsewhere(reply)]
        if moved is not None and not here:
            raise moved
        return sum(int(reply) for reply in self._checked(here))

    def _checked(self, replies: list[Any]) -> list[Any]:
        try:
            return checked(replies)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            raise self._index.foreign(error) from error
