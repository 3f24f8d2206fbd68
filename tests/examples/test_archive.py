"""The proof of examples/archive sees each kind of loss, and its parts do what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.servers import RedisServer, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, redis7: RedisServer) -> Iterator[Any]:
    """The archive's parts, with two pages that are captured and indexed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("ARCHIVE_DATABASE", str(tmp_path / "archive.sqlite"))
    monkeypatch.setenv("ARCHIVE_STATSD_PORT", "9")
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    from archive import parts

    parts.parts.cache_clear()
    mine = parts.parts()
    mine.store.create()
    for page in ("a", "b"):
        mine.store.capture(page, f"words of {page}", 1)
    mine.store.index(["a", "b"])
    mine.dirty.add("a")
    mine.dirty.ack(*mine.dirty.reserve(1).members)
    yield mine
    parts.parts.cache_clear()


def lost(mine: Any, acknowledged: dict[str, int] | None = None) -> dict[int, int]:
    """Return how much each claim has lost, by its number, without those that hold."""
    from archive import proof

    claims = proof.claims(mine, acknowledged or {"a": 1, "b": 1})
    return {number: claim.lost for number, claim in enumerate(claims) if claim.lost}


def change(query: str) -> Callable[[Any], None]:
    def changing(mine: Any) -> None:
        with mine.store.writing() as database:
            database.execute(query)

    return changing


def test_nothing_is_lost_where_nothing_is_lost(archive: Any) -> None:
    archive.pages.hsetex("page:front", mapping={"body": "front"}, ex=3600)
    assert lost(archive) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "spoil"),
    [
        (0, change("UPDATE pages SET version = 0 WHERE id = 'a'")),
        (1, change("DELETE FROM search WHERE id = 'b'")),
        (1, change("UPDATE search SET words = 'others' WHERE id = 'a'")),
        (1, change("UPDATE pages SET version = 2 WHERE id = 'a'")),
        (2, change("UPDATE tasks SET state = 'queued' WHERE id = 'a'")),
        (3, lambda mine: mine.dirty.add("a")),
        (3, lambda mine: (mine.dirty.add("a"), mine.dirty.reserve(1))),
        (4, lambda mine: mine.queued.track("a")),
        (5, lambda mine: mine.locks.acquire("capture:a", 60)),
        (6, lambda mine: mine.pages.hsetex("page:a", mapping={"body": "a"}, ex=3600)),
    ],
)
def test_the_proof_sees_each_loss(archive: Any, claim: int, spoil: Callable[[Any], object]) -> None:
    assert lost(archive) == {}
    spoil(archive)
    assert claim in lost(archive)


def perform(*jobs: str) -> None:
    """Perform slices of jobs in the web workers' way; the ledger has counted them then."""
    from archive import parts

    recruiter = parts.web_recruiter()
    for name in jobs or recruiter.jobs():
        recruiter.perform(name)
    for hook in recruiter.hooks():
        hook.close()


def test_the_proof_sees_each_row_that_the_dashboard_lacks(archive: Any) -> None:
    from archive import proof

    perform()

    counted = proof.slices(archive)
    assert len(counted) == 6
    page = web_page(archive)
    assert set(counted.items()) <= set(proof.shown(page).items())

    def lost(page: str, least: dict[str, int] = counted, most: dict[str, int] = counted) -> int:
        return proof.dashboard_claim(page, least, most).lost

    assert lost(page) == 0
    # A page that only names the jobs proves nothing.
    assert lost(" ".join(counted)) == 6
    assert lost(page.replace(">mark_forgotten<", ">another<")) == 1
    more = {name: count + 1 for name, count in counted.items()}
    assert lost(page, more, more) == 6, "figures from before this run"
    none = dict.fromkeys(counted, 0)
    assert lost(page, none, none) == 6, "slices that nobody has counted"
    # One more slice is counted, and the page is from before it.
    perform("mark_forgotten")
    assert lost(page, proof.slices(archive), proof.slices(archive)) == 1
    archive.client.flushall()
    assert lost(web_page(archive)) == 6, "a dashboard without the fleet's figures"


