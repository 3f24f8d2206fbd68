"""A take on Cassandra: which messages of a time shard it leases, by one batch.

`cassandra_time_shards` says what the rows are, and commits the batch.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from workstealing.store.operations import Steps
from workstealing.structures.time_shard_queue.cassandra_rows import (
    AGAIN,
    DEAD,
    LEASED,
    Changes,
    Opened,
    PlaceRow,
    Row,
    id_of,
)
from workstealing.structures.time_shard_queue.store import Held

if TYPE_CHECKING:
    from workstealing.structures.time_shard_queue.cassandra_time_shards import CassandraTimeShards

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
