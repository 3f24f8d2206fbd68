"""The job that deletes rows of a SQL table whose deadline has passed, Django's sessions first."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import Aborted, ConfigurationError, OutOfTime
from workstealing.jobs.shared.sql_deadlines import UNITS, DeadlineColumn, bounded, checked_dialect
from workstealing.recruiting.checks import checked_limit, checked_name
from workstealing.recruiting.job import DEFAULT_LIMIT, Backlog, Job
from workstealing.recruiting.slice import Slice
from workstealing.structures.tracked_set.sources.asking import Asker, blaming
from workstealing.structures.tracked_set.sources.sql import (
    Where,
    checked_engine,
    column_of,
    conditions_of,
    discard,
    opened,
)

# The imports above have explained its absence.
import sqlalchemy as sa  # isort: skip
from sqlalchemy.pool import StaticPool  # isort: skip

__all__ = ["SqlExpiry"]

WHAT = "rows past their deadline"
COUNTED_AT_MOST = 10_000
# Where a statement sees all data committed before it, and no gaps between rows are locked.
_READ_COMMITTED = ("postgresql", "mysql", "mariadb")
_SERVER_KEYS = ("host", "port", "service", "unix_socket")

_log = logging.getLogger("workstealing.jobs")


@dataclass(frozen=True, slots=True)
class _StatementParts:
    """The statements' parts, once the database has told the column's type."""

    key: Sequence[sa.ColumnElement[Any]]
    deadline: DeadlineColumn
    past: Sequence[sa.ColumnElement[bool]]
    order: sa.ColumnElement[Any]
    table: sa.Table


@dataclass(slots=True)
class _SliceFindings:
    """One slice's findings."""

    found: int = 0
    oldest_seconds: float = 0.0
    handled: int = 0
    problem: Exception | None = None


