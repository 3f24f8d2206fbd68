"""The figures of each job, computed from the minutes of a ledger; no command is sent."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workstealing.clock import roughly
from workstealing.dashboard.fleet_state import (
    BEHIND,
    DENIALS,
    DENIED,
    FAILED,
    PAUSED,
    FleetState,
    StuckSlice,
    then,
    time_of_day,
)
from workstealing.errors import ConfigurationError
from workstealing.metrics.minutes import (
    CacheMinute,
    JobError,
    JobMinute,
    Minute,
    add_caches,
    add_errors,
)
from workstealing.metrics.watching import is_stuck
from workstealing.recruiting.cache_figures import COUNTS, CacheCounts
from workstealing.recruiting.explaining import server_of
from workstealing.recruiting.forecast import choose_rate
from workstealing.recruiting.health import (
    AGE_LIMIT,
    FEWEST_FAULTS,
    Findings,
    Health,
    assess,
    growth,
)
from workstealing.recruiting.slice import OUTCOMES, PERFORMED

MINUTE = 60
HOUR = 60
"""How many minutes a page looks back."""

RECENT = 5
"""How many minutes the figures of "now" cover."""

TREND = 10
"""How many minutes of growing age the advised rate is computed from."""

MOST_GROWTH = 0.95
"""Garbage whose age grows as fast as time passes does not show how much of it there is."""

NEWEST = 3
"""How many minutes old a running slice's report may be: a process reports once a minute."""

STARTING_MINUTES = 3
"""For so many minutes, two at least, a job has just started: there is nothing to say of it yet."""

NOTHING_YET = "nothing to say yet"
JUST_STARTED = f"just started: {NOTHING_YET}"
UNREACHED_SECONDS = 60.0
OLD_SECONDS = 60.0
QUIET_MINUTES = 15
ABORTED_SHARE = 0.2
LEDGER_NAME_LENGTH = 200
FEWEST = 20
"""With fewer recruits than this, no share of outcomes is a problem."""


@dataclass(frozen=True, slots=True)
class ErrorFigures:
    """The errors of one class that a job's slices have raised in the last hour.

    Fields: name: of the class; count; at: the time of the last one, in seconds since the epoch;
    host: where it was raised; text: its message, if the ledger was asked to keep messages. An
    unknown field is None.
    """

    name: str
    count: int
    at: float | None
    host: str | None
    text: str | None


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """A figure of a job's own, by the last hour's slices: each speaks of what it has looked at.

    Fields: name; value: about the highest of a slice in the last minute that has one; at: the
    beginning of that minute, in seconds since the epoch; highest: of the hour.
    """

    name: str
    value: float
    at: int
    highest: float


@dataclass(frozen=True, slots=True)
class JobFigures:
    """The figures of one job, as a page shows them.

    Fields: name; rate: the share of the enlisted; fleet_rate: the rate that the fleet is told, None
    for no such setting; refused: why a process refuses that rate, None if none does; paused;
    fleet_paused; dry_run: whether its items are only counted; unit: what one item is, in the
    plural, None where the job is not installed here; adaptive; is_here: whether this process has
    the job installed; recruited_per_minute, items_per_second: over the last minutes;
    slice_seconds: a slice's average length, None if there was no slice; outcomes: of the last hour;
    backlog and oldest_seconds: as last seen; keeps_up; why: the reason why the job does not keep
    up, or why nobody knows; just_started: whether its figures begin so lately that shares of them
    mean nothing; enough_rate: the rate that would suffice, above 1 if none would, None if the job
    keeps up; breaker_open: in this process; unreached_seconds: for how long a process has not
    reached the job's server, None if all reach it; servers: how many the job has; running_seconds:
    how long a slice has been running, None if none was seen; stuck: the slices that do not end,
    with their processes; unreached: by address, for how long its servers have not been reached;
    seen_ago: how many seconds ago its backlog and its oldest garbage were seen, 0.0: within the
    last minutes, None: never; offered: the callers of the last hour in processes that have it
    installed; errors: of the last hour, the newest first; measured: the
    figures of the job's own; lag: the age of the oldest garbage in
    each minute, in seconds; items, recruits, slices: in each minute, a slice being a recruit that
    was not skipped; problems: the reasons why the row is red. Any unknown figure is None.
    """

    name: str
    rate: float | None
    fleet_rate: float | None
    refused: str | None
    paused: bool
    fleet_paused: bool
    dry_run: bool
    unit: str | None
    adaptive: bool
    is_here: bool
    recruited_per_minute: float
    items_per_second: float
    slice_seconds: float | None
    outcomes: dict[str, int]
    backlog: int | None
    oldest_seconds: float | None
    keeps_up: bool | None
    why: str
    just_started: bool
    enough_rate: float | None
    breaker_open: bool
    unreached_seconds: float | None
    servers: int | None
    running_seconds: float | None
    errors: list[ErrorFigures]
    measured: list[MeasuredFigure]
    lag: list[float | None]
    items: list[int]
    recruits: list[int]
    slices: list[int]
    problems: list[str] = field(default_factory=list)
    stuck: list[StuckSlice] = field(default_factory=list)
    unreached: dict[str, float] = field(default_factory=dict)
    seen_ago: float | None = None
    offered: int | None = None


