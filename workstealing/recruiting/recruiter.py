"""The recruiter: it dismisses nearly everybody at once, and lets the rest do one slice each."""

from __future__ import annotations

import os
import random as _random
from collections.abc import Callable
from typing import Any, TypedDict, TypeVar, overload
from weakref import WeakSet

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, RateError
from workstealing.recruiting.adaptive import Adaptive, Traffic
from workstealing.recruiting.breaker import Breakers, Guard
from workstealing.recruiting.checks import checked_limit, checked_name, checked_seconds
from workstealing.recruiting.decorators import When, enlisting
from workstealing.recruiting.enlisting import Enlisting
from workstealing.recruiting.flight import FLIGHT
from workstealing.recruiting.health import RaisedError
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.job import DEFAULT_LIMIT, FunctionJob, Job, dry_run_of
from workstealing.recruiting.lottery import Draw, Installed, Roster
from workstealing.recruiting.slice import Outcome, Slice

SliceFunction = TypeVar("SliceFunction", bound=Callable[[Slice], "int | None"])
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


DRY_RUN_SECONDS = 10.0
"""How long a dry run may take unless told otherwise."""


class JobStats(TypedDict):
    """The figures of one job: `recruited` is the sum of the outcomes after it.

    `limit` is the most items of its next slice; `oldest_seconds` the age of the oldest garbage that
    its last look has seen, None: unknown; `adaptive` says whether its rate moves by itself,
    `lag` its lag target in seconds, None: it has none;
    `keeps_up` whether its slices suffice for the garbage, None: unknown, and `why` not, or why
    nobody knows; `errors` what its slices have raised, by class; `running_seconds` how long the
    slice that runs now has been running, None: none does; `breaker_seconds` for how long its server
    has not been reached, None: it has.
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


class Stats(TypedDict):
    """The figures of one recruiter in this process, since its start or its fork."""

    enlisted: int
    jobs: dict[str, JobStats]


class Recruiter(Enlisting):
    """Recruits a few of the callers who enlist, each for one slice of one job.

    Safe under threads, gevent and fork; a child of a fork draws anew and counts from zero. All
    recruiters of a process together run at most one slice at a time.

    Arguments: seconds, the length of a slice unless a job is installed with its own; random, which
    returns numbers in [0, 1), and 1.0 for never (the default is reseeded in every forked child; a
    random.Random of your own is not); clock, what seconds are measured with; breaker, for
    how long at most, on average, a server that could not be reached is left alone (a tenth of it
    after the first fault, then twice as long each time); longest, up to which the slices of
    a job may be lengthened whose own length comes to nothing, because round trips take long, say
    (by default ten times their length, but at most 0.25 s; no more than `seconds` for never).
    Raises: ConfigurationError for a duration that is no number above 0.
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
        self._breakers = Breakers(checked_seconds(breaker, "breaker"))
        if not callable(random):
            raise ConfigurationError(f"random= is {random!r}; expected a function of nothing")
        super().__init__(checked, random, clock)
        self._roster = Roster()
        # Measured only where a rate is adaptive.
        self._traffic: Traffic | None = None
        _RECRUITERS.add(self)

    def after_fork(self) -> None:
        """Begin anew in a forked child; called by the package itself."""
        super().after_fork()
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
        """Install a job, so that callers are recruited for it from now on.

        Arguments: job; rate, the share of the enlisted that it wants, 0 < rate <= 1, all rates
        together at most 1, or an Adaptive, whose ceiling counts in that sum; seconds, the length of
        its slices, by default the recruiter's; longest, up to which they may be lengthened,
        by default as the recruiter says. The job is warmed up first: see `Job.warm_up`.
        Raises: DuplicateJobError, RateError or ConfigurationError; then nothing has changed.
        O(installed jobs), no command.
        """
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
                f"the dependency of job {name!r} is {dependency!r}; expected something hashable"
            ) from None
        with self._lock:
            self._roster.check_new(name, rate)
        # It reads files, so nobody else should wait for the lock meanwhile.
        self._warm_up(job, name)
        with self._lock:
            given = self._roster.check_new(name, rate)
            breaker = Guard(dependency, name, self._breakers)
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
        """Decorate a function that takes a slice and returns how many items it handled: a job.

        The function stays what it is. Arguments: rate, as of install(); name, by default the
        function's; limit, the most items of one slice; seconds and longest, as of
        install().
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

        Arguments: name; rate, as of install(). Raises: UnknownJobError or RateError; then nothing
        has changed. O(installed jobs), no command.
        """
        with self._lock:
            self._roster.set_rate(name, rate)
            self._change(Draw(self._roster.all()))

    def given_rate(self, name: str) -> float | Adaptive:
        """Return a job's rate as it was given to install() or set_rate().

        Raises: UnknownJobError.
        """
        with self._lock:
            return self._roster.get(name).given

    def _settle(self, now: float) -> None:
        adaptive = [each for each in self._roster.all() if each.controller is not None]
        if not adaptive:
            self._traffic = None
            return
        if self._traffic is None:
            self._traffic = Traffic(now, self._enlisted())
        self._traffic.update(now, self._enlisted())
        changed = [self._performer.settle(each, now, self._traffic) for each in adaptive]
        if any(changed):
            self._change(Draw(self._roster.all()))

    def pause(self, name: str | None = None) -> None:
        """Let a job rest: whom the lottery picks for it is SKIPPED until resume().

        The other jobs' shares stay what they are. Arguments: name, or None for every job that is
        installed now. Raises: UnknownJobError.
        """
        self._set_paused(name, True)

    def resume(self, name: str | None = None) -> None:
        """End a pause.

        Arguments: name, or None for every job that is installed now. Raises: UnknownJobError.
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
        """Let this caller do one slice of a job, without a draw; what became of it is counted.

        For command lines and pages for administrators: a pause, an open breaker and another slice
        of this process hold it back (SKIPPED), WORKSTEALING_DISABLED does not.

        Arguments: name; limit, items, and seconds, of this slice, by default the job's own.
        Raises: UnknownJobError; of the job's errors, as enlist(), only what must reach the host.
        """
        bounds = _checked_bounds(limit, seconds)
        with self._lock:
            installed = self._roster.get(name)
        return self._performer.serve(installed, bounds)

    def slice_seconds(self, name: str) -> tuple[float, float]:
        """Return the length of a job's slices in seconds: as given, and as they may be lengthened.

        Raises: UnknownJobError. No command.
        """
        with self._lock:
            return self._performer.lengths(self._roster.get(name))

    def dry_run(
        self, name: str, *, limit: int | None = None, seconds: Duration | None = None
    ) -> int:
        """Return how many items a slice of a job would handle now; nothing is changed or counted.

        Arguments: as of perform(), but for ten seconds by default: a person waits for it, and to
        count a large backlog takes longer than a slice. Raises: UnknownJobError; ConfigurationError
        if the job has no dry run; the job's own errors.
        """
        bounds = _checked_bounds(limit, DRY_RUN_SECONDS if seconds is None else seconds)
        with self._lock:
            installed = self._roster.get(name)
        return dry_run_of(installed.job).perform(self._performer.new_slice(installed, *bounds)) or 0

    def stats(self) -> Stats:
        """Return the figures of this process, as plain data.

        Returns: {"enlisted": count, "jobs": {name: JobStats}}; `recruited` is the sum of the
        outcomes after it, `seconds` is what all slices of the job took; the others as in JobStats.
        O(installed jobs).
        """
        with self._lock:
            return {
                "enlisted": self._enlisted(),
                "jobs": {each.name: self._job_stats(each) for each in self._roster.all()},
            }

    def _job_stats(self, installed: Installed) -> JobStats:
        outcomes, items, seconds = self._performer.figures(installed)
        verdict = self._performer.verdict(installed)
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
            "keeps_up": verdict.keeps_up,
            "why": verdict.why,
            "errors": self._performer.errors(installed),
            "running_seconds": _running_seconds(installed.name),
            "breaker_seconds": installed.breaker.open_seconds(now),
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
        """Decorate a function, so that each call of it that ends without an exception enlists.

        A plain function enlists before its result reaches the caller, who waits for the slice when
        recruited (a web integration puts the enlist off until the response has gone out). A
        coroutine function draws on the event loop; the slice runs in a thread of the loop's default
        executor and nobody awaits it. A generator, plain or asynchronous, enlists after its last
        item; an object goes by its `__call__`. Where a plain function returns a coroutine, a
        generator or a future, the enlist waits for its end; any other awaitable passes unchanged,
        and nobody enlists. An exception of the function passes through, and nobody enlists.

        Arguments: function; when, called with the function's result (None for an asynchronous
        generator; the response object where a web integration is at work): enlist only if it
        answers true. A `when` that raises is logged once a minute and stands for no.
        Raises: ConfigurationError for what is no function.
        """
        if function is not None:
            return enlisting(self, function, when)
        return lambda decorated: enlisting(self, decorated, when)

    def add_hook(self, hook: Hooks) -> None:
        """Tell this hook, too, of the enlisted, the recruited and the outcomes; twice counts once.

        Raises: ConfigurationError when it lacks one of the methods that every hook has.
        """
        is_new = self._hooks.add(hook)
        added = getattr(hook, "on_added", None)
        if is_new and callable(added):
            added(self)

    def hooks(self) -> tuple[Hooks, ...]:
        """Return the hooks, in the order in which they were added."""
        return self._hooks.all()

    def reraise(self, *types: type[BaseException]) -> None:
        """Let exceptions of these classes pass through enlist(): time-outs that the host raises.

        Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException pass without being named, and so
        does whatever is no Exception. They count as FAILED all the same.
        Raises: ConfigurationError for what is no exception class.
        """
        self._timeouts.register(*types)

    def __repr__(self) -> str:
        rates = ", ".join(f"{each.name!r}: {each.rate:g}" for each in self._roster.all())
        return f"<Recruiter {{{rates}}}>"


def _running_seconds(name: str) -> float | None:
    """Return for how long a slice of the job has been running in this process, None: none is."""
    holder = FLIGHT.holder()
    if holder is None or holder[0] != name:
        return None
    return max(0.0, SYSTEM_CLOCK.monotonic() - holder[1])


def _checked_longest(seconds: Duration | None, what: str) -> float | None:
    return None if seconds is None else checked_seconds(seconds, what)


def _checked_bounds(limit: int | None, seconds: Duration | None) -> tuple[int | None, float | None]:
    """Return a slice's bounds. Raises: ConfigurationError for one that bounds nothing."""
    return (
        None if limit is None else checked_limit(limit),
        None if seconds is None else checked_seconds(seconds, "seconds"),
    )


_RECRUITERS: WeakSet[Recruiter] = WeakSet()


def _after_fork_in_child() -> None:
    for recruiter in list(_RECRUITERS):
        recruiter.after_fork()


if hasattr(os, "register_at_fork"):
    # After random's own, which was registered when it was imported above.
    os.register_at_fork(after_in_child=_after_fork_in_child)


default_recruiter = Recruiter()
"""The recruiter behind `workstealing.install`, `job`, `enlist`, `enlists` and the rest."""
