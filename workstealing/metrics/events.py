"""The events of a fleet: who changed its settings, what came and went, and since when.

The events lie beside the ledger's minutes, in one stream, bounded in number and time. Processes
that say the same within a minute share one event, which counts them and names some of their hosts.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import math
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError

from workstealing import __version__
from workstealing.clock import Clock, Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.metrics.minutes import (
    Process,
    checked_ledger_name,
    events_key,
    parsed_processes,
    processes_key,
    texts,
)
from workstealing.metrics.watching import is_stuck
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.hooks import ANNOUNCEMENTS, Announcement
from workstealing.store.connection import Command
from workstealing.store.fleet import one_server
from workstealing.store.job_client import is_async
from workstealing.store.operations import Operation
from workstealing.store.scripts import load
from workstealing.structures.stored import holding_ours

logger = logging.getLogger("workstealing")

MOST_EVENTS = 500
"""How many events a ledger keeps, the newest ones."""
KEEP_SECONDS = 8 * 86_400
"""For how long it keeps them after the last one."""

PAUSED, RESUMED, RATE_SET, CLEARED = "paused", "resumed", "rate", "cleared"
CAME, WENT, FELL_SILENT = "came", "went", "fell_silent"
UNREACHED, REACHED = "unreached", "reached"
HELD_BACK, GOES_ON = "held_back", "goes_on"
STUCK, ENDED = "stuck", "ended"
REFUSED, EMPTIED, SETTINGS_LOST = "refused", "emptied", "settings_lost"
LAYOUT, SERVER_FAULT = "layout", "server_fault"
BRAKED, UNBRAKED = "braked", "unbraked"

_SENTENCES = {
    PAUSED: "{subject} was paused in the whole fleet",
    RESUMED: "{subject} was resumed in the whole fleet",
    RATE_SET: "the fleet's rate of {subject} was changed: {text}",
    CLEARED: "the fleet's settings of {subject} were removed: {text}",
    CAME: "{count} of release {subject} came",
    WENT: "{count} of release {subject} went",
    FELL_SILENT: "{subject} fell silent, killed or held up, without taking leave: {text}",
    UNREACHED: "{subject} did not answer {count}",
    REACHED: "{subject} answers {count} again",
    HELD_BACK: "{subject} was held back after faults in {count}",
    GOES_ON: "{subject} goes on in {count}",
    STUCK: "a slice of {subject} does not end in {count}",
    ENDED: "the slice of {subject} ended in {count}",
    REFUSED: "the ledger took no reports of {count} for {text}: {subject}",
    EMPTIED: "the ledger was emptied: its earlier figures, events and settings are gone",
    SETTINGS_LOST: "the fleet's settings of {subject} are gone, and nobody removed them: it {text}",
    LAYOUT: "{subject}: {text}",
    BRAKED: "{subject} braked: {text}",
    UNBRAKED: "{subject} goes on after its brake",
    SERVER_FAULT: "a fault of its server applies to {subject}: {text}",
}
KINDS = frozenset(_SENTENCES)
"""The kinds of events."""
FAULTS = frozenset(
    {
        FELL_SILENT,
        UNREACHED,
        HELD_BACK,
        STUCK,
        REFUSED,
        EMPTIED,
        SETTINGS_LOST,
        SERVER_FAULT,
        BRAKED,
    }
)
"""The kinds that are faults."""
# A change by a person is never counted together with another one.
_BY_PEOPLE = frozenset({PAUSED, RESUMED, RATE_SET, CLEARED})
_LONGEST, _LONGEST_HOST, _PENDING, _AT_ONCE = 300, 100, 50, 10
_MOST_READ = 10_000


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """One event, or the same one in several processes within a minute.

    Fields: kind, one of `KINDS`; subject: a job, a server, a release or a structure; text: more
    about it; at: when the last one happened, and first, in seconds since the epoch by the server's
    clock; hosts: of the processes that told it, up to five, and "..." for more; user: who did it,
    an empty text where nobody did; count: how many processes told it.
    """

    kind: str
    subject: str
    text: str
    at: float
    first: float
    hosts: tuple[str, ...]
    user: str
    count: int

    @property
    def sentence(self) -> str:
        """Say in one sentence what happened."""
        number = "1 process" if self.count == 1 else f"{self.count:,} processes"
        return _SENTENCES[self.kind].format(subject=self.subject, text=self.text, count=number)


def read_events(
    client: Any, name: str = "default", since: Duration | None = None, most: int = MOST_EVENTS
) -> list[FleetEvent]:
    """Return the events of a fleet, the newest first.

    Arguments:
        client: a blocking client of redis-py.
        name: of the ledger.
        since: only those of so long ago at most, a number of seconds or a timedelta.
        most: their number.

    Raises: ConfigurationError; LayoutError if the key holds something else; errors of redis-py. One
    round trip of one or two commands.
    """
    key = events_key(checked_ledger_name(name))
    client = one_server(client, "a ledger")
    if is_async(client):
        raise ConfigurationError("events are read with a blocking client, not with an asyncio one")
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MOST_READ:
        raise ConfigurationError(
            f"most is {most!r}; expected a whole number from 1 to {_MOST_READ}"
        )
    least = "-"
    if since is not None:
        # The stream's ids are of the server's clock.
        seconds = seconds_of(since, "since")
        now = client.time()
        least = str(max(0, round(1000 * (now[0] + now[1] / 1e6 - seconds))))
    with holding_ours(key):
        found = client.xrevrange(key, "+", least, count=most)
    return sorted(parsed_events(found), key=lambda event: -event.at)


def parsed_events(entries: Iterable[Any]) -> Iterator[FleetEvent]:
    """Yield the events of a stream's entries, without a stranger's."""
    for _, fields in entries:
        said = texts(fields)
        kind = said.get("kind", "")
        try:
            at, first, count = (int(said[each]) for each in ("at", "first", "count"))
        except (KeyError, ValueError):
            continue
        if kind not in KINDS or count < 1 or not 0 <= first <= at < 2**53:
            continue
        hosts = tuple(each for each in said.get("hosts", "").split(",") if each)
        subject, text = said.get("subject", ""), said.get("text", "")
        user = said.get("user", "")
        yield FleetEvent(kind, subject, text, at / 1000, first / 1000, hosts, user, count)


def noting(name: str, noticed: Announcement, ago: float) -> Operation:
    """Return the operation that adds an event.

    Arguments:
        ago: seconds since it happened.
    """
    args = (
        noticed.kind,
        sent(noticed.subject),
        sent(noticed.text),
        this_host(),
        "",
        max(0, round(1000 * ago)),
        1,
        int(noticed.kind not in _BY_PEOPLE),
        MOST_EVENTS,
        KEEP_SECONDS,
    )
    return Operation(load("ledger/note"), (events_key(name),), args)


def sent(text: str) -> str:
    """Return a text as it is sent: bounded, and valid UTF-8."""
    return text[:_LONGEST].encode(errors="backslashreplace").decode()


def this_host() -> str:
    """Return this machine's name, as events and processes have it."""
    # Commas stand between two hosts of an event.
    return sent(socket.gethostname()[:_LONGEST_HOST].replace(",", "_"))


