"""Finding garbage in a namespace of volatile hashes, and removing it an attempt at a time.

A recruit never works blindly: one round trip asks some due indexes of one node for the hashes whose
time has come, and the attempts go to hashes chosen at random among those.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import Aborted, LayoutError, OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.connection import Budget
from workstealing.store.keys import SLOTS
from workstealing.store.operations import Steps, T
from workstealing.store.twin import Node, Twin
from workstealing.structures.volatile_hashes.commands import Translator
from workstealing.structures.volatile_hashes.layout import (
    Layout,
    Names,
    read_layout,
    read_registry,
    register_shards,
)

# How many index shards the first look takes, and how many a second one if the first found too
# little; how many hashes of each: together a window well above a slice (law 9).
FIRST_LOOK, SECOND_LOOK = 4, 64
HASHES_A_SHARD = 16
# Index shards that no registry names are looked at now and then, so that what a lost registry
# named is found again.
UNREGISTERED_A_LOOK = 4
REGISTRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class DueHash:
    """A hash whose time has come: its key, its index shard, and since when, in milliseconds."""

    key: bytes
    shard: int
    overdue_ms: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much garbage a namespace holds now.

    Fields: hashes: how many have expired fields, or are due to be looked at; fields: how many have
    expired; oldest_seconds: how long the oldest of them has been expired; exact: False when there
    were so many hashes that the fields were counted in a part of them and multiplied.
    """

    hashes: int
    fields: int
    oldest_seconds: float
    exact: bool = True


