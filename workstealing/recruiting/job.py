"""Jobs: named pieces of maintenance, each done one slice at a time."""

from __future__ import annotations

import abc
import copy
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_function, checked_limit, checked_name

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


def counted(number: float, unit: str) -> str:
    """Return a number of items for people: "1 entry", "1,200 entries"; unit: see `Job.unit`."""
    if number == 1 and " " not in unit:
        unit = f"{unit[:-3]}y" if unit.endswith("ies") else unit.removesuffix("s")
    return f"{number:,.0f} {unit}".rstrip()


def would_handle(job: Job, items: int, limit: int | None = None) -> str:
    """Return what a dry run has found, for people; it may have met more than a slice handles.

    Arguments:
        items: that it has counted.
        limit: of the slice, None: the job's own.
    """
    most = job.limit if limit is None else limit
    if items <= most:
        return f"a slice would handle {counted(items, job.unit)}"
    return (
        f"{counted(items, job.unit)} are where a slice looks, which would handle {most:,} of them"
    )


class Job(abc.ABC):
    """A named piece of maintenance; each recruit does one slice of it.

    A subclass sets `name` (not empty, one per recruiter), may set `limit` and `dependency`, and
    writes `perform`. None of these may change while the job is installed.
    """

    name: str
    """The job's name in statistics, metrics and logs."""

    limit: int = DEFAULT_LIMIT
    """The most items that one slice handles."""

    structures: Sequence[Any] = ()
    """The structures that the job keeps clean, as `workstealing.structures` makes them."""

    client: Any = None
    """The client of the job's Redis, for a job that names no structures."""

    access: ClassVar[Any] = None
    """The rights that the job needs on its server: a `JobAccess`; None: nobody has declared it."""

    dry_run: bool | None = None
    """Whether a slice only counts what it would handle; None: the job has no dry run."""

    if TYPE_CHECKING:
        dependency: Hashable
        """The job's server or service; jobs with an equal dependency share one breaker."""
    else:
        # Not a property: a subclass may set it on the class or on the instance.
        @cached_property
        def dependency(self) -> Hashable:
            """The job's server or service, by default its name; see `Recruiter` for breakers."""
            return self.name

    @property
    def unit(self) -> str:
        """The name of the items, in the plural: "keys", "fields", "rows"; by default "items".

        The limit, a slice, a dry run, the backlog, the ledger and every page count in it. A
        subclass may set it as a plain attribute.
        """
        return "items"

    @abc.abstractmethod
    def perform(self, slice: Slice) -> int | None:
        """Do one slice.

        Arguments:
            slice: the bound on items and on time.

        Returns: the number of items handled; 0 or None if there was nothing to do. Raises: any
        error; Aborted if another writer came first, Skipped if the job could not begin.
        """

    def backlog(self, seconds: Duration = 5.0) -> Backlog | None:
        """Say how much garbage waits now, and how old it is.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta; one late reply may take all of
                it.

        The package itself gives a number. Returns: None if the job cannot tell, which is the
        default. Raises: ConfigurationError for another length; as `perform`. Changes nothing.
        """
        seconds_of(seconds, "seconds")
        return None

    @property
    def tells_backlog(self) -> bool:
        """Whether the job's class can say how much garbage waits."""
        return type(self).backlog is not Job.backlog

    def within_reach(self, seconds: Duration = 1.0) -> Backlog | None:
        """Say how much garbage a slice may handle at this moment; by default, all of the backlog.

        For a job that may not work everywhere at any time. Arguments, returns and raises: as of
        `backlog`.
        """
        return self.backlog(seconds=seconds_of(seconds, "seconds"))

    def _keep_clean(
        self,
        *structures: Any,
        limit: int,
        name: str | None,
        default: str,
        dry_run: bool | None = None,
    ) -> None:
        """Set what a job of this package's structures has: for the constructors of these jobs.

        The job's dependency is the server of the first structure.

        Arguments:
            limit: as the user gave it.
            name: as the user gave it, None: the default.
            default: the job's name, then.
            dry_run: as the user gave it, None: the job has no dry run.

        Raises: ConfigurationError for a wrong limit.
        """
        self.structures = structures
        self.limit = checked_limit(limit)
        self.name = default if name is None else name
        self.dry_run = dry_run
        self.dependency = structures[0].job_client.identity

    def warm_up(self) -> None:  # noqa: B027 - most jobs have nothing to prepare
        """Prepare for the first slice without a server; by default, do nothing.

        `Recruiter.install` calls it once. A job's own `warm_up` imports modules, reads files and
        builds tables, which would take a first slice of some milliseconds all its time. It connects
        to no server. A forked child keeps its parent's preparations, so nobody calls it again
        there. Errors of it are logged, and the job is installed nevertheless.
        """


