"""`workstealing status`: the fleet's present work, as far as its ledger or one process knows."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from workstealing.cli.clients import (
    FAULTS,
    VARIABLE,
    add_fleet_options,
    address_of,
    application_prints_to_stderr,
    ledger_for,
    load_app,
    named_app,
    said,
)
from workstealing.cli.events import as_data, line
from workstealing.cli.output import (
    add_json_option,
    figure,
    print_json,
    printable,
    say,
    table,
)
from workstealing.clock import roughly, spell
from workstealing.errors import ConfigurationError
from workstealing.recruiting.job import counted
from workstealing.recruiting.slice import PERFORMED
from workstealing.store.client import URL_VARIABLES, names_redis

if TYPE_CHECKING:
    from workstealing.dashboard.figures import JobFigures
    from workstealing.dashboard.queries import Snapshot, StructureFigures
    from workstealing.metrics.events import FleetEvent

TROUBLE = 1
_LATELY_SECONDS, _MOST_LATELY = 3600.0, 5
_OF_THE_FLEET = (
    "recruited_per_minute",
    "items_per_second",
    "slice_seconds",
    "outcomes",
    "lag",
    "items",
    "recruits",
    "slices",
)

DESCRIPTION = """\
Show what the fleet has done in the last minutes, from its ledger in Redis, and what waits in the
structures of the recruiter's jobs. Nothing is changed.
"""
EPILOG = """\
exit status: 0 if all is well, 1 if a job needs attention or something could not be asked, 2 for bad
input. Without --app only the ledger is read; without a ledger only the structures.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_fleet_options(parser)
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Show the figures.

    Returns: 0, or 1 if something needs attention. Raises: WorkStealingError for bad input.
    """
    look = looker(options)
    with application_prints_to_stderr():
        snapshot = look()
    if options.json:
        print_json(as_dict(snapshot))
    else:
        say(as_text(snapshot))
    return 0 if is_well(snapshot) else TROUBLE


def looker(options: argparse.Namespace) -> Callable[[], Snapshot]:
    """Return a function that takes a new look at each call.

    Arguments:
        options: app, url and ledger count.

    Raises: ConfigurationError.
    """
    from workstealing.dashboard.figures import OwnMinutes
    from workstealing.dashboard.fleet_state import (
        DENIALS,
        DENIED,
        Refusals,
        Why,
        own_refusals,
        server_of_client,
        then,
    )
    from workstealing.dashboard.queries import Queries
    from workstealing.dashboard.watched import watch_all
    from workstealing.metrics.events import read_events
    from workstealing.metrics.ledger import processes, read, server_time
    from workstealing.metrics.shared_settings import SharedSettings

    recruiter = load_app(options.app) if named_app(options.app) else None
    if recruiter is None and options.url is None and not names_redis():
        raise ConfigurationError(
            "there is nothing to look at: give --app package.module:recruiter (or set"
            f" {VARIABLE}), or --url of the Redis with the fleet's ledger (or set"
            f" {' or '.join(URL_VARIABLES)})"
        )
    client, name = ledger_for(options, recruiter)
    fleet = None if client is None else SharedSettings(client, name)
    asked = _Asked(client)
    queries = Queries(
        (lambda: {"enlisted": 0, "jobs": {}}) if recruiter is None else recruiter.stats,
        lambda: [] if client is None else asked(lambda: read(client, name)),
        OwnMinutes(),
        lambda: {} if fleet is None else asked(fleet.settings),
        lambda: [] if recruiter is None else watch_all((), recruiter.jobs().values()),
        processes=None if client is None else lambda: asked(lambda: processes(client, name)),
        server_now=None if client is None else lambda: asked(lambda: server_time(client, name)),
        where=None if client is None else server_of_client(client),
        refusal=Why if client is None else Refusals(client, name),
        own_refusals=lambda: [] if recruiter is None else own_refusals(recruiter),
        events=lambda: [] if client is None else asked(lambda: read_events(client, name)),
        describe=said,
    )

    def look() -> Snapshot:
        queries.forget()
        asked.begin()
        snapshot = queries.snapshot()
        if asked.reason is None or (asked.is_away and snapshot.warnings):
            # Of a server that does not answer a warning names the address, and all that it holds.
            return snapshot
        # Most likely all questions to the ledger's client have failed for one reason.
        others = [each for each in snapshot.troubles if not each.startswith(_OF_THE_LEDGER)]
        step = then(DENIED) if asked.reason.partition(":")[0] in DENIALS else ""
        trouble = f"the ledger could not be asked: {asked.reason}{step}"
        return replace(snapshot, troubles=[trouble, *others])

    return look


_OF_THE_LEDGER = (
    *("the ledger could not", "the fleet's settings could not", "the fleet's processes"),
    "the fleet's events",
    "the ledger's time",
)


class _Asked:
    """Asks the ledger's client, and remembers why and where it did not answer.

    A page names only the kind of an error, but a person with a shell may see the address. After one
    fault a look asks the server nothing more, because a person is waiting.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._fault: Exception | None = None
        self.reason: str | None = None

    @property
    def is_away(self) -> bool:
        """Whether the server did not answer at all."""
        return self._fault is not None

    def begin(self) -> None:
        """Begin a look, and forget the last fault."""
        self._fault = self.reason = None

    def __call__(self, ask: Callable[[], Any]) -> Any:
        """Return the answer. Raises: the errors of asking."""
        if self._fault is not None:
            raise self._fault
        try:
            return ask()
        except Exception as error:
            if isinstance(error, FAULTS) and not isinstance(error, ResponseError):
                self._fault = error
            if self.reason is None:
                self.reason = f"{said(error)} (asked at {address_of(self._client)})"
            raise


