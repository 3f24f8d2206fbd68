"""The blocks of docs/dashboard.md run, and its statements are true."""

from __future__ import annotations

import re
from typing import Any

from support.dashboards import make_app
from support.pages import ROOT, running, text_of
from workstealing import Recruiter
from workstealing.cli import dashboard as command
from workstealing.dashboard import (
    presenting,
    queries,
    security,
    steering,
    views,
)

PAGE = text_of("docs/dashboard.md")


def test_the_blocks_run(client: Any, never_recruiter: Recruiter) -> None:
    here = {"redis.Redis()": "the_tests_client"}
    with running("docs/dashboard.md", replace=here) as page:
        names = page.run(the_tests_client=client, __name__=__name__)
        header = {"Authorization": "Bearer a secret of 16 characters or more"}
        shown = names["app"].test_client().get("/workstealing/", headers=header).text
        jobs = ("hash_field_expiry.items", "hash_field_expiry.ledger.default")
        for name in (*jobs, "dirty:documents"):
            assert f">{name}</bdi>" in shown
        names["ledger"].close()
        page.run()
    app = make_app(never_recruiter, client, structures=[names["mine"]])
    shown = app.test_client().get("/ws/").text
    assert "17 stale drafts" in shown
    assert "1,200" in shown


def test_the_bounds_are_those_of_the_code() -> None:
    said = " ".join(PAGE.split())
    assert (queries.FIGURES_SECONDS, queries.STRUCTURES_SECONDS) == (2, 10)
    assert "once in two seconds at most, and the structures once in ten" in said
    assert f"up to {queries.MOST_LISTED:,} of each structure" in said
    assert f"{presenting.SIZES['dead']} to a page" in said
    assert f"{presenting.SIZES['jobs']} jobs to a page" in said
    assert f'"All" means up to {steering.MOST_AT_ONCE:,} items' in said
    assert f"have at least {security.SHORTEST_TOKEN} characters" in said
    assert security.SESSION_SECONDS == 12 * 3600
    assert f"an event every {views.EVERY_SECONDS:g} seconds for 5 minutes" in said
    assert views.LASTS_SECONDS == 300
    assert f"at most {views.MOST_STREAMS} streams" in said
    assert f"http://{command.HOST}:{command.PORT}/" in said
    assert f"may give {security.TRIES} wrong tokens at once" in said
    assert f"one more every {security.EVERY_SECONDS:g} seconds" in said
    assert f"together {security.TRIES_OF_ALL} a minute" in said
    for variable in (command.TOKEN_VARIABLE, command.VIEW_TOKEN_VARIABLE):
        assert variable in said


def test_the_pictures_are_there_and_small() -> None:
    for name in re.findall(r"!\[[^]]*\]\(([^)]*)\)", PAGE):
        assert 10_000 < (ROOT / "docs" / name).stat().st_size < 200_000
