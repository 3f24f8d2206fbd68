"""Expired sessions in PostgreSQL: an application beside recruits, and beside `clearsessions`.

The application reads, renews and makes sessions at a constant rate, from a process of its own.
Recruits are a process, too, as workers are, and so is Django's `clearsessions`. Rounds in which
they work on the application's server take turns with rounds in which they work on another one. The
server logs each wait for a lock that is longer than 10 ms. Alone:
``python benchmarks/sql_expiry.py --rows 10000000``.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import sqlalchemy as sa
from callers import Callers, p99, p99_figure
from figures import Figure, Target, show
from servers import PostgresServer

from workstealing.errors import Aborted, OutOfTime, Skipped
from workstealing.jobs import SqlExpiry
from workstealing.recruiting import Slice

ROWS, LIVE = 100_000, 10_000
ROUNDS, SECONDS = 8, 3.0
THREADS, PER_SECOND = 2, 100
SLICES_PER_SECOND, LIMIT = 20, 100
NONE = Target(most=0)
SETTLE_SECONDS = 0.5

TABLE = """
CREATE TABLE django_session (
    session_key varchar(40) PRIMARY KEY,
    session_data text NOT NULL,
    expire_date timestamptz NOT NULL
);
CREATE INDEX ON django_session (expire_date);
CREATE INDEX ON django_session (session_key varchar_pattern_ops);
"""
FILL = """
INSERT INTO django_session
SELECT %(prefix)s || i, repeat('x', 200), now() + %(from)s::interval + i * interval '1 ms'
FROM generate_series(1, %(rows)s) i
"""
STATEMENTS = [
    # A request reads its session; most of them are live.
    (0.70, "SELECT session_data FROM django_session WHERE session_key = 'live' || %s", LIVE),
    (0.10, "SELECT session_data FROM django_session WHERE session_key = 'dead' || %s", None),
    (
        0.15,
        """UPDATE django_session SET expire_date = now() + interval '2 weeks'
           WHERE session_key = 'live' || %s""",
        LIVE,
    ),
    # A late visitor's session is written without being renewed: it meets the removal head on.
    (
        0.05,
        "UPDATE django_session SET session_data = 'y' WHERE session_key = 'dead' || %s",
        None,
    ),
]


def application(address: str, rows: int, number: int) -> Callable[[], object]:
    """Return the call of one thread of the application.

    Arguments:
        address: of the server.
        rows: that have expired.
        number: of the thread.
    """
    draw, weights = random.Random(number), [each[0] for each in STATEMENTS]
    connection = psycopg.connect(address, autocommit=True)

    def call() -> object:
        _, statement, keys = draw.choices(STATEMENTS, weights)[0]
        return connection.execute(statement, (str(draw.randint(1, keys or rows)),))

    return call


def measure(rows: int = ROWS, rounds: int = ROUNDS, seconds: float = SECONDS) -> list[Figure]:
    """Measure the application beside recruits, and beside clearsessions."""
    with PostgresServer() as server, PostgresServer() as other:
        for each in (server, other):
            engine = each.engine()
            _fill(engine, rows)
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("ALTER SYSTEM SET log_lock_waits = on")
                connection.exec_driver_sql("ALTER SYSTEM SET deadlock_timeout = '10ms'")
                connection.exec_driver_sql("SELECT pg_reload_conf()")
        make = partial(application, server.url.replace("+psycopg", ""), rows)
        with contextlib.closing(Callers(make, PER_SECOND, THREADS)) as callers:
            figures = _beside_recruits(server, other, callers, rounds, seconds)
            figures += _beside_clearsessions(server, other, callers, rows)
    return figures


def _beside_recruits(
    server: PostgresServer, other: PostgresServer, callers: Callers, rounds: int, seconds: float
) -> list[Figure]:
    engine = server.engine()
    waits, before = _waits(server), _left(engine)
    ours, elsewhere = (
        partial(_program, "recruits", each, str(seconds + 60)) for each in (server, other)
    )
    figure = p99_figure(
        "sql_expiry_p99",
        callers,
        (ours, elsewhere),
        rounds,
        seconds=seconds,
        target=Target(most=1.05),
    )
    removed = before - _left(engine)
    figure.details["rows_removed_a_second"] = round(removed / (rounds * seconds))
    return [figure, _count("sql_expiry_lock_waits", _waits(server) - waits, NONE)]


def _beside_clearsessions(
    server: PostgresServer, other: PostgresServer, callers: Callers, rows: int
) -> list[Figure]:
    """Compare one run of it on the application's server with one on the other."""
    for each in (server, other):
        _fill(each.engine(), rows)
    reference, _ = _p99_until_cleared(other, callers)
    waits = _waits(server)
    theirs, took = _p99_until_cleared(server, callers)
    figure = Figure(
        "clearsessions_p99",
        *(round(theirs / reference, 3),) * 3,
        1,
        "the same work on another server",
        None,
        {"ours_us": theirs * 1e6, "reference_us": reference * 1e6, "took_seconds": round(took, 2)},
    )
    return [figure, _count("clearsessions_lock_waits", _waits(server) - waits, None)]


