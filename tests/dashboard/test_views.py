"""The page with and without a ledger, with hostile names, and when a server is gone."""

from __future__ import annotations

import json
import os
import re
import socket
from html.parser import HTMLParser
from importlib.metadata import version
from typing import Any

import flask
import pytest

from support.dashboards import HOSTILE, TOKEN, csrf_of, make_app, write_hour
from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing import Recruiter
from workstealing.dashboard import Backlog, Watched, create_dashboard
from workstealing.dashboard.watched import short_id
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry, IckReaper, KeyExpiry
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.shared_settings import SharedSettings, follow
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys, Ick, ShardedIck, TrackedSet, VolatileHashes
from workstealing.testing import always


class Tags(HTMLParser):
    """Collects a page's tags and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def look(app: flask.Flask) -> str:
    answer = app.test_client().get("/ws/")
    assert answer.status_code == 200
    return answer.text


def view(app: flask.Flask) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(app.test_client().get("/ws/view.json").text)
    return shown


def cells(shown: dict[str, Any], kind: str, name: str) -> list[str]:
    (row,) = [each for each in shown[kind] if each["name"] == name]
    return [each["text"] for each in row["cells"]]


def test_without_a_ledger_the_page_shows_this_process(
    always_recruiter: Recruiter, client: Any
) -> None:
    always_recruiter.job(rate=0.5, name="tidy")(lambda slice: 3)
    app = make_app(always_recruiter, client)
    assert view(app)["source"] == "this process only: no ledger"
    assert cells(view(app), "jobs", "tidy")[6] == "0.5"


def test_the_page_shows_the_fleet_from_the_ledger(never_recruiter: Recruiter, client: Any) -> None:
    job = {"worked": 60, "items": 300, "micros": 120_000, "rate": 0.25, "oldest.3": 4.0}
    write_hour(client, {"tidy": job, "sweep": {"aborted": 30, "worked": 30}})
    shown = view(make_app(never_recruiter, client))
    assert shown["source"] == "fleet of 4 processes"
    keeps_up, oldest, worst, backlog, *_, rate, length = cells(shown, "jobs", "tidy")
    assert (keeps_up, oldest, worst, backlog) == ("yes", "4 s", "4 s", "\N{EN DASH}")
    assert (rate, length) == ("0.25", "2 ms")
    assert shown["jobs"][0]["name"] == "sweep"
    assert shown["alarms"] == ["sweep: 50% of its slices were aborted"]
    charts = shown["charts"]
    assert charts["names"] == ["sweep", "tidy"]
    assert len(charts["times"]) == len(charts["traffic"]) == 60
    assert charts["lag"][1] == [4.0] * 60
    assert charts["items"][1][:59] == [5.0] * 59


def test_a_job_that_falls_behind_is_red_in_the_table_and_said_first(
    never_recruiter: Recruiter, client: Any
) -> None:
    write_hour(client, {"tidy": {"worked": 60, "oldest.0": lambda minute: 100.0 + 55.0 * minute}})
    app = make_app(never_recruiter, client)
    page = look(app)
    assert "tidy: does not keep up: garbage grows older" in page
    assert re.search(r'<tr data-id="[0-9a-f]+" class="bad">', page)
    assert '<td class="figure bad" data-label="Keeps up" data-cell="0">NO</td>' in page
    assert view(app)["tiles"][0] == {
        "label": "Jobs behind",
        "value": "1",
        "unit": "of 1",
        "bad": True,
    }


def test_structures_show_size_and_what_is_due(
    never_recruiter: Recruiter, fakeredis_server: Any
) -> None:
    client = fakeredis_server.client()
    hashes = VolatileHashes(client, namespace="items")
    late = VolatileHashes(client, namespace="items", clock_shift_ms=60_000)
    hashes.hsetex("a", mapping={"x": 1, "y": 2}, ex=30)
    hashes.hsetex("b", mapping={"x": 1}, ex=3000)
    keys = DurableKeys(client, namespace="locks")
    keys.set("lock", 1, ex=30)
    tracked = TrackedSet(client, "queued")
    tracked.track(["1", "2", "3"])
    sharded = ShardedIck(client, "shared", 4)
    sharded.add(["m", "n"])
    never_recruiter.install(HashFieldExpiry(late), rate=0.1)
    app = make_app(never_recruiter, client, structures=[KeyExpiry(keys), tracked, sharded, hashes])
    shown = view(app)
    # The job and its structure are one.
    assert [each["name"] for each in shown["structures"]] == ["items", "locks", "queued", "shared"]
    size, due, oldest, dead = cells(shown, "structures", "items")
    assert (size, due, dead) == ("2", "2 expired fields", "\N{EN DASH}")
    assert 25 < float(oldest.removesuffix(" s")) <= 31
    assert cells(shown, "structures", "locks")[:2] == ["1", "0 keys past their deadline"]
    assert cells(shown, "structures", "queued")[0] == "3"
    assert cells(shown, "structures", "shared")[0] == "2"
    # The job's backlog, which no slice has seen yet.
    assert cells(shown, "jobs", "hash_field_expiry.items")[3] == "2 fields"


def dead_ick(client: Any, *members: Any) -> Ick:
    """Return an Ick whose members have died, each with two attempts."""
    ick = Ick(client, "dirty")
    ick.add(list(members))
    clock = iter(range(1, 100))
    reaper = IckReaper(ick, lease=0.001, limit=100, max_attempts=1)
    while sum(1 for _ in ick.dead(1000)) < len(members):
        assert next(clock) < 50
        ick.reserve(100)
        reaper.perform(Slice(100, 5.0))
    return ick


@pytest.fixture
def dead_app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A dashboard that an admin has entered, with dead items of hostile names."""
    ick = dead_ick(client, *HOSTILE.values(), b"\xff\xfe", "y" * 2000)
    return make_app(never_recruiter, client, token=TOKEN, structures=[ick])


