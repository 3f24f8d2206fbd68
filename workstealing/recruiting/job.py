"""What a job is: a named piece of maintenance that does one slice at a time."""

from __future__ import annotations

import abc
import copy
import inspect
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_limit, checked_name

if TYPE_CHECKING:
    from workstealing.recruiting.slice import Slice

DEFAULT_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much garbage waits for a job.

    Fields: count: of items; oldest_seconds: how long the oldest has waited, 0.0 where nothing
    waits, None where nobody can tell; what: the items are, such as "expired fields"; exact: False
    for a projection from a part that was counted.
    """

    count: int
    oldest_seconds: float | None
    what: str
    exact: bool = True


class Job(abc.ABC):
    """A named piece of maintenance, done one slice at a time by whoever is recruited.

    A subclass sets `name` (not empty, one per recruiter), may set `limit` and `dependency`, and
    writes `perform`. None of them may change while the job is installed.
    """

    name: str
    """What the job is called in statistics, metrics and logs."""

    limit: int = DEFAULT_LIMIT
    """The most items that one slice handles."""

    structures: Sequence[Any] = ()
    """The structures that the job keeps clean, as `workstealing.structures` makes them."""

    dry_run: bool | None = None
    """Whether a slice only counts what it would handle; None: the job has no dry run."""

    if TYPE_CHECKING:
        dependency: Hashable
        """What the job talks to; jobs with an equal dependency share one breaker."""
    else:
        # Not a property: a subclass may set it on the class or on the instance.
        @cached_property
        def dependency(self) -> Hashable:
            """What the job talks to, by default its name; equal dependencies share one breaker."""
            return self.name

    @abc.abstractmethod
    def perform(self, slice: Slice) -> int | None:
        """Do one slice.

        Arguments: slice, the bound on items and on time. Returns: the number of items handled; 0 or
        None when there was nothing to do. Raises: anything; Aborted when another writer came first,
        Skipped when it could not begin.
        """

    if TYPE_CHECKING:
        # Until every ready-made job returns a `Backlog`.
        backlog: Callable[..., Any]
    else:

        def backlog(self, seconds: float = 5.0) -> Backlog | None:  # noqa: ARG002
            """Say how much garbage waits now, and how old it is.

            Arguments: seconds: how long it may take. Returns: None if the job cannot tell, which is
            the default. Raises: as `perform`. Changes nothing.
            """
            return None

    def within_reach(self, seconds: float = 1.0) -> Backlog | None:
        """Say how much garbage a slice may handle at this moment; by default, all of the backlog.

        For a job that may not work everywhere at any time. Arguments, returns and raises: as of
        `backlog`.
        """
        found: Backlog | None = self.backlog(seconds=seconds)
        return found

    def warm_up(self) -> None:  # noqa: B027 - most jobs have nothing to prepare
        """Do what a first slice would have to do and needs no server for; by default, nothing.

        `Recruiter.install` calls it once: modules to import, files to read, tables to build, which
        would take a first slice of some milliseconds all its time. It connects to nothing. A forked
        child keeps what its parent has prepared, so it is not called again there. What it raises is
        logged, and the job is installed nevertheless.
        """


class PartJob(Job):
    """A job that stays inside one part of a divided job's keyspace, and knows when it is drained.

    It keeps its place from slice to slice, so one process works through the part with one object.
    """

    @property
    @abc.abstractmethod
    def is_drained(self) -> bool:
        """Whether the last slice ended a look at the whole part that found nothing to do."""


class DivisibleJob(Job):
    """A job whose keyspace divides into parts, for sweeps by many processes at once."""

    @abc.abstractmethod
    def parts(self, n: int) -> Sequence[Any]:
        """Divide what there may be to do now.

        Arguments: n: how many parts at most, 1 or more. Returns: plain data that can be pickled,
        one for each part; empty if there is nothing that could hold work. Errors:
        ConfigurationError if the job as it was made would never come to an end; those of `perform`.
        """

    @abc.abstractmethod
    def for_part(self, part: Any) -> PartJob:
        """Return the job that does one of the parts; any process may make it. No round trip."""


def checked_parts(n: object) -> int:
    """Return a number of parts. Errors: ConfigurationError unless it is 1 or more."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigurationError(f"the number of parts is {n!r}; expected 1 or more")
    return n


def drawn(size: int, random: Callable[[], float]) -> int:
    """Return the number of the one that a slice serves, of so many; draws only among several."""
    return int(random() * size) if size > 1 else 0


def groups_of(numbers: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """Divide numbers into at most n groups for a sweep, neighbours into different ones.

    Errors: ConfigurationError unless n is 1 or more.
    """
    return [tuple(numbers[i::n]) for i in range(min(checked_parts(n), len(numbers)))]


class InTurn(PartJob):
    """Serves some structures in turn until each has had nothing left to do.

    Arguments: name; limit: most items a slice; serve: does a slice of a structure by its number,
    and returns how many items it handled; numbers.
    """

    def __init__(
        self, name: str, limit: int, serve: Callable[[int, Slice], int], numbers: Sequence[int]
    ) -> None:
        self.name, self.limit = name, limit
        self._serve = serve
        self._left = deque(numbers)

    @property
    def is_drained(self) -> bool:
        """Whether each was found without anything to do."""
        return not self._left

    def perform(self, slice: Slice) -> int:
        """Do a slice of the next one; errors as of the job's."""
        if not self._left:
            return 0
        # Whatever comes of it, the next slice goes on with another one.
        self._left.rotate(-1)
        handled = self._serve(self._left[-1], slice)
        if not handled:
            self._left.pop()
        return handled


def refuse_dry_run(name: str, *, dry_run: bool | None) -> None:
    """Raise a ConfigurationError for a dry run, which would find the same things for ever."""
    if dry_run:
        raise ConfigurationError(
            f"the job {name!r} is a dry run and would never come to an end: ask its backlog()"
        )


def dry_run_of(job: Job) -> Job:
    """Return a copy of a job that counts what it would handle, and changes nothing.

    Raises: ConfigurationError if the job has no dry run. O(1), no command.
    """
    if job.dry_run is None:
        raise ConfigurationError(f"the job {job.name!r} has no dry run")
    tried = copy.copy(job)
    tried.dry_run = True
    return tried


class FunctionJob(Job):
    """A plain function as a job.

    Arguments: function, called with the slice, which returns the number of items handled or None;
    name, by default the function's; limit, the most items of one slice.
    Raises: ConfigurationError for what is no plain function, an empty name, or a limit below 1.
    """

    def __init__(
        self,
        function: Callable[[Slice], int | None],
        *,
        name: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        if not callable(function):
            raise ConfigurationError(f"a job is a function that takes a slice, not {function!r}")
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise ConfigurationError(
                f"{function!r} is a coroutine function or a generator; a job is a plain function"
            )
        self.name = checked_name(getattr(function, "__name__", None) if name is None else name)
        self.limit = checked_limit(limit)
        self._function = function

    def perform(self, slice: Slice) -> int | None:
        """Call the function with the slice and return what it returns."""
        return self._function(slice)

    def __repr__(self) -> str:
        return f"FunctionJob({self.name!r}, limit={self.limit})"
