"""Slices of coroutine functions: the draw happens on the event loop, the slice in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workstealing.recruiting.flight import Run
from workstealing.recruiting.outcome import Outcome

if TYPE_CHECKING:
    from asyncio import Future

    from workstealing.recruiting.lottery import Installed
    from workstealing.recruiting.performing import Performer


class LoopSlices:
    """Runs slices in the running loop's default executor, which nobody awaits.

    Arguments: performer, which does them.
    """

    __slots__ = ("_flying", "_performer")

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._flying: tuple[Run[Outcome], Future[Any]] | None = None

    def after_fork(self) -> None:
        """Forget the parent's slices: their threads do not exist in this process."""
        self._flying = None

    def serve(self, installed: Installed) -> Outcome | None:
        """Start a slice in a thread.

        Returns: None when it has been started; SKIPPED when an earlier one is still waiting for a
        thread or running, or when there is no thread to be had.
        """
        # Not at the top: asyncio is heavy, and most users of this package never run a loop.
        import asyncio

        if self._is_free():
            try:
                loop = asyncio.get_running_loop()
                run = Run(lambda: self._performer.serve(installed))
                # The loop keeps weak references only.
                self._flying = run, loop.run_in_executor(None, run)
            except RuntimeError:
                # Another kind of loop, or an executor that has shut down.
                pass
            else:
                return None
        return self._performer.decline(installed)

    def _is_free(self) -> bool:
        if self._flying is None:
            return True
        run, future = self._flying
        # A loop that was closed too early, or left without being closed, never finishes its future.
        return run.is_over or future.done() or future.get_loop().is_closed()
