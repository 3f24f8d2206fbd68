"""One recruit's service: the slot, the breaker, the slice and its outcome."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from workstealing.clock import Clock
from workstealing.errors import OutOfTime, Skipped, blamed, is_abort, is_connection_fault
from workstealing.recruiting.adaptive import Adaptive, Traffic
from workstealing.recruiting.breakers import Server
from workstealing.recruiting.checks import checked_items
from workstealing.recruiting.faults import FaultLog, HostTimeouts
from workstealing.recruiting.health import Health
from workstealing.recruiting.hooks import HookList
from workstealing.recruiting.lottery import Installed
from workstealing.recruiting.slice import Outcome, Report, Slice, seconds_for, spoken
from workstealing.recruiting.slice_slot import SLICE_SLOT, Run
from workstealing.recruiting.tally import RaisedError

if TYPE_CHECKING:
    from asyncio import Future


# A smaller change of a rate is not worth a new draw.
_UNNOTICED = 0.02

Bounds = tuple[int | None, float | None]


class Performer:
    """Performs slices, one at a time in this process, and keeps the figures.

    Arguments:
        seconds: the default length of a slice.
        hooks: the recruiter's own.
        faults: the recruiter's own.
        timeouts: the recruiter's own.
    """

    __slots__ = ("_clock", "_faults", "_hooks", "_lock", "_seconds", "_timeouts")

    def __init__(
        self,
        seconds: float,
        clock: Clock,
        hooks: HookList,
        faults: FaultLog,
        timeouts: HostTimeouts,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._hooks = hooks
        self._faults = faults
        self._timeouts = timeouts
        self.after_fork()

    def after_fork(self) -> None:
        """Take a new lock, because the old one's holder may not exist in this process."""
        # Re-entrant: a signal handler may be recruited while the interrupted frame holds it.
        self._lock = threading.RLock()

    def serve(self, installed: Installed, bounds: Bounds = (None, None)) -> Outcome:
        """Let this caller do one slice of the job, unless the job or the process is not free.

        Arguments:
            bounds: the slice's items and seconds, None: the job's own.

        Returns: any outcome but DISMISSED. Raises: of the job's errors the host's time-outs and the
        ones that are no Exception. The process is free for the next slice then, and the outcome
        counted.
        """
        self._hooks.recruited(installed.name)
        if installed.paused:
            return self.skip(installed)
        outcome = SLICE_SLOT.run(installed.name, self._perform, installed, bounds)
        return self.skip(installed) if outcome is None else outcome

    def decline(self, installed: Installed) -> Outcome:
        """Count a recruit as skipped who has no thread or no moment for a slice."""
        self._hooks.recruited(installed.name)
        return self.skip(installed)

    def skip(self, installed: Installed) -> Outcome:
        """Count a recruit as skipped; touch no server."""
        self._record(installed, Outcome.SKIPPED, 0, 0.0, None)
        if not (installed.paused or self._is_spent(installed)):
            with self._lock:
                is_due = installed.tally.skip(self._clock.monotonic())
            if is_due:
                self._say_if_behind(installed)
        return Outcome.SKIPPED

    def figures(self, installed: Installed) -> tuple[dict[Outcome, int], int, float]:
        """Return a job's outcomes, its items and its seconds, all of one moment."""
        with self._lock:
            return installed.outcomes.copy(), installed.items, installed.spent

    def health(self, installed: Installed) -> Health:
        """Say whether a job keeps up, by its last slices, and why not."""
        if installed.paused:
            return Health(None, "it is paused")
        if self._is_spent(installed):
            return Health(None, "its daily cap is spent, so it rests until the next day")
        given = installed.given
        lag = given.lag if isinstance(given, Adaptive) else None
        now = self._clock.monotonic()
        with self._lock:
            health = installed.tally.health(now, lag)
        return health.without(installed.breaker.unreached(now))

    def errors(self, installed: Installed) -> dict[str, RaisedError]:
        """Return the errors of a job's slices by class."""
        with self._lock:
            return installed.tally.errors(self._clock.monotonic())

    def new_slice(
        self, installed: Installed, limit: int | None = None, seconds: float | None = None
    ) -> Slice:
        """Return a slice that begins now, by default with the job's own bounds."""
        if seconds is None:
            seconds = installed.slice_length.seconds(self._given(installed))
        return Slice(installed.limit if limit is None else limit, seconds, self._clock)

    def lengths(self, installed: Installed) -> tuple[float, float]:
        """Return the given length of a job's slices, and the longest that they may become."""
        given = self._given(installed)
        return given, installed.slice_length.longest(given)

    def _given(self, installed: Installed) -> float:
        return self._seconds if installed.seconds is None else installed.seconds

    def _perform(self, installed: Installed, bounds: Bounds) -> Outcome:
        started = self._clock.monotonic()
        # The rate moves once a second, and a second may bring thousands of recruits.
        if installed.breaker.is_open(started) or not self._may_spend(installed):
            return self.skip(installed)
        outcome, items = Outcome.FAILED, 0
        error: BaseException | None = None
        given_up: Exception | None = None
        slice: Slice | None = None
        try:
            slice = self.new_slice(installed, *bounds)
            slice.held_back = installed.breaker.held_back(started)
            items = checked_items(installed.job.perform(slice), installed.name)
            server = _server_of(installed)
            if not items and server is not None:
                server.confirm(slice)
            outcome = Outcome.WORKED if items else Outcome.IDLE
        except Skipped as raised:
            outcome, given_up = Outcome.SKIPPED, raised
        except OutOfTime as raised:
            outcome, given_up = Outcome.OUT_OF_TIME, raised
        except Exception as raised:
            if is_abort(raised):
                outcome, given_up = Outcome.ABORTED, raised
            else:
                error = raised
                if self._timeouts.include(raised):
                    raise
        finally:
            # No except clause: an error that is no Exception may be on its way to the host.
            ended = self._clock.monotonic()
            if outcome is Outcome.FAILED:
                error = error or sys.exc_info()[1]
            is_due = is_longest = False
            try:
                if error is not None and (blamed(error) is not None or is_connection_fault(error)):
                    installed.breaker.trip(error, ended)
                elif outcome not in (Outcome.SKIPPED, Outcome.OUT_OF_TIME):
                    # A slice that did not begin, or got no answer, says nothing of the server.
                    installed.breaker.recover(None if slice is None else slice.served)
                if slice is not None:
                    is_due = self._observe(installed, slice, outcome, items, ended)
                    is_longest = self._lengthen(installed, slice, outcome, ended)
            finally:
                self._record(installed, outcome, items, ended - started, error)
            if isinstance(error, Exception) and not self._timeouts.include(error):
                self._faults.report(f"job {installed.name!r}", error)
            elif is_longest and slice is not None:
                self._faults.warn(f"job {installed.name!r}", _too_short(installed, slice))
            elif is_due and outcome is not Outcome.OUT_OF_TIME:
                self._say_if_behind(installed)
            if given_up is not None:
                self._faults.tell(f"job {installed.name!r}", spoken(outcome.value), given_up)
            # The traceback holds this frame, and this frame would hold the traceback.
            error = given_up = None
        return outcome

    def _say_if_behind(self, installed: Installed) -> None:
        """Log that a job does not keep up, a line a minute at most.

        A slice that failed or was too short has a line of its own instead.
        """
        health = self.health(installed)
        if health.keeps_up is False:
            self._faults.warn(f"job {installed.name!r} does not keep up", health.why)

    def _lengthen(self, installed: Installed, slice: Slice, outcome: Outcome, now: float) -> bool:
        """Adapt the next slice's length; say whether the longest slice was too short."""
        given = self._given(installed)
        slice_length = installed.slice_length
        is_longest = slice.seconds >= slice_length.longest(given)
        # A length that was given by hand says nothing of the job's own.
        if slice.seconds == slice_length.seconds(given):
            server = _server_of(installed)
            trip = None if server is None else server.round_trip()
            with self._lock:
                slice_length.see(outcome, given, trip, now)
        return is_longest and outcome is Outcome.OUT_OF_TIME

    def move_rate(self, installed: Installed, now: float, traffic: Traffic) -> bool:
        """Move a job's adaptive rate; say whether it has changed noticeably."""
        controller = installed.controller
        if controller is None:
            return False
        try:
            allowance = controller.allowance()
        except Exception as error:
            if self._timeouts.include(error):
                raise
            # This rate stays; the other jobs' rates go on.
            self._report_spending(installed, error)
            return False
        with self._lock:
            rate = controller.move_rate(now, traffic, allowance)
        if abs(rate - installed.rate) <= _UNNOTICED * installed.rate:
            return False
        installed.rate = rate
        return True

    def _is_spent(self, installed: Installed) -> bool:
        """Say whether a job has spent its daily cap; an error of the spending says no."""
        if installed.controller is None:
            return False
        try:
            return installed.controller.is_spent
        except Exception as error:
            if self._timeouts.include(error):
                raise
            self._report_spending(installed, error)
            return False

    def _may_spend(self, installed: Installed) -> bool:
        """Say whether the daily cap lets a slice begin; an error of the spending says yes."""
        if installed.controller is None:
            return True
        try:
            return installed.controller.claim()
        except Exception as error:
            if self._timeouts.include(error):
                raise
            self._report_spending(installed, error)
            return True

    def _spend(self, installed: Installed, operations: int) -> None:
        if installed.controller is None:
            return
        try:
            # Without the lock: the spending may have one of its own.
            installed.controller.spend(operations)
        except Exception as error:
            if self._timeouts.include(error):
                raise
            self._report_spending(installed, error)

    def _observe(
        self,
        installed: Installed,
        slice: Slice,
        outcome: Outcome,
        items: int,
        now: float,
    ) -> bool:
        """Take in a slice's report; say whether it is time to assess the job."""
        if outcome is Outcome.SKIPPED:
            self._spend(installed, 0)
            return False
        oldest, backlog = slice.oldest_seconds, slice.backlog
        took = now - (slice.deadline - slice.seconds)
        # A guess for a job that does not count its commands: a look, and one command an item.
        operations = slice.operations or 1 + items
        seen = Report(outcome, items, slice.limit, took, slice.seconds, oldest, operations)
        with self._lock:
            if oldest is not None:
                installed.oldest_seconds = oldest
            if backlog is not None:
                installed.backlog = backlog
            if oldest is not None or backlog is not None:
                installed.observed_at = now
            if slice.measured:
                installed.note_measured(slice.measured, now)
            is_due = installed.tally.add(now, seen)
            controller = installed.controller
            if controller is not None:
                controller.see(now, seen)
        if oldest is not None or backlog is not None:
            self._hooks.observed(installed.name, oldest, backlog)
        if slice.measured:
            self._hooks.measured(installed.name, slice.measured)
        self._spend(installed, operations)
        return is_due

    def _report_spending(self, installed: Installed, error: Exception) -> None:
        self._faults.report(f"the spending of job {installed.name!r}", error)

    def _record(
        self,
        installed: Installed,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        with self._lock:
            installed.outcomes[outcome] += 1
            installed.items += items
            installed.spent += seconds
            if error is not None:
                installed.tally.fail(self._clock.monotonic(), error)
        self._hooks.outcome(installed.name, outcome, items, seconds, error)


def _server_of(installed: Installed) -> Server | None:
    """Return the job's dependency if it is a `Server`."""
    dependency = installed.job.dependency
    return dependency if isinstance(dependency, Server) else None


def _too_short(installed: Installed, slice: Slice) -> str:
    """Return the complaint about a slice that was too short, with a length that suffices."""
    server = _server_of(installed)
    trip = None if server is None else server.round_trip()
    why, enough = "", 2 * slice.seconds
    if trip:
        why = f" at round trips of {1000 * trip:.3g} ms"
        enough = max(enough, seconds_for(trip))
    return (
        f"its slice of {1000 * slice.seconds:g} ms, the longest that is allowed, was over before"
        f" it handled any item{why}: install it with longer slices (seconds={enough:g})"
    )


class LoopSlices:
    """Runs slices in threads of the running loop's default executor. Nobody awaits them.

    Arguments:
        performer: it does the slices.
    """

    __slots__ = ("_flying", "_performer")

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._flying: tuple[Run[Outcome], Future[Any]] | None = None

    def after_fork(self) -> None:
        """Forget the parent's slices, because their threads do not exist in this process."""
        self._flying = None

    def serve(self, installed: Installed) -> Outcome | None:
        """Start a slice in a thread.

        Returns: None if it has been started; SKIPPED if an earlier slice still waits for a thread
        or runs, or if the loop has no thread.
        """
        # Imported here, because asyncio is heavy and most processes never run a loop.
        import asyncio

        if self._is_free():
            try:
                loop = asyncio.get_running_loop()
                run = Run(self._performer.serve, installed)
                # The loop keeps weak references only.
                self._flying = run, loop.run_in_executor(None, run)
            except RuntimeError:
                # It is another kind of loop, or its executor has shut down.
                pass
            else:
                return None
        return self._performer.decline(installed)

    def _is_free(self) -> bool:
        if self._flying is None:
            return True
        run, future = self._flying
        # A loop that was closed too early, or was left open, never finishes its future.
        return run.is_over or future.done() or future.get_loop().is_closed()


class DrawnRecruit:
    """A recruit that has not served yet.

    Arguments:
        performer: the recruiter's own.
        loop_slices: the recruiter's own.
        installed: the job.
    """

    __slots__ = ("_installed", "_loop_slices", "_performer")

    def __init__(self, performer: Performer, loop_slices: LoopSlices, installed: Installed) -> None:
        self._performer = performer
        self._loop_slices = loop_slices
        self._installed = installed

    def serve(self) -> Outcome:
        """Do the slice here and now; returns and raises as `Recruiter.enlist`."""
        return self._performer.serve(self._installed)

    def serve_on_loop(self) -> Outcome | None:
        """Do the slice in a thread of the running loop; returns as `LoopSlices.serve`."""
        return self._loop_slices.serve(self._installed)

    def skip(self) -> Outcome:
        """Count this recruit as SKIPPED, because it has no moment for a slice."""
        return self._performer.decline(self._installed)
