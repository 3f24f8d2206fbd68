"""SqlSource on SQLite and PostgreSQL, and the thread that asks."""

from __future__ import annotations

import datetime as dt
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.postgres import PostgresServer
from support.servers import RedisServer
from workstealing.errors import ConfigurationError, OutOfTime, Skipped
from workstealing.jobs import TrackQueued, UntrackDone
from workstealing.recruiting import Slice
from workstealing.structures import TrackedSet
from workstealing.structures.tracked_set.sources import SqlSource
from workstealing.structures.tracked_set.sources.asking import Asker
from workstealing.testing import ManualClock

LONG = 20.0


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An engine on an empty database."""
    if request.param == "sqlite":
        made = sa.create_engine(f"sqlite:///{tmp_path}/tasks.sqlite")
        yield made
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres")
        made = postgres.engine()
        with made.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        yield made
    made.dispose()


@pytest.fixture
def source_of(engine: sa.Engine) -> Iterator[Callable[..., SqlSource]]:
    """Make warm sources on the engine; they are closed with the test."""
    made: list[SqlSource] = []

    def make(*args: Any, **options: Any) -> SqlSource:
        source = SqlSource(engine, *args, **options)
        made.append(source)
        source.warm_up(LONG)
        return source

    yield make
    for source in made:
        source.close()


def fill(engine: sa.Engine, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    table.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)


def walk(source: SqlSource, n: int) -> list[list[str]]:
    """Return the ids of each page of a whole walk."""
    pages, cursor = [], ""
    while True:
        rows = source.rows_after(cursor, n, LONG)
        pages.append([each for each, _ in rows])
        if len(rows) < n:
            return pages
        cursor = rows[-1][1]


def tasks(*extra: sa.Column[Any]) -> sa.Table:
    return sa.Table(
        "tasks",
        sa.MetaData(),
        sa.Column("task_id", sa.Integer, primary_key=True),
        sa.Column("identifier", sa.Text),
        sa.Column("state", sa.Text),
        *extra,
    )


def test_a_walk_by_number_and_the_second_question(
    engine: sa.Engine, source_of: Callable[..., SqlSource]
) -> None:
    rows = [
        {"task_id": i, "identifier": f"item{i % 4}", "state": "queued" if i < 6 else "done"}
        for i in range(1, 10)
    ]
    fill(engine, tasks(), [*rows, {"task_id": 99, "identifier": None, "state": "queued"}])
    source = source_of("tasks", "identifier", cursor="task_id", where={"state": "queued"})
    assert walk(source, 2) == [["item1", "item2"], ["item3", "item0"], ["item1"]]
    assert source.with_work(["item0", "item9", "x\0y", "\udcff"], LONG) == {"item0"}
    assert source.with_work([], LONG) == set()
    both = source_of("tasks", "identifier", where={"state": ["queued", "done"]})
    assert both.with_work(["item0", "item3"], LONG) == {"item0", "item3"}
    assert set(both.random_ids(100, LONG)) == {"item0", "item1", "item2", "item3"}
    nobody = source_of("tasks", "identifier", where={"state": None})
    assert walk(nobody, 5) == [[]]


def test_a_tables_own_expressions(engine: sa.Engine, source_of: Callable[..., SqlSource]) -> None:
    table = tasks()
    fill(engine, table, [{"task_id": i, "identifier": f"i{i}", "state": "x"} for i in range(5)])
    source = source_of(table, "task_id", where=table.c.task_id % 2 == 0)
    assert walk(source, 2) == [["0", "2"], ["4"]]
    # Only numbers as they are written down, and only those that the column can hold.
    asked = ["2", "02", "+2", " 2", "\u0662", "3", "x", "", "9" * 10, "9" * 30]
    assert source.with_work(asked, LONG) == {"2"}


def test_a_walk_by_text_and_by_several_columns(
    engine: sa.Engine, source_of: Callable[..., SqlSource]
) -> None:
    table = sa.Table(
        "jobs",
        sa.MetaData(),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("at", sa.DateTime),
    )
    days = [dt.date(2024, 2, day) for day in (28, 29)]
    names = ["a'b", 'c"d', "e,f", "\u00fc"]
    moments = [dt.datetime(2024, 2, 3, 4, 5, 6, i % 3) for i in range(8)]  # noqa: DTZ001
    pairs = [(day, name) for day in days for name in names]
    fill(
        engine,
        table,
        [{"day": d, "name": n, "at": at} for (d, n), at in zip(pairs, moments, strict=True)],
    )
    composite = source_of("jobs", "name", cursor=("day", "name"))
    assert walk(composite, 3) == [names[:3], [names[3], *names[:2]], names[2:]]
    assert walk(source_of("jobs", "name"), 3)[0] == [names[0], names[0], names[1]]
    # Not unique: the id joins the cursor, so that no id of the same moment is passed over.
    by_time = [each for page in walk(source_of("jobs", "name", cursor="at"), 1) for each in page]
    assert set(by_time) == set(names)


def test_uuids_are_ids(engine: sa.Engine, source_of: Callable[..., SqlSource]) -> None:
    table = sa.Table("things", sa.MetaData(), sa.Column("id", sa.Uuid, primary_key=True))
    ids = sorted(str(uuid.UUID(int=(0xABC + i) << 96)) for i in range(1, 6))
    fill(engine, table, [{"id": uuid.UUID(each)} for each in ids])
    source = source_of(table)
    assert sorted(each for page in walk(source, 2) for each in page) == ids
    assert source.with_work([ids[0], ids[1].upper(), "x"], LONG) == {ids[0]}


def test_names_are_quoted_and_values_bound(
    engine: sa.Engine, source_of: Callable[..., SqlSource]
) -> None:
    name, column = 'we"ird; DROP TABLE "x', 'select "id"; --'
    table = sa.Table(
        name, sa.MetaData(), sa.Column(column, sa.Text, primary_key=True), sa.Column("s", sa.Text)
    )
    evil = "'; DELETE FROM x; --"
    fill(engine, table, [{column: evil, "s": evil}, {column: "b", "s": "other"}])
    source = source_of(name, column, where={"s": evil})
    assert walk(source, 5) == [[evil]]
    assert source.with_work([evil, "b"], LONG) == {evil}


@pytest.mark.parametrize(
    "cursor",
    ["x", "[1]", '["x"]', "[]", '["1","2"]', "{}", '["\\u0000"]', f'["{"9" * 30}"]', "nul"],
)
def test_a_cursor_of_another_make_is_the_beginning(
    engine: sa.Engine, source_of: Callable[..., SqlSource], cursor: str
) -> None:
    fill(engine, tasks(), [{"task_id": 1, "identifier": "a", "state": "x"}])
    source = source_of("tasks", "identifier", cursor="task_id")
    assert [each for each, _ in source.rows_after(cursor, 5, LONG)] == ["a"]


@pytest.mark.slow
def test_both_jobs_on_a_real_table(
    redis7: RedisServer, engine: sa.Engine, source_of: Callable[..., SqlSource]
) -> None:
    table = tasks()
    rows = [{"task_id": i, "identifier": f"i{i}", "state": "queued"} for i in range(1, 121)]
    fill(engine, table, rows)
    source = source_of("tasks", "identifier", cursor="task_id", where={"state": "queued"})
    tracked = TrackedSet(redis7.client(), "queued", source)
    queued, done = TrackQueued(tracked), UntrackDone(tracked)
    assert [queued.perform(Slice(50, LONG)) for _ in range(3)] == [50, 50, 20]
    with engine.begin() as connection:
        connection.execute(table.update().where(table.c.task_id > 60).values(state="done"))
    for _ in range(3000):
        done.perform(Slice(5, LONG))
        if tracked.count() == 60:
            break
    assert all(tracked.are_tracked(f"i{i}" for i in range(1, 61)))
    assert tracked.count() == 60
    drift = tracked.drift(100)
    assert (drift.stale.found, drift.missing.found) == (0, 0)


def test_a_slow_statement_is_ended_by_the_database(
    engine: sa.Engine, source_of: Callable[..., SqlSource]
) -> None:
    table = tasks()
    fill(engine, table, [{"task_id": i, "identifier": "a", "state": "x"} for i in range(400)])
    others = [table.alias() for _ in range(4)]
    crossed = (
        sa.select(sa.func.count())
        .select_from(others[0])
        .join(others[1], sa.true())
        .join(others[2], sa.true())
        .join(others[3], sa.true())
        .where(others[0].c.state != others[3].c.identifier)
        .scalar_subquery()
    )
    source = source_of(table, "identifier", cursor="task_id", where=crossed > 1)
    line = source._asker._line
    assert line is not None
    with pytest.raises((OutOfTime, sa.exc.OperationalError)):
        source.with_work(["a"], 0.05)
    # The statement has ended although nobody waited for it, or the thread would still be busy.
    assert ended(line)
    with pytest.raises(Skipped):
        source.require_ready()
    source.warm_up(LONG)
    source.require_ready()


def ended(line: Any) -> bool:
    for thread in threading.enumerate():
        if thread.name == "workstealing-source" and getattr(thread, "_target", None) == line._run:
            thread.join(LONG)
            return not thread.is_alive()
    return True


def test_no_connection_is_opened_in_the_callers_time(engine: sa.Engine) -> None:
    fill(engine, tasks(), [{"task_id": 1, "identifier": "a", "state": "x"}])
    opened_by: list[str] = []
    fresh = sa.create_engine(engine.url)
    sa.event.listen(fresh, "connect", lambda *_: opened_by.append(threading.current_thread().name))
    source = SqlSource(fresh, "tasks", "identifier")
    with pytest.raises(Skipped):
        source.with_work(["a"], LONG)
    source.warm_up(LONG)
    assert source.with_work(["a"], LONG) == {"a"}
    assert opened_by == ["workstealing-source"]
    # The application's pool is as large as before.
    assert fresh.pool.checkedout() == 0  # type: ignore[attr-defined]
    source.close()
    fresh.dispose()


def test_a_connection_that_the_database_ends_is_replaced(postgres: PostgresServer) -> None:
    engine = postgres.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS kept (id int PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO kept VALUES (1) ON CONFLICT DO NOTHING")
    source = SqlSource(postgres.engine(connect_args={"application_name": "to be ended"}), "kept")
    source.warm_up(LONG)
    assert source.with_work(["1", "2"], LONG) == {"1"}
    with engine.begin() as connection:
        ended_ones = connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity"
            " WHERE application_name = 'to be ended'"
        ).all()
    assert len(ended_ones) == 1
    with pytest.raises(sa.exc.OperationalError):
        source.with_work(["1"], LONG)
    with pytest.raises(Skipped):
        source.with_work(["1"], LONG)
    source.warm_up(LONG)
    assert source.with_work(["1"], LONG) == {"1"}
    source.close()


def test_the_time_to_warm_up_is_seconds_or_a_timedelta(tmp_path: Path) -> None:
    source = SqlSource(sa.create_engine(f"sqlite:///{tmp_path / 'rows'}"), "rows")
    for wrong in (-1, dt.timedelta(seconds=-1), "5"):
        with pytest.raises(ConfigurationError, match="is no such time"):
            source.warm_up(wrong)  # type: ignore[arg-type]
    # The time is taken, and the database has no such table.
    with pytest.raises(sa.exc.NoSuchTableError):
        source.warm_up(dt.timedelta(seconds=LONG))
    source.close()


def test_a_database_that_cannot_be_reached_is_said_once_and_not_knocked_at() -> None:
    clock = ManualClock()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        engine = sa.create_engine(f"postgresql+psycopg://x@127.0.0.1:{port}/x")
        source = SqlSource(engine, "tasks", clock=clock)
        with pytest.raises(sa.exc.OperationalError):
            source.warm_up(LONG)
        for _ in range(3):
            with pytest.raises(Skipped):
                source.with_work(["a"], 1.0)
        assert source._asker._line is None
        clock.advance(1.5)
        with pytest.raises(Skipped):
            source.with_work(["a"], 1.0)
        assert source._asker._line is not None


def test_bad_arguments_are_refused(engine: sa.Engine) -> None:
    table = tasks(sa.Column("blob", sa.LargeBinary))
    for bad in (
        lambda: SqlSource("sqlite://", "tasks"),  # type: ignore[arg-type]
        lambda: SqlSource(sa.create_engine("sqlite://"), "tasks"),
        lambda: SqlSource(engine, 5),  # type: ignore[arg-type]
        lambda: SqlSource(engine, table, "nothing"),
        lambda: SqlSource(engine, table, "blob"),
        lambda: SqlSource(engine, table, "task_id", cursor="blob"),
        lambda: SqlSource(engine, table, "task_id", where={"nothing": 1}),
    ):
        with pytest.raises(ConfigurationError):
            bad()


def test_a_table_that_is_not_there_is_said(engine: sa.Engine) -> None:
    source = SqlSource(engine, "nothing")
    with pytest.raises(sa.exc.NoSuchTableError):
        source.warm_up(LONG)


def test_one_shared_connection_in_memory() -> None:
    engine = sa.create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    fill(engine, tasks(), [{"task_id": 1, "identifier": "a", "state": "x"}])
    source = SqlSource(engine, "tasks", "identifier")
    source.warm_up(LONG)
    assert source.with_work(["a"], LONG) == {"a"}


# ---- the thread that asks ------------------------------------------------------------------------


class Connections:
    """Connections of nothing, counted."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = threading.Semaphore(0)

    def open(self) -> int:
        self.opened += 1
        return self.opened

    def close(self, connection: int) -> None:
        self.closed.release()


