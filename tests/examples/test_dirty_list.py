"""The dirty list does what its README says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.servers import RedisServer
from workstealing import Slice
from workstealing.errors import Aborted
from workstealing.jobs import IckReaper

SOURCE = Path(__file__).parents[2] / "examples" / "dirty_list" / "app.py"


@pytest.mark.slow
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


@pytest.mark.slow
def test_recruits_return_the_batch_also_where_none_comes_for_a_while(
    redis7: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine slices fail for seconds, in which a short lease of the dead would end."""
    spec = importlib.util.spec_from_file_location("dirty_list_app", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    until = time.monotonic() + 6.0

    class LateReaper(IckReaper):
        def perform(self, slice: Slice) -> int:
            if time.monotonic() < until:
                raise Aborted("the machine is busy")
            return super().perform(slice)

    monkeypatch.setattr(app, "IckReaper", LateReaper)
    said = app.run(redis7.client(), tmp_path)
    assert said["returned by the reaper"] == said["in a dead consumer's hand"] > 0
    assert said["wrong in the index"] == said["left in the queue"] == 0
