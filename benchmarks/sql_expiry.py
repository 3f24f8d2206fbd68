"""Expired sessions in PostgreSQL: an application beside recruits, and beside `clearsessions`.

The application reads, renews and makes sessions at a constant rate, each statement timed from the
moment at which it was due. Rounds with and without recruits take turns. Recruits are a process of
their own, as workers are, and so is Django's `clearsessions`. The server logs each wait for a lock
that is longer than 10 ms. Alone: ``python benchmarks/sql_expiry.py --rows 10000000``.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import sqlalchemy as sa
from figures import Figure, Target, cost_figure, show
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


class Application:
    """Threads that send statements at a constant rate; `latencies` are those of this round."""

    def __init__(self, server: PostgresServer, rows: int) -> None:
        self.latencies: list[float] = []
        self._rows = rows
        self._is_over = threading.Event()
        address = server.url.replace("+psycopg", "")
        self._threads = [
            threading.Thread(target=self._send, args=(address, n)) for n in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, address: str, number: int) -> None:
        draw, period = random.Random(number), THREADS / PER_SECOND
        weights = [each[0] for each in STATEMENTS]
        with psycopg.connect(address, autocommit=True) as connection:
            due = time.perf_counter()
            while not self._is_over.is_set():
                due += period
                time.sleep(max(0.0, due - time.perf_counter()))
                _, statement, keys = draw.choices(STATEMENTS, weights)[0]
                key = str(draw.randint(1, keys or self._rows))
                connection.execute(statement, (key,))
                self.latencies.append(time.perf_counter() - due)

    def p99(self, seconds: float, until: subprocess.Popen[Any] | None = None) -> float:
        """Return the 99th percentile of so many seconds, or until a process has ended."""
        first = len(self.latencies)
        if until is None:
            time.sleep(seconds)
        else:
            until.wait()
            # Statements that have waited for it end now.
            time.sleep(SETTLE_SECONDS)
        return statistics.quantiles(self.latencies[first:], n=100)[-1]

    def close(self) -> None:
        """End the threads."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def measure(rows: int = ROWS, rounds: int = ROUNDS, seconds: float = SECONDS) -> list[Figure]:
    """Measure the application beside recruits, and beside clearsessions."""
    with PostgresServer() as server:
        engine = server.engine()
        _fill(engine, rows)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ALTER SYSTEM SET log_lock_waits = on")
            connection.exec_driver_sql("ALTER SYSTEM SET deadlock_timeout = '10ms'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        with contextlib.closing(Application(server, rows)) as application:
            application.p99(seconds)  # The first statements pay for caches.
            figures = _beside_recruits(server, engine, application, rounds, seconds)
            figures += _beside_clearsessions(server, engine, application, rows, seconds)
    return figures


def _beside_recruits(
    server: PostgresServer, engine: sa.Engine, application: Application, rounds: int, seconds: float
) -> list[Figure]:
    ours, reference = [], []
    waits, before = _waits(server), _left(engine)
    for number in range(rounds):
        for is_ours in (number % 2 == 0, number % 2 == 1):
            if is_ours:
                with _program("recruits", server, str(seconds + 60)):
                    ours.append(application.p99(seconds))
            else:
                reference.append(application.p99(seconds))
    removed = before - _left(engine)
    figure = cost_figure("sql_expiry_p99", "without recruits", (ours, reference), Target(most=1.05))
    figure.details["rows_removed_a_second"] = round(removed / (rounds * seconds))
    return [figure, _count("sql_expiry_lock_waits", _waits(server) - waits, NONE)]


def _beside_clearsessions(
    server: PostgresServer, engine: sa.Engine, application: Application, rows: int, seconds: float
) -> list[Figure]:
    _fill(engine, rows)
    reference = application.p99(seconds)
    waits = _waits(server)
    with _program("clearsessions", server, "0") as process:
        started = time.perf_counter()
        theirs = application.p99(seconds, until=process)
    took = time.perf_counter() - started - SETTLE_SECONDS
    left = _left(engine)
    assert left == 0, left
    figure = Figure(
        "clearsessions_p99",
        *(round(theirs / reference, 3),) * 3,
        1,
        "without it",
        None,
        {"ours_us": theirs * 1e6, "reference_us": reference * 1e6, "took_seconds": round(took, 2)},
    )
    return [figure, _count("clearsessions_lock_waits", _waits(server) - waits, None)]


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
