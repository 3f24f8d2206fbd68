"""The slot of a process for its one slice at a time.

A host's time-out may come between any two steps of any thread, in clean-up code as well. So the
slot sets no flag at the beginning to put it back at the end. A `Run` holds the slot, and the
interpreter itself says whether a run is still under way.
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
    """One call of a function; any thread may ask whether it is still running.

    It runs inside a generator. The interpreter leaves a generator and marks its end in one step,
    whatever ends it. A kept exception, whose traceback holds the frames, does not prolong a run. A
    greenlet that waits in the midst of a run is still running it.

    Arguments:
        call: a function.
        args: its arguments.
        may_begin: asked inside the run, which ends with None if the answer is false; None: the call
            always begins.
    """

    __slots__ = ("_steps",)

    def __init__(
        self, call: Callable[..., T], *args: Any, may_begin: Callable[[], bool] | None = None
    ) -> None:
        steps = _calling(call, args, may_begin)
        # Only the type of generator functions says that it has these attributes.
        self._steps = cast("GeneratorType[None, None, _Ended[T]]", steps)

    def __call__(self) -> T:
        """Call the function, once; return its result or raise its error."""
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
        """Whether the call has ended, by a result or by an error."""
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
        # No generator may raise this exception by itself.
        return None, error


class _SlotHolder(Generic[T]):
    """One holder of the slot, and its successor."""

    __slots__ = ("job", "next", "run", "started")

    def __init__(self, job: str) -> None:
        self.job = job
        self.started = SYSTEM_CLOCK.monotonic()
        self.run: Run[T | None]
        self.next: dict[str, _SlotHolder[object]] = {}


class SliceSlot:
    """A slot for one slice at a time: nobody waits for it, and the end of a slice frees it.

    The slot is free as soon as its holder's run has ended. No method waits or locks, so threads,
    greenlets, signal handlers and finalizers may all ask.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self.reset()

    def run(self, job: str, call: Callable[..., T], *args: Any) -> T | None:
        """Call the function, unless another call is running here.

        Arguments:
            job: the name that `holder` gives.
            call: a function that does not return None.
            args: its arguments.

        Returns: its result; None if the slot was taken. Raises: as the function.
        """
        holder: _SlotHolder[T] = _SlotHolder(job)
        holder.run = Run(call, *args, may_begin=partial(self._claim, holder))
        return holder.run()

    def holder(self) -> tuple[str, float] | None:
        """Return the job that holds the slot, and its start.

        Returns: the job's name and the start of its slice, in seconds of `time.monotonic`; None if
        the slot is free. The age of a slice reveals one that never returns: no other slice runs in
        this process meanwhile. No command.
        """
        last = self._newest()
        return (last.job, last.started) if last.run.is_running else None

    def reset(self) -> None:
        """Free the slot from any holder."""
        nobody: _SlotHolder[object] = _SlotHolder("")
        nobody.run = Run(lambda: None)
        self._last = nobody

    def _claim(self, holder: _SlotHolder[T]) -> bool:
        """Take the slot if it is free; the run that will hold it calls this."""
        while True:
            last = self._newest()
            if last.run.is_running:
                return False
            # One step: of all threads that see the same holder gone, one comes next.
            if last.next.setdefault("next", holder) is holder:  # type: ignore[arg-type]
                self._last = holder  # type: ignore[assignment]
                return True

    def _newest(self) -> _SlotHolder[object]:
        # A holder may have been cut short before it could set `_last`.
        last = self._last
        while last.next:
            last = last.next["next"]
        return last


SLICE_SLOT = SliceSlot()
"""The slot of this process."""

if hasattr(os, "register_at_fork"):
    # The thread that ran the parent's slice does not exist in the child.
    os.register_at_fork(after_in_child=SLICE_SLOT.reset)
