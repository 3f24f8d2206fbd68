"""One short transaction of a job: bounds on its statements and locks, and what errors mean."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from workstealing.errors import Aborted, OutOfTime

__all__ = ["bounded"]

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