def web_page(mine: Any) -> str:
    """Return the page of the dashboard of a process that has performed nothing."""
    import flask
    from archive import parts

    from workstealing import Recruiter
    from workstealing.dashboard import create_dashboard

    app = flask.Flask("another")
    recruiter = parts.with_jobs(Recruiter(), mine, 1.0)
    app.register_blueprint(create_dashboard(recruiter, mine.client), url_prefix="/workstealing")
    return app.test_client().get("/workstealing/").text


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_proof_sees_each_error_of_a_visitor(archive: Any, method: str) -> None:
    from archive import proof, traffic

    class Broken(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(500 if self.command == method else 409)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    assert archive.store.count("pages") == 2
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever).start()
        visitors = traffic.Traffic(("127.0.0.1", server.server_port))
        try:
            with visitors:
                wait_until(lambda: visitors.counts["error"], "an error")
        finally:
            server.shutdown()
    claim = proof.visitors_claim(visitors.counts)
    assert claim.lost == visitors.counts["error"] > 0
    assert proof.visitors_claim({**visitors.counts, "error": 0}).lost == 0


def test_a_capture_that_was_acknowledged_and_is_gone_is_lost(archive: Any) -> None:
    assert lost(archive, {"a": 2, "c": 1}) == {0: 2}


def test_a_late_task_brings_no_old_version_back(archive: Any) -> None:
    with archive.store.writing() as database:
        database.execute("UPDATE search SET version = 5, words = 'newer' WHERE id = 'a'")
    archive.store.index(["a"])
    assert archive.store.rows("SELECT version, words FROM search WHERE id = 'a'") == [(5, "newer")]


def test_a_forgotten_page_is_marked_again_and_others_are_not(archive: Any) -> None:
    from archive import parts

    from workstealing import Slice

    recruiter = parts.web_recruiter()
    assert recruiter.jobs()["mark_forgotten"].perform(Slice(50, 1.0)) == 0
    archive.store.capture("a", "again", 1)
    # Captured a moment ago: it may be under way.
    assert recruiter.jobs()["mark_forgotten"].perform(Slice(50, 1.0)) == 0
    change("UPDATE tasks SET since = since - 60 WHERE id = 'a'")(archive)
    assert recruiter.jobs()["mark_forgotten"].perform(Slice(50, 1.0)) == 1
    assert archive.dirty.reserve(9).members == [b"a"]
    for hook in recruiter.hooks():
        hook.close()


def test_a_capture_is_marked_and_a_hit_enlists(archive: Any) -> None:
    import flask
    from archive import web

    from workstealing import Recruiter

    recruiter, app = Recruiter(), flask.Flask("archive")
    from workstealing.integrations.flask import WorkStealing

    WorkStealing(app, recruiter, when=lambda answer: answer.headers.get("X-Cache") == "hit")
    web.add_pages(app, archive, recruiter)
    client = app.test_client()
    assert client.post("/page/new", data="some words", buffered=True).json == {"version": 1}
    assert archive.dirty.reserve(9).members == [b"new"]
    assert archive.queued.is_tracked("new")
    assert not archive.locks.exists("capture:new")

    assert client.get("/page/new", buffered=True).headers["X-Cache"] == "miss"
    assert recruiter.stats()["enlisted"] == 0
    archive.pages.hexpire("page:new", 600, "body", "words")
    answer = client.get("/page/new", buffered=True)
    assert answer.headers["X-Cache"] == "hit"
    assert answer.json == {"body": "some words", "words": "some words"}
    assert answer.headers["X-Queued"] == "1"
    assert recruiter.stats()["enlisted"] == 1
    assert client.get("/page/none", buffered=True).status_code == 404

    archive.locks.acquire("capture:new", 60)
    assert client.post("/page/new", data="other words", buffered=True).status_code == 409
    assert archive.store.page("new").version == 1
    assert recruiter.stats()["enlisted"] == 2


def test_the_statsd_server_adds_up_by_side_and_job() -> None:
    from workstealing.metrics.statsd import StatsDHooks  # noqa: F401 - the extra is there

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import statsd
        from archive.telemetry import StatsDServer

        with StatsDServer() as server:
            client = statsd.StatsClient("127.0.0.1", server.port, prefix="archive.web")
            client.incr("reaper_x.items", 3)
            client.incr("reaper_x.items", 4)
            client.incr("other.items", 1)
            client.gauge("other.items", 50)
            statsd.StatsClient("127.0.0.1", server.port, prefix="archive.spark").incr("a.items", 9)
            wait_until(lambda: server.of("spark", "items") == 9, "all packets")
            assert server.of("web", "items", "reaper") == 7
            assert server.of("web", "items") == 8
            assert server.of("web", "recruited") == 0
