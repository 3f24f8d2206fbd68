"""The recruiter: it dismisses nearly all callers at once, and the rest do one slice each."""

from __future__ import annotations

import os
import random as _random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict, TypeVar, overload
from weakref import WeakSet

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, RateError
from workstealing.recruiting.adaptive import Adaptive, Traffic
from workstealing.recruiting.breakers import SERVER_BREAKERS, Breakers, JobBreakers
from workstealing.recruiting.checks import checked_limit, checked_name, checked_seconds
from workstealing.recruiting.decorators import enlisting
from workstealing.recruiting.deferral import When
from workstealing.recruiting.enlisting import Enlisting
from workstealing.recruiting.explaining import Circumstances, Explanation, explain
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.job import DEFAULT_LIMIT, FunctionJob, Job, dry_run_of
from workstealing.recruiting.lottery import Draw, Installed, Roster, is_disabled
from workstealing.recruiting.slice import OUTCOMES, Outcome, Slice
from workstealing.recruiting.slice_slot import SLICE_SLOT
from workstealing.recruiting.tally import RaisedError

SliceFunction = TypeVar("SliceFunction", bound=Callable[[Slice], "int | None"])
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


DRY_RUN_SECONDS = 10.0
"""The default length of a dry run."""


class LastMeasured(TypedDict):
    """A figure of a job's own, of the last slice that measured it.

    Fields: value; seconds_ago, when that slice ended.
    """

    value: float
    seconds_ago: float


class JobStats(TypedDict):
    """The figures of one job.

    Fields: rate; recruited, the sum of the outcomes after it; items handled; seconds of all slices;
    limit, the most items of the next slice; oldest_seconds, the age of the oldest garbage at the
    last look, None: unknown; breaker_open; paused; adaptive, whether its rate moves by itself; lag,
    its lag target in seconds, None: it has none; keeps_up, whether its slices suffice, None:
    unknown; why, the reason for False or None; errors of its slices, by class; running_seconds of
    the present slice, None: no slice runs; breaker_seconds, for how long its server has not been
    reached, None: it was at the last slice; unreached, the servers that it needs and that were not
    reached at the last attempt, with the seconds since the first fault; servers, how many it has,
    as on a fleet; dry_run, whether its slices only count; measured, the last figures of the job's
    own, by name; unit, what one of its items is, in the plural.
    """

    rate: float
    recruited: int
    worked: int
    idle: int
    aborted: int
    failed: int
    out_of_time: int
    skipped: int
    items: int
    seconds: float
    limit: int
    oldest_seconds: float | None
    breaker_open: bool
    paused: bool
    adaptive: bool
    lag: float | None
    keeps_up: bool | None
    why: str
    errors: dict[str, RaisedError]
    running_seconds: float | None
    breaker_seconds: float | None
    unreached: dict[str, float]
    servers: int
    dry_run: bool
    measured: dict[str, LastMeasured]
    unit: str


class Stats(TypedDict):
    """The figures of one recruiter in this process, since its start or its fork.

    Fields: enlisted; jobs, by name; unreached, the servers of jobs and caches that the process has
    not reached at the last attempt, with the seconds since the first fault, for all recruiters.
    """

    enlisted: int
    jobs: dict[str, JobStats]
    unreached: dict[str, float]


