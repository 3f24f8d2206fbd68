"""The example of leases does what its README says, by its one command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import RedisServer

FOLDER = Path(__file__).parents[2] / "examples" / "leases"
SECONDS = 60


def run_example(**environment: str) -> dict[str, int]:
    """Run the command of the README; return what it counted."""
    (command,) = re.findall(
        r"^    \.venv/bin/python (\S+)$", (FOLDER / "README.md").read_text(), re.M
    )
    clean = {name: value for name, value in os.environ.items() if not name.endswith("REDIS_URL")}
    done = subprocess.run(
        [sys.executable, command],
        cwd=FOLDER.parents[1],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {what: int(count) for count, what in re.findall(r"^ *(\d+)  (.+)$", done.stdout, re.M)}


def check(counts: dict[str, int]) -> None:
    assert counts["stored"] == 1
    assert counts["refused: too late"] == 1
    assert counts["died"] == 5
    assert counts["held by another"] > 100
    assert counts["leases of the dead left in Redis"] == 0


def test_by_its_command() -> None:
    check(run_example())


@pytest.mark.real
def test_on_a_server_of_the_users_own(redis7: RedisServer) -> None:
    check(run_example(REDIS_URL=redis7.url))
    assert not redis7.client().keys("report:*")
