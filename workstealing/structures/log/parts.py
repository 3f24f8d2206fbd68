"""What jobs of several logs share: each slice serves one of them, and a sweep divides them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from workstealing.errors import ConfigurationError
from workstealing.recruiting.job import PartJob, checked_parts
from workstealing.recruiting.slice import Slice
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


def parts_of(logs: Sequence[LogBase], n: int) -> list[tuple[int, ...]]:
    """Divide logs for a sweep: each part is a group of them, by number. No round trip."""
    numbers = range(len(logs))
    return [tuple(numbers[i::n]) for i in range(min(checked_parts(n), len(numbers)))]


class LogPart(PartJob):
    """Serves some logs in turn until each has had nothing left to do.

    Arguments: name; limit: most items a slice; serve: does a slice of a log by its number, and
    returns how many items it handled; numbers.
    """

    def __init__(
        self, name: str, limit: int, serve: Callable[[int, Slice], int], numbers: Sequence[int]
    ) -> None:
        self.name, self.limit = name, limit
        self._serve = serve
        self._left = deque(numbers)

    @property
    def is_drained(self) -> bool:
        """Whether every log was found without anything to do."""
        return not self._left

    def perform(self, slice: Slice) -> int:
        """Do a slice of the next log; errors as of the job's."""
        if not self._left:
            return 0
        # Whatever comes of it, the next slice goes on with another one.
        self._left.rotate(-1)
        handled = self._serve(self._left[-1], slice)
        if not handled:
            self._left.pop()
        return handled
