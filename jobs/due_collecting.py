"""Collecting what a due index names: a slice of it by sampling, or all of it part by part.

A slice of a job samples: it looks at a few index shards of one node, chosen at random. A sweep
works through all of them: its parts are groups of index shards, with the moment that the sweep
began at, so that a sweep beside live traffic comes to an end. On a cluster the parts are made of
all 16,384 index shards, because a registry that was lost names none of them.
"""

from __future__ import annotations

import abc
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError, OutOfTime
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    PartJob,
    checked_parts,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.due_index import (
    FIRST_LOOK,
    KEYS_A_SHARD,
    SECOND_LOOK,
    DueIndex,
    DueKey,
    scored,
)
from workstealing.structures.layout import LAYOUT_SCRIPTS

SHARDS_A_LOOK = 128
# A small slice of a sweep looks at so many index shards at least, most of which are empty.
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


def looks(index: DueIndex, slice: Slice, *, overdue: bool = True) -> Iterator[list[DueKey]]:
    """Yield keys, shuffled, found by at most two looks at one node's index shards.

    The slice observes about how many keys wait in the namespace, and the age of the oldest overdue
    one that the looks have found.
    Arguments: index; slice: bounds the time; overdue: only keys whose time has come. Raises:
    LayoutError for a foreign due index, if nothing else was found; connection faults. One round
    trip a look.
    """
    budget = Budget(slice.remaining())
    layout = index.layout(budget)
    if layout is None or layout.is_native:
        slice.observe(oldest_seconds=0.0 if overdue else None, backlog=0)
        return
    node, shards = index.choose_node(layout, budget)
    foreign: ResponseError | None = None
    found_any = False
    now: int | None = None
    looked, waiting = 0, 0
    for some in (shards[:FIRST_LOOK], shards[FIRST_LOOK : FIRST_LOOK + SECOND_LOOK]):
        if not some:
            continue
        budget = Budget(slice.remaining())
        slice.spend(2 + len(some))
        look = index.look(layout, node, some, budget, overdue=overdue, until_ms=now)
        foreign = look.foreign or foreign
        looked += len(some)
        waiting += len(look.found) if look.waiting is None else look.waiting
        slice.observe(backlog=round(waiting / index.share_of(layout, looked)))
        if overdue:
            # The second look need not bring what is not due yet.
            now = look.now_ms
            oldest = min((each.due_ms for each in look.found), default=look.now_ms)
            slice.observe(oldest_seconds=(look.now_ms - oldest) / 1000)
        if look.found:
            found_any = True
            index.shuffle(look.found)
            yield look.found
    if foreign is not None and not found_any:
        raise index.foreign(foreign)


def due_backlog(index: DueIndex, seconds: float, what: str, *, overdue: bool = True) -> Backlog:
    """Count the keys that a due index names.

    Arguments: index; seconds: how long it may take; what: the keys are called; overdue: only those
    whose time has come. Returns: how many they are, and for how many seconds the first of them has
    been due; None where those that are not due count too. Raises: LayoutError for a foreign due
    index; connection faults. Two round trips to each node.
    """
    budget = Budget(seconds, timeout=1.0)
    layout = index.layout(budget)
    if layout is None or layout.is_native:
        return Backlog(0, 0.0, what)
    keys, oldest_ms = 0, 0.0
    for node, shards in index.shards_by_node(layout, budget).items():
        (clock,) = index.twin.call(node, [("TIME",)], budget)
        now = index.milliseconds(clock)
        commands: list[tuple[Any, ...]] = []
        for shard in shards:
            due = index.names.due(shard)
            commands.append(("ZCOUNT", due, "-inf", now if overdue else "+inf"))
            commands.append(("ZRANGE", due, 0, 0, "WITHSCORES"))
        replies = index.twin.call(node, commands, budget)
        for count, first in zip(replies[::2], replies[1::2], strict=True):
            if isinstance(count, ResponseError) and "WRONGTYPE" in str(count):
                raise index.foreign(count)
            if isinstance(count, Exception):
                raise count
            keys += int(count)
            # Somebody may have come between the two, which are no transaction.
            if count and first:
                oldest_ms = max(oldest_ms, now - scored(first)[0][1])
    return Backlog(keys, oldest_ms / 1000 if overdue or not keys else None, what)


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

        Returns: how many; also 0 in the middle of a lap. Raises: LayoutError for something foreign,
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


class DueCollector(abc.ABC):
    """Collects the garbage of one namespace, through its due index.

    Arguments: index: of the namespace. A subclass names its scripts and writes `serve`.
    """

    scripts: ClassVar[str]
    """How the names of the structure's scripts begin."""
    what: ClassVar[str]
    """What the items of the backlog are."""

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
        seconds, None: as for every job. Raises: OutOfTime if nothing was removed; Aborted;
        connection faults.
        """

    def collect(self, slice: Slice) -> int:
        """Remove what is due until the slice's limit or time is reached.

        Returns: how many items were removed. Raises: LayoutError for something foreign, and
        OutOfTime, if nothing was removed; connection faults. At most two round trips to look, and
        those of `serve` after each look that found something.
        """
        self._require_writable(slice)
        removed = 0
        # What was damaged must not keep the others alive.
        problem: LayoutError | None = None
        try:
            for found in looks(self._index, slice):
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
        for found in looks(self._index, slice):
            counted += len(found)
            if counted >= slice.limit or slice.expired:
                break
        return min(counted, slice.limit)

    def backlog(self, seconds: float) -> Backlog:
        """Count the keys that are due now; see `due_backlog`."""
        return due_backlog(self._index, seconds, self.what)

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


class CollectingJob(DivisibleJob):
    """A job that has a collector remove the garbage of a namespace.

    Arguments: collector; name; limit: the most items a slice removes; dry_run: count what would be
    removed, at most `limit`, and remove nothing. Raises: ConfigurationError.
    """

    def __init__(self, collector: DueCollector, name: str, limit: int, *, dry_run: bool) -> None:
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.name = name
        self.dependency: Hashable = collector.dependency
        self._collector = collector

    def perform(self, slice: Slice) -> int:
        """Remove up to ``slice.limit`` items that are due.

        Returns: how many were removed; on a dry run, how many would be, or what the job says that
        it counts. Raises: Aborted if another writer came first; LayoutError; OutOfTime if nothing
        was removed; connection faults.
        """
        if self.dry_run:
            return self._collector.count(slice)
        return self._collector.collect(slice)

    def backlog(self, seconds: float = 5.0) -> Backlog:
        """Count the garbage of the namespace, and say how old the oldest is.

        Arguments: seconds: how long it may take. Raises: as `perform`. Two round trips to each
        node.
        """
        return self._collector.backlog(seconds)

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
