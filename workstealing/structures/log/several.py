"""The one log or the several that a job was given."""

from __future__ import annotations

from collections.abc import Iterable

from workstealing.errors import ConfigurationError
from workstealing.structures.log.base import LogBase


def checked_logs(log: LogBase | Iterable[LogBase], what: str) -> tuple[LogBase, ...]:
    """Return the logs that a job was given, one or several. Errors: ConfigurationError.

    Arguments: log; what: what is done to them, such as "compacted".
    """
    found = (log,) if isinstance(log, LogBase) else log
    logs = tuple(found) if isinstance(found, Iterable) else ()
    if not logs or not all(isinstance(each, LogBase) for each in logs):
        shown = "no log" if isinstance(log, Iterable) and not logs else f"a {type(log).__name__}"
        raise ConfigurationError(f"{shown} cannot be {what}: give a Log, or several of them")
    return logs
