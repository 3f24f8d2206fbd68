"""An admin's actions with jobs, by forms and by programs."""

from __future__ import annotations

import json
import re
from typing import Any

import flask
import pytest

from support.dashboards import TOKEN, make_app, write_hour
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import Outcome, Recruiter
from workstealing.dashboard import Watched
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.shared_settings import Setting, SharedSettings, follow
from workstealing.structures import VolatileHashes
from workstealing.testing import always, never

ADMIN = {"Authorization": f"Bearer {TOKEN}"}
JSON = {**ADMIN, "Accept": "application/json"}


@pytest.fixture
def app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A dashboard with a job that works and one that fails."""
    never_recruiter.job(rate=0.1, name="tidy")(lambda slice: 3)

    @never_recruiter.job(rate=0.1, name="broken")
    def broken(slice: Any) -> int:
        raise ValueError("a secret of the job's")

    return make_app(never_recruiter, client, token=TOKEN)


def ids(app: flask.Flask) -> dict[str, str]:
    shown = json.loads(app.test_client().get("/ws/view.json", headers=ADMIN).text)
    return {each["name"]: each["id"] for each in shown["jobs"]}


def act(app: flask.Flask, job: str, action: str, **more: str) -> tuple[int, dict[str, str]]:
    data = {"job": ids(app).get(job, job), "action": action, **more}
    answer = app.test_client().post("/ws/jobs", data=data, headers=JSON)
    return answer.status_code, json.loads(answer.text)


def test_pause_resume_rate_and_clear_are_the_fleets(app: flask.Flask, client: Any) -> None:
    fleet = SharedSettings(client)
    assert act(app, "tidy", "pause", sure="yes")[0] == 200
    assert fleet.settings() == {"tidy": Setting(paused=True)}
    assert act(app, "tidy", "rate", rate="0.02")[0] == 200
    assert fleet.settings() == {"tidy": Setting(paused=True, rate=0.02)}
    assert act(app, "tidy", "resume")[0] == 200
    assert fleet.settings() == {"tidy": Setting(rate=0.02)}
    shown = json.loads(app.test_client().get("/ws/view.json", headers=ADMIN).text)
    tidy = next(each for each in shown["jobs"] if each["name"] == "tidy")
    assert tidy["cells"][6]["text"] == "0.1 (fleet: 0.02)"
    assert act(app, "tidy", "clear")[0] == 200
    assert fleet.settings() == {}


def test_from_a_real_ledger_to_a_process_that_follows(redis7: RedisServer) -> None:
    """A worker reports. The page, in another process, shows it and pauses it; the worker rests."""
    worker, page_recruiter = always(), never()
    worker.job(rate=0.5, name="tidy")(lambda slice: 3)
    ledger = Ledger(redis7.client())
    worker.add_hook(ledger)
    follow(worker, ledger)
    for _ in range(40):
        worker.enlist()
    worker.flush()
    assert ledger.flush(10.0)
    app = make_app(page_recruiter, redis7.client(), token=TOKEN)
    shown = json.loads(app.test_client().get("/ws/view.json", headers=ADMIN).text)
    assert shown["source"] == "fleet of 1 process"
    (tidy,) = shown["jobs"]
    assert tidy["outcomes"]["text"] == "40 worked"
    assert tidy["cells"][6]["text"] == "0.5"
    said = act(app, "tidy", "pause", sure="yes")[1]["said"]
    assert said == "tidy is paused; processes pick it up at their next flush"
    worker.enlist()
    worker.flush()
    assert ledger.flush(10.0)
    assert worker.stats()["jobs"]["tidy"]["paused"]
    assert worker.enlist() is Outcome.SKIPPED
    ledger.close()


def test_a_setting_that_nobody_will_pick_up_says_so(app: flask.Flask, client: Any) -> None:
    assert "no process writes the ledger" in act(app, "tidy", "pause", sure="yes")[1]["said"]
    write_hour(client, {"tidy": {"worked": 1}})
    act(app, "tidy", "dry_run")
    assert "no process writes the ledger" not in act(app, "tidy", "resume")[1]["said"]


def test_a_paused_job_shows_as_paused_with_a_way_back(app: flask.Flask) -> None:
    act(app, "tidy", "pause", sure="yes")
    page = app.test_client().get("/ws/", headers=ADMIN).text
    assert '<span class="badge warn">paused</span>' in page
    assert '<button name="action" value="resume">Resume</button>' in page
    assert 'data-when="running" hidden' in page


def test_a_pause_is_confirmed_once(app: flask.Flask, client: Any) -> None:
    status, answer = act(app, "tidy", "pause")
    assert (status, answer["problem"]) == (409, "nothing was paused: confirm the pause first")
    assert SharedSettings(client).settings() == {}
    # The page's own form is behind one question, and answers it.
    page = app.test_client().get("/ws/", headers=ADMIN).text
    forms = re.findall(r"<form(.*?)</form>", page, re.S)
    jobs = [form for form in forms if 'action="/ws/jobs"' in form]
    pausing = [form for form in jobs if 'value="pause"' in form]
    assert len(pausing) == 3  # two jobs, and the template for more
    for form in pausing:
        assert 'name="sure" value="yes"' in form
        assert "Pause it in every process of the fleet?" in form
    assert act(app, "tidy", "pause", sure="yes")[0] == 200


@pytest.mark.parametrize(
    "rate", ["", "0", "-1", "1.5", "nan", "inf", "x", "<b>", "1e-400", "0_0.5", "\u0660.\u0665"]
)
def test_what_is_no_rate_changes_nothing(app: flask.Flask, client: Any, rate: str) -> None:
    status, answer = act(app, "tidy", "rate", rate=rate)
    assert status == 409
    assert "is no rate" in answer["problem"]
    assert SharedSettings(client).settings() == {}


def test_one_slice_runs_in_this_process(app: flask.Flask, never_recruiter: Recruiter) -> None:
    assert act(app, "tidy", "run") == (
        200,
        {"said": "one slice of tidy: worked, 3 items", "problem": ""},
    )
    assert never_recruiter.stats()["jobs"]["tidy"]["worked"] == 1


def test_a_slice_that_fails_does_not_show_its_error(app: flask.Flask) -> None:
    status, answer = act(app, "broken", "run")
    assert status == 409
    assert answer["problem"] == "one slice of broken failed; the log says why"


def test_a_dry_run_counts_and_changes_nothing(never_recruiter: Recruiter, client: Any) -> None:
    VolatileHashes(client, namespace="items").hsetex("a", mapping={"x": 1, "y": 2}, ex=30)
    late = VolatileHashes(client, namespace="items", clock_shift_ms=60_000)
    never_recruiter.install(HashFieldExpiry(late), rate=0.1, seconds=5.0)
    app = make_app(never_recruiter, client, token=TOKEN)
    name = "hash_field_expiry.items"
    for _ in range(2):
        status, answer = act(app, name, "dry_run")
        assert status == 200
        assert answer["said"] == f"{name}: a slice would handle 2 fields now"
    assert never_recruiter.stats()["jobs"][name]["recruited"] == 0


def test_a_job_without_a_dry_run_says_so(app: flask.Flask) -> None:
    status, answer = act(app, "tidy", "dry_run")
    assert status == 409
    assert "dry run" in answer["problem"]


def test_a_job_of_other_processes_is_steered_and_not_run_here(
    app: flask.Flask, client: Any
) -> None:
    write_hour(client, {"elsewhere": {"worked": 3}})
    act(app, "tidy", "dry_run")
    assert act(app, "elsewhere", "pause", sure="yes")[0] == 200
    assert SharedSettings(client).settings()["elsewhere"].paused
    for action in ("run", "dry_run"):
        status, answer = act(app, "elsewhere", action)
        assert status == 409
        assert "not installed in this process" in answer["problem"]


def test_a_setting_of_a_job_that_nobody_runs_can_be_cleared(app: flask.Flask, client: Any) -> None:
    SharedSettings(client).pause("long gone")
    assert act(app, "long gone", "clear")[0] == 200
    assert SharedSettings(client).settings() == {}


@pytest.mark.parametrize("action", ["", "uninstall", "stats", "__class__"])
def test_other_actions_are_none(app: flask.Flask, action: str) -> None:
    status, answer = act(app, "tidy", action)
    assert status == 409
    assert "this action is unknown" in answer["problem"]


def test_a_job_that_is_not_known_is_not_steered(app: flask.Flask, client: Any) -> None:
    for job in ("", "tidy2", "0" * 24):
        status, answer = act(app, job, "pause", sure="yes")
        assert status == 409
        assert answer["problem"] == "this job is not known any more"
    assert SharedSettings(client).settings() == {}


def test_a_server_that_is_gone_is_a_sentence(never_recruiter: Recruiter, client: Any) -> None:
    never_recruiter.job(rate=0.1, name="tidy")(lambda slice: 3)
    app = make_app(never_recruiter, client, token=TOKEN)
    known = ids(app)["tidy"]

    def gone(*_: Any, **__: Any) -> None:
        raise ConnectionError("redis://user:secret@host")

    client.execute_command = gone
    data = {"job": known, "action": "pause", "sure": "yes"}
    answer = app.test_client().post("/ws/jobs", data=data, headers=JSON)
    assert answer.status_code == 409
    assert json.loads(answer.text)["problem"] == "pause of tidy failed: ConnectionError"


class Drawer:
    """Items that a user's own structure may set aside: text, bytes, numbers."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)

    def dead(self, n: int = 100) -> list[Any]:
        """List up to n items."""
        return self.items[:n]

    def revive(self, *members: Any) -> int:
        """Take items out if their kind is the same, too."""
        found = [each for each in self.items if (type(each), each) in _kinds(members)]
        self.items = [each for each in self.items if each not in found]
        return len(found)

    discard = revive


def _kinds(members: Any) -> set[Any]:
    return {(type(each), each) for each in members}


@pytest.mark.parametrize("item", ["text", b"bytes", 7, "\udc80", "x" * 1000], ids=repr)
def test_an_item_of_a_users_own_structure_comes_back_as_it_was(
    never_recruiter: Recruiter, client: Any, item: Any
) -> None:
    drawer = Drawer(item, "another one")
    mine = Watched(name="mine", kind="drawer", dead=lambda: [("", drawer)])
    app = make_app(never_recruiter, client, token=TOKEN, structures=[mine])
    shown = json.loads(app.test_client().get("/ws/view.json", headers=ADMIN).text)["dead"]
    key = next(each["key"] for each in shown["items"] if each["member"] != "another one")
    data = {"structure": shown["sets"][0]["id"], "item": key, "action": "revive"}
    answer = app.test_client().post("/ws/dead", data=data, headers=JSON)
    assert answer.status_code == 200
    assert drawer.items == ["another one"]
    # A second click, or another admin's, finds nothing.
    assert app.test_client().post("/ws/dead", data=data, headers=JSON).status_code == 409
    assert drawer.items == ["another one"]
