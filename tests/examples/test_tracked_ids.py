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
