"""A TimeShardQueue on Redis or on Cassandra, as the tools look at it, put into it and take from it.

It has no priorities but due times: the lowest is taken first. So a message of priority p is put as
due p periods earlier. All messages of one turn are put within a period, so of these a message of a
higher priority is taken first.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from typing import Any

from redis.exceptions import ResponseError

from workstealing.cli.arguments import TIME
from workstealing.cli.clients import FAULTS, cassandra_faults, said
from workstealing.cli.output import Picture, figure, list_picture, listed
from workstealing.cli.queue.kind import (
    LEASE,
    LISTED,
    Draft,
    InHand,
    OpenQueue,
    attempts_of,
)
from workstealing.clock import spell
from workstealing.errors import ConfigurationError
from workstealing.recruiting import Job
from workstealing.structures.layout import as_text
from workstealing.structures.time_shard_queue import (
    CassandraStore,
    RedisStore,
    Rotation,
    Taken,
    TimeShardQueue,
)
from workstealing.structures.time_shard_queue.redis_store import layout_key, read_rotation
from workstealing.structures.time_shard_queue.rotation import rotation_of

TIME_SHARDS, PERIOD = 6, 60.0
"""Of a new queue, where no option says otherwise."""
_TIME_COUNTS = ("waiting", "due", "leased", "consumed", "dead")


class OpenTimeShardQueue(OpenQueue):
    """A TimeShardQueue.

    Arguments:
        found: the rotation of the queue that is there, None: there is none yet.
        options: `time_shards` and `period` of a new queue, and of a consumer `consumer`, `lease`
            and `drain_all`; each None, or missing, for the default.

    Raises: ConfigurationError for another rotation than the queue has.
    """

    kind = TIME
    called = "TimeShardQueue"
    is_on_cassandra = True
    own_options = frozenset(
        {
            *("due_in", "priority", "time_shards", "period", "create_table", "drain_all"),
        }
    )

    def __init__(
        self,
        store: Any,
        name: bytes,
        found: Rotation | None,
        options: argparse.Namespace,
        faults: tuple[type[Exception], ...] = FAULTS,
    ) -> None:
        self.faults = faults
        self.name = as_text(name)
        self.is_new = found is None
        self._options = options
        rotation = self._wanted(found)
        self._queue: TimeShardQueue = TimeShardQueue(
            store, name, rotation.time_shards, rotation.period_ms / 1000, **attempts_of(options)
        )

    def _wanted(self, found: Rotation | None) -> Rotation:
        shards, period = self._option("time_shards"), self._option("period")
        known = found or rotation_of(TIME_SHARDS, PERIOD)
        wanted = rotation_of(
            known.time_shards if shards is None else shards,
            known.period_ms / 1000 if period is None else period,
        )
        wanted.require(found, self.name, shards="--time-shards ", period="--period ")
        return wanted

    def _option(self, name: str) -> Any:
        # Not every verb has it.
        return getattr(self._options, name, None)

    @classmethod
    def is_there(cls, client: Any, name: bytes) -> bool:
        """Say whether there is such a queue; see `OpenQueue`."""
        return bool(client.exists(layout_key(name)))

    @classmethod
    def on_redis(cls, client: Any, name: bytes, options: argparse.Namespace) -> OpenTimeShardQueue:
        """Open a queue of a Redis, as its own layout says. One round trip."""
        key = layout_key(name)
        try:
            layout = client.hgetall(key)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            # As foreign as another program's hash.
            layout = {"structure": ""}
        found = read_rotation(key, layout)
        return cls(RedisStore(client), name, None if found is None else found.own, options)

    @classmethod
    def on_cassandra(
        cls, store: CassandraStore, name: bytes, options: argparse.Namespace
    ) -> OpenTimeShardQueue:
        """Open a queue of a table, which `create_table` creates first. One or two round trips.

        Raises: ConfigurationError.
        """
        faults = cassandra_faults()
        # None of a verb that never creates it.
        creates = getattr(options, "create_table", None)
        try:
            if creates:
                store.create_table()
        except faults as error:
            raise ConfigurationError(f"{store.table} cannot be created: {said(error)}") from error
        try:
            rotation = store.run(store.bind(name, Rotation(1, 1000)).open(only_read=True))
        except faults as error:
            hint = "; --create-table creates a missing one" if creates is False else ""
            raise ConfigurationError(
                f"{store.table} cannot be read: {said(error)}{hint}"
            ) from error
        return cls(store, name, rotation, options, faults)

    def look(self) -> dict[str, Any]:
        """Count the messages of each time shard, at the cost of `stats` and `dead`."""
        rotation = self._queue.rotation
        shards = [{**each._asdict(), "total": each.total} for each in self._queue.stats()]
        together = {name: sum(each[name] for each in shards) for name in (*_TIME_COUNTS, "total")}
        return {
            "queue": self._queue.name,
            "kind": TIME,
            "period_seconds": rotation.period_ms / 1000,
            **together,
            "overdue_seconds": max(each["overdue_seconds"] for each in shards),
            "time_shards": shards,
            "dead_messages": listed(
                self._queue.dead(LISTED), "id", "consumer", "attempts", "since"
            ),
        }

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return a row for each time shard, and one for all."""
        total, overdue = seen["total"], seen["overdue_seconds"]
        parts = [f"TimeShardQueue {seen['queue']}: {total:,} message{'' if total == 1 else 's'}"]
        parts += [f"the oldest is overdue by {spell(overdue)}"] if overdue else []
        parts.append(f"a turn is {figure(seen['period_seconds'])} s")
        rows = [
            (str(each["time_shard"]), each["role"], *_time_cells(each))
            for each in seen["time_shards"]
        ]
        rows.append(("all", "", *_time_cells(seen)))
        headings = ("time shard", "role now", *_TIME_COUNTS, "total", "overdue")
        bad = frozenset(n for n, each in enumerate(seen["time_shards"]) if each["dead"])
        made = [Picture("; ".join(parts), headings, rows, left=2, bad=bad)]
        return made + list_picture("dead messages", seen["dead_messages"])

    def begin(self) -> None:
        """Check the layout, or write it; see `OpenQueue`."""
        self._queue.open()

    def put(self, draft: Draft) -> str:
        """Put a message with its due time; see `OpenQueue`."""
        earlier = (draft.priority or 0) * self._queue.rotation.period_ms / 1000
        return self._queue.put(draft.body, timedelta(seconds=draft.due_in - earlier))

    def take(self, seconds: float) -> InHand | None:
        """Take what is due at its turn, and wait for it so long; see `OpenQueue`."""
        drain_all = bool(self._option("drain_all"))
        consumer: str = self._options.consumer
        taken: Taken | None = self._queue.take(consumer, self.lease, drain_all, block=seconds)
        if taken is None:
            return None
        late = max(0.0, time.time() - taken.due.timestamp())
        return InHand(taken.id, as_text(taken.message), None, taken.attempts, late, taken)

    def finish(self, message: InHand) -> bool:
        """Acknowledge a message; see `OpenQueue`."""
        return self._queue.ack(message.own) == 1

    def give_back(self, message: InHand, seconds: float) -> bool:
        """Release a message, with a new due time after some seconds; see `OpenQueue`."""
        return self._queue.release(message.own, timedelta(seconds=seconds) if seconds else None)

    @property
    def lease(self) -> float:
        """That of a take."""
        lease: float | None = self._option("lease")
        return LEASE if lease is None else lease

    def job(self) -> Job:
        """Return the sweeper; see `OpenQueue`."""
        from workstealing.jobs import TimeShardSweeper

        return TimeShardSweeper(self._queue)

    def left(self) -> int:
        """Count what waits and what is leased, at the cost of `stats`."""
        return sum(each.total for each in self._queue.stats())

    def is_certain(self, error: Exception) -> bool:
        """Say whether an error tells that nothing was done; see `OpenQueue`."""
        if self.faults is FAULTS:
            return super().is_certain(error)
        from cassandra import RequestValidationException, Unavailable
        from cassandra.cluster import NoHostAvailable

        # The driver asked no node, because it takes all of them to be down.
        is_unasked = isinstance(error, NoHostAvailable) and not error.errors
        return is_unasked or isinstance(error, RequestValidationException | Unavailable)


def _time_cells(of: dict[str, Any]) -> tuple[str, ...]:
    counts = (f"{of[name]:,}" for name in (*_TIME_COUNTS, "total"))
    return (*counts, spell(of["overdue_seconds"]) if of["overdue_seconds"] else "-")
