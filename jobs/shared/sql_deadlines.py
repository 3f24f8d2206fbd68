"""Rows of a SQL table past their deadline: which they are, and one short transaction on them.

The database's own clock judges the deadlines, in its own dialect. A transaction has bounds on its
statements and locks, and says what an error of the database means.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workstealing.errors import Aborted, ConfigurationError, MissingExtraError, OutOfTime

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    if error.name != "sqlalchemy":
        raise
    raise MissingExtraError("sql", "sqlalchemy") from error

from sqlalchemy.types import TypeDecorator

__all__ = ["DIALECTS", "UNITS", "DeadlineColumn", "bounded", "checked_dialect"]

DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
UNITS = {"seconds": 1, "milliseconds": 1000}
"""How many of a unit a second has."""

# Earlier times than this one, in 1973, are no deadlines: programs write 0, a zero date or -infinity
# for "none". And seconds that were declared as milliseconds all lie before it.
FLOOR_SECONDS = 100_000_000
_FLOOR_DAY = "'1973-03-04'"
_DAY_SECONDS = 86400.0
# Each has row locks that can be passed over from this version on.
_OLDEST = {"mysql": (8, 0, 1), "mariadb": (10, 6), "postgresql": (9, 5)}


def checked_dialect(dialect: sa.Dialect) -> str:
    """Return a dialect's name. Raises: ConfigurationError unless this module speaks it.

    Once connected, the server's version is checked too. No statement.
    """
    if dialect.name not in DIALECTS:
        raise ConfigurationError(
            f"the database is {dialect.name!r}; expected one of {', '.join(DIALECTS)}"
        )
    name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    version = getattr(dialect, "server_version_info", None)
    oldest = _OLDEST.get(name)
    if oldest and version and tuple(version[: len(oldest)]) < oldest:
        raise ConfigurationError(
            f"{name} {'.'.join(map(str, version))} cannot pass over locked rows (SKIP LOCKED);"
            f" expected {'.'.join(map(str, oldest))} or newer"
        )
    return dialect.name


class DeadlineColumn:
    """A column's deadlines: which are past, and for how long.

    Arguments:
        column: in the statements.
        kind: its type in the database, which decides.
        unit: "seconds" or "milliseconds" since the epoch, for a column of numbers only.
        hold: seconds after the column's time at which a row may go.

    Raises: ConfigurationError for another type, or for a unit that is missing or not wanted.

    Times without a zone are UTC. A date is past when its whole day is, in UTC.
    """

    past: list[sa.ColumnElement[bool]]
    """The conditions of a row whose deadline is past. The first two can use the column's index."""

    def __init__(
        self,
        column: sa.ColumnElement[Any],
        kind: sa.types.TypeEngine[Any],
        dialect: sa.Dialect,
        *,
        unit: str | None = None,
        hold: float = 0.0,
    ) -> None:
        kind = _plain(kind, dialect)
        # Since SQLAlchemy 2.1 a Float is no Numeric.
        is_number = isinstance(kind, sa.Integer | sa.Numeric | sa.Float)
        if not is_number and not isinstance(kind, sa.DateTime | sa.Date):
            raise ConfigurationError(
                f"the column {column} is of type {kind!r}, which holds no deadline: expected a"
                " date, a date with time, or a number with unit='seconds' or 'milliseconds'"
            )
        if is_number != (unit is not None):
            raise ConfigurationError(
                f"the column {column} is of type {kind!r}: "
                + (
                    "say unit='seconds' or unit='milliseconds'"
                    if is_number
                    else "unit= is for numbers, leave it out"
                )
            )
        self._extra = 0.0 if is_number or isinstance(kind, sa.DateTime) else _DAY_SECONDS
        self._scale = UNITS.get(unit or "", 1)
        self._hold = hold
        make = {
            "postgresql": self._on_postgresql,
            "mysql": self._on_mysql,
            "mariadb": self._on_mysql,
            "sqlite": self._on_sqlite,
        }[checked_dialect(dialect)]
        make(column, kind, is_number)

    def overdue_seconds(self, age: Any) -> float:
        """Return for how many seconds a row was garbage.

        Arguments:
            age: as `age` selects it.
        """
        seconds = float(age) / self._scale - self._hold - self._extra
        return max(0.0, seconds) if math.isfinite(seconds) else 0.0

    def _between(self, column: Any, floor: str, cut: str, age: Any) -> None:
        self.age: sa.ColumnElement[Any] = age
        self.past = [column >= sa.literal_column(floor), column < sa.literal_column(cut)]

    def _numbers(self, column: Any, now: str) -> None:
        """Compare numbers; `now` is a whole number of seconds, rounded down: nothing goes early."""
        scaled = now if self._scale == 1 else f"{now} * {self._scale}"
        hold = math.ceil(self._hold * self._scale)
        age = sa.literal_column(scaled, sa.BigInteger) - column
        self._between(column, str(FLOOR_SECONDS * self._scale), f"{scaled} - {hold}", age)

    def _on_postgresql(self, column: Any, kind: Any, is_number: bool) -> None:
        if is_number:
            self._numbers(column, "CAST(floor(extract(epoch FROM now())) AS BIGINT)")
            return
        has_zone = isinstance(kind, sa.DateTime) and kind.timezone
        now = "now()" if has_zone else "timezone('UTC', now())"
        cut = f"{now} - interval '{self._hold:.6f} seconds'"
        if isinstance(kind, sa.Date):
            cut = f"CAST({cut} AS DATE)"
        moment: Any = sa.literal_column(now, sa.DateTime)
        self._between(column, _FLOOR_DAY, cut, sa.extract("epoch", moment - column))

    def _on_mysql(self, column: Any, kind: Any, is_number: bool) -> None:
        # The session's time zone is UTC, so a TIMESTAMP reads as UTC too.
        if is_number:
            self._numbers(column, "UNIX_TIMESTAMP()")
            return
        cut = f"UTC_TIMESTAMP(6) - INTERVAL {self._hold:.6f} SECOND"
        if isinstance(kind, sa.Date):
            cut = f"DATE({cut})"
        unit: Any = sa.literal_column("SECOND")
        now: Any = sa.literal_column("UTC_TIMESTAMP(6)")
        self._between(column, _FLOOR_DAY, cut, sa.func.timestampdiff(unit, column, now))

    def _on_sqlite(self, column: Any, kind: Any, is_number: bool) -> None:
        # SQLite keeps anything in any column, so each value's own type counts too.
        types = ("integer", "real") if is_number else ("text",)
        if is_number:
            self._numbers(column, "CAST(strftime('%s', 'now') AS INTEGER)")
            self.past.append(sa.func.typeof(column).in_(types))
            return
        shape = "%Y-%m-%d" if isinstance(kind, sa.Date) else "%Y-%m-%d %H:%M:%f"
        cut = f"strftime('{shape}', 'now', '-{self._hold:.3f} seconds')"
        day = sa.func.julianday(sa.type_coerce(column, sa.Text), type_=sa.Float)
        now = sa.literal_column("julianday('now')", sa.Float)
        self._between(column, _FLOOR_DAY, cut, (now - day) * _DAY_SECONDS)
        # Text is compared for the index; a time with an offset such as -05:00, or with a T, sorts
        # otherwise than it means. The second look decides, and is NULL for what is no time.
        self.past.append(sa.func.typeof(column).in_(types))
        self.past.append(day < sa.func.julianday(sa.literal_column(cut), type_=sa.Float))


