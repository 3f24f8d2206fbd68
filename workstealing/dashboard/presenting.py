"""The texts of a page: the same with and without script, and one part of each long list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workstealing.clock import UNKNOWN, spell
from workstealing.dashboard.alarms import LONGEST_PROBLEM, Alarms, alarms_of
from workstealing.dashboard.charts import HOUR_RANGE, RANGES, hour
from workstealing.dashboard.figures import (
    OLD_SECONDS,
    ErrorFigures,
    JobFigures,
    MeasuredFigure,
    job_figures,
)
from workstealing.dashboard.fleet_state import event_rows, few, newest_of
from workstealing.dashboard.queries import ListedItem, Snapshot, StructureFigures
from workstealing.dashboard.rules import rules_of, rules_on_page
from workstealing.dashboard.watched import short_id
from workstealing.metrics.minutes import CacheMinute
from workstealing.recruiting.slice import OUTCOMES, spoken
from workstealing.safe_text import number, rate_text, time_text, visible

SIZES = {"jobs": 25, "structures": 25, "dead": 10}
"""How many rows of each list a page shows."""

LONGEST_SEARCH = 100
_FURTHEST = 1_000_000
_T = TypeVar("_T")

MOST_ERRORS = 3
"""How many classes of a job's errors a page shows, the newest first."""

MOST_CACHES = 50
MOST_PROCESSES = 50
MOST_SETS = 10
"""For how many structures a page shows the buttons for all of their dead items."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of the lists that a visitor asks for.

    Fields: searches and pages, by list: jobs, structures, dead; pages count from 1; range: of the
    charts.
    """

    searches: Mapping[str, str] = field(default_factory=dict)
    pages: Mapping[str, int] = field(default_factory=dict)
    range: str = HOUR_RANGE

    def is_about(self, name: str) -> bool:
        """Say whether the visitor asks for a part of this list."""
        return bool(self.searches.get(name)) or name in self.pages

    def arguments(self, without: str = "") -> dict[str, str]:
        """Return the arguments of an address that asks for the same, except for one of them."""
        found: dict[str, str] = {}
        if without != "range" and self.range != HOUR_RANGE:
            found["range"] = self.range
        for name in SIZES:
            if name != without and self.searches.get(name):
                found[name] = self.searches[name]
            if name != without and self.pages.get(name, 1) > 1:
                found[f"{name}_page"] = str(self.pages[name])
        return found


@dataclass(frozen=True, slots=True)
class Pager:
    """A page's place in a list.

    Fields: search; page, counted from 1; pages: how many there are; found: the rows that match;
    total: all rows; size: the rows of a page.
    """

    search: str
    page: int
    pages: int
    found: int
    total: int
    size: int

    def plain(self) -> dict[str, Any]:
        """Return it as plain data for JSON and for templates."""
        first = (self.page - 1) * self.size
        last = min(self.found, first + self.size)
        rows = f"{first + 1:,} to {last:,} of {self.found:,}" if self.found else "none found"
        return {
            "search": self.search,
            "previous": max(1, self.page - 1),
            "next": min(self.pages, self.page + 1),
            "is_first": self.page <= 1,
            "is_last": self.page >= self.pages,
            "is_needed": bool(self.search) or self.total > self.size,
            "rows": rows + (f" ({self.total:,} in all)" if self.search else ""),
        }


def selection_of(arguments: Mapping[str, str]) -> Selection:
    """Read the selection from an address's arguments; a malformed one selects nothing."""
    searches, pages = {}, {}
    for name in SIZES:
        searches[name] = arguments.get(name, "").strip()[:LONGEST_SEARCH]
        number = arguments.get(f"{name}_page", "")
        if number.isascii() and number.isdigit() and len(number) < len(str(_FURTHEST)):
            pages[name] = max(1, int(number))
    wanted = arguments.get("range", HOUR_RANGE)
    return Selection(searches, pages, wanted if wanted in RANGES else HOUR_RANGE)


