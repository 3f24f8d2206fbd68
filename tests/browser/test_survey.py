"""The page of a survey, and the dashboard's: in a browser, without an error."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.dashboards import make_app
from support.many_owners import fill_by_many
from workstealing import Recruiter
from workstealing.survey import Survey, report_of
from workstealing.survey.page import page as page_of

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
LARGEST_PICTURE = 200_000


def test_the_file_is_a_picture_without_a_script(chromium: Any, redis8: Any, tmp_path: Path) -> None:
    """With WORKSTEALING_SCREENSHOTS=1 the picture in docs/ is made anew."""
    client = redis8.client()
    fill_by_many(client, 40_000)
    survey = Survey(client, load=1.0)
    survey.run()
    file = tmp_path / "survey.html"
    file.write_text(page_of(report_of(survey, 800.0)), encoding="utf-8")
    page = chromium.new_page(viewport={"width": 1100, "height": 1000})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    assert page.locator(".tm .family").count() > 15
    assert page.locator(".tm rect.certain").count() >= 1
    assert page.locator(".tm rect.likely").count() >= 3
    assert page.locator("tbody tr").count() == len(list(survey.families.shapes()))
    # On a phone nothing is wider than the screen: only the table scrolls.
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1100, "height": 1000})
    box = page.locator(".tm .family rect").first.bounding_box()
    assert box["width"] > 50
    picture = tmp_path / "survey.png"
    page.screenshot(path=picture)
    page.close()
    assert said == []
    assert 20_000 < picture.stat().st_size < LARGEST_PICTURE
    if os.environ.get("WORKSTEALING_SCREENSHOTS") == "1":
        shutil.copyfile(picture, DOCS / picture.name)
    assert (DOCS / picture.name).stat().st_size < LARGEST_PICTURE


def test_the_dashboards_page_obeys_its_own_policy(
    serve: Callable[..., str],
    open_page: Callable[..., Any],
    never_recruiter: Recruiter,
    redis8: Any,
    tmp_path: Path,
) -> None:
    client = redis8.client()
    fill_by_many(client, 2_000)
    survey = Survey(client, load=1.0)
    survey.run()
    file = tmp_path / "survey.json"
    file.write_text(json.dumps(report_of(survey, 800.0)))
    page = open_page(serve(make_app(never_recruiter, client, survey=file)))
    page.click("text=Last survey")
    page.wait_for_selector(".tm .family")
    fill = "element => getComputedStyle(element).fill"
    assert page.locator(".tm rect.likely").first.evaluate(fill) == "rgb(178, 106, 0)"
    assert page.locator("tbody tr").count() > 10
