"""The demo's web app under load: Gunicorn as a child process, and the requests that are sent to it.

The requests are made up, or those of an access log. How many there are and how much garbage they
leave says which rate the demo calls for.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from workstealing.cli.demo.app import FOLDER_VARIABLE
from workstealing.errors import ConfigurationError, WorkStealingError
from workstealing.store.embedded import die_with_parent

# One run cannot send more of a log, and needs no more.
MOST_REQUESTS = 200_000
LONGEST_TARGET = 2_000
# host ident user [time] "method target protocol" status bytes; the combined format goes on.
_LINE = re.compile(
    r'\S+ \S+ .*?\[[^\]]+\] "(?P<method>[A-Z]+) (?P<target>.+?)(?: HTTP/[\d.]+)?"'
    r" (?P<status>\d{3}) (?:\d+|-)(?: |$)"
)
# Printable ASCII that may stand in a request line as it is.
_SAFE = "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~"

# How long each part of an item lives: seconds in real life, and a share of the demo's run, so that
# most fields expire while it runs.
PARTS = {"content": (12 * 3600.0, 0.3), "related": (3600.0, 0.15), "likes": (300.0, 0.05)}
LIMIT = 25
# Slices are rarely full: many hashes have one expired field only, and time may run out first.
SAFETY = 3.0
HIGHEST_RATE = 0.5


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its target, and whether it sends the ETag of the last answer for the target."""

    target: str
    conditional: bool = False


def zipf_requests(
    count: int, *, seed: int = 2, popular: int = 400, exponent: float = 1.1, once: float = 0.15
) -> list[Request]:
    """Return requests for Zipf-distributed items with a long tail that is visited once.

    Arguments:
        popular: how many items are visited again and again, the one at rank r with weight r **
            -exponent.
        once: the share of requests for an item that nobody else asks for.

    A quarter of them show an ETag. The same arguments give the same requests.
    """
    chance = random.Random(seed)
    bounds = list(itertools.accumulate(rank**-exponent for rank in range(1, popular + 1)))
    ranks = chance.choices(range(1, popular + 1), cum_weights=bounds, k=count)
    requests = []
    for number, rank in enumerate(ranks):
        target = f"/item/once-{number}" if chance.random() < once else f"/item/{rank}"
        requests.append(Request(target, conditional=chance.random() < 0.25))
    return requests


def read_access_log(path: Path) -> list[Request]:
    """Return the requests of an access log, in its order.

    Arguments:
        path: of a file in common or combined format, gzipped or not.

    Returns: at most MOST_REQUESTS; a line with status 304 becomes a conditional request, and lines
    without a path (`OPTIONS *`, garbled ones) are left out. Raises: ConfigurationError if the file
    cannot be read, is empty, or fewer than half of its lines are an access log's.
    """
    requests: list[Request] = []
    lines = matching = 0
    try:
        for line in filter(str.strip, _lines(path)):
            lines += 1
            match = _LINE.match(line)
            if match is None:
                continue
            matching += 1
            target = _target(match["target"])
            if target is not None:
                requests.append(Request(target, conditional=match["status"] == "304"))
            if len(requests) >= MOST_REQUESTS:
                break
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"the access log {str(path)!r} cannot be read: {reason}") from None
    if not requests or matching * 2 < lines:
        raise ConfigurationError(
            f"{str(path)!r} is no access log: {matching} of its {lines} lines are in common or"
            " combined format; give a web server's access log"
        )
    return requests


def _lines(path: Path) -> Iterator[str]:
    # By its first bytes, not its name: rotated logs bear all kinds of names.
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path) if is_gzip else path.open("rb") as log:
        # A bound on each line, so that a large file without line ends is not read as one line.
        while line := log.readline(65_536):
            yield line.decode("utf-8", "replace")


def _target(text: str) -> str | None:
    """Return the path and query of a logged request as they may be sent; None without a path."""
    if "://" in text.partition("?")[0]:
        parts = urlsplit(text)
        text = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not text.startswith("/"):
        return None
    target = quote(text.partition("#")[0], safe=_SAFE)
    return target if len(target) <= LONGEST_TARGET else None


def lifetimes(seconds: float) -> dict[str, int]:
    """Return the time to live of each part, in milliseconds, for a run of that many seconds."""
    return {part: round(1000 * min(most, of * seconds)) for part, (most, of) in PARTS.items()}


def forecast(
    requests: Sequence[Request], pace: float, lives: Mapping[str, int]
) -> tuple[float, float]:
    """Walk through the traffic once, as the app will, and count.

    Arguments:
        pace: how many are sent a second.
        lives: the parts' times to live in milliseconds.

    Returns: how many enlist, and how many fields expire, a second. O(requests).
    """
    deadlines: dict[str, dict[str, float]] = {}
    enlisted = expiring = 0
    end = len(requests) / pace
    for number, request in enumerate(requests):
        now = number / pace
        seen = deadlines.get(request.target)
        if seen is None:
            seen = deadlines[request.target] = {}
            enlisted -= request.conditional
        missing = [part for part in lives if seen.get(part, 0.0) <= now]
        enlisted += request.conditional or not missing
        for part in missing:
            seen[part] = now + lives[part] / 1000
            expiring += seen[part] <= end
    return enlisted / end, expiring / end


def rate_for(enlisted: float, garbage: float) -> tuple[float, str]:
    """Return the rate at which slices keep up with the garbage, SAFETY times over.

    Both arguments are a second's, as `forecast` returns them. Returns: the rate, at most
    HIGHEST_RATE, and the formula with its numbers.
    """
    rate = HIGHEST_RATE if garbage else 0.001
    if enlisted and garbage:
        rate = min(rate, SAFETY * garbage / (enlisted * LIMIT))
    return rate, (
        f"rate = {SAFETY:g} x inflow / (enlisted x limit) = {SAFETY:g} x {garbage:.0f} fields/s"
        f" / ({enlisted:.0f}/s x {LIMIT} fields) = {rate:.4f}"
    )


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
