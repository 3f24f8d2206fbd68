"""A test that leaves something running fails itself; what several tests share may go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import subprocess
import sys
import threading

import pytest
from support import leftovers

leftovers.PATIENCE_SECONDS = 0.2
WAIT = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def start():
    return subprocess.Popen(WAIT, stdin=subprocess.PIPE)


@pytest.fixture(scope="session")
def shared():
    with start() as process:
        yield process


def test_thread():
    threading.Thread(target=threading.Event().wait, args=(5,), name="mine", daemon=True).start()


def test_child(request):
    kept.append(start())


def test_shared(request):
    request.getfixturevalue("shared")


def test_ended():
    start().communicate()
    thread = threading.Thread(target=threading.Event().wait, args=(0.05,))
    thread.start()


kept = []
"""


@pytest.mark.slow
def test_who_leaves_something_running_fails(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pytest", "-q", "-p", "support.leftovers"),
            *("-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "4 passed, 2 errors" in done.stdout, done.stdout + done.stderr
    # The summary's lines are cut to the terminal's width.
    assert re.findall(r"^ERROR test_program.py::(\w+)", done.stdout, re.M) == [
        *("test_thread", "test_child")
    ]
    assert "this test is over, but not the thread 'mine'\n" in done.stdout
    assert re.search(r"this test is over, but not the process \d+: .*python", done.stdout)