class PartJob(Job):
    """A job for one part of a divided job's keyspace; it knows when the part is drained.

    The part's job keeps its place from slice to slice, so one process works through the part with
    one object.
    """

    @property
    @abc.abstractmethod
    def is_drained(self) -> bool:
        """Whether the last slice ended a pass over the whole part that found nothing to do."""


class DivisibleJob(Job):
    """A job that divides into parts, for sweeps by many processes at once."""

    @abc.abstractmethod
    def parts(self, n: int) -> Sequence[Any]:
        """Divide the present work.

        Arguments:
            n: the most parts, 1 or more.

        Returns: plain data that pickle takes, one for each part; empty without any work. Raises:
        ConfigurationError if this job would never come to an end; as `perform`.
        """

    @abc.abstractmethod
    def for_part(self, part: Any) -> PartJob:
        """Return the job of one part; any process may make it. No round trip."""


def checked_parts(n: object) -> int:
    """Return a number of parts. Raises: ConfigurationError unless it is 1 or more."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigurationError(f"the number of parts is {n!r}; expected 1 or more")
    return n


def drawn(size: int, random: Callable[[], float]) -> int:
    """Return the number of the structure that a slice serves; draws only among several."""
    return int(random() * size) if size > 1 else 0


def groups_of(numbers: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """Divide numbers into at most n groups for a sweep; neighbours are in different groups.

    Raises: ConfigurationError unless n is 1 or more.
    """
    return [tuple(numbers[i::n]) for i in range(min(checked_parts(n), len(numbers)))]


class InTurn(PartJob):
    """Serves some structures in turn until each of them is drained.

    Arguments:
        limit: most items of a slice.
        serve: a function that does a slice of the structure of that number and returns the number
            of items handled.
    """

    def __init__(
        self, name: str, limit: int, serve: Callable[[int, Slice], int], numbers: Sequence[int]
    ) -> None:
        self.name, self.limit = name, limit
        self._serve = serve
        self._left = deque(numbers)

    @property
    def is_drained(self) -> bool:
        """Whether a slice has found each structure without work."""
        return not self._left

    def perform(self, slice: Slice) -> int:
        """Do a slice of the next structure; returns and raises as `serve`."""
        if not self._left:
            return 0
        # Also after an error the next slice goes on with another structure.
        self._left.rotate(-1)
        handled = self._serve(self._left[-1], slice)
        if not handled:
            self._left.pop()
        return handled


def refuse_dry_run(name: str, *, dry_run: bool | None) -> None:
    """Refuse a dry run, which would find the same items for ever.

    Raises: ConfigurationError for one.
    """
    if dry_run:
        raise ConfigurationError(
            f"the job {name!r} is a dry run and would never come to an end: ask its backlog()"
        )


def dry_run_of(job: Job) -> Job:
    """Return a copy of a job that counts the items it would handle, and changes nothing.

    Raises: ConfigurationError if the job has no dry run. O(1), no command.
    """
    if job.dry_run is None:
        raise ConfigurationError(f"the job {job.name!r} has no dry run")
    tried = copy.copy(job)
    tried.dry_run = True
    return tried


class FunctionJob(Job):
    """A plain function as a job.

    Arguments:
        function: it takes the slice and returns the number of items handled or None.
        name: by default the function's.
        limit: the most items of one slice.

    Raises: ConfigurationError unless the function is a plain one of one argument, the name is not
    empty and the limit is 1 or more.
    """

    def __init__(
        self,
        function: Callable[[Slice], int | None],
        *,
        name: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        checked_function(function)
        self.name = checked_name(getattr(function, "__name__", None) if name is None else name)
        self.limit = checked_limit(limit)
        self._function = function

    def perform(self, slice: Slice) -> int | None:
        """Call the function with the slice and return its result."""
        return self._function(slice)

    def __repr__(self) -> str:
        return f"FunctionJob({self.name!r}, limit={self.limit})"