def test_a_database_that_falls_silent_holds_nobody() -> None:
    clock, connections = ManualClock(), Connections()
    asker: Asker[int] = Asker(connections.open, connections.close, clock)
    asker.warm_up(LONG)
    silence = threading.Event()
    with pytest.raises(OutOfTime):
        asker.ask(lambda _: silence.wait(LONG), 0.0)
    # Nobody else is caught by it, and no second one is opened beside it.
    for _ in range(3):
        with pytest.raises(Skipped):
            asker.ask(lambda connection: connection, LONG)
    assert connections.opened == 1
    silence.set()
    assert connections.closed.acquire(timeout=LONG)
    asker.warm_up(LONG)
    assert asker.ask(lambda connection: connection, LONG) == 2


def test_a_database_that_stays_silent_is_given_up() -> None:
    clock, connections = ManualClock(), Connections()
    asker: Asker[int] = Asker(connections.open, connections.close, clock)
    asker.warm_up(LONG)
    silence = threading.Event()
    with pytest.raises(OutOfTime):
        asker.ask(lambda _: silence.wait(LONG), 0.0)
    clock.advance(61)
    with pytest.raises(Skipped):
        asker.ask(lambda connection: connection, LONG)
    asker.warm_up(LONG)
    assert asker.ask(lambda connection: connection, LONG) == 2
    silence.set()