class Recruiter(Enlisting):
    """Recruits a few of the callers who enlist, each for one slice of one job.

    Safe under threads, gevent and fork; a child of a fork draws anew and counts from zero. All
    recruiters of a process together run at most one slice at a time.

    A duration is a number of seconds above 0, or a timedelta.

    Arguments:
        seconds: the length of a slice for jobs without a length of their own.
        random: it returns numbers in [0, 1), and 1.0 to dismiss a caller at any rate (the default
            is reseeded in every forked child, a random.Random of your own is not).
        clock: it measures durations.
        breaker: the longest time that slices leave an unreachable server alone, on average (the
            first fault counts a tenth of it, each further one twice as long).
        longest: the longest that slices may become if shorter ones end before they handle an item,
            for example because round trips take long (by default ten times their length, and 0.25 s
            at most; `seconds` itself for never).

    Raises: ConfigurationError for another duration.
    """

    __slots__ = ("__weakref__", "_breakers", "_longest", "_roster", "_traffic")

    def __init__(
        self,
        *,
        seconds: Duration = 0.010,
        random: Callable[[], float] = _random.random,
        clock: Clock = SYSTEM_CLOCK,
        breaker: Duration = 10.0,
        longest: Duration | None = None,
    ) -> None:
        checked = checked_seconds(seconds, "seconds")
        self._longest = _checked_longest(longest, "longest")
        self._breakers = Breakers(checked_seconds(breaker, "breaker"), clock)
        if not callable(random):
            raise ConfigurationError(f"random= is {random!r}; expected a function of no arguments")
        super().__init__(checked, random, clock)
        self._roster = Roster()
        # Measured only if a rate is adaptive.
        self._traffic: Traffic | None = None
        _RECRUITERS.add(self)

    def _after_fork(self) -> None:
        """Begin anew in a forked child."""
        super()._after_fork()
        self._traffic = None
        for installed in self._roster.all():
            installed.reset()

    def install(
        self,
        job: Job,
        rate: float | Adaptive,
        seconds: Duration | None = None,
        *,
        longest: Duration | None = None,
    ) -> None:
        """Install a job; the next draw may recruit a caller for it.

        Arguments:
            rate: the share of the callers that it wants, 0 < rate <= 1, all rates together at most
                1, or an Adaptive, whose ceiling counts in that sum.
            seconds: the length of its slices, by default the recruiter's.
            longest: the longest that they may become, by default the recruiter's.

        The job is warmed up first: see `Job.warm_up`. Raises: DuplicateJobError, RateError or
        ConfigurationError; then nothing has changed. O(installed jobs), no command.
        """
        if isinstance(job, type) and issubclass(job, Job):
            raise ConfigurationError(
                f"install() expects a job, and {job.__name__} is the class of one: call it, as in"
                f" install({job.__name__}(...), rate=...)"
            )
        if not isinstance(job, Job):
            raise ConfigurationError(
                f"install() expects an instance of Job, not {job!r}; a function becomes a job by"
                " @recruiter.job(rate=...)"
            )
        name = checked_name(getattr(job, "name", None))
        checked_limit(job.limit)
        if seconds is not None:
            seconds = checked_seconds(seconds, f"seconds of job {name!r}")
        longest = _checked_longest(longest, f"longest of job {name!r}")
        if longest is None:
            longest = self._longest
        dependency = job.dependency
        try:
            hash(dependency)
        except TypeError:
            raise ConfigurationError(
                f"the dependency of job {name!r} is {dependency!r}; expected a hashable value"
            ) from None
        with self._lock:
            self._roster.check_new(name, rate)
        # Without the lock: this reads files.
        self._warm_up(job, name)
        with self._lock:
            given = self._roster.check_new(name, rate)
            breaker = JobBreakers(dependency, name, self._breakers)
            installed = Installed(job, given, seconds, breaker, longest=longest, clock=self._clock)
            self._roster.add(installed)
            self._change(Draw(self._roster.all()))

    def _warm_up(self, job: Job, name: str) -> None:
        try:
            job.warm_up()
        except Exception as error:
            if self._timeouts.include(error):
                raise
            self._faults.report(f"the warming up of job {name!r}", error)

    def uninstall(self, name: str) -> None:
        """Remove a job and its figures. A slice of it that is running ends by itself.

        Raises: UnknownJobError. O(installed jobs), no command.
        """
        with self._lock:
            self._roster.remove(name)
            self._change(Draw(self._roster.all()))

    def job(
        self,
        rate: float | Adaptive,
        name: str | None = None,
        limit: int = DEFAULT_LIMIT,
        seconds: Duration | None = None,
        *,
        longest: Duration | None = None,
    ) -> Callable[[SliceFunction], SliceFunction]:
        """Install a function as a job: it takes a slice and returns the number of items handled.

        The decorated function stays the same.

        Arguments:
            rate: as of install().
            name: by default the function's.
            limit: the most items of one slice.
            seconds: as of install().
            longest: as of install().

        Raises: as install().
        """
        if callable(rate):
            raise RateError("a job needs a rate: write @recruiter.job(rate=...), 0 < rate <= 1")

        def decorate(function: SliceFunction) -> SliceFunction:
            job = FunctionJob(function, name=name, limit=limit)
            self.install(job, rate, seconds, longest=longest)
            return function

        return decorate

    def set_rate(self, name: str, rate: float | Adaptive) -> None:
        """Change a job's rate from the next enlist on; a number ends an adaptive rate.

        Arguments:
            rate: as of install().

        Raises: UnknownJobError or RateError; then nothing has changed. O(installed jobs), no
        command.
        """
        with self._lock:
            self._roster.set_rate(name, rate)
            self._change(Draw(self._roster.all()))

    def given_rate(self, name: str) -> float | Adaptive:
        """Return a job's rate as given to install() or set_rate().

        Raises: UnknownJobError.
        """
        with self._lock:
            return self._roster.get(name).given

    def _move_rates(self, now: float) -> None:
        adaptive = [each for each in self._roster.all() if each.controller is not None]
        if not adaptive:
            self._traffic = None
            return
        if self._traffic is None:
            self._traffic = Traffic(now, self._enlisted())
        self._traffic.update(now, self._enlisted())
        changed = [self._performer.move_rate(each, now, self._traffic) for each in adaptive]
        if any(changed):
            self._change(Draw(self._roster.all()))

    def pause(self, name: str | None = None) -> None:
        """Let a job rest: its recruits are SKIPPED until resume().

        The other jobs keep their shares.

        Arguments:
            name: or None for every job that is installed now.

        Raises: UnknownJobError.
        """
        self._set_paused(name, True)

    def resume(self, name: str | None = None) -> None:
        """End a pause.

        Arguments:
            name: or None for every job that is installed now.

        Raises: UnknownJobError.
        """
        self._set_paused(name, False)

    def _set_paused(self, name: str | None, paused: bool) -> None:
        with self._lock:
            for installed in self._roster.all() if name is None else [self._roster.get(name)]:
                installed.paused = paused

    def jobs(self) -> dict[str, Job]:
        """Return the installed jobs by name, in the order of installation."""
        with self._lock:
            return {each.name: each.job for each in self._roster.all()}

    def perform(
        self, name: str, *, limit: int | None = None, seconds: Duration | None = None
    ) -> Outcome:
        """Let this caller do one slice of a job, without a draw; its outcome counts.

        The method is for command lines and pages for administrators. A pause, an open breaker and
        another slice of this process hold it back (SKIPPED); WORKSTEALING_DISABLED does not.

        Arguments:
            limit: of this slice, by default the job's own.
            seconds: of this slice, by default the job's own.

        Raises: UnknownJobError; of the job's errors the same as enlist().
        """
        bounds = _checked_bounds(limit, seconds)
        with self._lock:
            installed = self._roster.get(name)
        return self._performer.serve(installed, bounds)

    def slice_seconds(self, name: str) -> tuple[float, float]:
        """Return the given length of a job's slices in seconds, and the longest they may become.

        Raises: UnknownJobError. No command.
        """
        with self._lock:
            return self._performer.lengths(self._roster.get(name))

    def dry_run(
        self, name: str, *, limit: int | None = None, seconds: Duration | None = None
    ) -> int:
        """Return the number of items that a slice of a job would handle now; change nothing.

        Arguments as of perform(), but ten seconds by default, because a person waits, and the
        count of a large backlog takes longer than a slice. Raises: UnknownJobError;
        ConfigurationError if the job has no dry run; the job's own errors.
        """
        bounds = _checked_bounds(limit, DRY_RUN_SECONDS if seconds is None else seconds)
        with self._lock:
            installed = self._roster.get(name)
        return dry_run_of(installed.job).perform(self._performer.new_slice(installed, *bounds)) or 0

    def stats(self) -> Stats:
        """Return the figures of this process, as plain data.

        Returns: {"enlisted": count, "jobs": {name: JobStats}, "unreached": {server: seconds}}.
        O(installed jobs), no command.
        """
        with self._lock:
            return {
                "enlisted": self._enlisted(),
                "jobs": {each.name: self._job_stats(each) for each in self._roster.all()},
                "unreached": SERVER_BREAKERS.unreached(),
            }

    def explain(self, job: str | Job) -> Explanation:
        """Say why a job did or did not run lately in this process.

        The reasons: it is not installed, WORKSTEALING_DISABLED, a pause, an open breaker, a slice
        that does not end, the traffic, the rate, and the outcomes and errors of its slices.

        Arguments:
            job: an installed job or a name, also of a job that is not installed.

        Returns: an `Explanation`; `print()` shows it. Raises: ConfigurationError for neither a job
        nor a name. O(installed jobs), no command.
        """
        if not isinstance(job, str | Job):
            raise ConfigurationError(f"explain() was given {job!r}; expected a job or its name")
        name = job if isinstance(job, str) else job.name
        ran_at = unreached = hindered = None
        with self._lock:
            stats = self.stats()
            figures = stats["jobs"].get(name)
            now = self._clock.monotonic()
            lately, quiet = self._lately(now)
            if figures is not None:
                installed = self._roster.get(name)
                ran_at, breaker = installed.tally.ran_at, installed.breaker
                unreached = breaker.open_seconds(now) if breaker.held_back(now) else None
                hindered = breaker.others_seconds(now)
        holder = SLICE_SLOT.holder()
        known = Circumstances(
            name,
            "this process",
            now - self._began,
            tuple(stats["jobs"]),
            is_disabled(),
            enlisted=stats["enlisted"],
            quiet_seconds=quiet,
            lately=lately,
        )
        if figures is None:
            return explain(known)
        return explain(
            replace(
                known,
                paused="this process" if figures["paused"] else None,
                unreached_seconds=unreached,
                hindered_seconds=hindered,
                servers=figures["servers"],
                running=None if holder is None else holder[0],
                running_seconds=None if holder is None else _seconds_since(holder[1]),
                rate=figures["rate"],
                adaptive=figures["adaptive"],
                outcomes={each: figures[each] for each in OUTCOMES},  # type: ignore[literal-required]
                items=figures["items"],
                ran_seconds=None if ran_at is None else now - ran_at,
                errors={
                    each: (raised["count"], raised["seconds_ago"])
                    for each, raised in figures["errors"].items()
                },
                keeps_up=figures["keeps_up"],
                why=figures["why"],
            )
        )

    def _job_stats(self, installed: Installed) -> JobStats:
        outcomes, items, seconds = self._performer.figures(installed)
        health = self._performer.health(installed)
        is_dry = bool(installed.job.dry_run)
        if is_dry:
            health = health.of_dry_run()
        now = self._clock.monotonic()
        return {
            "rate": installed.rate,
            "recruited": sum(outcomes.values()),
            "worked": outcomes[Outcome.WORKED],
            "idle": outcomes[Outcome.IDLE],
            "aborted": outcomes[Outcome.ABORTED],
            "failed": outcomes[Outcome.FAILED],
            "out_of_time": outcomes[Outcome.OUT_OF_TIME],
            "skipped": outcomes[Outcome.SKIPPED],
            "items": items,
            "seconds": seconds,
            "limit": installed.limit,
            "oldest_seconds": installed.oldest_seconds,
            "breaker_open": installed.breaker.is_open(now),
            "paused": installed.paused,
            "adaptive": installed.controller is not None,
            "lag": installed.given.lag if isinstance(installed.given, Adaptive) else None,
            "keeps_up": health.keeps_up,
            "why": health.why,
            "errors": self._performer.errors(installed),
            "running_seconds": _running_seconds(installed.name),
            "breaker_seconds": installed.breaker.open_seconds(now),
            "measured": {
                what: {"value": value, "seconds_ago": max(0.0, now - at)}
                for what, (value, at) in installed.measured.items()
            },
            "unreached": installed.breaker.unreached(now),
            "servers": installed.breaker.servers,
            "dry_run": is_dry,
            "unit": installed.job.unit,
        }

    @overload
    def enlists(self, function: AnyFunction, /) -> AnyFunction: ...

    @overload
    def enlists(
        self, function: None = None, /, *, when: When | None = None
    ) -> Callable[[AnyFunction], AnyFunction]: ...

    def enlists(
        self, function: Callable[..., Any] | None = None, /, *, when: When | None = None
    ) -> Callable[..., Any]:
        """Decorate a function: each call of it that ends without an exception enlists.

        A plain function enlists before its caller has the result; a recruited caller waits for the
        slice, unless a web integration defers the enlist until the response has gone out. A
        coroutine function draws on the event loop; its slice runs in a thread of the loop's default
        executor, and nobody awaits it. A generator, plain or asynchronous, enlists after its last
        item. An object goes by its `__call__`. If a plain function returns a coroutine, a generator
        or a future, the enlist waits for its end. Any other awaitable passes unchanged, without an
        enlist. An exception of the function passes through, without an enlist.

        Arguments:
            when: a function that takes the result and says whether to enlist.

        `when` gets None from an asynchronous generator, and the response object in a web
        integration. An error of `when` is logged once a minute and counts as no. Raises:
        ConfigurationError if the function is no function.
        """
        if function is not None:
            return enlisting(self, function, when)
        return lambda decorated: enlisting(self, decorated, when)

    def add_hook(self, hook: Hooks) -> None:
        """Let this hook hear of enlists, recruits and outcomes. Adding it twice changes nothing.

        Raises: ConfigurationError if it lacks a method that every hook has.
        """
        is_new = self._hooks.add(hook)
        added = getattr(hook, "on_added", None)
        if is_new and callable(added):
            added(self)

    def hooks(self) -> tuple[Hooks, ...]:
        """Return the hooks, in the order of their adding."""
        return self._hooks.all()

    def reraise(self, *types: type[BaseException]) -> None:
        """Let exceptions of these classes, the host's own time-outs, pass through enlist().

        Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException always pass, and so does every
        error that is no Exception. The slice counts as FAILED all the same.
        Raises: ConfigurationError if one is no exception class.
        """
        self._timeouts.register(*types)

    def __repr__(self) -> str:
        rates = ", ".join(f"{each.name!r}: {each.rate:g}" for each in self._roster.all())
        return f"<Recruiter {{{rates}}}>"


