"""The ledger: the figures of a whole fleet, minute by minute, in Redis."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from workstealing import __version__
from workstealing.clock import SYSTEM_CLOCK, Clock, Duration, seconds_of
from workstealing.errors import (
    Unanswered,
    UnknownJobError,
    is_connection_fault,
)
from workstealing.jobs.hash_field_expiry import HashFieldExpiry
from workstealing.metrics.events import EventTeller, SilenceTeller
from workstealing.metrics.gathering import (
    ErrorNames,
    Gathering,
    JobNames,
    MeasuredNames,
    Recruiters,
    sendable,
)
from workstealing.metrics.minutes import (
    BACKLOG,
    COVERED,
    DAY,
    DRY_RUN,
    ENLISTED,
    ERROR,
    FAULT,
    ITEMS,
    LAG,
    LANES,
    MEASURED,
    MICROSECONDS,
    MINUTE,
    OFFERED,
    OLDEST,
    PROCESSES,
    RATE,
    REFUSED,
    RUNNING,
    SPENT,
    UNREACHED,
    Away,
    CacheMinute,
    JobError,
    JobMinute,
    Lost,
    Minute,
    Process,
    Running,
    cache_field,
    checked_ledger_name,
    day_key,
    field_of,
    lane_of,
    minute_key,
    namespace_of,
    process_text,
    processes_key,
    total,
    total_of_caches,
)
from workstealing.metrics.reading import processes, read, server_time
from workstealing.metrics.watching import WATCH, RunningSlice, Watcher, running_slice
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import COUNTS, CacheCounts
from workstealing.recruiting.enlisting import REPORT_SECONDS
from workstealing.recruiting.faults import HostTimeouts
from workstealing.recruiting.recruiter import Recruiter
from workstealing.recruiting.slice import Outcome
from workstealing.store.budget import TIMEOUT_SECONDS, Budget
from workstealing.store.connection import Command, OneAttempt, checked
from workstealing.store.fleet import one_server
from workstealing.store.job_client import HostCall, JobClient, Node, is_async, may_ask
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.operations import Operation, drive
from workstealing.structures.namespace import Layout
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes

__all__ = [
    "CacheMinute",
    "JobError",
    "JobMinute",
    "Ledger",
    "Minute",
    "Process",
    "processes",
    "read",
    "server_time",
    "total",
    "total_of_caches",
]

KEEP_SECONDS = 3 * 3600
_KEEP_SPENT_SECONDS = 2 * DAY
_LONGEST_KEEP_SECONDS = 23 * 3600
_SEND_SECONDS = 2.0
_WAIT_SECONDS = 1.0
_PROCESS_SECONDS = 180
_ENDED_SECONDS = 1
_MOST_LOST = 20
# So much unreported spending, and a second since the last report, make the next one come early.
_SPENT_SHARE = 0.05
_SPENT_SECONDS = 1.0
QUIET_SECONDS = 30.0
"""After so many seconds without callers a process reports that it is there."""

BUSY_SECONDS = 10.0
"""The same after a report of callers, or of a slice that does not end: it is missed sooner then."""

_TEXT_LENGTH = 300
_TIMEOUTS = HostTimeouts()
_HOST_LENGTH = 100

Ask = Callable[[], Sequence[Command]]
Hear = Callable[[Sequence[Any]], None]


class Ledger(Gathering["_Unsent"], Watcher):
    """Adds this process's counts to the fleet's: `recruiter.add_hook(Ledger(client))`.

    A hook's call only counts, under a lock. After the interval it wakes a daemon thread of this
    process. The thread sends one pipeline: a MULTI of a few commands for each recruited job, with
    the questions of companions (the fleet's settings). It uses a one-attempt connection with short
    time-outs. While a slice does not end, another thread sees to it that the fleet hears of it.
    Each count arrives at most once. The counts of a bounded number of jobs wait for an unreachable
    server, and count in the minute of their arrival. If the connection breaks during a send, those
    counts are lost, because they may have arrived. A dead server costs one line in the log a
    minute.

    Arguments:
        client: any client of redis-py.
        name: it ledger, 1 to 50 letters, digits, dots, dashes or underscores.
        interval: between two sends, and keep, the time to live of a minute's figures, 60 to 82,800
            seconds: numbers of seconds or timedeltas.
        error_texts: whether to keep 300 letters of the last error of each class, beside class, time
            and host: they may quote a user's data.
        allow_eviction: as of `VolatileHashes`.
        clock: it measures the interval.

    Raises: ConfigurationError. No round trip yet.
    """

    def __init__(
        self,
        client: Any,
        name: str = "default",
        interval: Duration = 10.0,
        *,
        keep: Duration = KEEP_SECONDS,
        error_texts: bool = False,
        allow_eviction: Collection[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        keep_seconds = math.ceil(seconds_of(keep, "keep", MINUTE, _LONGEST_KEEP_SECONDS))
        self.name = checked_ledger_name(name)
        client = one_server(client, "a ledger")
        kind: Any = AsyncVolatileHashes if is_async(client) else VolatileHashes
        self.hashes: Any = kind(client, namespace=namespace_of(name), allow_eviction=allow_eviction)
        self._job_client: JobClient = self.hashes.job_client
        self._slot = key_slot(minute_key(name, 0))
        self._keep_seconds = keep_seconds
        self._error_texts = error_texts
        self._names = JobNames()
        self._error_names = ErrorNames()
        self._caches = CacheCounts()
        self._watched = Recruiters(self._names)
        self.events = EventTeller(name, clock)
        """The events that this process tells of itself and its servers; see `workstealing events`.
        """
        self._companions: tuple[tuple[Ask, Hear], ...] = ((self.events.ask, self.events.hear),)
        super().__init__(f"the ledger {name!r}", interval, clock)
        WATCH.add(self)

    def _start_from_zero(self) -> None:
        self.events.begin()
        self._silence = SilenceTeller(self.name, self.events.note)
        self._lane = random.randrange(LANES)
        self._process = ""
        # By job: the names of its own figures.
        self._measured = MeasuredNames()
        # By job: the reason of this process to refuse the fleet's rate.
        self._refused: dict[str, str] = {}
        self._lost: Lost | None = None
        # The server's clock less the local monotonic one; None: not asked yet.
        self._ahead: float | None = None
        self._reported_minute = 0
        self._reported_at: float | None = None
        # Whether to report without a count: a slice does not end, nobody enlists, or the end.
        self._is_due = self._is_leaving = False
        # The seconds within which this process has promised its next report.
        self._promised = QUIET_SECONDS
        # The moment from which on the next report's counts are.
        self._covered_from: float | None = None
        # The enlists since the jobs' own figures of them were sent, once a minute.
        self._offered = 0
        self._highest: dict[tuple[str, str], float] = {}
        self._day = 0
        self._known_spent = 0
        super()._start_from_zero()

    def _new_batch(self) -> _Unsent:
        return _Unsent()

    # ---- reports of the recruiter ----------------------------------------------------------------

    def on_added(self, recruiter: Recruiter) -> None:
        """Report this recruiter's rates, too."""
        super().on_added(recruiter)
        self._watched.add(recruiter)

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted."""
        with self._lock:
            if self._covered_from is None:
                # A recruiter reports about once a second.
                self._covered_from = self._clock.monotonic() - REPORT_SECONDS
            self._batch.counts[ENLISTED] += count
            self._offered += count
            for cache, grown in self._caches.take().items():
                name = sendable(cache)
                for figure in COUNTS:
                    self._batch.counts[cache_field(figure, name)] += int(grown[figure])
                self._batch.counts[cache_field(MICROSECONDS, name)] += round(1e6 * grown["seconds"])
            self._counted()

    def on_recruited(self, job: str) -> None:  # noqa: ARG002 - the outcome counts
        """Let the watch begin before the slice, which may hold the only thread that enlists."""
        WATCH.begin()

    def on_beat(self, running: RunningSlice | None) -> None:
        """Report a slice that does not end, or that this process is there without callers."""
        with self._lock:
            if self._closed or not self._recruiters:
                return
            quiet = self._reported_at is not None and (
                self._clock.monotonic() - self._reported_at >= self._promised
            )
            if running is not None or quiet:
                self._is_due = True
                self._rouse()

    def on_outcome(
        self,
        job: str,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count a recruit's outcome."""
        said = str(error)[:_TEXT_LENGTH] if self._error_texts and error is not None else None
        with self._lock:
            counts, job = self._batch.counts, self._names(job)
            if error is not None:
                kind = self._error_names(job, error)
                counts[field_of(f"{ERROR}.{kind}", job)] += 1
                self._batch.faults[kind, job] = (self._clock.monotonic(), said)
            counts[field_of(outcome.value, job)] += 1
            counts[field_of(ITEMS, job)] += items
            counts[field_of(MICROSECONDS, job)] += round(seconds * 1e6)
            self._counted()

    def on_observed(self, job: str, oldest_seconds: float | None, backlog: int | None) -> None:
        """Note the highest age and the largest backlog that slices have seen."""
        with self._lock:
            job = self._names(job)
            for figure, value in ((OLDEST, oldest_seconds), (BACKLOG, backlog)):
                if value is not None:
                    highest = self._batch.highest.get((figure, job), 0.0)
                    self._batch.highest[figure, job] = max(highest, float(value))
            self._counted()

    def on_measured(self, job: str, what: str, value: float) -> None:
        """Note the highest value of a figure of the job's own; the first few names of a job's."""
        with self._lock:
            job = self._names(job)
            if not self._measured(job, what):
                return
            # A colon would end the figure's part of the field's name.
            figure = f"{MEASURED}.{sendable(what).replace(':', '.')}"
            highest = self._batch.highest.get((figure, job), value)
            self._batch.highest[figure, job] = max(highest, value)
            self._counted()

    # ---- questions of others ---------------------------------------------------------------------

    def spend(self, operations: int) -> None:
        """Count operations of this process; see `spent_today`. No round trip."""
        with self._lock:
            # They are sent with the outcome of the slice, which counts next.
            self._batch.spent += operations
            now = self._clock.monotonic()
            if self._batch.spent > _SPENT_SHARE * self._known_spent and (
                self._reported_at is None or now - self._reported_at >= _SPENT_SECONDS
            ):
                # The fewer the others do not know of, the less they all spend beyond a cap.
                self._next_send = min(self._next_send, now)

    def spent_today(self) -> int:
        """Return the known operations of the whole fleet on this day.

        They are the sum of all `spend` calls, of all jobs with
        `Adaptive(max_ops_per_day=..., spending=ledger)`: the fleet's total at this process's last
        send, and the operations of this process since. The day is UTC's, by the server's clock. No
        round trip.
        """
        with self._lock:
            known = self._known_spent if self._today() == self._day else 0
            return known + self._batch.spent

    def claim(self, operations: int) -> int | None:
        """Count operations before they are done; return the fleet's total without them.

        The total is exact: of two processes that claim at once, one hears of the other's claim. The
        claim of a process that dies stays counted.

        Arguments:
            operations: ; `spend` takes the difference to the real number, which may be negative.

        Returns: None while the server is left alone after a fault. Raises: errors of redis-py; then
        the claim may count. One round trip in the caller's time, of 50 ms at most, and three more
        at first.
        """
        breaker = self._job_client.breaker_of(minute_key(self.name, 0))
        if self._closed or not may_ask(breaker):
            return None
        budget = Budget(TIMEOUT_SECONDS)
        with HostCall(breaker, _TIMEOUTS):
            node, layout = self._place(budget)
            with self._job_client.connection(node) as connection:
                self._ask_time(connection, budget)
                day = int(self._now() // DAY)
                key = day_key(self.name, day)
                writes = _HashCommands(self.hashes, layout)
                writes.add(("HINCRBY", key, SPENT, operations))
                writes.add(_expire(key, _KEEP_SPENT_SECONDS, (SPENT,)))
                replies = checked(connection.call(writes.commands, budget))
        total = int(writes.results(replies)[0])
        with self._lock:
            self._day, self._known_spent = day, total
            # The own operations that the server does not know yet are the fleet's, too.
            return total - operations + self._batch.spent

    def _today(self) -> int:
        return self._day if self._ahead is None else int(self._now() // DAY)

    def expiry_job(self) -> HashFieldExpiry:
        """Return the job that frees the memory of expired minutes; install it once.

        Its slices are idle on a server that expires fields itself.
        """
        return HashFieldExpiry(self.hashes, limit=100)

    def accompany(self, ask: Ask, hear: Hear) -> None:
        """Let a companion's commands ride along with each send.

        Arguments:
            ask: it returns reading commands on keys of this ledger's slot.
            hear: it takes their replies, an error in its place.

        Both run in the sending thread. The commands are part of the transaction: one that the
        server does not know or forbids holds it back.
        """
        self._companions += ((ask, hear),)

    def refuse(self, jobs: Collection[str], reasons: Mapping[str, str]) -> None:
        """Report the fleet's rates that this process refuses, from now on.

        Arguments:
            jobs: the names of all jobs in question.
            reasons: by the name of each refused job: the rate, a space and the reason.

        No round trip.
        """
        refused = {job: why for job, why in self._refused.items() if job not in jobs}
        self._refused = {**refused, **reasons}

    def lose(self, settings: Mapping[str, str]) -> None:
        """Report the fleet's settings that have vanished, from now on; none ends the report.

        Arguments:
            settings: by job, in words.

        No round trip.
        """
        if not settings:
            self._lost = None
        elif self._lost is None:
            few = list(settings.items())[:_MOST_LOST]
            self._lost = Lost(
                round(self._now(), 3),
                {sendable(job)[:_HOST_LENGTH]: words[:_HOST_LENGTH] for job, words in few},
            )

    # ---- sending; in the thread alone ------------------------------------------------------------

    def _now(self) -> float:
        return self._clock.monotonic() + (self._ahead or 0.0)

    def _heard_time(self, reply: Any) -> None:
        if isinstance(reply, list | tuple):
            self._ahead = int(reply[0]) + int(reply[1]) / 1e6 - self._clock.monotonic()

    def _has_reached(self) -> bool:
        return self._ahead is not None

    def _release(self) -> None:
        self._job_client.close()

    def _has_news(self) -> bool:
        return bool(self._batch) or self._is_due or self._is_leaving

    def _leave(self) -> None:
        # A process that has never reported has nobody to take leave of.
        self._is_leaving = self._reported_at is not None

    def _deliver(self) -> bool:
        with self._lock:
            if not self._has_news():
                # Woken twice for one batch. Not even this process's name is written then.
                return True
        budget = Budget(_SEND_SECONDS, _WAIT_SECONDS)
        node, layout = self._place(budget)
        with self._job_client.connection(node) as connection:
            # An unreachable server costs no counts, because the question fails first.
            self._ask_time(connection, budget)
            with self._lock:
                batch, self._batch = self._batch, self._new_batch()
                self._is_due = False
            self._send(batch, layout, connection, budget)
        return True

    def _place(self, budget: Budget) -> tuple[Node, Layout]:
        """Return the node of this ledger's keys and their layout, fit for writes."""
        node = self._job_client.node_of(self._slot)
        client = _OneAttemptClient(self._job_client, budget)
        layout: Layout = drive(client, self.hashes.layout_steps())
        layout.require_writable()
        # All keys share a slot, so one of them stands for all.
        steps = self.hashes.register_steps(layout, [("HINCRBY", minute_key(self.name, 0))])
        return node, drive(client, steps)

    def _ask_time(self, connection: OneAttempt, budget: Budget) -> None:
        if self._ahead is None or not connection.is_open:
            self._heard_time(checked(connection.call([("TIME",)], budget))[0])

    def _send(self, batch: _Unsent, layout: Layout, connection: OneAttempt, budget: Budget) -> None:
        now, moment = self._now(), self._clock.monotonic()
        minute, day = int(now // MINUTE * MINUTE), int(now // DAY)
        batch.covered = 0.0 if self._covered_from is None else moment - self._covered_from
        with self._lock:
            # A command for each job, so once a minute.
            is_due = minute != self._reported_minute or self._is_leaving
            batch.offered = self._offered if is_due else 0
        is_busy = bool(batch.counts[ENLISTED]) or running_slice() is not None
        promised = max(self._interval, BUSY_SECONDS if is_busy else QUIET_SECONDS)
        changes = self._changes(batch, minute, day, promised)
        silence = self._silence.ask(now)
        changes += silence
        writes = _HashCommands(self.hashes, layout)
        for change in changes:
            writes.add(change)
        unreached, failing = SERVER_BREAKERS.unreached(), self.failing()
        self.events.look(
            self._watched.jobs(), unreached, failing, self._longest, leaves=self._is_leaving
        )
        asked = [(list(ask()), hear) for ask, hear in self._companions]
        # The questions are part of the MULTI too, so nothing is applied if their key's slot has
        # moved or is about to move.
        questions = [command for each, _ in asked for command in each]
        commands: list[Command] = [
            ("MULTI",),
            *writes.commands,
            *questions,
            ("EXEC",),
            ("TIME",),
        ]
        try:
            replies = connection.call(commands, budget)
        except Exception as error:
            if not (is_connection_fault(error) or isinstance(error, Unanswered)):
                # The slot has moved, or there was no time to begin. Nothing has been applied.
                self._put_back(batch)
            raise
        *queued, done, time = replies
        self._heard_time(time)
        if isinstance(done, Exception):
            # Nothing was applied, for example for want of memory, or on a replica.
            self._put_back(batch)
            if questions:
                # A full server's settings count all the same: a job that rests may make room.
                self._hear(asked, connection.call(questions, budget))
            raise next((reply for reply in queued if isinstance(reply, Exception)), done)
        self._reported_minute = minute
        self._reported_at = self._covered_from = moment
        self._promised = promised
        # It keeps the promise also in a process in which nobody is ever recruited.
        WATCH.begin()
        with self._lock:
            self._offered -= batch.offered
        done, answers = done[: len(writes.commands)], done[len(writes.commands) :]
        self._hear(asked, answers)
        if any(isinstance(reply, Exception) for reply in done):
            # Most likely the layout has changed.
            self.hashes.forget()
        results = writes.results(checked(done))
        with self._lock:
            self._day = day
            for change, result in zip(changes, results, strict=True):
                if change[:2] == ("HINCRBY", day_key(self.name, day)):
                    self._known_spent = int(result)
        if silence:
            self._silence.hear(results[-len(silence) :], now, moment)

    def _hear(self, asked: Sequence[tuple[list[Command], Hear]], replies: Sequence[Any]) -> None:
        start = 0
        for questions, hear in asked:
            try:
                hear(replies[start : start + len(questions)])
            except Exception as error:  # noqa: BLE001 - the counts have arrived anyway
                self._faults.report(f"a companion of {self._receiver}", error)
            start += len(questions)

    def _put_back(self, batch: _Unsent) -> None:
        with self._lock:
            self._batch.add(batch)

    def _changes(self, batch: _Unsent, minute: int, day: int, promised: float) -> list[Command]:
        """Return the hash commands that add a batch to a minute and a day."""
        key, today = minute_key(self.name, minute), day_key(self.name, day)
        counts = {name: count for name, count in batch.counts.items() if count}
        is_first = minute != self._reported_minute
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
            changes.append(_expire(key, self._keep_seconds, counts))
        gauges = self._gauges(batch)
        if gauges:
            pairs = [part for pair in gauges.items() for part in pair]
            keep = ("EX", self._keep_seconds, "FIELDS", len(gauges))
            changes.append(("HSETEX", key, *keep, *pairs))
        # A process that ends is off the list at once.
        keep = ("EX", _ENDED_SECONDS if self._is_leaving else _PROCESS_SECONDS, "FIELDS", 1)
        changes.append(("HSETEX", processes_key(self.name), *keep, *self._introduction(promised)))
        # Adding 0 answers with the fleet's total, too.
        changes.append(("HINCRBY", today, SPENT, batch.spent))
        changes.append(_expire(today, _KEEP_SPENT_SECONDS, (SPENT,)))
        return changes

    def _gauges(self, batch: _Unsent) -> dict[str, str]:
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
            fields[field_of(lane_of(figure, self._lane), job)] = f"{highest:.6g}"
        ahead = self._ahead or 0.0
        for (kind, job), (at, said) in batch.faults.items():
            fault = {"at": round(at + ahead, 3), "host": _host()}
            fault |= {} if said is None else {"text": said}
            fields[field_of(f"{FAULT}.{kind}", job)] = json.dumps(fault)
        for job, reason in list(self._refused.items()):
            fields[field_of(REFUSED, self._names(job))] = reason[:_TEXT_LENGTH]
        return fields

    def _introduction(self, promised: float) -> tuple[str, str]:
        """Return this process's field in the hash of processes, and its value.

        Arguments:
            promised: the seconds within which the next report comes.
        """
        now = self._now()
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
                sendable(server)[:_HOST_LENGTH],
                round(now - seconds, 3),
                jobs,
                faults.get(server, 1),
            )
            for server, seconds, jobs in self._away()
        ]
        process.lost = self._lost
        return self._process, process_text(process)

    def _longest(self, job: str) -> float | None:
        """Return the longest that the slices of a job may become, None: it is not reported here."""
        for recruiter in list(self._recruiters):
            with contextlib.suppress(UnknownJobError):
                return recruiter.slice_seconds(job)[1]
        return None

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


class _Unsent:
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

    def add(self, other: _Unsent) -> None:
        """Take over another batch's counts."""
        self.counts.update(other.counts)
        self.spent += other.spent
        for gauge, value in other.highest.items():
            self.highest[gauge] = max(value, self.highest.get(gauge, value))
        # This batch's own faults are newer.
        self.faults = {**other.faults, **self.faults}


class _HashCommands:
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


def _expire(key: bytes, seconds: int, fields: Collection[str]) -> Command:
    return ("HEXPIRE", key, seconds, "FIELDS", len(fields), *fields)


def _host() -> str:
    return socket.gethostname()[:_HOST_LENGTH]