class SqlExpiry(Job):
    """Deletes rows of a SQL table whose deadline has passed by the database's clock.

    Arguments:
        engine: of SQLAlchemy 2, on PostgreSQL, MySQL 8, MariaDB 10.6 or SQLite.
        table: a `Table` or the name of one, with a primary key.
        column: the name of the column of deadlines, which should have an index: a time with or
            without a zone (without: UTC), a date (past after its whole day in UTC), or a number.
        limit: the most rows of a slice.
        unit: "seconds" or "milliseconds" since the epoch, for numbers.
        grace: how long a row stays after its deadline.
        retention: for a column that says when the row was made, how long it stays from then on;
            both in seconds or a timedelta.
        where: further conditions: {column: value}, {column: [values]} or an expression of
            SQLAlchemy.
        schema: of a table given by name.
        dry_run: count the rows that a slice would delete and delete nothing, which is the default.
        name: of the job, by default ``sql_expiry.<table>``.

    A slice is one transaction: it selects up to `limit` keys through the column's index, passes
    over locked rows, and deletes them by key where the deadline is still past. The transaction
    waits 10 ms at most for a lock, and no longer than the slice for an answer. The job keeps one
    connection of its own. A slice that finds it closed is SKIPPED, and a thread opens it. A row
    with NULL, or with a time before 1973, has no deadline. Raises: MissingExtraError without
    SQLAlchemy; ConfigurationError.
    """

    unit = "rows"

    def __init__(
        self,
        engine: sa.Engine,
        table: str | sa.Table,
        column: str,
        limit: int = DEFAULT_LIMIT,
        *,
        unit: str | None = None,
        grace: Duration = 0.0,
        retention: Duration = 0.0,
        where: Where = None,
        schema: str | None = None,
        dry_run: bool = True,
        name: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._engine = checked_engine(engine)
        checked_dialect(engine.dialect)
        if isinstance(engine.pool, StaticPool):
            raise ConfigurationError(
                "all users of this engine share one connection, and a slice would commit the work"
                " of others: use an engine without poolclass=StaticPool"
            )
        _require_words(table, column, unit, schema)
        if where is not None and not isinstance(where, Mapping | sa.ColumnElement):
            raise ConfigurationError(
                f"where={where!r} is no condition: give a dict or an expression of SQLAlchemy"
            )
        if isinstance(table, sa.Table):
            _require_key(table)
            column_of(table, column)
            conditions_of(table, where)
        self._table, self._schema, self._column = table, schema, column
        self._unit, self._where = unit, where
        self._hold = seconds_of(grace, "grace") + seconds_of(retention, "retention")
        self.limit = checked_limit(limit)
        self.dry_run = bool(dry_run)
        table_name = table if isinstance(table, str) else table.name
        self.name = checked_name(f"sql_expiry.{table_name}" if name is None else name)
        self.dependency: Hashable = ("sql", _address(engine.url))
        self._plan: _StatementParts | None = None
        self._has_said_dry = False
        self._asker: Asker[sa.Connection] = Asker(self._open, discard, clock)

    def perform(self, slice: Slice) -> int:
        """Delete up to ``slice.limit`` rows.

        Returns: how many were deleted; on a dry run, how many would be. Raises: Skipped without an
        open connection; Aborted if another writer came first or held a lock; OutOfTime;
        ConfigurationError for an unusable table; SQLAlchemy's errors. A slice is one transaction of
        two statements; a dry run has one statement.
        """
        if self.dry_run and not self._has_said_dry:
            self._has_said_dry = True
            _log.warning(
                "the job %r is a dry run: it counts %s and deletes nothing; give dry_run=False to"
                " delete them",
                self.name,
                WHAT,
            )
        deadline = time.monotonic() + slice.remaining()
        limit, is_dry = slice.limit, bool(self.dry_run)
        with blaming(self):
            done = self._asker.ask(
                lambda connection: self._expire(connection, limit, deadline, is_dry=is_dry),
                slice.remaining(),
            )
        if done.problem is not None:
            raise done.problem
        is_all = done.found < limit
        slice.observe(oldest_seconds=done.oldest_seconds, backlog=done.found if is_all else None)
        return done.handled

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the rows past their deadline, 10,000 at most.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta, the opening of a connection
                included.

        Returns: a Backlog, exact unless there are more. Raises: as `perform`. Two SELECTs.
        """
        seconds = seconds_of(seconds, "seconds")
        deadline = time.monotonic() + seconds

        def count(connection: sa.Connection) -> tuple[_SliceFindings, int]:
            plan, done, found = self._require_plan(), _SliceFindings(), 0
            some = (
                sa.select(sa.literal_column("1", sa.Integer))
                .select_from(plan.table)
                .where(*plan.past)
            )
            counted = some.limit(COUNTED_AT_MOST + 1).subquery()
            with bounded(connection, deadline) as problems:
                first = connection.execute(_oldest(plan).limit(1)).scalar()
                if first is not None:
                    done.oldest_seconds = plan.deadline.overdue_seconds(first)
                    query = sa.select(sa.func.count()).select_from(counted)
                    found = connection.execute(query).scalar_one()
            done.problem = problems.pop() if problems else None
            return done, found

        with blaming(self):
            self._asker.warm_up(seconds)
            done, found = self._asker.ask(count, max(0.0, deadline - time.monotonic()))
        if done.problem is not None:
            raise done.problem
        is_exact = found <= COUNTED_AT_MOST
        return Backlog(min(found, COUNTED_AT_MOST), done.oldest_seconds, WHAT, exact=is_exact)

    def warm_up(self) -> None:
        """Load the parts of SQLAlchemy that write this dialect's statements; opens nothing."""
        query = sa.select(sa.literal(1)).limit(1).with_for_update(skip_locked=True)
        query.compile(dialect=self._engine.dialect)

    def connect(self, seconds: Duration = 5.0) -> None:
        """Wait until the job's connection is open, for instance when a process starts.

        Arguments:
            seconds: how long, in seconds or a timedelta.

        Raises: Skipped if it does not open in time; the error of opening it; ConfigurationError for
        an unusable table.
        """
        seconds = seconds_of(seconds, "seconds")
        with blaming(self):
            self._asker.warm_up(seconds)

    def close(self) -> None:
        """Close the connection; the next slice is SKIPPED, and a thread opens another one."""
        self._asker.close()

    def _open(self) -> sa.Connection:
        return opened(self._engine, self._prepare, _READ_COMMITTED)

    def _prepare(self, connection: sa.Connection) -> None:
        kind = checked_dialect(connection.dialect)
        if kind in ("mysql", "mariadb"):
            connection.exec_driver_sql(
                "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = 1,"
                " lock_wait_timeout = 1"
            )
        if self._plan is None:
            self._plan = self._planned(connection)
        select = _keys(self._plan, 1)
        # Written once, before a slice needs it, and never run here.
        select.compile(dialect=connection.dialect)
        connection.execute(sa.select(1))

    def _planned(self, connection: sa.Connection) -> _StatementParts:
        table = self._table
        if isinstance(table, str):
            table = sa.Table(table, sa.MetaData(), schema=self._schema, autoload_with=connection)
        key = _require_key(table)
        column = column_of(table, self._column)
        told = sa.inspect(connection)
        # A Table may say another type than the database has; a time's zone would be misread.
        kinds = {each["name"]: each["type"] for each in told.get_columns(table.name, table.schema)}
        if column.name not in kinds:
            raise ConfigurationError(
                f"the table {table.name!r} has no column {column.name!r} in the database; it has"
                f" {', '.join(kinds)}"
            )
        deadline = DeadlineColumn(
            column, kinds[column.name], connection.dialect, unit=self._unit, hold=self._hold
        )
        if not _has_index(told, table, column.name):
            _log.warning(
                "the job %r reads the whole table %r in each slice, because no index begins with"
                " its column %r: create one",
                self.name,
                table.name,
                column.name,
            )
        past = [*deadline.past, *conditions_of(table, self._where)]
        if connection.dialect.name == "sqlite":
            # The bytes as they are stored: another program may write a time in another form.
            key = [sa.type_coerce(each, sa.types.NullType()) for each in key]
        return _StatementParts(key, deadline, past, column, table)

    def _require_plan(self) -> _StatementParts:
        if self._plan is None:
            raise ConfigurationError(f"the table {self._table!r} was not read")
        return self._plan

    def _expire(
        self, connection: sa.Connection, limit: int, deadline: float, *, is_dry: bool
    ) -> _SliceFindings:
        plan, done = self._require_plan(), _SliceFindings()
        with bounded(connection, deadline) as problems:
            query = _looked_at(plan, limit) if is_dry else _keys(plan, limit)
            rows = connection.execute(query).all()
            done.found = len(rows)
            if rows:
                done.oldest_seconds = plan.deadline.overdue_seconds(rows[0][0])
            if is_dry or not rows:
                done.handled = len(rows)
            elif time.monotonic() >= deadline:
                done.problem = OutOfTime("the slice ended before its rows could be deleted")
            else:
                keys = [tuple(row[1:]) for row in rows]
                handled = connection.execute(_removal(plan, keys)).rowcount
                connection.commit()
                done.handled = handled
                if not handled:
                    done.problem = Aborted("others renewed or deleted each row first")
        if problems:
            done.problem = problems.pop()
        return done

    def __repr__(self) -> str:
        return f"SqlExpiry({self.name!r}, limit={self.limit}, dry_run={self.dry_run})"


def _oldest(plan: _StatementParts) -> sa.Select[Any]:
    """Return the ages of rows past their deadline, the oldest first."""
    return sa.select(plan.deadline.age).where(*plan.past).order_by(plan.order)


def _looked_at(plan: _StatementParts, limit: int) -> sa.Select[Any]:
    """Return the ages and keys of such rows, without any lock."""
    return _oldest(plan).add_columns(*plan.key).limit(limit)


def _keys(plan: _StatementParts, limit: int) -> sa.Select[Any]:
    """Return the same, and lock the rows; those that others have locked are passed over."""
    # SQLite has no row locks: its dialect leaves the clause out.
    return _looked_at(plan, limit).with_for_update(skip_locked=True)


def _removal(plan: _StatementParts, keys: Sequence[tuple[Any, ...]]) -> sa.Delete:
    """Return the DELETE of rows with these keys, where the deadline is still past."""
    if len(plan.key) == 1:
        chosen = plan.key[0].in_([key[0] for key in keys])
    else:
        chosen = sa.tuple_(*plan.key).in_(keys)
    return sa.delete(plan.table).where(chosen, *plan.past)


def _require_words(table: object, column: object, unit: object, schema: object) -> None:
    """Raise a ConfigurationError unless names are names."""
    if not isinstance(table, sa.Table) and not (isinstance(table, str) and table):
        raise ConfigurationError(f"table={table!r} is no table: give a Table or its name")
    if not isinstance(column, str) or not column:
        raise ConfigurationError(f"column={column!r} is no name: give the name of the column")
    if unit is not None and unit not in list(UNITS):
        raise ConfigurationError(f"unit={unit!r} is unknown: give {' or '.join(map(repr, UNITS))}")
    if schema is not None and not isinstance(schema, str):
        raise ConfigurationError(f"schema={schema!r} is no name: give the name of the schema")


def _require_key(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    key: list[sa.ColumnElement[Any]] = list(table.primary_key.columns)
    if not key:
        raise ConfigurationError(
            f"the table {table.name!r} has no primary key, by which a slice deletes: add one"
        )
    return key


def _has_index(told: sa.Inspector, table: sa.Table, column: str) -> bool:
    """Say whether an index of the table begins with the column."""
    name, schema = table.name, table.schema
    keys: list[Any] = [
        told.get_pk_constraint(name, schema)["constrained_columns"],
        *(each["column_names"] for each in told.get_indexes(name, schema)),
        *(each["column_names"] for each in told.get_unique_constraints(name, schema)),
    ]
    return any(key and key[0] == column for key in keys)


def _address(url: sa.URL) -> str:
    """Return the address of a database without its password."""
    query = {key: value for key, value in url.query.items() if key in _SERVER_KEYS}
    # Not set(password=None), which would keep it.
    plain = sa.URL.create(
        url.drivername, url.username, None, url.host, url.port, url.database, query
    )
    return plain.render_as_string(hide_password=True)