class Collector:
    """Collects the garbage of one namespace, through a twin's one-attempt connections.

    Arguments: twin, names, translator of the namespace; random: returns a float in [0, 1); clock:
    measures how old this process's copy of the registry is.
    """

    def __init__(
        self,
        twin: Twin,
        names: Names,
        translator: Translator,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._twin = twin
        self._names = names
        self._script = translator.script
        self._shift_ms = translator.clock_shift_ms
        self._random = random
        self._clock = clock
        self._layout: Layout | None = None
        self._registry: list[int] = []
        self._registry_read: float | None = None

    def collect(self, slice: Slice) -> int:
        """Remove expired fields until the slice's limit or time is reached.

        Returns: how many fields were removed. Errors: Aborted if another writer came first and
        nothing was removed; LayoutError for a foreign due index, if nothing else was found;
        connection faults. One round trip to look (two if the first look found too little), and two
        for each hash: WATCH with three reads, then MULTI with up to four commands.
        """
        collected = 0
        longest = 0.0
        for found in self._looks(slice):
            for due in found:
                started = self._clock.monotonic()
                if collected and slice.remaining() < 3 * longest:
                    return collected
                try:
                    collected += self._collect_hash(due, slice, slice.limit - collected)
                except (Aborted, OutOfTime):
                    if collected:
                        return collected
                    raise
                longest = max(longest, self._clock.monotonic() - started)
                if collected >= slice.limit:
                    return collected
        return collected

    def count(self, slice: Slice) -> int:
        """Return how many fields `collect` would remove now, at most the limit; change nothing.

        Errors: as `collect`. One round trip to look, one for each hash.
        """
        counted = 0
        for found in self._looks(slice):
            for due in found:
                if counted >= slice.limit:
                    return counted
                keys = self._names.for_reading(due.key)
                past = ("ZRANGE", keys[1], 0, slice.limit - counted - 1, "WITHSCORES")
                budget = Budget(slice.remaining())
                clock, deadlines = _checked(self._twin.call_keys(keys, [("TIME",), past], budget))
                now = self._milliseconds(clock)
                counted += sum(1 for _, deadline in _scored(deadlines) if deadline <= now)
        return counted

    def backlog(self, most_hashes: int = 1000, seconds: float = 5.0) -> Backlog:
        """Count the garbage of the namespace.

        Arguments: most_hashes: in how many hashes at most, the oldest, fields are counted; seconds:
        how long it may take. Errors: as `collect`. Two round trips to each node with garbage.
        """
        budget = Budget(seconds, timeout=1.0)
        layout = self._open(budget)
        if layout is None or layout.is_native:
            return Backlog(0, 0, 0.0)
        hashes, oldest, fields, counted = 0, 0.0, 0, 0
        for node, shards in self._shards_by_node(layout, budget).items():
            due = [("ZRANGEBYSCORE", self._names.due(s), "-inf", "+inf") for s in shards]
            clock = self._milliseconds(_checked(self._twin.call(node, [("TIME",)], budget))[0])
            counts = _checked(
                self._twin.call(
                    node, [("ZCOUNT", command[1], "-inf", clock) for command in due], budget
                )
            )
            hashes += sum(counts)
            busy = [c for c, n in zip(due, counts, strict=True) if n]
            share = max(1, most_hashes // max(1, len(busy)))
            members = [
                key
                for reply in _checked(
                    self._twin.call(
                        node,
                        [("ZRANGEBYSCORE", c[1], "-inf", clock, "LIMIT", 0, share) for c in busy],
                        budget,
                    )
                )
                for key in reply
            ]
            for size, first in self._ages(node, members, clock, budget):
                counted += 1
                fields += size
                if first is not None:
                    oldest = max(oldest, clock - first)
        if counted < hashes:
            fields = round(fields * hashes / max(1, counted))
        return Backlog(hashes, fields, oldest / 1000, counted >= hashes)

    def _ages(
        self, node: Node, members: Sequence[bytes], clock: int, budget: Budget
    ) -> Iterator[tuple[int, float | None]]:
        """Yield of each hash how many fields have expired, and the earliest deadline of those."""
        for start in range(0, len(members), 500):
            commands: list[tuple[Any, ...]] = []
            for key in members[start : start + 500]:
                deadlines = self._names.deadlines(key)
                commands.append(("ZCOUNT", deadlines, "-inf", clock))
                commands.append(("ZRANGE", deadlines, 0, 0, "WITHSCORES"))
            replies = _checked(self._twin.call(node, commands, budget))
            for size, first in zip(replies[::2], replies[1::2], strict=True):
                yield size, float(first[1]) if size else None

    def _looks(self, slice: Slice) -> Iterator[list[DueHash]]:
        """Yield due hashes, shuffled, by at most two looks at one node's due indexes."""
        budget = Budget(slice.remaining())
        layout = self._open(budget)
        if layout is None or layout.is_native:
            return
        node, shards = self._choose_node(layout, budget)
        self._shuffle(shards)
        foreign: ResponseError | None = None
        found_any = False
        for some in (shards[:FIRST_LOOK], shards[FIRST_LOOK : FIRST_LOOK + SECOND_LOOK]):
            if not some:
                continue
            found, problem = self._look(node, layout, some, Budget(slice.remaining()))
            foreign = foreign or problem
            if found:
                found_any = True
                self._shuffle(found)
                yield found
        if foreign is not None and not found_any:
            raise LayoutError(
                f"a due index of the namespace {layout.namespace!r} holds something foreign, and"
                f" nothing was changed: {foreign}"
            ) from foreign

    def _look(
        self, node: Node, layout: Layout, shards: Sequence[int], budget: Budget
    ) -> tuple[list[DueHash], ResponseError | None]:
        commands = [
            ("ZRANGE", self._names.due(shard), 0, HASHES_A_SHARD - 1, "WITHSCORES")
            for shard in shards
        ]
        clock, *replies = self._twin.call(node, [("TIME",), *commands], budget)
        now = self._milliseconds(clock)
        found: list[DueHash] = []
        foreign: ResponseError | None = None
        lost: list[int] = []
        for shard, reply in zip(shards, replies, strict=True):
            if isinstance(reply, ResponseError):
                foreign = reply
                continue
            if reply and layout.registers_shards and shard not in self._known:
                lost.append(shard)
            for key, due in _scored(reply):
                if due <= now:
                    found.append(DueHash(key, shard, now - due))
        if lost:
            self._drive(register_shards(self._names, lost), budget)
            self._registry_read = None
        return found, foreign

    def _collect_hash(self, due: DueHash, slice: Slice, limit: int) -> int:
        """Make one attempt on one hash; return how many fields it removed."""
        hash_key, deadlines_key = keys = self._names.for_reading(due.key)
        due_key = self._names.due(due.shard)
        try:
            with attempt(self._twin, *keys, slice=slice) as current:
                clock, left, reply = current.read(
                    ("TIME",),
                    ("PTTL", hash_key),
                    ("ZRANGE", deadlines_key, 0, limit, "WITHSCORES"),
                )
                now = self._milliseconds(clock)
                deadlines = _scored(reply)
                gone = [field for field, deadline in deadlines if deadline <= now][:limit]
                following = deadlines[len(gone)][1] if len(deadlines) > len(gone) else None
                commands: list[tuple[Any, ...]] = []
                if left == -2:
                    # The hash expired or was evicted as a whole; only its deadlines are left.
                    following = None
                    commands.append(("UNLINK", deadlines_key))
                elif gone:
                    commands.append(("HDEL", hash_key, *gone))
                    commands.append(("ZREM", deadlines_key, *gone))
                if following is None:
                    commands.append(("ZREM", due_key, due.key))
                else:
                    if left >= 0:
                        following = min(following, now + left + 1)
                    commands.append(("ZADD", due_key, int(following), due.key))
                current.commit(*commands)
                return len(gone) if left != -2 else int(bool(deadlines))
        except OutOfMemoryError:
            return self._collect_when_full(due, slice, limit)

    def _collect_when_full(self, due: DueHash, slice: Slice, limit: int) -> int:
        """Do by a script what a full server refused as a transaction (law 3)."""
        keys = (*self._names.for_reading(due.key), self._names.due(due.shard))
        script = self._script("volatile_collect")
        command = ("EVAL", script.body, len(keys), *keys, limit)
        (removed,) = _checked(
            self._twin.call(self._twin.node_of(due.shard), [command], Budget(slice.remaining()))
        )
        return int(removed)

    def _open(self, budget: Budget) -> Layout | None:
        """Return the layout; None when nobody has used the namespace yet."""
        if self._layout is None:
            self._layout = self._drive(read_layout(self._names), budget)
        return self._layout

    def _drive(self, steps: Steps[T], budget: Budget) -> T:
        """Run a generator of one-key commands through the twin."""
        reply: Any = None
        error: Exception | None = None
        while True:
            try:
                command = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            (reply,) = self._twin.call_keys((command[1],), [command], budget)
            error = reply if isinstance(reply, Exception) else None

    def _choose_node(self, layout: Layout, budget: Budget) -> tuple[Node, list[int]]:
        """Return a random node and the index shards on it that may hold something."""
        if not layout.registers_shards:
            return self._twin.nodes()[0], list(range(layout.index_shards))
        registered = self._refresh_registry(budget)
        candidates = list(registered)
        # Without a registered one there is still the chance of an unregistered one.
        pick = self._twin.node_of(
            candidates[self._below(len(candidates))] if candidates else self._below(SLOTS)
        )
        mine = [shard for shard in candidates if self._twin.node_of(shard) == pick]
        for _ in range(UNREGISTERED_A_LOOK):
            shard = self._below(layout.index_shards)
            if shard not in self._known and self._twin.node_of(shard) == pick:
                mine.append(shard)
        return pick, mine

    def _shards_by_node(self, layout: Layout, budget: Budget) -> dict[Node, list[int]]:
        if not layout.registers_shards:
            return {self._twin.nodes()[0]: list(range(layout.index_shards))}
        self._registry_read = None
        shards: dict[Node, list[int]] = {}
        for shard in self._refresh_registry(budget):
            shards.setdefault(self._twin.node_of(shard), []).append(shard)
        return shards

    def _refresh_registry(self, budget: Budget) -> list[int]:
        now = self._clock.monotonic()
        if self._registry_read is None or now - self._registry_read >= REGISTRY_SECONDS:
            self._registry = self._drive(read_registry(self._names), budget)
            self._known = frozenset(self._registry)
            self._registry_read = now
        return self._registry

    _known: frozenset[int] = frozenset()

    def _milliseconds(self, clock: Any) -> int:
        if isinstance(clock, Exception):
            raise clock
        return int(clock[0]) * 1000 + int(clock[1]) // 1000 + self._shift_ms

    def _below(self, bound: int) -> int:
        return min(int(self._random() * bound), bound - 1)

    def _shuffle(self, items: list[Any]) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = self._below(i + 1)
            items[i], items[j] = items[j], items[i]


def _scored(reply: Sequence[bytes]) -> list[tuple[bytes, float]]:
    return [(member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True)]


def _checked(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