def window(minutes: Sequence[Any], now: float) -> tuple[list[int], list[Any]]:
    """Lay the ledger's minutes out over the last hour.

    Arguments:
        minutes: as `ledger.read` returns them.
        now: seconds since the epoch.

    Returns: the beginnings of the last 60 minutes, the present one last; and for each its minute,
    or None.
    """
    last = int(now) // MINUTE * MINUTE
    if minutes:
        # The ledger's clock may be ahead of ours.
        last = max(last, minutes[-1].minute)
    times = [last - MINUTE * back for back in range(HOUR - 1, -1, -1)]
    known = {each.minute: each for each in minutes if is_written(each)}
    return times, [known.get(time) for time in times]


def is_written(minute: Any) -> bool:
    """Say whether any process has written this minute into the ledger."""
    return bool(minute.processes or minute.enlisted or minute.jobs)


def recent_of(slots: Sequence[Any]) -> slice:
    """Return which slots the figures of "now" are of: the last five minutes that say something.

    Processes report every ten seconds, so the present minute has a part of the reports only, and
    just after its beginning hardly any. The present minute is left out as soon as there is a whole
    minute.
    """
    whole = any(slot is not None for slot in slots[-RECENT - 1 : -1])
    if whole and (not slots or slots[-1] is None or slots[-1].covered):
        return slice(-RECENT - 1, -1)
    return slice(-RECENT, None)


def span_seconds(slots: Sequence[Any], times: Sequence[int], now: float, number: int) -> float:
    """Return how many seconds a minute's counts are of; at least 1.

    Counts that waited for an unreachable server come all at once: the reports say how much time
    they cover. The first minute covers less than a minute, and so does the present one.

    Arguments:
        slots: as of `window`.
        times: as of `window`.
        number: of the slot.
    """
    slot, time = slots[number], times[number]
    covered = slot.covered / slot.processes if slot is not None and slot.processes else 0.0
    if now - time < MINUTE:
        return max(1.0, covered or now - time)
    is_first = number > 0 and slots[number - 1] is None
    return max(1.0, covered) if covered and is_first else max(float(MINUTE), covered)


def covered_seconds(slots: Sequence[Any], times: Sequence[int], now: float) -> float:
    """Return how many seconds the recent written minutes cover; at least 1."""
    recent = range(len(slots))[recent_of(slots)]
    written = [number for number in recent if slots[number] is not None]
    if not written:
        return 1.0
    since = range(written[0], recent[-1] + 1)
    return max(1.0, sum(span_seconds(slots, times, now, number) for number in since))


def ledger_name(name: str) -> str:
    """Return the name by which the ledger counts a job; it cuts a long one."""
    return name[:LEDGER_NAME_LENGTH]


