"""The load generator: real HTTP requests at a constant pace, and how they were answered."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from array import array
from collections.abc import Callable, Sequence

from workstealing.cli.demo.traffic import Request

REQUEST_SECONDS = 10.0
_ANSWERS = (200, 304)
_SERVER_ERROR = 500


class _Client:
    """One client: it asks one request at a time. Arguments: address of the server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=REQUEST_SECONDS)

    def get(self, target: str, etag: str | None = None) -> tuple[int, str | None]:
        """Return the status and the ETag of the answer, once its last byte is here.

        Raises: OSError or http.client.HTTPException.
        """
        try:
            self._connection.request(
                "GET", target, headers={} if etag is None else {"If-None-Match": etag}
            )
            response = self._connection.getresponse()
            response.read()
        except BaseException:
            self._connection.close()
            raise
        return response.status, response.getheader("ETag")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Load:
    """Sends requests from threads, and counts.

    Arguments: address of the server; requests, in their order; pace, how many are sent a second as
    long as clients are free; clients, how many threads. `requests` counts the answers with status
    200 or 304, `errors` every other outcome; `latencies` are those of the answers, in seconds from
    the connection to the last byte.
    """

    def __init__(
        self, address: tuple[str, int], requests: Sequence[Request], pace: float, clients: int
    ) -> None:
        self.requests = requests
        self._address = address
        self._pace = pace
        self._tickets = itertools.count()
        self._etags: dict[str, str] = {}
        self._stopped = threading.Event()
        self._started = 0.0
        self._latencies = [array("d") for _ in range(clients)]
        self._errors = [0] * clients
        self._faults = [0] * clients
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(clients)
        ]

    @property
    def answered(self) -> int:
        """How many requests have been answered."""
        return sum(map(len, self._latencies))

    @property
    def errors(self) -> int:
        """How many requests have failed."""
        return sum(self._errors)

    @property
    def faults(self) -> int:
        """How many requests the server has answered with an error of its own."""
        return sum(self._faults)

    def latencies(self, recent: int | None = None) -> list[float]:
        """Return the seconds that each answer has taken, sorted.

        Arguments: recent, take each client's last so many only; by default all.
        """
        last = slice(None if recent is None else -recent, None)
        return sorted(itertools.chain.from_iterable(part[last] for part in self._latencies))

    def start(self) -> None:
        """Begin to send."""
        self._started = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more, and wait for the answers to what has been sent."""
        self._stopped.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def is_running(self) -> bool:
        """Say whether there is anything left to send."""
        return any(thread.is_alive() for thread in self._threads)

    def _run(self, number: int) -> None:
        client = _Client(self._address)
        try:
            for ticket in self._tickets:
                if ticket >= len(self.requests):
                    return
                due = self._started + ticket / self._pace
                if self._stopped.wait(max(0.0, due - time.monotonic())):
                    return
                self._send(client, self.requests[ticket], number)
        finally:
            client.close()

    def _send(self, client: _Client, request: Request, number: int) -> None:
        etag = self._etags.get(request.target) if request.conditional else None
        begin = time.monotonic()
        try:
            status, etag = client.get(request.target, etag)
        except (OSError, http.client.HTTPException):
            self._errors[number] += 1
            return
        if status not in _ANSWERS:
            self._errors[number] += 1
            self._faults[number] += status >= _SERVER_ERROR
            return
        self._latencies[number].append(time.monotonic() - begin)
        if etag is not None:
            self._etags[request.target] = etag


def capacity(
    address: tuple[str, int], target: str, clients: int, seconds: float, stopped: Callable[[], bool]
) -> float:
    """Return how many requests a second the server can answer, by asking for one target.

    Arguments: address; target; clients, how many ask at once; seconds, for how long; stopped, says
    whether to end early. Returns: 0.0 if nothing was answered.
    """
    answered = [0] * clients
    end = time.monotonic() + seconds

    def ask(number: int) -> None:
        client = _Client(address)
        while time.monotonic() < end and not stopped():
            try:
                status, _ = client.get(target)
            except (OSError, http.client.HTTPException):
                return
            answered[number] += status == 200
        client.close()

    threads = [threading.Thread(target=ask, args=(n,), daemon=True) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered) / seconds


def wait_for_answer(
    address: tuple[str, int], target: str, seconds: float, alive: Callable[[], bool]
) -> int | None:
    """Return the status of the first answer.

    Arguments: address; target; seconds, for how long to try; alive, asked between the tries, ends
    them by answering False or raising. Returns: None if there was no answer.
    """
    give_up = time.monotonic() + seconds
    while alive() and time.monotonic() < give_up:
        client = _Client(address)
        try:
            return client.get(target)[0]
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
        finally:
            client.close()
    return None
