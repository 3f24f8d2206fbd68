"""Removing the garbage of a namespace of volatile hashes, an attempt at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import Aborted, LayoutError, OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.scripts import Script
from workstealing.store.twin import Node
from workstealing.structures.namespaces.due_collecting import DueCollector, left_of
from workstealing.structures.namespaces.due_index import DueIndex, DueKey, scored
from workstealing.structures.namespaces.due_walk import PATIENCE_SECONDS, Served
from workstealing.structures.volatile_hashes.layout import HashNames


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


class Collector(DueCollector):
    """Collects the garbage of one namespace, through a twin's one-attempt connections.

    Arguments: index: of the namespace; names: of its keys; script: gives a script of volatile
    hashes by its name; clock: measures how long an attempt takes.
    """

    scripts = "volatile_"

    def __init__(
        self,
        index: DueIndex,
        names: HashNames,
        script: Callable[[str], Script],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(index)
        self._twin = index.twin
        self._names = names
        self._script = script
        self._clock = clock
        # The nodes that were sent the script already.
        self._loaded: set[Node] = set()

    def collect(self, slice: Slice) -> int:
        """Remove expired fields until the slice's limit or time is reached.

        Returns: how many fields were removed, 0 also when the time went into hashes whose fields
        had been given more time. Errors: Aborted if another writer came first and nothing was
        removed; LayoutError for a foreign due index or deadlines, likewise; OutOfTime if there was
        no time for a single hash; connection faults. One round trip to look (two if the first look
        found too little), and two for each hash: WATCH with three reads, then MULTI with up to four
        commands.
        """
        self._require_writable(slice)
        collected, served, longest = 0, 0, 0.0
        problem: LayoutError | None = None
        try:
            for found in self._index.looks(slice):
                for due in found:
                    started = self._clock.monotonic()
                    if served and slice.remaining() < 3 * longest:
                        raise OutOfTime("too little time is left for one more hash")
                    try:
                        collected += self._collect_hash(due, slice, slice.limit - collected)
                    except LayoutError as error:
                        problem = error
                    served += 1
                    longest = max(longest, self._clock.monotonic() - started)
                    if collected >= slice.limit:
                        return collected
        except Aborted:
            if not collected:
                raise
        except OutOfTime:
            # Hashes that were given more time have their due times set right by now.
            if not served:
                raise
        if problem is not None and not collected:
            raise problem
        return collected

    def count(self, slice: Slice) -> int:
        """Return how many fields `collect` would remove now, at most the limit; change nothing.

        Errors: as `collect`. One round trip to look, one for each hash.
        """
        counted, looked_at = 0, 0
        try:
            for found in self._index.looks(slice):
                for due in found:
                    if counted >= slice.limit:
                        return counted
                    counted += self._count_hash(due, slice, slice.limit - counted)
                    looked_at += 1
        except OutOfTime:
            if not looked_at:
                raise
        return counted

    def _count_hash(self, due: DueKey, slice: Slice, limit: int) -> int:
        """Return how many fields of one hash have expired, at most the limit."""
        keys = self._names.for_reading(due.key)
        past = ("ZRANGE", keys[1], 0, limit - 1, "WITHSCORES")
        with _naming(keys[1]):
            clock, deadlines = checked(
                self._twin.call_keys(keys, [("TIME",), past], Budget(slice.remaining()))
            )
        now = self._index.milliseconds(clock)
        return sum(1 for _, deadline in scored(deadlines) if deadline <= now)

    def backlog(self, most_hashes: int = 1000, seconds: float = 5.0) -> Backlog:
        """Count the garbage of the namespace.

        Arguments: most_hashes: in how many hashes at most, the oldest, fields are counted; seconds:
        how long it may take. Errors: as `collect`. Two round trips to each node with garbage.
        """
        budget = Budget(seconds, timeout=1.0)
        layout = self._index.layout(budget)
        if layout is None or layout.is_native:
            return Backlog(0, 0, 0.0)
        hashes, oldest, fields, counted = 0, 0.0, 0, 0
        for node, shards in self._index.shards_by_node(layout, budget).items():
            due = [("ZRANGEBYSCORE", self._names.due(s), "-inf", "+inf") for s in shards]
            clock = self._index.milliseconds(checked(self._twin.call(node, [("TIME",)], budget))[0])
            counts = checked(
                self._twin.call(
                    node, [("ZCOUNT", command[1], "-inf", clock) for command in due], budget
                )
            )
            hashes += sum(counts)
            busy = [c for c, n in zip(due, counts, strict=True) if n]
            share = max(1, most_hashes // max(1, len(busy)))
            members = [
                key
                for reply in checked(
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
            replies = self._twin.call(node, commands, budget)
            for command, size, first in zip(
                commands[::2], replies[::2], replies[1::2], strict=True
            ):
                with _naming(command[1]):
                    checked([size, first])
                # A recruit may have come between the two commands, which are no transaction.
                yield (size, float(first[1])) if size and first else (0, None)

    def _collect_hash(self, due: DueKey, slice: Slice, limit: int) -> int:
        """Make one attempt on one hash; return how many fields it removed."""
        hash_key, deadlines_key = keys = self._names.for_reading(due.key)
        due_key = self._names.due(due.shard)
        try:
            with attempt(self._twin, *keys, slice=slice) as current:
                with _naming(deadlines_key):
                    clock, kind, left, reply = current.read(
                        ("TIME",),
                        ("TYPE", hash_key),
                        ("PTTL", hash_key),
                        ("ZRANGE", deadlines_key, 0, limit, "WITHSCORES"),
                    )
                now = self._index.milliseconds(clock)
                deadlines = scored(reply)
                gone = [field for field, deadline in deadlines if deadline <= now][:limit]
                following = deadlines[len(gone)][1] if len(deadlines) > len(gone) else None
                commands: list[tuple[Any, ...]] = []
                is_orphaned = kind != b"hash"
                if is_orphaned:
                    # The hash expired, was evicted or was overwritten as a whole; only its
                    # deadlines are left.
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
                return int(bool(deadlines)) if is_orphaned else len(gone)
        except OutOfMemoryError:
            return self._collect_when_full(due, slice, limit)

    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Remove at most so many expired fields of hashes of one node, in one round trip.

        For sweeps: each hash is one script, as atomic as an attempt and never aborted. Errors:
        Aborted if the server knows the script no more, which the next call sends again.
        """
        script = self._script("volatile_collect")
        node = self._twin.node_of(found[0].shard)
        each = max(1, most // len(found))
        commands: list[tuple[Any, ...]] = []
        for due in found:
            keys = (*self._names.for_reading(due.key), self._names.due(due.shard))
            commands.append(("EVALSHA", script.sha, len(keys), *keys, each))
        if node not in self._loaded:
            # The text once; the server knows the others by its digest then.
            commands[0] = ("EVAL", script.body, *commands[0][2:])
        replies = self._twin.call(node, commands, left_of(slice, timeout))
        self._loaded.add(node)
        fields, handled = 0, 0
        problem: LayoutError | None = None
        for due, reply in zip(found, replies, strict=True):
            if isinstance(reply, NoScriptError):
                self._loaded.discard(node)
            elif isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply):
                problem = _foreign_deadlines(self._names.deadlines(due.key))
            else:
                fields += int(checked([reply])[0])
                handled += 1
        if node not in self._loaded and not handled:
            raise Aborted("the server has lost the script meanwhile")
        return Served(fields, handled, problem)

    def _collect_when_full(self, due: DueKey, slice: Slice, limit: int) -> int:
        """Do by a script what a full server refused as a transaction (law 3)."""
        keys = (*self._names.for_reading(due.key), self._names.due(due.shard))
        script = self._script("volatile_collect")
        command = ("EVAL", script.body, len(keys), *keys, limit)
        (removed,) = checked(
            self._twin.call(self._twin.node_of(due.shard), [command], Budget(slice.remaining()))
        )
        return int(removed)


@contextmanager
def _naming(deadlines: bytes) -> Iterator[None]:
    """Turn the server's WRONGTYPE into an error that names the foreign key."""
    try:
        yield
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise _foreign_deadlines(deadlines) from error


def _foreign_deadlines(deadlines: bytes) -> LayoutError:
    return LayoutError(
        f"the key {deadlines!r} does not hold the deadlines of a volatile hash, and nothing was"
        " changed: remove it if it is not needed"
    )
