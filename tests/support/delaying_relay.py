"""A relay in front of a real server that makes every round trip last longer, as a network does."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from typing import Self


class DelayingRelay:
    """Passes bytes on to a loopback port, each half of `seconds` later, in either direction.

    Arguments: the server's port; seconds: what a round trip takes at least, which may be changed at
    any time. What is sent while something is under way does not wait for it. `port` is where it
    listens; `connections` counts who came.
    """

    def __init__(self, server_port: int, seconds: float = 0.0) -> None:
        self._server_port = server_port
        self.seconds = seconds
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                far = socket.create_connection(("127.0.0.1", self._server_port))
                self._open += [near, far]
                for sock in (near, far):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, target in ((near, far), (far, near)):
                    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    for step, end in ((self._read, source), (self._write, target)):
                        threading.Thread(target=step, args=(end, waiting), daemon=True).start()

    def _read(self, source: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"?"
        while data:
            try:
                data = source.recv(65_536)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + self.seconds / 2, data))

    def _write(
        self, target: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]]
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(data)
