"""The rules of time shards on Cassandra: where a message lies, and which batch moves it.

A partition is one time shard, with these rows, in this order:

- kind -1: the mark, which says the rotation. The row also makes the static column ``lock`` readable
  without a look at any other row.
- kind 0: the messages, by due time. A message stays in its row until it is consumed; its id says
  where. ``live`` and ``message`` are the producer's, the other columns the consumers'.
- kind 1: the places of messages that wait once more (released, swept, revived), by due time.
- kind 2: the places of leased messages, by the end of the lease.
- kind 3: the places of dead messages, by the time at which they were set aside.

A producer inserts a row, and a consumer who is done deletes it, each by a plain write. Any other
change of a time shard is one batch. The batch's condition is that ``lock`` is as it was when it was
read, and that each changed message is still live. So two consumers never get one message, and a
message is acknowledged whatever else goes on: a batch that comes too late for it changes nothing,
or leaves columns without ``live``, which count as no message.

The static column ``lock`` holds a `Lock`, which says how far the rows of the kinds 0, 1 and 2 have
been read. Tombstones lie behind those places, and no take reads them again. A producer puts no
message behind them either: it reads the lock first.
"""

from __future__ import annotations

import contextlib
import json
import random
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from workstealing.errors import Aborted, LayoutError
from workstealing.store.grants import new_nonce
from workstealing.store.operations import Sleep, Steps
from workstealing.structures.layout import Versioned
from workstealing.structures.time_shard_queue.cassandra_rows import (
    AGAIN,
    DEAD,
    FIRST_ID,
    FIRST_MS,
    LAST_MS,
    LEASED,
    MESSAGES,
    NOTHING,
    Changes,
    Claim,
    Lock,
    Now,
    Opened,
    PlaceRow,
    Query,
    Row,
    RowBatch,
    Taking,
    id_of,
    row_of,
    timeuuid,
)
from workstealing.structures.time_shard_queue.redis_store import KIND, read_rotation
from workstealing.structures.time_shard_queue.rotation import Rotation
from workstealing.structures.time_shard_queue.store import (
    AskedTakes,
    Buried,
    Due,
    Entry,
    Held,
    TimeShardCounts,
)

T = TypeVar("T")

LAYOUT_SHARD = -1
"""The partition that holds a queue's layout, in its mark."""
TAKEN_A_PIECE = 50
"""So many messages are changed by one batch, which then stays far below Cassandra's limit of 50
KiB."""
_PAGE = 500
_FIRST_POLL, _LONGEST_POLL = 0.05, 1.0
"""How long a take that waits sleeps before it looks again, in seconds: at first, and at last."""
_ATTEMPTS = 30
"""A consumer tries so often to be the first, with longer and longer pauses."""


