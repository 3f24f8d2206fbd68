"""The rows of a time shard on Cassandra: keys, ids made of them, batches of changes, and a take.

A take says which messages of a time shard it leases, by one batch. `cassandra_time_shards` says
what the kinds of rows are, has the rules, and commits the batch.
"""

from __future__ import annotations

import itertools
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from workstealing.store.operations import Steps
from workstealing.structures.time_shard_queue.store import Held

if TYPE_CHECKING:
    from workstealing.structures.time_shard_queue.cassandra_time_shards import CassandraTimeShards


T = TypeVar("T")

MESSAGES, AGAIN, LEASED, DEAD = range(4)
"""The kinds of rows; the last three are also the states of a message that was taken once."""
FIRST_MS = -(1 << 53)
"""Before all due times."""
LAST_MS = 1 << 53
FIRST_ID = uuid.UUID("00000000-0000-1000-8080-808080808080")
LAST_ID = uuid.UUID("ffffffff-ffff-1fff-7f7f-7f7f7f7f7f7f")
"""The lowest and the highest timeuuid, as Cassandra orders them: their last bytes are signed."""
_FORMAT = 1 << 63
# After so many others, nobody knows from the lock alone whether a batch was applied.
_RECENT = 16
KEY = object()
"""Stands for the key of the partition."""


class Query(NamedTuple):
    """A prepared statement of the store. Fields: name; args."""

    name: str
    args: tuple[Any, ...]


class RowBatch(NamedTuple):
    """Statements of one partition that are done together.

    Fields: queries; conditional: whether they have conditions, which then must all hold.
    """

    queries: Sequence[Query]
    conditional: bool


class Now(NamedTuple):
    """The step that asks for the store's time of day, in microseconds."""


class PlaceRow(NamedTuple):
    """A row of kind 1 to 3. Fields: at: its time in ms; id; of_due: of the message's row."""

    at: int
    id: uuid.UUID
    of_due: int

    @property
    def row(self) -> tuple[int, uuid.UUID]:
        """The key of the message's row."""
        return self.of_due, self.id


class Row(NamedTuple):
    """A message's row without the message.

    Fields: due, id: its key; live: None if the message is done, or never came; state: None until it
    is first taken; until: the time of its `PlaceRow`; takes; given_back: how many of them were
    released; due_now: when it is due; consumer: the last one; put_us, changed_us: when the producer
    and the last batch wrote it.
    """

    due: int
    id: uuid.UUID
    live: bool | None
    state: int | None
    until: int | None
    takes: int | None
    given_back: int | None
    due_now: int | None
    consumer: str | None
    put_us: int | None
    changed_us: int | None

    @property
    def key(self) -> tuple[int, uuid.UUID]:
        """The key of the row."""
        return self.due, self.id

    @property
    def attempts(self) -> int:
        """How often it was taken and not released."""
        return (self.takes or 0) - (self.given_back or 0)

    @property
    def due_ms(self) -> int:
        """When it is due."""
        return self.due if self.due_now is None else self.due_now

    def delete_us(self, now_us: int) -> int:
        """Return a timestamp by which a plain delete beats all that wrote this row."""
        return max(now_us, (self.put_us or 0) + 1, (self.changed_us or 0) + 1)


@dataclass(frozen=True)
class Lock:
    """The content of the static column ``lock``.

    Fields: head: the key of a row of kind 0; every message at or before it that was put before
    `before_us` has been taken; before_us; again, ends: no message waits once more before the one
    time, and no lease ends before the other; audit: how far a sweeper has looked
    for messages behind the head; audited_us: when it last came to the end; nonce: of the batch that
    wrote it; recent: those of the batches before that, the last one first; text: of the
    column.
    """

    head: tuple[int, uuid.UUID] = (FIRST_MS, FIRST_ID)
    before_us: int = 0
    again: int = FIRST_MS
    ends: int = FIRST_MS
    audit: tuple[int, uuid.UUID] = (FIRST_MS, FIRST_ID)
    audited_us: int = 0
    nonce: str = ""
    recent: tuple[str, ...] = ()
    text: str = ""

    @staticmethod
    def of(text: str) -> Lock:
        """Read the column. Raises: ValueError or KeyError for anything else."""
        found = json.loads(text)
        return Lock(
            _key(found["head"]),
            found["before_us"],
            found["again"],
            found["ends"],
            _key(found["audit"]),
            found["audited_us"],
            # Earlier releases write no nonces but their own.
            str(found.get("of", "")),
            tuple(map(str, found.get("recent", ()))),
            text,
        )

    def written(self, nonce: str) -> Lock:
        """Return the lock that a batch writes, with a text that no other lock has."""
        recent = (self.nonce, *self.recent)[:_RECENT]
        found = {
            "head": [self.head[0], str(self.head[1])],
            "before_us": self.before_us,
            "again": self.again,
            "ends": self.ends,
            "audit": [self.audit[0], str(self.audit[1])],
            "audited_us": self.audited_us,
            "of": nonce,
            "recent": recent,
        }
        return replace(self, nonce=nonce, recent=recent, text=json.dumps(found))

    def knows(self, nonce: str) -> bool:
        """Say whether a batch is known to have been applied."""
        return nonce == self.nonce or nonce in self.recent