def admin(app: flask.Flask) -> tuple[Any, str]:
    browser = app.test_client()
    browser.post("/ws/login", data={"token": TOKEN})
    return browser, csrf_of(browser.get("/ws/").text)


def test_dead_items_are_listed_as_text(dead_app: flask.Flask) -> None:
    browser, _ = admin(dead_app)
    page = Tags(browser.get("/ws/").text)
    text = "".join(page.text)
    assert "10 dead" in text
    assert "dirty: 10 dead items wait for a person" in text
    assert "<script>document.title='pwned'</script>" in text
    assert r"safe\u202egnp.exe" in text
    assert r"\xff\xfe" in text
    assert not any(tag in ("b", "img") for tag, _ in page.tags)


def test_one_dead_item_is_put_back_and_one_forgotten(dead_app: flask.Flask, client: Any) -> None:
    ick = Ick(client, "dirty")
    browser, csrf = admin(dead_app)
    shown = json.loads(browser.get("/ws/view.json").text)["dead"]
    form = {"csrf": csrf, "structure": shown["sets"][0]["id"]}
    keys = {each["member"]: each["key"] for each in shown["items"]}
    back = {**form, "action": "revive", "item": keys[r"\xff\xfe"]}
    assert browser.post("/ws/dead", data=back).status_code == 200
    assert ick.stats()["pset_size"] == 1
    long = next(key for member, key in keys.items() if member.startswith("yyy"))
    gone = {**form, "action": "discard", "item": long}
    unsure = browser.post("/ws/dead", data=gone)
    assert unsure.status_code == 409
    assert "tick the box" in unsure.text
    assert ick.stats()["dead_size"] == 9
    assert browser.post("/ws/dead", data={**gone, "sure": "yes"}).status_code == 200
    assert ick.stats()["dead_size"] == 8
    again = browser.post("/ws/dead", data={**gone, "sure": "yes"})
    assert again.status_code == 409
    assert "no such item is dead any more" in again.text


@pytest.mark.parametrize(("action", "queued"), [("revive", 10), ("discard", 0)])
def test_all_dead_items_at_once(
    dead_app: flask.Flask, client: Any, action: str, queued: int
) -> None:
    browser, csrf = admin(dead_app)
    (shown,) = json.loads(browser.get("/ws/view.json").text)["dead"]["sets"]
    form = {"csrf": csrf, "structure": shown["id"], "item": "all", "sure": "yes", "action": action}
    assert browser.post("/ws/dead", data=form).status_code == 200
    stats = Ick(client, "dirty").stats()
    assert (stats["dead_size"] if stats else 0) == 0
    assert (stats["pset_size"] if stats else 0) == queued
    assert json.loads(browser.get("/ws/view.json").text)["dead"]["sets"] == []