def is_well(snapshot: Snapshot) -> bool:
    """Say whether nothing needs attention."""
    return not (
        snapshot.troubles
        or snapshot.warnings
        or any(job.problems for job in snapshot.jobs)
        or any(each.trouble or each.dead_size for each in snapshot.structures)
    )


def _is_open(snapshot: Snapshot) -> bool:
    """Say whether it is too early for a yes, and there is no reason for a no."""
    return is_well(snapshot) and any(job.just_started for job in snapshot.jobs)


def as_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as plain data; an unknown figure is None."""
    return {
        "at": snapshot.at,
        "is_fleet": snapshot.is_fleet,
        "is_well": None if _is_open(snapshot) else is_well(snapshot),
        "processes": snapshot.processes,
        "heard": snapshot.heard,
        "old_s": snapshot.old_seconds,
        "warnings": snapshot.warnings,
        "notes": snapshot.notes,
        "reported": [asdict(each) for each in snapshot.reported],
        "enlisted_per_s": snapshot.enlisted_per_second if snapshot.is_fleet else None,
        "jobs": [_job(job, is_fleet=snapshot.is_fleet) for job in snapshot.jobs],
        "structures": [_structure(each) for each in snapshot.structures],
        "caches": {name: asdict(each) for name, each in snapshot.caches.items()},
        "troubles": snapshot.troubles,
        "events": [as_data(each) for each in lately(snapshot)],
    }


def _job(job: JobFigures, *, is_fleet: bool) -> dict[str, Any]:
    figures = asdict(job)
    if not is_fleet:
        # This process has recruited nobody, but that says nothing about the others.
        figures |= dict.fromkeys(_OF_THE_FLEET)
    return figures


def _structure(each: StructureFigures) -> dict[str, Any]:
    return {
        "name": each.watched.name,
        "kind": each.watched.kind,
        "size": each.size,
        "due": None if each.due is None else asdict(each.due),
        "dead": each.dead_size,
        "trouble": each.trouble,
    }


def as_text(snapshot: Snapshot) -> str:
    """Return a snapshot as text for people."""
    parts = [headline(snapshot)]
    if snapshot.jobs:
        parts.append(table(JOB_HEADINGS, [job_row(job, snapshot) for job in snapshot.jobs]))
    if errors := error_rows(snapshot):
        parts.append(table(ERROR_HEADINGS, errors, left=2))
    if measured := measured_rows(snapshot):
        parts.append(table(MEASURED_HEADINGS, measured, left=2))
    if snapshot.caches:
        parts.append(table(CACHE_HEADINGS, cache_rows(snapshot)))
    if snapshot.structures:
        rows = [structure_row(each) for each in snapshot.structures]
        parts.append(table(STRUCTURE_HEADINGS, rows, left=2))
    if fresh := starts(snapshot):
        parts.append("\n".join(fresh))
    if found := complaints(snapshot):
        parts.append("\n".join(f"! {each}" for each in found))
    if happened := lately(snapshot):
        parts.append("\n".join(["events of the last hour:", *map(line, happened)]))
    return "\n\n".join(parts)


def lately(snapshot: Snapshot) -> list[FleetEvent]:
    """Return the newest events of the last hour, the newest first; `events` has all of them."""
    recent = [each for each in snapshot.events if snapshot.at - each.at <= _LATELY_SECONDS]
    return recent[:_MOST_LATELY]


JOB_HEADINGS = (
    "job",
    "rate",
    "recruits/min",
    "items/s",
    "slice",
    "oldest",
    "backlog",
    "aborted",
    "failed",
    "too short",
    "keeps up",
)
ERROR_HEADINGS = ("job", "error of the last hour", "times", "last", "host")
MEASURED_HEADINGS = (
    "job",
    "figure of one slice: of its sample",
    "last",
    "in the minute",
    "most in the hour",
)
CACHE_HEADINGS = (
    *(
        "cache, last hour",
        "hits",
        "stale",
        "misses",
        "waits",
        "computed",
        "failed",
        "took",
        "without Redis",
    ),
)
STRUCTURE_HEADINGS = ("structure", "kind", "size", "due", "oldest due", "dead")


def headline(snapshot: Snapshot) -> str:
    """Return one line about the whole."""
    from workstealing.dashboard.fleet_state import time_of_day

    if snapshot.fault is not None and snapshot.heard is None:
        what = "did not answer" if snapshot.is_away else "could not be read"
        return f"the ledger {what}: these figures are of this process and its structures"
    if not snapshot.is_fleet:
        return (
            "no ledger has figures of the fleet yet: these are of this process and its structures."
            " Each process with recruiter.add_hook(workstealing.metrics.ledger.Ledger(client))"
            " reports every ten seconds, once it enlists. --ledger shows one of another name"
        )
    if snapshot.old_seconds is not None and snapshot.heard is not None:
        return (
            f"the last report came {roughly(snapshot.old_seconds)} ago, at"
            f" {time_of_day(snapshot.heard)}: the figures are of then"
        )
    count = snapshot.processes
    places = Counter((each.host, each.version) for each in snapshot.state.present)
    listed = [
        f"{number} on {printable(host)}, {printable(version)}"
        for (host, version), number in places.items()
    ]
    more = f" and {len(listed) - _PLACES} more places" if len(listed) > _PLACES else ""
    where = f" ({'; '.join(listed[:_PLACES])}{more})" if listed else ""
    silent = len(snapshot.state.silent)
    gone = f"; {silent:,} {'has' if silent == 1 else 'have'} fallen silent" if silent else ""
    return (
        f"{count} process{'' if count == 1 else 'es'} reported in the last minute{where}{gone};"
        f" {figure(snapshot.enlisted_per_second)} enlisted/s"
    )


def cache_rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """Return the cells of the caches that were called in the last hour, as in CACHE_HEADINGS."""
    return [
        (
            name,
            *(f"{count:,}" for count in (each.hits, each.stale, each.misses, each.waits)),
            f"{each.computations:,}",
            f"{each.failures:,}",
            spell(each.seconds / each.computations) if each.computations else "?",
            f"{each.uncached:,}",
        )
        for name, each in sorted(snapshot.caches.items())
    ]


def error_rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """Return the cells of the last hour's errors, as in ERROR_HEADINGS."""
    return [
        (
            job.name,
            error.name if error.text is None else f"{error.name}: {error.text}",
            f"{error.count:,}",
            "?" if error.at is None else f"{spell(max(0.0, snapshot.at - error.at))} ago",
            error.host or "?",
        )
        for job in snapshot.jobs
        for error in job.errors
    ]


