"""The headers of every answer of the dashboard, and the texts that no page holds."""

from __future__ import annotations

import re
from typing import Any

import flask
import pytest

from support.dashboards import TOKEN, make_app
from workstealing import Recruiter
from workstealing.dashboard import security


@pytest.fixture
def app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A dashboard with a token and one job."""
    never_recruiter.job(rate=0.001, name="tidy")(lambda slice: 3)
    return make_app(never_recruiter, client, token=TOKEN)


@pytest.mark.parametrize(
    "path", ["/ws/", "/ws/view.json", "/ws/events", "/ws/assets/dashboard.js", "/ws/assets/none"]
)
@pytest.mark.parametrize("token", [TOKEN, "wrong"])
def test_every_answer_has_the_headers(app: flask.Flask, path: str, token: Any) -> None:
    answer = app.test_client().get(path, headers={"Authorization": f"Bearer {token}"})
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    wanted = "no-cache" if "assets" in path else "no-store"
    assert answer.headers["Cache-Control"] == wanted
    answer.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/ws/nothing", 404),
        ("GET", "/ws/jobs", 405),
        ("DELETE", "/ws/", 405),
        ("GET", "/ws/assets//x", 308),
    ],
)
def test_so_have_answers_of_no_view(app: flask.Flask, method: str, path: str, status: int) -> None:
    browser = app.test_client()
    answer = browser.open(path, method=method)
    assert answer.status_code == status
    for name, value in security.HEADERS.items():
        assert answer.headers[name] == value
    # An address that is not below ours is the application's own.
    assert "Content-Security-Policy" not in browser.get("/elsewhere").headers


def test_pages_hold_no_inline_script_and_no_inline_style(app: flask.Flask) -> None:
    browser = app.test_client()
    pages = [browser.get("/ws/").text]
    assert browser.post("/ws/login", data={"token": TOKEN}).status_code == 303
    pages.append(browser.get("/ws/").text)
    for page in pages:
        for tag in re.findall(r"<script[^>]*>", page):
            assert 'src="/ws/assets/' in tag or 'type="application/json"' in tag
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
        assert not re.search(r"""(src|href|action)=["'](?!/ws/)""", page)
