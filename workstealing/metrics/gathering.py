"""The common part of all listeners: bounded names, recruiters' figures, and a sending thread."""

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

from workstealing.clock import Clock, Duration, seconds_of
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.checks import checked_seconds
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.health import ERRORS_NAMED, OTHER_ERRORS, error_name
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.recruiter import Recruiter

if TYPE_CHECKING:
    from workstealing.recruiting.recruiter import Recruiter

JOBS_NAMED = 100
LOOKUPS = {"hits": "hit", "stale": "stale", "misses": "miss"}
"""How the results of looks into caches are called, by their figures."""
OTHER_JOBS = "_other"
_NAME_LENGTH = 200

SLICE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds in seconds; a slice has 10 ms by default."""


def sendable(job: str) -> str:
    """Return a job's name as it leaves the process, nearly always the name itself.

    A name that is no valid text, a file's name for instance, would hold back the whole send.
    """
    return job.encode(errors="backslashreplace").decode()


class JobNames:
    """The first hundred jobs by their own names, cut at 200 letters; all others are "_other"."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, job: str) -> str:
        """Return a job's name for its figures."""
        name = sendable(job[:_NAME_LENGTH])[:_NAME_LENGTH]
        if name not in self._known:
            if len(self._known) >= JOBS_NAMED:
                return OTHER_JOBS
            self._known.add(name)
        return name


class Recruiters:
    """The recruiters of a hook, held weakly."""

    def __init__(self, names: JobNames) -> None:
        self._recruiters: WeakSet[Recruiter] = WeakSet()
        self._names = names

    def add(self, recruiter: Recruiter) -> None:
        """Watch one more recruiter."""
        self._recruiters.add(recruiter)

    def jobs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name and the figures, as of `stats()`, of each named job."""
        for recruiter in list(self._recruiters):
            for job, figures in recruiter.stats()["jobs"].items():
                name = self._names(job)
                if name != OTHER_JOBS:
                    yield name, cast("Mapping[str, Any]", figures)


def unreached_servers(names: JobNames) -> dict[str, float]:
    """Return the servers that this process has not reached lately, and for how many seconds.

    Arguments: names: those that are told apart; the others are one.
    """
    found: dict[str, float] = {}
    for server, seconds in SERVER_BREAKERS.unreached().items():
        name = names(server)
        found[name] = max(seconds, found.get(name, 0.0))
    return found


class ErrorNames:
    """The names of a job's errors: its first eight classes; all others are "_other"."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def __call__(self, job: str, error: BaseException) -> str:
        """Return the name of a job's error for its figures."""
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
    """Hooks that only count, and a daemon thread of this process that sends the counts.

    A subclass counts into `self._batch` while it holds `self._lock`, and calls `_counted()` then.
    It makes a batch (`_new_batch`) and sends one (`_deliver`). A forked child starts from zero,
    with a thread and locks of its own. A process that ends in order sends its last counts, if the
    subclass has reached its receiver before (`_has_reached`).

    Arguments: receiver, its name in the log; interval between two sends, a number of seconds above
    0 or a timedelta; clock, which measures the interval. Raises: ConfigurationError for another
    interval.
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
        # No Event: a signal handler that enlists may interrupt its set(), which locks.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._batch = self._new_batch()
        self._waiting: list[queue.SimpleQueue[bool]] = []
        self._thread: threading.Thread | None = None
        self._next_send = self._clock.monotonic() + self._interval
        # The class of the last error, and the time of the first one since a send went well.
        self._failing: tuple[str, float] | None = None

    @abstractmethod
    def _new_batch(self) -> Batch:
        """Return an empty batch, which is false until it holds a count."""

    @abstractmethod
    def _deliver(self) -> bool:
        """Send the counts; say whether they are sent. Runs in the thread alone."""

    def _has_reached(self) -> bool:
        """Say whether to send at the end of the process; no new receiver is tried then."""
        return False

    def _has_news(self) -> bool:
        """Say whether there is something to send. The lock is held."""
        return bool(self._batch)

    def _leave(self) -> None:
        """Prepare for the last send, because the process or its listening ends."""

    def _release(self) -> None:
        """Release the thread's resources; it ends now."""

    def on_added(self, recruiter: Recruiter) -> None:
        """Ask this recruiter, too, for its last counts when the process ends."""
        self._recruiters.add(recruiter)

    def flush(self, timeout: Duration = 1.0) -> bool:
        """Send the counts now, and wait for it.

        Arguments: timeout, in seconds or a timedelta. Returns: True if they are sent or there were
        none; False if that failed or took longer. Raises: ConfigurationError for another timeout.
        """
        timeout = seconds_of(timeout, "timeout")
        with self._lock:
            if self._closed or not self._has_news():
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
        """Prepare for a send with a waiting caller. The lock is held."""

    def close(self, timeout: Duration = 1.0) -> None:
        """Flush, and end the thread; later calls only count.

        Arguments: timeout of the flush, in seconds or a timedelta. Raises: as `flush`.
        """
        self._leave()
        self.flush(timeout)
        with self._lock:
            self._closed = True
            self._wake.put(None)

    def failing(self) -> tuple[str, float] | None:
        """Return the error of the sends that have failed lately, and for how many seconds they do.

        None: the last one went well, or there was none. No command.
        """
        failing = self._failing
        return None if failing is None else (failing[0], self._clock.monotonic() - failing[1])

    def _counted(self) -> None:
        """Wake the thread if the interval is over. The lock is held."""
        now = self._clock.monotonic()
        if now >= self._next_send and not self._closed:
            self._next_send = now + self._interval
            self._rouse()

    def _rouse(self) -> None:
        """Wake the sending thread, or start it. The lock is held."""
        if self._thread is None or not self._thread.is_alive():
            # Kept before its start, so an error in between leaves one thread at most.
            self._thread = threading.Thread(
                target=self._run, name="workstealing-counts", daemon=True
            )
            self._thread.start()
        self._wake.put(None)

    def _rest(self) -> None:
        """Sleep until it is time to send. Runs in the thread alone."""
        self._sleep()

    def _sleep(self, seconds: float | None = None) -> None:
        """Sleep until `_rouse`, or for so many seconds. Runs in the thread alone."""
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
                self._failing = None
            except Exception as error:  # noqa: BLE001 - no caller would hear of it
                since = self._clock.monotonic() if self._failing is None else self._failing[1]
                self._failing = type(error).__name__, since
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
            hooks._leave()  # noqa: SLF001
            with contextlib.suppress(RuntimeError):  # no new thread at this late hour
                hooks.flush(timeout=_EXIT_SECONDS)


atexit.register(_at_exit)
