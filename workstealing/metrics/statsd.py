"""StatsD: counts gather in this process, and a thread sends them once an interval at most.

These are the names, after the prefix ("workstealing" by default):

| name | type | meaning |
|---|---|---|
| `enlisted` | counter | callers who enlisted |
| `<job>.recruited` | counter | callers who won the draw for this job |
| `<job>.<outcome>`: `worked`, `failed`, `skipped`... | counter | their outcomes |
| `<job>.error.<class>` | counter | errors of slices, by class |
| `<job>.items` | counter | items handled |
| `cache.<cache>.hits`, `stale`, `misses`, `waits`, `computations`, `uncached` | counter | caches |
| `cache.<cache>.micros` | counter | microseconds of their computations |
| `<job>.duration` | timing | length of slices in milliseconds, without skipped ones |

A job's name keeps its letters (a-z, A-Z), digits, "_" and "-". Every other character becomes "_",
the dot too, so a job is one level of the tree. Jobs whose names become equal count together. In
each interval 20 random slices of a job at most send a timing.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.metrics.gathering import JOBS_NAMED, OTHER_JOBS, ErrorNames, Gathering
from workstealing.recruiting.cache_figures import COUNTS, CacheCounts
from workstealing.recruiting.slice import Outcome

try:
    import statsd
except ModuleNotFoundError as error:
    if error.name != "statsd":
        raise
    raise MissingExtraError("statsd", "statsd") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMINGS_KEPT = 20
_NAME_LENGTH = 100
# Fits one Ethernet frame, also inside the tunnels of container networks.
_DATAGRAM_BYTES = 1_400
_SECONDS_BETWEEN_TRIALS = 30.0
_UNSAFE_IN_JOB = re.compile(r"[^A-Za-z0-9_-]")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class StatsDHooks(Gathering["_StatsDCounts"]):
    """Sends a recruiter's counts to StatsD: `recruiter.add_hook(StatsDHooks("statsd.local"))`.

    Arguments: host (a name or an IPv4 address) and port of the StatsD server; prefix of all names;
    interval between two sends, a number of seconds or a timedelta; clock, which measures it.
    Raises: ConfigurationError for an impossible port, prefix or interval. Nothing is resolved or
    sent yet.

    A hook's call only counts, under a lock. After the interval it wakes a daemon thread of this
    process. The thread resolves the host's name, once, and sends the counts in few UDP packets. A
    dead server, an unknown name or a hanging resolver harms nobody: the counts of a bounded number
    of names wait, and a lost packet stays lost. A forked child starts from zero with a thread and a
    socket of its own. The counts of the last interval go out at the ordinary end of a process that
    has sent before.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8125,
        prefix: str = "workstealing",
        interval: Duration = 1.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(port, int) or not 0 < port < 65536:
            raise ConfigurationError(f"a StatsD port is a number from 1 to 65535, not {port!r}")
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                "a StatsD prefix is made of letters, digits, '_' and '-', with dots between,"
                f" not {prefix!r}"
            )
        self._host = host
        self._port = port
        self._prefix = prefix
        self._names: dict[str, str] = {}
        self._error_names = ErrorNames()
        self._caches = CacheCounts()
        super().__init__(f"StatsD at {host}:{port}", interval, clock)

    def _start_from_zero(self) -> None:
        super()._start_from_zero()
        self._client: statsd.StatsClient | None = None
        self._next_trial = self._clock.monotonic()

    def _new_batch(self) -> _StatsDCounts:
        return _StatsDCounts()

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted."""
        counts = {"enlisted": count}
        for cache, grown in self._caches.take().items():
            name = _UNSAFE_IN_JOB.sub("_", cache)[:_NAME_LENGTH] or "_"
            for figure in COUNTS:
                counts[f"cache.{name}.{figure}"] = int(grown[figure])
            counts[f"cache.{name}.micros"] = round(1e6 * grown["seconds"])
        self._count(counts)

    def on_recruited(self, job: str) -> None:
        """Count a caller who was recruited."""
        self._count({f"{self._name(job)}.recruited": 1})

    def on_outcome(
        self,
        job: str,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count a recruit's outcome, and keep the length of its slice."""
        name = self._name(job)
        counts = {f"{name}.{outcome.value}": 1, f"{name}.items": items}
        if error is not None:
            counts[f"{name}.error.{self._error_names(name, error)}"] = 1
        took = None if outcome is Outcome.SKIPPED else seconds * 1000.0
        self._count(counts, f"{name}.duration", took)

    def _flushing(self) -> None:
        self._next_trial = self._clock.monotonic()

    def _count(
        self, counts: Mapping[str, int], timing: str | None = None, took: float | None = None
    ) -> None:
        with self._lock:
            self._batch.counts.update(counts)
            if timing is not None and took is not None:
                self._batch.keep(timing, took)
            self._counted()

    def _name(self, job: str) -> str:
        name = self._names.get(job)
        if name is None:
            if len(self._names) >= JOBS_NAMED:
                return OTHER_JOBS
            name = _UNSAFE_IN_JOB.sub("_", job)[:_NAME_LENGTH] or "_"
            self._names[job] = name
        return name

    def _has_reached(self) -> bool:
        # Without a client the name is unresolved, and the end of a process must not wait for it.
        return self._client is not None

    def _release(self) -> None:
        # The client of statsd 3 has no close(): its socket goes with it.
        close = getattr(self._client, "close", None)
        if close is not None:
            close()

    def _deliver(self) -> bool:
        """Send the counts, once there is a client; say whether they are sent."""
        now = self._clock.monotonic()
        if self._client is None:
            if now < self._next_trial:
                return False
            self._next_trial = now + _SECONDS_BETWEEN_TRIALS
            # This resolves the name, perhaps without end.
            self._client = statsd.StatsClient(
                self._host, self._port, prefix=self._prefix, maxudpsize=_DATAGRAM_BYTES
            )
        with self._lock:
            batch, self._batch = self._batch, _StatsDCounts()
        with self._client.pipeline() as packets:
            for name, count in batch.counts.items():
                if count:
                    packets.incr(name, count)
            for name, timings in batch.timings.items():
                for took in timings:
                    packets.timing(name, took)
        return True


class _StatsDCounts:
    """The counts since the last send."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.timings: dict[str, list[float]] = {}
        self._seen: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self.counts)

    def keep(self, name: str, took: float) -> None:
        """Keep a timing; each of the interval's is as likely to stay."""
        kept = self.timings.setdefault(name, [])
        self._seen[name] += 1
        if len(kept) < _TIMINGS_KEPT:
            kept.append(took)
            return
        place = random.randrange(self._seen[name])
        if place < _TIMINGS_KEPT:
            kept[place] = took