def job_figures(
    name: str,
    slots: Sequence[Any],
    covered: float,
    local: Mapping[str, Any] | None,
    setting: Any,
    *,
    due: Any = None,
    state: FleetState | None = None,
    away: Mapping[str, float] | None = None,
    unknown_since: str | None = None,
    pause: str = "",
    emptied: str | None = None,
) -> JobFigures:
    """Return the figures of one job.

    Arguments:
        slots: the last 60 minutes, each of which may be None.
        covered: the seconds that the recent ones cover.
        local: the job's part of `recruiter.stats()`, None if it is not installed here.
        setting: the fleet's setting, or None.
        due: the backlog that a structure reports, or None.
        state: of the fleet's processes, None: unknown.
        away: its servers that this process has just asked in vain, by address.
        unknown_since: the age of the fleet's figures in words, None: they are of now.
        pause: since when and by whom the fleet's pause is, or "".
        emptied: a sentence on the ledger's loss of its figures, None: it has not lost any.
    """
    local = local or {}
    state = state or FleetState()
    found = [slot.jobs.get(ledger_name(name)) if slot is not None else None for slot in slots]
    recent = [each for each in found[recent_of(slots)] if each is not None]
    newest = [each for each in found[-NEWEST:] if each is not None]
    performed = sum(getattr(each, outcome) for each in recent for outcome in PERFORMED)
    outcomes = {
        outcome: sum(getattr(each, outcome) for each in found if each is not None)
        for outcome in OUTCOMES
    }
    lag = [None if each is None else each.oldest_seconds for each in found]
    oldest = next((age for age in reversed(lag) if age is not None), local.get("oldest_seconds"))
    rate = next((e.rate for e in reversed(found) if e is not None and e.rate is not None), None)
    backlogs = [None if each is None else each.backlog for each in found]
    backlog = next((each for each in reversed(backlogs) if each is not None), None)
    seen_ago = _seen_ago(lag, backlogs)
    if due is not None:
        # This was counted just now; a slice sees a part only.
        backlog = due.count
        # The slices' reports are the highest age of a minute, and garbage ages while nobody comes.
        if due.oldest_seconds is not None or not due.count:
            oldest, seen_ago = due.oldest_seconds, 0.0
    fleet_paused = setting is not None and setting.paused
    is_paused = bool(local.get("paused")) or fleet_paused
    lasting = _lasting(found, local)
    unreached = {**local.get("unreached", {}), **state.away_of(ledger_name(name))}
    # A server that does not answer here, too, has not been reached since its first fault elsewhere.
    unreached = {**(away or {}), **unreached}
    if state.tells_states():
        # The minutes keep the longest time also when the trouble has ended within them.
        lasting["unreached_seconds"] = max(unreached.values(), default=None)
        lasting["running_seconds"] = local.get("running_seconds")
    stuck = state.stuck_of(ledger_name(name))
    if stuck:
        lasting["running_seconds"] = max(each.seconds for each in stuck)
    if not unreached and lasting["unreached_seconds"] is not None:
        unreached_by = {server_of(local.get("servers")): lasting["unreached_seconds"]}
    else:
        unreached_by = unreached
    is_dry = bool(local.get("dry_run")) or any(each.dry_run for each in newest)
    health = health_of(found, local, is_paused=is_paused)
    if fleet_paused:
        health = Health(None, f"it is paused in the whole fleet{pause}{then(PAUSED)}")
    elif not is_paused:
        health = health.without(unreached_by)
        health = health.while_held(_held_by(stuck, state, unknown_since))
    if is_dry:
        health = health.of_dry_run()
    just_started = health.keeps_up is not True and _has_just_started(found, outcomes, lasting)
    if just_started and not (is_paused or is_dry or unreached):
        is_new = emptied is None or not _begins_with(slots, found)
        health = Health(None, JUST_STARTED if is_new else f"{NOTHING_YET}: {emptied}")
    fleet_rate = None if setting is None else setting.rate
    # The refusal of an earlier rate remains in the ledger for some minutes.
    refusals = [each.refused for each in newest if each.refused_rate == fleet_rate]
    figures = JobFigures(
        name=name,
        rate=local.get("rate", rate) if rate is None else rate,
        fleet_rate=fleet_rate,
        refused=refusals[-1] if refusals and fleet_rate is not None else None,
        paused=bool(local.get("paused")),
        fleet_paused=fleet_paused,
        dry_run=is_dry,
        unit=local.get("unit"),
        adaptive=bool(local.get("adaptive")),
        is_here=bool(local),
        recruited_per_minute=sum(each.recruited for each in recent) * MINUTE / covered,
        items_per_second=sum(each.items for each in recent) / covered,
        slice_seconds=sum(each.seconds for each in recent) / performed if performed else None,
        outcomes=outcomes,
        backlog=backlog,
        oldest_seconds=oldest,
        keeps_up=health.keeps_up,
        why=health.why,
        just_started=just_started,
        enough_rate=None
        if health.keeps_up is not False
        else enough_rate(found, slots, covered, local.get("lag")),
        breaker_open=bool(local.get("breaker_open")),
        unreached_seconds=lasting["unreached_seconds"],
        servers=local.get("servers"),
        running_seconds=lasting["running_seconds"],
        errors=errors_of(found),
        measured=measured_of(slots, found),
        lag=lag,
        items=[0 if each is None else each.items for each in found],
        recruits=[0 if each is None else each.recruited for each in found],
        slices=[
            0 if each is None else sum(getattr(each, outcome) for outcome in PERFORMED)
            for each in found
        ],
        stuck=stuck,
        unreached=unreached,
        seen_ago=seen_ago,
        offered=_offered(found, slots),
    )
    figures.problems.extend(_problems(figures, slots, health))
    return figures


