"""Figures that are not of now, in a browser: grey, with their time, and no green dot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.dashboard_pages import cell, quick, wait_for
from support.dashboards import TOKEN, make_app, write_hour, write_processes
from workstealing import Recruiter
from workstealing.metrics.minutes import Away, Process, Running

pytestmark = pytest.mark.slow

JOB = {"worked": 60, "items": 300, "micros": 120_000, "rate": 0.25, "oldest.0": 7.0}


def picture(page: Any, name: str) -> None:
    """Keep a picture where a person wants to look at it."""
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=str(Path(folder, f"{name}.png")), full_page=True)


def test_a_ledger_that_is_away_leaves_grey_figures(
    serve: Callable[..., str],
    open_page: Callable[..., Any],
    never_recruiter: Recruiter,
    start_redis: Any,
) -> None:
    server = start_redis(7)
    client = server.client(retry=Retry(NoBackoff(), 0), socket_timeout=1.0)
    write_hour(client, {"tidy": JOB})
    app = make_app(never_recruiter, client, token=TOKEN, streams=quick())
    page = open_page(serve(app), TOKEN)
    page.wait_for_selector(".light.live.good")
    assert not page.locator("body.old").count()
    picture(page, "well")
    server.stop()
    page.wait_for_selector("body.old")
    page.wait_for_selector(".light.live.bad")
    assert cell(page, "tidy", "Oldest garbage").inner_text() == "7 s"
    assert f"127.0.0.1:{server.port} does not answer" in page.inner_text("#alarms")
    assert "last report" in page.inner_text(".state")
    colour = "e => getComputedStyle(e).color"
    grey = page.locator(".state").evaluate(colour)
    assert cell(page, "tidy", "Oldest garbage").evaluate(colour) == grey
    picture(page, "away")


def test_a_stuck_slice_and_a_dead_server_are_read_at_once(
    serve: Callable[..., str],
    open_page: Callable[..., Any],
    never_recruiter: Recruiter,
    redis7: Any,
) -> None:
    client = redis7.client()
    write_hour(client, {"tidy": JOB, "sweep": JOB})
    page = open_page(serve(make_app(never_recruiter, client, token=TOKEN, streams=quick())), TOKEN)
    page.wait_for_selector(".light.live.good")
    now = time.time()
    away = [Away("10.0.0.7:6380", now - 90.0, ["sweep"], 9)]
    write_processes(
        client,
        Process("web-1", 3, "1.0", now - 3600.0, running=Running("tidy", now - 40.0), away=away),
        Process("web-2", 4, "1.0", now - 3600.0, away=away),
    )
    wait_for(lambda: "10.0.0.7:6380" in page.inner_text("#alarms"), "the alarm of the server")
    alarms = page.inner_text("#alarms")
    assert "by 2 processes on web-1, web-2; its job rests: sweep" in alarms
    assert "on web-1, process 3, since" in alarms
    assert cell(page, "sweep", "Keeps up").inner_text() == "unknown"
    page.wait_for_selector(".light.live.bad")
    picture(page, "stuck")
