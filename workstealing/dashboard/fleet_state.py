"""The state of a fleet, its last events, what to do next, and why a ledger has no new figures.

The state comes from the processes' own reports, without a command. The steps are one table for
`status`, `explain` and the page; each is one clause, and names the section of docs/runbook.md where
there is one. Events are rows of a table, and marks on the charts. `Refusals` asks a server whether
it is full, or refuses the reports of a user.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError

from workstealing.clock import roughly
from workstealing.dashboard.watched import short_id
from workstealing.metrics.events import EMPTIED, FAULTS, FleetEvent
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.minutes import Away, Process, ledger_names, text
from workstealing.metrics.watching import is_stuck
from workstealing.recruiting import Recruiter
from workstealing.recruiting.breakers import server_name
from workstealing.safe_text import visible
from workstealing.store.fleet import one_server
from workstealing.store.job_client import job_client_of

AWAY_SECONDS = 10.0
AWAY_FAULTS = 3
"""After so many seconds and faults in a row a server is said to be away: fewer may be chance."""

SURELY_AWAY_SECONDS = 60.0
"""After so many seconds it is said whatever the faults: perhaps nobody has tried it again."""

_NAMED = 8
_SHORT_SECONDS = 60.0
# Fewer may be a deployment that was called off.
_FEWEST_SHORT = 10


AWAY, WAY, LOGIN, SILENT, FULL = "away", "way", "login", "silent", "full"
SHORT_LIVED = "short_lived"
DENIED, FAILED, BEHIND, PAUSED = "denied", "failed", "behind", "paused"

STEPS = {
    AWAY: "start it, or mend the way to it; docs/runbook.md#workstealingunreached",
    WAY: "mend the way from there to it; docs/runbook.md#workstealingunreached",
    LOGIN: "give its client's URL the right name and password",
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
class Why:
    """Why a ledger's server takes no reports, as far as it says.

    Fields: known: a sentence, None: it gives no reason; unasked: the questions that it did not
    answer, each with its error, or "".
    """

    known: str | None = None
    unasked: str = ""

    @property
    def unknown(self) -> str:
        """Say that the server could not be asked, and why; "" if it has answered."""
        if not self.unasked:
            return ""
        return f"whether the ledger's server refuses reports is not known: {self.unasked}"


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


_HOUR = 3600.0


def emptied(events: Iterable[FleetEvent], began: float | None, now: float) -> str | None:
    """Say that the ledger was emptied in the last hour, and since when it has figures.

    Arguments:
        events: the newest first.
        began: the oldest minute that has figures, None: none has.
        now: both in seconds since the epoch.

    Returns: None if it was not emptied, or has no figures.
    """
    at = next((each.at for each in events if each.kind == EMPTIED), None)
    if at is None or began is None or now - at > _HOUR:
        return None
    # The event is told by the report that brings the first figures, within its minute.
    since = "then" if began <= at + 60.0 else time_of_day(began)
    return f"the ledger was emptied at {time_of_day(at)}, and has figures since {since}"


def few(names: Sequence[str]) -> str:
    """Return a list for people: eight names at most, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def jobs_of(jobs: Sequence[str]) -> str:
    """Return the clause that names the jobs of a server out of reach."""
    if not jobs:
        return ""
    return f"; {'its job rests' if len(jobs) == 1 else 'its jobs rest'}: {few(jobs)}"


def unexplained(why: Why) -> str:
    """Return the end of a sentence about silent processes, where nobody knows why they are."""
    unknown = f"; {why.unknown}" if why.unknown else ""
    return f"; they were killed, hang or have no way to the ledger{unknown}{then(SILENT)}"


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
        fault, step = "does not answer", AWAY
        if error.partition(":")[0] == "AuthenticationError":
            fault, step = "refuses the name or the password", LOGIN
        yield f"{server} {fault} ({error}){needs}{then(step)}"


def server_of_client(client: Any) -> str | None:
    """Return the address of a client's server, as breakers name it; None: it cannot be told."""
    with contextlib.suppress(Exception):
        return server_name(job_client_of(one_server(client, "a ledger")).identity)
    return None


