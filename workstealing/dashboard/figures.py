"""From the minutes of a ledger to the figures of each job: plain arithmetic, no command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workstealing.metrics.minutes import JobMinute
from workstealing.recruiting.health import Span, Verdict, judge
from workstealing.recruiting.outcome import OUTCOMES, PERFORMED

MINUTE = 60
HOUR = 60
"""How many minutes a page looks back."""

RECENT = 5
"""From how many minutes the figures of "now" are taken."""

OLD_SECONDS = 60.0
QUIET_MINUTES = 15
ABORTED_SHARE = 0.2
LEDGER_NAME_LENGTH = 200
FEWEST = 20
"""Of fewer recruits than this no share is worth a complaint."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What a page says of one job.

    Fields: name; rate: the share of the enlisted, None: unknown; fleet_rate: what the fleet is
    told, None: nothing; paused; fleet_paused; adaptive; is_here: whether this process has it
    installed; recruited_per_minute, items_per_second: of the last minutes; slice_seconds: what a
    slice took on average, None: there was none; outcomes: of the last hour; backlog and
    oldest_seconds: as last seen, None: unknown; keeps_up: None: unknown; why: why it does not, or
    why nobody knows; breaker_open, in this process; lag: the oldest garbage by minute, in seconds;
    items, recruits: by minute; problems: the reasons why it is red.
    """

    name: str
    rate: float | None
    fleet_rate: float | None
    paused: bool
    fleet_paused: bool
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
    breaker_open: bool
    lag: list[float | None]
    items: list[int]
    recruits: list[int]
    problems: list[str] = field(default_factory=list)


def window(minutes: Sequence[Any], now: float) -> tuple[list[int], list[Any]]:
    """Lay the ledger's minutes out over the last hour.

    Arguments: minutes: as `ledger.read` returns them; now: seconds since the epoch. Returns: the
    beginning of each of the last 60 minutes, the present one last, and the minute itself or None.
    """
    last = int(now) // MINUTE * MINUTE
    if minutes:
        # The ledger's clock may be ahead of ours.
        last = max(last, minutes[-1].minute)
    times = [last - MINUTE * back for back in range(HOUR - 1, -1, -1)]
    known = {each.minute: each for each in minutes if is_written(each)}
    return times, [known.get(time) for time in times]


def is_written(minute: Any) -> bool:
    """Say whether anybody has written this minute into the ledger."""
    return bool(minute.processes or minute.enlisted or minute.jobs)


def seconds_of(slots: Sequence[Any], times: Sequence[int], now: float) -> float:
    """Return how many seconds the last minutes cover that anybody has written; at least 1."""
    recent = list(zip(times, slots, strict=True))[-RECENT:]
    first = next((time for time, slot in recent if slot is not None), None)
    return 1.0 if first is None else max(1.0, min(now - first, RECENT * MINUTE))


def ledger_name(name: str) -> str:
    """Return the name by which the ledger counts a job: a long one is cut."""
    return name[:LEDGER_NAME_LENGTH]


def job_figures(
    name: str,
    slots: Sequence[Any],
    covered: float,
    local: Mapping[str, Any] | None,
    setting: Any,
    *,
    due: Any = None,
) -> JobFigures:
    """Return the figures of one job.

    Arguments: name; slots: the last 60 minutes, some None; covered: how many seconds the recent
    ones are; local: what `recruiter.stats()` says of it, None: not installed here; setting: what
    the fleet is told, or None; due: what a structure says is due, or None.
    """
    local = local or {}
    found = [slot.jobs.get(ledger_name(name)) if slot is not None else None for slot in slots]
    recent = [each for each in found[-RECENT:] if each is not None]
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
    if due is not None:
        # Counted just now, and not by a slice that saw a part of it.
        backlog = due.count
        oldest = due.oldest_seconds if oldest is None else oldest
    is_paused = bool(local.get("paused")) or bool(getattr(setting, "paused", False))
    verdict = verdict_of(found, local, is_paused=is_paused)
    figures = JobFigures(
        name=name,
        rate=local.get("rate", rate) if rate is None else rate,
        fleet_rate=getattr(setting, "rate", None),
        paused=bool(local.get("paused")),
        fleet_paused=bool(getattr(setting, "paused", False)),
        adaptive=bool(local.get("adaptive")),
        is_here=bool(local),
        recruited_per_minute=sum(each.recruited for each in recent) * MINUTE / covered,
        items_per_second=sum(each.items for each in recent) / covered,
        slice_seconds=sum(each.seconds for each in recent) / performed if performed else None,
        outcomes=outcomes,
        backlog=backlog,
        oldest_seconds=oldest,
        keeps_up=verdict.keeps_up,
        why=verdict.why,
        breaker_open=bool(local.get("breaker_open")),
        lag=lag,
        items=[0 if each is None else each.items for each in found],
        recruits=[0 if each is None else each.recruited for each in found],
    )
    figures.problems.extend(_problems(figures, slots))
    return figures


def verdict_of(
    found: Sequence[Any], local: Mapping[str, Any], *, is_paused: bool = False
) -> Verdict:
    """Say whether a job suffices for its garbage in the whole fleet, and why not.

    Arguments: found: its figures by minute, None where there are none; local: what
    `recruiter.stats()` says of it, which counts where it is a no, and where the minutes do not know
    how old its garbage is; is_paused: nobody judges a job that rests.
    """
    said = Verdict(local.get("keeps_up"), local.get("why", ""))
    if is_paused:
        return Verdict(None, "it is paused")
    spans = [
        Span(
            float(number * MINUTE),
            Counter({each: getattr(minute, each) for each in OUTCOMES if getattr(minute, each)}),
            None,
            minute.oldest_seconds,
        )
        for number, minute in enumerate(found)
        if minute is not None
    ]
    judged = judge(spans, float((len(found) - 1) * MINUTE), local.get("lag"))
    if judged.keeps_up is False or said.keeps_up is False:
        return judged if judged.keeps_up is False else said
    knows_age = any(each.oldest_seconds is not None for each in spans)
    return judged if knows_age or said.keeps_up is None else said


def keeps_up(lag: Sequence[float | None], said: bool | None) -> bool | None:
    """Say whether a job suffices for its garbage, by its age alone.

    Arguments: lag: the oldest garbage by minute; said: what the recruiter of this process says.
    Returns: None: nobody knows.
    """
    found = [None if age is None else JobMinute(worked=1, oldest_seconds=age) for age in lag]
    return verdict_of(found, {"keeps_up": said}).keeps_up


def _problems(job: JobFigures, slots: Sequence[Any]) -> list[str]:
    problems = []
    if job.keeps_up is False:
        problems.append(f"does not keep up: {job.why}")
    if job.breaker_open:
        problems.append("its breaker is open: the server could not be reached")
    performed = sum(job.outcomes[outcome] for outcome in PERFORMED)
    if performed >= FEWEST:
        if job.outcomes["aborted"] > performed * ABORTED_SHARE:
            problems.append(f"{job.outcomes['aborted'] / performed:.0%} of its slices were aborted")
        if job.outcomes["failed"] > performed * ABORTED_SHARE:
            problems.append(f"{job.outcomes['failed'] / performed:.0%} of its slices failed")
    elif job.outcomes["failed"]:
        problems.append(f"{job.outcomes['failed']} of its slices failed")
    if not (job.paused or job.fleet_paused) and _is_quiet(job, slots):
        problems.append(f"nobody was recruited for {QUIET_MINUTES} minutes")
    return problems


def _is_quiet(job: JobFigures, slots: Sequence[Any]) -> bool:
    # By the rate somebody should have come; at a tiny rate, quiet minutes mean nothing.
    quiet = slots[-QUIET_MINUTES:]
    if any(job.recruits[-QUIET_MINUTES:]) or len(quiet) < QUIET_MINUTES or quiet[0] is None:
        return False
    enlisted = sum(slot.enlisted for slot in quiet if slot is not None)
    return job.rate is not None and enlisted * job.rate >= FEWEST
