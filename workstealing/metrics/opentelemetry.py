"""OpenTelemetry: instruments of a meter, by the API package alone.

The names stand in docs/metrics.md. An exporter for Prometheus turns them into the names of
`PrometheusHooks`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

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
    sendable,
    unreached_servers,
    unsent,
)
from workstealing.recruiting.cache_figures import cache_stats
from workstealing.recruiting.hooks import Hooks
from workstealing.recruiting.slice import Outcome

try:
    from opentelemetry import metrics
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise MissingExtraError("opentelemetry", "opentelemetry-api") from error

if TYPE_CHECKING:
    from workstealing.recruiting.recruiter import Recruiter

_Observations = Iterable[metrics.Observation]


class OpenTelemetryHooks(Hooks):
    """Counts a recruiter's work by a meter: `recruiter.add_hook(OpenTelemetryHooks())`.

    Counters and the histogram count at once; the gauges answer when they are collected. One object
    may be added to several recruiters. Make only one for each meter. Attributes are bounded: the
    first 100 jobs by name, all others as "_other".

    Arguments:
        meter: it makes the instruments; by default one of the global provider's.
        structures: whose dead items, and of fair queues the waiting accounts, each collection asks
            for, as `prometheus.DeadItems` and `prometheus.WaitingAccounts` do.
    """

    def __init__(self, meter: metrics.Meter | None = None, structures: Iterable[Any] = ()) -> None:
        if meter is None:
            meter = metrics.get_meter("workstealing")
        self._names = JobNames()
        self._server_names = JobNames()
        self._receiver_names = JobNames()
        self._measured_names = MeasuredNames()
        self._error_names = ErrorNames()
        structures = list(structures)
        self._sizes = DeadSizes(structures)
        # Each remembers what it has told.
        self._waiting, self._waiting_known = OldestWaiting(structures), OldestWaiting(structures)
        self._watched = Recruiters(self._names)
        # Re-entrant: a signal handler may enlist while the interrupted frame holds it.
        self._lock = threading.RLock()
        self._oldest: dict[str, float] = {}
        self._measured: dict[tuple[str, str], float] = {}
        self._backlog: dict[str, float] = {}
        self._enlisted = meter.create_counter(
            "workstealing.enlisted", "{caller}", "Callers who enlisted."
        )
        self._recruited = meter.create_counter(
            "workstealing.recruited", "{caller}", "Callers who were recruited for this job."
        )
        self._outcomes = meter.create_counter(
            "workstealing.outcomes", "{slice}", "What became of recruits."
        )
        self._items = meter.create_counter("workstealing.items", "{item}", "Items handled.")
        self._errors = meter.create_counter(
            "workstealing.errors", "{error}", "Errors that slices raised, by class."
        )
        self._seconds = meter.create_histogram(
            "workstealing.slice", "s", "How long slices took.", **_advice(meter)
        )
        gauges: tuple[tuple[str, str, str, Callable[[], _Observations]], ...] = (
            ("backlog", "{item}", "Items that wait, as a slice last saw.", self._backlogs),
            (
                "oldest_garbage",
                "s",
                "How long the oldest item that a slice last saw was overdue.",
                self._oldests,
            ),
            (
                "measured",
                "",
                "A figure of the job's own, of what its last slice has looked at.",
                self._measurements,
            ),
            ("rate", "", "The share of the enlisted that the job wants.", self._figure("rate")),
            (
                "keeps_up",
                "",
                "1 if the job keeps up with its garbage, 0 if not.",
                self._figure("keeps_up"),
            ),
            (
                "breaker_open",
                "",
                "1 while the job's server is left alone after a fault.",
                self._figure("breaker_open"),
            ),
            ("paused", "", "1 while the job rests.", self._figure("paused")),
            (
                "slice_running",
                "s",
                "How long a slice has been running.",
                self._figure("running_seconds"),
            ),
            (
                "unreached",
                "s",
                "For how long the job's server has not been reached.",
                self._figure("breaker_seconds"),
            ),
            (
                "server_unreached",
                "s",
                "For how long jobs and cached calls have not reached the server.",
                self._unreached_servers,
            ),
            (
                "unsent",
                "s",
                "For how long a ledger or another receiver has taken no counts; 0: the last came.",
                self._unsent,
            ),
            (
                "dead_items",
                "{item}",
                "Items that failed too often and wait for a person.",
                self._dead_items,
            ),
            (
                "dead_items_unknown",
                "",
                "1 where the dead items could not be counted.",
                self._dead_items_unknown,
            ),
            (
                "oldest_waiting",
                "s",
                "How long the next message of an account of a fair queue has waited.",
                self._oldest_waiting,
            ),
            (
                "oldest_waiting_unknown",
                "",
                "1 where the accounts that wait are not all known.",
                self._oldest_waiting_unknown,
            ),
        )
        for name, unit, what, ask in gauges:
            meter.create_observable_gauge(
                f"workstealing.{name}", [_callback(ask)], unit=unit, description=what
            )
        counts: tuple[tuple[str, str, str, Callable[[], _Observations]], ...] = (
            ("lookups", "{look}", "Looks into caches.", _lookups),
            ("waits", "{call}", "Calls that waited for another's.", _cache_figure("waits")),
            ("uncached", "{call}", "Calls without Redis.", _cache_figure("uncached")),
            (
                "computations",
                "{call}",
                "Calls of the function.",
                _cache_figure("computations"),
            ),
            ("failures", "{call}", "Calls of it that raised.", _cache_figure("failures")),
            ("compute", "s", "How long these took.", _cache_figure("seconds")),
        )
        for name, unit, what, ask in counts:
            meter.create_observable_counter(
                f"workstealing.cache_{name}", [_callback(ask)], unit=unit, description=what
            )

    def on_added(self, recruiter: Recruiter) -> None:
        """Show the gauges of this recruiter's jobs, too."""
        self._watched.add(recruiter)

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted."""
        self._enlisted.add(count)

    def on_recruited(self, job: str) -> None:
        """Count a caller who was recruited."""
        self._recruited.add(1, {"job_name": self._names(job)})

    def on_outcome(
        self,
        job: str,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count a recruit's outcome, and record the length of its slice."""
        name = self._names(job)
        self._outcomes.add(1, {"job_name": name, "outcome": outcome.value})
        self._items.add(items, {"job_name": name})
        if error is not None:
            self._errors.add(1, {"job_name": name, "error": self._error_names(name, error)})
        if outcome is not Outcome.SKIPPED:
            self._seconds.record(seconds, {"job_name": name})

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Keep the garbage that a slice has seen."""
        name = self._names(job)
        if name == OTHER_JOBS:
            return
        with self._lock:
            if oldest_seconds is not None:
                self._oldest[name] = oldest_seconds
            if backlog is not None:
                self._backlog[name] = backlog

    def on_measured(self, job: str, what: str, value: float) -> None:
        """Keep a figure of the job's own."""
        name = self._names(job)
        if name != OTHER_JOBS and self._measured_names(name, what):
            with self._lock:
                self._measured[name, what] = value

    def _measurements(self) -> _Observations:
        with self._lock:
            return [
                metrics.Observation(value, {"job_name": job, "what": what})
                for (job, what), value in self._measured.items()
            ]

    def _oldests(self) -> _Observations:
        with self._lock:
            return [_observed(job, value) for job, value in self._oldest.items()]

    def _backlogs(self) -> _Observations:
        with self._lock:
            return [_observed(job, value) for job, value in self._backlog.items()]

    def _unreached_servers(self) -> _Observations:
        return [
            metrics.Observation(seconds, {"server": server})
            for server, seconds in unreached_servers(self._server_names).items()
        ]

    def _unsent(self) -> _Observations:
        return [
            metrics.Observation(seconds, {"receiver": receiver})
            for receiver, seconds in unsent(self._receiver_names).items()
        ]

    def _dead_items(self) -> _Observations:
        return [
            metrics.Observation(count, {"structure": name, "kind": kind})
            for name, kind, count in self._sizes.ask()
            if count is not None
        ]

    def _oldest_waiting(self) -> _Observations:
        return [
            metrics.Observation(seconds, {"structure": name, "account": account})
            for name, _, accounts in self._waiting.ask()
            for account, seconds in accounts.items()
        ]

    def _oldest_waiting_unknown(self) -> _Observations:
        return [
            metrics.Observation(float(not is_known), {"structure": name})
            for name, is_known, _ in self._waiting_known.ask()
        ]

    def _dead_items_unknown(self) -> _Observations:
        return [
            metrics.Observation(float(count is None), {"structure": name, "kind": kind})
            for name, kind, count in self._sizes.ask()
        ]

    def _figure(self, figure: str) -> Callable[[], _Observations]:
        def ask() -> _Observations:
            return [
                _observed(job, float(figures[figure]))
                for job, figures in self._watched.jobs()
                if figures.get(figure) is not None
            ]

        return ask


def _advice(meter: metrics.Meter) -> dict[str, Any]:
    """Return the buckets as the argument that OpenTelemetry has taken since 1.30, or nothing."""
    name = "explicit_bucket_boundaries_advisory"
    known = inspect.signature(meter.create_histogram).parameters
    return {name: SLICE_BUCKETS} if name in known else {}


def _observed(job: str, value: float) -> metrics.Observation:
    return metrics.Observation(value, {"job_name": job})


def _lookups() -> _Observations:
    return [
        metrics.Observation(float(figures[figure]), {"cache": cache, "result": result})
        for cache, figures in _caches()
        for figure, result in LOOKUPS.items()
    ]


def _cache_figure(figure: str) -> Callable[[], _Observations]:
    return lambda: [
        metrics.Observation(float(figures[figure]), {"cache": cache})
        for cache, figures in _caches()
    ]


def _caches() -> list[tuple[str, Mapping[str, float]]]:
    every = cache_stats().items()
    return [(sendable(name), cast("Mapping[str, float]", figures)) for name, figures in every]


def _callback(ask: Callable[[], _Observations]) -> Callable[[Any], _Observations]:
    return lambda _options: ask()
