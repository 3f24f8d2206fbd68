"""Celery: a worker enlists after each task that has succeeded, and now and then while it is idle.

    app = Celery("shop", broker=...)
    WorkStealing(app, recruiter)

After a task: the process and thread of the task enlist when its result is stored, by the signal
task_postrun. This process is a child of the prefork pool, or the worker itself in the solo pool. A
task does not enlist if it failed, will be tried again, was ignored or rejected, or was called
eagerly. A task with less than a second left of its time limits does not enlist either: a slice
never makes a task late.

While idle: the worker's main process enlists, by its own timer, as long as no task is reserved. An
idle prefork child waits for its pipe and cannot enlist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from workstealing.clock import SYSTEM_CLOCK, Duration
from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.integrations.wsgi import or_default
from workstealing.recruiting.checks import checked_seconds
from workstealing.recruiting.deferral import Deferral, Enlister, When, current

try:
    from celery import bootsteps, signals, states
    from celery.worker import state as worker_state
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "celery":
        raise
    raise MissingExtraError("celery", "Celery") from error

# Longer than any slice with its socket's time-out.
_MARGIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A task that has just succeeded; `when` receives it.

    Fields: task: Celery's own object, with `name` and still with `request`; task_id; args; kwargs;
    result.
    """

    task: Any
    task_id: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    result: Any


class WorkStealing:
    """Lets the workers of a Celery app enlist after tasks and while they are idle.

    Arguments:
        recruiter: by default the one behind `workstealing.enlist`.
        when: it receives a `Finished` and says whether this task's process enlists, None: each one
            does.
        idle_interval: the time between two enlists of an idle worker, a number of seconds or a
            timedelta, None: it never enlists.

    A task decorated with `Recruiter.enlists` (below `@app.task`) decides for itself instead.

    Make it where the app is made, before its worker starts. Making it costs no message and no
    command. A recruited child begins its next task after its slice, and a recruited idle worker
    takes its next message after it. Raises: ConfigurationError if this app has it already, or for a
    wrong duration; then nothing has changed.
    """

    def __init__(
        self,
        app: Any,
        recruiter: Enlister | None = None,
        when: When | None = None,
        idle_interval: Duration | None = 1.0,
    ) -> None:
        if app in _INSTALLED:
            raise ConfigurationError(
                f"the Celery app {app.main!r} has WorkStealing already; install it once"
            )
        interval = None
        if idle_interval is not None:
            interval = checked_seconds(idle_interval, "idle_interval")
        self._recruiter = or_default(recruiter)
        self._when = when
        if interval is not None:
            app.steps["worker"].add(_idle_step(self, interval))
        _INSTALLED[app] = self
        # Celery ignores a second connection under the same uid.
        signals.task_prerun.connect(_started, weak=False, dispatch_uid="workstealing.started")
        signals.task_postrun.connect(_ended, weak=False, dispatch_uid="workstealing.ended")

    def start(self, task: Any, task_id: str) -> None:
        """Begin to defer the enlists of one task; the signal calls this."""
        outer = current.get()
        if task.request.is_eager or not (
            # Tasks of a worker do not nest: an open one was cut short at its end.
            outer is None or outer.closed or isinstance(outer, _TaskDeferral)
        ):
            return
        current.set(_TaskDeferral(self._recruiter, self._when, task_id))

    def idle(self) -> None:
        """Enlist if the worker has nothing to do; the worker's timer calls this."""
        stopping = (worker_state.should_stop, worker_state.should_terminate)
        if worker_state.reserved_requests or any(
            each is not None and each is not False for each in stopping
        ):
            return
        self._recruiter.enlist()


class _TaskDeferral(Deferral):
    """A deferral that knows its task."""

    def __init__(self, recruiter: Enlister, when: When | None, task_id: str) -> None:
        super().__init__(recruiter, when)
        self.task_id = task_id
        self.started = SYSTEM_CLOCK.monotonic()


_INSTALLED: WeakKeyDictionary[Any, WorkStealing] = WeakKeyDictionary()


def _started(task: Any, task_id: str, **_: object) -> None:
    stealing = _INSTALLED.get(task.app)
    if stealing is not None:
        stealing.start(task, task_id)


def _ended(
    *, task: Any, task_id: str, args: Any, kwargs: Any, retval: Any, state: str | None, **_: object
) -> None:
    deferral = current.get()
    if not isinstance(deferral, _TaskDeferral) or deferral.task_id != task_id:
        return
    # Not the value before: that was None, or a task that is long over.
    current.set(None)
    if state != states.SUCCESS or not _has_time(task, deferral.started):
        deferral.drop()
        return
    deferral.respond(Finished(task, task_id, args, kwargs, retval))
    deferral.close()


def _has_time(task: Any, started: float) -> bool:
    """Say whether the pool gives this task's process enough time for a slice."""
    limits = [*(task.request.timelimit or ()), task.time_limit, task.soft_time_limit]
    shortest = min((limit for limit in limits if limit), default=None)
    return shortest is None or SYSTEM_CLOCK.monotonic() - started < shortest - _MARGIN_SECONDS


def _idle_step(stealing: WorkStealing, seconds: float) -> type:
    """Return the boot step by which an idle worker enlists."""

    class Idle(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = ("celery.worker.components:Timer",)

        def start(self, parent: Any) -> None:
            self.entry = parent.timer.call_repeatedly(seconds, stealing.idle)

        def stop(self, parent: Any) -> None:
            del parent
            entry, self.entry = getattr(self, "entry", None), None
            if entry is not None:
                entry.cancel()

    return Idle
