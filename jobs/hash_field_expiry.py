"""The job that frees the memory of expired hash fields."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import Aborted, LayoutError, OutOfTime
from workstealing.jobs.due_collecting import (
    PATIENCE_SECONDS,
    CollectingJob,
    DueCollector,
    Served,
    left_of,
    looks,
)
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.scripts import Script
from workstealing.store.twin import Node
from workstealing.structures.due_index import DueIndex, DueKey, scored
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.hashes import checked_hashes
from workstealing.structures.volatile_hashes.layout import HashNames

__all__ = ["HashFieldExpiry"]


class HashFieldExpiry(CollectingJob):
    """Removes expired fields of one namespace's volatile hashes.

    Arguments: hashes: the namespace; limit: the most fields a slice removes (5 suits web requests;
    25 and 100 are common for queue workers); dry_run: count the fields that a slice would remove,
    at most `limit`, and remove nothing; name: of the job, by default
    ``hash_field_expiry.<namespace>``; random: returns a float in [0, 1), for the choice among due
    hashes.

    On a native namespace the server itself expires the fields, and every slice is idle. A slice
    takes one or two round trips to find hashes that are due, and two for each hash.

    Source: the expiry job of Jim Nelson's talk on work stealing at the Internet Archive; two
    additions are the due index, which saves looks at hashes without garbage, and the random choice
    among more hashes than a slice needs (as in rails/solid_cache).
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
        self.structures = tuple(hashes.on_nodes.values())
        name = f"hash_field_expiry.{hashes.namespace}" if name is None else name
        collectors = {}
        for node, each in hashes.on_nodes.items():
            shift_ms = each.translator.clock_shift_ms
            index = DueIndex(each.twin, each.names, shift_ms, random, clock, on_loss=each.forget)
            collectors[node] = _Collector(index, each.names, each.translator.script, clock)
        super().__init__(collectors, name, limit, dry_run=dry_run, random=random)

    def backlog(self, seconds: float = 5.0, most_hashes: int = 1000) -> Backlog:
        """Count the namespace's expired fields, and tell the age of the oldest.

        If no field has expired, but hashes are due to be looked at, they are counted instead, and
        the count is not exact. Arguments: seconds: the most time; most_hashes: the most hashes, the
        oldest first, in which fields are counted (with more hashes the count is a projection, and
        not exact).
        Raises: as `perform`. Two round trips to each node, and one for each 500 hashes with
        garbage.
        """
        return self._backlog(lambda collector: collector.backlog(seconds, most_hashes))


class _Collector(DueCollector):
    """Collects the garbage of one namespace, through a twin's one-attempt connections.

    Arguments: index: of the namespace; names: of its keys; script: gives a script of volatile
    hashes by its name; clock: measures how long an attempt takes.
    """

    scripts = "volatile_hashes/"
    what = "expired fields"

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
        # The nodes to which the script was sent.
        self._loaded: set[Node] = set()

    def collect(self, slice: Slice) -> int:
        """Remove expired fields until the slice's limit or time is reached.

        Returns: how many fields were removed; this may be 0 if all hashes met had been given more
        time. Raises, if nothing was removed: Aborted if another writer came first; LayoutError for
        a foreign due index or foreign deadlines. Raises: OutOfTime if there was no time for a
        single hash; connection faults. One round trip to look (two if the first look found too
        little), and two for each hash: WATCH with three reads, then MULTI with up to four commands.
        """
        self._require_writable(slice)
        collected, expired, served, longest = 0, 0, 0, 0.0
        problem: LayoutError | None = None
        try:
            for look in looks(self._index, slice):
                for due in look.found:
                    started = self._clock.monotonic()
                    if served and slice.remaining() < 3 * longest:
                        raise OutOfTime("too little time is left for one more hash")
                    try:
                        gone, seen = self._collect_hash(due, slice, slice.limit - collected)
                        collected += gone
                        expired += seen
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
            # The due times of hashes that were given more time are corrected by now.
            if not served:
                raise
        finally:
            if served and slice.backlog:
                # The looks counted hashes; the hashes served show how many fields each has.
                slice.observe(backlog=round(slice.backlog * max(1.0, expired / served)))
        if problem is not None and not collected:
            raise problem
        return collected

    def count(self, slice: Slice) -> int:
        """Return how many fields `collect` would remove now, at most the limit; change nothing.

        Raises: as `collect`. One round trip to look, one for each hash.
        """
        counted, looked_at = 0, 0
        try:
            for look in looks(self._index, slice):
                for due in look.found:
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

    def backlog(self, seconds: float = 5.0, most_hashes: int = 1000) -> Backlog:
        """Count the garbage of the namespace; see `HashFieldExpiry.backlog`."""
        budget = Budget(seconds, timeout=1.0)
        layout = self._index.layout(budget)
        if layout is None or layout.is_native:
            return Backlog(0, 0.0, self.what)
        hashes, oldest, fields, counted, idle = 0, 0.0, 0, 0, 0
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
                idle += not size
                if first is not None:
                    fields += size
                    oldest = max(oldest, clock - first)
        if counted < hashes:
            fields = round(fields * hashes / max(1, counted))
        if idle and not fields:
            # They are due to be looked at, or have gone as a whole: a slice has something to do.
            return Backlog(idle, None, self.what, False)
        return Backlog(fields, oldest / 1000, self.what, counted >= hashes)

    def _ages(
        self, node: Node, members: Sequence[bytes], clock: int, budget: Budget
    ) -> Iterator[tuple[int, float | None]]:
        """Yield for each hash the number of its expired fields, and their earliest deadline."""
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
                # None too if a recruit came between the two commands, which are no transaction.
                yield size, float(first[1]) if size and first else None

    def _collect_hash(self, due: DueKey, slice: Slice, limit: int) -> tuple[int, int]:
        """Make one attempt on one hash; return how many fields it removed, and how many expired."""
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
                past = [field for field, deadline in deadlines if deadline <= now]
                gone = past[:limit]
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
                return int(bool(deadlines)) if is_orphaned else len(gone), len(past)
        except OutOfMemoryError:
            removed = self._collect_when_full(due, slice, limit)
            return removed, removed

    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Remove at most `most` expired fields of hashes on one node, in one round trip.

        For sweeps: each hash takes one script, which is as atomic as an attempt and never aborted.
        Raises: Aborted if the server has lost the script; the next call sends it again.
        """
        script = self._script("volatile_hashes/collect")
        node = self._twin.node_of(found[0].shard)
        each = max(1, most // len(found))
        commands: list[tuple[Any, ...]] = []
        for due in found:
            keys = (*self._names.for_reading(due.key), self._names.due(due.shard))
            commands.append(("EVALSHA", script.sha, len(keys), *keys, each))
        if node not in self._loaded:
            # The first command brings the script's text; the others name it by its digest.
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
        """Collect a hash by a script, because a full server has refused the transaction (law 3)."""
        keys = (*self._names.for_reading(due.key), self._names.due(due.shard))
        script = self._script("volatile_hashes/collect")
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
