"""Hooks: who else is told about the enlisted, the recruited and the outcomes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from workstealing.errors import ConfigurationError
from workstealing.recruiting.flight import Run
from workstealing.recruiting.slice import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from workstealing.recruiting.faults import FaultLog, HostTimeouts
    from workstealing.recruiting.recruiter import Recruiter

_METHODS = ("on_enlisted", "on_recruited", "on_outcome")


class Hooks:
    """What a listener may override; each method does nothing by itself.

    Hooks run in the caller's time: count, and send later. An Exception that one raises is logged
    and never propagates. An enlist inside a hook tells no hook.
    """

    def on_added(self, recruiter: Recruiter) -> None:
        """Hear whose hook this is now, by `Recruiter.add_hook`; a hook need not have this method.

        Arguments: recruiter, whose `stats()` a hook may ask later. Keep it weakly.
        """

    def on_enlisted(self, count: int) -> None:
        """Hear that `count` more callers have enlisted; called at most once a second."""

    def on_recruited(self, job: str) -> None:
        """Hear that a caller has been recruited for the job of that name."""

    def on_outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Hear what became of a recruit.

        Arguments: job, its name; outcome, any but DISMISSED; items handled; seconds that the slice
        took, 0.0 when it was SKIPPED; error, what a FAILED slice raised, otherwise None.
        """

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Hear what a slice has seen of its job's garbage; called before on_outcome.

        Arguments: job, its name; oldest_seconds, how long the oldest item that it saw has been
        overdue, 0.0 if nothing is; backlog, how many items wait. One of them may be None: unknown.
        """


class HookList:
    """The hooks of one recruiter, told in the order in which they were added.

    Arguments: faults, where their errors go; timeouts, which errors must reach the host.
    """

    __slots__ = ("_faults", "_hooks", "_observers", "_telling", "_timeouts")

    def __init__(self, faults: FaultLog, timeouts: HostTimeouts) -> None:
        self._hooks: tuple[Hooks, ...] = ()
        self._observers: tuple[Hooks, ...] = ()
        self._faults = faults
        self._timeouts = timeouts
        # By thread. What is left here after a time-out runs no longer, and so stops nobody.
        self._telling: dict[int, Run[None]] = {}

    def add(self, hook: Hooks) -> bool:
        """Add a hook, unless it was added before; say whether it was not.

        Raises: ConfigurationError when it is a class or lacks one of the first three methods;
        `on_observed` may be missing.
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
        return True

    def all(self) -> tuple[Hooks, ...]:
        """Return the hooks, in the order in which they were added."""
        return self._hooks

    def after_fork(self) -> None:
        """Forget who was telling the hooks: those threads may not exist in this process."""
        self._telling.clear()

    def enlisted(self, count: int) -> None:
        """Tell all hooks of newly enlisted callers."""
        self._tell(lambda hook: hook.on_enlisted(count))

    def recruited(self, job: str) -> None:
        """Tell all hooks of a recruit."""
        self._tell(lambda hook: hook.on_recruited(job))

    def outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Tell all hooks what became of a recruit."""
        self._tell(lambda hook: hook.on_outcome(job, outcome, items, seconds, error))

    def observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Tell all hooks that listen to it what a slice has seen."""
        if self._observers:
            self._tell(lambda hook: hook.on_observed(job, oldest_seconds, backlog), self._observers)

    def _tell(self, call: Callable[[Hooks], None], hooks: tuple[Hooks, ...] | None = None) -> None:
        if hooks is None:
            hooks = self._hooks
        if not hooks:
            return
        me = threading.get_ident()
        telling = self._telling.get(me)
        if telling is not None and telling.is_running:
            # A hook that enlists would otherwise be told of its own enlist without end.
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
