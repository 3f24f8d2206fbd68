"""The figures of caches in this process: hits, misses, waits and computations by name. No I/O.

A call counts a few numbers where it is; the listeners of `workstealing.metrics` take what has come
since their last look. A process has a bounded number of names. The listeners look as callers
enlist, and as caches are called: where no call is a hit, as beside a silent server, nobody enlists.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict
from weakref import WeakSet

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.recruiting.faults import FaultLog, HostTimeouts

NAMES = 100
"""So many caches have figures of their own; all others are one."""
OTHER_CACHES = "_other"
_NAME_LENGTH = 200
_TOLD_SECONDS = 1.0

COUNTS = ("hits", "stale", "misses", "waits", "computations", "failures", "uncached")
"""The figures that are whole numbers, in the order in which they are shown."""


class CacheStats(TypedDict):
    """The figures of one cache, since the start or the fork of this process.

    Fields: hits, calls (of a backend, keys) that got a fresh value without waiting; stale, calls
    that got an old value; misses, all others; waits, those that waited for another's computation;
    computations, how often the function was called, by `refresh` too; failures, those that raised
    an exception which is no declared answer; seconds that all computations took; uncached, calls
    whose Redis did not answer or was left alone after a fault.
    """

    hits: int
    stale: int
    misses: int
    waits: int
    computations: int
    failures: int
    uncached: int
    seconds: float


class _HearsOfCalls(Protocol):
    def on_enlisted(self, count: int) -> None: ...


class Listeners:
    """The hooks that look when caches are called, once a second at most; held weakly.

    Arguments:
        clock: it measures the second.

    Attribute: clock.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._hooks: WeakSet[_HearsOfCalls] = WeakSet()
        self._next = math.inf
        self._faults, self._timeouts = FaultLog(clock), HostTimeouts()

    def add(self, hook: _HearsOfCalls) -> None:
        """Let a hook hear of calls from now on, as of no further enlists: `on_enlisted(0)`."""
        self._hooks.add(hook)
        self._next = self.clock.monotonic()

    def tell(self) -> None:
        """Say that a cache is called. Raises: only a host's time-out. No command."""
        if self._next == math.inf:
            return
        now = self.clock.monotonic()
        if now < self._next:
            return
        self._next = now + _TOLD_SECONDS
        for hook in list(self._hooks):
            try:
                hook.on_enlisted(0)
            except Exception as error:
                if self._timeouts.include(error):
                    raise
                self._faults.report(f"hook {type(hook).__qualname__}", error)

    def after_fork(self) -> None:
        """Take new locks: their holders may not exist in this process."""
        self._faults.after_fork()


LISTENERS = Listeners()


class CacheFigures:
    """The counts of one cache. An addition is one step for the threads of one interpreter lock."""

    __slots__ = (*COUNTS, "seconds")

    def __init__(self) -> None:
        self.zero()

    def zero(self) -> None:
        """Begin anew, in a forked child."""
        self.hits = self.stale = self.misses = self.waits = 0
        self.computations = self.failures = self.uncached = 0
        self.seconds = 0.0

    def hit(self, count: int = 1) -> None:
        """Count calls that got a fresh value at once."""
        self.hits += count
        LISTENERS.tell()

    def old(self) -> None:
        """Count a call that got an old value."""
        self.stale += 1
        LISTENERS.tell()

    def miss(self, count: int = 1) -> None:
        """Count calls that got no value at once."""
        self.misses += count
        LISTENERS.tell()

    def wait(self) -> None:
        """Count a call that waits for another's computation."""
        self.waits += 1

    def compute(self, seconds: float) -> None:
        """Count a call of the function, and how long it took."""
        self.computations += 1
        self.seconds += seconds

    def fail(self) -> None:
        """Count a call of the function that raised an exception."""
        self.failures += 1

    def leave(self, count: int = 1) -> None:
        """Count calls without Redis."""
        self.uncached += count

    def stats(self) -> CacheStats:
        """Return the figures as plain data."""
        return {
            "hits": self.hits,
            "stale": self.stale,
            "misses": self.misses,
            "waits": self.waits,
            "computations": self.computations,
            "failures": self.failures,
            "uncached": self.uncached,
            "seconds": self.seconds,
        }


# Re-entrant: a signal's handler may call a cached function while the interrupted frame holds it.
_lock = threading.RLock()


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: CacheFigures, *args: Any) -> Any:
        with _lock:
            return method(self, *args)

    return call


if not getattr(sys, "_is_gil_enabled", lambda: True)():
    for _name in ("hit", "old", "miss", "wait", "compute", "fail", "leave"):
        setattr(CacheFigures, _name, _locked(getattr(CacheFigures, _name)))


class Caches:
    """The figures of this process's caches by name. Attribute: forks, how often they began anew."""

    def __init__(self) -> None:
        self._figures: dict[str, CacheFigures] = {}
        self.forks = 0

    def of(self, name: str) -> CacheFigures:
        """Return the figures of a cache, by the name of its function or of its namespace."""
        name = name[:_NAME_LENGTH]
        found = self._figures.get(name)
        if found is None:
            if len(self._figures) >= NAMES:
                name = OTHER_CACHES
            found = self._figures.setdefault(name, CacheFigures())
        return found

    def stats(self) -> dict[str, CacheStats]:
        """Return the figures of each cache that was called, as plain data. No round trip."""
        every = {name: each.stats() for name, each in list(self._figures.items())}
        return {name: each for name, each in every.items() if any(each.values())}

    def after_fork(self) -> None:
        """Begin anew: the parent counts its own."""
        global _lock  # noqa: PLW0603
        _lock = threading.RLock()
        self.forks += 1
        for each in self._figures.values():
            each.zero()


CACHES = Caches()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CACHES.after_fork)
    os.register_at_fork(after_in_child=LISTENERS.after_fork)


def cache_stats() -> dict[str, CacheStats]:
    """Return the figures of this process's caches, by the name of function or namespace.

    The figures are those of `cached` functions and of the backends for Django and Flask-Caching,
    since the start or the fork of the process; a cache that nobody has called is absent. The first
    hundred have their own names, all others are "_other". No round trip.
    """
    return CACHES.stats()


class CacheCounts:
    """The figures of `caches` that one listener has not taken yet."""

    def __init__(self, caches: Caches = CACHES) -> None:
        self._caches = caches
        # As of jobs, it hears of what comes.
        self._begin(caches.stats())

    def _begin(self, taken: dict[str, CacheStats]) -> None:
        self._forks, self._taken = self._caches.forks, taken
        # A holder in the parent of a fork would hold the old one for ever.
        self._lock = threading.Lock()

    def take(self) -> dict[str, dict[str, float]]:
        """Return, by cache, the figures that have grown since the last time, by how much.

        Nothing while another thread, or the frame that a signal has interrupted, takes them.
        """
        if self._forks != self._caches.forks:
            self._begin({})
        if not self._lock.acquire(blocking=False):
            return {}
        found: dict[str, dict[str, float]] = {}
        try:
            for name, stats in self._caches.stats().items():
                before: Mapping[str, Any] = self._taken.get(name, {})
                now: Mapping[str, Any] = stats
                if now != before:
                    found[name] = {each: now[each] - before.get(each, 0) for each in now}
                    self._taken[name] = stats
        finally:
            self._lock.release()
        return found
