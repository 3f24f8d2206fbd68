"""Gunicorn as a child process, and the load generator that asks it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from workstealing.cli.demo.app import FOLDER_VARIABLE
from workstealing.cli.demo.traffic import Request
from workstealing.errors import WorkStealingError
from workstealing.store.embedded import die_with_parent

REQUEST_SECONDS, STOP_SECONDS = 10.0, 10.0


class WebServer:
    """Gunicorn serving the demo's app from `address`, which accepts connections from the start.

    Arguments:
        folder: with the plan.
        workers: how many processes.

    `stop` ends it.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._log = folder / "gunicorn.log"
        # Bound here and handed over, so that nobody can take the port in between.
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address: tuple[str, int] = listener.getsockname()
        # Without the user's settings for servers of their own.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("GUNICORN_CMD_ARGS", "WEB_CONCURRENCY")
        }
        with listener, self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own Python and settings
                [
                    # TERM, so that gunicorn takes its workers with it.
                    *die_with_parent("TERM"),
                    *(sys.executable, "-P", "-m", "gunicorn"),
                    *("--config", "python:workstealing.cli.demo.app"),
                    *("--bind", f"fd://{listener.fileno()}", "--workers", str(workers)),
                    *("--worker-tmp-dir", str(folder)),
                    "workstealing.cli.demo.app:create_app()",
                ],
                pass_fds=[listener.fileno()],
                env=environment | {FOLDER_VARIABLE: str(folder)},
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
        lines = self._log.read_text(errors="replace").split("\n")
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


class Client(http.client.HTTPConnection):
    """One connection to a server, opened by its first request."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port, timeout=REQUEST_SECONDS)

    def get(self, target: str, etag: str | None = None) -> tuple[int, str | None]:
        """Return the status and the ETag of an answer, once its last byte is here; 0: it failed."""
        try:
            self.request("GET", target, headers={"If-None-Match": etag} if etag else {})
            response = self.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return 0, None
        return response.status, response.getheader("ETag")


class Load:
    """Sends requests from threads at a constant pace, and counts.

    Arguments:
        address: of the server.
        requests: in their order.
        pace: how many are sent a second as long as clients are free.
        clients: how many threads.

    Attributes: latencies: seconds of each answer with status 200 or 304, in their order; errors:
    all other requests; faults: of those, the ones that the server answered with an error of its
    own.
    """

    def __init__(
        self, address: tuple[str, int], requests: Sequence[Request], pace: float, clients: int
    ) -> None:
        self.latencies = array("d")
        self.errors = self.faults = 0
        self._address, self._requests, self._pace = address, requests, pace
        self._tickets, self._lock = itertools.count(), threading.Lock()
        self._etags: dict[str, str] = {}
        self._stopped = threading.Event()
        self._started = 0.0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def start(self) -> None:
        """Begin to send."""
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more, and wait for the answers to those that were sent."""
        self._stopped.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def is_running(self) -> bool:
        """Say whether there is anything left to send."""
        return any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        with contextlib.closing(Client(*self._address)) as client:
            for ticket in self._tickets:
                if ticket >= len(self._requests):
                    return
                due = self._started + ticket / self._pace
                if self._stopped.wait(max(0.0, due - time.monotonic())):
                    return
                self._send(client, self._requests[ticket])

    def _send(self, client: Client, request: Request) -> None:
        begin = time.monotonic()
        etag = self._etags.get(request.target) if request.conditional else None
        status, etag = client.get(request.target, etag)
        with self._lock:
            if status in (200, 304):
                self.latencies.append(time.monotonic() - begin)
                self._etags[request.target] = etag or ""
            else:
                self.errors += 1
                self.faults += status >= 500
