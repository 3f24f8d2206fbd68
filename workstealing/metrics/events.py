"""The events of a fleet: who changed its settings, what came and went, and since when.

They lie beside the ledger's minutes, in one stream, bounded in number and time. Processes that say
the same within a minute share one event, which counts them and names some of their hosts.
"""

from __future__ import annotations

import getpass
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.metrics.minutes import checked_ledger_name, events_key, texts
from workstealing.store.fleet import one_server
from workstealing.store.operations import Operation
from workstealing.store.scripts import load
from workstealing.store.twin import is_async
from workstealing.structures.stored import holding_ours

MOST_EVENTS = 500
"""How many events a ledger keeps, the newest ones."""
KEEP_SECONDS = 8 * 86_400
"""For how long it keeps them after the last one."""

PAUSED, RESUMED, RATE_SET, CLEARED = "paused", "resumed", "rate", "cleared"
CAME, WENT = "came", "went"
UNREACHED, REACHED = "unreached", "reached"
HELD_BACK, GOES_ON = "held_back", "goes_on"
STUCK, ENDED = "stuck", "ended"
REFUSED, EMPTIED, SETTINGS_LOST = "refused", "emptied", "settings_lost"
LAYOUT = "layout"

_SENTENCES = {
    PAUSED: "{subject} was paused in the whole fleet",
    RESUMED: "{subject} was resumed in the whole fleet",
    RATE_SET: "the fleet's rate of {subject} was changed: {text}",
    CLEARED: "the fleet's settings of {subject} were removed: {text}",
    CAME: "{count} of release {subject} came",
    WENT: "{count} of release {subject} went",
    UNREACHED: "{subject} did not answer {count}",
    REACHED: "{subject} answers {count} again",
    HELD_BACK: "{subject} was held back after faults in {count}",
    GOES_ON: "{subject} goes on in {count}",
    STUCK: "a slice of {subject} does not end in {count}",
    ENDED: "the slice of {subject} ended in {count}",
    REFUSED: "the ledger refused the reports of {count}: {text}",
    EMPTIED: "the ledger was emptied: its earlier figures, events and settings are gone",
    SETTINGS_LOST: "the fleet's settings of {subject} are gone, and nobody removed them: {text}",
    LAYOUT: "{subject}: {text}",
}
KINDS = frozenset(_SENTENCES)
"""The kinds of events."""
FAULTS = frozenset({UNREACHED, HELD_BACK, STUCK, REFUSED, EMPTIED, SETTINGS_LOST})
"""The kinds that are faults."""
# What people do is never counted together with what others do.
_BY_PEOPLE = frozenset({PAUSED, RESUMED, RATE_SET, CLEARED})
_LONGEST, _LONGEST_HOST, _PENDING = 300, 100, 50
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


@dataclass(frozen=True, slots=True)
class Noticed:
    """An event that a process has noticed and not told yet.

    Fields: as of `FleetEvent`; at: in seconds of the monotonic clock.
    """

    kind: str
    subject: str
    text: str
    at: float
    count: int = 1


def read_events(
    client: Any, name: str = "default", since: Duration | None = None, most: int = MOST_EVENTS
) -> list[FleetEvent]:
    """Return the events of a fleet, the newest first.

    Arguments: client: a blocking client of redis-py; name: of the ledger; since: only those of so
    long ago at most, a number of seconds or a timedelta; most: their number. Raises:
    ConfigurationError; LayoutError if the key holds something else; errors of redis-py. One round
    trip of one or two commands.
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


def noting(name: str, noticed: Noticed, ago: float) -> Operation:
    """Return the operation that adds an event. Arguments: ago: seconds since it happened."""
    args = (
        noticed.kind,
        sent(noticed.subject),
        sent(noticed.text),
        this_host(),
        "",
        max(0, round(1000 * ago)),
        noticed.count,
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


class Noticing:
    """One process's changes since it last looked, for its ledger; the sending thread alone uses it.

    Arguments: stuck_seconds: how long a slice runs before it counts as one that does not end.
    """

    def __init__(self, stuck_seconds: float) -> None:
        self._stuck_seconds = stuck_seconds
        # By kind and subject: since when, by the monotonic clock.
        self._lasting: dict[tuple[str, str], float] = {}
        self._pending: deque[Noticed] = deque(maxlen=_PENDING)

    def note(self, kind: str, subject: str, text: str, at: float, count: int = 1) -> None:
        """Note an event. Arguments: at: its time, monotonic seconds."""
        self._pending.append(Noticed(kind, subject, text, at, count))

    def look(
        self,
        jobs: Iterable[tuple[str, Mapping[str, Any]]],
        unreached: Mapping[str, float],
        now: float,
    ) -> None:
        """Note what has begun or ended since the last look.

        Arguments: jobs: by name, their figures as of `Recruiter.stats()`; unreached: by server, for
        how many seconds; now: monotonic seconds.
        """
        present = {(UNREACHED, server): now - seconds for server, seconds in unreached.items()}
        for job, figures in jobs:
            running, held = figures.get("running_seconds"), figures.get("breaker_seconds")
            if running is not None and running >= self._stuck_seconds:
                present[STUCK, job] = now - running
            if held is not None and not unreached:
                # Otherwise its server says it.
                present[HELD_BACK, job] = now - held
        for each, since in present.items():
            if each not in self._lasting:
                self.note(*each, "", since)
        for kind, subject in self._lasting.keys() - present.keys():
            self.note(_ENDS[kind], subject, "", now)
        self._lasting = {each: self._lasting.get(each, since) for each, since in present.items()}

    def take(self) -> list[Noticed]:
        """Return the events that are to be told, the oldest first; they are none any more."""
        taken = list(self._pending)
        self._pending.clear()
        return taken

    def put_back(self, taken: Iterable[Noticed]) -> None:
        """Keep events that could not be told, as far as there is room."""
        newer = list(self._pending)
        self._pending.clear()
        self._pending.extend([*taken, *newer])


_ENDS = {UNREACHED: REACHED, HELD_BACK: GOES_ON, STUCK: ENDED}
