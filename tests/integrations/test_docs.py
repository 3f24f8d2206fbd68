"""The Python blocks of docs/web.md and docs/metrics.md run in order, as a reader would put them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import flask
import pytest
from werkzeug.test import Client

from support.servers import RedisServer
from workstealing import Outcome
from workstealing.structures import ShuffleQueue
from workstealing.testing import always

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.M | re.S)


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "docs", "exec"), names)


def enlisted(names: dict[str, Any]) -> int:
    count: int = names["recruiter"].stats()["enlisted"]
    return count


def test_the_flask_blocks() -> None:
    every, on_304, one_view, _ = blocks("web.md")
    names: dict[str, Any] = {"app": flask.Flask("every")}
    run(every, names)
    names["app"].test_client().get("/nowhere", buffered=True)
    assert enlisted(names) == 1

    names["app"] = flask.Flask("on_304")
    names["app"].add_url_rule("/same", view_func=lambda: ("", 304), endpoint="same")
    run(on_304, names)
    web = names["app"].test_client()
    web.get("/nowhere", buffered=True)
    assert enlisted(names) == 1
    web.get("/same", buffered=True)
    assert enlisted(names) == 2

    names["app"] = flask.Flask("one_view")
    # The page leaves the view's body out.
    run(one_view.replace("item): ...", "item): return '', {'X-Cache': 'hit'}"), names)
    web = names["app"].test_client()
    web.get("/nowhere", buffered=True)
    assert enlisted(names) == 2
    web.get("/item/17", buffered=True)
    assert enlisted(names) == 3


@pytest.mark.parametrize(("status", "expected"), [("200 OK", 1), ("404 NOT FOUND", 0)])
def test_the_wsgi_block(status: str, expected: int) -> None:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response(status, [("Content-Length", "0")])
        return []

    names: dict[str, Any] = {"application": application, "recruiter": always()}
    run(blocks("web.md")[-1], names)
    Client(names["application"]).get("/", buffered=True)
    assert enlisted(names) == expected


def test_the_metrics_blocks(capsys: pytest.CaptureFixture[str], redis7: RedisServer) -> None:
    client = redis7.client()
    names: dict[str, Any] = {
        "recruiter": always(),
        "client": client,
        "queue": ShuffleQueue(client, "queue"),
    }
    hook, *others = blocks("metrics.md")
    run(hook, names)
    names["recruiter"].job(rate=0.5)(_three)
    for block in others:
        # A name that no resolver knows, so that nothing leaves this machine.
        run(block.replace("statsd.internal", "statsd.invalid"), names)
    registry = names["REGISTRY"]
    dead = [each for each in registry.collect() if each.name == "workstealing_dead_items"]
    assert [sample.value for each in dead for sample in each.samples] == [0.0]
    registry.unregister(
        next(
            each
            for each in registry._names_to_collectors.values()
            if type(each) is names["DeadItems"]
        )
    )
    assert names["recruiter"].enlist() is Outcome.WORKED
    assert "_three worked 3\n" in capsys.readouterr().out


def _three(slice: object) -> int:
    return 3