def _held_by(
    stuck: Sequence[StuckSlice], state: FleetState, unknown_since: str | None
) -> str | None:
    """Return why nobody knows how a job fares now, whatever its minutes say; None: they count."""
    if unknown_since is not None:
        return f"the last report came {unknown_since} ago"
    if stuck:
        return "a slice of it does not end"
    held = {(each.host, each.pid) for each in state.stuck}
    if state.present and held.issuperset((each.host, each.pid) for each in state.present):
        return "every process is held by a slice that does not end"
    return None


def _seen_ago(lag: Sequence[float | None], backlogs: Sequence[int | None]) -> float | None:
    """Return how old the newest report of garbage is, in seconds; 0.0: it is of now."""
    for back, seen in enumerate(zip(reversed(lag), reversed(backlogs), strict=True)):
        if seen != (None, None):
            return 0.0 if back < NEWEST else float(back * MINUTE)
    return None


def _offered(found: Sequence[Any], slots: Sequence[Any]) -> int | None:
    """Return how many of the callers enlisted where the job is installed, None: unknown.

    The reports of it come once a minute, so it is the share that they show of all callers.
    """
    of_all: int = sum(slot.offered for slot in slots if slot is not None)
    if not of_all:
        return None
    known: int = sum(each.offered or 0 for each in found if each is not None)
    enlisted: int = sum(slot.enlisted for slot in slots if slot is not None)
    return round(enlisted * min(1.0, known / of_all))


def health_of(found: Sequence[Any], local: Mapping[str, Any], *, is_paused: bool = False) -> Health:
    """Say whether a job suffices for its garbage in the whole fleet, and why not.

    Arguments:
        found: its figures by minute, None for a missing one.
        local: its part of `recruiter.stats()`.
        is_paused: then nobody knows.

    The local answer counts if it is a no, or if the minutes do not show how old the garbage is.
    """
    said = Health(local.get("keeps_up"), local.get("why", ""))
    if is_paused:
        return Health(None, "it is paused")
    spans = [
        Findings(
            float(number * MINUTE),
            Counter({each: getattr(minute, each) for each in OUTCOMES if getattr(minute, each)}),
            None,
            minute.oldest_seconds,
            float((number + 1) * MINUTE),
        )
        for number, minute in enumerate(found)
        if minute is not None
    ]
    targets = [each.lag for each in found if each is not None and each.lag is not None]
    target = targets[-1] if targets else local.get("lag")
    error = next((each.name for each in errors_of(found)), None)
    assessed = assess(spans, float((len(found) - 1) * MINUTE), target, error)
    if assessed.keeps_up is False or said.keeps_up is False:
        return assessed if assessed.keeps_up is False else said
    knows_age = any(each.oldest_seconds is not None for each in spans)
    return assessed if knows_age or said.keeps_up is None else said


def keeps_up(lag: Sequence[float | None], said: bool | None) -> bool | None:
    """Say whether a job suffices for its garbage, by the garbage's age alone.

    Arguments:
        lag: the age of the oldest garbage in each minute.
        said: the health of this process's recruiter.

    Returns: None if nobody knows.
    """
    found = [None if age is None else JobMinute(worked=1, oldest_seconds=age) for age in lag]
    return health_of(found, {"keeps_up": said}).keeps_up


def _begins_with(slots: Sequence[Any], found: Sequence[Any]) -> bool:
    """Say whether a job's figures are as old as the ledger's, a minute more or less."""
    first, of_job = (
        next((number for number, each in enumerate(some) if each is not None), len(some))
        for some in (slots, found)
    )
    return of_job <= first + 1


def _has_just_started(
    found: Sequence[Any], outcomes: Mapping[str, int], lasting: Mapping[str, float | None]
) -> bool:
    """Say whether a job's figures begin in these minutes, after a gap that ends a history.

    A machine that starts an application is busy with it, so its slices are out of time at first,
    and some fail. Of a job that has done nothing else than fail there is something to say.
    """
    recent, before = found[-STARTING_MINUTES:], found[-QUIET_MINUTES:-STARTING_MINUTES]
    if any(before) or not any(each is not None and each.recruited for each in recent):
        return False
    if any(outcomes[each] for each in ("worked", "idle", "aborted")):
        return True
    unreached = lasting["unreached_seconds"] or 0.0
    return outcomes["failed"] < FEWEST_FAULTS and unreached < UNREACHED_SECONDS


