"""A minute of the ledger: its figures, and the fields of its hash.

Each minute of the day has one hash, so there are 1,440 of them at most. The fields of the day
before have expired long since, and no reader sees an expired field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.recruiting.cache_figures import COUNTS
from workstealing.recruiting.slice import OUTCOMES
from workstealing.structures.access import EXPIRING, Access

MINUTE = 60
MINUTES_OF_A_DAY = 1440
DAY = 86_400
# No server's counter goes beyond this.
MOST = 2.0**63
LANES = 8
"""The number of fields for a gauge's highest value of a minute; each process writes one."""

_LATE_SECONDS = 15.0
_MOST_AWAY = 8
_MOST_JOBS_AWAY = 20

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")

LEDGER = Access(
    keys=(
        *("{workstealing:ledger:NAME}:*", "ws:ledger.NAME:layout", "ws:ledger.NAME:slots"),
        "{*}:ws:ledger.NAME:*",
    ),
    scripts=(
        *(f"volatile_hashes/{each}" for each in ("hincrby", "hsetex", "hexpire", "hgetall")),
        *("volatile_hashes/collect", "layout", "ledger"),
    ),
    # The settings are a plain hash.
    commands=EXPIRING | {"HMGET", "HGETALL", "HSET", "HDEL", "XREVRANGE", "EXPIRE"},
    native=frozenset({"HSETEX", "HEXPIRE"}),
)
"""The rights that a ledger needs on its server, with the fleet's settings beside it."""
DASHBOARD = LEDGER.plus(Access(keys=(), commands=frozenset({"SET", "INCR", "PTTL"})))
"""The rights that a dashboard needs besides those to the structures that it shows."""

ENLISTED = "enlisted"
PROCESSES = "processes"
COVERED = "covered"
OFFERED = "offered"
SPENT = "spent"
ITEMS = "items"
MICROSECONDS = "micros"
RATE = "rate"
OLDEST = "oldest"
BACKLOG = "backlog"
LAG = "lag"
RUNNING = "running"
UNREACHED = "unreached"
ERROR = "error"
FAULT = "fault"
REFUSED = "refused"
MEASURED = "measured"
DRY_RUN = "dry"
_CACHE = "cache."


@dataclass(slots=True)
class JobError:
    """One class of a job's errors.

    Fields: count; at: the time of the last one, in seconds since the epoch by the server's clock;
    host: of the last one; text: its message, if the ledger keeps texts. An unknown field is None.
    """

    count: int = 0
    at: float | None = None
    host: str | None = None
    text: str | None = None


@dataclass(slots=True)
class Running:
    """A slice that did not end soon, as its process told while it ran.

    Fields: job: its name; since: its start, in seconds since the epoch by the server's clock;
    longest: the seconds that its bounds allow it, None: unknown.
    """

    job: str
    since: float
    longest: float | None = None


@dataclass(slots=True)
class Away:
    """A server that a process has not reached at its last attempt.

    Fields: server: its address; since: the first fault, in seconds since the epoch by the clock of
    the ledger's server; jobs: the names of those that need it; faults: how many in a row.
    """

    server: str
    since: float
    jobs: list[str] = field(default_factory=list)
    faults: int = 1


@dataclass(slots=True)
class Lost:
    """The fleet's settings that a process has followed, and that have vanished.

    Fields: at: when it was seen, in seconds since the epoch by the server's clock; settings: by
    job, in words.
    """

    at: float
    settings: dict[str, str]


@dataclass(slots=True)
class Process:
    """A process that has reported to the ledger in the last three minutes.

    Fields: host; pid; version: of this package; started: the time of its first report, and
    reported: that of its last one, in seconds since the epoch by the server's clock; every: the
    seconds after which the next one is due at the latest; running: a slice that does not end; away:
    the servers that it does not reach; lost: settings of the fleet that have vanished. A process of
    an earlier release leaves reported and every unknown: None.
    """

    host: str
    pid: int
    version: str
    started: float
    reported: float | None = None
    every: float | None = None
    running: Running | None = None
    away: list[Away] = field(default_factory=list)
    lost: Lost | None = None

    def is_silent(self, now: float) -> bool:
        """Say whether its next report is overdue.

        Arguments:
            now: by the server's clock.
        """
        if self.reported is None or self.every is None:
            return False
        return now - self.reported > self.every + _LATE_SECONDS


