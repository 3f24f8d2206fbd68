"""A relay between a client and a server that counts round trips."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Self


class Relay:
    """Passes bytes on to a loopback port, and counts how often a client spoke after an answer.

    Arguments: the server's port. `port` is where the relay listens, `round_trips` the count, which
    may be set back to 0.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.round_trips = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # A close alone would not wake the thread that waits for a client.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        far = socket.create_connection(("127.0.0.1", self._server_port))
        answered = True
        with near, far, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(near, selectors.EVENT_READ)
            selector.register(far, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(65_536)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is near:
                        self.round_trips += answered
                        answered = False
                        far.sendall(data)
                    else:
                        answered = True
                        near.sendall(data)
