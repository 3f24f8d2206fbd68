"""The reports of one process to a ledger: what each one says, and how it reaches the server."""

from __future__ import annotations

import json
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from workstealing import __version__
from workstealing.clock import Clock
from workstealing.metrics.gathering import JobNames, Recruiters, sendable
from workstealing.metrics.minutes import (
    COVERED,
    DAY,
    DRY_RUN,
    FAULT,
    LAG,
    LANES,
    OFFERED,
    PROCESSES,
    RATE,
    REFUSED,
    RUNNING,
    SPENT,
    UNREACHED,
    Away,
    Lost,
    Process,
    Running,
    day_key,
    field_of,
    lane_of,
    minute_key,
    namespace_of,
    process_text,
    processes_key,
)
from workstealing.metrics.watching import running_slice
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.enlisting import REPORT_SECONDS
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, OneAttempt, checked
from workstealing.store.fleet import one_server
from workstealing.store.job_client import JobClient, Node, is_async
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.operations import Operation, drive
from workstealing.structures.namespace import Layout
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes

KEEP_SPENT_SECONDS = 2 * DAY
TEXT_LENGTH = 300
HOST_LENGTH = 100
_PROCESS_SECONDS = 180
_ENDED_SECONDS = 1
_MOST_LOST = 20
QUIET_SECONDS = 30.0
"""After so many seconds without callers a process reports that it is there."""

BUSY_SECONDS = 10.0
"""The same after a report of callers, or of a slice that does not end: it is missed sooner then."""


