"""The present state of a fleet, from its processes' own reports, and what to do next about it.

No command is sent. The steps are one table for `status`, `explain` and the page; each is one
clause, and names the section of docs/runbook.md where there is one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from workstealing.clock import roughly
from workstealing.metrics.minutes import Away, Process
from workstealing.metrics.watching import is_stuck

AWAY_SECONDS = 10.0
AWAY_FAULTS = 3
"""After so many seconds and faults in a row a server is said to be away: fewer may be chance."""

SURELY_AWAY_SECONDS = 60.0
"""After so many seconds it is said whatever the faults: perhaps nobody has tried it again."""

_NAMED = 8
_SHORT_SECONDS = 60.0
# Fewer may be a deployment that was called off.
_FEWEST_SHORT = 10


AWAY, WAY, SILENT, FULL, SHORT_LIVED = "away", "way", "silent", "full", "short_lived"
DENIED, FAILED, BEHIND, PAUSED = "denied", "failed", "behind", "paused"

STEPS = {
    AWAY: "start it, or mend the way to it; docs/runbook.md#workstealingunreached",
    WAY: "mend the way from there to it; docs/runbook.md#workstealingunreached",
    SILENT: "look at the processes and their logs; docs/runbook.md#workstealingfleetsilent",
    FULL: "raise its maxmemory, or free some; docs/runbook.md#workstealingnotreported",
    SHORT_LIVED: "their logs and their supervisor say why; docs/runbook.md#workstealingfleetsilent",
    DENIED: "`workstealing acl` prints the rights that its user needs",
    FAILED: "the log there says why; docs/runbook.md#workstealingmanyfailures",
    BEHIND: "see docs/runbook.md#workstealingcannotkeepup",
    PAUSED: "resume it on the dashboard, or by SharedSettings",
}
"""By kind of alarm: what a person does next."""

DENIALS = frozenset({"NoPermissionError", "AuthenticationError"})
"""The classes of errors by which a server refuses a user."""


def then(kind: str) -> str:
    """Return the end of an alarm's sentence: what to do next."""
    return f"; next: {STEPS[kind]}"


@dataclass(frozen=True, slots=True)
class StuckSlice:
    """A slice that does not end.

    Fields: job: its name; host and pid: of its process; since: its start, in seconds since the
    epoch; seconds: for how long it is known to have run; silent_seconds: for how long its process
    has not reported since, None: it goes on reporting.
    """

    job: str
    host: str
    pid: int
    since: float
    seconds: float
    silent_seconds: float | None

    def sentence(self) -> str:
        """Return a sentence for people: what, where, since when, what to do."""
        where = f"on {self.host}, process {self.pid}"
        if self.silent_seconds is not None:
            return (
                f"a slice had been running for {roughly(self.seconds)} {where} when that process"
                f" fell silent, {roughly(self.silent_seconds)} ago: it has ended or is held up"
            )
        return (
            f"a slice has been running for {roughly(self.seconds)} {where}, since"
            f" {time_of_day(self.since)}: nothing else runs there; py-spy dump --pid"
            f" {self.pid} shows where it hangs"
        )


@dataclass(frozen=True, slots=True)
class ServerAway:
    """A server that processes do not reach.

    Fields: server: its address; since: the oldest first fault, in seconds since the epoch; seconds
    since then; hosts: of the processes; processes: how many of them; jobs: that need it; faults:
    the most in a row that a process has had.
    """

    server: str
    since: float
    seconds: float
    hosts: list[str] = field(default_factory=list)
    processes: int = 0
    jobs: list[str] = field(default_factory=list)
    faults: int = 1

    def is_sure(self) -> bool:
        """Say whether it is no chance: one slow reply on a busy machine is a fault, too."""
        is_tried = self.seconds >= AWAY_SECONDS and self.faults >= AWAY_FAULTS
        return is_tried or self.seconds >= SURELY_AWAY_SECONDS

    def sentence(self) -> str:
        """Return a sentence for people: what, since when, where, and which jobs rest."""
        count = "1 process" if self.processes == 1 else f"{self.processes} processes"
        return (
            f"{self.server} has not been reached for {roughly(self.seconds)}, since"
            f" {time_of_day(self.since)}, by {count} on {few(self.hosts)}"
            f"{jobs_of(self.jobs)}"
        )


@dataclass(frozen=True, slots=True)
class FleetState:
    """The processes of a ledger at one moment.

    Fields: present: those whose reports come; silent: those whose report is overdue; reported: the
    time of the newest report, in seconds since the epoch, None: unknown; stuck; away; lost: a
    sentence about the fleet's settings if they have vanished; short_lived: a sentence about
    processes that are killed, or crash, soon after they start.
    """

    present: list[Process] = field(default_factory=list)
    silent: list[Process] = field(default_factory=list)
    reported: float | None = None
    stuck: list[StuckSlice] = field(default_factory=list)
    away: list[ServerAway] = field(default_factory=list)
    lost: str | None = None
    short_lived: str | None = None

    def tells_states(self) -> bool:
        """Say whether all present processes tell of stuck slices and servers out of reach."""
        return bool(self.present) and all(each.reported is not None for each in self.present)

    def silence(self) -> str | None:
        """Say which processes are silent while others report; None: none is, or an alarm says it.

        Some may have been killed on purpose, by a deployment for instance.
        """
        if not (self.silent and self.present) or self.short_lived is not None:
            return None
        count = len(self.silent)
        are = "1 process" if count == 1 else f"{count:,} processes"
        hosts = few(sorted({each.host for each in self.silent}))
        last = max(each.reported or 0.0 for each in self.silent)
        pids = few([str(each.pid) for each in self.silent])
        return (
            f"{are} on {hosts} {'is' if count == 1 else 'are'} silent, the last report came at"
            f" {time_of_day(last)}: {pids}"
        )

    def stuck_of(self, job: str) -> list[StuckSlice]:
        """Return the stuck slices of a job, the oldest first."""
        return [each for each in self.stuck if each.job == job]

    def away_of(self, job: str) -> dict[str, float]:
        """Return the servers out of reach that a job needs, and for how many seconds they are."""
        return {each.server: each.seconds for each in self.away if job in each.jobs}