class Opened(NamedTuple):
    """A time shard that was read.

    Fields: number; lock; now_ms: the store's time; stamp: of a plain write that is sent now, in
    microseconds.
    """

    number: int
    lock: Lock
    now_ms: int
    stamp: int


class Claim(NamedTuple):
    """A batch that was sent.

    Fields: nonce; before: the lock on which it depends; result; is_known: whether it was answered
    that it was applied, which the lock says of the last few batches only.
    """

    nonce: str
    before: Lock
    result: Any
    is_known: bool = False


class Changes(Generic[T]):
    """The changes that one batch is to make in a time shard.

    Arguments:
        result: of the call, if the batch is applied.
        lock: as it is to be then.

    Without any other change, and without a lock, nothing is sent.
    """

    def __init__(self, result: T, lock: Lock | None = None) -> None:
        self.result, self.lock = result, lock
        self._of_rows: list[tuple[str, tuple[Any, ...]]] = []

    def move(
        self,
        row: Row,
        state: int,
        until: int,
        *,
        takes: int | None = None,
        given_back: int | None = None,
        due_now: int | None = None,
        consumer: str | None = None,
    ) -> None:
        """Give a message another state, and a place among the messages of that state."""
        values = (
            row.takes or 0 if takes is None else takes,
            row.given_back or 0 if given_back is None else given_back,
            row.due_ms if due_now is None else due_now,
            row.consumer or "" if consumer is None else consumer,
        )
        self._of_rows.append(("change", (state, until, *values, KEY, *row.key)))
        if (row.state, row.until) != (state, until):
            if row.state and row.until is not None:
                self.displace(row.state, PlaceRow(row.until, row.id, row.due))
            self._of_rows.append(("place", (KEY, state, until, row.id, row.due)))

    def displace(self, kind: int, place: PlaceRow) -> None:
        """Remove a place that says nothing any more."""
        self._of_rows.append(("displace", (KEY, kind, *place[:2])))

    def batch(self, key: tuple[Any, ...], before: Lock, nonce: str) -> RowBatch | None:
        """Return the batch, None without changes.

        Arguments:
            key: of the partition.
            before: the lock as it was read.
            nonce: of the batch.
        """
        if not self._of_rows and self.lock is None:
            return None
        after = (self.lock or before).written(nonce)
        queries = [Query("lock", (after.text, *key, before.text))]
        for name, args in self._of_rows:
            at = args.index(KEY)
            queries.append(Query(name, (*args[:at], *key, *args[at + 1 :])))
        return RowBatch(queries, True)


def _key(found: Sequence[Any]) -> tuple[int, uuid.UUID]:
    return int(found[0]), uuid.UUID(found[1])


def timeuuid(now_s: float, number: int = 0) -> uuid.UUID:
    """Return a timeuuid of a moment, in Unix seconds, with 60 random bits.

    Arguments:
        number: how many microseconds later it is.
    """
    ticks = ((int(now_s * 1e6) + number) * 10 + 0x01B21DD213814000) & ((1 << 60) - 1)
    chance = int.from_bytes(os.urandom(8), "big")
    return uuid.UUID(
        fields=(
            ticks & 0xFFFFFFFF,
            (ticks >> 32) & 0xFFFF,
            0x1000 | (ticks >> 48) & 0x0FFF,
            0x80 | (chance >> 56) & 0x3F,
            (chance >> 48) & 0xFF,
            chance & 0xFFFFFFFFFFFF,
        )
    )


def order_of(key: tuple[int, uuid.UUID]) -> tuple[int, int, bytes]:
    """Return what orders keys of rows as Cassandra does: it compares the last bytes as signed."""
    due, id_ = key
    return due, id_.time, bytes(each ^ 0x80 for each in id_.bytes[8:])


def id_of(time_shard: int, row: tuple[int, uuid.UUID]) -> str:
    """Return the id of the message in a row: its time shard and the row's key."""
    return f"{time_shard}-{row[0] + _FORMAT:016x}{row[1].hex}"


def row_of(message_id: str) -> tuple[int, uuid.UUID] | None:
    """Return the key of the row that an id names; None if no store on Cassandra has made it."""
    _, _, digits = message_id.partition("-")
    if len(digits) != 48:
        return None
    found = uuid.UUID(digits[16:])
    return (int(digits[:16], 16) - _FORMAT, found) if found.version == 1 else None


