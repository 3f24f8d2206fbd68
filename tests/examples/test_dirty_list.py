"""The dirty list does what its README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples" / "dirty_list" / "app.py"


def test_it_runs_by_one_command() -> None:
    result = subprocess.run(
        [sys.executable, SOURCE], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"^ *(\d+)  (.+?): \S.+$", result.stdout, re.M)
    assert len(lines) == len(result.stdout.splitlines())
    said = {what: number for number, what in lines}
    assert said["documents"] == "500"
    assert said["changes"] == "2000"
    assert int(said["in a dead consumer's hand"]) > 0
    assert said["wrong in the index"] == "0"
    assert said["left in the queue"] == "0"
    assert int(said["enlisted"]) > 0
    assert int(said["returned by the reaper"]) >= int(said["in a dead consumer's hand"])