def select(
    selection: Selection, name: str, rows: Sequence[_T], texts: Callable[[_T], Sequence[str]]
) -> tuple[list[_T], list[_T], Pager]:
    """Return the matching rows, the rows of the page, and the page's place.

    Arguments:
        name: of the list.
        rows: in their order.
        texts: returns a row's texts, in which the search looks.

    A page beyond the last one is the last one.
    """
    search = selection.searches.get(name, "")
    wanted = search.casefold()
    found = [
        row for row in rows if not wanted or any(wanted in each.casefold() for each in texts(row))
    ]
    size = SIZES[name]
    pages = max(1, -(-len(found) // size))
    page = min(selection.pages.get(name, 1), pages)
    some = found[(page - 1) * size : page * size]
    return found, some, Pager(search, page, pages, len(found), len(rows), size)


def page(
    snapshot: Snapshot,
    name: str,
    role: str,
    selection: Selection | None = None,
    charts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the texts of a page, as plain data for JSON and for templates.

    The page's size is bounded, however many jobs, structures and dead items there are.

    Arguments:
        name: the ledger's.
        role: the visitor's.
        selection: the part of the long lists.
        charts: as of `Charts.of`, None: those of the last hour.
    """
    selection = selection or Selection()
    jobs = sorted(snapshot.jobs, key=_worst_first)
    structures = sorted(snapshot.structures, key=lambda each: not (each.trouble or each.dead_size))
    dead = [each for each in snapshot.structures if each.dead_size or each.dead]
    _, shown_jobs, jobs_pager = select(selection, "jobs", jobs, lambda job: (visible(job.name),))
    _, shown_structures, structures_pager = select(
        selection,
        "structures",
        structures,
        lambda each: (visible(each.watched.name), visible(each.watched.kind)),
    )
    alarms = alarms_of(snapshot, jobs, dead)
    return {
        "name": visible(name),
        "role": role,
        "at": time_text(snapshot.at),
        "source": _source(snapshot),
        # Without a ledger there are the minutes of this process alone, an hour of them.
        "has_ranges": snapshot.is_fleet,
        "old": snapshot.old_seconds is not None,
        "light": _light(snapshot, alarms),
        "alarms": alarms.lines,
        "alarm_count": alarms.count,
        "fine": _fine(snapshot),
        # The alarms themselves change with each second that they name: nobody wants to hear that.
        "verdict": _verdict(alarms.count, snapshot),
        "tiles": _tiles(snapshot),
        "jobs": [_job(job, snapshot.at, _newest(job, snapshot)) for job in shown_jobs],
        "jobs_pager": jobs_pager.plain(),
        "structures": [_structure(each) for each in shown_structures],
        "structures_pager": structures_pager.plain(),
        "dead": _dead(snapshot, dead, selection),
        "caches": _caches(snapshot),
        "rules": _rules(snapshot),
        "processes": _processes(snapshot),
        "events": event_rows(snapshot.events, snapshot.at),
        "charts": hour(snapshot) if charts is None else charts,
    }


def _worst_first(job: JobFigures) -> tuple[Any, ...]:
    return (not job.problems, job.keeps_up is not False, -(job.oldest_seconds or 0.0), job.name)


def _newest(job: JobFigures, snapshot: Snapshot) -> str:
    return newest_of(job.name, snapshot.events, snapshot.at)


def _source(snapshot: Snapshot) -> str:
    if not snapshot.is_fleet:
        why = "no ledger" if snapshot.fault is None else "the ledger is not read"
        return f"this process only: {why}"
    if snapshot.old_seconds is not None:
        ago = spell(round(snapshot.old_seconds))
        return f"last report {ago} ago, at {time_text(snapshot.heard)}"
    count = snapshot.processes
    silent = len(snapshot.state.silent)
    more = f", {silent:,} silent" if silent else ""
    return f"fleet of {count:,} process{'' if count == 1 else 'es'}{more}"


def _light(snapshot: Snapshot, alarms: Alarms) -> str:
    """Return the colour of the page's dot: green only if somebody knows that all is well."""
    if alarms.count:
        return "bad"
    known = snapshot.jobs and all(job.keeps_up is not None for job in snapshot.jobs)
    return "good" if known and snapshot.old_seconds is None else "dim"


def _fine(snapshot: Snapshot) -> str:
    unknown = sum(1 for job in snapshot.jobs if job.keeps_up is None)
    if snapshot.old_seconds is not None:
        return f"These figures are of {time_text(snapshot.heard)}: nobody knows how it is now."
    if not snapshot.jobs:
        return "Nothing is known to be wrong: no job is known."
    resting = [job.name for job in snapshot.jobs if job.fleet_paused]
    if resting and unknown == len(resting):
        return f"Nothing is known to be wrong; paused in the whole fleet: {visible(few(resting))}."
    if unknown:
        return (
            f"Nothing is known to be wrong; whether {unknown} of {len(snapshot.jobs)} jobs keep up"
            " is not known yet."
        )
    return "Nothing is wrong: every job keeps up."


def _verdict(count: int, snapshot: Snapshot) -> str:
    if count:
        return f"{count:,} alarm{'' if count == 1 else 's'}"
    return "No alarm" if snapshot.old_seconds is None else "No alarm, but the figures are old"


def _tiles(snapshot: Snapshot) -> list[dict[str, Any]]:
    ages = [job.oldest_seconds for job in snapshot.jobs if job.oldest_seconds is not None]
    backlog = [job.backlog for job in snapshot.jobs if job.backlog is not None]
    counted = {job.name for job in snapshot.jobs}
    backlog += [
        each.due.count
        for each in snapshot.structures
        if each.due is not None and each.watched.job not in counted
    ]
    dead = sum(each.dead_size or len(each.dead) for each in snapshot.structures)
    unknown = not dead and any(each.trouble for each in snapshot.structures)
    behind = sum(1 for job in snapshot.jobs if job.keeps_up is False)
    recruits = sum(job.recruited_per_minute for job in snapshot.jobs)
    # The items of a dry run are only counted.
    collected = sum(job.items_per_second for job in snapshot.jobs if not job.dry_run)
    is_old = snapshot.old_seconds is not None
    moment = "now" if not is_old else f"at {time_text(snapshot.heard)}"
    return [
        # By old figures nobody knows whether none is.
        _tile(
            "Jobs behind",
            number(behind if behind or not is_old else None),
            f"of {len(snapshot.jobs)}",
            bad=behind > 0,
        ),
        _tile("Oldest garbage", spell(max(ages, default=None)), moment, bad=behind > 0),
        _tile("Backlog", number(sum(backlog) if backlog else None), "items"),
        _tile("Traffic", number(snapshot.enlisted_per_second), "enlisted/s"),
        _tile("Recruits", number(recruits), "a minute"),
        _tile("Collected", number(collected), "items/s"),
        _tile("Dead", number(None if unknown else dead), "items", bad=dead > 0),
    ]


def _tile(label: str, value: str, unit: str, *, bad: bool = False) -> dict[str, Any]:
    return {"label": label, "value": value, "unit": unit, "bad": bad}


def _job(job: JobFigures, now: float = 0.0, newest: str = "") -> dict[str, Any]:
    worst = max((age for age in job.lag if age is not None), default=None)
    keeps = {True: ("yes", "good"), False: ("NO", "bad"), None: ("unknown", "dim")}[job.keeps_up]
    rate = rate_text(job.rate)
    if job.adaptive:
        rate += " adaptive"
    if job.fleet_rate is not None:
        rate += f" (fleet: {rate_text(job.fleet_rate)}{', refused' if job.refused else ''})"
    lag_kind = "bad" if job.keeps_up is False else ""
    badges = []
    if job.fleet_paused:
        badges.append({"text": "paused", "kind": "warn"})
    elif job.paused:
        badges.append({"text": "paused in this process", "kind": "warn"})
    if job.dry_run:
        badges.append({"text": "dry run", "kind": "warn"})
    if job.breaker_open:
        badges.append({"text": "breaker open", "kind": "bad"})
    return {
        "id": short_id(job.name),
        "name": visible(job.name),
        "bad": bool(job.problems),
        "problem": visible("; ".join(job.problems), LONGEST_PROBLEM),
        "note": visible(job.why, LONGEST_PROBLEM) if job.keeps_up is None else "",
        "errors": [_error(each, now) for each in job.errors[:MOST_ERRORS]],
        "measured": [_measured(each, now) for each in job.measured],
        "newest": visible(newest, LONGEST_PROBLEM),
        "badges": badges,
        "paused": job.fleet_paused,
        "here": job.is_here,
        "elsewhere": "" if job.is_here else "Not installed in this process: no slice runs here.",
        "rate": "" if job.rate is None else rate_text(job.fleet_rate or job.rate),
        "cells": [
            _cell(*keeps),
            _seen(spell(job.oldest_seconds), job, lag_kind),
            _cell(spell(worst)),
            _seen(number(job.backlog) + (f" {job.unit}" if job.backlog and job.unit else ""), job),
            _cell(number(job.items_per_second)),
            _cell(number(job.recruited_per_minute)),
            _cell(rate),
            _cell(spell(job.slice_seconds or None)),
        ],
        "outcomes": _outcomes(job.outcomes),
    }


def _measured(figure: MeasuredFigure, now: float) -> str:
    since = spell(max(0.0, now - figure.at))
    most = number(figure.highest)
    return (
        f"{visible(figure.name, 60)} {number(figure.value)} in a slice of the minute from {since}"
        f" ago on, at most {most} in the last hour"
    )


def _seen(text: str, job: JobFigures, kind: str = "") -> dict[str, str]:
    """Return a cell for garbage as it was last seen; a figure of long ago is grey and says so."""
    if text == UNKNOWN or not job.seen_ago:
        return _cell(text, kind)
    return _cell(f"{text} ({spell(job.seen_ago)} ago)", "old")


def _error(error: ErrorFigures, now: float) -> str:
    times = "once" if error.count == 1 else f"{number(error.count)} times"
    last = "" if error.at is None else f", last {spell(max(0.0, now - error.at))} ago"
    where = "" if error.host is None else f" on {visible(error.host, 60)}"
    text = "" if error.text is None else f": {visible(error.text, 200)}"
    return f"{visible(error.name, 60)} {times}{last}{where}{text}"


def _caches(snapshot: Snapshot) -> dict[str, Any]:
    """Return the figures of the caches that were called in the last hour, the busiest first."""

    def calls(each: CacheMinute) -> int:
        return each.hits + each.stale + each.misses

    called = sorted(snapshot.caches.items(), key=lambda item: (-calls(item[1]), item[0]))
    more = f"; {MOST_CACHES} of them shown" if len(called) > MOST_CACHES else ""
    return {
        "text": f"{len(called):,} called in the last hour{more}",
        "rows": [
            {
                "id": short_id(name),
                "name": visible(name, 80),
                "share": _share(each.hits, calls(each)),
                "hits": number(each.hits),
                "stale": number(each.stale),
                "misses": number(each.misses),
                "waits": number(each.waits),
                "computations": number(each.computations),
                "failures": number(each.failures),
                "took": spell(each.seconds / each.computations if each.computations else None),
                "uncached": number(each.uncached),
            }
            for name, each in called[:MOST_CACHES]
        ],
    }


def _share(part: float, whole: float) -> str:
    """Return a share as text."""
    return f"{part / whole:.1%}" if whole else UNKNOWN


def _processes(snapshot: Snapshot) -> dict[str, Any]:
    reported = snapshot.reported
    hosts, versions = ({getattr(each, of) for each in reported} for of in ("host", "version"))
    mixed = f", {len(versions)} versions of this package" if len(versions) > 1 else ""
    silent = len(snapshot.state.silent)
    mixed += f", {silent:,} of them silent" if silent else ""
    count = f"{len(reported):,} process{'' if len(reported) == 1 else 'es'}"
    more = f"; {MOST_PROCESSES} of them shown" if len(reported) > MOST_PROCESSES else ""
    more += "".join(f"; {visible(each, LONGEST_PROBLEM)}" for each in snapshot.notes)
    return {
        "text": f"{count} on {len(hosts):,} host{'' if len(hosts) == 1 else 's'}{mixed}{more}",
        "rows": [
            {
                "id": short_id(f"{each.host}\0{each.pid}\0{each.started}"),
                "host": visible(each.host, 60),
                "pid": str(each.pid),
                "version": visible(each.version, 40),
                "since": time_text(each.started, "%Y-%m-%d %H:%M UTC"),
                "last": UNKNOWN
                if each.reported is None
                else f"{spell(round(max(0.0, snapshot.at - each.reported)))} ago",
            }
            for each in reported[:MOST_PROCESSES]
        ],
    }


def blank_job() -> dict[str, Any]:
    """Return a job without figures, for the script to fill in."""
    return _job(job_figures("", [], 1.0, None, None))


JOB_HEADINGS = {
    "Keeps up": "Whether the job suffices for its garbage. Unknown is neither yes nor no.",
    "Oldest garbage": "How long the oldest item that may go has been waiting, as last seen.",
    "Worst, last hour": "The highest age of the oldest garbage in the last hour.",
    "Backlog": "How many items wait for the job, as last seen.",
    "Items/s": "Items handled a second, over the last five minutes; a dry run counts them only.",
    "Recruits/min": "How many callers a minute ran a slice, over the last five minutes.",
    "Rate": "The share of the callers that run a slice, from 0 to 1.",
    "Slice": "The mean length of a slice: for so long it holds up one caller.",
}
"""The headings of a job's cells, in their order, and what each of them means."""

OUTCOMES_MEAN = (
    "How the last hour's slices ended: worked, idle (nothing to do), aborted (another one came"
    " first), failed (an error), out of time, or skipped (not begun)."
)

STRUCTURE_HEADINGS = {
    "Size": "How many items the structure holds.",
    "Due or stale": "The items that its job may take: expired, or reserved for too long.",
    "Oldest": "For how long the oldest of these has been waiting.",
    "Dead": "Items that were tried too often, and wait for a person.",
}
"""The headings of a structure's cells, in their order, and what each of them means."""

CACHE_HEADINGS = {
    "Hits": "The share of the calls that got a fresh value without waiting.",
    "Fresh": "How many calls did.",
    "Old": "Calls that got an old value, while it was made anew.",
    "Missed": "Calls that found no value.",
    "Waited": "Those of them that waited for another caller's computation.",
    "Computed": "How often the function was called.",
    "Failed": "How often it raised an error.",
    "Took": "The mean length of a computation.",
    "Without Redis": "Calls whose Redis did not answer, or was left alone after a fault.",
}
"""The headings of a cache's cells, in their order, and what each of them means."""


def _cell(text: str, kind: str = "") -> dict[str, str]:
    return {"text": text, "kind": kind}


def _outcomes(outcomes: dict[str, int]) -> dict[str, Any]:
    """Return a bar of 100 units with a part for each outcome, and the same as text."""
    total = sum(outcomes.values())
    bar, x = [], 0.0
    for kind in OUTCOMES:
        width = 100 * outcomes[kind] / total if total else 0.0
        bar.append({"kind": kind, "x": round(x, 2), "width": round(width, 2)})
        x += width
    said = [f"{number(outcomes[kind])} {spoken(kind)}" for kind in OUTCOMES if outcomes[kind]]
    return {"bar": bar, "text": ", ".join(said) or "none"}


def _structure(figures: StructureFigures) -> dict[str, Any]:
    due = figures.due
    due_text = UNKNOWN
    if due is not None:
        due_text = f"{'' if due.exact else 'about '}{number(due.count)} {visible(due.what)}"
    dead = figures.dead_size
    oldest = due.oldest_seconds if due is not None and due.count else None
    return {
        "id": figures.watched.id,
        "name": visible(figures.watched.name),
        "kind": visible(figures.watched.kind),
        "bad": bool(dead) or figures.trouble is not None,
        "problem": visible(figures.trouble or ""),
        "cells": [
            _cell(number(figures.size)),
            _cell(due_text),
            _cell(spell(oldest), "bad" if oldest is not None and oldest > 60 * OLD_SECONDS else ""),
            _cell(number(dead), "bad" if dead else ""),
        ],
    }


def _rules(snapshot: Snapshot) -> dict[str, Any]:
    queues = {
        each.id: each
        for figures in snapshot.structures
        for each in rules_of(figures.watched.structures)
    }
    seen = {rules.queue.id: rules for each in snapshot.structures for rules in each.rules}
    return rules_on_page(list(queues.values()), list(seen.values()))


def _dead_count(figures: StructureFigures) -> int:
    return len(figures.dead) if figures.dead_size is None else figures.dead_size


def _dead(
    snapshot: Snapshot, structures: list[StructureFigures], selection: Selection
) -> dict[str, Any]:
    """Return the dead items of all structures, the longest dead first."""
    rows = [(figures, item) for figures in structures for item in figures.dead]
    rows.sort(key=lambda row: (row[1].died is None, row[1].died or 0.0))
    found, some, pager = select(selection, "dead", rows, lambda row: _dead_texts(*row))
    sets = structures
    if pager.search:
        wanted = {figures.watched.id for figures, _ in found}
        sets = [each for each in structures if each.watched.id in wanted]
    count = sum(map(_dead_count, structures))
    oldest = next((item.died for _, item in rows if item.died is not None), None)
    age = "" if oldest is None else f", the oldest for {spell(max(0.0, snapshot.at - oldest))}"
    more = f"; {MOST_SETS} of {len(sets)} structures shown" if len(sets) > MOST_SETS else ""
    return {
        "text": f"{count:,} item{'' if count == 1 else 's'}{age}{more}",
        "sets": [_dead_set(each) for each in sets[:MOST_SETS]],
        "items": [_dead_item(figures, item, snapshot.at) for figures, item in some],
        "pager": pager.plain(),
    }


def _dead_texts(figures: StructureFigures, item: ListedItem) -> tuple[str, ...]:
    name = visible(figures.watched.name)
    return (item.member, item.payload, item.tenant, item.error, item.part, name)


def _dead_set(figures: StructureFigures) -> dict[str, Any]:
    known, count = len(figures.dead), _dead_count(figures)
    return {
        "id": figures.watched.id,
        "name": visible(figures.watched.name),
        "kind": visible(figures.watched.kind),
        "count": count,
        "note": f"{number(count)} dead" + (f", {known:,} of them listed" if known < count else ""),
    }


def _dead_item(figures: StructureFigures, item: ListedItem, now: float) -> dict[str, str]:
    place = visible(figures.watched.name) + (f", {item.part}" if item.part else "")
    return {
        "id": f"{figures.watched.id}.{item.key}",
        "key": item.key,
        "structure": figures.watched.id,
        "member": item.member,
        "place": place,
        "payload": item.payload or UNKNOWN,
        "tenant": item.tenant or UNKNOWN,
        "error": item.error or UNKNOWN,
        "attempts": UNKNOWN if item.attempts is None else number(item.attempts),
        "age": UNKNOWN if item.died is None else spell(max(0.0, now - item.died)),
        "died": "" if item.died is None else time_text(item.died, "%Y-%m-%d %H:%M UTC"),
    }
