"""Prometheus: counters, a histogram and gauges in a registry of `prometheus_client`.

The names stand in docs/metrics.md. The label of a job is `job_name`, because Prometheus gives each
scraped series a label `job` of its own.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from workstealing.errors import MissingExtraError
from workstealing.metrics.gathering import (
    LOOKUPS,
    OTHER_JOBS,
    SLICE_BUCKETS,
    DeadSizes,
    ErrorNames,
    JobNames,
    MeasuredNames,
    OldestWaiting,
    Recruiters,
    gauges_of,
    sendable,
    unreached_servers,
    unsent,
)
from workstealing.metrics.watching import WATCH, RunningSlice, Watcher
from workstealing.recruiting.cache_figures import LISTENERS, CacheCounts
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.slice import OUTCOMES, Outcome

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    raise MissingExtraError("prometheus", "prometheus_client") from error

if TYPE_CHECKING:
    from workstealing.recruiting.recruiter import Recruiter

_JOB = ("job_name",)


class PrometheusHooks(Hooks, Watcher):
    """Counts a recruiter's work in Prometheus' metrics: `recruiter.add_hook(PrometheusHooks())`.

    Each call counts in memory, or in a mapped file if PROMETHEUS_MULTIPROC_DIR is set; nothing is
    sent. The gauges are set as callers enlist, about once a second, and at each scrape of this
    process. While a slice does not end, a thread shows for how long. A shared scrape shows the
    newest backlog, oldest garbage and rate. The gauge "keeps up" is 1 only if all knowing processes
    keep up, and +Inf if none knows any more. A shared scrape also shows the worst breaker and the
    longest durations. Several hooks on one registry share its metrics. Labels are bounded: the
    first 100 jobs by name, all others as "_other".

    Arguments:
        registry: it holds the metrics; by default prometheus_client's own.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry
        made = _of_registry.get(registry)
        if made is None:
            made = _of_registry[registry] = _made(registry)
        self._metrics = made
        self._names = self._metrics.names
        self._watched = Recruiters(self._names)
        self._metrics.hooks.add(self)
        self._shown: set[str] = set()
        self._measured: set[tuple[str, str]] = set()
        # The jobs whose "keeps up" has been shown.
        self._known: set[str] = set()
        # The job of the slice that the watch has seen last.
        self._running: str | None = None
        WATCH.add(self)

    def on_added(self, recruiter: Recruiter) -> None:
        """Show the gauges of this recruiter's jobs, too."""
        self._watched.add(recruiter)
        LISTENERS.add(self)
        self._set_gauges()

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted, and set the gauges."""
        self._metrics.enlisted.inc(count)
        self._set_gauges()

    def on_recruited(self, job: str) -> None:
        """Count a caller who was recruited."""
        WATCH.begin()
        self._metrics.recruited.labels(self._names(job)).inc()

    def on_beat(self, running: RunningSlice | None) -> None:
        """Show for how long a slice has been running, though nobody enlists meanwhile."""
        name = None if running is None else self._names(running.job)
        before, self._running = self._running, name
        if before is not None and before != name:
            self._metrics.slice_running_seconds.labels(before).set(0.0)
        if name is not None and running is not None:
            self._metrics.slice_running_seconds.labels(name).set(running.seconds)

    def on_outcome(
        self,
        job: str,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count a recruit's outcome, and observe the length of its slice."""
        name = self._names(job)
        self._metrics.outcomes.labels(name, outcome.value).inc()
        self._metrics.items.labels(name).inc(items)
        if error is not None:
            self._metrics.errors.labels(name, self._metrics.error_names(name, error)).inc()
        if outcome is not Outcome.SKIPPED:
            self._metrics.seconds.labels(name).observe(seconds)

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Show the garbage that a slice has seen."""
        name = self._names(job)
        if name == OTHER_JOBS:
            return
        if oldest_seconds is not None:
            self._metrics.oldest.labels(name).set(oldest_seconds)
        if backlog is not None:
            self._metrics.backlog.labels(name).set(backlog)

    def on_measured(self, job: str, what: str, value: float) -> None:
        """Show a figure of the job's own."""
        name = self._names(job)
        if name != OTHER_JOBS and self._metrics.measured_names(name, what):
            self._measured.add((name, what))
            self._metrics.measured.labels(name, what).set(value)

    def _set_gauges(self) -> None:
        metrics, shown = self._metrics, set()
        for name, figures in self._watched.jobs():
            shown.add(name)
            if name not in self._shown:
                # A series that begins at 0 shows its first increase.
                metrics.recruited.labels(name)
                metrics.items.labels(name)
                for outcome in OUTCOMES:
                    metrics.outcomes.labels(name, outcome)
            known = gauges_of(figures)
            keeps_up = known.pop("keeps_up", None)
            for figure, value in known.items():
                getattr(metrics, figure).labels(name).set(value)
            self._set_keeps_up(name, keeps_up)
        self._count_caches()
        # A server that was reached again has 0, and one that never failed has no figure.
        unreached = unreached_servers(metrics.server_names)
        for name in metrics.servers | unreached.keys():
            metrics.server_unreached.labels(name).set(unreached.get(name, 0.0))
        metrics.servers.update(unreached)
        for receiver, seconds in unsent(metrics.receiver_names).items():
            metrics.unsent.labels(receiver).set(seconds)
        # Counts stay; a gauge ends with its job.
        gone, self._shown = self._shown - shown, shown
        if not _is_multiprocess():
            for gauge in metrics.gauges:
                for name in gone:
                    with contextlib.suppress(KeyError):
                        gauge.remove(name)
            for name, what in self._measured.copy():
                if name in gone:
                    self._measured.discard((name, what))
                    with contextlib.suppress(KeyError):
                        metrics.measured.remove(name, what)

    def _count_caches(self) -> None:
        metrics = self._metrics
        for cache, grown in metrics.cache_counts.take().items():
            name = sendable(cache)
            for figure, result in LOOKUPS.items():
                metrics.cache_lookups.labels(name, result).inc(grown[figure])
            metrics.cache_waits.labels(name).inc(grown["waits"])
            metrics.cache_uncached.labels(name).inc(grown["uncached"])
            metrics.cache_computations.labels(name).inc(grown["computations"])
            metrics.cache_failures.labels(name).inc(grown["failures"])
            metrics.cache_seconds.labels(name).inc(grown["seconds"])

    def _set_keeps_up(self, name: str, keeps_up: float | None) -> None:
        if keeps_up is not None:
            self._known.add(name)
            self._metrics.keeps_up.labels(name).set(keeps_up)
        elif name in self._known:
            # The answer is unknown now: the last one must not stand for ever.
            if _is_multiprocess():
                # Metrics cannot be removed here. The value of any knowing process is lower.
                self._metrics.keeps_up.labels(name).set(math.inf)
                return
            self._known.discard(name)
            with contextlib.suppress(KeyError):
                self._metrics.keeps_up.remove(name)


