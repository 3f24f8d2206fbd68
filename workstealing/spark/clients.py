"""The Redis client of a Python process of Spark's: made once, from names and plain settings."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.spark.importing import checked_path, load

DEFAULT_CLIENT = "workstealing:connect"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Says how a process makes its client; hashable, and safe to pickle and to show.

    Fields: client: the import path of a function without arguments that returns a client of
    redis-py; by default `workstealing.connect`, which reads the process's own environment
    (WORKSTEALING_REDIS_URL or REDIS_URL), where secrets belong; url: given to
    `workstealing.connect` instead, and never shown. Errors: ConfigurationError for both at once.
    """

    client: str = DEFAULT_CLIENT
    url: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checked_path(self.client, "client")
        if self.url is not None and self.client != DEFAULT_CLIENT:
            raise ConfigurationError(
                "both a client and a url are given: give the url alone, or the function that makes"
                " the client alone"
            )

    def connected(self) -> Any:
        """Return this process's client for these settings, the same one every time.

        Errors: as `importing.load` and `workstealing.connect`; what the function raises. No round
        trip but for a cluster, whose map is read the first time.
        """
        with _lock:
            if _made_by != os.getpid():
                # A child of fork() must not use its parent's sockets.
                _forget_parents()
            client = _clients.get(self)
            if client is not None:
                return client
            making = _making.setdefault(self, threading.RLock())
        # Whoever makes one that takes long, holds nobody up who needs another one.
        with making:
            client = _clients.get(self)
            if client is None:
                client = _clients[self] = self._make()
            return client

    def _make(self) -> Any:
        if self.url is not None:
            from workstealing.store import connect

            return connect(self.url)
        return load(self.client, "client")()


_clients: dict[ClientSettings, Any] = {}
_making: dict[ClientSettings, threading.RLock] = {}
_lock = threading.Lock()
_made_by = os.getpid()


def _forget_parents() -> None:
    global _made_by  # noqa: PLW0603 - one per process, like the process id itself
    _clients.clear()
    # A thread of the parent may have held one.
    _making.clear()
    _made_by = os.getpid()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