def _lasting(found: Sequence[Any], local: Mapping[str, Any]) -> dict[str, float | None]:
    """Return for how long each lasting trouble has gone on: the longest that a process reports."""
    newest = [each for each in found[-NEWEST:] if each is not None]
    said = {"unreached_seconds": "breaker_seconds", "running_seconds": "running_seconds"}
    longest: dict[str, float | None] = {}
    for name, ours in said.items():
        # A trouble that has ended since stands in an older minute only.
        known = [getattr(each, name) for each in newest[-1:]] + [local.get(ours)]
        longest[name] = max((each for each in known if each is not None), default=None)
    return longest


def errors_of(found: Sequence[Any]) -> list[ErrorFigures]:
    """Return the errors that a job's slices raised in these minutes, the newest first."""
    errors: dict[str, JobError] = {}
    for minute in found:
        if minute is not None:
            add_errors(errors, minute.errors)
    listed = [
        ErrorFigures(name, each.count, each.at, each.host, each.text)
        for name, each in errors.items()
    ]
    return sorted(listed, key=lambda each: (-(each.at or 0.0), each.name))


def measured_of(slots: Sequence[Any], found: Sequence[Any]) -> list[MeasuredFigure]:
    """Return the figures of a job's own, by name.

    Arguments:
        slots: minutes, some None.
        found: the job's figures in each, some None.
    """
    figures: dict[str, MeasuredFigure] = {}
    for slot, minute in zip(slots, found, strict=True):
        for name, value in (minute.measured if minute is not None else {}).items():
            before = figures.get(name)
            highest = value if before is None else max(value, before.highest)
            figures[name] = MeasuredFigure(name, value, slot.minute, highest)
    return [figures[name] for name in sorted(figures)]


def enough_rate(
    found: Sequence[Any], slots: Sequence[Any], covered: float, lag: float | None
) -> float | None:
    """Return the rate at which a job would keep up; above 1 if none would; None if unknown.

    Arguments:
        found: the job's figures by minute, some None.
        slots: the minutes themselves.
        covered: the seconds that the recent ones cover.
        lag: its lag target.
    """
    recent = [each for each in found[recent_of(slots)] if each is not None]
    items, worked = sum(each.items for each in recent), sum(each.worked for each in recent)
    enlisted = sum(slot.enlisted for slot in slots[recent_of(slots)] if slot is not None)
    if not items or not worked or not enlisted:
        return None
    ages = [
        (float(number * MINUTE), each.oldest_seconds)
        for number, each in enumerate(found[-TREND:])
        if each is not None and each.oldest_seconds is not None
    ]
    # The age of the oldest shows which share of the garbage is removed: the rest makes it grow.
    grows = min(max(growth(ages) or 0.0, 0.0), MOST_GROWTH)
    # A slice of a job that is behind is full, or as full as its time allows.
    limit = max(1, round(items / worked))
    target = next((each.lag for each in reversed(recent) if each.lag is not None), lag)
    try:
        return choose_rate(
            enlisted / covered, items / covered / (1.0 - grows), limit, target or AGE_LIMIT
        )
    except ConfigurationError:
        return None


def _problems(job: JobFigures, slots: Sequence[Any], health: Health) -> list[str]:
    problems = []
    if job.stuck:
        others = len(job.stuck) - 1
        more = f"; and {others} more slice{'' if others == 1 else 's'} of it" if others else ""
        problems.append(f"{job.stuck[0].sentence()}{more}")
    elif job.running_seconds is not None and is_stuck(job.running_seconds, None):
        problems.append(
            f"a slice has been running for {roughly(job.running_seconds)}: nothing else runs"
            " in its process"
        )
    if not job.just_started:
        problems += _doings(job, health)
    if job.refused is not None:
        problems.append(f"the fleet's rate {job.fleet_rate:.3g} is refused: {job.refused}")
    if not (job.paused or job.fleet_paused) and _is_quiet(job, slots):
        problems.append(f"nobody was recruited for {QUIET_MINUTES} minutes")
    return problems


