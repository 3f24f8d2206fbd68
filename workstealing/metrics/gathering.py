"""The common part of all listeners: bounded names, gauges, and a sending thread."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import re
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

from workstealing.clock import Clock, Duration, seconds_of
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import LISTENERS
from workstealing.recruiting.checks import checked_seconds
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.lottery import MOST_MEASURED
from workstealing.recruiting.recruiter import Recruiter
from workstealing.recruiting.tally import ERRORS_NAMED, OTHER_ERRORS, error_name

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

    def knows(self, job: str) -> bool:
        """Say whether a job has a name of its own already."""
        return sendable(job[:_NAME_LENGTH])[:_NAME_LENGTH] in self._known


class Recruiters:
    """The recruiters of a hook, held weakly."""

    def __init__(self, names: Callable[[str], str]) -> None:
        self._recruiters: WeakSet[Recruiter] = WeakSet()
        self._names = names

    def add(self, recruiter: Recruiter) -> None:
        """Watch one more recruiter."""
        self._recruiters.add(recruiter)

    def jobs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name of each named job, and the job's figures in `stats()`."""
        for recruiter in list(self._recruiters):
            for job, figures in recruiter.stats()["jobs"].items():
                name = self._names(job)
                if name != OTHER_JOBS:
                    yield name, cast("Mapping[str, Any]", figures)


