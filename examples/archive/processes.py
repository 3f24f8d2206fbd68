"""The two kinds of processes that the story starts, and kills: gunicorn's and Spark's."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

from workstealing.errors import WorkStealingError
from workstealing.store.embedded import die_with_parent
from workstealing.structures import Ick

WORKERS, THREADS = 2, 4
USERS = ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY")
STOP_SECONDS = 20.0
GLANCE_SECONDS = 0.05


class Child:
    """A process in a session of its own, so that Ctrl-C at the terminal is for the story alone.

    Arguments:
        words: its command line, after Python.
        log: the file that gets what it says.
        files: descriptors that it inherits.

    Leave it to end it and what it has started.
    """

    def __init__(self, words: Sequence[str], log: Path, files: Sequence[int] = ()) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                [*die_with_parent("TERM"), sys.executable, "-P", *words],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                # The modules of the example, for gunicorn, for the driver and for its tasks; and
                # nothing of what the user has set for a gunicorn of their own.
                env={
                    **{name: value for name, value in os.environ.items() if name not in USERS},
                    "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
                    # What it leaves there when it is killed goes with the story's folder.
                    "TMPDIR": str(log.parent),
                },
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is that of its group, too."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def said(self) -> str:
        """Return what it has said."""
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raises: WorkStealingError with its first and last words if it has ended by itself."""
        if self._process.poll() is not None:
            lines = [line.strip() for line in self.said().splitlines()] or [""]
            raise WorkStealingError(
                f"the {self._log.stem} ended with status {self._process.returncode}: it said"
                f" {lines[0][:500]!r} at first and {lines[-1][:500]!r} at last"
            )

    def stop(self) -> None:
        """End it in order, or by force if that takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to it and to its group, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Site(Child):
    """gunicorn with two workers; `address` takes connections from the start."""

    def __init__(self, folder: Path) -> None:
        # Bound here and handed over, so that nobody can take the port in between.
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            self.address: tuple[str, int] = listener.getsockname()
            super().__init__(
                [
                    *("-m", "gunicorn", "archive.web:create_app()"),
                    *("--bind", f"fd://{listener.fileno()}", "--worker-tmp-dir", str(folder)),
                    *("--workers", str(WORKERS), "--threads", str(THREADS)),
                ],
                folder / "gunicorn.log",
                [listener.fileno()],
            )

    def is_up(self) -> bool:
        """Say whether it answers. Raises: WorkStealingError if it has ended."""
        self.check()
        try:
            with closing(http.client.HTTPConnection(*self.address, timeout=STOP_SECONDS)) as asking:
                asking.request("GET", "/page/front")
                return asking.getresponse().status in (200, 404)
        except (OSError, http.client.HTTPException):
            return False


class Driver(Child):
    """The driver of the Spark job, with its JVM and its Python workers."""

    def __init__(self, folder: Path, number: int) -> None:
        work = folder / f"spark-{number}"
        work.mkdir()
        super().__init__(["-m", "archive.spark_job", str(work)], work / "driver.log")

    def is_ready(self) -> bool:
        """Say whether it has begun to work. Raises: WorkStealingError if it has ended."""
        self.check()
        return "the driver is ready" in self.said()

    def kill_at_work(self, dirty: Ick) -> int:
        """Kill it while it holds a reservation; return of how many pages.

        It is stopped for a look (SIGSTOP), and goes on if its hands are empty.
        """
        while True:
            self.check()
            self._process.send_signal(signal.SIGSTOP)
            try:
                in_hand = (dirty.stats() or {}).get("cset_size", 0)
                if in_hand:
                    self.kill()
                    return int(in_hand)
            finally:
                # Nothing happens to one that has ended.
                self._process.send_signal(signal.SIGCONT)
            time.sleep(GLANCE_SECONDS)
