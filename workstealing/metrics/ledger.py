"""The ledger: the figures of a whole fleet, minute by minute, in Redis.

The hook counts; `reporting` says what its reports are, and `reading` reads them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

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
    DAY,
    ENLISTED,
    ERROR,
    ITEMS,
    MEASURED,
    MICROSECONDS,
    MINUTE,
    OLDEST,
    SPENT,
    CacheMinute,
    JobError,
    JobMinute,
    Minute,
    Process,
    cache_field,
    checked_ledger_name,
    day_key,
    field_of,
    total,
    total_of_caches,
)
from workstealing.metrics.reading import processes, read, server_time
from workstealing.metrics.reporting import (
    BUSY_SECONDS,
    KEEP_SPENT_SECONDS,
    QUIET_SECONDS,
    TEXT_LENGTH,
    HashCommands,
    LedgerServer,
    Reports,
    Unsent,
    expire,
)
from workstealing.metrics.watching import WATCH, RunningSlice, Watcher, running_slice
from workstealing.recruiting.breakers import SERVER_BREAKERS
from workstealing.recruiting.cache_figures import COUNTS, CacheCounts
from workstealing.recruiting.faults import HostTimeouts
from workstealing.recruiting.recruiter import Recruiter
from workstealing.recruiting.slice import Outcome
from workstealing.store.budget import TIMEOUT_SECONDS, Budget
from workstealing.store.connection import Command, OneAttempt, checked
from workstealing.store.job_client import HostCall, may_ask
from workstealing.structures.namespace import Layout

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
_LONGEST_KEEP_SECONDS = 23 * 3600
_SEND_SECONDS = 2.0
_WAIT_SECONDS = 1.0
# So much unreported spending, and a second since the last report, make the next one come early.
_SPENT_SHARE = 0.05
_SPENT_SECONDS = 1.0
_TIMEOUTS = HostTimeouts()

Ask = Callable[[], Sequence[Command]]
Hear = Callable[[Sequence[Any]], None]


class Ledger(Gathering[Unsent], Watcher):
    """Adds this process's counts to the fleet's: `recruiter.add_hook(Ledger(client))`.

    A hook's call only counts, under a lock. After the interval it wakes a daemon thread of this
    process. The thread sends one pipeline: a MULTI of a few commands for each recruited job, with
    the questions of companions (the fleet's settings). The daemon thread uses a one-attempt
    connection with short time-outs. While a slice does not end, another thread sees to it that the
    fleet hears of it. Each count arrives at most once. The counts of a bounded number of jobs wait
    for an unreachable server, and count in the minute of their arrival. If the connection breaks
    during a send, those counts are lost, because they may have arrived. A dead server costs one
    line in the log a minute.

    Arguments:
        client: any client of redis-py.
        name: of the ledger, 1 to 50 letters, digits, dots, dashes or underscores.
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
        self._server = LedgerServer(client, self.name, allow_eviction, clock)
        self.hashes: Any = self._server.hashes
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
        # By job: the names of its own figures.
        self._measured = MeasuredNames()
        self._server.ahead = None
        self._reports = Reports(
            self._server, self._keep_seconds, self._names, self._watched, self._longest
        )
        self._day = 0
        self._known_spent = 0
        super()._start_from_zero()

    def _new_batch(self) -> Unsent:
        return Unsent()

    # ---- reports of the recruiter ----------------------------------------------------------------

    def on_added(self, recruiter: Recruiter) -> None:
        """Report this recruiter's rates, too."""
        super().on_added(recruiter)
        self._watched.add(recruiter)

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted."""
        with self._lock:
            self._reports.cover(count, self._clock.monotonic())
            self._batch.counts[ENLISTED] += count
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
            if running is not None or self._reports.is_overdue(self._clock.monotonic()):
                self._reports.is_due = True
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
        said = str(error)[:TEXT_LENGTH] if self._error_texts and error is not None else None
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
            reported_at = self._reports.at
            if self._batch.spent > _SPENT_SHARE * self._known_spent and (
                reported_at is None or now - reported_at >= _SPENT_SECONDS
            ):
                # The fewer the others do not know of, the less they all spend beyond a cap.
                self._next_send = min(self._next_send, now)

    def spent_today(self) -> int:
        """Return the known operations of the whole fleet on this day.

        The operations are the sum of all `spend` calls, of all jobs with
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
        server = self._server
        breaker = server.job_client.breaker_of(server.key)
        if self._closed or not may_ask(breaker):
            return None
        budget = Budget(TIMEOUT_SECONDS)
        with HostCall(breaker, _TIMEOUTS):
            node, layout = server.place(budget)
            with server.job_client.connection(node) as connection:
                server.ask_time(connection, budget)
                day = int(server.now() // DAY)
                key = day_key(self.name, day)
                writes = HashCommands(self.hashes, layout)
                writes.add(("HINCRBY", key, SPENT, operations))
                writes.add(expire(key, KEEP_SPENT_SECONDS, (SPENT,)))
                replies = checked(connection.call(writes.commands, budget))
        total = int(writes.results(replies)[0])
        with self._lock:
            self._day, self._known_spent = day, total
            # The own operations that the server does not know yet are the fleet's, too.
            return total - operations + self._batch.spent

    def _today(self) -> int:
        return self._day if self._server.ahead is None else int(self._server.now() // DAY)

    def expiry_job(self) -> HashFieldExpiry:
        """Return the job that frees the memory of expired minutes; install it once.

        The job's slices are idle on a server that expires fields itself.
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
        refused = {job: why for job, why in self._reports.refused.items() if job not in jobs}
        self._reports.refused = {**refused, **reasons}

    def lose(self, settings: Mapping[str, str]) -> None:
        """Report the fleet's settings that have vanished, from now on; none ends the report.

        Arguments:
            settings: by job, in words.

        No round trip.
        """
        self._reports.lose(settings)

    # ---- sending; in the thread alone ------------------------------------------------------------

    def _has_reached(self) -> bool:
        return self._server.ahead is not None

    def _release(self) -> None:
        self._server.job_client.close()

    def _has_news(self) -> bool:
        return bool(self._batch) or self._reports.is_wanted

    def _leave(self) -> None:
        # A process that has never reported has nobody to take leave of.
        self._reports.is_leaving = self._reports.at is not None

    def _deliver(self) -> bool:
        with self._lock:
            if not self._has_news():
                # Woken twice for one batch. Not even this process's name is written then.
                return True
        budget = Budget(_SEND_SECONDS, _WAIT_SECONDS)
        node, layout = self._server.place(budget)
        with self._server.job_client.connection(node) as connection:
            # An unreachable server costs no counts, because the question fails first.
            self._server.ask_time(connection, budget)
            with self._lock:
                batch, self._batch = self._batch, self._new_batch()
                self._reports.is_due = False
            self._send(batch, layout, connection, budget)
        return True

    def _send(self, batch: Unsent, layout: Layout, connection: OneAttempt, budget: Budget) -> None:
        now, moment = self._server.now(), self._clock.monotonic()
        minute, day = int(now // MINUTE * MINUTE), int(now // DAY)
        with self._lock:
            self._reports.complete(batch, minute, moment)
        is_busy = bool(batch.counts[ENLISTED]) or running_slice() is not None
        promised = max(self._interval, BUSY_SECONDS if is_busy else QUIET_SECONDS)
        changes = self._reports.changes(batch, minute, day, promised)
        silence = self._silence.ask(now)
        changes += silence
        writes = HashCommands(self.hashes, layout)
        for change in changes:
            writes.add(change)
        unreached, failing = SERVER_BREAKERS.unreached(), self.failing()
        leaves = self._reports.is_leaving
        self.events.look(self._watched.jobs(), unreached, failing, self._longest, leaves=leaves)
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
        self._server.hear_time(time)
        if isinstance(done, Exception):
            # Nothing was applied, for example for want of memory, or on a replica.
            self._put_back(batch)
            if questions:
                # A full server's settings count all the same: a job that rests may make room.
                self._hear(asked, connection.call(questions, budget))
            raise next((reply for reply in queued if isinstance(reply, Exception)), done)
        with self._lock:
            self._reports.arrived(batch, minute, moment, promised)
        # It keeps the promise also in a process in which nobody is ever recruited.
        WATCH.begin()
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

    def _put_back(self, batch: Unsent) -> None:
        with self._lock:
            self._batch.add(batch)

    def _longest(self, job: str) -> float | None:
        """Return the longest that the slices of a job may become, None: it is not reported here."""
        for recruiter in list(self._recruiters):
            with contextlib.suppress(UnknownJobError):
                return recruiter.slice_seconds(job)[1]
        return None
