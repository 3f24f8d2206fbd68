"""Hooks: listeners that hear of enlists, recruits and outcomes."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError
from workstealing.recruiting.slice import Outcome
from workstealing.recruiting.slice_slot import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workstealing.recruiting.faults import FaultLog, HostTimeouts
    from workstealing.recruiting.recruiter import Recruiter

_MOST_ANNOUNCED = 50
_METHODS = ("on_enlisted", "on_recruited", "on_outcome")


class Announcement(NamedTuple):
    """Something that this process has noticed.

    Fields: kind, one of `metrics.events.KINDS`; subject and text; at, monotonic seconds.
    """

    kind: str
    subject: str
    text: str
    at: float


class Announcements:
    """The last fifty things that this process has noticed, by number, for its listeners."""

    def __init__(self) -> None:
        self._last = 0
        self._said: deque[tuple[int, Announcement]] = deque(maxlen=_MOST_ANNOUNCED)

    def tell(self, kind: str, subject: str, text: str) -> None:
        """Announce something that happens now. No I/O."""
        self._last += 1
        said = Announcement(kind, subject, text, SYSTEM_CLOCK.monotonic())
        self._said.append((self._last, said))

    def since(self, number: int) -> tuple[int, list[Announcement]]:
        """Return the newest number, and the announcements behind the one of that number."""
        return self._last, [said for each, said in list(self._said) if each > number]


ANNOUNCEMENTS = Announcements()


class Hooks:
    """A listener. A subclass overrides the methods that it needs; by default they do nothing.

    Hooks run in the caller's time, so they should count now and send later. An Exception of a hook
    is logged and never propagates. No hook hears of an enlist inside a hook.
    """

    def on_added(self, recruiter: Recruiter) -> None:
        """Hear of the recruiter that this hook was added to. A hook may lack this method.

        Arguments:
            recruiter: whose `stats()` a hook may ask later.

        Keep a weak reference.
        """

    def on_enlisted(self, count: int) -> None:
        """Hear of so many more enlists; called once a second at most."""

    def on_recruited(self, job: str) -> None:
        """Hear of a recruit for the job of that name."""

    def on_outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Hear of a recruit's outcome.

        Arguments:
            job: its name.
            outcome: any but DISMISSED.
            items: the number handled.
            seconds: the time of the slice, 0.0 if it was SKIPPED.
            error: of a FAILED slice, otherwise None.
        """

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Hear of the garbage that a slice has seen; called before on_outcome.

        Arguments:
            job: its name.
            oldest_seconds: the time that the oldest item has been overdue, 0.0 if no item is.
            backlog: the number of items that wait.

        Either may be None: unknown.
        """

    def on_measured(self, job: str, what: str, value: float) -> None:
        """Hear of a figure of the job's own; called before on_outcome.

        Arguments:
            job: its name.
            what: the figure's name.
        """


class HookList:
    """The hooks of one recruiter, in the order of their adding.

    Arguments:
        faults: the log of their errors.
        timeouts: the host's own, which pass through.
    """

    __slots__ = ("_faults", "_hooks", "_measurers", "_observers", "_telling", "_timeouts")

    def __init__(self, faults: FaultLog, timeouts: HostTimeouts) -> None:
        self._hooks: tuple[Hooks, ...] = ()
        self._observers: tuple[Hooks, ...] = ()
        self._measurers: tuple[Hooks, ...] = ()
        self._faults = faults
        self._timeouts = timeouts
        # By thread. A run that is left here after a time-out is over, so it stops no other.
        self._telling: dict[int, Run[None]] = {}

    def add(self, hook: Hooks) -> bool:
        """Add a hook; say whether it is new.

        Raises: ConfigurationError if it is a class or lacks on_enlisted, on_recruited or
        on_outcome. It may lack the other methods.
        """
        if isinstance(hook, type):
            raise ConfigurationError(f"a hook is an instance, not a class: write {hook.__name__}()")
        for method in _METHODS:
            if not callable(getattr(hook, method, None)):
                raise ConfigurationError(f"{hook!r} is no hook: it has no method {method}()")
        if any(each is hook for each in self._hooks):
            return False
        self._hooks += (hook,)
        if callable(getattr(hook, "on_observed", None)):
            self._observers += (hook,)
        if callable(getattr(hook, "on_measured", None)):
            self._measurers += (hook,)
        return True

    def all(self) -> tuple[Hooks, ...]:
        """Return the hooks, in the order of their adding."""
        return self._hooks

    def after_fork(self) -> None:
        """Forget the threads that were telling the hooks: they do not exist in this process."""
        self._telling.clear()

    def enlisted(self, count: int) -> None:
        """Tell all hooks of new enlists."""
        self._tell(lambda hook: hook.on_enlisted(count))

    def recruited(self, job: str) -> None:
        """Tell all hooks of a recruit."""
        self._tell(lambda hook: hook.on_recruited(job))

    def outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Tell all hooks of a recruit's outcome."""
        self._tell(lambda hook: hook.on_outcome(job, outcome, items, seconds, error))

    def observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Tell the listening hooks of the garbage that a slice has seen."""
        if self._observers:
            self._tell(lambda hook: hook.on_observed(job, oldest_seconds, backlog), self._observers)

    def measured(self, job: str, figures: Mapping[str, float]) -> None:
        """Tell the listening hooks of the figures that a slice has measured."""
        if self._measurers:
            for what, value in figures.items():
                self._tell(partial(_tell_measured, job, what, value), self._measurers)

    def _tell(self, call: Callable[[Hooks], None], hooks: tuple[Hooks, ...] | None = None) -> None:
        if hooks is None:
            hooks = self._hooks
        if not hooks:
            return
        me = threading.get_ident()
        telling = self._telling.get(me)
        if telling is not None and telling.is_running:
            # Otherwise a hook that enlists would hear of its own enlists without end.
            return
        self._telling[me] = telling = Run(self._tell_each, call, hooks)
        telling()
        self._telling.pop(me, None)

    def _tell_each(self, call: Callable[[Hooks], None], hooks: tuple[Hooks, ...]) -> None:
        for hook in hooks:
            try:
                call(hook)
            except Exception as error:
                if self._timeouts.include(error):
                    raise
                self._faults.report(f"hook {type(hook).__qualname__}", error)


def _tell_measured(job: str, what: str, value: float, hook: Hooks) -> None:
    hook.on_measured(job, what, value)