def test_the_dead_of_a_sharded_ick_are_found_where_they_are(
    never_recruiter: Recruiter, client: Any
) -> None:
    sharded = ShardedIck(client, "shared", 4)
    sharded.add([f"m{n}" for n in range(12)])
    reaper = IckReaper(sharded, lease=0.001, limit=100, max_attempts=1)
    for number in [0, 1, 2, 3] * 20:
        sharded.icks[number].reserve(100)
        reaper.reap(number, Slice(100, 5.0))
    assert sharded.stats()["dead_size"] == 12
    app = make_app(never_recruiter, client, token=TOKEN, structures=[sharded])
    browser, csrf = admin(app)
    shown = json.loads(browser.get("/ws/view.json").text)["dead"]
    (all_of_it,) = shown["sets"]
    assert (all_of_it["count"], len(shown["items"])) == (12, 10)
    assert {each["place"] for each in shown["items"]} <= {
        f"shared, ick shard {n}" for n in range(4)
    }
    form = {"csrf": csrf, "structure": all_of_it["id"], "action": "revive"}
    browser.post("/ws/dead", data={**form, "item": shown["items"][0]["key"]})
    assert sharded.stats()["dead_size"] == 11
    browser.post("/ws/dead", data={**form, "item": "all"})
    assert sharded.stats()["dead_size"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_text_everywhere(
    never_recruiter: Recruiter, client: Any, name: str
) -> None:
    """Jobs, structures, ledger's jobs and dead items have it as a name, and sentences quote it."""
    never_recruiter.job(rate=0.1, name=name)(lambda slice: 1)
    write_hour(client, {name + "2": {"failed": 30}})
    watched = Watched(name, name, lambda: 1, lambda: Backlog(1, 2.0, name))
    app = make_app(
        never_recruiter, client, token=TOKEN, structures=[watched, dead_ick(client, name)]
    )
    browser, csrf = admin(app)
    run = {"csrf": csrf, "action": "run", "job": short_id(name)}
    said = browser.post("/ws/jobs", data=run)
    assert "one slice of" in said.text
    for html in (browser.get("/ws/").text, said.text):
        page = Tags(html)
        assert {tag for tag, _ in page.tags} <= {
            *("a", "nav", "caption", "dl", "dt", "dd"),
            *("html", "head", "meta", "title", "link", "script", "noscript", "body", "header"),
            *("h1", "h2", "h3", "small", "bdi", "p", "span", "div", "form", "input", "button"),
            *("main", "ul", "li", "strong", "section", "figure", "figcaption", "table", "thead"),
            *("tr", "th", "tbody", "td", "svg", "rect", "details", "summary", "label", "template"),
            "select",
        }
        assert sum(tag == "script" for tag, _ in page.tags) == 3
        assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
        # The server never sends a character that steers a terminal or turns the writing.
        assert not set("\x00\x1b\u202e\u2066\u200f\r") & set(html)
    event = next(iter(browser.get("/ws/events").response))
    assert event == b"retry: 2000\n\n"


def test_a_megabyte_of_a_name_makes_no_large_page(never_recruiter: Recruiter, client: Any) -> None:
    long = "x" * 2**20
    never_recruiter.job(rate=0.1, name=long)(lambda slice: 1)
    ick = dead_ick(client, long)
    app = make_app(
        never_recruiter, client, token=TOKEN, structures=[ick, Watched(long, long, lambda: 1)]
    )
    browser, csrf = admin(app)
    assert len(browser.get("/ws/").text) < 60_000
    assert len(browser.get("/ws/view.json").text) < 30_000
    shown = json.loads(browser.get("/ws/view.json").text)
    run = {"csrf": csrf, "action": "run", "job": shown["jobs"][0]["id"]}
    assert browser.post("/ws/jobs", data=run).status_code == 200
    item = {
        "csrf": csrf,
        "action": "revive",
        "structure": shown["dead"]["sets"][0]["id"],
        "item": shown["dead"]["items"][0]["key"],
    }
    assert browser.post("/ws/dead", data=item).status_code == 200
    assert ick.stats()["pset_size"] == 1


def test_a_structure_that_cannot_be_asked_is_red_and_the_rest_is_shown(
    never_recruiter: Recruiter, client: Any
) -> None:
    def broken() -> int:
        raise ConnectionResetError("redis://user:secret@host")

    never_recruiter.job(rate=0.1, name="tidy")(lambda slice: 1)
    app = make_app(never_recruiter, client, structures=[Watched("mine", "own", broken)])
    shown = view(app)
    assert shown["alarms"] == ["the own 'mine' could not be asked: ConnectionResetError"]
    assert shown["structures"][0]["bad"]
    assert cells(shown, "jobs", "tidy")
    assert "secret" not in look(app)


def test_without_a_script_the_page_renews_itself_and_is_complete(
    never_recruiter: Recruiter, client: Any
) -> None:
    never_recruiter.job(rate=0.125, name="tidy")(lambda slice: 1)
    page = look(make_app(never_recruiter, client))
    assert '<noscript><meta http-equiv="refresh" content="10; url=/ws/"></noscript>' in page
    assert ">tidy</bdi>" in page
    assert ">0.125</td>" in page
    # Charts are the script's; without it there is no empty frame.
    assert 'id="charts" class="charts" hidden' in page


def test_what_is_asked_is_remembered_for_two_seconds(
    never_recruiter: Recruiter, client: Any
) -> None:
    asked = []
    never_recruiter.job(rate=0.1, name="tidy")(lambda slice: 1)
    watched = Watched("mine", "own", lambda: asked.append(1) or 7)  # type: ignore[func-returns-value]
    app = make_app(never_recruiter, client, structures=[watched])
    for _ in range(20):
        look(app)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("structures", "said"),
    [([object()], "cannot show a object"), (["name"], "cannot show a str"), ([None], "NoneType")],
)
def test_what_cannot_be_shown_is_refused_at_once(
    never_recruiter: Recruiter, client: Any, structures: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        create_dashboard(never_recruiter, client, structures=structures)


def test_what_is_no_recruiter_or_no_ledgers_name_is_refused(
    never_recruiter: Recruiter, client: Any
) -> None:
    with pytest.raises(ConfigurationError, match="shows a Recruiter"):
        create_dashboard("app", client)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="name"):
        create_dashboard(never_recruiter, client, name="../x")


