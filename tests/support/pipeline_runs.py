"""The examples on Spark, each run as a process of its own by its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from support.processes import RUN, end, spawn
from support.spark_cluster import Process, marked

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
POLL_SECONDS = 1.0
# A busy machine is no broken one.
PATIENT_SECONDS = 60.0
_MARK = "WORKSTEALING_TEST_PIPELINE"


class PipelineRun:
    """A run of examples/spark_pipeline; leave it to end it.

    Arguments:
        options: of its command line.
        environment: what it finds there beside this process's own.
    """

    module = "spark_pipeline"

    def __init__(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        self._mark = uuid.uuid4().hex
        self._application = ""
        self._folder = tempfile.TemporaryDirectory(prefix="workstealing-run-", dir=RUN)
        self.output = Path(self._folder.name) / "output"
        with self.output.open("wb") as output:
            self.process: subprocess.Popen[bytes] = spawn(
                [sys.executable, "-P", "-u", "-m", self.module, *options],
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PYTHONPATH": str(EXAMPLES),
                    # Whatever it leaves there is seen.
                    "TMPDIR": self._folder.name,
                    **(environment or {}),
                    _MARK: self._mark,
                },
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process, patience=30.0)
        self._folder.cleanup()

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self.output.read_text(errors="replace")

    def said_after(self, beginning: str) -> list[str]:
        """Return the rests of the lines that begin so."""
        lines = [line for line in self.said.splitlines() if line.startswith(beginning)]
        return [line.removeprefix(beginning).strip() for line in lines]

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 240.0) -> Any:
        """Wait until a condition is true, and return what it says."""
        give_up = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            assert self.process.poll() is None, f"ended before {what}:\n{self.said}"
            assert time.monotonic() < give_up, f"waited in vain for {what}:\n{self.said}"
            time.sleep(POLL_SECONDS)

    def wait_until_gone(self, seconds: float = 30.0) -> None:
        """Wait, once it has ended, until none of the processes that it started is left."""
        give_up = time.monotonic() + seconds
        while left := self.left_running():
            assert time.monotonic() < give_up, f"it has left running: {left}"
            time.sleep(POLL_SECONDS)

    def ended(self, seconds: float = 240.0) -> int:
        """Wait for its end; return its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end:\n{self.said}") from None

    def left_running(self) -> list[Process]:
        """Return the processes that it has started and that live still."""
        return [each for each in marked(_MARK, self._mark) if each.pid != self.process.pid]

    def left_behind(self) -> list[str]:
        """Return what it has left in its folder for temporary files."""
        return [path.name for path in self.output.parent.iterdir() if path != self.output]

    def ask(self, what: str) -> Any:
        """Ask Spark's REST interface about the run's application."""
        if not self._application:
            address = self.said_after("Spark ")[0].split()[-1]
            (application,) = _read(f"{address}/api/v1/applications")
            self._application = f"{address}/api/v1/applications/{application['id']}"
        return _read(f"{self._application}/{what}")

    def tasks_done(self) -> dict[str, int]:
        """Return how many tasks each executor has done, by the executor's id, the dead included."""
        return {each["id"]: each["completedTasks"] for each in self.ask("allexecutors")}

    def second_attempts(self) -> int:
        """Return how many tasks were successful that were no first attempts."""
        tasks = [
            task
            for stage in self.ask("stages?details=true")
            for task in (stage.get("tasks") or {}).values()
        ]
        return sum(task["attempt"] > 0 and task["status"] == "SUCCESS" for task in tasks)


class StoryRun(PipelineRun):
    """A run of examples/archive."""

    module = "archive"


def _read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENT_SECONDS) as answer:
        return json.load(answer)
