"""The first program of docs/spark.md runs as printed: a file, a folder, and no settings at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import running

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")


def test_the_first_program(tmp_path: Path) -> None:
    with running("docs/spark.md") as page:
        (tmp_path / "first.py").write_text(page.take(), "utf-8")
    ours = ("PYSPARK_", "SPARK_", "WORKSTEALING_", "PYTHONPATH")
    # As a reader's shell: the interpreter's folder is not on PATH, as in an inactive environment.
    environment = {name: each for name, each in os.environ.items() if not name.startswith(ours)}
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    done = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    # Read: the hundred fields that live for an hour.
    assert re.search(r"\|\s*item:\d+\|\s*likes\|\s*\d+\|", done.stdout), done.stdout
    # By tasks that enlisted and by the sweep together: what lives for a second.
    (swept,) = re.findall(r"sum\(items\)\|\n\+-+\+\n\|\s*(\d+)\|", done.stdout)
    (collected,) = re.findall(r"items=(\d+)", done.stdout)
    assert int(collected) > 0
    assert int(swept) + int(collected) == 900
