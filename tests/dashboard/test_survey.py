"""The page of the last survey."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.dashboards import HOSTILE, TOKEN, make_app
from workstealing import Recruiter
from workstealing.survey import Survey, report_of


def surveyed(client: Any, path: Path) -> None:
    """Survey a server, and write the result as --json prints it."""
    survey = Survey(client, load=1.0)
    survey.run()
    path.write_text(json.dumps(report_of(survey, 100.0)))


def test_the_last_survey_is_shown(client: Any, never_recruiter: Recruiter, tmp_path: Path) -> None:
    path = tmp_path / "survey.json"
    for number, name in enumerate(HOSTILE.values()):
        client.sadd(f"conj:{number}:{name}", "gone")
    app = make_app(never_recruiter, client, survey=path)
    pages = app.test_client()
    assert 'href="/ws/survey"' in pages.get("/ws/").text
    missing = pages.get("/ws/survey")
    assert missing.status_code == 404
    assert "no result of a survey yet" in missing.text
    assert str(tmp_path) not in missing.text
    surveyed(client, path)
    answer = pages.get("/ws/survey")
    assert answer.status_code == 200
    assert "conj:&lt;n&gt;" in answer.text
    assert "TagSetLeftovers" in answer.text
    assert "<svg" in answer.text
    for forbidden in ("<script", "<img", 'onerror="', "style=", "\u202e", "\x1b"):
        assert forbidden not in answer.text.replace("&lt;", "")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"survey": 1}', '{"survey": 1, "at": "x", "families": 7}', "\xff"]
)
def test_a_file_that_is_none_is_one_sentence(
    client: Any, never_recruiter: Recruiter, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "survey.json"
    path.write_text(text, encoding="latin-1")
    answer = make_app(never_recruiter, client, survey=path).test_client().get("/ws/survey")
    assert (answer.status_code, answer.text.count("\n")) == (404, 1)


def test_it_is_for_those_who_may_look(
    client: Any, never_recruiter: Recruiter, tmp_path: Path
) -> None:
    path = tmp_path / "survey.json"
    surveyed(client, path)
    pages = make_app(never_recruiter, client, token=TOKEN, survey=path).test_client()
    assert pages.get("/ws/survey").status_code == 401
    header = {"Authorization": f"Bearer {TOKEN}"}
    assert pages.get("/ws/survey", headers=header).status_code == 200
    assert pages.post("/ws/survey", headers=header).status_code == 405


def test_without_a_file_there_is_no_such_page(client: Any, never_recruiter: Recruiter) -> None:
    pages = make_app(never_recruiter, client).test_client()
    assert pages.get("/ws/survey").status_code == 404
    assert "Last survey" not in pages.get("/ws/").text