class CassandraTimeShards:
    """The time shards of one queue on Cassandra; see `TimeShards` for the methods.

    Arguments:
        store: a `CassandraStore`.

    A put is two round trips, an acknowledgement three. A take is five, one of them a lightweight
    transaction; one that finds nothing is four. Every call raises LayoutError for foreign data or
    another rotation, and then has changed nothing. It also raises cassandra-driver's errors.

    Each batch has a nonce, which stands in the lock that it writes. If its answer says neither that
    it was applied nor that it was not, as a WriteTimeout does, the lock is read once more, and
    tells.
    """

    def __init__(self, store: Any, name: bytes, rotation: Rotation) -> None:
        self.store = store
        self.name, self.rotation = name, rotation
        self._opened: Versioned[Rotation] | None = None
        self.mark = self._mark_of(KIND.version)
        """The mark that each time shard must have: `version:time shards:period in ms`."""

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """The errors by which Cassandra says that it cannot do a step."""
        from cassandra import DriverException
        from cassandra.cluster import NoHostAvailable

        return (DriverException, NoHostAvailable, LayoutError, Aborted)

    def require_writable(self) -> None:
        """Raise a LayoutError if the layout has been read, and may only be read."""
        if self._opened is not None:
            self._opened.require_writable()

    def open(self, create: bool = False, only_read: bool = False) -> Steps[Rotation | None]:
        """Read the layout, or write it down if there is none.

        One round trip the first time, two for a new queue.
        """
        opened = self._opened
        if opened is None:
            opened = yield from self._layout(new=create)
            if opened is None:
                return None
            if opened.own == self.rotation:
                # Of another one the caller is told, and it may be gone by the next call.
                self._opened = opened
                self.mark = self._mark_of(opened.version)
        if not only_read:
            opened.require_writable()
        return opened.own

    def put(self, time_shard: int, entries: Sequence[Entry], now_s: float) -> Steps[list[str]]:
        """Keep messages; one round trip reads the lock, and one writes all messages. O(1) each."""
        opened = yield from self.read(time_shard)
        if opened is None:
            opened = yield from self._new(time_shard)
        ids, queries = [], []
        for number, (message, due) in enumerate(entries):
            due_ms = self._due(due, opened.now_ms)
            # Behind the head no take would look.
            row = (max(due_ms, opened.lock.head[0] + 1), timeuuid(now_s, number))
            args = (*self._key(time_shard), *row, message, due_ms, opened.stamp)
            queries.append(Query("put", args))
            ids.append(id_of(time_shard, row))
        yield queries
        return ids

    def take(
        self,
        time_shard: int,
        consumer: str,
        lease_ms: int,
        n: int,
        max_attempts: int,
        *,
        is_turn: bool,
        asked: AskedTakes | None = None,
    ) -> Steps[list[Held]]:
        """Lease up to n messages that are due, in pieces of 50, each by one batch."""
        asked = AskedTakes() if asked is None else asked
        taken: list[Held] = []
        more = True
        while more and len(taken) < n:
            wanted = min(n - len(taken), TAKEN_A_PIECE)
            piece = Taking(self, consumer, lease_ms, wanted, max_attempts, is_turn=is_turn)
            begun = len(asked.receipts)
            try:
                found = yield from self.committed(time_shard, piece.look, NOTHING, asked=asked)
                messages = yield from self._messages(time_shard, found.held)
            except self.faults as error:
                if not taken:
                    raise
                if len(asked.receipts) > begun:
                    asked.note_cut(asked.receipts[-1], error)
                break
            more = found.more
            taken += messages
        return taken

    def wait(
        self,
        time_shards: Sequence[int],
        producing: int,  # noqa: ARG002 - nothing tells of a put
        seconds: float,
        waits: int,
    ) -> Steps[list[int]]:
        """Sleep for a while, longer with each wait, up to a second; see the store's module.

        No round trip: whoever waits takes again, so late may it see that a message is due.
        """
        yield Sleep(min(seconds, _LONGEST_POLL, _FIRST_POLL * 2 ** min(waits, 10)))
        return list(time_shards)

    def give_back(self, asked: AskedTakes) -> Steps[int]:
        """End the leases of a call's batches that were applied; three round trips for each.

        A batch still under way is never applied after that. Leases that nobody knows of stay.
        """
        count = 0
        for time_shard, claim in asked.receipts:
            with contextlib.suppress(Aborted):
                if claim.is_known or (yield from self._was_applied(time_shard, claim)):
                    count += yield from self._release_all(time_shard, claim.result.held)
        return count

    def _release_all(self, time_shard: int, held: Sequence[Held]) -> Steps[int]:
        """End leases of one take as `release` does, all by one batch."""
        tokens = {each.id: each.token for each in held}

        def look(opened: Opened) -> Steps[Changes[int]]:
            rows = yield from self._rows(time_shard, list(tokens))
            mine = [
                row
                for row in rows
                if row.state == LEASED and _token(row) == tokens[id_of(time_shard, row.key)]
            ]
            if not mine:
                return Changes(0)
            again = min([opened.lock.again, *(row.due_ms for row in mine)])
            changes = Changes(len(mine), replace(opened.lock, again=again))
            for row in mine:
                changes.move(row, AGAIN, row.due_ms, given_back=(row.given_back or 0) + 1)
            return changes

        return (yield from self.committed(time_shard, look, 0))

    def consume(self, time_shard: int, ids: Sequence[str]) -> Steps[int]:
        """Delete messages, whoever has them; three round trips."""
        return (yield from self._forget(time_shard, ids))

    def release(
        self, time_shard: int, message_id: str, token: str | None, due: Due | None
    ) -> Steps[bool]:
        """End a lease early, by one batch."""

        def look(opened: Opened) -> Steps[Changes[bool]]:
            row = yield from self._row(time_shard, message_id)
            if row is None or row.state not in {AGAIN, LEASED} or token not in {None, _token(row)}:
                return Changes(False)
            when = row.due_ms if due is None else self._due(due, opened.now_ms)
            given_back = (row.given_back or 0) + (row.state == LEASED)
            changes = Changes(True, replace(opened.lock, again=min(opened.lock.again, when)))
            changes.move(row, AGAIN, when, given_back=given_back, due_now=when)
            return changes

        return (yield from self.committed(time_shard, look, False))

    def extend(self, time_shard: int, message_id: str, token: str, lease_ms: int) -> Steps[bool]:
        """Let a lease last longer, by one batch."""

        def look(opened: Opened) -> Steps[Changes[bool]]:
            row = yield from self._row(time_shard, message_id)
            if row is None or row.state != LEASED or _token(row) != token:
                return Changes(False)
            end = max(row.until or 0, opened.now_ms + lease_ms)
            changes = Changes(True, replace(opened.lock, ends=min(opened.lock.ends, end)))
            changes.move(row, LEASED, end)
            return changes

        return (yield from self.committed(time_shard, look, False))

    def counts(self, time_shards: Sequence[int]) -> Steps[list[TimeShardCounts]]:
        """Count the messages of some time shards: O(n), a round trip for each 500 of each kind."""
        counted: list[TimeShardCounts] = []
        for time_shard in time_shards:
            each = yield from self._count(time_shard)
            counted.append(each)
        return counted

    def dead(self, time_shard: int, n: int) -> Steps[list[Buried]]:
        """List the dead set; O(n), three round trips for each 50."""
        if (yield from self.read(time_shard)) is None:
            return []
        found: list[Buried] = []
        at = (FIRST_MS, FIRST_ID)
        while len(found) < n:
            places = yield from self.further_places(time_shard, DEAD, at, TAKEN_A_PIECE)
            rows = yield from self.rows_at(time_shard, [each.row for each in places])
            bodies = yield from self._bodies(time_shard, list(rows))
            for place in places:
                row, body = rows.get(place.row), bodies.get(place.row)
                if row is not None and body is not None and row.until == place.at:
                    id_, who = id_of(time_shard, row.key), row.consumer or ""
                    found.append(Buried(id_, body, row.due_ms, row.attempts, place.at, who))
            if len(places) < TAKEN_A_PIECE:
                break
            at = places[-1][:2]
        return found[:n]

    def revive(self, time_shard: int, ids: Collection[str]) -> Steps[int]:
        """Let messages of the dead set wait again, in one batch for each 50 messages."""
        count = 0
        for some in _pieces(list(ids)):

            def look(opened: Opened, some: Sequence[str] = some) -> Steps[Changes[int]]:
                rows = yield from self._rows(time_shard, some)
                dead = [row for row in rows if row.state == DEAD]
                again = min([opened.lock.again, *(row.due_ms for row in dead)])
                changes = Changes(len(dead), replace(opened.lock, again=again))
                for row in dead:
                    changes.move(row, AGAIN, row.due_ms, given_back=row.takes or 0)
                return changes

            count += yield from self.committed(time_shard, look, 0)
        return count

    def discard(self, time_shard: int, ids: Collection[str]) -> Steps[int]:
        """Delete messages of the dead set; three round trips."""
        return (yield from self._forget(time_shard, list(ids), DEAD))

    def delete(self) -> Steps[int]:
        """Remove all time shards and the layout: a tombstone for each time shard.

        Raises: LayoutError for a foreign or newer queue, and for one that was changed meanwhile.
        """
        rows = yield Query("mark", self._key(LAYOUT_SHARD))
        if not rows:
            return 0
        mark = rows[0][0]
        found = self._read_layout(mark, deleted=True)
        assert found is not None
        self._require(found)
        # From now on nobody opens it; and as long as anything is left, the layout says so.
        dropping = json.dumps({**json.loads(mark), "dropping": "1"})
        if mark != dropping:
            done = yield Query("change_mark", (dropping, *self._key(LAYOUT_SHARD), mark))
            if not done[0][0]:
                raise self._foreign("was changed meanwhile: call delete() once more")
        self._opened = None
        count = 0
        for time_shard in range(self.rotation.time_shards):
            if (yield from self.read(time_shard)) is None:
                continue
            each = yield from self._count(time_shard)
            count += each.waiting + each.leased + each.dead
            # Later than all that was written, whose timestamps are finer than the server's time.
            now = yield Query("now", ())
            yield Query("forget_all", (now[0][0] * 1000 + 1000, *self._key(time_shard)))
        # A new queue's rows must be later than these tombstones.
        yield Sleep(0.005)
        yield Query("delete_mark", (*self._key(LAYOUT_SHARD), dropping))
        self.mark = self._mark_of(KIND.version)
        return count

    def committed(
        self,
        time_shard: int,
        look: Callable[[Opened], Steps[Changes[T]]],
        nothing: T,
        *,
        once: bool = False,
        asked: AskedTakes | None = None,
    ) -> Steps[T]:
        """Look at a time shard, and commit the changes that `look` returns.

        Arguments:
            nothing: the result where nothing was ever put.
            once: one attempt, as of a recruit.
            asked: of a take, which keeps the claim of each batch that may have been applied.

        Raises: Aborted if another writer came first, without `once` after 30 attempts.
        """
        pause = 0.001
        for _ in range(1 if once else _ATTEMPTS):
            opened = yield from self.read(time_shard)
            if opened is None:
                return nothing
            changes = yield from look(opened)
            claim = Claim(new_nonce().decode(), opened.lock, changes.result)
            batch = changes.batch(self._key(time_shard), opened.lock, claim.nonce)
            if batch is None:
                return changes.result
            if asked is not None:
                asked.receipts.append((time_shard, claim))
            try:
                is_applied = (yield batch)[0][0]
            except self.store.unsure:
                if once:
                    raise
                is_applied = yield from self._was_applied(time_shard, claim)
            if is_applied:
                if asked is not None:
                    asked.receipts[-1] = (time_shard, claim._replace(is_known=True))
                return changes.result
            if asked is not None:
                asked.receipts.pop()
            if not once:
                yield Sleep(random.uniform(0, pause))
                pause = min(1.3 * pause, 0.1)
        raise Aborted(
            f"others changed time shard {time_shard} of the queue {self._text} before this process"
            f" could{'' if once else f', {_ATTEMPTS} times'}: nothing was changed"
        )

    def _was_applied(self, time_shard: int, claim: Claim) -> Steps[bool]:
        """Say whether a batch without an answer was applied; if it was not, it never will be.

        One or two round trips, and more while others change the time shard. Raises: Aborted if the
        batches of too many others have come since.
        """
        key = self._key(time_shard)
        for _ in range(_ATTEMPTS):
            # This read brings to its end whatever the batch has begun.
            rows = yield Query("settled_mark", key)
            if not rows:
                return False
            lock = Lock.of(rows[0][1])
            if lock.knows(claim.nonce):
                return True
            if lock.text != claim.before.text:
                if lock.knows(claim.before.nonce):
                    # Another one has come in its place.
                    return False
                break
            # The batch may still be on its way to a coordinator: then it finds another lock.
            fence = lock.written(new_nonce().decode())
            if (yield Query("lock", (fence.text, *key, lock.text)))[0][0]:
                return False
        raise Aborted(
            f"nobody knows whether time shard {time_shard} of the queue {self._text} was changed:"
            " its answer was cut off, and others have changed it too often since; what was leased"
            " ends by itself"
        )

    def places(
        self, time_shard: int, kind: int, first: int, last: int, n: int
    ) -> Steps[list[PlaceRow]]:
        """Return up to n places of a kind between two times."""
        rows = yield self.placing(time_shard, kind, first, last, n)
        return [PlaceRow(*row) for row in rows]

    def placing(self, time_shard: int, kind: int, first: int, last: int, n: int) -> Query:
        """Return the query of `places`."""
        return Query("places", (*self._key(time_shard), kind, first, last, n))

    def further_places(
        self, time_shard: int, kind: int, after: tuple[int, uuid.UUID], n: int
    ) -> Steps[list[PlaceRow]]:
        """Return up to n places of a kind behind one of them."""
        rows = yield Query("further_places", (*self._key(time_shard), kind, *after, n))
        return [PlaceRow(*row) for row in rows]

    def rows_at(
        self, time_shard: int, keys: Collection[tuple[int, uuid.UUID]]
    ) -> Steps[dict[tuple[int, uuid.UUID], Row]]:
        """Return the rows of live messages by their keys."""
        if not keys:
            return {}
        rows = yield Query("rows", (*self._key(time_shard), list(keys)))
        return {row.key: row for row in (Row(*each) for each in rows) if row.live}

    def fresh(self, time_shard: int, after: tuple[int, uuid.UUID], last: int, n: int) -> Query:
        """Return the query for the next n rows of messages that are due."""
        return Query("fresh", (*self._key(time_shard), *after, last, n))

    def _messages(self, time_shard: int, some: Sequence[Held]) -> Steps[list[Held]]:
        """Return leased messages with their contents, without those that are done meanwhile."""
        keys = {each.id: row_of(each.id) for each in some}
        bodies = yield from self._bodies(time_shard, [key for key in keys.values() if key])
        found = ((each, bodies.get(keys[each.id])) for each in some)
        return [each._replace(message=body) for each, body in found if body is not None]

    def _bodies(
        self, time_shard: int, keys: Sequence[tuple[int, uuid.UUID]]
    ) -> Steps[dict[tuple[int, uuid.UUID] | None, bytes]]:
        if not keys:
            return {}
        rows = yield Query("messages", (*self._key(time_shard), list(keys)))
        # A node that was down may have repaired `live` on others by a foreign read, and no more.
        return {
            (due, id_): bytes(message)
            for due, id_, live, message in rows
            if live and message is not None
        }

    def _row(self, time_shard: int, message_id: str) -> Steps[Row | None]:
        """Return the live row of a message by its id."""
        rows = yield from self._rows(time_shard, [message_id])
        return rows[0] if rows else None

    def _rows(self, time_shard: int, ids: Sequence[str]) -> Steps[list[Row]]:
        """Return the live rows of messages by their ids."""
        keys = [key for key in map(row_of, ids) if key is not None]
        found = yield from self.rows_at(time_shard, keys)
        return [found[key] for key in dict.fromkeys(keys) if key in found]

    def _forget(self, time_shard: int, ids: Sequence[str], state: int | None = None) -> Steps[int]:
        """Delete messages with their places, even if others change them now. Returns: how many."""
        opened = yield from self.read(time_shard)
        if opened is None:
            return 0
        rows = yield from self._rows(time_shard, ids)
        if state is not None:
            rows = [row for row in rows if row.state == state]
        if rows:
            yield RowBatch(list(self.forgetting(opened, rows)), False)
        return len(rows)

    def forgetting(self, opened: Opened, rows: Sequence[Row]) -> Iterator[Query]:
        """Yield the plain deletes that remove messages with their places."""
        key = self._key(opened.number)
        for row in rows:
            stamp = row.delete_us(opened.stamp)
            yield Query("forget", (stamp, *key, MESSAGES, *row.key))
            if row.state and row.until is not None:
                yield Query("forget", (stamp, *key, row.state, row.until, row.id))

    def _count(self, time_shard: int) -> Steps[TimeShardCounts]:
        opened = yield from self.read(time_shard)
        if opened is None:
            return TimeShardCounts(0, 0, 0, 0, 0, 0)
        now = opened.now_ms
        dues: list[int] = []
        at, some = opened.lock.head, [()] * _PAGE
        while len(some) == _PAGE:
            some = yield self.fresh(time_shard, at, LAST_MS, _PAGE)
            dues += [due_now for _, _, live, state, due_now, _ in some if live and not state]
            at = some[-1][:2] if some else at
        sizes = {}
        for kind, first in (
            (AGAIN, opened.lock.again),
            (LEASED, opened.lock.ends),
            (DEAD, FIRST_MS),
        ):
            found: list[PlaceRow] = []
            at, more = (first, FIRST_ID), True
            while more:
                places = yield from self.further_places(time_shard, kind, at, _PAGE)
                found += places
                more = len(places) == _PAGE
                at = places[-1][:2] if places else at
            sizes[kind] = found
        dues += [place.at for place in sizes[AGAIN]]
        due = [each for each in dues if each <= now]
        overdue = now - min(due) if due else 0
        leased, dead = len(sizes[LEASED]), len(sizes[DEAD])
        return TimeShardCounts(len(dues), len(due), leased, 0, dead, overdue)

    def read(self, time_shard: int) -> Steps[Opened | None]:
        """Read a time shard's mark and lock; None if nothing was ever put into it.

        Raises: LayoutError if it belongs to another making of the queue, or to a newer release.
        """
        now_us: int = yield Now()
        rows = yield Query("mark", self._key(time_shard))
        if not rows:
            return None
        mark, lock = rows[0]
        if mark != self.mark:
            raise LayoutError(
                f"time shard {time_shard} of the queue {self._text} says {mark} where {self.mark}"
                " was expected: the queue was made anew with another number of time shards or"
                " another period, or a newer release has written it; nothing was changed"
            )
        stamp = now_us - self.store.clock_shift_ms * 1000
        return Opened(time_shard, Lock.of(lock), now_us // 1000, stamp)

    def _new(self, time_shard: int) -> Steps[Opened]:
        """Write a time shard's mark, if the layout still says the same."""
        found = yield from self._layout(new=True)
        assert found is not None
        self._require(found)
        lock = Lock().written(new_nonce().decode())
        yield Query("new_mark", (*self._key(time_shard), self.mark, lock.text))
        opened = yield from self.read(time_shard)
        if opened is None:
            raise self._foreign("is being deleted")
        return opened

    def _layout(self, *, new: bool = False) -> Steps[Versioned[Rotation] | None]:
        key = self._key(LAYOUT_SHARD)
        rows = yield Query("mark", key)
        if not rows and new:
            rotation = self.rotation
            own = ("time_shards", rotation.time_shards, "period_ms", rotation.period_ms)
            fields = KIND.fields(*own)
            pairs = dict(zip(fields[::2], map(str, fields[1::2]), strict=True))
            yield Query("new_mark", (*key, json.dumps(pairs), None))
            rows = yield Query("mark", key)
        return self._read_layout(rows[0][0]) if rows else None

    def _read_layout(self, mark: Any, *, deleted: bool = False) -> Versioned[Rotation] | None:
        try:
            pairs = json.loads(mark)
        except (TypeError, ValueError) as error:
            raise self._foreign("does not hold a layout") from error
        key = f"{self.store.table}:{self._text}".encode()
        return read_rotation(key, pairs, deleted=deleted)

    def _require(self, found: Versioned[Rotation]) -> None:
        self.rotation.require(found.own, self._text)
        found.require_writable()
        self.mark = self._mark_of(found.version)

    def _foreign(self, said: str) -> LayoutError:
        return LayoutError(f"the queue {self._text} in {self.store.table} {said}")

    def _mark_of(self, version: int) -> str:
        return f"{version}:{self.rotation.time_shards}:{self.rotation.period_ms}"

    def _key(self, time_shard: int) -> tuple[bytes, int]:
        return self.name, time_shard

    @property
    def _text(self) -> str:
        return self.name.decode(errors="backslashreplace")

    @staticmethod
    def _due(due: Due, now_ms: int) -> int:
        return now_ms + due.ms if due.from_now else due.ms


def _token(row: Row) -> str:
    return str(row.takes)


def _pieces(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(ids), TAKEN_A_PIECE):
        yield ids[first : first + TAKEN_A_PIECE]