class DeadItems(Collector):
    """Shows the number of dead items: `registry.register(DeadItems([queue]))`.

    Each scrape asks the structures by connections of their own, never in a caller's time: one round
    trip or a few for each. A structure that does not answer has no sample, and 1 as its
    `workstealing_dead_items_unknown`.

    Arguments:
        structures: of this package, or `workstealing.dashboard.Watched` with a `dead_size`; the
            first 100 are asked.
    """

    def __init__(self, structures: Iterable[Any]) -> None:
        self._sizes = DeadSizes(structures)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe the metric, so its registration asks no structure."""
        yield _dead_family()
        yield _unknown_family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Ask each structure."""
        family, unknown = _dead_family(), _unknown_family()
        for name, kind, count in self._sizes.ask():
            # A series that only vanished would silence its alert.
            unknown.add_metric([name, kind], float(count is None))
            if count is not None:
                family.add_metric([name, kind], count)
        yield family
        yield unknown


class WaitingAccounts(Collector):
    """Shows which accounts of fair queues wait: `registry.register(WaitingAccounts([queue]))`.

    Each scrape asks the queues by connections of their own, eleven round trips at most for each of
    the first 100. The 20 accounts that have waited longest have a sample, up to 100 names a queue
    in all. A queue that does not answer has none, and 1 as its
    `workstealing_oldest_waiting_unknown`. So has one with more accounts than were looked at, 1,000.

    Arguments:
        queues: `FairQueue`s or `AsyncFairQueue`s.
    """

    def __init__(self, queues: Iterable[Any]) -> None:
        self._waiting = OldestWaiting(queues)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe the metric, so its registration asks no queue."""
        yield from _waiting_families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Ask each queue."""
        family, unknown = _waiting_families()
        for name, is_known, accounts in self._waiting.ask():
            unknown.add_metric([name], float(not is_known))
            for account, seconds in accounts.items():
                family.add_metric([name, account], seconds)
        yield family
        yield unknown


def _waiting_families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "workstealing_oldest_waiting_seconds",
            "How long the next message of an account of a fair queue has waited.",
            labels=("structure", "account"),
        ),
        GaugeMetricFamily(
            "workstealing_oldest_waiting_unknown",
            "Whether the accounts that wait are not all known.",
            labels=("structure",),
        ),
    )


def _dead_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "workstealing_dead_items",
        "Items that failed too often and wait for a person.",
        labels=("structure", "kind"),
    )


def _unknown_family() -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "workstealing_dead_items_unknown",
        "Whether the dead items could not be counted.",
        labels=("structure", "kind"),
    )


