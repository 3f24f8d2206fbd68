"""The job that moves a namespace of volatile hashes over to the server's own field expiry.

The layout goes from emulated over migrating to native. While it is migrating, each hash is handed
over before its next use, and the job hands over the hashes that nobody uses. Marks keep the
migration exact: from its first hash on, an index shard refuses writers that do not know of the
migration, and an empty index shard is closed until the namespace is moved back. A namespace that
has just been moved back rests for 15 seconds first, until every process has noticed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.jobs.shared.backend_moves import (
    NAP_SECONDS,
    change_backend,
    mark_shards,
    seconds_to_wait,
)
from workstealing.jobs.shared.due_collecting import (
    PATIENCE_SECONDS,
    DuePart,
    DuePartJob,
    Served,
    divided,
)
from workstealing.jobs.shared.due_looks import items_backlog, looks, observe_items
from workstealing.recruiting.job import Backlog, DivisibleJob, PartJob, refuse_dry_run
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import key_slot
from workstealing.store.operations import Operation
from workstealing.structures.access import Access, JobAccess
from workstealing.structures.due_index import DueIndex, DueKey
from workstealing.structures.layout import LAYOUT_SCRIPTS, ask_server
from workstealing.structures.namespace import EMULATED, MIGRATING, NATIVE, Layout
from workstealing.structures.stored import holding_ours
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.commands import (
    NATIVE_COMMANDS,
    HashNames,
    HashTranslator,
)
from workstealing.structures.volatile_hashes.hashes import checked_hashes
from workstealing.structures.volatile_hashes.server_faults import (
    checked_faults,
    reason_against,
)

__all__ = ["MigrateToNative"]

_LOOKED_AT = 1_000
"""The hashes whose fields a backlog counts; of more, these stand for the others."""


class MigrateToNative(DivisibleJob):
    """Moves a namespace from emulated to native, slice by slice, under traffic.

    Install it when all servers run Redis 8 or Valkey 9, and every process runs a release that knows
    the job. When the namespace is native, its slices are idle and you can uninstall it. Readers and
    writers go on meanwhile: a hash is handed over before its next use.

    A server with a known fault that applies is refused: see the table of faults in
    docs/volatile_hashes.md.

    Arguments:
        hashes: the namespace.
        limit: the most fields a slice hands over.
        accept: names of faults of the server that you accept.
        dry_run: count the fields that a slice would hand over, at most `limit`, and change nothing.
        name: by default ``migrate_to_native.<namespace>``.
        random: returns a float in [0, 1).
    """

    access = JobAccess(
        ("volatile hashes",),
        Access(
            keys=(),
            scripts=("volatile_hashes/migrate", "volatile_hashes/mark_shard", "layout"),
            commands=frozenset({"GET", "HGET", "TIME", "ZCARD"}),
        ),
        native=True,
    )
    unit = "fields"

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        limit: int = 25,
        *,
        accept: Collection[str] = (),
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.hashes = checked_hashes(hashes)
        default = f"migrate_to_native.{hashes.namespace}"
        self._keep_clean(hashes, limit=limit, name=name, default=default, dry_run=dry_run)
        self._migrator = _Migrator(
            hashes.job_client,
            hashes.names,
            hashes.translator,
            accepted=checked_faults(accept),
            random=random,
            clock=clock,
        )

    def perform(self, slice: Slice) -> int:
        """Hand over up to ``slice.limit`` fields; close the namespace when none is left.

        Returns: how many were handed over; on a dry run, how many would be. Raises:
        ConfigurationError if the server cannot expire fields, or has a fault that applies;
        LayoutError; connection faults. One round trip for the layout, one to three to look, and one
        for each hash; more when the migration begins or ends.
        """
        if self.dry_run:
            return self._migrator.count(slice)
        return self._migrator.migrate(slice)

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the fields that are not handed over yet; their age is unknown.

        Arguments:
            seconds: the most time, in seconds or a timedelta.

        Raises: as `perform`. Two round trips to each node.
        """
        return self._migrator.backlog(seconds_of(seconds, "seconds"))

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.hashes.job_client.warm_up("volatile_hashes/", LAYOUT_SCRIPTS)

    def parts(self, n: int) -> list[DuePart]:
        """Divide the namespace for a sweep, by index shards; see `DivisibleJob.parts`.

        A namespace that is native, or not in use, has no part. Two round trips.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return self._migrator.parts(n)

    def for_part(self, part: DuePart) -> PartJob:
        """Return the job that hands over one part, by scripts; see `DuePartJob`."""
        return self._migrator.for_part(self.name, self.limit, part)


class _Migrator:
    """Hands over the hashes of one namespace.

    Arguments:
        job_client: of the namespace.
        names: of the namespace.
        translator: of the namespace.
    """

    def __init__(
        self,
        job_client: JobClient,
        names: HashNames,
        translator: HashTranslator,
        *,
        accepted: Collection[str],
        random: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._index = DueIndex(job_client, names, translator.clock_shift_ms, random, clock)
        self._job_client = job_client
        self._names = names
        self._translator = translator
        self._accepted = accepted

    def migrate(self, slice: Slice) -> int:
        """Do one slice of the migration.

        Returns: how many fields were handed over; 0 when the namespace is native, and in the slice
        that finds nothing left and closes the index shards. Raises: ConfigurationError if the
        server lacks the commands; LayoutError; connection faults. One script a hash.
        """
        layout, wait = self.begun(slice)
        if layout is None:
            if not wait:
                slice.observe(backlog=0)
            return 0
        moved, hashes, found_any = 0, 0, False
        try:
            for look in looks(self._index, slice, overdue=False):
                found_any = True
                for due in look.found:
                    if moved >= slice.limit or slice.expired:
                        return moved
                    operation = self._translator.move(layout, due.key, slice.limit - moved)
                    moved += self._run(operation, slice)
                    hashes += 1
        finally:
            observe_items(slice, moved, hashes)
        if not found_any:
            self.close(layout, slice)
        return moved

    def begun(self, slice: Slice) -> tuple[Layout | None, float]:
        """Begin the migration, if nobody has.

        Returns: the layout while the migration lasts, else None; and for how many seconds the
        migration may not begin.
        """
        # Another process may have begun or ended the migration since the last slice.
        self._index.forget_layout()
        budget = Budget(slice.remaining())
        layout = self._index.layout(budget)
        if layout is None:
            return None, 0.0
        if layout.backend == EMULATED:
            layout.require_writable()
            self._require_servers(slice)
            # A process that takes the namespace for returning would hand back again what it meets
            # in a closed index shard: there it cannot tell this migration from one before.
            left = seconds_to_wait(self._index, budget)
            if left > 0:
                return None, left
            change_backend(self._index, EMULATED, MIGRATING, budget)
            layout = self._index.layout(budget)
        if layout is None or not layout.is_migrating:
            return None, 0.0
        layout.require_writable()
        return layout, 0.0

    def count(self, slice: Slice) -> int:
        """Return how many fields `migrate` would hand over now, at most the limit; change nothing.

        Raises: as `migrate`. One round trip for the layout, one to each primary, and one to three
        to look, each with one more for the keys found.
        """
        self._index.forget_layout()
        layout = self._index.layout(Budget(slice.remaining()))
        if layout is None or layout.is_native:
            slice.observe(backlog=0)
            return 0
        layout.require_writable()
        self._require_servers(slice)
        counted = 0
        for look in looks(self._index, slice, overdue=False):
            commands = [("ZCARD", self._names.deadlines(due.key)) for due in look.found]
            node = self._job_client.node_of(look.found[0].shard)
            with holding_ours(b"{...}:ws:" + self._names.namespace.encode() + b":ttl:"):
                counted += sum(
                    checked(self._job_client.call(node, commands, Budget(slice.remaining())))
                )
            if counted >= slice.limit or slice.expired:
                break
        return min(counted, slice.limit)

    def backlog(self, seconds: float) -> Backlog:
        """Count the fields that are not handed over yet; see `items_backlog`."""
        self._index.forget_layout()
        budget = Budget.whole(seconds)

        def count(node: Node, found: Sequence[bytes]) -> int:
            asked = [("ZCARD", self._names.deadlines(each)) for each in found]
            # A hash without a field is still to be taken out of the index.
            return sum(max(1, each) for each in checked(self._job_client.call(node, asked, budget)))

        what = "fields to hand over"
        return items_backlog(self._index, seconds, what, count, _LOOKED_AT, overdue=False)

    def parts(self, n: int, seconds: float = 10.0) -> list[DuePart]:
        """Divide the namespace for a sweep; see `divided`."""
        self._index.forget_layout()
        return divided(self._index, n, seconds, overdue=False)

    def for_part(self, name: str, limit: int, part: DuePart) -> PartJob:
        """Return the job that hands over the hashes of one part."""
        return _MigratingPart(self, name, limit, self._index, part)

    def move_many(self, layout: Layout, found: list[DueKey], most: int, slice: Slice) -> Served:
        """Hand over at most `most` fields of hashes on one node, in one round trip."""
        each = max(1, most // len(found))
        operations = [self._translator.move(layout, due.key, each) for due in found]
        commands = [operation.by_text() for operation in operations]
        node = self._job_client.node_of(found[0].shard)
        budget = Budget(slice.remaining(), PATIENCE_SECONDS)
        replies = checked(self._job_client.call(node, commands, budget))
        moved = sum(op.read(reply) for op, reply in zip(operations, replies, strict=True))
        return Served(int(moved), len(found))

    def close(self, layout: Layout, slice: Slice) -> None:
        """Close the index shards in use, and the migration if all of them are empty."""
        budget = Budget(slice.remaining())
        before = (EMULATED, MIGRATING)
        if mark_shards(self._index, layout, NATIVE, before, budget, if_empty=True):
            change_backend(self._index, MIGRATING, NATIVE, budget)

    def _require_servers(self, slice: Slice) -> None:
        """Refuse where a server lacks the commands or has a fault: a cluster's nodes may differ."""
        for key in self._names.on_each_primary(self._job_client):
            budget = Budget(slice.remaining(), PATIENCE_SECONDS)
            facts = self._index.drive(ask_server(key, NATIVE_COMMANDS), budget)
            if missing := [name for name in NATIVE_COMMANDS if name not in facts.known]:
                raise ConfigurationError(
                    f"the server lacks {', '.join(missing)}, so the namespace stays emulated:"
                    " upgrade the server to Redis 8 or Valkey 9 first"
                )
            if against := reason_against(facts.info, self._accepted):
                raise ConfigurationError(
                    f"the namespace {self._names.namespace!r} stays emulated: {against}; or name"
                    " the fault in accept="
                )

    def _run(self, operation: Operation, slice: Slice) -> Any:
        # By the first key's slot: on one server the others may lie in other slots.
        node = self._job_client.node_of(key_slot(operation.keys[0]))
        (reply,) = checked(
            self._job_client.call(node, [operation.by_text()], Budget(slice.remaining()))
        )
        return operation.read(reply)


class _MigratingPart(PartJob):
    """Hands over one part; a slice that finds nothing left tries to close the namespace."""

    def __init__(
        self, migrator: _Migrator, name: str, limit: int, index: DueIndex, part: DuePart
    ) -> None:
        self.name, self.limit = name, limit
        self._migrator = migrator
        self._layout: Layout | None = None
        self._is_over = False
        self._walk = DuePartJob(name, limit, index, part, self._serve)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left in this part, or the namespace is native."""
        return self._is_over or self._walk.is_drained

    def perform(self, slice: Slice) -> int:
        """Hand over up to ``slice.limit`` fields of the part. Raises: as `_Migrator.migrate`."""
        self._layout, wait = self._migrator.begun(slice)
        if self._layout is None:
            if wait:
                time.sleep(min(wait, NAP_SECONDS, slice.remaining()))
            else:
                self._is_over = True
            return 0
        moved = self._walk.perform(slice)
        if self._walk.is_drained:
            self._migrator.close(self._layout, slice)
        return moved

    def _serve(self, found: list[DueKey], most: int, slice: Slice) -> Served:
        if self._layout is None:
            return Served(0, 0)
        return self._migrator.move_many(self._layout, found, most, slice)
