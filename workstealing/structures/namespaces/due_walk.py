"""Working through a due index part by part, all of it: what a sweep does where jobs sample.

A part is a group of index shards, with the moment that the sweep began at: what has become due
since then is left to the jobs, so that a sweep beside live traffic comes to an end. On a cluster
the parts are made of all 16,384 index shards, because a registry that was lost names none of them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError, OutOfTime
from workstealing.recruiting.job import PartJob, checked_parts
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.namespaces.due_index import KEYS_A_SHARD, DueIndex, DueKey, scored

SHARDS_A_LOOK = 128
# A small slice looks at so many index shards at least, most of which are empty.
LEAST_SHARDS = 64
KEYS_A_CALL = 64
# A sweep has no caller who waits, so it lets a busy server take its time.
PATIENCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DuePart:
    """A part of a due index.

    Fields: shards: its index shards; until_ms: only what was due by then, None for everything that
    the index names.
    """

    shards: tuple[int, ...]
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class Served:
    """What has become of keys that were found.

    Fields: items: how many items were handled; keys: how many keys need no further look now;
    problem: why one of the others was left, if it was for good.
    """

    items: int
    keys: int
    problem: LayoutError | None = None


Serve = Callable[[list[DueKey], int, Slice], Served]
"""Handles at most so many items of keys that lie on one node."""


def due_backlog(index: DueIndex, seconds: float) -> tuple[int, float]:
    """Count the keys of a namespace that are due now.

    Arguments: index; seconds: how long it may take. Returns: how many they are, and for how many
    seconds the first of them has been due, 0 if there is none. Errors: LayoutError for a foreign
    due index; connection faults. Two round trips to each node.
    """
    budget = Budget(seconds, timeout=1.0)
    layout = index.layout(budget)
    if layout is None:
        return 0, 0.0
    keys, oldest_ms = 0, 0.0
    for node, shards in index.shards_by_node(layout, budget).items():
        (clock,) = index.twin.call(node, [("TIME",)], budget)
        now = index.milliseconds(clock)
        commands: list[tuple[Any, ...]] = []
        for shard in shards:
            due = index.names.due(shard)
            commands.append(("ZCOUNT", due, "-inf", now))
            commands.append(("ZRANGE", due, 0, 0, "WITHSCORES"))
        replies = index.twin.call(node, commands, budget)
        for count, first in zip(replies[::2], replies[1::2], strict=True):
            if isinstance(count, ResponseError) and "WRONGTYPE" in str(count):
                raise index.foreign(count)
            if isinstance(count, Exception):
                raise count
            keys += int(count)
            if count:
                oldest_ms = max(oldest_ms, now - scored(first)[0][1])
    return keys, oldest_ms / 1000


def divided(index: DueIndex, n: int, seconds: float, *, overdue: bool = True) -> list[DuePart]:
    """Divide a due index into at most n parts, neighbours on different nodes.

    Arguments: index; n; seconds: how long it may take; overdue: only what is due by now. Returns:
    no part if the namespace is not in use, or native. Two round trips.
    """
    n = checked_parts(n)
    budget = Budget(seconds, PATIENCE_SECONDS)
    layout = index.layout(budget)
    if layout is None or layout.is_native:
        return []
    layout.require_writable()
    until_ms = index.server_ms(budget) if overdue else None
    twin = index.twin
    shards: list[int] = list(range(layout.index_shards))
    nodes = len(twin.nodes()) if layout.registers_shards else 1
    if layout.registers_shards:
        shards.sort(key=lambda shard: (str(twin.node_of(shard)), shard))
    n = min(n, len(shards))
    bounds = [round(i * len(shards) / n) for i in range(n + 1)]
    parts = [DuePart(tuple(shards[first:last]), until_ms) for first, last in pairwise(bounds)]
    stride = -(-n // nodes)
    return [part for first in range(stride) for part in parts[first::stride]]


class DuePartJob(PartJob):
    """Works through one part, from where its last slice has stopped, until nothing is left.

    Arguments: name and limit: of the job that was divided; index; part; serve. A slice looks at
    no more than 128 index shards beyond its number of items, so that its commands are bounded too.
    """

    def __init__(self, name: str, limit: int, index: DueIndex, part: DuePart, serve: Serve) -> None:
        self.name, self.limit = name, limit
        self._index, self._part, self._serve = index, part, serve
        self._found: deque[DueKey] = deque()
        # Two sweeps at once begin at different places.
        self._next = random.randrange(len(part.shards))
        self._is_drained = False
        # Of the lap: how many index shards it has looked at; whether nothing was found that another
        # lap should look for; what is to be raised at its end.
        self._looked = 0
        self._is_clean = True
        self._problem: LayoutError | None = None
        self._foreign: ResponseError | None = None

    @property
    def is_drained(self) -> bool:
        """Whether a whole lap has found nothing that could be handled."""
        return self._is_drained

    def perform(self, slice: Slice) -> int:
        """Handle up to ``slice.limit`` items of the part.

        Returns: how many; also 0 in the middle of a lap. Errors: LayoutError for something foreign,
        at the end of a lap in which nothing else was left; OutOfTime if nothing was done; Moved;
        connection faults. One round trip for 128 index shards, and one for 64 keys.
        """
        items, looked = 0, 0
        try:
            while items < slice.limit and looked < max(slice.limit, LEAST_SHARDS):
                if not self._found:
                    if self._looked >= len(self._part.shards):
                        if self._end_lap():
                            break
                        continue
                    looked += self._look(slice)
                    continue
                items += self._serve_some(slice.limit - items, slice)
        except OutOfTime:
            if not items:
                raise
        return items

    def _serve_some(self, most: int, slice: Slice) -> int:
        size = min(len(self._found), KEYS_A_CALL, most)
        # Whatever comes of it, the next slice goes on with others, and the next lap with these.
        some = [self._found.popleft() for _ in range(size)]
        was_clean, self._is_clean = self._is_clean, False
        served = self._serve(some, most, slice)
        self._is_clean = was_clean and not served.keys
        self._problem = served.problem or self._problem
        return served.items

    def _look(self, slice: Slice) -> int:
        """Look at the next index shards that lie on one node; return how many."""
        budget = Budget(slice.remaining(), PATIENCE_SECONDS)
        layout = self._index.layout(budget)
        if layout is None or layout.is_native:
            self._looked = len(self._part.shards)
            return 0
        layout.require_writable()
        if layout.registers_shards:
            self._index.refresh_registry(budget)
        shards, twin = self._part.shards, self._index.twin
        some: list[int] = []
        most = min(SHARDS_A_LOOK, max(slice.limit, LEAST_SHARDS), len(shards) - self._looked)
        node = twin.node_of(shards[self._next])
        for shard in (*shards[self._next :], *shards[: self._next])[:most]:
            if twin.node_of(shard) != node:
                break
            some.append(shard)
        # Before the call: where a slot is on the move, the next slice looks elsewhere.
        self._next = (self._next + len(some)) % len(shards)
        self._looked += len(some)
        was_clean, self._is_clean = self._is_clean, False
        look = self._index.look(
            layout,
            node,
            some,
            budget,
            overdue=self._part.until_ms is not None,
            until_ms=self._part.until_ms,
            keys_a_shard=max(KEYS_A_SHARD, slice.limit // len(some)),
        )
        self._is_clean = was_clean
        if look.foreign is not None:
            self._foreign = look.foreign
        self._found.extend(look.found)
        return len(some)

    def _begin_lap(self) -> None:
        self._looked = 0
        self._is_clean = True
        self._problem = self._foreign = None

    def _end_lap(self) -> bool:
        """Return whether the part is drained; raise what has kept it from being so."""
        is_clean, problem, foreign = self._is_clean, self._problem, self._foreign
        self._begin_lap()
        if not is_clean:
            return False
        if problem is not None:
            raise problem
        if foreign is not None:
            raise self._index.foreign(foreign)
        self._is_drained = True
        return True