def _running_seconds(name: str) -> float | None:
    """Return the seconds of the job's running slice in this process; None: no slice runs."""
    holder = SLICE_SLOT.holder()
    if holder is None or holder[0] != name:
        return None
    return _seconds_since(holder[1])


def _seconds_since(start: float) -> float:
    return max(0.0, SYSTEM_CLOCK.monotonic() - start)


def _checked_longest(seconds: Duration | None, what: str) -> float | None:
    return None if seconds is None else checked_seconds(seconds, what)


def _checked_bounds(limit: int | None, seconds: Duration | None) -> tuple[int | None, float | None]:
    """Return a slice's bounds, checked. Raises: ConfigurationError."""
    return (
        None if limit is None else checked_limit(limit),
        None if seconds is None else checked_seconds(seconds, "seconds"),
    )


_RECRUITERS: WeakSet[Recruiter] = WeakSet()


def _after_fork_in_child() -> None:
    for recruiter in list(_RECRUITERS):
        recruiter._after_fork()  # noqa: SLF001 - this module's own class


if hasattr(os, "register_at_fork"):
    # After random's own hook, which the import above has registered.
    os.register_at_fork(after_in_child=_after_fork_in_child)


default_recruiter = Recruiter()
"""The recruiter behind `workstealing.install`, `job`, `enlist`, `enlists` and the rest."""
