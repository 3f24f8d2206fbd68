"""docs/tracked_ids.md says what is so."""

from __future__ import annotations

import re

import pytest

from support.pages import blocks_of, run_page, text_of
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.postgres import PostgresServer
from support.servers import RedisServer
from workstealing.recruiting import Slice
from workstealing.structures import TrackedSet

PAGE = text_of("docs/tracked_ids.md")


@pytest.mark.real
def test_the_code_runs(redis7: RedisServer, postgres: PostgresServer) -> None:
    with postgres.engine().begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS tasks")
        connection.exec_driver_sql(
            "CREATE TABLE tasks (task_id int PRIMARY KEY, identifier text, state text)"
        )
        connection.exec_driver_sql("INSERT INTO tasks VALUES (1, 'item18', 'running')")
    mine = {
        "redis.Redis()": "of_the_test",
        "postgresql+psycopg://localhost/tasks": postgres.url,
    }
    given = {"of_the_test": redis7.client()}
    scope = run_page("docs/tracked_ids.md", given, replace=mine)
    tracked: TrackedSet = scope["tracked"]
    assert tracked.are_tracked(["item17", "item18"]) == [False, True]
    tracked.track("item19")
    scope["source"].warm_up(20.0)
    job = scope["UntrackDone"](tracked)
    for _ in range(2000):
        if job.perform(Slice(5, 20.0)):
            break
    assert tracked.are_tracked(["item18", "item19"]) == [True, False]
    scope["source"].close()


def test_every_claimed_value_is_what_comes_back(redis7: RedisServer) -> None:
    (block,) = blocks_of("docs/tracked_ids.md")
    claims = re.findall(r"^(tracked\.\S.*?)  # (\w+)", block.code, re.MULTILINE)
    assert len(claims) == 3
    tracked = TrackedSet(redis7.client(), "queued")
    for call, value in claims:
        assert repr(eval(call, {"tracked": tracked})) == value


def test_every_method_is_named() -> None:
    table = PAGE.split("| method |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)\(", table))
    public = {"is_tracked", "are_tracked", "track", "untrack", "count", "pipeline", "drift"} | {
        "resume"
    }
    assert named == public
    assert all(hasattr(TrackedSet, name) for name in public)
