"""Removing the garbage of a namespace of durable keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.scripts import Script
from workstealing.structures.namespaces.due_collecting import DueCollector, left_of
from workstealing.structures.namespaces.due_index import DueIndex, DueKey
from workstealing.structures.namespaces.due_walk import PATIENCE_SECONDS, Served, due_backlog


@dataclass(frozen=True, slots=True)
class KeyBacklog:
    """How much garbage a namespace of durable keys holds now.

    Fields: keys: how many deadlines have passed; oldest_seconds: how long ago the first of them.
    """

    keys: int
    oldest_seconds: float


class KeyCollector(DueCollector):
    """Collects the garbage of one namespace, through a twin's one-attempt connections.

    Arguments: index: of the namespace; script: gives a script of durable keys by its name.
    """

    scripts = "durable_"

    def __init__(self, index: DueIndex, script: Callable[[str], Script]) -> None:
        super().__init__(index)
        self._script = script

    def backlog(self, seconds: float = 5.0) -> KeyBacklog:
        """Count the garbage of the namespace. Two round trips to each node.

        Arguments: seconds: how long it may take. Errors: as `collect`.
        """
        return KeyBacklog(*due_backlog(self._index, seconds))

    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Remove keys in one round trip; entries whose key has gone otherwise count too."""
        # A key whose lease was extended counts as served: its due time stands in the index.
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
        node = self._index.twin.node_of(found[0].shard)
        replies = self._index.twin.call(node, commands, budget)
        return sum(int(reply) for reply in self._checked(replies))

    def _checked(self, replies: list[Any]) -> list[Any]:
        try:
            return checked(replies)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            raise LayoutError(
                f"a due index of the namespace {self._index.names.namespace!r} holds something"
                f" foreign: {error}"
            ) from error
