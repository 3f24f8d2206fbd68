"""TimeShardQueues on Cassandra: one table, each time shard a partition of its own.

The table is that of cassandra-ruby-queue: name and time shard are the partition, due time and
timeuuid order its rows, and a static column ``lock`` coordinates the consumers. A fourth column,
``kind``, keeps the leases, the messages that wait once more and the dead ones in the same
partition. So one batch with a condition changes a message and the rows that say where it is: see
`cassandra_time_shards`, which has the rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from operator import call
from typing import Any, Literal, NamedTuple, TypeVar

from workstealing.errors import ConfigurationError, MissingExtraError, OutOfTime
from workstealing.store.grants import Asking, ask_by, ask_by_async
from workstealing.store.operations import Sleep, Steps, drive, drive_async
from workstealing.store.sending import PATIENCE_SECONDS, finish
from workstealing.structures.time_shard_queue.cassandra_rows import Now, Query, RowBatch
from workstealing.structures.time_shard_queue.cassandra_time_shards import CassandraTimeShards
from workstealing.structures.time_shard_queue.rotation import Rotation

T = TypeVar("T")

GC_GRACE_SECONDS = 60
"""How long Cassandra keeps tombstones by default: see docs/cassandra.md for the figures."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_CLOCK_SECONDS = 10.0
"""After so many seconds the server is asked for its time once more."""
_MET = re.compile(r"Read (\d+) live rows and (\d+) tombstone cells")

_COLUMNS = """
    name blob, shard int, lock text static,
    kind tinyint, due timestamp, id timeuuid,
    message blob, live boolean, mark text,
    state tinyint, until timestamp, takes int, given_back int, due_now timestamp, consumer text,
    of_due timestamp,
    PRIMARY KEY ((name, shard), kind, due, id)
"""
# The mark's row has the lowest timeuuid. A read of a column repairs that column alone on other
# nodes: so each read of `live` reads `message` too, by the time at which it was written.
_STATEMENTS = """
now:
SELECT toUnixTimestamp(now()) FROM system.local

mark:
SELECT mark, lock FROM TABLE WHERE name = ? AND shard = ?
AND kind = -1 AND due = 0 AND id = 00000000-0000-1000-8080-808080808080

settled_mark, serial:
SELECT mark, lock FROM TABLE WHERE name = ? AND shard = ?
AND kind = -1 AND due = 0 AND id = 00000000-0000-1000-8080-808080808080

new_mark, once:
INSERT INTO TABLE (name, shard, kind, due, id, mark, lock)
VALUES (?, ?, -1, 0, 00000000-0000-1000-8080-808080808080, ?, ?) IF NOT EXISTS

change_mark, once:
UPDATE TABLE SET mark = ? WHERE name = ? AND shard = ?
AND kind = -1 AND due = 0 AND id = 00000000-0000-1000-8080-808080808080 IF mark = ?

delete_mark, once:
DELETE FROM TABLE WHERE name = ? AND shard = ?
AND kind = -1 AND due = 0 AND id = 00000000-0000-1000-8080-808080808080 IF mark = ?

put:
INSERT INTO TABLE (name, shard, kind, due, id, live, message, due_now)
VALUES (?, ?, 0, ?, ?, true, ?, ?) USING TIMESTAMP ?

fresh:
SELECT toUnixTimestamp(due), id, live, state, toUnixTimestamp(due_now), writetime(message)
FROM TABLE WHERE name = ? AND shard = ? AND (kind, due, id) > (0, ?, ?) AND (kind, due) <= (0, ?)
LIMIT ?

places:
SELECT toUnixTimestamp(due), id, toUnixTimestamp(of_due)
FROM TABLE WHERE name = ? AND shard = ? AND kind = ? AND due >= ? AND due <= ? LIMIT ?

further_places:
SELECT toUnixTimestamp(due), id, toUnixTimestamp(of_due)
FROM TABLE WHERE name = ? AND shard = ? AND kind = ? AND (due, id) > (?, ?) LIMIT ?

rows:
SELECT toUnixTimestamp(due), id, live, state, toUnixTimestamp(until), takes, given_back,
toUnixTimestamp(due_now), consumer, writetime(message), writetime(state)
FROM TABLE WHERE name = ? AND shard = ? AND kind = 0 AND (due, id) IN ?

messages:
SELECT toUnixTimestamp(due), id, live, message
FROM TABLE WHERE name = ? AND shard = ? AND kind = 0 AND (due, id) IN ?

lock, once:
UPDATE TABLE SET lock = ? WHERE name = ? AND shard = ? IF lock = ?

change, once:
UPDATE TABLE
SET state = ?, until = ?, takes = ?, given_back = ?, due_now = ?, consumer = ?
WHERE name = ? AND shard = ? AND kind = 0 AND due = ? AND id = ? IF live = true

place, once:
INSERT INTO TABLE (name, shard, kind, due, id, of_due) VALUES (?, ?, ?, ?, ?, ?)

displace, once:
DELETE FROM TABLE WHERE name = ? AND shard = ? AND kind = ? AND due = ? AND id = ?

forget:
DELETE FROM TABLE USING TIMESTAMP ?
WHERE name = ? AND shard = ? AND kind = ? AND due = ? AND id = ?

forget_all:
DELETE FROM TABLE USING TIMESTAMP ? WHERE name = ? AND shard = ?
"""
"""All statements by name; with "once", a driver must not send it twice. With "serial", a read first
brings to their end the lightweight transactions of its partition that have begun."""


