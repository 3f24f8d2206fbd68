"""The job that moves a namespace of volatile hashes back from the server's own field expiry.

The layout goes from native over leaving and returning to emulated. While it is leaving, each
process runs the server's commands under a guard, an index shard's mark. When every process must
have noticed, the namespace is returning: each field is handed back before its next use, and the
job walks the keyspace and hands back the fields that nobody uses. From its first field on, an index
shard refuses guarded commands, so that no process can give the server a deadline any more. At the
end each index shard has the mark of an emulated namespace.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis.exceptions import ResponseError

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import Skipped
from workstealing.jobs.adopt_hashes.adopter import Pattern, small_hashes
from workstealing.jobs.adopt_hashes.job import Adoption, PartWalk, WalkPart
from workstealing.jobs.adopt_hashes.walk import PLACES
from workstealing.jobs.shared.backend_moves import (
    NAP_SECONDS,
    change_backend,
    has_other_marks,
    mark_shards,
    seconds_to_wait,
)
from workstealing.jobs.shared.key_walk import WALKING
from workstealing.recruiting.job import Backlog, DivisibleJob, PartJob, refuse_dry_run
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import Node
from workstealing.store.operations import Operation, Steps
from workstealing.store.paging import BEGINNING
from workstealing.structures.access import Access, JobAccess
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


class MigrateToEmulated(DivisibleJob):
    """Moves a namespace from native to emulated, slice by slice, under traffic.

    Install it before a downgrade of the servers, when every process runs a release that knows the
    job; the servers stay Redis 8 or Valkey 9 until it has finished. Readers and writers go on
    meanwhile. Twice, slices only wait for 15 seconds, until every process has noticed. When the
    namespace is emulated, slices are idle; but where a former release has left marks that refuse
    writes, it is moved back once more.

    Arguments:
        hashes: the namespace.
        match: a pattern of Redis's for its keys, such as ``"item:*"``: a native namespace has no
            list of them.
        limit: the most fields a slice hands back.
        dry_run: count the fields that a slice would hand back, and change nothing.
        name: by default ``migrate_to_emulated.<namespace>``.
        random: returns a float in [0, 1).
    """

    access = JobAccess(
        ("volatile hashes",),
        Access(
            keys=PLACES,
            scripts=(
                *("volatile_hashes/take_back", "volatile_hashes/mark_shard"),
                *("walk", "layout/change"),
            ),
            commands=WALKING | {"GET"},
            native=frozenset({"HPEXPIRETIME"}),
        ),
        native=True,
    )
    unit = "fields"

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
        default = f"migrate_to_emulated.{hashes.namespace}"
        self._keep_clean(hashes, limit=limit, name=name, default=default, dry_run=dry_run)
        self._index = DueIndex(
            hashes.job_client, hashes.names, hashes.translator.clock_shift_ms, random, clock
        )
        back = _HandingBack(self.hashes, self._index, Pattern(match, None))
        self._adoption = Adoption(self.name, self.hashes, self._index, back)
        self._random = random
        self._clock = clock
        # Whether this job has seen that the move has left nothing.
        self._is_settled = False

    def perform(self, slice: Slice) -> int:
        """Hand back up to ``slice.limit`` fields, and end the move when none is left.

        Returns: how many; 0 while processes take notice. Raises: Skipped if the namespace is moving
        the other way; Aborted if another recruit moved the walk's place; LayoutError; connection
        faults. As many round trips as a slice of `AdoptHashes`, and up to three for the state of
        the move; more if the slice changes the state.
        """
        budget = Budget(slice.remaining())
        layout = self.moving(budget)
        if layout is None:
            slice.observe(backlog=0)
            return 0
        if self.dry_run:
            return self._adoption.serve(layout, slice, self._random, dry_run=True)[0]
        if self.must_wait(layout, budget):
            return 0
        handed, is_over = self._adoption.serve(layout, slice, self._random)
        if is_over:
            self.end(layout, budget)
        return handed

    def parts(self, n: int) -> list[WalkPart]:
        """Divide the keyspace for a sweep: by nodes, and on each by the names of the keys.

        Every part of a node scans all of its keys, and hands its share back. The last one ends the
        move. A namespace that is emulated, or not in use, has no part. Raises: ConfigurationError
        for a dry run; as `perform`. One round trip.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        layout = self.moving(Budget(None, 1.0))
        return [] if layout is None else self._adoption.parts(n)

    def for_part(self, part: WalkPart) -> PartJob:
        """Return the job that hands the fields of one part back; its place is its own."""
        return _ReturningPart(self, self._adoption, part)

    def moving(self, budget: Budget) -> Layout | None:
        """Return the layout as it is now; None if nothing is left to move. Raises: as `perform`."""
        self._index.forget_layout()
        layout = self._index.layout(budget)
        if layout is None or (layout.backend == EMULATED and self._has_settled(layout, budget)):
            return None
        self._is_settled = False
        layout.require_writable()
        if layout.backend == MIGRATING:
            raise Skipped("the namespace is migrating to native: let MigrateToNative finish first")
        return layout

    def must_wait(self, layout: Layout, budget: Budget) -> float:
        """Do the step of the move that is due; return for how many seconds no field moves yet."""
        if layout.backend == NATIVE:
            # A process that has first used an index shard while others closed the rest has left the
            # mark of a migration there.
            mark_shards(self._index, layout, NATIVE, (MIGRATING, EMULATED), budget)
            return change_backend(self._index, NATIVE, LEAVING, budget)
        if layout.backend == EMULATED:
            self._adoption.forget_places()
            return change_backend(self._index, EMULATED, RETURNING, budget)
        left = seconds_to_wait(self._index, budget)
        if left > 0:
            # After the second change, too: a process that has not noticed may still give the server
            # a deadline in an index shard without a mark, behind the place of the walk.
            return left
        if layout.backend == LEAVING:
            self._adoption.forget_places()
            return change_backend(self._index, LEAVING, RETURNING, budget)
        return 0.0

    def end(self, layout: Layout, budget: Budget) -> None:
        """End the move, when no field is left in the server's keeping."""
        # While the namespace is returning, both marks are right, and afterwards only this one.
        mark_shards(self._index, layout, EMULATED, (RETURNING, NATIVE, MIGRATING), budget)
        change_backend(self._index, RETURNING, EMULATED, budget)
        self._adoption.forget_places()

    def _has_settled(self, layout: Layout, budget: Budget) -> bool:
        """Say whether the last move has left nothing that refuses a write."""
        if not self._is_settled:
            if has_other_marks(self._index, layout, EMULATED, budget):
                return False
            # The one that ended the move may have died before it did this.
            self._adoption.forget_places()
            self._is_settled = True
        return True

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the fields to hand back; a lower bound if there was not time for all hashes.

        Arguments:
            seconds: the most time, in seconds or a timedelta.

        Raises: as `perform`. One round trip for each 100 keys, and two for each hash.
        """
        seconds = seconds_of(seconds, "seconds")
        self._index.forget_layout()
        layout = self._index.layout(Budget.whole(seconds))
        what = "fields to hand back"
        if layout is None or layout.backend == EMULATED:
            return Backlog(0, 0.0, what)
        found = self._adoption.report(layout, Slice(10_000, seconds, self._clock), 10_000)
        age = None if found.fields or not found.is_all else 0.0
        return Backlog(found.fields, age, what, found.is_all)

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.hashes.job_client.warm_up("volatile_hashes/", "walk/", LAYOUT_SCRIPTS)


class _ReturningPart(PartJob):
    """Hands the fields of one part back, and waits for the processes as the job does.

    A part belongs to a sweep's task, so it sleeps while it waits. The part that ends last finds
    that all others have ended, and ends the move. If it dies there, `MigrateToEmulated.perform`
    does.
    """

    def __init__(self, job: MigrateToEmulated, adoption: Adoption, part: WalkPart) -> None:
        self.name, self.limit = job.name, job.limit
        self._job, self._adoption, self._part = job, adoption, part
        self._walk = PartWalk(adoption, part)
        self._is_over = False

    @property
    def is_drained(self) -> bool:
        """Whether the walk has come to its end on each node, or the move has ended."""
        return self._is_over

    def perform(self, slice: Slice) -> int:
        """Hand up to ``slice.limit`` fields back. Raises: as `MigrateToEmulated.perform`."""
        budget = Budget(slice.remaining())
        layout = self._job.moving(budget)
        if layout is None:
            self._is_over = True
            return 0
        wait = self._job.must_wait(layout, budget)
        if wait:
            time.sleep(min(wait, NAP_SECONDS, slice.remaining()))
            return 0
        handed = 0 if self._walk.is_over else self._walk.go(layout, slice)
        if self._walk.is_over:
            if self._adoption.all_parts_over(self._part):
                self._job.end(layout, budget)
            self._is_over = True
        return handed


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
        node: Node,
        keys: Sequence[bytes],
        slice: Slice,
    ) -> list[bytes]:
        """Return the hashes with fields to hand back, and all that are large. Three round trips."""
        if not keys:
            return []
        job_client = self._hashes.job_client
        small, others = small_hashes(job_client, node, keys, slice, reads_values=False)
        if small:
            asked = [
                ("HPEXPIRETIME", key, "FIELDS", len(fields), *fields)
                for key, fields in small.items()
            ]
            slice.spend(len(asked))
            replies = job_client.call(node, asked, Budget(slice.remaining()))
            others += [
                key
                for key, times in zip(small, replies, strict=True)
                if isinstance(times, Exception) or any(at >= 0 for at in times or ())
            ]
        found = set(others)
        return [key for key in keys if key in found]

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
                now = self._index.time_ms(clock)
                for name, at in zip(fields, times or (), strict=False):
                    if at >= 0:
                        yield name, at, now
            if rest == BEGINNING:
                return

    def _page(self, key: bytes, most: int, start: bytes, slice: Slice) -> tuple[bytes, list[bytes]]:
        try:
            ((rest, fields),) = self._call(
                key, slice, ("HSCAN", key, start, "COUNT", most, "NOVALUES")
            )
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            # Since the walk met it, another program has put something else in its place.
            return BEGINNING, []
        return rest, list(dict.fromkeys(fields))

    def _call(self, key: bytes, slice: Slice, *commands: Command) -> list[Any]:
        slice.spend(len(commands))
        job_client = self._hashes.job_client
        return checked(job_client.call_keys((key,), commands, Budget(slice.remaining())))
