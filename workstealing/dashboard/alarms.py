"""The alarms of a page: a line for each thing that is wrong, and one for jobs that are alike.

No command is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from workstealing.dashboard.figures import JobFigures
from workstealing.dashboard.fleet_state import few, newest_of
from workstealing.dashboard.queries import Snapshot, StructureFigures
from workstealing.safe_text import visible

MOST_ALARMS = 12
"""How many alarms a page spells out."""

LONGEST_PROBLEM = 500
_FIGURE = re.compile(r"\d[\d.,:%]*( (s|ms|min|h|days?)\b)?")
_RUNBOOK = re.compile(r"docs/runbook\.md(#[a-z]+)")


@dataclass(frozen=True, slots=True)
class Alarms:
    """The things that are wrong.

    Fields: count: of all alarms, jobs that are alike being one; lines: the first ones, and one that
    says how many more there are.
    """

    count: int
    lines: list[str]


def alarms_of(
    snapshot: Snapshot, jobs: Iterable[JobFigures], dead: Iterable[StructureFigures]
) -> Alarms:
    """Return the alarms of a page.

    Arguments:
        jobs: its jobs, the worst first.
        dead: its structures with dead items.
    """
    found = [visible(each, LONGEST_PROBLEM) for each in (*snapshot.warnings, *snapshot.troubles)]
    alike: dict[str, list[JobFigures]] = {}
    for job in jobs:
        if job.problems:
            # Two jobs that one fault has broken differ in their figures alone.
            alike.setdefault(_FIGURE.sub("#", "; ".join(job.problems)), []).append(job)
    groups = list(alike.values())
    found += [_of_jobs(group, snapshot) for group in groups[:MOST_ALARMS]]
    # One sentence about its server stands for all structures that it does not answer for.
    found += [
        visible(each.trouble) for each in snapshot.structures if each.trouble and not each.away
    ]
    found += [_of_dead(each) for each in dead]
    count = len(found) + len(groups[MOST_ALARMS:])
    more = count - MOST_ALARMS
    return Alarms(count, found[:MOST_ALARMS] + ([f"and {more:,} more"] if more > 0 else []))


def _of_jobs(jobs: Sequence[JobFigures], snapshot: Snapshot) -> str:
    first = jobs[0]
    newest = newest_of(first.name, snapshot.events, snapshot.at)
    said = visible("; ".join(first.problems), LONGEST_PROBLEM)
    behind = f" ({visible(newest, LONGEST_PROBLEM)})" if newest else ""
    if len(jobs) == 1:
        return f"{visible(first.name)}: {said}{behind}"
    names = visible(few(sorted(job.name for job in jobs)))
    return f"{names}: {len(jobs):,} jobs alike. {visible(first.name)}: {said}{behind}"


def _of_dead(figures: StructureFigures) -> str:
    count = figures.dead_size or len(figures.dead)
    items = "dead item waits" if count == 1 else "dead items wait"
    return f"{visible(figures.watched.name)}: {count:,} {items} for a person"


def with_links(line: str, runbook: str | None) -> str:
    """Return an alarm for a page, the section of the runbook that it names as a link.

    Arguments:
        runbook: the address of docs/runbook.md as published, None: no link.
    """
    if runbook is None:
        return line
    parts = []
    end = 0
    for found in _RUNBOOK.finditer(line):
        link = Markup('<a href="{}" rel="noreferrer">{}</a>')
        parts += [Markup("{}").format(line[end : found.start()])]
        parts += [link.format(runbook + found[1], found[0])]
        end = found.end()
    return Markup("").join([*parts, line[end:]])
