"""A StatsD server that adds up what the recruiters of both sides send."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from typing import Self

LONGEST_PACKET = 65_536


class StatsDServer:
    """Counts until it is left; `port` is its UDP port on this machine.

    Attributes: counts: by name, such as "archive.web.enlisted".
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self.port: int = self._socket.getsockname()[1]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._socket.close()

    def of(self, side: str, what: str, job: str = "") -> int:
        """Return a figure of one side; without a job, that of all its jobs together.

        Arguments:
            side: "web" or "spark".
            what: "enlisted", "recruited", "items" or another figure of a job.
            job: the beginning of its name.
        """
        prefix = f"archive.{side}."
        return sum(
            count
            for name, count in self.counts.copy().items()
            if name.startswith(prefix + job) and name.endswith(f".{what}")
        )

    def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                packet = self._socket.recv(LONGEST_PACKET)
            except TimeoutError:
                continue
            for line in packet.decode().splitlines():
                # A counter is "name:number|c"; the gauges and the timings are for a real server.
                name, _, value = line.partition(":")
                number, _, kind = value.partition("|")
                if kind == "c":
                    self.counts[name] += int(number)
