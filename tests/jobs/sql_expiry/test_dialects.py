"""The statements of SqlExpiry in each dialect, and what databases say when others come first."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from workstealing.errors import Aborted, ConfigurationError, OutOfTime
from workstealing.jobs import sql_expiry
from workstealing.jobs.shared.sql_deadlines import DeadlineColumn, checked_dialect, mysql_bound
from workstealing.jobs.shared.sql_deadlines import verdict as verdict_of

DIALECTS: dict[str, Any] = {
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "sqlite": sqlite.dialect,
}


def plan_of(
    dialect: sa.Dialect, kind: Any, *keys: str, **options: Any
) -> sql_expiry._StatementParts:
    """Return a plan for a table of that dialect."""
    table = sa.Table(
        "sessions",
        sa.MetaData(),
        *(sa.Column(key, sa.String(40), primary_key=True) for key in keys or ("key",)),
        sa.Column("due", kind),
    )
    deadline = DeadlineColumn(table.c.due, kind, dialect, **options)
    return sql_expiry._StatementParts(
        list(table.primary_key.columns), deadline, deadline.past, table.c.due, table
    )


def written(statement: Any, dialect: sa.Dialect) -> str:
    """Return a statement as the dialect writes it, on one line."""
    options = {"literal_binds": True}
    text = str(statement.compile(dialect=dialect, compile_kwargs=options))
    return " ".join(text.replace("`", "").split())


def test_mysql_locks_passes_over_and_checks_again() -> None:
    dialect = mysql.dialect()
    plan = plan_of(dialect, mysql.DATETIME(fsp=6), hold=90.5)
    past = (
        "sessions.due >= '1973-03-04'"
        " AND sessions.due < UTC_TIMESTAMP(6) - INTERVAL 90.500000 SECOND"
    )
    assert written(sql_expiry._keys(plan, 20), dialect) == (
        "SELECT timestampdiff(SECOND, sessions.due, UTC_TIMESTAMP(6)) AS timestampdiff_1,"
        f" sessions.key FROM sessions WHERE {past} ORDER BY sessions.due LIMIT 20"
        " FOR UPDATE SKIP LOCKED"
    )
    assert written(sql_expiry._removal(plan, [("a",), ("b",)]), dialect) == (
        f"DELETE FROM sessions WHERE sessions.key IN ('a', 'b') AND {past}"
    )
    several = plan_of(dialect, mysql.TIMESTAMP(), "tenant", "key")
    assert "(sessions.tenant, sessions.key) IN (('a', 'b'))" in written(
        sql_expiry._removal(several, [("a", "b")]), dialect
    )


@pytest.mark.parametrize(
    ("kind", "unit", "cut"),
    [
        (sa.Date(), None, "DATE(UTC_TIMESTAMP(6) - INTERVAL 60.000000 SECOND)"),
        (sa.BigInteger(), "seconds", "UNIX_TIMESTAMP() - 60"),
        (sa.BigInteger(), "milliseconds", "UNIX_TIMESTAMP() * 1000 - 60000"),
    ],
)
def test_mysqls_other_columns(kind: Any, unit: str | None, cut: str) -> None:
    dialect = mysql.dialect()
    plan = plan_of(dialect, kind, unit=unit, hold=60.0)
    assert f"sessions.due < {cut} " in written(sql_expiry._keys(plan, 1), dialect)


def test_mysqls_bounds() -> None:
    dialect = mysql.dialect()
    assert mysql_bound(dialect, 50) == "SET SESSION max_execution_time = 50"
    dialect.is_mariadb = True
    assert mysql_bound(dialect, 50) == "SET SESSION max_statement_time = 0.050"


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("kind", [sa.DateTime(), sa.DateTime(timezone=True), sa.Date()])
def test_no_time_of_this_process_is_sent(name: str, kind: Any) -> None:
    dialect = DIALECTS[name]()
    plan = plan_of(dialect, kind, hold=3600.0)
    for statement in (sql_expiry._keys(plan, 5), sql_expiry._removal(plan, [("a",)])):
        compiled = statement.compile(dialect=dialect)
        numbers = [each for each in compiled.params.values() if isinstance(each, int | float)]
        assert all(each in (0, 5, 86400.0) for each in numbers), compiled.params
        text = str(compiled).lower()
        assert "now" in text or "utc_timestamp" in text


def test_a_users_own_type_is_what_the_database_has() -> None:
    class Moment(sa.types.TypeDecorator[Any]):
        impl = sa.BigInteger
        cache_ok = True

    dialect = postgresql.dialect()
    plan = plan_of(dialect, Moment(), unit="seconds")
    assert "AS BIGINT) - 0" in written(sql_expiry._keys(plan, 1), dialect)
    with pytest.raises(ConfigurationError, match="say unit="):
        plan_of(dialect, Moment())
    with pytest.raises(ConfigurationError, match="leave it out"):
        plan_of(dialect, sa.DateTime(), unit="seconds")


@pytest.mark.parametrize(
    ("is_mariadb", "version", "is_taken"),
    [
        (False, (8, 0, 36), True),
        (False, (5, 7, 44), False),
        (True, (10, 5, 20), False),
        (True, (11, 4, 2), True),
    ],
)
def test_old_servers_are_refused(
    is_mariadb: bool, version: tuple[int, ...], is_taken: bool
) -> None:
    dialect = mysql.dialect()
    dialect.is_mariadb, dialect.server_version_info = is_mariadb, version
    if is_taken:
        assert checked_dialect(dialect) == "mysql"
        return
    with pytest.raises(ConfigurationError, match="cannot pass over locked rows"):
        checked_dialect(dialect)


def test_other_databases_are_refused() -> None:
    from sqlalchemy.dialects import oracle

    with pytest.raises(ConfigurationError, match="'oracle'; expected one of postgresql, mysql"):
        checked_dialect(oracle.dialect())


class _Raised(Exception):
    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args)
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    ("raised", "verdict"),
    [
        (_Raised(sqlstate="55P03"), Aborted),
        (_Raised(sqlstate="40001"), Aborted),
        (_Raised(pgcode="40P01"), Aborted),
        (_Raised({"C": "55P03"}), Aborted),
        (_Raised(1205, "Lock wait timeout exceeded"), Aborted),
        (_Raised(1213, "Deadlock found"), Aborted),
        (_Raised(sqlite_errorcode=sqlite3.SQLITE_BUSY_SNAPSHOT), Aborted),
        (_Raised(sqlstate="57014"), OutOfTime),
        (_Raised(3024, "Query execution was interrupted"), OutOfTime),
        (_Raised(1969, "max_statement_time exceeded"), OutOfTime),
        (_Raised(sqlite_errorcode=sqlite3.SQLITE_INTERRUPT), OutOfTime),
        (_Raised(sqlstate="57P01"), None),
        (_Raised(2013, "Lost connection"), None),
        (_Raised({"M": "no code"}), None),
        (_Raised(sqlite_errorcode=sqlite3.SQLITE_CORRUPT), None),
        (_Raised(), None),
    ],
)
def test_what_the_databases_say(raised: Exception, verdict: type[Exception] | None) -> None:
    error = sa.exc.DBAPIError("DELETE", None, raised)
    assert type(verdict_of(error)) is (verdict or type(None))


def test_the_jobs_load_without_sqlalchemy() -> None:
    program = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "from workstealing.jobs import KeyExpiry\n"
        "try:\n from workstealing.jobs import SqlExpiry\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert "workstealing[sql]" in done.stdout
