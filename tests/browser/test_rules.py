"""Rules of fair queues as an admin changes them in a browser."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.dashboard_pages import quick, wait_for
from support.dashboards import TOKEN, make_app
from workstealing import Recruiter
from workstealing.structures import FairQueue

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Open = Callable[..., Any]


def test_an_admin_changes_rules_in_place(
    serve: Serve, open_page: Open, never_recruiter: Recruiter, redis7: Any
) -> None:
    client = redis7.client()
    queue = FairQueue(client, "renderings")
    queue.set_rule("*", max_in_flight=4)
    queue.set_rule("bulk-*", weight=0.5, rate=2, burst=3, max_length=1000)
    for n in range(5):
        queue.write("bulk importer", {"n": n}, account="bulk-1")
        queue.write("alice", {"n": n})
    queue.read("worker")
    app = make_app(never_recruiter, client, token=TOKEN, streams=quick(), structures=[queue])
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector(".light.live")
    page.evaluate("window.same = true")
    page.click("#rules > summary")
    row = page.locator("#rule-rows tr", has_text="bulk-*")
    row.get_by_text("Change", exact=True).click()
    row.locator('input[name="weight"]').fill("0.25")
    folder = os.environ.get("RULES_PICTURE")
    if folder:
        page.screenshot(path=str(Path(folder, "rules.png")), full_page=True)
    row.get_by_role("button", name="Set", exact=True).click()
    wait_for(lambda: queue.rules()["bulk-*"].weight == 0.25, "the weight")
    row.locator('[data-field="weight"]', has_text="0.25").wait_for()
    assert queue.rules()["bulk-*"].max_length == 1000
    # A pause asks once; then the accounts below say why they wait.
    row.locator("summary", has_text="Pause").click()
    row.get_by_role("button", name="Yes, pause").click()
    row.locator('[data-field="paused"]', has_text="yes").wait_for()
    page.locator("#waiting-rows", has_text="paused by the rule 'bulk-*'").wait_for()
    page.click("text=A rule for another account or pattern")
    page.fill('#new-rule input[name="account"]', "alice")
    page.fill('#new-rule input[name="max_in_flight"]', "1")
    page.click('#new-rule button[value="set"]')
    page.locator("#rule-rows tr", has_text="alice").wait_for()
    assert queue.rules()["alice"].max_in_flight == 1
    if folder:
        page.set_viewport_size({"width": 390, "height": 800})
        page.screenshot(path=str(Path(folder, "rules_phone.png")), full_page=True)
    width = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert page.evaluate(width)
    assert page.evaluate("window.same") is True