def measured_rows(snapshot: Snapshot) -> list[tuple[str, ...]]:
    """Return the cells of the figures that jobs measure themselves, as in MEASURED_HEADINGS."""
    return [
        (
            job.name,
            each.name,
            figure(each.value),
            f"from {spell(max(0.0, snapshot.at - each.at))} ago on",
            figure(each.highest),
        )
        for job in snapshot.jobs
        for each in job.measured
    ]


_PLACES = 5


def job_row(job: JobFigures, snapshot: Snapshot) -> tuple[str, ...]:
    """Return a job's cells, as in JOB_HEADINGS."""
    # A refused rate is not in force.
    is_set = job.fleet_rate is not None and job.refused is None
    rate = job.fleet_rate if is_set else job.rate
    shown = "?" if rate is None else f"{rate:.3g}"
    if job.paused or job.fleet_paused:
        shown = f"paused ({shown})"
    elif job.dry_run:
        shown = f"dry run ({shown})"
    slices = sum(job.outcomes[outcome] for outcome in PERFORMED)
    return (
        job.name,
        shown,
        figure(job.recruited_per_minute) if snapshot.is_fleet else "?",
        figure(job.items_per_second) if snapshot.is_fleet else "?",
        "?" if job.slice_seconds is None else spell(job.slice_seconds),
        "?" if job.oldest_seconds is None else f"{spell(job.oldest_seconds)}{_ago(job)}",
        "?" if job.backlog is None else f"{counted(job.backlog, job.unit or '')}{_ago(job)}",
        f"{job.outcomes['aborted'] / slices:.0%}" if slices else "?",
        f"{job.outcomes['failed'] / slices:.0%}" if slices else "?",
        f"{job.outcomes['out_of_time'] / slices:.0%}" if slices else "?",
        {None: "?", True: "yes", False: "NO"}[job.keeps_up],
    )


