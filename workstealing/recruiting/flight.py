"""Single flight: at most one slice runs in a process, whichever recruiter it belongs to.

A host's time-out may be raised between any two steps of any thread, in whatever would clean up as
well. So nothing here is set at the beginning and put back at the end: a place is held by a `Run`,
and the interpreter itself says whether a run is still under way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any, Generic, TypeVar, cast

from workstealing.clock import SYSTEM_CLOCK

T = TypeVar("T")
_Ended = tuple[T | None, Exception | None]


class Run(Generic[T]):
    """One call of a function, which anybody may ask whether it is still running.

    It runs inside a generator, because the interpreter marks a generator's end in one step with
    leaving it, however it is left. An exception that is kept, and whose traceback holds the frames,
    does not prolong a run. A greenlet that waits in the midst of one is still running it.

    Arguments: call, a function; args, its arguments; may_begin, asked inside the run, which ends
    with None if the answer is false; None: the call always begins.
    """

    __slots__ = ("_steps",)

    def __init__(
        self, call: Callable[..., T], *args: Any, may_begin: Callable[[], bool] | None = None
    ) -> None:
        steps = _calling(call, args, may_begin)
        # Only the type of generator functions says that it has these attributes.
        self._steps = cast("GeneratorType[None, None, _Ended[T]]", steps)

    def __call__(self) -> T:
        """Call the function, once; return its result, or raise what it raises."""
        try:
            next(self._steps)
        except StopIteration as end:
            result, error = end.value
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    @property
    def is_running(self) -> bool:
        """Whether the call has begun and has not ended."""
        return self._steps.gi_running

    @property
    def is_over(self) -> bool:
        """Whether the call has ended, however it did."""
        return self._steps.gi_frame is None


def _calling(
    call: Callable[..., T], args: tuple[Any, ...], may_begin: Callable[[], bool] | None
) -> Generator[None, None, _Ended[T]]:
    if call is None:
        yield  # This makes it a generator; it is never reached.
    if may_begin is not None and not may_begin():
        return None, None
    try:
        return call(*args), None
    except StopIteration as error:
        # The one exception that may not leave a generator by itself.
        return None, error


class _Place(Generic[T]):
    """One holder of the place, and where to read who came after it."""

    __slots__ = ("job", "next", "run", "started")

    def __init__(self, job: str) -> None:
        self.job = job
        self.started = SYSTEM_CLOCK.monotonic()
        self.run: Run[T | None]
        self.next: dict[str, _Place[object]] = {}


class Flight:
    """A place for one slice at a time.

    It is free as soon as its holder's run has ended: nobody frees it. Nothing here waits or locks,
    so threads, greenlets, signal handlers and finalizers may all ask.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self.reset()

    def run(self, job: str, call: Callable[..., T], *args: Any) -> T | None:
        """Call the function, unless another call is running here.

        Arguments: job, the name that `holder` gives; call, a function that does not return None;
        args, its arguments. Returns: its result; None where the place was taken. Raises: as the
        function.
        """
        place: _Place[T] = _Place(job)
        place.run = Run(call, *args, may_begin=partial(self._claim, place))
        return place.run()

    def holder(self) -> tuple[str, float] | None:
        """Say which job holds the place, and since when.

        Returns: the job's name and the monotonic seconds (of `time.monotonic`) at which its slice
        took the place; None when it is free. A slice that never returns is seen by its age: nothing
        else runs in this process meanwhile. No command.
        """
        last = self._newest()
        return (last.job, last.started) if last.run.is_running else None

    def reset(self) -> None:
        """Free the place, whoever holds it."""
        nobody: _Place[object] = _Place("")
        nobody.run = Run(lambda: None)
        self._last = nobody

    def _claim(self, place: _Place[T]) -> bool:
        """Take the place if it is free; called by the run that is to hold it."""
        while True:
            last = self._newest()
            if last.run.is_running:
                return False
            # One step for every thread: of those who see the same holder gone, one comes next.
            if last.next.setdefault("next", place) is place:  # type: ignore[arg-type]
                self._last = place  # type: ignore[assignment]
                return True

    def _newest(self) -> _Place[object]:
        # Who took the place may have been cut short before it could say so in `_last`.
        last = self._last
        while last.next:
            last = last.next["next"]
        return last


FLIGHT = Flight()
"""The place of this process."""

if hasattr(os, "register_at_fork"):
    # The thread that ran the parent's slice does not exist in the child.
    os.register_at_fork(after_in_child=FLIGHT.reset)