def test_after_an_error_the_connection_is_thrown_away() -> None:
    connections = Connections()
    asker: Asker[int] = Asker(connections.open, connections.close)
    asker.warm_up(LONG)
    with pytest.raises(ZeroDivisionError):
        asker.ask(lambda _: 1 // 0, LONG)
    assert connections.closed.acquire(timeout=LONG)
    with pytest.raises(Skipped):
        asker.ask(lambda connection: connection, LONG)
    asker.warm_up(LONG)
    assert asker.ask(lambda connection: connection, LONG) == 2


def test_a_child_opens_its_own() -> None:
    connections = Connections()
    asker: Asker[int] = Asker(connections.open, connections.close)
    asker.warm_up(LONG)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                asker.ask(lambda connection: connection, LONG)
            except Skipped:
                asker.warm_up(LONG)
                code = 0 if asker.ask(lambda connection: connection, LONG) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asker.ask(lambda connection: connection, LONG) == 1


def test_warming_up_waits_for_a_question_that_a_slice_has_left() -> None:
    connections = Connections()
    asker: Asker[int] = Asker(connections.open, connections.close)
    asker.warm_up(LONG)
    slow = threading.Event()
    with pytest.raises(OutOfTime):
        asker.ask(lambda _: slow.wait(LONG), 0.0)
    with pytest.raises(Skipped):
        asker.warm_up(0.01)
    answered = threading.Timer(0.05, slow.set)
    answered.start()
    asker.warm_up(LONG)
    assert asker.ask(lambda connection: connection, LONG) == 2
    answered.join()
