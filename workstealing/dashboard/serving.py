"""The web server of `workstealing dashboard`: a bounded number of threads, and little patience.

Each connection has a thread. Who sends slowly, or not at all, is the first to make room for a
newcomer; where everybody is being answered, a newcomer is told to come back.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import socket
import threading
import time
from typing import Any

from werkzeug import serving

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: workstealing\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nContent-Type: text/plain\r\n\r\ntoo many pages are open\n"
)
_ROOM_SECONDS = 5.0


class BoundedServer(serving.ThreadedWSGIServer):
    """A web server with a thread for each connection, up to a number.

    Arguments:
        listener: a listening socket.
        app: of WSGI.
        seconds: after so many it leaves a client that does not read, or has not asked by then.
        most: connections at a time.
    """

    # A stream that a browser still holds does not hold up the end.
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, app: Any, *, seconds: float, most: int) -> None:
        host, port = listener.getsockname()[:2]
        self.seconds = seconds
        self._places = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self.numbers = itertools.count()
        # The connections whose next byte is awaited, by their number, the longest there first.
        self._awaited: dict[int, socket.socket] = {}
        super().__init__(host, port, app, _Handler, fd=listener.fileno())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread, if there is or becomes a place."""
        # The thread of who makes room ends at once, so nobody waits for long here.
        has_place = self._places.acquire(blocking=False) or (
            self._make_room() and self._places.acquire(timeout=_ROOM_SECONDS)
        )
        if not has_place:
            request.setblocking(False)
            with contextlib.suppress(OSError):
                request.send(_FULL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def _make_room(self) -> bool:
        with self._lock:
            number = next(iter(sorted(self._awaited)), None)
            if number is None:
                return False
            slowest = self._awaited.pop(number)
            # The connection's own thread closes it: another connection could have its descriptor by
            # then.
            with contextlib.suppress(OSError):
                slowest.shutdown(socket.SHUT_RDWR)
        return True

    def awaiting(self, number: int, connection: socket.socket | None) -> None:
        """Note that a connection's next byte is awaited; None: not any more."""
        with self._lock:
            if connection is None:
                self._awaited.pop(number, None)
            else:
                self._awaited[number] = connection


class _Handler(serving.WSGIRequestHandler):
    server: BoundedServer

    def setup(self) -> None:
        """Give the whole request the time that each of its bytes would have."""
        super().setup()
        # Without it, a client that does not read would hold its thread, and a stream its place.
        self.connection.settimeout(self.server.seconds)
        self.rfile = io.BufferedReader(_WithinTime(self.connection, self.server))

    def version_string(self) -> str:
        """Name the server without the versions beneath it."""
        return "workstealing"

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Write no line for each request."""


class _WithinTime(io.RawIOBase):
    """The bytes of a client, until its time is up: a byte now and then holds no thread for ever."""

    def __init__(self, connection: socket.socket, server: BoundedServer) -> None:
        self._connection, self._server = connection, server
        self._number = next(server.numbers)
        self._deadline = time.monotonic() + server.seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request came too slowly")
        self._connection.settimeout(left)
        self._server.awaiting(self._number, self._connection)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._server.awaiting(self._number, None)
            # The answer has its own time.
            self._connection.settimeout(self._server.seconds)