def _statements() -> dict[str, tuple[str, str]]:
    """Return the text of each statement, and the word behind its name."""
    found = {}
    for each in _STATEMENTS.strip().split("\n\n"):
        head, _, text = each.partition(":\n")
        name, _, how = head.partition(", ")
        found[name] = (text.replace("\n", " "), how)
    return found


class ReadTombstones(NamedTuple):
    """The counts of a traced read. Fields: live: rows; tombstones."""

    live: int
    tombstones: int


class _EitherCassandraStore:
    """The parts of both forms."""

    def __init__(
        self,
        session: Any,
        keyspace: str,
        table: str = "time_shard_queue",
        *,
        consistency: str = "LOCAL_QUORUM",
        clock_shift_ms: int = 0,
    ) -> None:
        try:
            from cassandra import ConsistencyLevel
        except ImportError as error:
            raise MissingExtraError("cassandra", "cassandra-driver") from error
        if not callable(getattr(session, "prepare", None)):
            raise ConfigurationError(
                f"{session!r} is no session of cassandra-driver: give Cluster(...).connect()"
            )
        for what, name in (("keyspace", keyspace), ("table", table)):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{what}={name!r} is not usable: give 1 to 48 letters, digits and underscores,"
                    " a letter first"
                )
        levels = {"QUORUM": "SERIAL", "LOCAL_QUORUM": "LOCAL_SERIAL"}
        if consistency not in levels:
            raise ConfigurationError(
                f"consistency={consistency!r} loses messages: give 'QUORUM' or 'LOCAL_QUORUM'"
            )
        self.session = session
        self.table = f"{keyspace}.{table}"
        """The table's name, with its keyspace."""
        self.clock_shift_ms = clock_shift_ms
        self._keyspace, self._name = keyspace, table
        self._consistency = getattr(ConsistencyLevel, consistency)
        self._serial = getattr(ConsistencyLevel, levels[consistency])
        self._prepared: dict[str, Any] = {}
        self._read_clock: tuple[float, float] | None = None

    @property
    def unsure(self) -> tuple[type[Exception], ...]:
        """The errors after which nobody knows whether a batch was applied, and it can be asked.

        After a time-out of the driver's own the caller has waited for as long as it wanted to.
        """
        from cassandra import ReadTimeout, WriteFailure, WriteTimeout
        from cassandra.cluster import NoHostAvailable
        from cassandra.connection import ConnectionException
        from cassandra.protocol import ErrorMessage

        # The last one is of a kind that the driver does not know: Cassandra's CAS_WRITE_UNKNOWN.
        return (
            *(WriteTimeout, WriteFailure, ReadTimeout),
            *(NoHostAvailable, ConnectionException, ErrorMessage),
        )

    @staticmethod
    def _begins_to_end(asking: Asking[Any], error: BaseException) -> bool:
        """Say whether an error leaves leases to be given back; from then on somebody does it."""
        from cassandra import OperationTimedOut

        return not isinstance(error, OperationTimedOut) and asking.begins_to_end(error)

    @property
    def identity(self) -> Hashable:
        """A value that jobs on one table share, and with it a breaker."""
        return (type(self.session.cluster), id(self.session.cluster), self.table)

    def create_table(self, gc_grace_seconds: int = GC_GRACE_SECONDS) -> None:
        """Create the table unless it exists.

        Arguments:
            gc_grace_seconds: how long Cassandra keeps tombstones at least: longer than any node of
                yours is ever down, or is repaired after.

        A node that was down for longer than `gc_grace_seconds` brings consumed messages back; see
        docs/cassandra.md. Raises: cassandra-driver's errors. One statement; the keyspace must
        exist.
        """
        self.session.execute(
            f"CREATE TABLE IF NOT EXISTS {self.table} ({_COLUMNS})"
            " WITH CLUSTERING ORDER BY (kind ASC, due ASC, id ASC)"
            f" AND gc_grace_seconds = {int(gc_grace_seconds)}"
        )

    def gc_grace_seconds(self) -> int:
        """Return for how long the table keeps tombstones, as the driver knows it. No round trip."""
        tables = self.session.cluster.metadata.keyspaces[self._keyspace].tables
        return int(tables[self._name].options.get("gc_grace_seconds", GC_GRACE_SECONDS))

    def bind(self, name: bytes, rotation: Rotation) -> CassandraTimeShards:
        """Return the time shards of a queue; no round trip."""
        return CassandraTimeShards(self, name, rotation)

    def inspect(self, steps: Steps[T], seconds: float) -> T:
        """Run steps, for so many seconds at most; see `Store`. Raises: OutOfTime."""
        return drive(self.sender(time.monotonic() + seconds), steps, call)

    def sender(self, end: float | None = None) -> Callable[[Any], Any]:
        """Return a function that runs a step and blocks until its reply is there.

        Arguments:
            end: monotonic seconds from which on nothing is sent, and nothing is waited for; None:
                as long as the driver waits.
        """

        def send(step: Any) -> Any:
            if isinstance(step, Sleep):
                time.sleep(step.seconds if end is None else min(step.seconds, _left(end)))
                return None
            if isinstance(step, Now):
                if self._clock_is_old():
                    self._set_clock(send(Query("now", ())))
                return self._now_us()
            if isinstance(step, list):
                futures = [self._begin(each, end) for each in step]
                return [_rows(future.result()) for future in futures]
            return _rows(self._begin(step, end).result())

        return send

    def begin_traced(self, query: Query, seconds: float) -> Any:
        """Send a read with a trace, and return the driver's future, for `met`.

        A trace costs the cluster several writes, so it is for samples.
        """
        return self.session.execute_async(self._statement(query), trace=True, timeout=seconds)

    @staticmethod
    def met(future: Any, seconds: float) -> ReadTombstones | None:
        """Return what a traced read has met; None if it failed, or its trace is not there in time.

        Arguments:
            future: of `begin_traced`.
            seconds: to wait.

        Cassandra writes a trace some milliseconds after the read.
        """
        from cassandra import DriverException
        from cassandra.cluster import NoHostAvailable
        from cassandra.query import TraceUnavailable

        try:
            future.result()
            events = future.get_query_trace(max_wait=seconds).events
        except (DriverException, NoHostAvailable, TraceUnavailable):
            return None
        found = [_MET.search(event.description) for event in events]
        met = [(int(each[1]), int(each[2])) for each in found if each]
        return ReadTombstones(sum(live for live, _ in met), sum(dead for _, dead in met))

    def _begin(self, step: Query | RowBatch, end: float | None) -> Any:
        """Send a step; return the driver's future."""
        statement = self._statement(step)
        if end is None:
            return self.session.execute_async(statement)
        return self.session.execute_async(statement, timeout=_left(end))

    def _statement(self, step: Query | RowBatch) -> Any:
        if isinstance(step, Query):
            return self._bound(step)
        from cassandra.query import BatchStatement, BatchType

        # Of one partition: a log would protect nothing.
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=self._consistency)
        if step.conditional:
            batch.serial_consistency_level = self._serial
        batch.is_idempotent = not step.conditional
        for query in step.queries:
            batch.add(self._bound(query))
        return batch

    def _bound(self, query: Query) -> Any:
        prepared = self._prepared.get(query.name)
        if prepared is None:
            prepared = self._prepare(query.name)
        return prepared.bind(query.args)

    def _prepare(self, name: str) -> Any:
        text, how = _statements()[name]
        prepared = self.session.prepare(text.replace("TABLE", self.table))
        prepared.consistency_level = self._serial if how == "serial" else self._consistency
        if how != "serial":
            prepared.serial_consistency_level = self._serial
        prepared.is_idempotent = how != "once"
        self._prepared[name] = prepared
        return prepared

    def _clock_is_old(self) -> bool:
        clock = self._read_clock
        return clock is None or time.monotonic() - clock[0] > _CLOCK_SECONDS

    def _set_clock(self, rows: Sequence[Sequence[Any]]) -> None:
        # The server's clock says this or more by now, so no timestamp is ahead of it.
        self._read_clock = (time.monotonic(), rows[0][0] / 1000)

    def _now_us(self) -> int:
        assert self._read_clock is not None
        then, seconds = self._read_clock
        return int((seconds + time.monotonic() - then) * 1e6) + self.clock_shift_ms * 1000