def _doings(job: JobFigures, health: Health) -> list[str]:
    """Return a sentence for each problem in how the job's slices went."""
    problems = []
    if job.keeps_up is False:
        problems.append(f"does not keep up: {job.why}{advice(job)}")
    elif health.is_old:
        problems.append(job.why)
    if job.unreached:
        # The fleet's figures say it, once for all jobs of the server.
        pass
    elif job.unreached_seconds is not None and job.unreached_seconds >= UNREACHED_SECONDS:
        problems.append(
            f"{server_of(job.servers)} has not been reached for {roughly(job.unreached_seconds)}:"
            " its breaker stays open"
        )
    elif job.breaker_open:
        problems.append("its breaker is open: the server could not be reached")
    performed = sum(job.outcomes[outcome] for outcome in PERFORMED)
    if performed >= FEWEST:
        if job.outcomes["aborted"] > performed * ABORTED_SHARE:
            problems.append(f"{job.outcomes['aborted'] / performed:.0%} of its slices were aborted")
        if job.outcomes["failed"] > performed * ABORTED_SHARE:
            share = f"{job.outcomes['failed'] / performed:.0%} of its slices failed"
            problems.append(f"{share}{_errors_said(job)}")
        if job.outcomes["out_of_time"] > performed * ABORTED_SHARE:
            share = f"{job.outcomes['out_of_time'] / performed:.0%} of its slices were out of time"
            problems.append(f"{share}: install it with longer slices (seconds=)")
    elif job.outcomes["failed"]:
        problems.append(f"{job.outcomes['failed']} of its slices failed{_errors_said(job)}")
    return problems


def advice(job: JobFigures) -> str:
    """Return where and when a job that does not keep up last failed, and what to do next; or ""."""
    if job.keeps_up is not False:
        return ""
    failed = next((each for each in job.errors if each.name in job.why), None)
    if failed is not None:
        at = "" if failed.at is None else f" at {time_of_day(failed.at)}"
        last = f", last on {failed.host or 'an unknown host'}{at}"
        return f"{last}{then(DENIED if failed.name in DENIALS else FAILED)}"
    if " failed" in job.why:
        return then(FAILED)
    if job.enough_rate is None:
        return then(BEHIND)
    if job.enough_rate > 1.0:
        return "; no rate would do: give it larger slices"
    if job.rate is not None and job.enough_rate <= job.rate:
        return then(BEHIND)
    now = "" if job.rate is None else f" (it has {job.rate:.3g})"
    return f"; a rate of {job.enough_rate:.2g} would do{now}"


def _errors_said(job: JobFigures) -> str:
    return f" ({job.errors[0].name} last)" if job.errors else ""


def _is_quiet(job: JobFigures, slots: Sequence[Any]) -> bool:
    # At this rate a recruit should have come; at a tiny rate, quiet minutes mean nothing.
    quiet = slots[-QUIET_MINUTES:]
    if any(job.recruits[-QUIET_MINUTES:]) or len(quiet) < QUIET_MINUTES or quiet[0] is None:
        return False
    enlisted = sum(slot.enlisted for slot in quiet if slot is not None)
    return job.rate is not None and enlisted * job.rate >= FEWEST


def _cache(figures: Mapping[str, float]) -> CacheMinute:
    counts = {each: int(figures[each]) for each in COUNTS}
    return CacheMinute(**counts, seconds=figures["seconds"])


class OwnMinutes:
    """This process's own minutes, for a dashboard without a ledger.

    The object turns a recruiter's figures, which only grow, into figures of each minute, from its
    first call on.

    Arguments:
        now: the time of day, in seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._minutes: dict[int, Minute] = {}
        self._before: Mapping[str, Any] | None = None
        self._caches = CacheCounts()

    def __call__(self, stats: Mapping[str, Any]) -> list[Minute]:
        """Note the figures of this moment; return the last hour's minutes, the oldest first.

        Arguments:
            stats: as `Recruiter.stats` returns them.

        No round trip.
        """
        with self._lock:
            at = int(self._now()) // MINUTE * MINUTE
            minute = self._minutes.setdefault(at, Minute(at, processes=1))
            before, self._before = self._before, stats
            caches = self._caches.take()
            if before is not None:
                minute.enlisted += _grown(stats, before, "enlisted")
                add_caches(minute.caches, {name: _cache(each) for name, each in caches.items()})
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
        job.dry_run = bool(figures.get("dry_run"))
        job.running_seconds = figures.get("running_seconds")
        job.unreached_seconds = figures.get("breaker_seconds")
        for what, each in figures.get("measured", {}).items():
            # One of an earlier minute stands there.
            if each["seconds_ago"] <= self._now() % MINUTE:
                job.measured[what] = max(each["value"], job.measured.get(what, each["value"]))
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
