"""Fixtures of SqlExpiry's tests: engines on empty databases, and jobs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.postgres import PostgresServer
from workstealing.jobs import SqlExpiry

LONG = 60.0


def emptied(postgres: PostgresServer) -> sa.Engine:
    """Return an engine on the server, which holds no tables any more."""
    made = postgres.engine()
    with made.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    return made


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An engine on an empty database."""
    if request.param == "sqlite":
        made = sa.create_engine(f"sqlite:///{tmp_path}/rows.sqlite")
    else:
        made = emptied(request.getfixturevalue("postgres"))
    yield made
    made.dispose()


@pytest.fixture
def job_on(engine: sa.Engine) -> Iterator[Callable[..., SqlExpiry]]:
    """Make jobs with an open connection; they are closed with the test."""
    made: list[SqlExpiry] = []

    def make(*args: Any, on: sa.Engine = engine, dry_run: bool = False, **opts: Any) -> SqlExpiry:
        job = SqlExpiry(on, *args, dry_run=dry_run, **opts)
        made.append(job)
        job.connect(LONG)
        return job

    yield make
    for job in made:
        job.close()