class Refusals:
    """Says why a server refuses a ledger's reports, as often as it is asked.

    Arguments:
        client: of the ledger's server.
        name: of the ledger.
    """

    def __init__(self, client: Any, name: str = "default") -> None:
        self._client, self._name = client, name
        # The errors of questions that the user may not ask: a refused one stands in the server's
        # log of refusals, so it is asked once.
        self._denied: dict[str, str] = {}

    def __call__(self) -> Why:
        """Return the reason, and the questions without an answer. Two round trips, no write.

        A server that is full answers reads as before, and so does one that refuses the reports of
        another user.
        """
        unasked: dict[str, str] = {}
        questions = {"INFO": self._fullness, "ACL LOG": self._denial}
        for question, ask in questions.items():
            try:
                known = None if question in self._denied else ask()
            except NoPermissionError as error:
                self._denied[question] = type(error).__name__
            except Exception as error:  # noqa: BLE001 - whatever a server says; it is told
                unasked[question] = type(error).__name__
            else:
                if known is not None:
                    return Why(known)
        unasked |= self._denied
        return Why(
            None, ", ".join(f"{each}: {unasked[each]}" for each in questions if each in unasked)
        )

    def _fullness(self) -> str | None:
        memory = self._client.info("memory")
        used, most = int(memory["used_memory"]), int(memory["maxmemory"])
        policy = text(memory["maxmemory_policy"])
        if most and used >= most and policy == "noeviction":
            return (
                f"the server{self._at()} is full ({used:,} of {most:,} bytes, {policy}) and refuses"
                f" reports: OutOfMemory{then(FULL)}"
            )
        return None

    def _denial(self) -> str | None:
        entries = map(_plain, self._client.acl_log())
        mine = [each for each in entries if _is_of(each, self._name)]
        if not mine:
            return None
        newest = min(mine, key=lambda each: float(each["age-seconds"]))
        host = newest["client-info"].get("addr", "").rpartition(":")[0]
        to = f", to {host}" if host else ""
        return (
            f"the server{self._at()} refuses keys of this ledger to the user {newest['username']},"
            f" last {roughly(float(newest['age-seconds']))} ago{to}{then(DENIED)}"
        )

    def _at(self) -> str:
        address = server_of_client(self._client)
        return "" if address is None else f" {address}"


_LATELY_SECONDS = 60.0


def _plain(entry: Mapping[Any, Any]) -> dict[str, Any]:
    """Return an entry of the log of refusals as text, and its client's facts by name."""
    said: dict[str, Any] = {}
    for name, value in entry.items():
        said[text(name)] = (
            {text(each): text(fact) for each, fact in value.items()}
            if isinstance(value, Mapping)
            else text(value)
        )
    return said


def _is_of(entry: Mapping[str, Any], name: str) -> bool:
    is_late = float(entry["age-seconds"]) > _LATELY_SECONDS
    return (
        not is_late
        and entry["reason"] == "key"
        and any(each in entry["object"] for each in ledger_names(name))
    )


def own_refusals(recruiter: Recruiter) -> list[str]:
    """Return a sentence for each ledger to which this process's own reports do not get through."""
    said = []
    for hook in recruiter.hooks():
        if isinstance(hook, Ledger) and (failing := hook.failing()) is not None:
            error, seconds = failing
            said.append(
                f"this process's reports to the ledger {hook.name!r} are refused: {error}, for"
                f" {roughly(seconds)}"
            )
    return said


SHOWN_SECONDS = 86_400.0
"""Older events are left to `workstealing events`."""
MOST_SHOWN = 50
_MOST_MARKS = 30
_LONGEST = 300


def event_rows(events: Sequence[FleetEvent], now: float) -> dict[str, Any]:
    """Return the table of the last day's events, the newest first.

    Arguments:
        events: the newest first.
        now: in seconds since the epoch, by the server's clock.
    """
    recent = [each for each in events if now - each.at <= SHOWN_SECONDS]
    more = f"; the newest {MOST_SHOWN} shown" if len(recent) > MOST_SHOWN else ""
    return {
        "text": f"{len(recent):,} in the last day{more}",
        "rows": [
            {
                "id": short_id(f"{each.kind} {each.subject} {each.first}"),
                "ago": f"{roughly(max(0.0, now - each.at))} ago",
                "said": visible(each.sentence, _LONGEST),
                "where": visible(where(each), _LONGEST),
                "bad": each.kind in FAULTS,
            }
            for each in recent[:MOST_SHOWN]
        ],
    }


def where(event: FleetEvent) -> str:
    """Return who did it, if somebody did, and on which hosts it was told."""
    hosts = ", ".join(event.hosts) or "an unknown host"
    return f"{event.user} on {hosts}" if event.user else hosts


def event_marks(events: Sequence[FleetEvent], times: Sequence[int]) -> list[dict[str, Any]]:
    """Return the events in the time of the charts, the newest ones, as marks on them.

    Arguments:
        events: the newest first.
        times: the beginnings of the charts' minutes, ascending.
    """
    first = times[0] if times else 0
    return [
        {"at": each.at, "said": visible(each.sentence, 120), "bad": each.kind in FAULTS}
        for each in events
        if each.at >= first
    ][:_MOST_MARKS]


def newest_of(job: str, events: Sequence[FleetEvent], now: float) -> str:
    """Return the newest event of a job within the last day in a few words; "": there is none."""
    for each in events:
        if each.subject == job and now - each.at <= SHOWN_SECONDS:
            ago = roughly(max(0.0, now - each.at))
            return f"{ago} ago: {each.sentence}, told by {where(each)}"
    return ""