@dataclass(slots=True)
class JobMinute:
    """One job's figures of one minute, of the whole fleet.

    Fields: recruited: the sum of the outcomes that follow; items handled; seconds of all slices;
    rate: the last one that a process has reported; oldest_seconds and backlog: about the highest
    that a slice has seen; lag: the lag target in seconds; running_seconds: about the longest time
    that a slice had been running, seen from outside; unreached_seconds: about the longest time
    in which a process has not reached the job's server; refused: a process's reason to refuse the
    fleet's rate; refused_rate: that rate. A field without a report is None. dry_run: whether a
    process had it installed as a dry run, whose items are only counted; offered: the callers who
    enlisted in processes that have it installed; errors: of slices, by class; measured: about the
    highest value that a slice has had of each figure of the job's own, by name.
    """

    recruited: int = 0
    worked: int = 0
    idle: int = 0
    aborted: int = 0
    failed: int = 0
    out_of_time: int = 0
    skipped: int = 0
    items: int = 0
    seconds: float = 0.0
    rate: float | None = None
    oldest_seconds: float | None = None
    backlog: int | None = None
    lag: float | None = None
    running_seconds: float | None = None
    unreached_seconds: float | None = None
    refused: str | None = None
    refused_rate: float | None = None
    dry_run: bool = False
    offered: int | None = None
    errors: dict[str, JobError] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class CacheMinute:
    """One cache's figures of one minute, of the whole fleet; see `CacheStats`.

    A process reports all figures of a cache that was called, so a zero was counted. In a minute
    without a report the cache is absent.
    """

    hits: int = 0
    stale: int = 0
    misses: int = 0
    waits: int = 0
    computations: int = 0
    failures: int = 0
    uncached: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Minute:
    """The fleet's figures of one minute.

    Fields: minute: its beginning, in seconds since the epoch by the server's clock; enlisted: the
    number of callers; processes: the number of reporting processes; jobs and caches: with a
    report, by name; covered: the seconds that its reports cover, all processes together; offered:
    the callers that `JobMinute.offered` counts for a job that every process has. Both are 0 if they
    are unknown, as from an earlier release.
    """

    minute: int
    enlisted: int = 0
    processes: int = 0
    jobs: dict[str, JobMinute] = field(default_factory=dict)
    caches: dict[str, CacheMinute] = field(default_factory=dict)
    covered: float = 0.0
    offered: int = 0


def checked_ledger_name(name: object) -> str:
    """Return a ledger's name.

    Raises: ConfigurationError unless it is 1 to 50 letters, digits, dots, dashes or underscores.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigurationError(
        f"a ledger's name is {name!r}; expected 1 to 50 letters, digits, dots, dashes or"
        " underscores"
    )


def namespace_of(name: str) -> str:
    """Return the namespace of volatile hashes that a ledger lives in."""
    return f"ledger.{name}"


# All keys of a ledger share a hash slot, so that a process writes to one node, in one round trip.


def minute_key(name: str, minute: int) -> bytes:
    """Return the key of a minute's hash.

    Arguments:
        minute: in seconds since the epoch.
    """
    return f"{{workstealing:ledger:{name}}}:{minute // MINUTE % MINUTES_OF_A_DAY}".encode()


def day_key(name: str, day: int) -> bytes:
    """Return the key of a day's hash of spent operations.

    Arguments:
        day: since the epoch.
    """
    return f"{{workstealing:ledger:{name}}}:day:{day % 7}".encode()


def processes_key(name: str) -> bytes:
    """Return the key of the hash of processes, whose fields expire after three minutes."""
    return f"{{workstealing:ledger:{name}}}:processes".encode()


def settings_key(name: str) -> bytes:
    """Return the key of the fleet's settings: a hash without expiry, which people write."""
    return f"{{workstealing:ledger:{name}}}:fleet".encode()


def events_key(name: str) -> bytes:
    """Return the key of the fleet's events: a stream, which ends by itself."""
    return f"{{workstealing:ledger:{name}}}:events".encode()


def logins_key(name: str) -> bytes:
    """Return the key of the count of wrong tokens at dashboards in the running minute."""
    return f"{{workstealing:ledger:{name}}}:logins".encode()


