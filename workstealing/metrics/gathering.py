"""What the listeners have in common: bounded names, figures of recruiters, and a sending thread."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from weakref import WeakSet

from workstealing.clock import Clock, Duration
from workstealing.recruiting.checks import checked_seconds
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.health import ERRORS_NAMED, OTHER_ERRORS, error_name
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.recruiter import Recruiter

if TYPE_CHECKING:
    from workstealing.recruiting.recruiter import Recruiter

JOBS_NAMED = 100
OTHER_JOBS = "_other"
_NAME_LENGTH = 200

SLICE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds in seconds: a slice has 10 ms unless told otherwise."""


def sendable(job: str) -> str:
    """Return a job's name as it goes out of the process; nearly always the name itself.

    What is no text, a file's name for instance, could not be sent, nor what goes with it.
    """
    return job.encode(errors="backslashreplace").decode()


class JobNames:
    """The first hundred jobs by their own names, cut at 200 letters; all others as "_other"."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, job: str) -> str:
        """Return the name that a job is counted by."""
        name = sendable(job[:_NAME_LENGTH])[:_NAME_LENGTH]
        if name not in self._known:
            if len(self._known) >= JOBS_NAMED:
                return OTHER_JOBS
            self._known.add(name)
        return name


class Watched:
    """The recruiters that a hook was added to, held weakly."""

    def __init__(self, names: JobNames) -> None:
        self._recruiters: WeakSet[Recruiter] = WeakSet()
        self._names = names

    def add(self, recruiter: Recruiter) -> None:
        """Watch one more recruiter."""
        self._recruiters.add(recruiter)

    def jobs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name and the figures, as of `stats()`, of each job that has a name here."""
        for recruiter in list(self._recruiters):
            for job, figures in recruiter.stats()["jobs"].items():
                name = self._names(job)
                if name != OTHER_JOBS:
                    yield name, cast("Mapping[str, Any]", figures)


class ErrorNames:
    """The names that errors of a job are counted by: its first eight classes, "_other" beyond."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def __call__(self, job: str, error: BaseException) -> str:
        """Return the name that an error of a job is counted by."""
        known = self._known.setdefault(job, set())
        name = error_name(error)
        if name not in known:
            if len(known) >= ERRORS_NAMED:
                return OTHER_ERRORS
            known.add(name)
        return name


_EXIT_SECONDS = 0.5

Batch = TypeVar("Batch")


class Gathering(Hooks, ABC, Generic[Batch]):
    """Hooks that only count, and a daemon thread of this process that sends what was counted.

    A subclass counts into `self._batch` while it holds `self._lock`, and calls `_counted()` then;
    it says what a batch is (`_new_batch`) and how one is sent (`_deliver`). A forked child starts
    from zero, with a thread and locks of its own. A process that ends in order sends what is left,
    if the subclass says that it has reached its receiver before (`_has_reached`).

    Arguments: receiver, who is sent to, as the log names it; interval between two sends, in
    seconds; clock, what the interval is measured with.
    Raises: ConfigurationError for an interval that is no number above 0.
    """

    def __init__(self, receiver: str, interval: Duration, clock: Clock) -> None:
        self._receiver = receiver
        self._interval = checked_seconds(interval, "interval")
        self._clock = clock
        self._faults = FaultLog(clock)
        self._closed = False
        self._recruiters: weakref.WeakSet[Recruiter] = weakref.WeakSet()
        self._start_from_zero()
        _alive.add(self)

    def _start_from_zero(self) -> None:
        """Begin as a new process: no counts, no thread, and locks that nobody holds."""
        # Re-entrant: a signal handler may enlist, and spend, while the interrupted frame holds it.
        self._lock = threading.RLock()
        # Not an Event: a signal handler that enlists may interrupt its set(), which locks.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._batch = self._new_batch()
        self._waiting: list[queue.SimpleQueue[bool]] = []
        self._thread: threading.Thread | None = None
        self._next_send = self._clock.monotonic() + self._interval

    @abstractmethod
    def _new_batch(self) -> Batch:
        """Return an empty batch, which is false until something has been counted into it."""

    @abstractmethod
    def _deliver(self) -> bool:
        """Send what has been counted; say whether that was done. Runs in the thread alone."""

    def _has_reached(self) -> bool:
        """Say whether to send at the end of the process; it must not try a receiver anew then."""
        return False

    def _release(self) -> None:
        """Let go of what the thread has used; it ends now."""

    def on_added(self, recruiter: Recruiter) -> None:
        """Ask this recruiter, too, for its last counts when the process ends."""
        self._recruiters.add(recruiter)

    def flush(self, timeout: float = 1.0) -> bool:
        """Send now what has been counted, and wait for it.

        Arguments: timeout, in seconds. Returns: True when it was sent, or there was nothing to
        send; False when it could not be, or not in time.
        """
        with self._lock:
            if self._closed or not self._batch:
                return not self._batch
            sent: queue.SimpleQueue[bool] = queue.SimpleQueue()
            self._waiting.append(sent)
            self._flushing()
            self._rouse()
        try:
            return sent.get(timeout=timeout)
        except queue.Empty:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(sent)
            return False

    def _flushing(self) -> None:
        """Prepare for a send that somebody waits for. The lock is held."""

    def close(self, timeout: float = 1.0) -> None:
        """Flush, and end the thread; later calls only count.

        Arguments: timeout of the flush, in seconds.
        """
        self.flush(timeout)
        with self._lock:
            self._closed = True
            self._wake.put(None)

    def _counted(self) -> None:
        """Wake the thread if the interval is over. The lock is held."""
        now = self._clock.monotonic()
        if now >= self._next_send and not self._closed:
            self._next_send = now + self._interval
            self._rouse()

    def _rouse(self) -> None:
        """Wake the sending thread, or start it. The lock is held."""
        if self._thread is None or not self._thread.is_alive():
            # Kept before it is started: whatever is raised in between, there is one at most.
            self._thread = threading.Thread(
                target=self._run, name="workstealing-counts", daemon=True
            )
            self._thread.start()
        self._wake.put(None)

    def _rest(self) -> None:
        """Sleep until it is time to send. Runs in the thread alone."""
        self._sleep()

    def _sleep(self, seconds: float | None = None) -> None:
        """Sleep until the thread is roused, or for so many seconds. Runs in the thread alone."""
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=seconds)
            while True:
                self._wake.get_nowait()

    def _run(self) -> None:
        while not self._closed:
            self._rest()
            with self._lock:
                if self._closed and not self._waiting:
                    break
            delivered = False
            try:
                delivered = self._deliver()
            except Exception as error:  # noqa: BLE001 - nobody else could hear of it
                self._faults.report(self._receiver, error)
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for sent in waiting:
                sent.put(delivered)
        self._release()


_alive: weakref.WeakSet[Gathering[Any]] = weakref.WeakSet()


def _in_child() -> None:
    for hooks in list(_alive):
        hooks._faults.after_fork()  # noqa: SLF001 - this module's own class
        hooks._start_from_zero()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _at_exit() -> None:
    for hooks in list(_alive):
        if hooks._has_reached():  # noqa: SLF001
            for recruiter in list(hooks._recruiters):  # noqa: SLF001
                recruiter.flush()
            with contextlib.suppress(RuntimeError):  # no new thread at this late hour
                hooks.flush(timeout=_EXIT_SECONDS)


atexit.register(_at_exit)
