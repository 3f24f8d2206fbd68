"""A database table as the source of a tracked set, by SQLAlchemy 2."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.structures.tracked_set.sources.asking import Asker

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise MissingExtraError("sql", "sqlalchemy") from error

from sqlalchemy.pool import SingletonThreadPool, StaticPool

_STEPS_BETWEEN_LOOKS = 1000
_READERS: dict[type, Callable[[Any], Any]] = {
    int: int,
    str: str,
    float: float,
    uuid.UUID: uuid.UUID,
    decimal.Decimal: decimal.Decimal,
    dt.datetime: dt.datetime.fromisoformat,
    dt.date: dt.date.fromisoformat,
}
Where = Mapping[str, Any] | sa.ColumnElement[bool] | None
"""Which rows: {column: value}, {column: [values]}, an expression of SQLAlchemy, or all."""

_ID_TYPES = (int, str, uuid.UUID)


class _ColumnText:
    """One column's values as text.

    Arguments:
        dialect: its name, which decides the values that the column can hold.
        as_id: whether ids are read from it.

    Raises: ConfigurationError for an unusable type.
    """

    def __init__(self, column: sa.ColumnElement[Any], dialect: str, *, as_id: bool = False) -> None:
        try:
            kind = column.type.python_type
        except NotImplementedError:
            kind = type(None)
        known = _ID_TYPES if as_id else tuple(_READERS)
        if kind not in known:
            names = ", ".join(sorted(each.__name__ for each in known))
            raise ConfigurationError(
                f"the column {column} is of type {column.type!r}, which cannot be used as"
                f" {'an id' if as_id else 'a cursor'}: use one that holds {names}"
            )
        self._kind = kind
        self._is_postgresql = dialect == "postgresql"
        self._bits = 63
        if self._is_postgresql and isinstance(column.type, sa.Integer):
            small, big = (sa.SmallInteger, sa.BigInteger)
            self._bits = 15 if isinstance(column.type, small) else 31
            self._bits = 63 if isinstance(column.type, big) else self._bits

    def write(self, value: Any) -> str:
        """Return a value as text."""
        if isinstance(value, dt.date):
            return value.isoformat()
        return repr(value) if self._kind is float else str(value)

    def read(self, written: str) -> Any:
        """Return the value that `write` turned into this text.

        Raises: ValueError for any other text, and for a value that the column cannot hold.
        """
        value: Any = None
        try:
            value = _READERS[self._kind](written)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise ValueError(f"{written!r} is no {self._kind.__name__}") from error
        if self.write(value) != written:
            raise ValueError(f"{written!r} is not as this package writes it")
        if self._kind is int and not -(1 << self._bits) <= value < 1 << self._bits:
            raise ValueError(f"{written!r} is too large for its column")
        if self._kind is str:
            value.encode()
            if self._is_postgresql and "\0" in value:
                raise ValueError("PostgreSQL holds no NUL character")
        return value


def _write_cursor(columns: Sequence[_ColumnText], values: Sequence[Any]) -> str:
    """Return a row's place as text: a JSON list with a text for each column."""
    written = [column.write(value) for column, value in zip(columns, values, strict=True)]
    return json.dumps(written, ensure_ascii=False, separators=(",", ":"))


def _read_cursor(columns: Sequence[_ColumnText], cursor: str) -> list[Any] | None:
    """Return the place that a cursor stands for; None, the beginning, for a foreign cursor."""
    try:
        written = json.loads(cursor)
        if not isinstance(written, list) or not all(isinstance(part, str) for part in written):
            return None
        return [column.read(part) for column, part in zip(columns, written, strict=True)]
    except ValueError:
        return None


class _Columns:
    """The table's columns, once they are known, and the parts of every question."""

    def __init__(
        self,
        table: sa.Table,
        id_name: str,
        cursor_names: Sequence[str],
        where: Where,
        dialect: str,
    ) -> None:
        self.id = column_of(table, id_name)
        cursor = [column_of(table, name) for name in cursor_names]
        if not _is_unique(table, cursor) and self.id not in cursor:
            # Rows with equal cursors must belong to one id, or an id could be skipped.
            cursor.append(self.id)
        self.cursor = cursor
        self.id_text = _ColumnText(self.id, dialect, as_id=True)
        self.cursor_texts = [_ColumnText(column, dialect) for column in cursor]
        self.conditions = [self.id.is_not(None), *conditions_of(table, where)]


