"""Collects the garbage that a due index names: some by sampling, or all of it part by part.

A slice of a job samples: it looks at a few index shards of one node, chosen at random. A sweep
works through all index shards. A part of such a job is a group of index shards, and it collects
only keys that were due when it began, so that it ends even under live traffic. On a cluster the
parts cover all 16,384 index shards, because a lost registry names none of them.
"""

from __future__ import annotations

import abc
import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, ClassVar, NamedTuple

from redis.exceptions import ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import LayoutError, OutOfTime, Skipped, is_connection_fault
from workstealing.jobs.shared.due_looks import due_backlog, looks, observe_items
from workstealing.recruiting.breakers import Servers
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    PartJob,
    checked_parts,
    drawn,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.due_index import (
    KEYS_A_SHARD,
    DueIndex,
    DueKey,
)
from workstealing.structures.layout import LAYOUT_SCRIPTS

SHARDS_A_LOOK = 128
# Even a small slice of a sweep looks at this many index shards; most of them are empty.
LEAST_SHARDS = 64
KEYS_A_CALL = 64
# No caller waits for a sweep, so it gives a busy server time.
PATIENCE_SECONDS = 1.0
"""Handles at most the given number of items, of keys on one node."""


@dataclass(frozen=True, slots=True)
class DuePart:
    """A part of a due index.

    Fields: shards: its index shards; until_ms: only keys that were due by then; None for all keys
    of the index.
    """

    shards: tuple[int, ...]
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class Served:
    """The result of handling keys that were found.

    Fields: items: the number of items handled; keys: the number of keys that need no further look
    now; problem: the reason why a key was left for good, if one was; left: the keys that there was
    no room for.
    """

    items: int
    keys: int
    problem: LayoutError | None = None
    left: Sequence[DueKey] = ()


Serve = Callable[[list[DueKey], int, Slice], Served]