def fleet_state(processes: Iterable[Process], now: float) -> FleetState:
    """Read the processes' reports.

    Arguments:
        processes: as of `ledger.processes`.
        now: by the clock of the ledger's server.
    """
    present: list[Process] = []
    silent: list[Process] = []
    for each in processes:
        (silent if each.is_silent(now) else present).append(each)
    reports = [each.reported for each in (*present, *silent) if each.reported is not None]
    return FleetState(
        present,
        silent,
        max(reports, default=None),
        sorted(_stuck((*present, *silent), now), key=lambda each: each.since),
        sorted(_away(present, now), key=lambda each: each.since),
        _lost(present),
        _short_lived(silent),
    )


def _short_lived(silent: Sequence[Process]) -> str | None:
    """Say that processes ended soon after they began, without taking leave; None: few have."""
    ended = [
        (each.reported, each.host)
        for each in silent
        if each.reported is not None and each.reported - each.started < _SHORT_SECONDS
    ]
    if len(ended) < _FEWEST_SHORT:
        return None
    last = max(at for at, _ in ended)
    return (
        f"{len(ended):,} processes on {few(sorted({host for _, host in ended}))} fell silent within"
        f" a minute of their start, the last one at {time_of_day(last)}: they are killed, or"
        f" crash{then(SHORT_LIVED)}"
    )


def _lost(processes: Sequence[Process]) -> str | None:
    told = [each.lost for each in processes if each.lost is not None]
    if not told:
        return None
    settings = {job: words for lost in told for job, words in lost.settings.items()}
    named = few([f"{job} {words}" for job, words in sorted(settings.items())])
    since = time_of_day(min(each.at for each in told))
    return (
        f"the fleet's settings were lost at {since}, and nobody removed them: was the server"
        f" emptied? {named}. Each process has gone back to its own: set them again, or clear a"
        " job's to confirm"
    )


def _stuck(processes: Sequence[Process], now: float) -> Iterable[StuckSlice]:
    for each in processes:
        running, reported = each.running, each.reported
        if running is None or reported is None:
            continue
        quiet = max(0.0, now - reported) if each.is_silent(now) else None
        # Nobody knows whether it ran on after the last report of a process that is silent now.
        seconds = max(0.0, (now if quiet is None else reported) - running.since)
        if quiet is None and not is_stuck(seconds, running.longest):
            continue
        yield StuckSlice(running.job, each.host, each.pid, running.since, seconds, quiet)


def _away(processes: Sequence[Process], now: float) -> Iterable[ServerAway]:
    found: dict[str, list[tuple[Process, Away]]] = {}
    for process in processes:
        for away in process.away:
            found.setdefault(away.server, []).append((process, away))
    for server, told_by in found.items():
        since = min(each.since for _, each in told_by)
        yield ServerAway(
            server,
            since,
            max(0.0, now - since),
            sorted({process.host for process, _ in told_by}),
            len(told_by),
            sorted({job for _, each in told_by for job in each.jobs}),
            max(each.faults for _, each in told_by),
        )


def time_of_day(epoch: float) -> str:
    """Return a time for people, in UTC."""
    try:
        return dt.datetime.fromtimestamp(epoch, dt.UTC).strftime("%H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def few(names: Sequence[str]) -> str:
    """Return a list for people: eight names at most, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def jobs_of(jobs: Sequence[str]) -> str:
    """Return the clause that names the jobs of a server out of reach."""
    if not jobs:
        return ""
    return f"; {'its job rests' if len(jobs) == 1 else 'its jobs rest'}: {few(jobs)}"


SILENCE = f"; they were killed, hang or have no way to the ledger{then(SILENT)}"
"""The end of a sentence about silent processes, where nobody knows why they are."""


def merged(
    away: Iterable[ServerAway],
    here: Mapping[str, tuple[str, Sequence[str]]],
    answering: Collection[str] = (),
) -> Iterable[str]:
    """Yield one sentence for each server that somebody does not reach.

    Arguments:
        away: as of `FleetState`.
        here: by the server's address, the error of asking it from this process, and the jobs or
            parts that need it.
        answering: the addresses of the servers that have just answered this process.
    """
    left = dict(here)
    for each in away:
        error, parts = left.pop(each.server, ("", ()))
        if each.is_sure() or error:
            asked, step = f"; asked from here: {error}" if error else "", AWAY
            if not error and each.server in answering:
                asked, step = "; it answers from here", WAY
            others = [part for part in parts if part not in each.jobs]
            more = f"; nothing is known of {few(others)}" if others else ""
            yield f"{each.sentence()}{more}{asked}{then(step)}"
    for server, (error, parts) in left.items():
        needs = f"; nothing is known of {few(parts)}" if parts else ""
        yield f"{server} does not answer ({error}){needs}{then(AWAY)}"