def ledger_names(name: str) -> tuple[str, str]:
    """Return texts of which each of a ledger's keys holds one, and no other ledger's key does."""
    return f"{{workstealing:ledger:{name}}}:", f"ws:{namespace_of(name)}:"


def field_of(figure: str, job: str) -> str:
    """Return the field of one figure of a job."""
    return f"{figure}:{job}"


def cache_field(figure: str, cache: str) -> str:
    """Return the field of one figure of a cache.

    The field has no colon: a reader of an earlier release would take one with a colon for a job's.
    """
    return f"{_CACHE}{figure}/{cache.replace(':', '.')}"


def lane_of(figure: str, lane: int) -> str:
    """Return the name of a gauge's figure in one lane."""
    return f"{figure}.{lane}"


def text(value: Any) -> str:
    """Return a reply as text, also if a stranger has written other bytes there."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def texts(reply: Mapping[Any, Any]) -> dict[str, str]:
    """Return a HGETALL reply of redis-py's as text."""
    return {text(name): text(value) for name, value in reply.items()}


def parsed(minute: int, fields: Mapping[str, str]) -> Minute:
    """Read a minute's hash, without a stranger's fields."""
    result = Minute(minute)
    for name, written in fields.items():
        figure, has_job, job = name.partition(":")
        if has_job and figure.partition(".")[0] in _TEXTS:
            _add_text(result.jobs.setdefault(job, JobMinute()), figure, written)
            continue
        try:
            value = float(written)
        except ValueError:
            continue
        # NaN is not below any number either.
        if not abs(value) < MOST:
            continue
        kind, is_cache, cache = name.partition("/")
        if is_cache and kind.startswith(_CACHE):
            figure = kind.removeprefix(_CACHE)
            _add_cache(result.caches.setdefault(cache, CacheMinute()), figure, value)
        elif has_job:
            _add(result.jobs.setdefault(job, JobMinute()), figure, value)
        elif figure == ENLISTED:
            result.enlisted = int(value)
        elif figure == PROCESSES:
            result.processes = int(value)
        elif figure == COVERED:
            result.covered = value / 1e3
        elif figure == OFFERED:
            result.offered = int(value)
    return result


def _add(job: JobMinute, figure: str, value: float) -> None:
    figure, _, kind = figure.partition(".")
    if figure in OUTCOMES:
        setattr(job, figure, int(value))
        job.recruited += int(value)
    elif figure == ITEMS:
        job.items = int(value)
    elif figure == MICROSECONDS:
        job.seconds = value / 1e6
    elif figure == RATE:
        job.rate = value
    elif figure == OLDEST:
        job.oldest_seconds = max(value, job.oldest_seconds or 0.0)
    elif figure == BACKLOG:
        job.backlog = max(int(value), job.backlog or 0)
    elif figure == LAG:
        job.lag = value
    elif figure == RUNNING:
        job.running_seconds = max(value, job.running_seconds or 0.0)
    elif figure == UNREACHED:
        job.unreached_seconds = max(value, job.unreached_seconds or 0.0)
    elif figure == DRY_RUN:
        job.dry_run = True
    elif figure == OFFERED:
        job.offered = int(value)
    elif figure == ERROR:
        job.errors.setdefault(kind, JobError()).count = int(value)
    elif figure == MEASURED:
        what, _, _ = kind.rpartition(".")
        job.measured[what] = max(value, job.measured.get(what, value))


def _add_cache(cache: CacheMinute, figure: str, value: float) -> None:
    if figure in COUNTS:
        setattr(cache, figure, int(value))
    elif figure == MICROSECONDS:
        cache.seconds = value / 1e6


_TEXTS = frozenset({FAULT, REFUSED})


def _add_text(job: JobMinute, figure: str, written: str) -> None:
    figure, _, kind = figure.partition(".")
    if figure == REFUSED:
        rate, _, why = written.partition(" ")
        try:
            job.refused_rate, job.refused = float(rate), why
        except ValueError:
            return
        return
    error = job.errors.setdefault(kind, JobError())
    try:
        said = json.loads(written)
        error.at, error.host, error.text = float(said["at"]), str(said["host"]), said.get("text")
    except (ValueError, TypeError, KeyError, AttributeError):
        # The text is a stranger's; the count stands.
        return