def divided(index: DueIndex, n: int, seconds: float, *, overdue: bool = True) -> list[DuePart]:
    """Divide a due index into at most n parts; neighbouring parts lie on different nodes.

    Arguments:
        seconds: the most time.
        overdue: only keys that are due by now.

    Returns: the parts; none if the namespace is not in use, or native. Two round trips.
    """
    n = checked_parts(n)
    budget = Budget(seconds, PATIENCE_SECONDS)
    layout = index.layout(budget)
    if layout is None or layout.is_native:
        return []
    layout.require_writable()
    until_ms = index.server_ms(budget) if overdue else None
    job_client = index.job_client
    shards: list[int] = list(range(layout.index_shards))
    nodes = len(job_client.nodes()) if layout.registers_shards else 1
    if layout.registers_shards:
        shards.sort(key=lambda shard: (str(job_client.node_of(shard)), shard))
    n = min(n, len(shards))
    bounds = [round(i * len(shards) / n) for i in range(n + 1)]
    parts = [DuePart(tuple(shards[first:last]), until_ms) for first, last in pairwise(bounds)]
    stride = -(-n // nodes)
    return [part for first in range(stride) for part in parts[first::stride]]


class DuePartJob(PartJob):
    """Works through one part, slice after slice, until nothing is left.

    Arguments:
        name: of the job that was divided.
        limit: of the job that was divided.

    A slice looks at no more than 128 index shards beyond its number of items, so that its commands
    are bounded too.
    """

    def __init__(self, name: str, limit: int, index: DueIndex, part: DuePart, serve: Serve) -> None:
        self.name, self.limit = name, limit
        self._index, self._part, self._serve = index, part, serve
        self._found: deque[DueKey] = deque()
        # Sweeps that run at the same time begin at different places.
        self._next = random.randrange(len(part.shards))
        self._is_drained = False
        # The state of this lap: the index shards looked at; whether no other lap is needed so far;
        # the errors to raise at its end.
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

        Returns: how many; it may be 0 in the middle of a lap. Raises: LayoutError for something
        foreign, at the end of a lap that left nothing else; OutOfTime if nothing was done; Moved;
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
        # Even after an error the next slice goes on with other keys; the next lap finds these.
        some = [self._found.popleft() for _ in range(size)]
        was_clean, self._is_clean = self._is_clean, False
        served = self._serve(some, most, slice)
        self._is_clean = was_clean and not served.keys
        self._problem = served.problem or self._problem
        self._found.extendleft(reversed(served.left))
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
        shards, job_client = self._part.shards, self._index.job_client
        some: list[int] = []
        most = min(SHARDS_A_LOOK, max(slice.limit, LEAST_SHARDS), len(shards) - self._looked)
        node = job_client.node_of(shards[self._next])
        for shard in (*shards[self._next :], *shards[: self._next])[:most]:
            if job_client.node_of(shard) != node:
                break
            some.append(shard)
        # Set before the call: if a slot is moving, the next slice looks elsewhere.
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
        # The next lap looks at the index shards that have moved.
        self._is_clean = was_clean and look.moved is None
        if look.foreign is not None:
            self._foreign = look.foreign
        self._found.extend(look.found)
        return len(some)

    def _begin_lap(self) -> None:
        self._looked = 0
        self._is_clean = True
        self._problem = self._foreign = None

    def _end_lap(self) -> bool:
        """Return whether the part is drained; if an error left keys there, raise that error."""
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

    Arguments:
        index: of the namespace.

    A subclass names its scripts and writes `serve`.
    """

    scripts: str
    """The prefix of the structure's script names."""
    what: ClassVar[str]
    """The name of the backlog's items."""

    def __init__(self, index: DueIndex) -> None:
        self._index = index

    @property
    def dependency(self) -> Hashable:
        """The server that a job of this collector talks to."""
        return self._index.job_client.identity

    def warm_up(self) -> None:
        """Prepare a first slice; no round trip."""
        self._index.job_client.warm_up(self.scripts, LAYOUT_SCRIPTS)

    @abc.abstractmethod
    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Remove at most `most` items of due keys on one node.

        Arguments:
            found: the keys, as the due index names them.
            slice: bounds the time.
            timeout: of a single wait, in seconds; None: as for every job.

        Raises: OutOfTime if nothing was removed; Aborted; connection faults.
        """

    def collect(self, slice: Slice) -> int:
        """Remove due items until the slice's limit or time is reached.

        Returns: how many items were removed. Raises: LayoutError for something foreign, and
        OutOfTime, if nothing was removed; connection faults. At most two round trips to look;
        `serve` takes its own after each look that found something.
        """
        self._require_writable(slice)
        removed = keys = 0
        # A damaged key must not keep the others from being collected.
        problem: LayoutError | None = None
        try:
            for look in looks(self._index, slice):
                served = self.serve(look.found, slice.limit - removed, slice, None)
                removed += served.items
                keys += served.keys
                problem = served.problem or problem
                if removed >= slice.limit or slice.expired:
                    break
        except OutOfTime:
            if not removed:
                raise
        finally:
            observe_items(slice, removed, keys)
        if problem is not None and not removed:
            raise problem
        return removed

    def count(self, slice: Slice) -> int:
        """Return how many keys are due now, at most the limit; change nothing."""
        counted = 0
        for look in looks(self._index, slice):
            counted += len(look.found)
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
        """Return the job that collects one part."""
        return DuePartJob(name, limit, self._index, part, self.serve)

    def _require_writable(self, slice: Slice) -> None:
        layout = self._index.layout(Budget(slice.remaining()))
        if layout is not None:
            layout.require_writable()


def left_of(slice: Slice, timeout: float | None) -> Budget:
    """Return the rest of a slice's time; timeout: as of `DueCollector.serve`."""
    return Budget(slice.remaining()) if timeout is None else Budget(slice.remaining(), timeout)


class NodePart(NamedTuple):
    """A part of a structure on one node of a fleet; plain data.

    Fields: node: its name; part: of that node's due index.
    """

    node: str
    part: DuePart


class CollectingJob(DivisibleJob):
    """A job that removes the garbage of a namespace by a collector; on a fleet, by one a node.

    Arguments:
        collectors: by the name of the node.
        limit: the most items a slice removes.
        dry_run: count the items that a slice would remove, at most `limit`, and remove nothing.
        random: chooses the node of a slice among those whose breakers are closed.

    Raises: ConfigurationError.
    """

    def __init__(
        self,
        collectors: Mapping[str, DueCollector],
        name: str,
        limit: int,
        *,
        dry_run: bool,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.name = name
        dependencies = [each.dependency for each in collectors.values()]
        self.dependency: Hashable = (
            Servers(dependencies) if len(dependencies) > 1 else dependencies[0]
        )
        self._collectors = collectors
        self._random = random

    def perform(self, slice: Slice) -> int:
        """Remove up to ``slice.limit`` items that are due; on a fleet, on one node.

        Returns: how many were removed; on a dry run, how many would be, unless the job counts
        something else. Raises: Aborted if another writer came first; LayoutError; OutOfTime if
        nothing was removed; connection faults.
        """
        collector = self._drawn(slice)
        return collector.count(slice) if self.dry_run else collector.collect(slice)

    def _drawn(self, slice: Slice) -> DueCollector:
        """Return the collector of the node that a slice serves: any that is not left alone."""
        every = list(self._collectors.values())
        if len(every) == 1:
            return every[0]
        free = [each for each in every if each.dependency not in slice.held_back]
        if not free:
            raise Skipped("all nodes of the fleet are left alone after faults")
        chosen = free[drawn(len(free), self._random)]
        slice.served = chosen.dependency
        return chosen

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the garbage of the namespace, and tell the age of the oldest.

        On a fleet the nodes that cannot be reached are left out, and the count is not exact then.

        Arguments:
            seconds: the most time for each node, in seconds or a timedelta.

        Raises: as `perform`, if no node can be reached. Two round trips to each node.
        """
        most = seconds_of(seconds, "seconds")
        return self._backlog(lambda collector: collector.backlog(most))

    def _backlog(self, ask: Callable[[Any], Backlog]) -> Backlog:
        found: list[Backlog] = []
        fault: Exception | None = None
        for collector in self._collectors.values():
            try:
                found.append(ask(collector))
            except Exception as error:
                if not is_connection_fault(error):
                    raise
                fault = error
        if not found:
            assert fault is not None, "there is a node"
            raise fault
        if len(self._collectors) == 1:
            return found[0]
        ages = [each.oldest_seconds for each in found if each.oldest_seconds is not None]
        return Backlog(
            sum(each.count for each in found),
            max(ages) if len(ages) == len(found) else None,
            found[0].what,
            fault is None and all(each.exact for each in found),
        )

    def warm_up(self) -> None:
        """Load the scripts from their files and make connection objects; no round trip."""
        for each in self._collectors.values():
            each.warm_up()

    def parts(self, n: int) -> list[Any]:
        """Divide the namespace for a sweep, by index shards; see `DivisibleJob.parts`.

        A namespace that is native, or not in use, has no part. Two round trips to each node.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        if len(self._collectors) == 1:
            (collector,) = self._collectors.values()
            return collector.parts(n)
        each = max(1, checked_parts(n) // len(self._collectors))
        by_node = [
            [NodePart(node, part) for part in collector.parts(each)]
            for node, collector in self._collectors.items()
        ]
        # Neighbouring parts lie on different nodes, and none is left out.
        return [part for some in zip_longest(*by_node) for part in some if part is not None]

    def for_part(self, part: Any) -> PartJob:
        """Return the job that collects one part, by scripts; see `DuePartJob`."""
        if isinstance(part, NodePart):
            return self._collectors[part.node].for_part(self.name, self.limit, part.part)
        (collector,) = self._collectors.values()
        return collector.for_part(self.name, self.limit, part)