def _p99_until_cleared(server: PostgresServer, callers: Callers) -> tuple[float, float]:
    """Return the application's p99 while a server is cleared, and how long that took."""
    with _program("clearsessions", server, "0") as process:
        callers.begin()
        began = time.perf_counter()
        process.wait()
        took = time.perf_counter() - began
        # Statements that have waited for it end now.
        time.sleep(SETTLE_SECONDS)
        found = p99(callers.end())
    left = _left(server.engine())
    assert left == 0, left
    return found, took


def _count(name: str, value: int, target: Target | None) -> Figure:
    return Figure(name, value, value, value, 1, "waits for a lock of more than 10 ms", target)


def _fill(engine: sa.Engine, rows: int) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS django_session")
        connection.exec_driver_sql(TABLE)
        for prefix, begins, number in (("dead", "-90 days", rows), ("live", "14 days", LIVE)):
            connection.exec_driver_sql(FILL, {"prefix": prefix, "from": begins, "rows": number})
        connection.exec_driver_sql("ANALYZE django_session")


def _left(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        query = "SELECT count(*) FROM django_session WHERE expire_date < now()"
        return int(connection.exec_driver_sql(query).scalar_one())


def _waits(server: PostgresServer) -> int:
    return (server.directory / "log").read_text(errors="replace").count("still waiting for")


@contextlib.contextmanager
def _program(role: str, server: PostgresServer, seconds: str) -> Iterator[subprocess.Popen[Any]]:
    """Run this file in another role; it has begun its work, and ends with the block."""
    command = [sys.executable, __file__, "--role", role, "--url", server.url]
    with subprocess.Popen(
        [*command, "--seconds", seconds], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.terminate()


def _recruit(url: str, seconds: float) -> None:
    """Do slices at the rate of a fleet's recruits."""
    job = SqlExpiry(sa.create_engine(url), "django_session", "expire_date", LIMIT, dry_run=False)
    job.connect()
    print("ready", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(Aborted, OutOfTime, Skipped):
            job.perform(Slice(LIMIT, 0.05))
        time.sleep(random.expovariate(SLICES_PER_SECOND))


def _clear_sessions(url: str) -> None:
    """Run Django's own command."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    told = sa.make_url(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": told.database,
        "USER": told.username,
        "HOST": told.host,
        "PORT": told.port,
    }
    settings.configure(
        INSTALLED_APPS=["django.contrib.sessions"],
        DATABASES={"default": database},
        USE_TZ=True,
        SECRET_KEY="of the benchmark",
    )
    django.setup()
    print("ready", flush=True)
    call_command("clearsessions")


def main() -> None:
    """Measure alone, with a number of rows; or play another role for the measuring process."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=ROWS, help="expired rows")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a round")
    parser.add_argument("--role", choices=("recruits", "clearsessions"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "recruits":
        _recruit(options.url, options.seconds)
    elif options.role == "clearsessions":
        _clear_sessions(options.url)
    else:
        show(measure(options.rows, options.rounds, options.seconds))


if __name__ == "__main__":
    main()
