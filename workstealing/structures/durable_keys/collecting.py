"""Removing the garbage of a namespace of durable keys."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import LayoutError, OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store.connection import Budget, checked
from workstealing.store.twin import Twin
from workstealing.structures.durable_keys.commands import Translator
from workstealing.structures.durable_keys.layout import KeyNames
from workstealing.structures.namespaces.due_index import DueIndex, DueKey
from workstealing.structures.namespaces.due_walk import (
    PATIENCE_SECONDS,
    DuePart,
    DuePartJob,
    Served,
    divided,
    due_backlog,
)


@dataclass(frozen=True, slots=True)
class KeyBacklog:
    """How much garbage a namespace of durable keys holds now.

    Fields: keys: how many deadlines have passed; oldest_seconds: how long ago the first of them.
    """

    keys: int
    oldest_seconds: float


class KeyCollector:
    """Collects the garbage of one namespace, through a twin's one-attempt connections.

    Arguments: twin, names, translator of the namespace; random: returns a float in [0, 1); clock:
    measures how old this process's copy of the registry is; on_loss: called when the layout turns
    out to have been lost or changed.
    """

    def __init__(
        self,
        twin: Twin,
        names: KeyNames,
        translator: Translator,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
        *,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self._index = DueIndex(
            twin, names, translator.clock_shift_ms, random, clock, on_loss=on_loss
        )
        self._twin = twin
        self._names = names
        self._script = translator.script

    def collect(self, slice: Slice) -> int:
        """Remove keys whose deadline has passed until the slice's limit or time is reached.

        Returns: how many were removed; entries whose key has gone otherwise count too. Errors:
        LayoutError for a foreign due index, and OutOfTime, if nothing was removed; connection
        faults. At most two round trips to look and one after each look that found something.
        """
        layout = self._index.layout(Budget(slice.remaining()))
        if layout is not None:
            layout.require_writable()
        removed = 0
        try:
            for found in self._index.looks(slice):
                some = found[: slice.limit - removed]
                # One script for each index shard.
                slice.spend(len({due.shard for due in some}))
                removed += self._remove(some, Budget(slice.remaining()))
                if removed >= slice.limit or slice.expired:
                    break
        except OutOfTime:
            if not removed:
                raise
        return removed

    def count(self, slice: Slice) -> int:
        """Return how many keys `collect` would remove now, at most the limit; change nothing."""
        counted = 0
        for found in self._index.looks(slice):
            counted += len(found)
            if counted >= slice.limit or slice.expired:
                break
        return min(counted, slice.limit)

    def backlog(self, seconds: float = 5.0) -> KeyBacklog:
        """Count the garbage of the namespace. Two round trips to each node.

        Arguments: seconds: how long it may take. Errors: as `collect`.
        """
        return KeyBacklog(*due_backlog(self._index, seconds))

    def parts(self, n: int, seconds: float = 10.0) -> list[DuePart]:
        """Divide the namespace for a sweep; see `divided`."""
        return divided(self._index, n, seconds)

    def for_part(self, name: str, limit: int, part: DuePart) -> DuePartJob:
        """Return the job that collects inside one part."""
        return DuePartJob(name, limit, self._index, part, self._serve)

    def _serve(self, found: list[DueKey], most: int, slice: Slice) -> Served:
        # A key whose lease was extended counts as served: its due time stands in the index.
        some = found[:most]
        return Served(self._remove(some, Budget(slice.remaining(), PATIENCE_SECONDS)), len(some))

    def _remove(self, found: list[DueKey], budget: Budget) -> int:
        """Remove keys of one node in one round trip, by a script for each index shard."""
        script = self._script("collect")
        by_shard: dict[int, list[bytes]] = {}
        for due in found:
            by_shard.setdefault(due.shard, []).append(due.key)
        commands = [
            ("EVAL", script.body, 1 + len(keys), self._names.due(shard), *keys)
            for shard, keys in by_shard.items()
        ]
        if not commands:
            return 0
        node = self._twin.node_of(found[0].shard)
        replies = self._twin.call(node, commands, budget)
        return sum(int(reply) for reply in self._checked(replies))

    def _checked(self, replies: list[Any]) -> list[Any]:
        try:
            return checked(replies)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            raise LayoutError(
                f"a due index of the namespace {self._names.namespace!r} holds something foreign:"
                f" {error}"
            ) from error
