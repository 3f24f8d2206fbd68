"""A listening socket that takes connections, reads what comes, and never says a word."""

from __future__ import annotations

import socket
import threading
from typing import Self


class SilentServer:
    """Counts the connections that clients have made to it.

    A client without retries drops its connection after a time-out, and makes another one for the
    next attempt: so this is the number of time-outs, too.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)

    @property
    def connections(self) -> int:
        """How many connections were made."""
        return len(self._taken)

    def _take(self) -> None:
        while True:
            try:
                self._taken.append(self._listener.accept()[0])
            except OSError:
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for each in self._taken:
            each.close()
