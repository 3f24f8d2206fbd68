"""What an executor makes for itself: once in each Python worker, for one sweep."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from workstealing.errors import ConfigurationError
from workstealing.spark.importing import checked_path, load

T = TypeVar("T")
Factory = str | Callable[[], Any]

# Sweeps that share a worker at the same time; what older ones have made is dropped.
_MOST_KEPT = 4
_made: dict[tuple[int, str], Any] = {}


@dataclass(frozen=True)
class Recipe:
    """Says how a Python worker makes something, and that it makes it once.

    Fields: factory: an import path, "package.module:function", or a function without arguments
    that can be pickled; what: what it makes, for errors; token: of the sweep. Errors:
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

        Errors: ConfigurationError if it is of another kind; what the factory raises.
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