def process_text(process: Process) -> str:
    """Return the text of a process for the ledger's field: a few lists of it, bounded."""
    away = [replace(each, jobs=each.jobs[:_MOST_JOBS_AWAY]) for each in process.away[:_MOST_AWAY]]
    said = asdict(replace(process, away=away))
    # A field that says nothing is left out, as an earlier release would.
    return json.dumps({name: value for name, value in said.items() if value not in (None, [])})


def parsed_processes(fields: Iterable[str]) -> list[Process]:
    """Read the hash of processes, by host and pid, without a stranger's fields."""
    found = []
    for written in fields:
        try:
            said = json.loads(written)
            process = Process(
                str(said["host"]), int(said["pid"]), str(said["version"]), float(said["started"])
            )
            _add_state(process, said)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        found.append(process)
    return sorted(found, key=lambda each: (each.host, each.pid, each.started))


def _add_state(process: Process, said: Mapping[str, Any]) -> None:
    if "reported" in said:
        process.reported, process.every = float(said["reported"]), float(said["every"])
    if (running := said.get("running")) is not None:
        longest = running.get("longest")
        process.running = Running(
            str(running["job"]),
            float(running["since"]),
            None if longest is None else float(longest),
        )
    if (lost := said.get("lost")) is not None:
        settings = {str(job): str(words) for job, words in lost["settings"].items()}
        process.lost = Lost(float(lost["at"]), settings)
    process.away = [
        Away(
            str(each["server"]),
            float(each["since"]),
            [str(job) for job in each["jobs"]],
            int(each.get("faults", 1)),
        )
        for each in said.get("away", ())[:_MOST_AWAY]
    ]


def total(minutes: Iterable[Minute]) -> dict[str, JobMinute]:
    """Add minutes up: by job, the sums of its counts, its last rate, the highest of its gauges.

    Arguments:
        minutes: the oldest first, as of `read`.

    No round trip.
    """
    sums: dict[str, JobMinute] = {}
    for minute in minutes:
        for name, job in minute.jobs.items():
            into = sums.setdefault(name, JobMinute())
            for figure in ("recruited", *OUTCOMES, "items", "seconds"):
                setattr(into, figure, getattr(into, figure) + getattr(job, figure))
            into.rate = into.rate if job.rate is None else job.rate
            into.oldest_seconds = _higher(into.oldest_seconds, job.oldest_seconds)
            backlog = _higher(into.backlog, job.backlog)
            into.backlog = None if backlog is None else int(backlog)
            into.lag = into.lag if job.lag is None else job.lag
            into.running_seconds = _higher(into.running_seconds, job.running_seconds)
            into.unreached_seconds = _higher(into.unreached_seconds, job.unreached_seconds)
            if job.offered is not None:
                into.offered = job.offered + (into.offered or 0)
            if job.refused is not None:
                into.refused, into.refused_rate = job.refused, job.refused_rate
            add_errors(into.errors, job.errors)
            for what, value in job.measured.items():
                into.measured[what] = max(value, into.measured.get(what, value))
    return sums


def total_of_caches(minutes: Iterable[Minute]) -> dict[str, CacheMinute]:
    """Add the caches' figures up, by cache.

    Arguments:
        minutes: as of `read`.

    No round trip.
    """
    sums: dict[str, CacheMinute] = {}
    for minute in minutes:
        add_caches(sums, minute.caches)
    return sums


def add_caches(into: dict[str, CacheMinute], caches: Mapping[str, CacheMinute]) -> None:
    """Add a minute's figures of caches to those of others."""
    for name, cache in caches.items():
        known = into.setdefault(name, CacheMinute())
        for figure in (*COUNTS, "seconds"):
            setattr(known, figure, getattr(known, figure) + getattr(cache, figure))


def add_errors(into: dict[str, JobError], errors: Mapping[str, JobError]) -> None:
    """Add a later minute's errors of a job to those of earlier ones."""
    for name, error in errors.items():
        known = into.setdefault(name, JobError())
        known.count += error.count
        if error.at is not None:
            known.at, known.host, known.text = error.at, error.host, error.text


def _higher(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
