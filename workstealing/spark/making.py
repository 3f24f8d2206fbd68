"""Objects that a Python process of Spark's makes by an import path, once, and keeps."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar
from uuid import uuid4

from workstealing.errors import ConfigurationError

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def checked_path(path: object, what: str) -> str:
    """Return an import path, "package.module:name"; nothing is imported.

    Arguments:
        what: what it names, for the error.

    Raises: ConfigurationError for anything else, and for the module __main__, which is another one
    in every executor.
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        # A URL given by mistake may hold a password.
        shown = "a URL" if isinstance(path, str) and "://" in path else repr(path)
        raise ConfigurationError(
            f"{what} is {shown}: give the import path of a function without arguments,"
            ' "package.module:function", that every executor can import'
        )
    if path.startswith("__main__:"):
        raise ConfigurationError(
            f"{what} is {path!r}, but executors have another __main__: put the function into a"
            " module that they can import (spark.submit.pyFiles, or their environment)"
        )
    return path


def load(path: str, what: str) -> Callable[[], Any]:
    """Import and return what an import path names.

    Arguments as of `checked_path`. Raises: ConfigurationError if the module cannot be found here,
    if it has no such name, or if that is no function; what the module raises passes through.
    """
    module, _, name = checked_path(path, what).partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"{what} is {path!r}, but this Python process finds no module {error.name!r}: put it on"
            " the executors' path (spark.submit.pyFiles, or their environment)"
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{what} is {path!r}, but the module has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigurationError(f"{what} is {path!r}, but that is no function")
    made: Callable[[], Any] = found
    return made


DEFAULT_CLIENT = "workstealing:connect"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Says how a process makes its client; hashable, and safe to pickle and to show.

    Fields: client: the import path of a function without arguments that returns a client of
    redis-py; by default `workstealing.connect`, which reads the process's own environment
    (WORKSTEALING_REDIS_URL or REDIS_URL), where secrets belong; url: given to
    `workstealing.connect` instead, and never shown. Raises: ConfigurationError for both at once.
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

        Raises: as `importing.load` and `workstealing.connect`; what the function raises. No round
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
        # A slow one must not hold up a thread that needs another one.
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


T = TypeVar("T")
Factory = str | Callable[[], Any]

# Sweeps that share a worker at the same time; what older ones have made is dropped.
_MOST_KEPT = 4
_made: dict[tuple[int, str], Any] = {}


@dataclass(frozen=True)
class Recipe:
    """Says how a Python worker makes something, and that it makes it once.

    Fields: factory: an import path, "package.module:function", or a function without arguments
    that can be pickled; what: what it makes, for errors; token: of the sweep. Raises:
    ConfigurationError for anything else.
    """

    factory: Factory
    what: str
    token: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        if isinstance(self.factory, str):
            checked_path(self.factory, self.what)
        elif not callable(self.factory):
            raise ConfigurationError(
                f"{self.what} is {self.factory!r}: give a function without arguments, or its import"
                ' path, "package.module:function"'
            )

    def made(self, kind: type[T]) -> T:
        """Return what the factory makes, the same one for all tasks of this worker.

        Raises: ConfigurationError if it is of another kind; what the factory raises.
        """
        key = (os.getpid(), self.token)
        found = _made.get(key)
        if found is None:
            is_path = isinstance(self.factory, str)
            make = load(self.factory, self.what) if is_path else self.factory  # type: ignore[arg-type]
            found = make()  # type: ignore[operator]
            if not isinstance(found, kind):
                raise ConfigurationError(
                    f"{self.what} made {type(found).__name__}, where {kind.__name__} was expected"
                )
            while len(_made) >= _MOST_KEPT:
                _made.pop(next(iter(_made)))
            _made[key] = found
        made: T = found
        return made
