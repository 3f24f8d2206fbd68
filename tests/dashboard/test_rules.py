"""Rules of fair queues on the page: shown, changed as `workstealing queue rule` does, refused."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from support.dashboards import HOSTILE, TOKEN, csrf_of, make_app
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import Recruiter
from workstealing.clock import UNKNOWN
from workstealing.jobs import FairQueueReaper
from workstealing.structures import FairQueue
from workstealing.structures.fair_queue import AccountRule
from workstealing.testing import never

ADMIN = {"Authorization": f"Bearer {TOKEN}"}
JSON = {**ADMIN, "Accept": "application/json"}
VIEWER = "a token that only looks at it"


@pytest.fixture
def queue(redis7: RedisServer) -> FairQueue:
    made = FairQueue(redis7.client(), "jobs")
    made.set_rule("*", max_in_flight=4)
    made.set_rule("bulk-*", weight=0.5, rate=2, burst=3, max_length=100)
    made.set_rule("gone", paused=True)
    for account in ("bulk-1", "gone"):
        made.write("t", {"n": 1}, account=account)
    return made


@pytest.fixture
def app(queue: FairQueue) -> Any:
    recruiter = never()
    return make_app(recruiter, queue.client, token=TOKEN, view_token=VIEWER, structures=[queue])


def shown(app: Any) -> Any:
    return json.loads(app.test_client().get("/ws/view.json", headers=ADMIN).text)["rules"]


def row(app: Any, name: str) -> Any:
    return next(each for each in shown(app)["rows"] if each["name"] == name)


def act(app: Any, action: str, rule: str = "", **more: str) -> tuple[int, str]:
    page = shown(app)
    data = {"action": action, "queue": page["queues"][0]["id"], **more}
    if rule:
        data["rule"] = row(app, rule)["key"]
    answer = app.test_client().post("/ws/rules", data=data, headers=JSON)
    said = json.loads(answer.text)
    return answer.status_code, said["said"] or said["problem"]


def test_rules_and_waiting_accounts_are_shown(app: Any) -> None:
    page = shown(app)
    assert page["text"] == "3 rules"
    names = ("weight", "max_in_flight", "rate", "burst", "max_length", "paused", "kind")
    assert {each["name"]: [each[name] for name in names] for each in page["rows"]} == {
        "*": [UNKNOWN, "4", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "default of jobs"],
        "bulk-*": ["0.5", UNKNOWN, "2", "3", "100", UNKNOWN, "pattern of jobs"],
        "gone": [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "yes", "account of jobs"],
    }
    why = {each["name"]: each["why"] for each in page["waiting"]}
    assert set(why) == {"bulk-1", "gone"}
    assert "paused by the rule 'gone'" in why["gone"]
    html = app.test_client().get("/ws/", headers=ADMIN).text
    assert ">bulk-*</bdi>" in html
    assert "paused by the rule" in html


def test_a_setting_that_is_not_given_stays(app: Any, queue: FairQueue) -> None:
    status, said = act(app, "set", "bulk-*", max_in_flight="2", weight="0.25")
    assert status == 200
    assert said == (
        "the rule bulk-* of jobs is weight 0.25, max in flight 2, rate 2, burst 3, max length 100;"
        " it holds now"
    )
    assert queue.rules()["bulk-*"] == AccountRule(0.25, 2, 2.0, 3, None, 100)
    assert row(app, "bulk-*")["weight"] == "0.25"


def test_a_new_rule_a_pause_its_end_and_a_removal(app: Any, queue: FairQueue) -> None:
    assert act(app, "set", account="alice", weight="3")[0] == 200
    assert queue.rules()["alice"] == AccountRule(3.0)
    assert act(app, "pause", "alice") == (
        409,
        "nothing was changed: tick the box beside the button first",
    )
    assert act(app, "pause", "alice", sure="yes")[0] == 200
    assert queue.rules()["alice"] == AccountRule(3.0, paused=True)
    assert row(app, "alice")["is_paused"]
    assert act(app, "resume", "alice")[0] == 200
    assert queue.rules()["alice"] == AccountRule(3.0)
    assert act(app, "remove", "alice")[0] == 409
    assert act(app, "remove", "alice", sure="yes") == (200, "the rule alice of jobs is removed")
    assert "alice" not in queue.rules()
    # As the command line does: the other accounts are let in at once.
    assert act(app, "resume", "gone")[0] == 200
    assert "gone" not in queue.rules()
    assert {each.account for each in queue.read_many("c", 9)} == {"bulk-1", "gone"}


@pytest.mark.parametrize(
    ("action", "more", "said"),
    [
        ("set", {}, "give a setting, one of weight, max_in_flight, rate, burst, max_length"),
        ("set", {"estimate": "2"}, "give a setting, one of weight, max_in_flight, rate"),
        ("set", {"weight": "0"}, "weight=0.0 is out of range"),
        ("set", {"weight": "nan"}, "out of range"),
        ("set", {"weight": "much"}, "'much' is no weight: give a number"),
        ("set", {"burst": "1.5"}, "'1.5' is no burst: give a number"),
        ("set", {"max_in_flight": "1_0"}, "is no max in flight"),
        ("steal", {}, "this action is unknown"),
    ],
)
def test_bad_input_changes_nothing(
    app: Any, queue: FairQueue, action: str, more: dict[str, str], said: str
) -> None:
    before = queue.rules()
    status, problem = act(app, action, "bulk-*", **more)
    assert status == 409
    assert said in problem
    assert queue.rules() == before


def test_a_name_of_any_kind_is_its_own(app: Any, queue: FairQueue) -> None:
    names = [*HOSTILE.values(), "long " * 100]
    for name in names:
        queue.set_rule(name, weight=2)
    rules = queue.rules()
    page = shown(app)
    assert len(page["rows"]) == len(rules)
    for each in page["rows"]:
        data = {"action": "set", "queue": each["queue"], "rule": each["key"], "weight": "5"}
        assert app.test_client().post("/ws/rules", data=data, headers=JSON).status_code == 200
    after = queue.rules()
    assert set(after) == set(rules)
    assert {rule.weight for rule in after.values()} == {5.0}


def test_only_an_admin_of_this_page_changes_a_rule(app: Any, queue: FairQueue) -> None:
    before = queue.rules()
    page = shown(app)
    data = {
        "action": "set",
        "weight": "9",
        "queue": page["queues"][0]["id"],
        "rule": page["rows"][0]["key"],
    }
    looks = {"Authorization": f"Bearer {VIEWER}"}
    assert app.test_client().post("/ws/rules", data=data, headers=looks).status_code == 403
    assert app.test_client().post("/ws/rules", data=data).status_code == 401
    assert 'action="/ws/rules"' not in app.test_client().get("/ws/", headers=looks).text
    browser = app.test_client()
    assert browser.post("/ws/login", data={"token": TOKEN}).status_code == 303
    assert browser.post("/ws/rules", data=data).status_code == 403
    foreign = {**data, "csrf": csrf_of(browser.get("/ws/").text)}
    other = {"Sec-Fetch-Site": "cross-site"}
    assert browser.post("/ws/rules", data=foreign, headers=other).status_code == 403
    assert queue.rules() == before
    assert browser.get("/ws/rules").status_code == 405
    assert browser.post("/ws/rules", data=foreign).status_code == 200
    assert queue.rules() != before


def test_a_change_is_in_the_log(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "workstealing"):
        act(app, "set", "bulk-*", weight="7")
    assert any(
        "an admin of the dashboard" in said and "weight 7" in said for said in caplog.messages
    )


def test_a_queue_that_does_not_answer_is_unknown(queue: FairQueue, redis7: RedisServer) -> None:
    app = make_app(never(), queue.client, token=TOKEN, structures=[queue])
    queue.client.hset(queue.keys.of("rules"), "broken", "no rule")
    page = shown(app)
    assert (page["text"], page["rows"]) == ("nobody knows: no queue has answered", [])
    status, said = act(app, "set", account="alice", weight="3")
    assert status == 409
    assert "failed: LayoutError" in said or "rule" in said


def test_a_jobs_queue_is_shown_and_each_once(queue: FairQueue, never_recruiter: Recruiter) -> None:
    never_recruiter.install(FairQueueReaper(queue), rate=0.1)
    app = make_app(never_recruiter, queue.client, token=TOKEN, structures=[queue])
    assert len(shown(app)["queues"]) == 1
    assert len(shown(app)["rows"]) == 3


def test_a_page_without_fair_queues_has_no_such_section(
    never_recruiter: Recruiter, client: Any
) -> None:
    app = make_app(never_recruiter, client, token=TOKEN)
    html = app.test_client().get("/ws/", headers=ADMIN).text
    assert 'id="rules-section" hidden' in html
