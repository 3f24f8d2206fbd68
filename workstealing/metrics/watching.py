"""A thread that looks at this process's slice, while the callers' own threads may be stuck in it.

Reports ride on enlists, and a process of one thread enlists nobody while a slice holds it. So the
first recruit starts one daemon thread for all listeners of the process, before its slice begins.
Only a slice that holds the interpreter's lock stops that thread, too; then the process falls
silent, and its last report says since when.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from typing import NamedTuple
from weakref import WeakSet

from workstealing.clock import SYSTEM_CLOCK
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.slice_slot import SLICE_SLOT

BEAT_SECONDS = 5.0
"""How often the thread looks."""

LONG_SECONDS = 2.0
"""A slice that runs for longer is told of while it runs."""


STUCK_SECONDS = 15.0
"""A slice that runs for longer, and for twice as long as its bounds allow, is stuck."""


def is_stuck(seconds: float, longest: float | None) -> bool:
    """Say whether a slice does not end.

    Arguments:
        seconds: since its start.
        longest: the seconds that its bounds allow, None: unknown.
    """
    return seconds >= max(STUCK_SECONDS, 2 * (longest or 0.0))


class RunningSlice(NamedTuple):
    """A slice that is under way in this process. Fields: job, its name; seconds since its start."""

    job: str
    seconds: float


def running_slice() -> RunningSlice | None:
    """Return this process's slice, if it has been running for long. No command."""
    holder = SLICE_SLOT.holder()
    if holder is None:
        return None
    job, started = holder
    seconds = SYSTEM_CLOCK.monotonic() - started
    return RunningSlice(job, seconds) if seconds >= LONG_SECONDS else None


class Watcher(ABC):
    """A listener that the thread calls, every five seconds, from outside of any slice."""

    @abstractmethod
    def on_beat(self, running: RunningSlice | None) -> None:
        """Look at this process now.

        Arguments:
            running: a slice that does not end soon, or None.
        """


class Watch:
    """The watchers of a process, held weakly, and the thread that calls them.

    Arguments:
        seconds: between two looks.
    """

    def __init__(self, seconds: float = BEAT_SECONDS) -> None:
        self._seconds = seconds
        self._watchers: WeakSet[Watcher] = WeakSet()
        self._faults = FaultLog(SYSTEM_CLOCK)
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the parent's thread, which does not exist in this process."""
        self._faults.after_fork()
        # Re-entrant: a signal handler may be recruited while the interrupted frame holds it.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None

    def add(self, watcher: Watcher) -> None:
        """Call this watcher, too, as long as somebody else holds it."""
        self._watchers.add(watcher)

    def begin(self) -> None:
        """Start the thread, unless it runs. A recruit calls this before its slice."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            return
        with self._lock:
            if self._thread is thread:
                # Kept before its start, so an error in between leaves one thread at most.
                self._thread = threading.Thread(
                    target=self._run, name="workstealing-watch", daemon=True
                )
                # An interpreter that ends starts no more threads.
                with contextlib.suppress(RuntimeError):
                    self._thread.start()

    def beat(self) -> None:
        """Call all watchers once."""
        running = running_slice()
        for watcher in list(self._watchers):
            try:
                watcher.on_beat(running)
            except Exception as error:  # noqa: BLE001 - the others are called all the same
                self._faults.report(f"the watch of {type(watcher).__qualname__}", error)

    def _run(self) -> None:
        rest = threading.Event()
        # Without a watcher nobody needs it; the next recruit of one starts another.
        while self._watchers:
            rest.wait(self._seconds)
            self.beat()


WATCH = Watch()
"""The watch of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WATCH.after_fork)