class CassandraStore(_EitherCassandraStore):
    """Keeps TimeShardQueues in a table of Cassandra 4.1 or newer.

    Arguments:
        session: of cassandra-driver, connected; keyspace.
        table: see `create_table`.
        consistency: ``LOCAL_QUORUM``, or ``QUORUM`` for consumers in several data centres.
        clock_shift_ms: for tests.

    Raises: ConfigurationError; MissingExtraError. No round trip.

    Statements are prepared at their first use. Reads, puts and acknowledgements are idempotent, and
    the session's retry policy may send them twice; takes are lightweight transactions, and are not.
    A take that is interrupted or cut off releases what it has leased, within a second.
    `AsyncCassandraStore` is awaited.
    """

    @property
    def asynchronous(self) -> Literal[False]:
        """Whether what `run` returns must be awaited."""
        return False

    def run(self, steps: Steps[T]) -> T:
        """Run steps on the session; see `Store`."""
        return drive(self.sender(), steps, call)

    def ask(self, asking: Asking[T]) -> T:
        """Run steps that ask for leases; if that is interrupted, give them back."""

        def back(error: BaseException) -> None:
            if self._begins_to_end(asking, error):
                # The caller's own error says more.
                with contextlib.suppress(Exception):
                    self.inspect(asking.giving_back(), PATIENCE_SECONDS)

        return ask_by(self.run, back, asking)


