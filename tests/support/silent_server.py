"""A listening socket that takes connections, reads what comes, and never says a word."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Self

from support.patience import GUARD_SECONDS


class SilentServer:
    """Counts the connections that clients have made to it.

    A client without retries drops its connection after a time-out, and makes another one for the
    next attempt: so this is the number of time-outs, too.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._taken: list[socket.socket] = []
        self._seen: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._count = 0
        self._thread = threading.Thread(target=self._take, daemon=True)

    @property
    def connections(self) -> int:
        """How many connections were made."""
        # Connections are taken in their order, so all before this one have been counted then.
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            own = last.getsockname()[1]
            while self._seen.get(timeout=GUARD_SECONDS) != own:
                self._count += 1
        return self._count

    def _take(self) -> None:
        while True:
            try:
                taken, (_, port) = self._listener.accept()
            except OSError:
                return
            self._taken.append(taken)
            self._seen.put(port)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for each in self._taken:
            each.close()
