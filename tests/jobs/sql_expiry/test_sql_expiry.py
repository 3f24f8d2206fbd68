"""SqlExpiry on SQLite and PostgreSQL: which rows go, which stay, and who waits for whom."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from support.at_once import at_once
from support.postgres import PostgresServer
from workstealing import Outcome, Recruiter
from workstealing.errors import Aborted, ConfigurationError, OutOfTime, Skipped, blamed
from workstealing.jobs import SqlExpiry
from workstealing.recruiting import Slice
from workstealing.recruiting.job import dry_run_of

LONG = 60.0
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)

JobOn = Callable[..., SqlExpiry]


def utc_now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def rows_of(kind: Any, *, index: bool = True, key: str = "id") -> sa.Table:
    return sa.Table(
        "rows",
        sa.MetaData(),
        sa.Column(key, sa.Integer, primary_key=True),
        sa.Column("due", kind, index=index),
        sa.Column("state", sa.Text),
    )


def fill(engine: sa.Engine, table: sa.Table, dues: list[Any], state: str = "x") -> None:
    table.metadata.create_all(engine)
    rows = [{"id": i, "due": due, "state": state} for i, due in enumerate(dues)]
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)


def ids(engine: sa.Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT id FROM rows ORDER BY id").scalars())


def aware() -> sa.DateTime:
    return sa.DateTime(timezone=True)


def test_a_slice_takes_the_oldest_rows_and_leaves_the_others(
    engine: sa.Engine, job_on: JobOn
) -> None:
    now = utc_now()
    dues = [now - (9 - i) * HOUR for i in range(9)] + [None, now + HOUR, now + DAY]
    fill(engine, rows_of(aware()), dues)
    job = job_on("rows", "due", 4)
    assert job.backlog(LONG).count == 9
    assert job.backlog(LONG).exact
    seen = []
    for _ in range(4):
        slice = Slice(4, LONG)
        seen.append((job.perform(slice), slice.backlog, len(ids(engine))))
    assert seen == [(4, None, 8), (4, None, 4), (1, 1, 3), (0, 0, 3)]
    assert ids(engine) == [9, 10, 11]
    assert job.backlog(LONG).count == 0


def test_durations_are_seconds_or_timedeltas(engine: sa.Engine, job_on: JobOn) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR])
    job = job_on("rows", "due")
    job.connect(dt.timedelta(seconds=LONG))
    assert job.backlog(dt.timedelta(seconds=LONG)).count == 1
    for call in (job.connect, job.backlog):
        for wrong in (-1, dt.timedelta(seconds=-1), "5", None):
            with pytest.raises(ConfigurationError, match="is no such time"):
                call(wrong)


def test_ages_are_those_of_the_oldest_row(engine: sa.Engine, job_on: JobOn) -> None:
    now = utc_now()
    fill(engine, rows_of(aware()), [now - 2 * HOUR, now - 3 * HOUR])
    job = job_on("rows", "due", grace=HOUR)
    slice = Slice(1, LONG)
    backlog = job.backlog(LONG)
    assert job.perform(slice) == 1
    assert slice.oldest_seconds is not None
    assert 7200 <= slice.oldest_seconds < 7200 + 600
    assert backlog.oldest_seconds is not None
    assert 7200 <= backlog.oldest_seconds < 7200 + 600
    assert ids(engine) == [0]


def test_a_dry_run_is_the_default_and_says_so_once(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR] * 3)
    job = SqlExpiry(engine, "rows", "due")
    job.connect(LONG)
    with caplog.at_level(logging.WARNING, "workstealing.jobs"):
        assert [job.perform(Slice(2, LONG)) for _ in range(2)] == [2, 2]
    (line,) = caplog.messages
    assert "sql_expiry.rows" in line
    assert "dry_run=False" in line
    assert ids(engine) == [0, 1, 2]
    job.close()
    real = SqlExpiry(engine, "rows", "due", dry_run=False)
    real.connect(LONG)
    assert dry_run_of(real).perform(Slice(2, LONG)) == 2
    assert ids(engine) == [0, 1, 2]
    assert real.perform(Slice(2, LONG)) == 2
    real.close()


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def seconds(moment: dt.datetime) -> int:
    return int((moment - EPOCH).total_seconds())


@pytest.mark.parametrize(
    ("kind", "unit", "write"),
    [
        (sa.DateTime(timezone=True), None, lambda moment: moment),
        (sa.DateTime(), None, lambda moment: moment.replace(tzinfo=None)),
        (sa.BigInteger(), "seconds", seconds),
        (sa.Float(53), "seconds", lambda moment: (moment - EPOCH).total_seconds()),
        (sa.BigInteger(), "milliseconds", lambda moment: seconds(moment) * 1000),
    ],
    ids=["aware", "naive", "seconds", "float", "milliseconds"],
)
def test_every_kind_of_time(
    engine: sa.Engine, job_on: JobOn, kind: Any, unit: str | None, write: Any
) -> None:
    now = utc_now()
    moments = [now - 50 * HOUR, now - 26 * HOUR, now - 2 * HOUR, now + 60 * dt.timedelta(seconds=1)]
    none = [EPOCH, EPOCH + 500 * DAY]
    fill(engine, rows_of(kind), [write(each) for each in [*moments, *none]] + [None])
    retained = job_on("rows", "due", unit=unit, retention=DAY, grace=HOUR)
    slice = Slice(10, LONG)
    assert retained.perform(slice) == 2
    assert slice.oldest_seconds is not None
    # Of numbers, the present is rounded down to a whole second.
    assert -1 <= slice.oldest_seconds - 25 * 3600 < 600
    assert ids(engine) == [2, 3, 4, 5, 6]
    assert job_on("rows", "due", unit=unit).perform(Slice(10, LONG)) == 1
    assert ids(engine) == [3, 4, 5, 6]


def test_a_date_is_past_after_its_whole_day(engine: sa.Engine, job_on: JobOn) -> None:
    today = utc_now().date()
    # Around the day itself nothing is said, as midnight may come meanwhile.
    fill(engine, rows_of(sa.Date()), [today - 3 * DAY, today - 2 * DAY, today + DAY])
    job = job_on("rows", "due", grace=DAY)
    slice = Slice(10, LONG)
    job.perform(slice)
    assert ids(engine)[-1] == 2
    assert 0 not in ids(engine)
    job_on("rows", "due").perform(Slice(10, LONG))
    assert ids(engine) == [2]
    fill_again = [{"id": 7, "due": utc_now().date(), "state": "x"}]
    with engine.begin() as connection:
        connection.execute(rows_of(sa.Date()).insert(), fill_again)
    before = utc_now().date()
    job_on("rows", "due").perform(Slice(10, LONG))
    if utc_now().date() == before == fill_again[0]["due"]:
        assert ids(engine) == [2, 7]


def test_seconds_declared_as_milliseconds_remove_nothing(engine: sa.Engine, job_on: JobOn) -> None:
    now = seconds(utc_now())
    fill(engine, rows_of(sa.BigInteger()), [now - 3600, now + 3600, 0])
    assert job_on("rows", "due", unit="milliseconds").perform(Slice(10, LONG)) == 0
    assert job_on("rows", "due", unit="seconds").perform(Slice(10, LONG)) == 1
    assert ids(engine) == [1, 2]


def test_rows_of_other_conditions_stay(engine: sa.Engine, job_on: JobOn) -> None:
    table = rows_of(aware())
    fill(engine, table, [utc_now() - HOUR] * 4)
    with engine.begin() as connection:
        connection.execute(table.update().where(table.c.id < 2).values(state="done"))
    job = job_on(table, "due", where={"state": ["done", "failed"]})
    assert job.backlog(LONG).count == 2
    assert job.perform(Slice(10, LONG)) == 2
    assert ids(engine) == [2, 3]
    assert job_on(table, "due", where=table.c.id == 3).perform(Slice(10, LONG)) == 1
    assert ids(engine) == [2]


def test_composite_keys_and_strange_names(engine: sa.Engine, job_on: JobOn) -> None:
    name, column = 'we"ird; DROP TABLE "x', 'select "due"; --'
    table = sa.Table(
        name,
        sa.MetaData(),
        sa.Column("a b", sa.Integer, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column(column, aware(), index=True),
    )
    table.metadata.create_all(engine)
    now, day = utc_now(), dt.date(2024, 2, 29)
    rows = [
        {"a b": i, "day": day + j * DAY, column: now + (HOUR if i == j else -HOUR)}
        for i in range(3)
        for j in range(3)
    ]
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)
    job = job_on(name, column, 4)
    assert [job.perform(Slice(4, LONG)) for _ in range(3)] == [4, 2, 0]
    with engine.connect() as connection:
        left = connection.execute(sa.select(table.c["a b"], table.c.day)).all()
    assert sorted(left) == [(i, day + i * DAY) for i in range(3)]


def test_a_table_without_a_key_or_a_column_is_refused(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE keyless (due timestamp)")
        connection.exec_driver_sql("CREATE TABLE texts (id int PRIMARY KEY, due text, n int)")
    for args, options, words in [
        (("keyless", "due"), {}, "has no primary key"),
        (("texts", "other"), {}, "has no column 'other'"),
        (("texts", "due"), {}, "holds no deadline"),
        (("texts", "n"), {}, "unit='seconds'"),
    ]:
        job = SqlExpiry(engine, *args, dry_run=False, **options)
        with pytest.raises(ConfigurationError, match=words):
            job.connect(LONG)
        job.close()
    keyless = sa.Table("keyless", sa.MetaData(), sa.Column("due", sa.DateTime))
    with pytest.raises(ConfigurationError, match="has no primary key"):
        SqlExpiry(engine, keyless, "due")


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, each) for each in (None, "postgresql://", 5)]
    + [(1, each) for each in (None, "", 5, ["rows"])]
    + [(2, each) for each in (None, "", 5, ["due"])]
    + [(3, each) for each in (None, "x", 0, -1, 2.5, True)]
    + [("unit", each) for each in ("hours", "", 1000, [], {})]
    + [("grace", each) for each in (None, "x", -1, float("nan"), float("inf"), True, -HOUR)]
    + [("retention", each) for each in (None, "x", -1, float("nan"), 10**400, -HOUR)]
    + [("where", each) for each in ("id = 1", 5, ["id"], True)]
    + [("schema", each) for each in (5, b"x", ["x"])]
    + [("name", each) for each in ("", 5, ["x"])],
)
def test_a_wrong_argument_is_refused_by_its_name(place: int | str, value: Any) -> None:
    args: list[Any] = [sa.create_engine("sqlite:///nowhere.sqlite"), "rows", "due", 5]
    options: dict[str, Any] = {}
    if isinstance(place, int):
        args[place] = value
    else:
        options[place] = value
    named = place if isinstance(place, str) else ("engine", "table", "column", "limit")[place]
    with pytest.raises(ConfigurationError, match=named):
        SqlExpiry(*args, **options)


def test_a_column_without_an_index_is_a_warning(
    engine: sa.Engine, job_on: JobOn, caplog: pytest.LogCaptureFixture
) -> None:
    table = rows_of(aware(), index=False)
    fill(engine, table, [utc_now() - HOUR])
    with caplog.at_level(logging.WARNING, "workstealing.jobs"):
        job = job_on("rows", "due")
    assert "no index begins with its column 'due'" in caplog.text
    assert job.perform(Slice(5, LONG)) == 1
    caplog.clear()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX due_of_rows ON rows (due, state)")
    with caplog.at_level(logging.WARNING, "workstealing.jobs"):
        # The database knows of an index that this Table has not declared.
        job_on(table, "due")
    assert not caplog.messages


def test_the_slice_reads_by_the_index(engine: sa.Engine, job_on: JobOn) -> None:
    now = utc_now()
    fill(engine, rows_of(aware()), [now + (i - 20) * HOUR for i in range(3000)])
    statements: dict[str, Any] = {}
    sa.event.listen(
        engine,
        "before_cursor_execute",
        lambda conn, cursor, statement, values, *_: statements.update({statement: values}),
    )
    job = job_on("rows", "due", 5)
    assert job.perform(Slice(5, LONG)) == 5
    ((select, values),) = [
        each
        for each in statements.items()
        if each[0].startswith("SELECT") and "FROM rows" in each[0]
    ]
    (delete,) = [each for each in statements if each.startswith("DELETE")]
    assert ("SKIP LOCKED" in select) == (engine.dialect.name == "postgresql")
    assert "due <" in delete.replace("rows.", "")
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE rows")
            plain = select.partition("FOR UPDATE")[0].replace("%(param_1)s::INTEGER", "5")
            told = connection.exec_driver_sql(f"EXPLAIN {plain}").all()
            assert any("Index" in str(row) and "Scan" in str(row) for row in told)
            assert not any("Seq Scan" in str(row) for row in told)
        else:
            told = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {select}", values).all()
            assert any("INDEX ix_rows_due (due>? AND due<?)" in str(row) for row in told)


def test_without_a_connection_a_slice_is_skipped_and_then_works(engine: sa.Engine) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR])
    job = SqlExpiry(engine, "rows", "due", dry_run=False)
    with pytest.raises(Skipped):
        job.perform(Slice(5, LONG))
    job.connect(LONG)
    assert job.perform(Slice(5, LONG)) == 1
    job.close()


def test_a_busy_pool_holds_nobody_up(engine: sa.Engine) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR])
    small = sa.create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=LONG)
    job = SqlExpiry(small, "rows", "due", dry_run=False)
    with small.connect():
        for _ in range(3):
            with pytest.raises(Skipped):
                job.perform(Slice(5, LONG))
    job.connect(LONG)
    with small.connect():
        # Its connection is its own, so the application has all of its pool.
        assert job.perform(Slice(5, LONG)) == 1
    job.close()
    small.dispose()


def test_no_slice_outlasts_its_time(engine: sa.Engine, job_on: JobOn) -> None:
    table = rows_of(aware())
    fill(engine, table, [utc_now() - HOUR] * 300)
    others = [table.alias() for _ in range(4)]
    crossed = (
        sa.select(sa.func.count())
        .select_from(others[0])
        .join(others[1], sa.true())
        .join(others[2], sa.true())
        .join(others[3], sa.true())
        .scalar_subquery()
    )
    job = job_on(table, "due", where=crossed > 1)
    with pytest.raises(OutOfTime):
        job.perform(Slice(5, 0.05))
    # The database has ended the statement itself, so the connection serves the next question.
    job.connect(LONG)
    assert len(ids(engine)) == 300


def test_a_table_is_misdescribed_by_its_user(engine: sa.Engine, job_on: JobOn) -> None:
    # The database's own type counts: this one has a zone, and the Table says it has none.
    fill(engine, rows_of(aware()), [utc_now() - HOUR, utc_now() + 60 * dt.timedelta(seconds=1)])
    job = job_on(rows_of(sa.DateTime()), "due")
    if engine.dialect.name == "postgresql":
        zoned = sa.create_engine(
            engine.url, connect_args={"options": "-c timezone=America/New_York"}
        )
        job = job_on(rows_of(sa.DateTime()), "due", on=zoned)
    assert job.perform(Slice(5, LONG)) == 1
    assert ids(engine) == [1]


def test_naive_times_are_utc_in_any_session(postgres: PostgresServer, job_on: JobOn) -> None:
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    for zone in ("America/New_York", "Asia/Tokyo"):
        zoned = postgres.engine(connect_args={"options": f"-c timezone={zone}"})
        with zoned.begin() as connection:
            connection.exec_driver_sql("DROP TABLE IF EXISTS rows")
        now = utc_now().replace(tzinfo=None)
        fill(zoned, rows_of(sa.DateTime()), [now - HOUR / 2, now + HOUR / 2])
        slice = Slice(5, LONG)
        assert job_on("rows", "due", on=zoned).perform(slice) == 1
        assert slice.oldest_seconds is not None
        assert 1800 <= slice.oldest_seconds < 2400
        assert ids(zoned) == [1]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_text_in_sqlite_is_judged_by_its_meaning(engine: sa.Engine, job_on: JobOn) -> None:
    now = utc_now()

    def text(moment: dt.datetime, shape: str = "%Y-%m-%d %H:%M:%S") -> str:
        return moment.strftime(shape)

    west, east = dt.timezone(-5 * HOUR), dt.timezone(5 * HOUR)
    values = [
        text(now - HOUR),  # as Django writes a whole second
        text(now - HOUR, "%Y-%m-%d %H:%M:%S.%f"),
        text((now - 30 * HOUR).astimezone(east), "%Y-%m-%dT%H:%M:%S+05:00"),
        # Not past, although the text is lower than now's.
        text((now + HOUR).astimezone(west), "%Y-%m-%d %H:%M:%S-05:00"),
        text(now + HOUR),
        "1999-99-99 soon",
        "0000-00-00 00:00:00",
        1234567890,
        b"1999-01-01 00:00:00",
        "",
    ]
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE rows (id INTEGER PRIMARY KEY, due DATETIME)")
        connection.exec_driver_sql("CREATE INDEX i ON rows (due)")
        for i, value in enumerate(values):
            connection.exec_driver_sql("INSERT INTO rows VALUES (?, ?)", (i, value))
    assert job_on("rows", "due").perform(Slice(20, LONG)) == 3
    assert ids(engine) == list(range(3, 10))


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_key_is_deleted_as_it_is_stored(engine: sa.Engine, job_on: JobOn) -> None:
    # SQLAlchemy would write this key with ".000000" behind it, and find no row.
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE rows (id DATETIME PRIMARY KEY, due DATETIME)")
        connection.exec_driver_sql(
            "INSERT INTO rows VALUES ('2020-01-02 03:04:05', '2020-01-02 03:04:05')"
        )
    assert job_on("rows", "due").perform(Slice(20, LONG)) == 1
    assert ids(engine) == []


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_row_renewed_between_look_and_delete_stays(engine: sa.Engine, job_on: JobOn) -> None:
    table = rows_of(aware())
    fill(engine, table, [utc_now() - HOUR] * 3)
    renewed = [0, 1, 2]

    def renew(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            with other.begin() as connection:
                connection.execute(
                    table.update().where(table.c.id.in_(renewed)).values(due=utc_now() + HOUR)
                )

    other = sa.create_engine(engine.url)
    sa.event.listen(engine, "before_cursor_execute", renew)
    job = job_on("rows", "due")
    with pytest.raises(Aborted):
        job.perform(Slice(5, LONG))
    assert ids(engine) == [0, 1, 2]
    with other.begin() as connection:
        connection.execute(table.update().values(due=utc_now() - HOUR))
    renewed[:] = [1]
    assert job.perform(Slice(5, LONG)) == 2
    assert ids(engine) == [1]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_locked_file_aborts_at_once(engine: sa.Engine, job_on: JobOn) -> None:
    table = rows_of(aware())
    fill(engine, table, [utc_now() - HOUR])
    job = job_on("rows", "due")
    other = sa.create_engine(engine.url)
    with other.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        # The time-out of the driver is five seconds, and a slice has a minute here.
        with pytest.raises(Aborted):
            job.perform(Slice(5, LONG))
        connection.rollback()
    assert job.perform(Slice(5, LONG)) == 1


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_commit_that_a_reader_forbids_leaves_nothing_behind(
    engine: sa.Engine, job_on: JobOn
) -> None:
    table = rows_of(aware())
    fill(engine, table, [utc_now() - HOUR] * 500)
    job = job_on("rows", "due")
    with contextlib.closing(sqlite3.connect(str(engine.url.database), timeout=0)) as reader:
        # A look that has not ended holds a lock that lets others write, but not commit.
        look = reader.execute("SELECT * FROM rows")
        look.fetchone()
        with pytest.raises(Aborted):
            job.perform(Slice(5, LONG))
        look.close()
        assert ids(engine) == list(range(500))
        # Nobody waits for the slice that has ended.
        reader.execute("UPDATE rows SET state = 'y'")
        reader.commit()
    assert job.perform(Slice(5, LONG)) == 5
    assert len(ids(engine)) == 495


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_locked_rows_are_passed_over_and_ours_are_locked(engine: sa.Engine, job_on: JobOn) -> None:
    table = rows_of(aware())
    fill(engine, table, [utc_now() - HOUR] * 6)
    job, tried = job_on("rows", "due"), []

    def renew(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            with engine.connect() as connection:
                query = sa.select(table.c.id).with_for_update(skip_locked=True)
                tried.extend(connection.execute(query).all())

    sa.event.listen(engine, "before_cursor_execute", renew)
    with engine.connect() as connection:
        connection.execute(
            table.update().where(table.c.id.in_([0, 3])).values(due=utc_now() + HOUR)
        )
        assert job.perform(Slice(10, LONG)) == 4
        connection.commit()
    # Between its look and its delete nobody can renew a row: the job has locked it.
    assert tried == []
    assert job.perform(Slice(10, LONG)) == 0
    assert ids(engine) == [0, 3]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_locked_table_and_a_locked_child_abort(engine: sa.Engine, job_on: JobOn) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR])
    job = job_on("rows", "due")
    with engine.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE rows IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Aborted):
            job.perform(Slice(5, LONG))
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE children (id int PRIMARY KEY,"
            " row_id int REFERENCES rows ON DELETE CASCADE)"
        )
        connection.exec_driver_sql("INSERT INTO children VALUES (1, 0)")
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1 FROM children FOR UPDATE")
        with pytest.raises(Aborted):
            job.perform(Slice(5, LONG))
    assert ids(engine) == [0]
    assert job.perform(Slice(5, LONG)) == 1


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_two_recruits_at_once_remove_each_row_once(engine: sa.Engine, job_on: JobOn) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR] * 400)
    removed: list[int] = []

    def work(job: SqlExpiry) -> Callable[[], None]:
        def run() -> None:
            # A wait of more than 10 ms for a lock would be an Aborted, which fails the test.
            removed.extend(job.perform(Slice(10, LONG)) for _ in range(30))

        return run

    at_once([work(job_on("rows", "due")), work(job_on("rows", "due"))])
    assert sum(removed) == 400
    assert ids(engine) == []


def test_a_dead_database_is_a_fault_and_blamed_without_a_password() -> None:
    engine = sa.create_engine(
        "postgresql+psycopg://someone:geheim@127.0.0.1:1/shop?password=geheim&connect_timeout=2"
    )
    job = SqlExpiry(engine, "rows", "due", dry_run=False)
    assert job.dependency == ("sql", "postgresql+psycopg://someone@127.0.0.1:1/shop")
    assert "geheim" not in repr(job)
    with pytest.raises(sa.exc.OperationalError) as caught:
        job.connect(LONG)
    assert blamed(caught.value) == job.dependency
    with pytest.raises(ConfigurationError, match="share one connection"):
        SqlExpiry(
            sa.create_engine(
                "sqlite://",
                poolclass=sa.pool.StaticPool,
                connect_args={"check_same_thread": False},
            ),
            "rows",
            "due",
        )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_connection_that_is_cut_fails_the_slice_and_is_replaced(
    engine: sa.Engine, job_on: JobOn
) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR])
    job = job_on("rows", "due")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    with pytest.raises(sa.exc.OperationalError) as caught:
        job.perform(Slice(5, LONG))
    assert blamed(caught.value) == job.dependency
    job.connect(LONG)
    assert job.perform(Slice(5, LONG)) == 1


def test_a_recruiter_performs_it(engine: sa.Engine, job_on: JobOn) -> None:
    fill(engine, rows_of(aware()), [utc_now() - HOUR] * 3)
    recruiter = Recruiter(random=lambda: 0.0)
    recruiter.install(job_on("rows", "due", 2), rate=1.0, seconds=LONG)
    outcomes = []
    end = time.monotonic() + LONG
    while ids(engine) and time.monotonic() < end:
        outcomes.append(recruiter.enlist())
    assert outcomes.count(Outcome.WORKED) == 2
    assert ids(engine) == []
