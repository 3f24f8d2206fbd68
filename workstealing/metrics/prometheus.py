"""Prometheus: counters, a histogram and gauges in a registry of `prometheus_client`.

The names stand in docs/metrics.md. The label of a job is `job_name`, because Prometheus gives every
series that it scrapes a label `job` of its own.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from workstealing.errors import MissingExtraError
from workstealing.metrics.watching import OTHER_JOBS, SLICE_BUCKETS, JobNames, Watched
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.outcome import OUTCOMES, Outcome

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    raise MissingExtraError("prometheus", "prometheus_client") from error

if TYPE_CHECKING:
    from workstealing.recruiting.recruiter import Recruiter

_JOB = ("job_name",)


class PrometheusHooks(Hooks):
    """Counts what a recruiter does in Prometheus' metrics: `recruiter.add_hook(PrometheusHooks())`.

    Every call counts in memory (in a mapped file where PROMETHEUS_MULTIPROC_DIR is set, as
    `prometheus_client` does by itself); nothing is sent. The gauges are set as callers enlist,
    about once a second, so that they work with several processes too: where those share a scrape,
    it shows the newest backlog, oldest garbage and rate, a "keeps up" only if all do, and a breaker
    that is open in any. Several hooks on one registry share its metrics. Labels are bounded: the
    first 100 jobs by name, "_other" beyond.

    Arguments: registry, where the metrics are registered; by default prometheus_client's own.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry
        made = _of_registry.get(registry)
        if made is None:
            made = _of_registry[registry] = _made(registry)
        self._metrics = made
        self._names = self._metrics.names
        self._watched = Watched(self._names)
        self._shown: set[str] = set()

    def on_added(self, recruiter: Recruiter) -> None:
        """Show the gauges of this recruiter's jobs, too."""
        self._watched.add(recruiter)
        self._set_gauges()

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted, and set the gauges."""
        self._metrics.enlisted.inc(count)
        self._set_gauges()

    def on_recruited(self, job: str) -> None:
        """Count a caller who was recruited."""
        self._metrics.recruited.labels(self._names(job)).inc()

    def on_outcome(
        self,
        job: str,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,  # noqa: ARG002 - the hook's signature
    ) -> None:
        """Count what became of a recruit, and how long it took."""
        name = self._names(job)
        self._metrics.outcomes.labels(name, outcome.value).inc()
        self._metrics.items.labels(name).inc(items)
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
            metrics.rate.labels(name).set(figures["rate"])
            metrics.breaker_open.labels(name).set(bool(figures.get("breaker_open")))
            if figures.get("keeps_up") is not None:
                metrics.keeps_up.labels(name).set(bool(figures["keeps_up"]))
        gone, self._shown = self._shown - shown, shown
        if not _is_multiprocess():
            # Counters stay: what has been counted has been counted.
            for gauge in metrics.gauges:
                for name in gone:
                    with contextlib.suppress(KeyError):
                        gauge.remove(name)


@dataclass(frozen=True)
class _Metrics:
    """What is registered in one registry."""

    names: JobNames
    enlisted: Counter
    recruited: Counter
    outcomes: Counter
    items: Counter
    seconds: Histogram
    backlog: Gauge
    oldest: Gauge
    rate: Gauge
    keeps_up: Gauge
    breaker_open: Gauge

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        return (self.backlog, self.oldest, self.rate, self.keeps_up, self.breaker_open)


_of_registry: WeakKeyDictionary[CollectorRegistry, _Metrics] = WeakKeyDictionary()


def _is_multiprocess() -> bool:
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


def _made(registry: CollectorRegistry) -> _Metrics:
    def counter(name: str, what: str, labels: tuple[str, ...] = _JOB) -> Counter:
        return Counter(f"workstealing_{name}", what, labels, registry=registry)

    def gauge(name: str, what: str, mode: str) -> Gauge:
        # How the processes' values become one: the processes see the same garbage, so the newest
        # look at it is the best.
        return Gauge(
            f"workstealing_{name}",
            what,
            _JOB,
            registry=registry,
            multiprocess_mode=mode,  # type: ignore[arg-type]
        )

    return _Metrics(
        names=JobNames(),
        enlisted=counter("enlisted", "Callers who enlisted.", ()),
        recruited=counter("recruited", "Callers who were recruited for this job."),
        outcomes=counter("outcomes", "What became of recruits.", ("job_name", "outcome")),
        items=counter("items", "Items handled."),
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
        rate=gauge("rate", "The share of the enlisted that the job wants.", "livemostrecent"),
        keeps_up=gauge("keeps_up", "1 if the job keeps up with its garbage, 0 if not.", "livemin"),
        breaker_open=gauge(
            "breaker_open", "1 while the job's server is left alone after a fault.", "livemax"
        ),
    )