def this_user() -> str:
    """Return the name of the user who runs this process; its number where it has no name."""
    try:
        return sent(getpass.getuser())
    except (OSError, KeyError, ImportError):
        return "unknown"


class EventTeller:
    """Tells of one process and its servers, as a companion of its ledger's reports.

    Each report carries the events since the last one, with their ages. An event that was not told
    is told again, up to 50 of them; a process that could not hear whether it was told may count
    twice. The ledger's thread alone uses it, but for `note`.

    Arguments:
        name: the ledger's.
        clock: the ledger's.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._faults = FaultLog(clock)
        self.begin()

    def begin(self) -> None:
        """Begin as a new process, also as a forked child."""
        self._faults.after_fork()
        # By kind and subject: since when, by the monotonic clock.
        self._lasting: dict[tuple[str, str], float] = {}
        self._pending: deque[Announcement] = deque(maxlen=_PENDING)
        self._asked: list[Announcement] = []
        # An announcement before this process, or before this ledger, is no news.
        self._announced, _ = ANNOUNCEMENTS.since(0)
        self._has_told = self._came = self._went = False

    def note(self, kind: str, subject: str, text: str = "", at: float | None = None) -> None:
        """Tell of an event with the next report.

        Arguments:
            at: when, monotonic; None: now.
        """
        moment = self._clock.monotonic() if at is None else at
        self._pending.append(Announcement(kind, subject, text, moment))

    def look(
        self,
        jobs: Iterable[tuple[str, Mapping[str, Any]]],
        unreached: Mapping[str, float],
        failing: tuple[str, float] | None,
        longest: Callable[[str], float | None],
        *,
        leaves: bool,
    ) -> None:
        """Note what has begun or ended since the last look.

        Arguments:
            jobs: by name, their figures as of `Recruiter.stats()`.
            unreached: by server, for how many seconds.
            failing: the ledger's error and for how many seconds it has taken no report until this
                one, None: it has taken the last one.
            longest: returns the seconds that a job's bounds allow its slices.
            leaves: whether the process ends.
        """
        now = self._clock.monotonic()
        if not self._came:
            self._came = True
            self.note(CAME, __version__)
        present = {(UNREACHED, server): now - seconds for server, seconds in unreached.items()}
        for job, figures in jobs:
            running, held = figures.get("running_seconds"), figures.get("breaker_seconds")
            if running is not None and is_stuck(running, longest(job)):
                present[STUCK, job] = now - running
            if held is not None and not unreached:
                # Otherwise its server says it.
                present[HELD_BACK, job] = now - held
        for each, since in present.items():
            if each not in self._lasting:
                self.note(*each, at=since)
        for kind, subject in self._lasting.keys() - present.keys():
            self.note(_ENDS[kind], subject)
        self._lasting = {each: self._lasting.get(each, since) for each, since in present.items()}
        self._announced, announced = ANNOUNCEMENTS.since(self._announced)
        for said in announced:
            self.note(said.kind, said.subject, said.text, said.at)
        if failing is not None:
            # It is told if this report arrives, and is noted anew if it does not.
            self._pending = deque(
                [each for each in self._pending if each.kind != REFUSED], maxlen=_PENDING
            )
            self.note(REFUSED, failing[0], f"{failing[1]:.0f} s")
        if leaves and not self._went:
            self._went = True
            self.note(WENT, __version__)

    def ask(self) -> list[Command]:
        """Return the commands that tell the oldest of what is to be told."""
        now = self._clock.monotonic()
        self._asked = list(self._pending)[:_AT_ONCE]
        key = events_key(self._name)
        # The server ends the key with its time, and a reply of 0 says that it is gone.
        commands: list[Command] = [("EXPIRE", key, KEEP_SECONDS)]
        known = False
        for each in self._asked:
            operation = noting(self._name, each, now - each.at)
            commands.append(operation.by_digest() if known else operation.by_text())
            known = True
        return commands

    def hear(self, replies: Sequence[Any]) -> None:
        """Take the replies to the commands of `ask`.

        Raises: the first error among them, but for a full server's, which the reports tell of.
        """
        there, *told = replies
        known = any(each.kind == EMPTIED for each in self._pending)
        if self._has_told and there == 0 and not known:
            logger.warning(
                "the ledger %r was emptied: its earlier figures, events and settings are gone",
                self._name,
            )
            self.note(EMPTIED, "")
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        for each, reply in zip(self._asked, told, strict=True):
            if not isinstance(reply, Exception):
                self._has_told = True
                with contextlib.suppress(ValueError):
                    self._pending.remove(each)
        if errors and not isinstance(errors[0], OutOfMemoryError):
            raise errors[0]


_ENDS = {UNREACHED: REACHED, HELD_BACK: GOES_ON, STUCK: ENDED}


_SILENT_SECONDS = 45.0
_LOOK_SECONDS = 50.0
# In a fleet of more processes than this each one looks less often.
_LOOKERS = 10
_TOLD_SECONDS = 600
_TOLD_AT_ONCE = 20
_NAMED = 5
_Found = list[tuple[str, Process]]


class SilenceTeller:
    """Tells of other processes that fell silent, because a killed one cannot: each once.

    Every process looks at the list of all once a minute or so, in large fleets less often. A
    process on that list is told by the first one that marks it there, for ten minutes.

    Arguments:
        name: the ledger's.
        note: takes an event's kind, subject, text and monotonic time.
    """

    def __init__(self, name: str, note: Callable[[str, str, str, float], None]) -> None:
        self._key = processes_key(name)
        self._note = note
        self._found: _Found = []
        self._next_look = -math.inf

    def ask(self, now: float) -> list[Command]:
        """Return the hash commands of the next report.

        Arguments:
            now: by the server's clock.
        """
        if self._found:
            options = ("FNX", "EX", _TOLD_SECONDS, "FIELDS", 1)
            return [("HSETEX", self._key, *options, f"told:{each}", 1) for each, _ in self._found]
        return [("HGETALL", self._key)] if now >= self._next_look else []

    def hear(self, results: Sequence[Any], now: float, moment: float) -> None:
        """Take the results of `ask`'s commands.

        Arguments:
            moment: the same, monotonic.
        """
        if self._found:
            marked = [each for (_, each), done in zip(self._found, results, strict=True) if done]
            self._found = []
            by_release: dict[str, list[Process]] = {}
            for each in marked:
                by_release.setdefault(each.version, []).append(each)
            for release, gone in by_release.items():
                last = max(each.reported or now for each in gone)
                self._note(FELL_SILENT, *_gone(release, gone), moment - max(0.0, now - last))
        elif results:
            (reply,) = results
            if not isinstance(reply, Mapping):
                reply = dict(zip(reply[::2], reply[1::2], strict=True))
            fields = texts(reply)
            self._found = list(_silent(fields, now))[:_TOLD_AT_ONCE]
            share = max(1.0, len(fields) / _LOOKERS)
            self._next_look = now + _LOOK_SECONDS * share * random.uniform(0.5, 1.5)


def _silent(fields: Mapping[str, str], now: float) -> Iterator[tuple[str, Process]]:
    for name, written in fields.items():
        for each in parsed_processes([written]):
            is_long = each.reported is not None and now - each.reported > _SILENT_SECONDS
            if is_long and each.is_silent(now) and f"told:{name}" not in fields:
                yield name, each


def _gone(release: str, gone: Sequence[Process]) -> tuple[str, str]:
    number = "1 process" if len(gone) == 1 else f"{len(gone):,} processes"
    gone = sorted(gone, key=lambda each: (each.host, each.pid))
    named = [f"{each.host}, process {each.pid}" for each in gone[:_NAMED]]
    more = f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else ""
    return f"{number} of release {release}", "; ".join(named) + more