class SqlSource:
    """Asks a database table for the next rows, and for the ids that still have work.

    Arguments:
        engine: of SQLAlchemy 2.
        table: a `Table`, or the name of one, whose columns the connection's thread then reads from
            the database.
        id: the name of the column that holds the ids (ints, text or UUIDs; one id may have several
            rows).
        cursor: the names of the columns whose order the walk follows, NOT NULL and with an index,
            by default the id's.
        where: the condition of rows with work: {column: value}, {column: [values]} or an expression
            of SQLAlchemy (its columns need an index together with the cursor, or a partial index).
        schema: of a table given by name.

    The source keeps one connection of its own. A slice that finds it closed is SKIPPED, and a
    thread opens it. Each question is one transaction with a statement time-out (PostgreSQL,
    SQLite). On any database the caller waits no longer than its slice. Raises: MissingExtraError
    without SQLAlchemy; ConfigurationError; SQLAlchemy's errors.
    """

    def __init__(
        self,
        engine: sa.Engine,
        table: str | sa.Table,
        id: str = "id",  # noqa: A002 - the word of the field
        *,
        cursor: str | Sequence[str] | None = None,
        where: Where = None,
        schema: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._engine = checked_engine(engine)
        self._table = table
        self._schema = schema
        self._id = id
        names = (cursor,) if isinstance(cursor, str) else tuple(cursor or (id,))
        self._cursor = names
        self._where = where
        self._plan: _Columns | None = None
        if isinstance(table, sa.Table):
            self._plan = self._make_plan(table)
        elif not isinstance(table, str):
            raise ConfigurationError(f"give a Table or its name, not {table!r}")
        self._asker: Asker[sa.Connection] = Asker(self._open, discard, clock)

    def rows_after(self, cursor: str, n: int, seconds: float) -> list[tuple[str, str]]:
        """Return (id, cursor) of the next n rows with work; see `Source`. One SELECT."""

        def ask(plan: _Columns) -> sa.Select[Any]:
            query = sa.select(plan.id, *plan.cursor).where(*plan.conditions)
            place = _read_cursor(plan.cursor_texts, cursor)
            if place is not None:
                bound = [
                    sa.bindparam(None, value, column.type)
                    for value, column in zip(place, plan.cursor, strict=True)
                ]
                if len(bound) == 1:
                    query = query.where(plan.cursor[0] > bound[0])
                else:
                    query = query.where(sa.tuple_(*plan.cursor) > sa.tuple_(*bound))
            return query.order_by(*plan.cursor).limit(n)

        plan, rows = self._ask(ask, seconds)
        return [
            (plan.id_text.write(row[0]), _write_cursor(plan.cursor_texts, row[1:])) for row in rows
        ]

    def with_work(self, ids: Sequence[str], seconds: float) -> Collection[str]:
        """Return which ids still have work; see `Source`. One SELECT."""

        def ask(plan: _Columns) -> sa.Select[Any] | None:
            values = []
            for each in ids:
                try:
                    values.append(plan.id_text.read(each))
                except ValueError:
                    # A value that the column cannot hold is not in the table.
                    continue
            if not values:
                return None
            return sa.select(plan.id).where(plan.id.in_(values), *plan.conditions).distinct()

        plan, rows = self._ask(ask, seconds)
        return {plan.id_text.write(row[0]) for row in rows}

    def random_ids(self, n: int, seconds: float) -> list[str]:
        """Return ids of n random rows that have work to do, for `drift`; reads all such rows."""
        plan, rows = self._ask(
            lambda plan: (
                sa.select(plan.id).where(*plan.conditions).order_by(sa.func.random()).limit(n)
            ),
            seconds,
        )
        return [plan.id_text.write(row[0]) for row in rows]

    def require_ready(self) -> None:
        """Raise Skipped unless a question can be asked now; asks nothing."""
        self._asker.require_ready()

    def warm_up(self, seconds: Duration = 5.0) -> None:
        """Wait until the connection is open, for instance when a process starts.

        Arguments:
            seconds: how long, in seconds or a timedelta.

        Raises: ConfigurationError for another length; Skipped if no connection opens in time; the
        error of the attempt to open one.
        """
        self._asker.warm_up(seconds_of(seconds, "seconds"))

    def close(self) -> None:
        """Close the connection; the next slice is SKIPPED, and a thread opens another one."""
        self._asker.close()

    def _ask(
        self, make: Callable[[_Columns], sa.Select[Any] | None], seconds: float
    ) -> tuple[_Columns, Sequence[Any]]:
        deadline = time.monotonic() + seconds

        def question(connection: sa.Connection) -> tuple[_Columns, Sequence[Any]]:
            plan = self._plan
            if plan is None:
                raise ConfigurationError(f"the table {self._table!r} was not read")
            query = make(plan)
            if query is None:
                return plan, ()
            with _bounded(connection, deadline):
                return plan, connection.execute(query).all()

        return self._asker.ask(question, seconds)

    def _make_plan(self, table: sa.Table) -> _Columns:
        return _Columns(table, self._id, self._cursor, self._where, self._engine.dialect.name)

    def _open(self) -> sa.Connection:
        return opened(self._engine, self._prepare)

    def _prepare(self, connection: sa.Connection) -> None:
        if self._plan is None:
            name: Any = self._table
            table = sa.Table(name, sa.MetaData(), schema=self._schema, autoload_with=connection)
            self._plan = self._make_plan(table)
        connection.execute(sa.select(1))


@contextmanager
def _bounded(connection: sa.Connection, deadline: float) -> Iterator[None]:
    """Run statements until a deadline at most, in a transaction that changes nothing."""
    remaining = max(0.001, deadline - time.monotonic())
    milliseconds = max(1, int(1000 * remaining))
    kind = connection.dialect.name
    try:
        if kind == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {milliseconds:d}")
        elif kind == "sqlite":
            raw: Any = connection.connection.dbapi_connection
            raw.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds:d}")
        yield
    finally:
        if kind == "sqlite":
            raw.set_progress_handler(None, 0)
        connection.rollback()


