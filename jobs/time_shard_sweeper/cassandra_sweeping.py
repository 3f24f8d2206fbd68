"""Sweeps time shards on Cassandra: one batch on the condition of the lock, never sent twice."""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from workstealing.jobs.time_shard_sweeper.job import Swept, Unswept, sweeping_of
from workstealing.recruiting.slice import Slice
from workstealing.store.operations import Steps
from workstealing.structures.time_shard_queue.cassandra_rows import (
    AGAIN,
    DEAD,
    FIRST_ID,
    FIRST_MS,
    LEASED,
    MESSAGES,
    Changes,
    Opened,
    PlaceRow,
    Row,
    order_of,
)
from workstealing.structures.time_shard_queue.cassandra_time_shards import (
    TAKEN_A_PIECE,
    CassandraTimeShards,
)

T = TypeVar("T")

BROUGHT_BACK = "(a node that was down for too long has brought it back)"
"""The consumer of a message that is set aside because it was consumed before."""
_PAGE = 500
"""A count reads so many leases at once."""
_LOOKED_AT = 8
"""A slice looks at this many time shards before it chooses one."""
_TRACED = 0.02
"""One slice of fifty is traced: a trace costs the cluster several writes."""


@sweeping_of.register(CassandraTimeShards)
class CassandraSweeping:
    """Sweeps the time shards of one queue on Cassandra.

    Ended leases end as they do on Redis. Consumed messages need no sweeper: their rows are deleted
    at once, and their tombstones are compaction's. Instead, once in `gc_grace_seconds`, it reads
    the rows behind the head of each time shard again, some a slice. A message there that was put in
    time has been taken long ago: a node that was down for longer than `gc_grace_seconds` has
    brought it back. Such a message is set aside as dead, and is not delivered as new. A message
    that was put too late waits once more.
    """

    def __init__(self, time_shards: CassandraTimeShards) -> None:
        self._time_shards = time_shards
        self._store = time_shards.store
        self._traced: Any = None

    @property
    def identity(self) -> Hashable:
        """A value that jobs on one table share, and with it a breaker."""
        identity: Hashable = self._store.identity
        return identity

    def warm_up(self) -> None:
        """Prepare nothing: to prepare statements takes a connection."""

    def sweep(
        self,
        time_shard: int,
        *,
        limit: int,
        max_attempts: int,
        slice: Slice,
        random: Callable[[], float] = _random.random,
        dry_run: bool = False,
    ) -> Swept:
        """Handle at most `limit` messages of a time shard, in one attempt; see `Sweeping.sweep`.

        Raises: Aborted; LayoutError; OutOfTime; cassandra-driver's errors, and ConnectionError if
        no node answers. Two or three round trips and a lightweight transaction.
        """
        if not dry_run:
            self._time_shards.require_writable()
        self._measure(time_shard, limit, slice, again=random() < _TRACED)

        def look(opened: Opened) -> Steps[Changes[Swept]]:
            changes = yield from self._changes(opened, limit, max_attempts, slice)
            return Changes(changes.result) if dry_run else changes

        steps = self._time_shards.committed(time_shard, look, Swept(0, 0, 0), once=True)
        return self._run(steps, slice.remaining())

    def unswept(
        self, time_shards: Sequence[int], slice: Slice | None = None, seconds: float | None = None
    ) -> list[Unswept]:
        """Count the ended leases of each of these time shards; see `Sweeping.unswept`.

        Raises: as `sweep`. Two round trips for each, one more for each further 500 leases.
        """
        left = slice.remaining() if slice is not None else 5.0 if seconds is None else seconds

        def counting() -> Steps[list[Unswept]]:
            found = []
            for each in time_shards:
                opened = yield from self._time_shards.read(each)
                if opened is None:
                    found.append(Unswept(0, 0, 0.0))
                    continue
                page = yield from self._ended(opened, _PAGE)
                oldest = (opened.now_ms - page[0].at) / 1000 if page else 0.0
                count = len(page)
                while len(page) == _PAGE:
                    page = yield from self._time_shards.further_places(
                        each, LEASED, page[-1][:2], _PAGE
                    )
                    count += sum(place.at <= opened.now_ms for place in page)
                found.append(Unswept(count, 0, oldest))
            return found

        return self._run(counting(), left)

    def look(
        self, time_shards: Sequence[int], slice: Slice, random: Callable[[], float] = _random.random
    ) -> tuple[list[int], list[int]]:
        """Look at up to 8 of these time shards; see `Sweeping.look`. Two round trips for each."""
        first = int(random() * len(time_shards))
        seen = [*time_shards[first:], *time_shards[:first]][:_LOOKED_AT]

        def looking() -> Steps[list[int]]:
            dirty = []
            for each in seen:
                opened = yield from self._time_shards.read(each)
                if opened is None:
                    continue
                ended = yield from self._ended(opened, 1)
                if ended or self._is_audit_due(opened):
                    dirty.append(each)
            return dirty

        slice.spend(2 * len(seen))
        return seen, self._run(looking(), slice.remaining())

    def _run(self, steps: Steps[T], seconds: float) -> T:
        from cassandra.cluster import NoHostAvailable

        try:
            found: T = self._store.inspect(steps, seconds)
        except NoHostAvailable as error:
            # The word by which breakers know that a server is away.
            raise ConnectionError(f"no node of Cassandra answered: {error}") from error
        return found

    def _ended(self, opened: Opened, n: int) -> Steps[list[PlaceRow]]:
        first, last = opened.lock.ends, opened.now_ms
        return self._time_shards.places(opened.number, LEASED, first, last, n)

    def _changes(
        self, opened: Opened, limit: int, max_attempts: int, slice: Slice
    ) -> Steps[Changes[Swept]]:
        now, number = opened.now_ms, opened.number
        # One batch makes all the changes.
        limit = min(limit, TAKEN_A_PIECE)
        places = yield from self._ended(opened, limit)
        rows = yield from self._time_shards.rows_at(number, [each.row for each in places])
        oldest = (now - places[0].at) / 1000 if places else 0.0
        slice.observe(oldest_seconds=oldest, backlog=len(places))
        changes = Changes(Swept(0, 0, 0))
        returned = buried = cleared = 0
        again = opened.lock.again
        for place in places:
            row = rows.get(place.row)
            if row is None:
                # The message of this row is done; a batch that came too late for it may have left
                # columns.
                changes.displace(MESSAGES, PlaceRow(place.of_due, place.id, place.of_due))
            if row is None or (row.state, row.until) != (LEASED, place.at):
                changes.displace(LEASED, place)
                cleared += 1
            elif row.attempts >= max_attempts:
                changes.move(row, DEAD, now)
                buried += 1
            else:
                changes.move(row, AGAIN, row.due_ms)
                again = min(again, row.due_ms)
                returned += 1
        lock = replace(opened.lock, again=again)
        if places:
            # All leases that ended before the last of them are settled.
            lock = replace(lock, ends=places[-1].at)
            changes.lock = lock
        left = limit - len(places)
        if left and self._is_audit_due(opened):
            late, back, void = yield from self._audit(opened, lock, changes, left)
            returned, buried, cleared = returned + late, buried + back, cleared + void
        changes.result = Swept(returned, buried, cleared)
        return changes

    def _is_audit_due(self, opened: Opened) -> bool:
        """Return whether the rows behind the head are to be read again."""
        grace_us = self._store.gc_grace_seconds() * 1_000_000
        begun = opened.lock.audit != (FIRST_MS, FIRST_ID)
        is_old = opened.stamp - opened.lock.audited_us > grace_us
        return (
            opened.lock.head[0] != FIRST_MS
            and (begun or is_old)
            and (
                # Before that, a read would meet all the tombstones of the last turn.
                opened.stamp - opened.lock.before_us > grace_us
            )
        )

    def _audit(
        self, opened: Opened, lock: Any, changes: Changes[Swept], n: int
    ) -> Steps[tuple[int, int, int]]:
        """Look at some rows behind the head, and add what is to be done with them."""
        head = opened.lock.head
        query = self._time_shards.fresh(opened.number, lock.audit, head[0], n)
        page = yield query
        late = back = void = 0
        at = lock.audit
        for due, id_, live, state, due_now, put_us in page:
            at = (due, id_)
            if not live:
                changes.displace(MESSAGES, PlaceRow(due, id_, due))
                void += 1
            elif not state and order_of((due, id_)) <= order_of(head):
                row = Row(due, id_, live, None, None, None, None, due_now, None, put_us, None)
                if (put_us or 0) < opened.lock.before_us:
                    changes.move(row, DEAD, opened.now_ms, consumer=BROUGHT_BACK)
                    back += 1
                else:
                    changes.move(row, AGAIN, row.due_ms)
                    lock = replace(lock, again=min(lock.again, row.due_ms))
                    late += 1
        if len(page) < n:
            changes.lock = replace(lock, audit=(FIRST_MS, FIRST_ID), audited_us=opened.stamp)
        else:
            changes.lock = replace(lock, audit=at)
        return late, back, void

    def _measure(self, time_shard: int, limit: int, slice: Slice, *, again: bool) -> None:
        """Report how many tombstones a consumer's read meets, as the trace of a sample says.

        Arguments:
            again: whether to trace a read now; its trace is read by the next slice.
        """
        traced, self._traced = self._traced, None
        if traced is not None:
            met = self._store.met(traced, max(0.001, slice.remaining() / 4))
            if met is not None:
                slice.measure("tombstones", met.tombstones)
        elif again:
            seconds = slice.remaining()
            opened = self._run(self._time_shards.read(time_shard), seconds)
            if opened is not None:
                head, now = opened.lock.head, opened.now_ms
                query = self._time_shards.fresh(time_shard, head, now, limit)
                self._traced = self._store.begin_traced(query, seconds)
