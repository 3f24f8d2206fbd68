"""What the ledger knows of a minute: its figures, and the fields of the hash that holds them.

One hash a minute of the day, so that there are never more than 1,440 of them; the same minute of
the day before has expired field by field long since, and expired means gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.recruiting.outcome import OUTCOMES

MINUTE = 60
MINUTES_OF_A_DAY = 1440
DAY = 86_400
# Beyond this no server's counter counts.
MOST = 2.0**63
LANES = 8
"""Over how many fields a gauge's highest value of a minute is spread; each process writes one."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")

ENLISTED = "enlisted"
PROCESSES = "processes"
SPENT = "spent"
ITEMS = "items"
MICROSECONDS = "micros"
RATE = "rate"
OLDEST = "oldest"
BACKLOG = "backlog"


@dataclass(slots=True)
class JobMinute:
    """One job's figures of one minute, of the whole fleet.

    Fields: recruited: the sum of the outcomes that follow; items handled; seconds that all
    slices took; rate: the one that a process reported last; oldest_seconds and backlog: about the
    highest that a slice has seen. The last three are None where nobody has reported any.
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


@dataclass(slots=True)
class Minute:
    """The fleet's figures of one minute.

    Fields: minute: its beginning, in seconds since the epoch by the server's clock; enlisted: how
    many callers; processes: how many have reported; jobs: by name, those that were reported.
    """

    minute: int
    enlisted: int = 0
    processes: int = 0
    jobs: dict[str, JobMinute] = field(default_factory=dict)


def checked_ledger_name(name: object) -> str:
    """Return a ledger's name.

    Errors: ConfigurationError unless it is 1 to 50 letters, digits, dots, dashes or underscores.
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
    """Return the key of a minute's hash. Arguments: minute, in seconds since the epoch."""
    return f"{{workstealing:ledger:{name}}}:{minute // MINUTE % MINUTES_OF_A_DAY}".encode()


def day_key(name: str, day: int) -> bytes:
    """Return the key of a day's hash of what was spent. Arguments: day since the epoch."""
    return f"{{workstealing:ledger:{name}}}:day:{day % 7}".encode()


def settings_key(name: str) -> bytes:
    """Return the key of the fleet's settings: a hash without expiry, written by people."""
    return f"{{workstealing:ledger:{name}}}:fleet".encode()


def logins_key(name: str) -> bytes:
    """Return the key of the wrong tokens that dashboards were given in the running minute."""
    return f"{{workstealing:ledger:{name}}}:logins".encode()


def field_of(figure: str, job: str) -> str:
    """Return the field of one figure of a job."""
    return f"{figure}:{job}"


def lane_of(figure: str, lane: int) -> str:
    """Return the name of a gauge's figure as one process writes it."""
    return f"{figure}.{lane}"


def text(value: Any) -> str:
    """Return a reply as text, whatever somebody has written there."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def texts(reply: Mapping[Any, Any]) -> dict[str, str]:
    """Return a HGETALL reply of redis-py's as text."""
    return {text(name): text(value) for name, value in reply.items()}


def parsed(minute: int, fields: Mapping[str, str]) -> Minute:
    """Read a minute's hash; what is no figure of ours is passed over."""
    result = Minute(minute)
    for name, written in fields.items():
        figure, has_job, job = name.partition(":")
        try:
            value = float(written)
        except ValueError:
            continue
        # NaN is not below anything either.
        if not abs(value) < MOST:
            continue
        if has_job:
            _add(result.jobs.setdefault(job, JobMinute()), figure, value)
        elif figure == ENLISTED:
            result.enlisted = int(value)
        elif figure == PROCESSES:
            result.processes = int(value)
    return result


def _add(job: JobMinute, figure: str, value: float) -> None:
    figure = figure.partition(".")[0]
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


def total(minutes: Iterable[Minute]) -> dict[str, JobMinute]:
    """Add minutes up: by job, the sums of its counts, its last rate, the highest of its gauges.

    Arguments: minutes, the oldest first, as of `read`. No round trip.
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
    return sums


def _higher(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known) if known else None
