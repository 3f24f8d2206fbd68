"""Gunicorn as a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from workstealing.cli.demo.plan import FOLDER_VARIABLE
from workstealing.errors import WorkStealingError
from workstealing.store.embedded import die_with_parent

STOP_SECONDS = 10.0
_LOG = "gunicorn.log"


class WebServer:
    """Gunicorn serving the demo's app from `address`, which accepts connections from the start.

    Arguments: folder with the plan; workers, how many processes. A context manager: at its end the
    arbiter and all workers are gone.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        # Bound here and handed over, so that nobody can take the port in between.
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address: tuple[str, int] = listener.getsockname()
        environment = {**os.environ, FOLDER_VARIABLE: str(folder)}
        # Settings of the user's for servers of their own.
        for name in ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY"):
            environment.pop(name, None)
        with listener, (folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own Python and settings
                [
                    # TERM, so that gunicorn takes its workers with it.
                    *die_with_parent("TERM"),
                    *(sys.executable, "-P", "-m", "gunicorn"),
                    *("--config", "python:workstealing.cli.demo.gunicorn_settings"),
                    *("--bind", f"fd://{listener.fileno()}", "--workers", str(workers)),
                    *("--worker-tmp-dir", str(folder)),
                    "workstealing.cli.demo.app:create_app()",
                ],
                pass_fds=[listener.fileno()],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal is for the demo, which ends gunicorn itself.
                start_new_session=True,
            )

    def check(self) -> None:
        """Say so if gunicorn has ended. Raises: WorkStealingError with the end of its log."""
        if self._process.poll() is not None:
            raise WorkStealingError(
                f"gunicorn ended with status {self._process.returncode}; {self.last_words()}"
            )

    def last_words(self) -> str:
        """Return the last line of gunicorn's log, as the end of a sentence."""
        lines = (self._folder / _LOG).read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"its log ends with: {said[-1][:500]}" if said else "its log is empty"

    def stop(self) -> None:
        """End gunicorn and its workers; nothing happens the second time."""
        if self._process.poll() is None:
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        if self._process.returncode != 0:
            # It hangs, or was killed and could not take its workers along. It leads a session of
            # its own: this reaches them all.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        """Return the server, which has been started already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self.stop()