def checked_engine(engine: object) -> sa.Engine:
    """Return an engine. Raises: ConfigurationError unless all threads see one database by it."""
    if not isinstance(engine, sa.Engine):
        raise ConfigurationError(
            f"expected an engine of SQLAlchemy, not {type(engine).__name__}: give"
            " create_engine(...)"
        )
    if isinstance(engine.pool, SingletonThreadPool):
        raise ConfigurationError(
            "each thread has a database of its own in this engine: use a file, or"
            " poolclass=StaticPool with check_same_thread=False"
        )
    return engine


def opened(
    engine: sa.Engine,
    prepare: Callable[[sa.Connection], None],
    read_committed: Collection[str] = ("postgresql",),
) -> sa.Connection:
    """Open a connection that the engine's pool does not count.

    Arguments:
        prepare: makes the first statements on it.
        read_committed: the dialects in which each statement must see all data committed before it.

    Raises: SQLAlchemy's errors, and the errors of `prepare`; after an error nothing stays open.
    """
    connection = engine.connect()
    try:
        if connection.dialect.name in read_committed:
            connection = connection.execution_options(isolation_level="READ COMMITTED")
        if not isinstance(engine.pool, StaticPool):
            # The application has as many connections as before.
            connection.detach()
        prepare(connection)
        connection.rollback()
    except BaseException:
        discard(connection)
        raise
    return connection


def discard(connection: sa.Connection) -> None:
    """Throw a connection away; it may be broken, and nobody else must use it."""
    if connection.connection.is_detached:
        raw: Any = connection.connection.dbapi_connection
        raw.close()
        connection.invalidate()
    connection.close()


def column_of(table: sa.Table, name: str) -> sa.Column[Any]:
    """Return a table's column. Raises: ConfigurationError if the table has no such column."""
    if name not in table.c:
        raise ConfigurationError(
            f"the table {table.name!r} has no column {name!r}; it has {', '.join(table.c.keys())}"
        )
    return table.c[name]


def conditions_of(table: sa.Table, where: Where) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that `where` stands for; ConfigurationError for an unknown column."""
    if isinstance(where, Mapping):
        return [_equal(column_of(table, name), value) for name, value in where.items()]
    return [] if where is None else [where]


def _is_unique(table: sa.Table, columns: Sequence[sa.ColumnElement[Any]]) -> bool:
    names = {column.key for column in columns}
    keys = [list(table.primary_key.columns)]
    return any(key and {column.key for column in key} <= names for key in keys)


def _equal(column: sa.ColumnElement[Any], value: Any) -> sa.ColumnElement[bool]:
    if isinstance(value, list | tuple | set | frozenset):
        return column.in_(list(value))
    return column.is_(None) if value is None else column == value
