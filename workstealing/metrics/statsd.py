"""StatsD: counts and gauges, which a thread sends once an interval at most.

These are the names, after the prefix ("workstealing" by default):

| name | type | meaning |
|---|---|---|
| `enlisted` | counter | callers who enlisted |
| `<job>.recruited` | counter | callers who won the draw for this job |
| `<job>.<outcome>`: `worked`, `failed`, `skipped`... | counter | their outcomes |
| `<job>.error.<class>` | counter | errors of slices, by class |
| `<job>.items` | counter | items handled |
| `<job>.duration` | timing | length of slices in milliseconds, without skipped ones |
| `<job>.rate` | gauge | the share of the enlisted that the job wants |
| `<job>.backlog`, `<job>.oldest_garbage_seconds` | gauge | the garbage that a slice has just seen |
| `<job>.measured.<what>` | gauge | a figure of the job's own, just measured |
| `<job>.<state>.<sender>`: `keeps_up`, `breaker_open`, `paused` | gauge | 1 or 0 |
| `<job>.slice_running_seconds.<sender>`, `<job>.unreached_seconds.<sender>` | gauge | how long |
| `server.<server>.unreached_seconds.<sender>` | gauge | for how long it was not reached |
| `receiver.<receiver>.unsent_seconds.<sender>` | gauge | for how long it has taken no counts |
| `structure.<structure>.<kind>.dead_items`, `dead_items_unknown` | gauge | items for a person |
| `fair_queue.<queue>.account.<account>.oldest_waiting_seconds` | gauge | how long it has waited |
| `fair_queue.<queue>.oldest_waiting_unknown` | gauge | 1 where not all of them are known |
| `cache.<cache>.hits`, `stale`, `misses`, `waits`, `computations`... | counter | caches |
| `cache.<cache>.micros` | counter | microseconds of their computations |

A job's name keeps its letters (a-z, A-Z), digits, "_" and "-". Every other character becomes "_",
the dot too, so a job is one level of the tree. Jobs whose names become equal count together. In
each interval 20 random slices of a job at most send a timing.

A server of StatsD keeps one value for each gauge, the last one. So the states of a process, of
which the worst counts, bear its sender: one of 32 numbers. Processes of a host that were started
one after the other have different senders. Two processes with the same sender overwrite each
other's states.

A server also keeps the last value for ever, unless it is told to forget gauges that nobody sends
any more. So a gauge is sent every ten seconds while it is known, and no longer: no value stands for
"unknown".
"""

from __future__ import annotations

import math
import os
import random
import re
import socket
import zlib
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.metrics.gathering import (
    JOBS_NAMED,
    OTHER_JOBS,
    DeadSizes,
    ErrorNames,
    Gathering,
    JobNames,
    MeasuredNames,
    OldestWaiting,
    Recruiters,
    gauges_of,
    unreached_servers,
    unsent,
)
from workstealing.recruiting.cache_figures import COUNTS, CacheCounts
from workstealing.recruiting.slice import OUTCOMES, Outcome

try:
    import statsd
except ModuleNotFoundError as error:
    if error.name != "statsd":
        raise
    raise MissingExtraError("statsd", "statsd") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from workstealing.recruiting.recruiter import Recruiter

