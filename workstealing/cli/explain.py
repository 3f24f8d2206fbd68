"""`workstealing explain`: why a job did or did not run lately, in the whole fleet."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from workstealing.cli.clients import (
    add_fleet_options,
    application_prints_to_stderr,
    load_app,
    named_app,
)
from workstealing.cli.output import add_json_option, print_json, printable, say
from workstealing.cli.status import looker
from workstealing.clock import roughly
from workstealing.recruiting.explaining import FLEET, Circumstances, Explanation, explain
from workstealing.recruiting.lottery import is_disabled

if TYPE_CHECKING:
    from workstealing.dashboard.figures import JobFigures
    from workstealing.dashboard.queries import Snapshot

IDLE = 1

DESCRIPTION = """\
Say why a job did or did not run in the last hour, one sentence for each reason, by the figures of
the fleet's ledger and by the recruiter that --app names. Nothing is changed.
"""
EPILOG = """\
exit status: 0 if each job has run in the last quarter of an hour, 1 if one has not, 2 for bad
input. WORKSTEALING_DISABLED is looked up in this command's own environment; the processes of the
application may have another.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help="names of jobs (default: all that are known)"
    )
    add_fleet_options(parser)
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Explain the jobs.

    Returns: 0, or 1 if one has not run lately. Raises: WorkStealingError for bad input.
    """
    from workstealing.dashboard.fleet_state import newest_of

    look = looker(options)
    installed = tuple(load_app(options.app).jobs()) if named_app(options.app) else None
    with application_prints_to_stderr():
        snapshot = look()
    known = {job.name: job for job in snapshot.jobs}
    found = [
        explain(_circumstances(name, known.get(name), snapshot, installed))
        for name in dict.fromkeys(options.jobs or known)
    ]
    if options.json:
        jobs = [
            {
                **each._asdict(),
                "has_run": None if _is_unknown(snapshot) else each.has_run,
                "reasons": [] if _is_unknown(snapshot) else list(each.reasons),
                "newest_event": newest_of(each.job, snapshot.events, snapshot.at) or None,
            }
            for each in found
        ]
        print_json({"jobs": jobs, "warnings": snapshot.warnings, "troubles": snapshot.troubles})
    else:
        say(_text(found, snapshot))
    return 0 if all(each.has_run for each in found) else IDLE


def _text(found: list[Explanation], snapshot: Snapshot) -> str:
    from workstealing.dashboard.fleet_state import time_of_day

    said = [
        # This command's own process knows no more than the ledger tells.
        f"nobody knows whether {printable(each.job)} has run lately: the ledger"
        f" {'does not answer' if snapshot.is_away else 'cannot be read'}"
        if _is_unknown(snapshot)
        else _with_event(each, snapshot)
        for each in found
    ]
    said = said or ["no job is known: neither installed nor in the ledger"]
    if not snapshot.is_fleet and not _is_unknown(snapshot):
        said.append(
            "no ledger has figures of the fleet, so these are of this command's own process, which"
            " has just begun; recruiter.explain(job) explains a process from inside"
        )
    if snapshot.old_seconds is not None and snapshot.heard is not None:
        said.append(
            f"the last report came {roughly(snapshot.old_seconds)} ago, at"
            f" {time_of_day(snapshot.heard)}: all of this is of then"
        )
    said += map(printable, snapshot.notes)
    said += [f"! {printable(each)}" for each in (*snapshot.warnings, *snapshot.troubles)]
    return "\n\n".join(said)


def _is_unknown(snapshot: Snapshot) -> bool:
    return snapshot.fault is not None and not snapshot.is_fleet


def _with_event(each: Explanation, of: Snapshot) -> str:
    from workstealing.dashboard.fleet_state import newest_of

    newest = newest_of(each.job, of.events, of.at)
    # Each reason by itself: a stranger's new line, in a user's name for instance, makes no reason.
    shown = Explanation(printable(each.job), each.has_run, tuple(map(printable, each.reasons)))
    return f"{shown}\n- its newest event: {printable(newest)}" if newest else str(shown)


def _covered(of: Snapshot) -> float:
    """Return how many seconds the figures cover: from the fleet's first report to this moment."""
    first = next((number for number, each in enumerate(of.slots) if each is not None), None)
    if first is None or not of.is_fleet:
        # This command's own process has just begun.
        return 1.0
    begun = of.times[first + 1] if first + 1 < len(of.times) else of.at
    return max(1.0, of.at - begun + of.spans[first])


def _circumstances(
    name: str, job: JobFigures | None, of: Snapshot, installed: tuple[str, ...] | None
) -> Circumstances:
    """Return the fleet's figures of a job; installed: the jobs of --app, None without it."""
    from workstealing.dashboard.figures import advice

    known = [each for each in of.enlisted if each is not None]
    quiet = next((back for back, each in enumerate(reversed(of.enlisted)) if each), None)
    common: dict[str, Any] = {
        "job": name,
        "place": FLEET if of.is_fleet else "this process",
        "seconds": _covered(of),
        # Without --app nobody can say which jobs a process has installed.
        "installed": (name,) if installed is None else installed,
        "disabled": is_disabled(),
        "enlisted": sum(known),
        # That minute has ended since: nobody came at least as long.
        "quiet_seconds": None if quiet is None else max(0.0, of.at - of.times[-1 - quiet] - 60.0),
    }
    if job is None:
        return Circumstances(**common)
    is_paused = job.paused or job.fleet_paused
    last = next((back for back, each in enumerate(reversed(job.slices)) if each), None)
    ran = None if last is None else max(0.0, of.at - of.times[-1 - last])
    return Circumstances(
        **common,
        paused=("the whole fleet" if job.fleet_paused else "this process") if is_paused else None,
        unreached_seconds=job.unreached_seconds,
        unreached=list(job.unreached),
        servers=job.servers,
        running_seconds=job.running_seconds,
        stuck=[each.sentence() for each in job.stuck],
        offered=job.offered,
        rate=job.fleet_rate if job.fleet_rate is not None and job.refused is None else job.rate,
        adaptive=job.adaptive,
        refused=job.refused,
        outcomes=job.outcomes,
        items=sum(job.items),
        ran_seconds=ran,
        errors={
            each.name: (each.count, None if each.at is None else max(0.0, of.at - each.at))
            for each in job.errors
        },
        keeps_up=job.keeps_up,
        why=job.why,
        advice=advice(job),
    )
