"""The claim of the summary: what would have been left is what a run without recruits leaves.

The demo's own app, twice with the same requests: once with every fast exit recruited, once with
nobody. Time passes in steps that are far longer than a test may take, by shifting the clock.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.cli.demo.app import DemoSettings, create_app, last_deadlines
from workstealing.cli.demo.web import zipf_requests
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

STEP_MS = 3_600_000
STEPS = 8
REQUESTS_A_STEP = 40
# Whole steps and a half, so that the real seconds of a test change nothing.
STEPS_OF_LIFE = {"content": 3.5, "related": 1.5, "likes": 0.5}
LIVES = {part: round(steps * STEP_MS) for part, steps in STEPS_OF_LIFE.items()}


def run(server: RedisServer, folder: Path, rate: float) -> tuple[int, int, int]:
    """Let the app answer the requests.

    Returns: the recruits' items, the garbage that is really left, and what the books say would have
    been left.
    """
    requests = zipf_requests(STEPS * REQUESTS_A_STEP, popular=30, once=0.3)
    folder.mkdir()
    plan = DemoSettings(server.url, f"demo-{folder.name}", LIVES, 25, 0.010, breaker_seconds=0.001)
    items = 0
    for step in range(STEPS):
        shift = step * STEP_MS
        replace(plan, rate=rate, clock_shift_ms=shift).save(folder)
        app = create_app(folder)
        client = app.test_client()
        for request in requests[step * REQUESTS_A_STEP : (step + 1) * REQUESTS_A_STEP]:
            with client.get(request.target) as response:
                assert response.status_code == 200
        app.extensions["workstealing-demo"].close()
        items += recruited_items(app)
    end = (STEPS - 1) * STEP_MS
    hashes: Any = VolatileHashes(server.client(), plan.namespace, clock_shift_ms=end)
    backlog = HashFieldExpiry(hashes).backlog(most_hashes=10_000)
    assert backlog.exact
    seconds, _ = server.client().time()
    now = 1000 * seconds + end
    claimed = sum(deadline <= now for deadline in last_deadlines(folder).values())
    return items, backlog.count, claimed


def recruited_items(app: Any) -> int:
    """Return how many fields this app's recruits have collected."""
    stats = app.extensions["workstealing-demo"].recruiter.stats()
    return sum(job["items"] for job in stats["jobs"].values())


@pytest.mark.slow
@pytest.mark.real
def test_it_is_what_a_run_with_rate_0_really_leaves(redis7: RedisServer, tmp_path: Path) -> None:
    collected, left, claimed = run(redis7, tmp_path / f"with-{os.getpid()}", rate=1.0)
    nothing, really_left, claimed_too = run(redis7, tmp_path / f"without-{os.getpid()}", rate=0.0)
    assert nothing == 0
    assert claimed == really_left == claimed_too
    assert collected > 0
    assert left < claimed