_TIMINGS_KEPT = 20
_NAME_LENGTH = 100
# Fits one Ethernet frame, also inside the tunnels of container networks.
_DATAGRAM_BYTES = 1_400
# How often the thread tells what lasts in its process, also while no caller comes.
_GAUGE_SECONDS = 10.0
_SECONDS_BETWEEN_TRIALS = 30.0
_SECONDS_BETWEEN_QUESTIONS = 60.0
_SENDERS = 32
_UNSAFE_IN_JOB = re.compile(r"[^A-Za-z0-9_-]")
_SENDER = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class StatsDHooks(Gathering["_StatsDCounts"]):
    """Sends a recruiter's counts to StatsD: `recruiter.add_hook(StatsDHooks("statsd.local"))`.

    Arguments:
        host: (a name or an IPv4 address) and port of the StatsD server.
        prefix: of all names.
        interval: between two sends, a number of seconds or a timedelta.
        clock: it measures it.
        structures: of which the thread asks for their dead items, and of fair queues for the
            waiting accounts, once a minute, as `prometheus.DeadItems` and `WaitingAccounts` do.
        sender: the last part of the names of this process's states, by default one of 32 numbers.

    Raises: ConfigurationError for an impossible port, prefix, interval or sender. The constructor
    resolves and sends nothing.

    A hook's call only counts, under a lock. After the interval it wakes a daemon thread of this
    process. The thread resolves the host's name, once, and sends the counts in few UDP packets.
    Every ten seconds, or once an interval that is longer, it sends the gauges that are known, also
    while nobody calls: a slice that does not end is told by nobody else. A dead server, an unknown
    name or a hanging resolver harms nobody: the counts of a bounded number of names wait, and a
    lost packet stays lost. A forked child starts from zero with a thread and a socket of its own.
    The counts of the last interval go out at the ordinary end of a process that has sent before.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8125,
        prefix: str = "workstealing",
        interval: Duration = 1.0,
        clock: Clock = SYSTEM_CLOCK,
        *,
        structures: Iterable[Any] = (),
        sender: str | None = None,
    ) -> None:
        if not isinstance(port, int) or not 0 < port < 65536:
            raise ConfigurationError(f"a StatsD port is a number from 1 to 65535, not {port!r}")
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                "a StatsD prefix is made of letters, digits, '_' and '-', with dots between,"
                f" not {prefix!r}"
            )
        if sender is not None and not _SENDER.fullmatch(sender):
            raise ConfigurationError(
                "a sender is one part of a name, of letters, digits, '_' and '-', or None for one"
                f" of {_SENDERS} numbers, not {sender!r}"
            )
        self._host = host
        self._port = port
        self._prefix = prefix
        self._names: dict[str, str] = {}
        self._error_names = ErrorNames()
        self._measured_names = MeasuredNames()
        self._server_names = JobNames()
        self._receiver_names = JobNames()
        self._caches = CacheCounts()
        self._watched = Recruiters(self._name)
        structures = list(structures)
        self._sizes = DeadSizes(structures)
        self._longest_waiting = OldestWaiting(structures)
        self._given_sender = sender
        super().__init__(f"StatsD at {host}:{port}", interval, clock)

    def _start_from_zero(self) -> None:
        super()._start_from_zero()
        self._client: statsd.StatsClient | None = None
        self._next_trial = self._next_gauges = self._next_question = self._clock.monotonic()
        self._servers: set[str] = set()
        self._sender = _sender() if self._given_sender is None else self._given_sender

    def _new_batch(self) -> _StatsDCounts:
        return _StatsDCounts()

    def on_added(self, recruiter: Recruiter) -> None:
        """Send the gauges of this recruiter's jobs, too."""
        super().on_added(recruiter)
        self._watched.add(recruiter)

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted."""
        counts = {"enlisted": count}
        for cache, grown in self._caches.take().items():
            name = _part(cache)
            for figure in COUNTS:
                counts[f"cache.{name}.{figure}"] = int(grown[figure])
            counts[f"cache.{name}.micros"] = round(1e6 * grown["seconds"])
        self._count(counts)

    def on_recruited(self, job: str) -> None:
        """Count a caller who was recruited."""
        self._count({f"{self._name(job)}.recruited": 1})
        with self._lock:
            # This may be the slice that does not end, and nobody else would tell.
            self._begin()

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

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Keep the garbage that a slice has seen."""
        self._see(job, "oldest_garbage_seconds", oldest_seconds)
        self._see(job, "backlog", backlog)

    def on_measured(self, job: str, what: str, value: float) -> None:
        """Keep a figure of the job's own."""
        what = _part(what)
        if self._measured_names(job, what):
            self._see(job, f"measured.{what}", value)

    def _see(self, job: str, what: str, value: float | None) -> None:
        name = self._name(job)
        if value is None or not math.isfinite(value) or name == OTHER_JOBS:
            return
        with self._lock:
            # Sent once: another process may have looked later.
            self._batch.seen[f"{name}.{what}"] = value
            self._counted()

    def _flushing(self) -> None:
        self._next_trial = self._next_gauges = self._clock.monotonic()

    def _rest(self) -> None:
        due = self._next_gauges
        if self._client is None:
            due = max(due, self._next_trial)
        self._sleep(min(max(due - self._clock.monotonic(), 0.1), _GAUGE_SECONDS))

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
            name = _part(job)
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
        gauges: dict[str, float] = {}
        if now >= self._next_gauges:
            self._next_gauges = now + max(self._interval, _GAUGE_SECONDS)
            gauges = self._states()
        with self._lock:
            batch, self._batch = self._batch, self._new_batch()
        with self._client.pipeline() as packets:
            for name, count in batch.counts.items():
                if count:
                    packets.incr(name, count)
            for name in self._beginnings() if gauges else ():
                # A counter that begins at 0 shows its first increase.
                if not batch.counts[name]:
                    packets.incr(name, 0)
            for name, timings in batch.timings.items():
                for took in timings:
                    packets.timing(name, took)
            for name, value in (*batch.seen.items(), *gauges.items()):
                packets.gauge(name, float(f"{value:.6g}"))
        if now >= self._next_question:
            self._next_question = now + max(self._interval, _SECONDS_BETWEEN_QUESTIONS)
            # After the counts, because a server that is away takes its time.
            with self._client.pipeline() as packets:
                for name, value in chain(self._dead_items(), self._oldest_waiting()):
                    packets.gauge(name, value)
        return True

    def _beginnings(self) -> Iterator[str]:
        for job, _ in self._watched.jobs():
            yield from (f"{job}.{each}" for each in ("recruited", "items", *OUTCOMES))

    def _oldest_waiting(self) -> Iterator[tuple[str, float]]:
        for structure, is_known, accounts in self._longest_waiting.ask():
            name = f"fair_queue.{_part(structure)}"
            yield f"{name}.oldest_waiting_unknown", float(not is_known)
            longest: dict[str, float] = {}
            for account, seconds in accounts.items():
                part = _part(account)
                longest[part] = max(seconds, longest.get(part, 0.0))
            for part, seconds in longest.items():
                yield f"{name}.account.{part}.oldest_waiting_seconds", float(f"{seconds:.6g}")

    def _dead_items(self) -> Iterator[tuple[str, float]]:
        for structure, kind, count in self._sizes.ask():
            name = f"structure.{_part(structure)}.{_part(kind)}"
            yield f"{name}.dead_items_unknown", float(count is None)
            if count is not None:
                yield f"{name}.dead_items", count

    def _states(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for job, figures in self._watched.jobs():
            for gauge, value in gauges_of(figures).items():
                name = f"{job}.{gauge}" if gauge == "rate" else f"{job}.{gauge}.{self._sender}"
                # Of two jobs whose names become equal, or of two recruiters, the worse one counts.
                worse = min if gauge == "keeps_up" else max
                found[name] = worse(value, found.get(name, value))
        unreached = unreached_servers(self._server_names)
        # A server that was reached again has 0, and one that never failed has no gauge.
        for server in self._servers | unreached.keys():
            name = f"server.{_part(server)}.unreached_seconds.{self._sender}"
            found[name] = unreached.get(server, 0.0)
        self._servers |= unreached.keys()
        for receiver, seconds in unsent(self._receiver_names, self).items():
            found[f"receiver.{_part(receiver)}.unsent_seconds.{self._sender}"] = seconds
        return found


def _part(name: str) -> str:
    """Return any name as one part of a StatsD name."""
    return _UNSAFE_IN_JOB.sub("_", name)[:_NAME_LENGTH] or "_"


def _sender() -> str:
    """Return this process's number among the senders of gauges."""
    # Neighbours differ, and in containers, where all have the same pid, the hosts' names do.
    return str((zlib.crc32(socket.gethostname().encode()) + os.getpid()) % _SENDERS)


class _StatsDCounts:
    """The counts since the last send."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.timings: dict[str, list[float]] = {}
        self.seen: dict[str, float] = {}
        self._seen: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self.counts or self.seen)

    def keep(self, name: str, took: float) -> None:
        """Keep a timing; all timings of an interval are equally likely to stay."""
        kept = self.timings.setdefault(name, [])
        self._seen[name] += 1
        if len(kept) < _TIMINGS_KEPT:
            kept.append(took)
            return
        place = random.randrange(self._seen[name])
        if place < _TIMINGS_KEPT:
            kept[place] = took