def test_two_dashboards_live_in_one_app(never_recruiter: Recruiter, client: Any) -> None:
    app = flask.Flask(__name__)
    app.register_blueprint(create_dashboard(never_recruiter, client))
    app.register_blueprint(create_dashboard(never_recruiter, client, name="b.2"), url_prefix="/b")
    assert app.test_client().get("/workstealing/").status_code == 200
    page = app.test_client().get("/b/").text
    assert 'href="/b/assets/dashboard.css"' in page
    assert 'data-events="/b/events"' in page


def test_what_went_wrong_where_and_who_reports(never_recruiter: Recruiter, redis7: Any) -> None:
    client = redis7.client()
    worker = always()

    @worker.job(rate=0.5, name="tidy")
    def tidy(slice: Slice) -> int:
        raise LookupError("a secret of the job's")

    @worker.job(rate=0.4, name="large")
    def large(slice: Slice) -> int:
        return 1

    ledger = Ledger(client)
    worker.add_hook(ledger)
    follow(worker, ledger)
    SharedSettings(client).set_rate("tidy", 0.9)
    for _ in range(2):
        for _ in range(30):
            worker.perform("tidy")
        worker.perform("large")
        worker.flush()
        assert ledger.flush(10.0)
    app = make_app(never_recruiter, client)
    shown = view(app)
    ledger.close()
    job = next(each for each in shown["jobs"] if each["name"] == "tidy")
    (error,) = job["errors"]
    assert re.fullmatch(rf"LookupError 60 times, last .* ago on {socket.gethostname()}", error)
    assert job["cells"][6]["text"] == "0.5 (fleet: 0.9, refused)"
    assert "the fleet's rate 0.9 is refused" in job["problem"]
    assert "secret" not in json.dumps(shown)
    (process,) = shown["processes"]["rows"]
    assert (process["host"], process["pid"]) == (socket.gethostname(), str(os.getpid()))
    assert process["version"] == version("workstealing")
    assert shown["processes"]["text"] == "1 process on 1 host"
    html = look(app)
    assert f"<li>{error}</li>" in html
    assert f'data-field="version">{process["version"]}<' in html


def test_the_recruiters_own_ledger_is_shown(never_recruiter: Recruiter, client: Any) -> None:
    assert view(make_app(never_recruiter, client))["name"] == "default"
    never_recruiter.add_hook(Ledger(client, "fast"))
    assert view(make_app(never_recruiter, client))["name"] == "fast"
    assert view(make_app(never_recruiter, client, name="slow"))["name"] == "slow"
    never_recruiter.add_hook(Ledger(client, "slow"))
    with pytest.raises(ConfigurationError, match=r"several ledgers: .* fast, or slow"):
        make_app(never_recruiter, client)
    never_recruiter.add_hook(Ledger(client, "default"))
    assert view(make_app(never_recruiter, client))["name"] == "default"