def _plain(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
    """Return the type that the database has, behind a user's own types."""
    kind = kind.dialect_impl(dialect)
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance.dialect_impl(dialect)
    return kind


LOCK_MILLISECONDS = 10
# A process that is stopped in the middle of a slice keeps its row locks no longer than this.
_IDLE_MILLISECONDS = 1000
_STEPS_BETWEEN_LOOKS = 1000

# Codes of the databases when another writer came first, and when they have ended a statement that
# took too long: SQLSTATEs of PostgreSQL, numbers of MySQL and MariaDB, codes of SQLite.
_OTHERS_FIRST: frozenset[Any] = frozenset({"40001", "40P01", "55P03", 1205, 1213, 3572, 1020})
_TOO_LONG: frozenset[Any] = frozenset({"57014", 3024, 1969, 1317})
_SQLITE_BUSY, _SQLITE_LOCKED, _SQLITE_INTERRUPT = 5, 6, 9


@contextmanager
def bounded(connection: sa.Connection, deadline: float) -> Iterator[list[Exception]]:
    """Run a transaction until a deadline at most; what is not committed is rolled back.

    Yields an empty list for errors. An error by which the database says that another writer came
    first, or that the time is over, ends the block and is put there as Aborted or OutOfTime: the
    connection is as good as before. Other errors are raised. One round trip, where there is one.
    """
    milliseconds = max(1, int(1000 * (deadline - time.monotonic())))
    kind, raw, problems = connection.dialect.name, None, list[Exception]()
    try:
        if kind == "postgresql":
            connection.exec_driver_sql(
                f"SELECT set_config('statement_timeout', '{milliseconds:d}', true),"
                f" set_config('lock_timeout', '{min(milliseconds, LOCK_MILLISECONDS):d}', true),"
                " set_config('idle_in_transaction_session_timeout',"
                f" '{max(milliseconds, _IDLE_MILLISECONDS):d}', true)"
            )
        elif kind == "sqlite":
            raw = connection.connection.dbapi_connection
            assert raw is not None
            raw.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        else:
            connection.exec_driver_sql(mysql_bound(connection.dialect, milliseconds))
        yield problems
    except sa.exc.DBAPIError as error:
        problem = None if error.connection_invalidated else verdict(error)
        if problem is None:
            raise
        # After a COMMIT that has failed, SQLAlchemy sends no ROLLBACK, and the locks would stay.
        driver: Any = connection.connection.dbapi_connection
        driver.rollback()
        problem.__cause__ = error
        problems.append(problem)
    finally:
        if raw is not None:
            raw.set_progress_handler(None, 0)
        connection.rollback()


def mysql_bound(dialect: sa.Dialect, milliseconds: int) -> str:
    """Return the statement that bounds those that follow; MySQL's covers SELECTs alone."""
    if getattr(dialect, "is_mariadb", False):
        return f"SET SESSION max_statement_time = {milliseconds / 1000:.3f}"
    return f"SET SESSION max_execution_time = {milliseconds:d}"


def verdict(error: sa.exc.DBAPIError) -> Exception | None:
    """Return the Aborted or OutOfTime that a database's error stands for; None for a fault."""
    raw: Any = error.orig
    args = getattr(raw, "args", ())
    code = getattr(raw, "sqlstate", None) or getattr(raw, "pgcode", None)
    if code is None and args:
        # pg8000 gives a dict of fields, MySQL's drivers the number.
        code = args[0].get("C") if isinstance(args[0], dict) else args[0]
    lite = getattr(raw, "sqlite_errorcode", 0) & 0xFF
    if lite in (_SQLITE_BUSY, _SQLITE_LOCKED) or _is_in(code, _OTHERS_FIRST):
        return Aborted("another writer came first, or held a lock")
    if lite == _SQLITE_INTERRUPT or _is_in(code, _TOO_LONG):
        return OutOfTime("the database ended a statement, because the slice was over")
    return None


def _is_in(code: object, codes: frozenset[Any]) -> bool:
    return isinstance(code, str | int) and code in codes
