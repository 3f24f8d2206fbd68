"""This process's own minutes, for where no ledger writes the fleet's."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from workstealing.dashboard.figures import HOUR, MINUTE
from workstealing.metrics.minutes import JobError, JobMinute, Minute, add_errors
from workstealing.recruiting.slice import OUTCOMES


class OwnMinutes:
    """Turns the figures of a recruiter, which only grow, into figures of each minute.

    It counts from when it is asked first, as often as it is asked. Arguments: now: the time of day,
    in seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._minutes: dict[int, Minute] = {}
        self._before: Mapping[str, Any] | None = None

    def __call__(self, stats: Mapping[str, Any]) -> list[Minute]:
        """Note the figures of this moment; return the last hour's minutes, the oldest first.

        Arguments: stats: as `Recruiter.stats` returns them. No round trip.
        """
        with self._lock:
            at = int(self._now()) // MINUTE * MINUTE
            minute = self._minutes.setdefault(at, Minute(at, processes=1))
            before, self._before = self._before, stats
            if before is not None:
                minute.enlisted += _grown(stats, before, "enlisted")
            for name, figures in stats["jobs"].items():
                earlier = (before or {"jobs": {}})["jobs"].get(name)
                self._note(minute.jobs.setdefault(name, JobMinute()), figures, earlier)
            for old in [each for each in self._minutes if each <= at - HOUR * MINUTE]:
                del self._minutes[old]
            return [self._minutes[each] for each in sorted(self._minutes)]

    def _note(
        self, job: JobMinute, figures: Mapping[str, Any], earlier: Mapping[str, Any] | None
    ) -> None:
        job.rate = figures["rate"]
        job.oldest_seconds = figures.get("oldest_seconds")
        job.lag = figures.get("lag")
        job.running_seconds = figures.get("running_seconds")
        job.unreached_seconds = figures.get("breaker_seconds")
        earlier_errors = {} if earlier is None else earlier.get("errors", {})
        for name, raised in figures.get("errors", {}).items() if earlier is not None else ():
            before = earlier_errors.get(name, {"count": 0})
            if count := _grown(raised, before, "count"):
                at = self._now() - raised["seconds_ago"]
                add_errors(job.errors, {name: JobError(count, at, socket.gethostname())})
        if earlier is not None:
            for field in ("recruited", *OUTCOMES, "items", "seconds"):
                setattr(job, field, getattr(job, field) + _grown(figures, earlier, field))


def _grown(now: Mapping[str, Any], before: Mapping[str, Any], field: str) -> Any:
    # A job that was installed anew counts from zero again.
    return now[field] - before[field] if now[field] >= before[field] else now[field]
