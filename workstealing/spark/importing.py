"""Import paths: how the driver names what each executor makes for itself.

Nothing that holds a connection or a secret is pickled: a factory is named, and called where it is
needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from workstealing.errors import ConfigurationError

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def checked_path(path: object, what: str) -> str:
    """Return an import path, "package.module:name"; nothing is imported.

    Arguments: path; what: what it names, for the error. Errors: ConfigurationError for anything
    else, and for the module __main__, which is another one in every executor.
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

    Arguments: as of `checked_path`. Errors: ConfigurationError if the module cannot be found here,
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