def _ago(job: JobFigures) -> str:
    """Return how long ago garbage was seen, if that is long ago."""
    return f" ({spell(job.seen_ago)} ago)" if job.seen_ago else ""


def structure_row(each: StructureFigures) -> tuple[str, ...]:
    """Return a structure's cells, as in STRUCTURE_HEADINGS."""
    due = each.due
    oldest = None if due is None or not due.count else due.oldest_seconds
    return (
        each.watched.name,
        each.watched.kind,
        "?" if each.size is None else f"{each.size:,}",
        "-" if due is None else f"{'' if due.exact else 'about '}{due.count:,} {due.what}",
        "-" if oldest is None else spell(oldest),
        "-" if each.dead_size is None else f"{each.dead_size:,}",
    )


def starts(snapshot: Snapshot) -> list[str]:
    """Return one line for each job that is paused, or of which there is nothing to say yet.

    Also of what is worth knowing, and needs nobody's attention.
    """
    return [
        *map(printable, snapshot.notes),
        *_starts(snapshot),
    ]


def _starts(snapshot: Snapshot) -> list[str]:
    return [
        f"{printable(job.name)}: {printable(job.why)}"
        for job in snapshot.jobs
        if job.just_started or (job.keeps_up is None and (job.paused or job.fleet_paused))
    ]


def complaints(snapshot: Snapshot) -> list[str]:
    """Return one sentence for each problem that needs attention."""
    found = [f"{job.name}: {problem}" for job in snapshot.jobs for problem in job.problems]
    for each in snapshot.structures:
        # One sentence about its server stands for all structures that it does not answer for.
        if each.trouble and not each.away:
            found.append(each.trouble)
        if each.dead_size:
            found.append(f"{each.watched.name}: {each.dead_size:,} dead items wait for a person")
    return [printable(each) for each in (*snapshot.warnings, *found, *snapshot.troubles)]
