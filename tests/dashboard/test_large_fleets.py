"""A page stays small and shows the worst, however many jobs and structures there are."""

from __future__ import annotations

import json
from typing import Any

import flask
import pytest

from support.dashboards import HOSTILE, TOKEN, make_app, write_hour
from workstealing import Recruiter
from workstealing.dashboard import Backlog, Watched
from workstealing.dashboard.presenting import SIZES
from workstealing.dashboard.watched import DeadItem

ADMIN = {"Authorization": f"Bearer {TOKEN}"}
LARGEST = 330_000
JOBS = 1500


class Box:
    """Ten dead items with a long payload and a long name."""

    def dead(self, n: int = 100) -> list[DeadItem]:
        """List up to n."""
        long = "\u202e\U0001f600" * 500
        return [
            DeadItem(f"{long}{k}", 3, (1e9 + k,), payload=long, tenant=long, error=long)
            for k in range(min(n, 10))
        ]


@pytest.fixture
def app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A fleet of 1,500 jobs and as many structures, all of them in trouble."""
    names = [f"hash_field_expiry.tenant {n:04} \u202e{HOSTILE['script']}" for n in range(JOBS)]
    for name in names:
        never_recruiter.job(rate=0.0001, name=name)(lambda slice: 1)
    figures = {"failed": 30, "oldest.0": 5.0}
    write_hour(client, dict.fromkeys(names[: JOBS // 2], figures), minutes=2)
    worst = {"failed": 30, "oldest.0": lambda minute: 1000.0 + 60.0 * minute}
    write_hour(client, {"the worst": worst})
    structures = [
        Watched(name, "own", lambda: 1, lambda: Backlog(1, 1e5, "things"), lambda: [("", Box())])
        for name in names[:60]
    ]
    return make_app(never_recruiter, client, token=TOKEN, structures=structures)


@pytest.mark.slow
def test_the_page_and_each_of_its_events_stay_small(app: flask.Flask) -> None:
    browser = app.test_client()
    for query in ("", "?jobs_page=7&structures_page=3&dead_page=5", "?jobs=tenant&dead=x"):
        page = browser.get(f"/ws/{query}", headers=ADMIN)
        assert page.status_code == 200
        assert len(page.data) < LARGEST
        assert len(browser.get(f"/ws/view.json{query}", headers=ADMIN).data) < LARGEST / 2
        stream = browser.get(
            f"/ws/events{query}", headers=ADMIN, environ_overrides={"wsgi.multithread": False}
        )
        assert len(stream.data) < LARGEST / 2


@pytest.mark.slow
def test_the_worst_comes_first_and_each_can_be_reached(app: flask.Flask) -> None:
    browser = app.test_client()

    def ask(query: str = "") -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(browser.get(f"/ws/view.json{query}", headers=ADMIN).text)
        return shown

    shown = ask()
    assert shown["jobs"][0]["name"] == "the worst"
    assert len(shown["jobs"]) == SIZES["jobs"]
    assert shown["jobs_pager"]["rows"] == "1 to 25 of 1,501"
    assert shown["alarms"][-1].startswith("and ")
    assert shown["alarm_count"] > 50
    assert len(shown["alarms"]) < 20
    pages = [[each["id"] for each in ask(f"?jobs_page={n}")["jobs"]] for n in (1, 2, 60, 61, 62)]
    assert [len(page) for page in pages] == [25, 25, 25, 1, 1]
    assert len({each for page in pages for each in page}) == 76
    (found,) = ask("?jobs=TENANT+0123")["jobs"]
    assert "tenant 0123" in found["name"]
    assert [each["name"][:30] for each in ask("?structures=tenant+0007")["structures"]] == [
        "hash_field_expiry.tenant 0007 "
    ]
    # A job that is not on the page can be steered all the same.
    data = {"job": found["id"], "action": "pause", "sure": "yes"}
    assert browser.post("/ws/jobs", data=data, headers=ADMIN).status_code == 200
    assert ask("?jobs=tenant+0123")["jobs"][0]["paused"]