_BESIDE = 16
"""A take looks at so many rows more than it wants, for those that are taken already."""
_BEHIND_MS = 10_000
"""If nothing was taken, the places in the lock move once they are so far behind."""


class FoundLeases(NamedTuple):
    """The leases of one piece of a take. Fields: more: whether to look again; held."""

    more: bool
    held: list[Held]


NOTHING = FoundLeases(False, [])


class Taking:
    """One piece of a take: which messages it leases.

    Arguments:
        wanted: the most messages.
        is_turn: whether no producer writes now, so that the head may move.
    """

    def __init__(
        self,
        time_shards: CassandraTimeShards,
        consumer: str,
        lease_ms: int,
        wanted: int,
        max_attempts: int,
        *,
        is_turn: bool,
    ) -> None:
        self._time_shards = time_shards
        self._consumer, self._lease_ms = consumer, lease_ms
        self._wanted, self._max_attempts = wanted, max_attempts
        self._is_turn = is_turn

    def look(self, opened: Opened) -> Steps[Changes[FoundLeases]]:
        """Return the changes that lease messages, and these messages without their contents."""
        shards, wanted, now = self._time_shards, self._wanted, opened.now_ms
        lock, number = opened.lock, opened.number
        seen = yield from self._fresh(opened)
        places = yield from shards.places(number, AGAIN, lock.again, now, wanted)
        waiting: list[Row | PlaceRow] = [row for row in seen if row.live and not row.state]
        # The lowest due times of both; of the same due time, the message that was put first.
        chosen = sorted([*waiting, *places], key=_order)[:wanted]
        again = [each for each in chosen if isinstance(each, PlaceRow)]
        ended: list[PlaceRow] = []
        lacking = wanted - len(chosen)
        if lacking:
            ended = yield from shards.places(number, LEASED, lock.ends, now, lacking)
        rows = yield from shards.rows_at(number, [each.row for each in (*again, *ended)])
        changes = Changes(NOTHING)
        held: list[Held] = []
        end = now + self._lease_ms
        void = 0
        for each in (*chosen, *ended):
            row = each if isinstance(each, Row) else rows.get(each.row)
            kind = LEASED if each in ended else AGAIN
            if isinstance(each, PlaceRow) and (
                row is None or (row.state, row.until) != (kind, each.at)
            ):
                changes.displace(kind, each)
                void += 1
            elif row is not None and kind == LEASED and row.attempts >= self._max_attempts:
                changes.move(row, DEAD, now)
                void += 1
            elif row is not None:
                takes = (row.takes or 0) + 1
                due = row.until if row.state == AGAIN else row.due_ms
                changes.move(row, LEASED, end, takes=takes, due_now=due, consumer=self._consumer)
                attempts = takes - (row.given_back or 0)
                id_ = id_of(number, row.key)
                held.append(Held(id_, b"", due or 0, attempts, str(takes), end))
        after = replace(lock, ends=min(end, lock.ends))
        rest = [each.at for each in places if each not in again]
        after = replace(after, again=min(rest, default=now if len(places) < wanted else lock.again))
        if lacking and len(ended) < lacking:
            after = replace(after, ends=min(now, end))
        passed = list(
            itertools.takewhile(lambda row: row in chosen or row.state or not row.live, seen)
        )
        if self._is_turn and passed:
            after = replace(after, head=passed[-1].key, before_us=opened.stamp)
        moved = max(after.again - lock.again, after.ends - lock.ends, after.head[0] - lock.head[0])
        if held or void or len(passed) >= _BESIDE or moved > _BEHIND_MS:
            changes.lock = after
        # Each round that finds something has cleared it away; a full one leaves the rest.
        changes.result = FoundLeases(bool(void) or len(held) == wanted, held)
        return changes

    def _fresh(self, opened: Opened) -> Steps[list[Row]]:
        """Return the rows behind the head that are due, up to as many fresh ones as are wanted."""
        at, more, fresh = opened.lock.head, True, 0
        seen: list[Row] = []
        size = self._wanted + _BESIDE
        while more and fresh < self._wanted:
            query = self._time_shards.fresh(opened.number, at, opened.now_ms, size)
            for due, id_, alive, state, due_now, put_us in (page := (yield query)):
                # Without its time there is no message, or none yet.
                live = alive and put_us is not None
                row = Row(due, id_, live, state, None, None, None, due_now, None, put_us, None)
                seen.append(row)
                fresh += bool(live and not state)
                at = row.key
            more = len(page) == size
        return seen


def _order(each: Row | PlaceRow) -> tuple[int, int]:
    return each.at if isinstance(each, PlaceRow) else each.due_ms, each.id.time
