"""Ctrl-C ends each example at once, without a traceback, and with all that it has started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from support.processes import RUN, end, spawn
from support.servers import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Longer than a busy machine takes, and shorter than the patience of some examples.
SECONDS = 45.0
# Those on Spark have tests of their own, in tests/spark.
ON_SPARK = {"archive", "spark_pipeline"}
PROGRAMS = sorted(
    readme.parent.name
    for readme in EXAMPLES.glob("*/README.md")
    if readme.parent.name not in ON_SPARK
)


def command_of(example: str) -> list[str]:
    """Return the command of an example's README, to be run by this interpreter."""
    readme = (EXAMPLES / example / "README.md").read_text()
    found = re.search(r"^    (?:PYTHONPATH=examples )?\.venv/bin/python (.+)$", readme, re.M)
    assert found is not None, f"{example}/README.md names no command"
    return [sys.executable, "-u", *found[1].split()]


class Running:
    """An example in a session of its own, with a folder for all that it writes."""

    def __init__(self, example: str, folder: Path) -> None:
        self._folder, self._log = folder, folder / "log"
        clean = {name: value for name, value in os.environ.items() if "REDIS_URL" not in name}
        with self._log.open("wb") as log:
            self.process: subprocess.Popen[bytes] = spawn(
                command_of(example),
                cwd=ROOT,
                env={**clean, "PYTHONPATH": str(EXAMPLES), "TMPDIR": str(folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def is_at_work(self) -> bool:
        """Say whether it has written to its Redis, or tells how to ask its site."""
        assert self.process.poll() is None, self.said()
        for socket in self._folder.glob("*/redis.sock"):
            with (
                contextlib.suppress(redis.RedisError),
                redis.Redis(unix_socket_path=str(socket)) as its,
            ):
                if its.dbsize():
                    return True
        return "curl " in self.said()

    def left(self) -> list[str]:
        """Return the processes of its session that live, and what lies in its folder."""
        listed = subprocess.run(
            ["ps", "-o", "pid=,args=", "-s", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        files = [path.name for path in self._folder.iterdir() if path != self._log]
        return [*listed.stdout.splitlines(), *files]


@pytest.fixture(params=PROGRAMS)
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    # Its path is short, as a UNIX socket's must be.
    with tempfile.TemporaryDirectory(prefix="ws-", dir=RUN) as folder:
        example = Running(request.param, Path(folder))
        yield example
        end(example.process)


def test_the_index_has_a_line_for_each_example() -> None:
    index = re.findall(r"^\| \[(\w+)\]\(\1/\) \| ", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(index) == sorted([*PROGRAMS, *ON_SPARK])
    folders = [each.name for each in EXAMPLES.iterdir() if each.is_dir() and any(each.glob("*.*"))]
    assert sorted(folders) == sorted(index)


@pytest.mark.slow
def test_ctrl_c_at_work_ends_it_without_a_traceback(running: Running) -> None:
    wait_until(running.is_at_work, "the example's work", SECONDS)
    # As a terminal does: to all that it has started in its own group, too.
    os.killpg(running.process.pid, signal.SIGINT)
    status = running.process.wait(SECONDS)
    assert "Traceback" not in running.said()
    assert status in (0, 1, 130), running.said()
    wait_until(lambda: not running.left(), f"the end of {running.left()}", SECONDS)