class Reports:
    """This process's reports: when the next one is due, what it covers, and its commands.

    The caller holds the ledger's lock wherever callers' threads change the same state.

    Arguments:
        server: of the ledger.
        keep_seconds: the time to live of a minute's figures.
        names: see `JobNames`.
        watched: the recruiters whose figures are reported.
        longest: returns the longest that the slices of a job may become, in seconds.

    Attributes: lane: of this process's gauges; minute and at: of the last report, by the server's
    and by the local clock; promised: the seconds within which the next one comes; is_due: it comes
    without a count, because a slice does not end, or nobody enlists; is_leaving: it is the last;
    refused: by job, the reason of this process to refuse the fleet's rate.
    """

    def __init__(
        self,
        server: LedgerServer,
        keep_seconds: int,
        names: JobNames,
        watched: Recruiters,
        longest: Callable[[str], float | None],
    ) -> None:
        self._name, self._keep_seconds = server.name, keep_seconds
        self._server, self._names, self._watched = server, names, watched
        self._longest = longest
        self.lane = random.randrange(LANES)
        self.minute = 0
        self.at: float | None = None
        self.promised = QUIET_SECONDS
        self.is_due = self.is_leaving = False
        self.refused: dict[str, str] = {}
        self._lost: Lost | None = None
        # The moment from which on the next report's counts are.
        self._covered_from: float | None = None
        # The enlists since the jobs' own figures of them were sent, once a minute.
        self._offered = 0
        self._highest: dict[tuple[str, str], float] = {}
        self._process = ""

    # ---- when, and of what -----------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether a report is due without a count."""
        return self.is_due or self.is_leaving

    def is_overdue(self, moment: float) -> bool:
        """Say whether the promise of the last report is not kept, by the local clock."""
        return self.at is not None and moment - self.at >= self.promised

    def cover(self, count: int, moment: float) -> None:
        """Note callers who enlisted until a moment."""
        if self._covered_from is None:
            # A recruiter reports about once a second.
            self._covered_from = moment - REPORT_SECONDS
        self._offered += count

    def complete(self, batch: Unsent, minute: int, moment: float) -> None:
        """Write into a batch what its counts cover, at the time of sending."""
        batch.covered = 0.0 if self._covered_from is None else moment - self._covered_from
        # A command for each job, so once a minute.
        is_due = minute != self.minute or self.is_leaving
        batch.offered = self._offered if is_due else 0

    def arrived(self, batch: Unsent, minute: int, moment: float, promised: float) -> None:
        """Note that a batch has been applied."""
        self.minute, self.promised = minute, promised
        self.at = self._covered_from = moment
        self._offered -= batch.offered

    def lose(self, settings: Mapping[str, str]) -> None:
        """Report the fleet's settings that have vanished; see `Ledger.lose`."""
        if not settings:
            self._lost = None
        elif self._lost is None:
            few = list(settings.items())[:_MOST_LOST]
            self._lost = Lost(
                round(self._server.now(), 3),
                {sendable(job)[:HOST_LENGTH]: words[:HOST_LENGTH] for job, words in few},
            )

    # ---- its commands ----------------------------------------------------------------------------

    def changes(self, batch: Unsent, minute: int, day: int, promised: float) -> list[Command]:
        """Return the hash commands that add a batch to a minute and a day.

        Arguments:
            promised: the seconds within which the next report comes.
        """
        key, today = minute_key(self._name, minute), day_key(self._name, day)
        counts = {name: count for name, count in batch.counts.items() if count}
        is_first = minute != self.minute
        if is_first:
            counts[PROCESSES] = 1
            self._highest.clear()
        if covered := round(1e3 * batch.covered):
            counts[COVERED] = covered
        if batch.offered:
            counts[OFFERED] = batch.offered
            for job, _ in self._watched.jobs():
                counts[field_of(OFFERED, job)] = batch.offered
        changes: list[Command] = [("HINCRBY", key, name, n) for name, n in counts.items()]
        if counts:
            changes.append(expire(key, self._keep_seconds, counts))
        gauges = self._gauges(batch)
        if gauges:
            pairs = [part for pair in gauges.items() for part in pair]
            keep = ("EX", self._keep_seconds, "FIELDS", len(gauges))
            changes.append(("HSETEX", key, *keep, *pairs))
        # A process that ends is off the list at once.
        keep = ("EX", _ENDED_SECONDS if self.is_leaving else _PROCESS_SECONDS, "FIELDS", 1)
        changes.append(("HSETEX", processes_key(self._name), *keep, *self._introduction(promised)))
        # Adding 0 answers with the fleet's total, too.
        changes.append(("HINCRBY", today, SPENT, batch.spent))
        changes.append(expire(today, KEEP_SPENT_SECONDS, (SPENT,)))
        return changes

    def _gauges(self, batch: Unsent) -> dict[str, str]:
        """Return the gauges' fields of this minute and their values."""
        fields: dict[str, str] = {}
        highest_of = dict(batch.highest)
        for job, figures in self._watched.jobs():
            fields[field_of(RATE, job)] = f"{figures['rate']:.6g}"
            if figures.get("dry_run"):
                fields[field_of(DRY_RUN, job)] = "1"
            if figures.get("lag") is not None:
                fields[field_of(LAG, job)] = f"{figures['lag']:.6g}"
            for figure, key in ((RUNNING, "running_seconds"), (UNREACHED, "breaker_seconds")):
                if figures.get(key) is not None:
                    highest_of[figure, job] = figures[key]
        for (figure, job), value in highest_of.items():
            highest = max(value, self._highest.get((figure, job), value))
            self._highest[figure, job] = highest
            fields[field_of(lane_of(figure, self.lane), job)] = f"{highest:.6g}"
        ahead = self._server.ahead or 0.0
        for (kind, job), (at, said) in batch.faults.items():
            fault = {"at": round(at + ahead, 3), "host": _host()}
            fault |= {} if said is None else {"text": said}
            fields[field_of(f"{FAULT}.{kind}", job)] = json.dumps(fault)
        for job, reason in list(self.refused.items()):
            fields[field_of(REFUSED, self._names(job))] = reason[:TEXT_LENGTH]
        return fields

    def _introduction(self, promised: float) -> tuple[str, str]:
        """Return this process's field in the hash of processes, and its value."""
        now = self._server.now()
        if not self._process:
            # A pid may return, and containers share pids and sometimes names.
            self._process = f"{_host()}:{os.getpid()}:{random.getrandbits(32):08x}"
            self._started = now
        process = Process(_host(), os.getpid(), __version__, round(self._started, 3))
        process.reported, process.every = round(now, 3), promised
        running = running_slice()
        if running is not None:
            since = round(now - running.seconds, 3)
            process.running = Running(self._names(running.job), since, self._longest(running.job))
        faults = SERVER_BREAKERS.faults()
        process.away = [
            Away(
                sendable(server)[:HOST_LENGTH],
                round(now - seconds, 3),
                jobs,
                faults.get(server, 1),
            )
            for server, seconds, jobs in self._away()
        ]
        process.lost = self._lost
        return self._process, process_text(process)

    def _away(self) -> Iterator[tuple[str, float, list[str]]]:
        """Yield the servers out of reach, for how many seconds they are, and the jobs on them."""
        found: dict[str, tuple[float, list[str]]] = {}
        for server, seconds in SERVER_BREAKERS.unreached().items():
            found[server] = (seconds, [])
        for job, figures in self._watched.jobs():
            for server, seconds in figures.get("unreached", {}).items():
                found.setdefault(server, (seconds, []))[1].append(job)
        for server, (seconds, jobs) in found.items():
            yield server, seconds, jobs