def gauges_of(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return a job's gauges by name; one that nobody knows is absent.

    Arguments:
        figures: the job's figures in `stats()`.

    A slice that does not run and a server that was reached last have 0.
    """
    found = {
        "rate": float(figures["rate"]),
        "breaker_open": float(bool(figures.get("breaker_open"))),
        "paused": float(bool(figures.get("paused"))),
        "slice_running_seconds": figures.get("running_seconds") or 0.0,
        "unreached_seconds": figures.get("breaker_seconds") or 0.0,
    }
    if figures.get("keeps_up") is not None:
        found["keeps_up"] = float(figures["keeps_up"])
    return found


class MeasuredNames:
    """The figures that a job measures: its first twenty by name; the others are not shown."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}

    def __call__(self, job: str, what: str) -> bool:
        """Say whether to show this figure of the job."""
        known = self._known.setdefault(job, set())
        if what not in known and len(known) < MOST_MEASURED:
            known.add(what)
        return what in known


def unreached_servers(names: JobNames) -> dict[str, float]:
    """Return the servers that this process has not reached lately, and for how many seconds.

    Arguments:
        names: those that are told apart; the others are one.
    """
    found: dict[str, float] = {}
    for server, seconds in SERVER_BREAKERS.unreached().items():
        name = names(server)
        found[name] = max(seconds, found.get(name, 0.0))
    return found


class DeadSizes:
    """The numbers of dead items of some structures, asked by connections of their own.

    Arguments:
        structures: of this package, or `workstealing.dashboard.Watched` with a `dead_size`; the
            first 100 are asked.
    """

    def __init__(self, structures: Iterable[Any]) -> None:
        self._structures = [each for each in structures if _may_be_asked(each)][:JOBS_NAMED]

    def ask(self) -> Iterator[tuple[str, str, float | None]]:
        """Yield name, kind and number of dead items of each structure; None: it did not answer.

        One round trip or a few for each.
        """
        for each in self._structures:
            count: float | None = None
            # A server that is away, or an error of a user's own structure.
            with contextlib.suppress(Exception):
                count = float(_dead_size(each))
            yield sendable(str(each.name)[:_NAME_LENGTH]), sendable(str(each.kind)), count


MOST_WAITING = 20
"""How many accounts of a fair queue, those that wait longest, are told at once."""
_ACCOUNTS_ASKED = 1000


class OldestWaiting:
    """For how long accounts of fair queues have waited, asked by connections of their own.

    The first 100 accounts of a queue that are among its longest waiting ones go by their names, all
    others are "_other". An account that was told is told on while it waits, and then as 0 once.

    Arguments:
        structures: of them the first 100 fair queues are asked.
    """

    def __init__(self, structures: Iterable[Any]) -> None:
        queues = [each for each in structures if _is_fair_queue(each)][:JOBS_NAMED]
        self._queues = [(each, JobNames(), set[str]()) for each in queues]

    def ask(self) -> Iterator[tuple[str, bool, dict[str, float]]]:
        """Yield a queue's name, whether all is known of it, and the seconds of some accounts.

        A queue that does not answer, and one of whose accounts only some were looked at, is not
        known. Eleven round trips at most for each.
        """
        for each, names, told in self._queues:
            found: dict[str, float] = {}
            is_known = False
            # As of dead items: a server that is away.
            with contextlib.suppress(Exception):
                is_known, found = _waiting_in(each, names, told)
            yield sendable(str(each.name)[:_NAME_LENGTH]), is_known, found


def _waiting_in(queue: Any, names: JobNames, told: set[str]) -> tuple[bool, dict[str, float]]:
    from workstealing.structures.fair_queue.stats import FairDescribing

    stats = queue.inspect(FairDescribing.stats.steps(queue, _ACCOUNTS_ASKED))
    ages = {
        each.account: each.oldest_waiting_seconds
        for each in stats["accounts"].values()
        if each.waiting and each.oldest_waiting_seconds is not None
    }
    longest = sorted(ages, key=lambda account: -ages[account])
    found: dict[str, float] = {}
    for place, account in enumerate(longest):
        # Only the longest get a name; one that has a name keeps its figure.
        name = names(account) if place < MOST_WAITING or names.knows(account) else OTHER_JOBS
        if place < MOST_WAITING or name in told:
            found[name] = max(found.get(name, 0.0), ages[account])
    if stats["exact"]:
        found.update(dict.fromkeys(told - set(found), 0.0))
    told.clear()
    told.update(name for name, seconds in found.items() if seconds)
    return stats["exact"], found


def _is_fair_queue(structure: Any) -> bool:
    if not _is_structure(structure):
        return False
    from workstealing.structures.fair_queue.stats import FairDescribing

    return isinstance(structure, FairDescribing)


def _may_be_asked(structure: Any) -> bool:
    return _is_structure(structure) or structure.dead_size is not None


def _is_structure(structure: Any) -> bool:
    # With it comes redis-py, which a hook without structures does not want.
    from workstealing.structures.structure import Structure

    return isinstance(structure, Structure)


def _dead_size(structure: Any) -> int:
    if _is_structure(structure):
        return sum(box.size for box in structure.inspect(structure.dead_steps()))
    size: int = structure.dead_size()
    return size


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
    A subclass also makes a batch (`_new_batch`) and sends one (`_deliver`). A forked child starts
    from zero, with a thread and locks of its own. A process that ends in order sends its last
    counts, if the subclass has reached its receiver before (`_has_reached`).

    Arguments:
        receiver: its name in the log.
        interval: between two sends, a number of seconds above 0 or a timedelta.
        clock: it measures the interval.

    Raises: ConfigurationError for another interval.
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
        self._was_sent = False
        # The time of the first attempt since the last send that was well.
        self._unsent_since: float | None = None
        # The end of the last attempt; None while one lasts.
        self._tried_at: float | None = None
        self._next_send = self._clock.monotonic() + self._interval
        # The class of the last error since then.
        self._error: str | None = None

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
        """Release the thread's resources; the thread ends now."""

    def on_added(self, recruiter: Recruiter) -> None:
        """Ask this recruiter, too, for its last counts when the process ends."""
        self._recruiters.add(recruiter)
        LISTENERS.add(self)

    def unsent_seconds(self) -> float | None:
        """Return for how long the receiver has taken no counts; None: no send was tried yet.

        0 if the last send was well. If not, the time from the first failed attempt to the last one,
        or to this moment while an attempt lasts: a process without callers makes none.
        """
        since, tried = self._unsent_since, self._tried_at
        if since is None:
            return 0.0 if self._was_sent else None
        return max(0.0, (self._clock.monotonic() if tried is None else tried) - since)

    def flush(self, timeout: Duration = 1.0) -> bool:
        """Send the counts now, and wait for it.

        Arguments:
            timeout: in seconds or a timedelta.

        Returns: True if they are sent or there were none; False if that failed or took longer.
        Raises: ConfigurationError for another timeout.
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

        Arguments:
            timeout: of the flush, in seconds or a timedelta.

        Raises: as `flush`.
        """
        self._leave()
        self.flush(timeout)
        with self._lock:
            self._closed = True
            self._wake.put(None)

    def failing(self) -> tuple[str, float] | None:
        """Return the error of the latest failed sends, and for how many seconds sends have failed.

        Returns: None if the last send went well, or if nothing was sent yet. No command.
        """
        error, seconds = self._error, self.unsent_seconds()
        return None if error is None or seconds is None else (error, seconds)

    def _counted(self) -> None:
        """Wake the thread if the interval is over. The lock is held."""
        now = self._clock.monotonic()
        if now >= self._next_send and not self._closed:
            self._next_send = now + self._interval
            self._rouse()

    def _rouse(self) -> None:
        """Wake the sending thread, or start it. The lock is held."""
        self._begin()
        self._wake.put(None)

    def _begin(self) -> None:
        """Start the sending thread, unless it is there. The lock is held."""
        if self._thread is None or not self._thread.is_alive():
            # Kept before its start, so an error in between leaves one thread at most.
            self._thread = threading.Thread(
                target=self._run, name="workstealing-counts", daemon=True
            )
            self._thread.start()

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
            # Before the attempt, which may last without end.
            self._tried_at = None
            if self._unsent_since is None:
                self._unsent_since = self._clock.monotonic()
            try:
                delivered = self._deliver()
            except Exception as error:  # noqa: BLE001 - no caller would hear of it
                self._error = type(error).__name__
                self._faults.report(self._receiver, error)
            if delivered:
                self._was_sent, self._unsent_since, self._error = True, None, None
            self._tried_at = self._clock.monotonic()
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for sent in waiting:
                sent.put(delivered)
        self._release()


_alive: weakref.WeakSet[Gathering[Any]] = weakref.WeakSet()


def unsent(names: JobNames, teller: Gathering[Any] | None = None) -> dict[str, float]:
    """Return the receivers of counts, such as a ledger, and for how long each has taken none.

    A receiver is absent until this process has first tried to send counts to it.

    Arguments:
        names: those that are told apart; the others are one.
        teller: a hook whose own receiver is left out, because it would hear nothing.
    """
    found: dict[str, float] = {}
    for hooks in list(_alive):
        seconds = hooks.unsent_seconds()
        if seconds is not None and hooks is not teller and not hooks._closed:  # noqa: SLF001
            receiver = re.sub(r"[^\w.:-]+", " ", hooks._receiver).strip()  # noqa: SLF001
            name = names(receiver)
            found[name] = max(seconds, found.get(name, 0.0))
    return found


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
