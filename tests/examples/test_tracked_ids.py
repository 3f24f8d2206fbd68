"""The example of the tracked ids does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import RedisServer

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "tracked_ids" / "items.py"


@pytest.mark.slow
@pytest.mark.real
def test_page_views_heal_the_set(redis7: RedisServer) -> None:
    done = subprocess.run(
        [sys.executable, "-P", PROGRAM, "--items", "1000"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "REDIS_URL": redis7.url},
    )
    assert done.returncode == 0, done.stderr
    tracked = [int(count) for count in re.findall(r"(\d+) tracked", done.stdout)]
    begun, full, outdated, halved, lost, healed = tracked
    assert (begun, full, outdated, lost) == (0, 100, 100, 0)
    # A sample of 500 may miss one or two.
    assert 50 <= halved <= 53
    assert 48 <= healed <= 50
    assert "not healed" not in done.stdout
    assert "untrack_done.example:queued" in done.stdout


@pytest.mark.slow
def test_by_its_one_command() -> None:
    """As its README has it, on a server that the program starts for itself."""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("REDIS_URL")}
    done = subprocess.run(
        [sys.executable, "-P", PROGRAM], capture_output=True, text=True, check=False, env=clean
    )
    assert done.returncode == 0, done.stderr
    full, halved, healed = map(int, re.findall(r"page views +(\d+) tracked", done.stdout))
    # The program stops when its sample of 500 shows no difference.
    assert 490 <= full <= 500
    assert 250 <= halved <= 260
    assert 240 <= healed <= 250
    assert "not healed" not in done.stdout
