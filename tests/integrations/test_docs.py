"""The Python blocks of docs/web.md and docs/metrics.md run in order, as a reader would put them."""

from __future__ import annotations

from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import flask
import pytest
from werkzeug.test import Client

from support.pages import running
from support.servers import RedisServer
from workstealing import Outcome
from workstealing.structures import FairQueue, ShuffleQueue
from workstealing.testing import always


def enlisted(names: dict[str, Any]) -> int:
    count: int = names["recruiter"].stats()["enlisted"]
    return count


def application(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response(f"{environ['PATH_INFO'][1:]} said", [("Content-Length", "0")])
    return []


def test_the_blocks_for_wsgi() -> None:
    # The page leaves the view's body out.
    with running(
        "docs/web.md", replace={"item): ...": "item): return '', {'X-Cache': 'hit'}"}
    ) as page:
        names = page.run(app=flask.Flask("every"))
        names["app"].test_client().get("/nowhere", buffered=True)
        assert enlisted(names) == 1

        app = flask.Flask("on_304")
        app.add_url_rule("/same", view_func=lambda: ("", 304), endpoint="same")
        page.run(app=app)
        web = app.test_client()
        web.get("/nowhere", buffered=True)
        assert enlisted(names) == 1
        web.get("/same", buffered=True)
        assert enlisted(names) == 2

        app = flask.Flask("one_view")
        page.run(app=app)
        web = app.test_client()
        web.get("/nowhere", buffered=True)
        assert enlisted(names) == 2
        web.get("/item/17", buffered=True)
        assert enlisted(names) == 3

        page.run(application=application, recruiter=always())
        web = Client(names["application"])
        web.get("/200", buffered=True)
        assert enlisted(names) == 1
        web.get("/404", buffered=True)
        assert enlisted(names) == 1


def test_the_metrics_blocks(capsys: pytest.CaptureFixture[str], redis7: RedisServer) -> None:
    client = redis7.client()
    given = {
        "recruiter": always(),
        "client": client,
        "queue": ShuffleQueue(client, "queue"),
        "fair_queue": FairQueue(client, "fair"),
    }
    # A name that no resolver knows, so that nothing leaves this machine.
    with running("docs/metrics.md", replace={"statsd.internal": "statsd.invalid"}) as page:
        names = page.run(**given)
        names["recruiter"].job(rate=0.5)(_three)
        page.run_rest()
    registry = names["REGISTRY"]
    dead = [each for each in registry.collect() if each.name == "workstealing_dead_items"]
    assert [sample.value for each in dead for sample in each.samples] == [0.0]
    unknown = [
        sample.value
        for each in registry.collect()
        if each.name == "workstealing_oldest_waiting_unknown"
        for sample in each.samples
    ]
    assert unknown == [0.0]
    ours = (names["DeadItems"], names["WaitingAccounts"])
    for collector in {*registry._names_to_collectors.values()}:
        if type(collector) in ours:
            registry.unregister(collector)
    assert names["recruiter"].enlist() is Outcome.WORKED
    assert "_three worked 3\n" in capsys.readouterr().out


def _three(slice: object) -> int:
    return 3
