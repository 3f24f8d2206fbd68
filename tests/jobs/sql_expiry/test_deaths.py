"""A process that is killed at any step of a slice leaves no lock and no half-done work."""

from __future__ import annotations

import datetime as dt
import os
import signal
from typing import Any

import pytest
import sqlalchemy as sa

from support.children import in_child
from support.servers import wait_until
from workstealing.errors import Aborted
from workstealing.jobs import SqlExpiry
from workstealing.recruiting import Slice

LONG = 60.0
ROWS = 7
LIMIT = 3


def slice_killed_at(url: sa.URL, step: int) -> None:
    """Do a slice in this process, which kills itself at its step of that number."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    job = SqlExpiry(engine, "rows", "due", dry_run=False)
    job.connect(LONG)
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "after_cursor_execute", "commit", "rollback"):
        sa.event.listen(engine, name, count)
    job.perform(Slice(LIMIT, LONG))


@pytest.mark.slow
@pytest.mark.smoke
def test_killed_at_each_step(engine: sa.Engine) -> None:
    table = sa.Table(
        "rows",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("due", sa.DateTime(timezone=True), index=True),
    )
    table.metadata.create_all(engine)
    now, hour = dt.datetime.now(dt.UTC), dt.timedelta(hours=1)
    rows = [{"id": i, "due": now - hour} for i in range(ROWS)]
    rows.append({"id": 99, "due": now + 5 * hour})
    seen = set()
    for step in range(1, 30):
        with engine.begin() as connection:
            connection.execute(table.delete())
            connection.execute(table.insert(), rows)
        engine.dispose()
        url = engine.url
        child = in_child(lambda at=step, to=url: slice_killed_at(to, at))  # type: ignore[misc]
        _, status = os.waitpid(child, 0)
        with engine.connect() as connection:
            left = list(connection.execute(sa.select(table.c.id).order_by(table.c.id)).scalars())
        seen.add(len(left))
        # All of the slice or nothing, and never a live row.
        assert len(left) in (ROWS + 1, ROWS + 1 - LIMIT)
        assert left[-1] == 99
        _next_recruit_finishes(engine, len(left) - 1)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            # Look, delete and bounds, before and after each, and the commit.
            assert step > 7
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    else:
        pytest.fail("still dying after thirty steps")
    assert seen == {ROWS + 1, ROWS + 1 - LIMIT}


def _next_recruit_finishes(engine: sa.Engine, dead: int) -> None:
    job = SqlExpiry(engine, "rows", "due", dry_run=False)
    job.connect(LONG)
    handled = 0

    def is_done() -> bool:
        # PostgreSQL takes a moment to see that the process has gone, and passes its rows over.
        nonlocal handled
        try:
            handled += job.perform(Slice(LIMIT, LONG))
        except Aborted:
            return False
        return handled == dead

    wait_until(is_done, "the dead process's locks to go")
    job.close()
    with engine.connect() as connection:
        assert list(connection.exec_driver_sql("SELECT id FROM rows").scalars()) == [99]
