"""The charts of a page: the last hour from its snapshot, longer ranges from the ledger's minutes.

A chart has about 90 places at most, however long its range is, so several minutes share a place:
of an age, a backlog and the processes the highest counts, of everything else the mean.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock, spell
from workstealing.dashboard.figures import MINUTE, JobFigures, is_written, ledger_name, span_seconds
from workstealing.dashboard.fleet_state import event_marks
from workstealing.dashboard.queries import Cached, Snapshot
from workstealing.dashboard.watched import short_id
from workstealing.metrics.minutes import Minute
from workstealing.recruiting.slice import PERFORMED
from workstealing.safe_text import number, time_text, visible

logger = logging.getLogger("workstealing")

CHARTED = 8
"""How many jobs the charts show, those with the oldest garbage first."""

HISTORY_SECONDS = 30.0
"""How long a range longer than the hour stays good: its newest minute is not over anyway."""

_CHUNK = 180
_FEWEST_PLACES = 10


@dataclass(frozen=True, slots=True)
class Range:
    """A range of the charts.

    Fields: name: in addresses; text: in captions; short: on its link; minutes: its length; step:
    how many minutes share a place.
    """

    name: str
    text: str
    short: str
    minutes: int
    step: int


RANGES = {
    each.name: each
    for each in (
        Range("1h", "last hour", "1 h", 60, 1),
        Range("3h", "last 3 hours", "3 h", 180, 2),
        Range("6h", "last 6 hours", "6 h", 360, 5),
        Range("12h", "last 12 hours", "12 h", 720, 10),
        # A ledger keeps its minutes for 23 hours at most.
        Range("23h", "last 23 hours", "23 h", 1380, 15),
    )
}
HOUR_RANGE = "1h"

LINES = ("lag", "items", "backlog", "failures", "slices")
"""The charts with a line for each job."""

TEXT_HEADINGS = (
    "Oldest garbage",
    "Items collected a second",
    "Backlog",
    "Failed slices a minute",
    "Length of a slice",
)
"""The headings of the charts as text, in the order of LINES."""

_WORDS: tuple[Callable[[float | None], str], ...] = (spell, number, number, number, spell)


@dataclass(slots=True)
class _Spot:
    """The figures of one job in the minutes of one place."""

    lag: float | None = None
    backlog: int | None = None
    items: int = 0
    failed: int = 0
    performed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Strip:
    """The minutes of a range, gathered place by place.

    Fields: times: when each place begins; step: how many minutes a place has; jobs: each charted
    job's name in the ledger, and whether the job is a dry run; spans: for how many seconds of each
    place there are counts; enlisted and processes: of each place; places: each job's figures, place
    by place.
    """

    times: list[int]
    step: int
    jobs: Sequence[tuple[str, bool]]
    spans: list[float] = field(default_factory=list)
    enlisted: list[int] = field(default_factory=list)
    processes: list[int | None] = field(default_factory=list)
    places: list[list[_Spot]] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.times)
        self.spans, self.enlisted, self.processes = [0.0] * count, [0] * count, [None] * count
        self.places = [[_Spot() for _ in self.times] for _ in self.jobs]

    def add(self, time: int, minute: Minute, span: float, *, is_over: bool) -> None:
        """Add a minute that somebody wrote; of the present one the counts are left out."""
        at = (time - self.times[0]) // (MINUTE * self.step)
        if not 0 <= at < len(self.times):
            return
        if is_over:
            self.spans[at] += span
            self.enlisted[at] += minute.enlisted
            self.processes[at] = max(self.processes[at] or 0, minute.processes)
        for (name, _), places in zip(self.jobs, self.places, strict=True):
            if (job := minute.jobs.get(name)) is None:
                continue
            place = places[at]
            place.lag = _higher(place.lag, job.oldest_seconds)
            place.backlog = _higher(place.backlog, job.backlog)
            if is_over:
                place.items += job.items
                place.failed += job.failed
                place.performed += sum(getattr(job, outcome) for outcome in PERFORMED)
                place.seconds += job.seconds

    def lines(self) -> dict[str, Any]:
        """Return the lines of all charts. A place that nobody wrote is a gap, not a zero."""
        spans = list(enumerate(self.spans))
        found: dict[str, Any] = {
            "traffic": [self.enlisted[at] / span if span else None for at, span in spans],
            "processes": self.processes,
            **{name: [] for name in LINES},
        }
        for (_, is_dry), places in zip(self.jobs, self.places, strict=True):
            # The items of a dry run are only counted: it has collected nothing.
            items = [0 if is_dry else each.items for each in places]
            found["lag"].append([each.lag for each in places])
            found["backlog"].append([each.backlog for each in places])
            found["items"].append([items[at] / span if span else None for at, span in spans])
            found["failures"].append(
                [places[at].failed * MINUTE / span if span else None for at, span in spans]
            )
            found["slices"].append(
                [each.seconds / each.performed if each.performed else None for each in places]
            )
        return found


def _higher(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else max(one, other)


def charted(snapshot: Snapshot) -> list[JobFigures]:
    """Return the jobs that the charts show, by name."""

    def age(job: JobFigures) -> float:
        return max((each for each in job.lag if each is not None), default=-1.0)

    worst = sorted(snapshot.jobs, key=lambda job: (-age(job), job.name))[:CHARTED]
    return sorted(worst, key=lambda job: job.name)


def hour(snapshot: Snapshot) -> dict[str, Any]:
    """Return the charts of the last hour as plain data, from what the page knows anyway."""
    jobs = charted(snapshot)
    columns = _Strip(snapshot.times, 1, _names(jobs))
    for time, slot, seen, span in zip(
        snapshot.times, snapshot.slots, snapshot.traffic, snapshot.spans, strict=False
    ):
        if slot is not None:
            columns.add(time, slot, span, is_over=seen is not None)
    return _plain(columns, jobs, snapshot, RANGES[HOUR_RANGE])


def _names(jobs: Iterable[JobFigures]) -> list[tuple[str, bool]]:
    return [(ledger_name(job.name), job.dry_run) for job in jobs]


class Charts:
    """Answers with the charts of a range; a long one is asked for once in 30 seconds at most.

    Arguments:
        snapshot: returns the page's content.
        read: returns so many of the ledger's minutes before a time, the oldest first.
        clock: for the remembered answers.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        read: Callable[[int, int], Sequence[Minute]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._snapshot, self._read = snapshot, read
        self._last: dict[str, dict[str, Any]] = {}
        self._asked = {name: self._cached(each, clock) for name, each in RANGES.items()}

    def _cached(self, wanted: Range, clock: Clock) -> Cached:
        return Cached(lambda: self._ask(wanted), HISTORY_SECONDS, clock)

    def of(self, name: str) -> dict[str, Any]:
        """Return the charts of a range, or of the last hour where nobody knows of more.

        Arguments:
            name: one of RANGES.

        One round trip for each 180 minutes of a longer range.
        """
        snapshot = self._snapshot()
        if name == HOUR_RANGE or not snapshot.is_fleet:
            return hour(snapshot)
        # A ledger that does not answer would make each visitor wait once more.
        if snapshot.fault is None:
            try:
                self._last[name] = self._asked[name].get()
            except Exception as error:  # noqa: BLE001 - whatever a server says
                logger.warning("the ledger could not be asked: %s", type(error).__name__)
        return self._last.get(name) or hour(snapshot)

    def _ask(self, wanted: Range) -> dict[str, Any]:
        snapshot = self._snapshot()
        jobs = charted(snapshot)
        step = MINUTE * wanted.step
        present = snapshot.times[-1]
        last = present // step * step
        times = list(range(last - wanted.minutes * MINUTE + step, last + step, step))
        columns = _Strip(times, wanted.step, _names(jobs))
        before: Minute | None = None
        for minute in self._minutes(times[0], present + MINUTE):
            if is_written(minute):
                near = [minute.minute - MINUTE, minute.minute]
                span = span_seconds([before, minute], near, snapshot.at, 1)
                columns.add(minute.minute, minute, span, is_over=minute.minute < present)
            before = minute if is_written(minute) else None
        return _plain(columns, jobs, snapshot, wanted)

    def _minutes(self, first: int, end: int) -> Iterator[Minute]:
        # In parts, each of which is gathered before the next one comes: a day of a thousand jobs
        # would not fit into a small process.
        for start in range(first, end, _CHUNK * MINUTE):
            stop = min(end, start + _CHUNK * MINUTE)
            yield from self._read((stop - start) // MINUTE, stop)


def _plain(
    columns: _Strip, jobs: list[JobFigures], snapshot: Snapshot, wanted: Range
) -> dict[str, Any]:
    lines = columns.lines()
    known = [at for at, each in enumerate(lines["traffic"]) if each is not None]
    # A fleet that has just begun fills the charts from its first minute on.
    first = min(known[0] if known else 0, max(0, len(columns.times) - _FEWEST_PLACES))
    times = columns.times[first:]
    shown = {name: [_rounded(each[first:]) for each in lines[name]] for name in LINES}
    traffic, processes = (_rounded(lines[name][first:]) for name in ("traffic", "processes"))
    left_out = len(snapshot.jobs) - len(jobs)
    since = columns.times[known[0]] if known and known[0] > 0 else None
    return {
        "range": wanted.name,
        "range_text": wanted.text,
        "since": "" if since is None else f"The figures begin at {time_text(since, '%H:%M UTC')}.",
        "note": f"{CHARTED} of {len(snapshot.jobs)} jobs" if left_out else "",
        "times": times,
        "names": [visible(job.name, 40) for job in jobs],
        **shown,
        "traffic": traffic,
        "processes": processes,
        "marks": event_marks(snapshot.events, times),
        "rows": [
            {
                # The job's name stands in "names", at the same place.
                "id": short_id(job.name),
                "cells": [
                    _said(shown[name][at], words) for name, words in zip(LINES, _WORDS, strict=True)
                ],
            }
            for at, job in enumerate(jobs)
        ],
        "callers": f"Enlisted a second: {_said(traffic, number)}."
        f" Processes: {_said(processes, number)}.",
    }


def _said(values: Sequence[float | None], words: Callable[[float | None], str]) -> str:
    """Return a line in words: its last value and its highest one."""
    known = [each for each in values if each is not None]
    if not known:
        return words(None)
    return f"{words(known[-1])}, at most {words(max(known))}"


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Round to the three digits that a legend shows: each page and each event has all values."""
    return [
        None if value is None or not math.isfinite(value) else _short(value) for value in values
    ]


def _short(value: float) -> float:
    rounded = float(f"{value:.3g}")
    return int(rounded) if rounded.is_integer() else rounded
