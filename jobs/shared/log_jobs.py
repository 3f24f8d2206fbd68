"""The common part of the jobs that keep logs small: each slice serves one log of several."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    InTurn,
    PartJob,
    drawn,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.structures.access import JobAccess
from workstealing.structures.log.base import LogBase


class LogEngine(abc.ABC):
    """The work of a job on one log, through its job client's one-attempt connections.

    Arguments:
        random: returns a float in [0, 1).
    """

    def __init__(self, log: LogBase, random: Callable[[], float]) -> None:
        self._log = log
        self._keys = log.keys
        self._random = random

    @abc.abstractmethod
    def work(self, slice: Slice, *, dry_run: bool) -> int:
        """Do a slice; return the number of items handled (on a dry run: that would be)."""

    @abc.abstractmethod
    def backlog(self, budget: Budget) -> Backlog:
        """Count the waiting items; nothing is changed."""

    def _call(self, budget: Budget, slice: Slice | None, *commands: Command) -> list[Any]:
        """Send commands in one round trip; return the replies. Raises: as `checked`."""
        if slice is not None:
            slice.spend(len(commands))
        return checked(self._log.job_client.call_keys((self._keys.meta,), commands, budget))

    def _run(
        self, budget: Budget, slice: Slice | None, script: str, keys: Sequence[bytes], *args: Any
    ) -> Any:
        """Run a script of logs; return its reply. Raises: LayoutError if it refuses."""
        (reply,) = LogEngine._call(self, budget, slice, self._script(script, keys, *args))
        return reply

    def _script(self, script: str, keys: Sequence[bytes], *args: Any) -> Command:
        """Return the command that runs a script of logs."""
        return ("EVAL", self._log.script(script).body, len(keys), *keys, *args)


class LogJob(DivisibleJob):
    """A job on one log or several, with an engine for each of them.

    Arguments:
        random: see `LogCompactor`.

    A subclass sets `_kind`: its name if it has no other; `_done`: its work in one word; and
    `_engines`.
    """

    access = JobAccess(("log",))
    unit = "blocks"

    _kind: ClassVar[str]
    _done: ClassVar[str]
    _engines: Sequence[LogEngine]
    dry_run: bool

    def __init__(
        self,
        log: LogBase | Iterable[LogBase],
        limit: int,
        dry_run: bool,
        name: str | None,
        random: Callable[[], float],
    ) -> None:
        self.logs = _checked_logs(log, self._done)
        default = f"{self._kind}.{self.logs[0].name}"
        self._keep_clean(*self.logs, limit=limit, name=name, default=default, dry_run=dry_run)
        self._random = random

    def perform(self, slice: Slice) -> int:
        """Do a slice of one of the logs; see the class for its items, errors and cost."""
        return self.serve(drawn(len(self.logs), self._random), slice)

    def serve(self, number: int, slice: Slice) -> int:
        """Do a slice of one log by its number, as `perform`."""
        return self._engines[number].work(slice, dry_run=self.dry_run)

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.logs[0].job_client.warm_up("log/")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide for a sweep: each part is a group of logs, by number. No round trip."""
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return groups_of(range(len(self.logs)), n)

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that serves some of the logs in turn, one in each slice."""
        return InTurn(self.name, self.limit, self.serve, part)

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the blocks that wait in all logs, and say for how long the oldest has.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta.

        Raises: LayoutError; connection faults. Two or three round trips a log.
        """
        budget = Budget.whole(seconds)
        found = [each.backlog(budget) for each in self._engines]
        return Backlog(
            sum(each.count for each in found),
            max(each.oldest_seconds or 0.0 for each in found),
            found[0].what,
            all(each.exact for each in found),
        )


def _checked_logs(log: LogBase | Iterable[LogBase], done: str) -> tuple[LogBase, ...]:
    found = (log,) if isinstance(log, LogBase) else log
    logs = tuple(found) if isinstance(found, Iterable) else ()
    if not logs or not all(isinstance(each, LogBase) for each in logs):
        shown = "no log" if isinstance(log, Iterable) and not logs else f"a {type(log).__name__}"
        raise ConfigurationError(f"{shown} cannot be {done}: give a Log, or several of them")
    return logs
