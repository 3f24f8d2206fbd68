"""docs/sql_expiry.md says what is so."""

from __future__ import annotations

import inspect
import re

import sqlalchemy as sa

from support.pages import run_page, text_of
from support.postgres import PostgresServer
from workstealing.jobs import SqlExpiry
from workstealing.recruiting import Slice

PAGE = text_of("docs/sql_expiry.md")


def test_the_code_runs(postgres: PostgresServer) -> None:
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS django_session")
        connection.exec_driver_sql(
            "CREATE TABLE django_session (session_key varchar(40) PRIMARY KEY,"
            " session_data text, expire_date timestamptz)"
        )
        connection.exec_driver_sql("CREATE INDEX ON django_session (expire_date)")
        connection.exec_driver_sql(
            "INSERT INTO django_session VALUES ('a', '', now() - interval '6 minutes'),"
            " ('b', '', now() - interval '4 minutes'), ('c', '', now() + interval '1 day')"
        )
    mine = {
        "postgresql+psycopg://localhost/shop": postgres.url,
        "job.connect()": "job.connect(60.0)",
        "job.backlog()": "backlog = job.backlog(60.0)",
    }
    scope = run_page("docs/sql_expiry.md", replace=mine)
    job, backlog = scope["job"], scope["backlog"]
    assert (backlog.count, backlog.what, backlog.exact) == (1, "rows past their deadline", True)
    assert job.perform(Slice(5, 60.0)) == 1
    assert job.perform(Slice(5, 60.0)) == 1, "it was a dry run"
    job.dry_run = False
    assert job.perform(Slice(5, 60.0)) == 1
    with postgres.engine().connect() as connection:
        left = connection.execute(sa.text("SELECT session_key FROM django_session ORDER BY 1"))
        assert list(left.scalars()) == ["b", "c"]
    job.close()


def test_every_argument_is_named() -> None:
    table = PAGE.split("| argument |")[1].split("\n\n")[0]
    first = re.findall(r"^\| (.*?) \|", table.partition("\n")[2], re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(first)))
    assert named == set(inspect.signature(SqlExpiry).parameters) - {"clock"}


def test_the_rights_that_the_page_names_are_enough(postgres: PostgresServer) -> None:
    assert "needs SELECT and DELETE on the table, and on PostgreSQL UPDATE too" in PAGE
    with postgres.engine().begin() as connection:
        for line in (
            "DROP TABLE IF EXISTS invitations",
            "DROP ROLE IF EXISTS expirer",
            "CREATE TABLE invitations (id int PRIMARY KEY, ends timestamptz)",
            "CREATE INDEX ON invitations (ends)",
            "INSERT INTO invitations VALUES (1, now() - interval '1 hour')",
            "CREATE ROLE expirer LOGIN",
            # A schema that another test has made anew is not everybody's.
            "GRANT USAGE ON SCHEMA public TO expirer",
            "GRANT SELECT ON invitations TO expirer",
        ):
            connection.exec_driver_sql(line)
    engine = sa.create_engine(sa.engine.make_url(postgres.url).set(username="expirer"))
    done: list[object] = []
    for dry_run, more in ((True, "DELETE"), (False, "UPDATE"), (False, "DELETE")):
        job = SqlExpiry(engine, "invitations", "ends", dry_run=dry_run)
        job.connect(60.0)
        try:
            done.append(job.perform(Slice(5, 60.0)))
        except sa.exc.ProgrammingError:
            done.append("refused")
        job.close()
        with postgres.engine().begin() as connection:
            connection.exec_driver_sql(f"GRANT {more} ON invitations TO expirer")
    engine.dispose()
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("DROP TABLE invitations")
        connection.exec_driver_sql("DROP OWNED BY expirer")
        connection.exec_driver_sql("DROP ROLE expirer")
    assert done == [1, "refused", 1]
