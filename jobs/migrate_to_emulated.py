"""The job that moves a namespace of volatile hashes back from the server's own field expiry.

The layout goes from native over leaving and returning to emulated. While it is leaving, each
process runs the server's commands under a guard, an index shard's mark. When every process must
have noticed, the namespace is returning: each field is handed back before its next use, and the
job walks the keyspace and hands back the fields that nobody uses. From its first field on, an index
shard refuses guarded commands, so that no process can give the server a deadline any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import Skipped
from workstealing.jobs.adopt_hashes.adopter import Pattern
from workstealing.jobs.adopt_hashes.job import Adoption
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import Backlog, Job
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.operations import Operation, Steps
from workstealing.store.paging import BEGINNING
from workstealing.store.scripts import load
from workstealing.store.twin import Node
from workstealing.structures.due_index import DueIndex
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.namespace import (
    EMULATED,
    LEAVING,
    MIGRATING,
    NATIVE,
    RETURNING,
    Layout,
)
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.hashes import checked_hashes

__all__ = ["MigrateToEmulated"]

# Every process reads the layout again after 5 seconds, before its next command.
GRACE_SECONDS = 15.0


class MigrateToEmulated(Job):
    """Moves a namespace from native to emulated, slice by slice, under traffic.

    Install it before a downgrade of the servers, when every process runs a release that knows the
    job; the servers stay Redis 8 or Valkey 9 until it has finished. Readers and writers go on
    meanwhile. Twice, slices only wait for 15 seconds, until every process has noticed. When the
    namespace is emulated, slices are idle.

    Arguments: hashes: the namespace; match: a pattern of Redis's for its keys, such as
    ``"item:*"``: a native namespace has no list of them; limit: the most fields a slice hands back;
    dry_run: count the fields that a slice would hand back, and change nothing; name: by default
    ``migrate_to_emulated.<namespace>``; random: returns a float in [0, 1).
    """

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        match: str | bytes,
        limit: int = 25,
        *,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.hashes = checked_hashes(hashes)
        self.structures = (hashes,)
        self.dry_run = dry_run
        self.limit = checked_limit(limit)
        self.name = f"migrate_to_emulated.{hashes.namespace}" if name is None else name
        self.dependency: Hashable = hashes.twin.identity
        self._index = DueIndex(
            hashes.twin, hashes.names, hashes.translator.clock_shift_ms, random, clock
        )
        back = _HandingBack(self.hashes, self._index, Pattern(match, None))
        self._adoption = Adoption(self.name, self.hashes, self._index, back)
        self._random = random
        self._clock = clock

    def perform(self, slice: Slice) -> int:
        """Hand back up to ``slice.limit`` fields, and end the move when none is left.

        Returns: how many; 0 while processes take notice. Raises: Skipped if the namespace is moving
        the other way; Aborted if another recruit moved the walk's place; LayoutError; connection
        faults. As many round trips as a slice of `AdoptHashes`.
        """
        self._index.forget_layout()
        budget = Budget(slice.remaining())
        layout = self._index.layout(budget)
        if layout is None or layout.backend == EMULATED:
            slice.observe(backlog=0)
            return 0
        layout.require_writable()
        if layout.backend == MIGRATING:
            raise Skipped("the namespace is migrating to native: let MigrateToNative finish first")
        if self.dry_run:
            return self._adoption.serve(layout, slice, self._random, dry_run=True)[0]
        if layout.backend == NATIVE:
            self._change(NATIVE, LEAVING, budget)
            return 0
        since = self._index.drive(self._since(), budget)
        if self._index.server_ms(budget) - since < 1000 * GRACE_SECONDS:
            # After the second change, too: a process that has not noticed may still give the server
            # a deadline in an index shard without a mark, behind the place of the walk.
            return 0
        if layout.backend == LEAVING:
            self._adoption.forget_places()
            self._change(LEAVING, RETURNING, budget)
            return 0
        handed, is_over = self._adoption.serve(layout, slice, self._random)
        if is_over:
            self._change(RETURNING, EMULATED, budget)
            self._adoption.forget_places()
        return handed

    def backlog(self, seconds: float = 5.0) -> Backlog:
        """Count the hashes with fields to hand back; a lower bound if there was not time for all.

        Arguments: seconds: the most time. Raises: as `perform`. One round trip for each 100 keys,
        and two for each hash.
        """
        self._index.forget_layout()
        layout = self._index.layout(Budget(seconds, timeout=1.0))
        what = "hashes to hand back"
        if layout is None or layout.backend == EMULATED:
            return Backlog(0, 0.0, what)
        found = self._adoption.report(layout, Slice(10_000, seconds, self._clock), 10_000)
        age = None if found.hashes or not found.is_all else 0.0
        return Backlog(found.hashes, age, what, found.is_all)

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self.hashes.twin.warm_up("volatile_hashes/", LAYOUT_SCRIPTS)

    def _change(self, before: str, after: str, budget: Budget) -> None:
        script = load("layout/change")
        change = Operation(script, (self.hashes.names.layout,), (before, after), bool)
        self._index.drive(_one(change), budget)
        self._index.forget_layout()

    def _since(self) -> Steps[int]:
        since = yield ("HGET", self.hashes.names.layout, "since")
        return int(since or 0)


def _one(step: Operation) -> Steps[Any]:
    return (yield step)


class _HandingBack:
    """Hands fields of hashes back from the server; the walk of adoptions finds the hashes."""

    def __init__(
        self, hashes: VolatileHashes | AsyncVolatileHashes, index: DueIndex, pattern: Pattern
    ) -> None:
        self._hashes, self._index = hashes, index
        self.pattern = pattern

    def unfinished(
        self,
        layout: Layout | None,  # noqa: ARG002 - as `Adopter` has it
        node: Node,  # noqa: ARG002
        keys: Sequence[bytes],
        slice: Slice,  # noqa: ARG002
    ) -> list[bytes]:
        """Return the hashes that may need something: nothing tells which do. No round trip."""
        return list(keys)

    def adopt(
        self, layout: Layout | None, key: bytes, slice: Slice, most: int, start: bytes
    ) -> tuple[int, bytes | None]:
        """Hand back about `most` fields of a hash, from a cursor of HSCAN on, by one script.

        Returns: how many had a deadline, and the cursor to go on from, None at the end. Two round
        trips.
        """
        assert layout is not None, "a namespace that moves has a layout"
        budget = Budget(slice.remaining())
        self._index.drive(self._hashes.register_steps(layout, [("HSETEX", key)]), budget)
        rest, fields = self._page(key, most, start, slice)
        handed = 0
        if fields:
            take = self._hashes.translator.take_back(layout, key, fields)
            handed = self._index.drive(_one(take), budget)
        return handed, None if rest == BEGINNING else rest

    def looked_at(
        self,
        layout: Layout | None,  # noqa: ARG002
        key: bytes,
        slice: Slice,
    ) -> Iterator[tuple[bytes, int, int]]:
        """Yield the fields to hand back, their deadlines, and the server's time, in ms."""
        rest = BEGINNING
        while True:
            rest, fields = self._page(key, 256, rest, slice)
            if fields:
                ask = ("HPEXPIRETIME", key, "FIELDS", len(fields), *fields)
                clock, times = self._call(key, slice, ("TIME",), ask)
                now = self._index.milliseconds(clock)
                for name, at in zip(fields, times or (), strict=False):
                    if at >= 0:
                        yield name, at, now
            if rest == BEGINNING:
                return

    def _page(self, key: bytes, most: int, start: bytes, slice: Slice) -> tuple[bytes, list[bytes]]:
        ((rest, fields),) = self._call(key, slice, ("HSCAN", key, start, "COUNT", most, "NOVALUES"))
        return rest, list(dict.fromkeys(fields))

    def _call(self, key: bytes, slice: Slice, *commands: Command) -> list[Any]:
        slice.spend(len(commands))
        twin = self._hashes.twin
        return checked(twin.call_keys((key,), commands, Budget(slice.remaining())))