class AsyncCassandraStore(_EitherCassandraStore):
    """Keeps TimeShardQueues in a table of Cassandra, for asyncio; see `CassandraStore`."""

    @property
    def asynchronous(self) -> Literal[True]:
        """Whether what `run` returns must be awaited."""
        return True

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs steps on the session; see `Store`."""
        return drive_async(self._send, steps, call)

    def ask(self, asking: Asking[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs steps that ask for leases; see `CassandraStore.ask`."""

        async def back(error: BaseException) -> None:
            if self._begins_to_end(asking, error):
                await finish(drive_async(self._send, asking.giving_back(), call), error)

        return ask_by_async(self.run, back, asking)

    async def _send(self, step: Any) -> Any:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, Now):
            if self._clock_is_old():
                self._set_clock(await self._send(Query("now", ())))
            return self._now_us()
        if isinstance(step, list):
            return await asyncio.gather(*map(self._send, step))
        # To prepare a statement blocks for a round trip, once for each.
        new = [each.name for each in _queries(step) if each.name not in self._prepared]
        for name in new:
            await asyncio.to_thread(self._prepare, name)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def end(result: Any, error: BaseException | None) -> None:
            # The driver calls this from its own thread, perhaps after the caller was cancelled.
            if not done.done():
                done.set_result(result) if error is None else done.set_exception(error)

        self._begin(step, None).add_callbacks(
            lambda rows: loop.call_soon_threadsafe(end, rows, None),
            lambda error: loop.call_soon_threadsafe(end, None, error),
        )
        return _rows(await done)


def _queries(step: Query | RowBatch) -> Sequence[Query]:
    return (step,) if isinstance(step, Query) else step.queries


def _rows(found: Any) -> list[tuple[Any, ...]]:
    """Return rows as tuples, whatever row factory the session has."""
    return [
        tuple(each.values()) if isinstance(each, Mapping) else tuple(each) for each in found or ()
    ]


def _left(end: float) -> float:
    """Return the seconds until then. Raises: OutOfTime if there are none."""
    left = end - time.monotonic()
    if left <= 0:
        raise OutOfTime("the time was over before Cassandra was asked")
    return left
