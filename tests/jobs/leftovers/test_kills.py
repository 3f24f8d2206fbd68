"""Each rule while its owner's processes, and recruits, are killed at work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.owners_at_work import OWNERS, PLANTED
from support.processes import end, spawn

TESTS = Path(__file__).parents[2]
KILLS, GUARD_SECONDS = 30, 600.0
# Longer lives than in the benchmark, so that gaps pass and much is removed while there are kills.
PACE = 0.3

pytestmark = [pytest.mark.slow, pytest.mark.real]


@pytest.fixture
def homes(request: pytest.FixtureRequest) -> Any:
    """Return the URL of the server on which an owner lives."""

    def home_of(owner: str) -> str:
        url: str = request.getfixturevalue("postgres" if owner == "sessions" else "redis7").url
        return url

    return home_of


def killed(owner: str, home: str, *more: str, kills: int = KILLS) -> dict[str, Any]:
    """Kill the processes of an owner; return what came of it."""
    options = ["--kills", str(kills), "--pace", str(PACE), *more]
    program = [sys.executable, "-P", "-m", "support.killed_owners", owner, home, *options]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = spawn(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, wrong = process.communicate(timeout=GUARD_SECONDS)
    finally:
        end(process)
    assert process.returncode == 0, wrong[-3_000:]
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    print(json.dumps(found), wrong[-3_000:])  # noqa: T201 - shown if the test fails
    return found


@pytest.mark.parametrize("owner", OWNERS)
def test_no_live_item_goes_and_no_garbage_stays(owner: str, homes: Any) -> None:
    found = killed(owner, homes(owner))
    assert found["lost"] == found["left"] == []
    assert found["errors"] == 0
    assert found["kills"] >= KILLS
    # It has tested something.
    assert found["recruits"] > 0
    assert found["checked"] > 20
    assert found["removed"] > 0
    assert found["operations"] > KILLS


@pytest.mark.parametrize("owner", PLANTED)
def test_an_unsafe_rule_is_found_out(owner: str, homes: Any) -> None:
    # It ends as soon as some items are lost.
    found = killed(owner, homes(owner), "--planted", kills=1_000)
    assert found["lost"] != []