class Unsent:
    """The counts since the last send."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.spent = 0
        # Known at the time of sending: the seconds that the counts cover, and the enlists since the
        # jobs' own figures of them were sent.
        self.covered = 0.0
        self.offered = 0
        self.highest: dict[tuple[str, str], float] = {}
        # By class and job: the time of the last one (monotonic), and its text if texts are kept.
        self.faults: dict[tuple[str, str], tuple[float, str | None]] = {}

    def __bool__(self) -> bool:
        return bool(self.counts or self.spent or self.highest)

    def add(self, other: Unsent) -> None:
        """Take over another batch's counts."""
        self.counts.update(other.counts)
        self.spent += other.spent
        for gauge, value in other.highest.items():
            self.highest[gauge] = max(value, self.highest.get(gauge, value))
        # This batch's own faults are newer.
        self.faults = {**other.faults, **self.faults}


class LedgerServer:
    """The server of a ledger: its layout and its clock, on one-attempt connections.

    Arguments:
        client: any client of redis-py.
        name: of the ledger.
        allow_eviction: as of `VolatileHashes`.
        clock: the local one.

    Attributes: name; hashes; job_client; key: one of the ledger's, whose slot all of them share;
    ahead: the server's clock less the local monotonic one, None: not asked yet.
    """

    def __init__(
        self, client: Any, name: str, allow_eviction: Collection[str], clock: Clock
    ) -> None:
        client = one_server(client, "a ledger")
        kind: Any = AsyncVolatileHashes if is_async(client) else VolatileHashes
        self.hashes: Any = kind(client, namespace=namespace_of(name), allow_eviction=allow_eviction)
        self.job_client: JobClient = self.hashes.job_client
        self.ahead: float | None = None
        self._clock = clock
        self.name, self.key = name, minute_key(name, 0)

    def now(self) -> float:
        """Return the server's time in seconds since the epoch, once it was asked."""
        return self._clock.monotonic() + (self.ahead or 0.0)

    def hear_time(self, reply: Any) -> None:
        """Note the server's time by its reply to TIME."""
        if isinstance(reply, list | tuple):
            self.ahead = int(reply[0]) + int(reply[1]) / 1e6 - self._clock.monotonic()

    def ask_time(self, connection: OneAttempt, budget: Budget) -> None:
        """Ask for the time, on a new connection, too: an unreachable server fails here."""
        if self.ahead is None or not connection.is_open:
            self.hear_time(checked(connection.call([("TIME",)], budget))[0])

    def place(self, budget: Budget) -> tuple[Node, Layout]:
        """Return the node of the ledger's keys and their layout, fit for writes."""
        node = self.job_client.node_of(key_slot(self.key))
        client = _OneAttemptClient(self.job_client, budget)
        layout: Layout = drive(client, self.hashes.layout_steps())
        layout.require_writable()
        steps = self.hashes.register_steps(layout, [("HINCRBY", self.key)])
        return node, drive(client, steps)


class HashCommands:
    """Hash commands in their form on the wire, for either backend of the namespace."""

    def __init__(self, hashes: Any, layout: Layout) -> None:
        self._translator = hashes.translator
        self._layout = layout
        self._sent: set[str] = set()
        self._last: list[int] = []
        self.commands: list[Command] = []

    def add(self, args: Command) -> None:
        """Add one hash command."""
        for operation in self._translator.operations(self._layout, args, {}):
            self._operate(operation)
        self._last.append(len(self.commands) - 1)

    def _operate(self, operation: Operation) -> None:
        # The first use of a script carries its text, so the server knows it for the rest.
        known = operation.sha in self._sent
        self._sent.add(operation.sha)
        self.commands.append(operation.by_digest() if known else operation.by_text())

    def results(self, replies: Sequence[Any]) -> list[Any]:
        """Return the reply of each hash command, of the replies of all sent commands."""
        return [replies[position] for position in self._last]


class _OneAttemptClient:
    """The part of a client that reads a layout, on a job client's one-attempt connections."""

    def __init__(self, job_client: JobClient, budget: Budget) -> None:
        self._job_client = job_client
        self._budget = budget

    def execute_command(self, *args: Any, **_: Any) -> Any:
        """Run one command on the node of its first key."""
        key = args[3] if args[0] in ("EVAL", "EVALSHA") else args[1]
        node: Node = self._job_client.node_of(key_slot(to_bytes(key)))
        return checked(self._job_client.call(node, [args], self._budget))[0]


def expire(key: bytes, seconds: int, fields: Collection[str]) -> Command:
    """Return the command that gives fields of a hash their time to live."""
    return ("HEXPIRE", key, seconds, "FIELDS", len(fields), *fields)


def _host() -> str:
    return socket.gethostname()[:HOST_LENGTH]