@dataclass(frozen=True)
class _Metrics:
    """The metrics of one registry."""

    names: JobNames
    error_names: ErrorNames
    enlisted: Counter
    recruited: Counter
    outcomes: Counter
    items: Counter
    errors: Counter
    seconds: Histogram
    backlog: Gauge
    oldest: Gauge
    measured: Gauge
    rate: Gauge
    keeps_up: Gauge
    breaker_open: Gauge
    paused: Gauge
    slice_running_seconds: Gauge
    unreached_seconds: Gauge
    server_unreached: Gauge
    unsent: Gauge
    cache_lookups: Counter
    cache_waits: Counter
    cache_uncached: Counter
    cache_computations: Counter
    cache_failures: Counter
    cache_seconds: Counter
    cache_counts: CacheCounts = field(default_factory=CacheCounts)
    server_names: JobNames = field(default_factory=JobNames)
    receiver_names: JobNames = field(default_factory=JobNames)
    measured_names: MeasuredNames = field(default_factory=MeasuredNames)
    servers: set[str] = field(default_factory=set)
    hooks: WeakSet[PrometheusHooks] = field(default_factory=WeakSet)

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        """Those of jobs, which end with their job."""
        every = vars(self).values()
        others = (self.measured, self.server_unreached, self.unsent)
        return tuple(each for each in every if isinstance(each, Gauge) and each not in others)


_of_registry: WeakKeyDictionary[CollectorRegistry, _Metrics] = WeakKeyDictionary()


def _is_multiprocess() -> bool:
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


class _AtScrape(Collector):
    """Sets the gauges when this process is scraped; it shows nothing itself."""

    def __init__(self) -> None:
        self.hooks: WeakSet[PrometheusHooks] = WeakSet()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Let the hooks set their gauges."""
        for each in list(self.hooks):
            each._set_gauges()  # noqa: SLF001 - this module's own class
        return iter(())


def _made(registry: CollectorRegistry) -> _Metrics:
    # Registered first, so it is asked before the metrics are read.
    at_scrape = _AtScrape()
    registry.register(at_scrape)

    def counter(name: str, what: str, labels: tuple[str, ...] = _JOB) -> Counter:
        return Counter(f"workstealing_{name}", what, labels, registry=registry)

    def gauge(name: str, what: str, mode: str, labels: tuple[str, ...] = _JOB) -> Gauge:
        # The mode makes one value of the processes' values. They see the same garbage, so the
        # newest look is the best.
        return Gauge(
            f"workstealing_{name}",
            what,
            labels,
            registry=registry,
            multiprocess_mode=mode,  # type: ignore[arg-type]
        )

    made = _Metrics(
        names=JobNames(),
        error_names=ErrorNames(),
        enlisted=counter("enlisted", "Callers who enlisted.", ()),
        recruited=counter("recruited", "Callers who were recruited for this job."),
        outcomes=counter("outcomes", "What became of recruits.", ("job_name", "outcome")),
        items=counter("items", "Items handled."),
        errors=counter("errors", "Errors that slices raised, by class.", ("job_name", "error")),
        seconds=Histogram(
            "workstealing_slice_seconds",
            "How long slices took.",
            _JOB,
            registry=registry,
            buckets=SLICE_BUCKETS,
        ),
        backlog=gauge("backlog", "Items that wait, as a slice last saw.", "livemostrecent"),
        oldest=gauge(
            "oldest_garbage_seconds",
            "How long the oldest item that a slice last saw was overdue.",
            "livemostrecent",
        ),
        measured=gauge(
            "measured",
            "A figure of the job's own, of what its last slice has looked at.",
            "livemostrecent",
            ("job_name", "what"),
        ),
        rate=gauge("rate", "The share of the enlisted that the job wants.", "livemostrecent"),
        keeps_up=gauge("keeps_up", "1 if the job keeps up with its garbage, 0 if not.", "livemin"),
        breaker_open=gauge(
            "breaker_open", "1 while the job's server is left alone after a fault.", "livemax"
        ),
        paused=gauge("paused", "1 while the job rests.", "livemax"),
        slice_running_seconds=gauge(
            "slice_running_seconds", "How long a slice has been running; 0: none is.", "livemax"
        ),
        unreached_seconds=gauge(
            "unreached_seconds", "For how long the job's server has not been reached.", "livemax"
        ),
        server_unreached=gauge(
            "server_unreached_seconds",
            "For how long jobs and cached calls have not reached the server.",
            "livemax",
            ("server",),
        ),
        unsent=gauge(
            "unsent_seconds",
            "For how long a ledger or another receiver has taken no counts; 0: the last came.",
            "livemax",
            ("receiver",),
        ),
        cache_lookups=counter("cache_lookups", "Looks into caches.", ("cache", "result")),
        cache_waits=counter("cache_waits", "Calls that waited for another's.", ("cache",)),
        cache_uncached=counter("cache_uncached", "Calls without Redis.", ("cache",)),
        cache_computations=counter("cache_computations", "Calls of the function.", ("cache",)),
        cache_failures=counter("cache_failures", "Calls of it that raised.", ("cache",)),
        cache_seconds=counter("cache_compute_seconds", "How long these took.", ("cache",)),
    )
    at_scrape.hooks = made.hooks
    return made
