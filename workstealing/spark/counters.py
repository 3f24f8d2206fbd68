"""The counters in Redis: one hash of a Spark application, to which its processes add up."""

from __future__ import annotations

from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import Unanswered, UnsentError, is_connection_fault
from workstealing.metrics.gathering import Gathering
from workstealing.recruiting.recruiter import Recruiter
from workstealing.recruiting.slice import Outcome
from workstealing.spark.counting import Counts
from workstealing.spark.making import ClientSettings
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, OneAttempt
from workstealing.store.job_client import JobClient, job_client_of
from workstealing.store.keys import require_one_slot

KEEP_SECONDS = 7 * 24 * 3600
ENOUGH = 1_000
"""So many waiting enlists are sent before the interval is over."""
_LOOK_SECONDS = 1.0
_SEND_SECONDS = 1.0
_WAIT_SECONDS = 0.25


def counters_key(application: str) -> bytes:
    """Return the key of an application's counters: a hash of field -> count, as of `Counts`."""
    return f"ws:spark:recruits:{application}".encode()


class RecruitCounters(Gathering[Counts]):
    """Adds a recruiter's counts to the application's hash, by a thread of its own.

    The counts go out when the interval is over or when 1,000 enlists wait, but at most once a
    second. The thread looks at the recruiter itself, so that a dismissed caller pays for nothing
    but a look at `is_quiet`; after an interval without an enlist it sleeps until it is roused.

    A send is one MULTI of HINCRBY and EXPIRE (7 days) in one round trip, by a one-attempt
    connection. Each count arrives at most once. Counts that certainly have not arrived are kept,
    summed up by field, for the next time. Counts of a send during which the connection is cut are
    lost. A dead server costs a line in the log once a minute.

    Arguments:
        recruiter: whose hook this becomes.
        client: whose server counts.
        interval: between two sends, in seconds or a timedelta.

    No I/O yet.
    """

    def __init__(
        self,
        recruiter: Recruiter,
        application: str,
        client: ClientSettings,
        interval: Duration = 5.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._recruiter = recruiter
        self._key = counters_key(application)
        self._settings = client
        super().__init__("sending the counts of Spark's recruits", interval, clock)
        recruiter.add_hook(self)

    def _start_from_zero(self) -> None:
        self._jobs: dict[str, str] = {}
        super()._start_from_zero()
        self.is_quiet = True
        self._job_client: JobClient | None = None

    def _new_batch(self) -> Counts:
        return Counts(self._jobs)

    def on_enlisted(self, count: int) -> None:
        """Count callers who enlisted."""
        with self._lock:
            self._batch.enlist(count)

    def on_recruited(self, job: str) -> None:
        """Count a recruit."""
        with self._lock:
            self._batch.recruit(job)

    def on_outcome(
        self,
        job: str,
        outcome: Outcome,
        items: int,
        seconds: float,
        error: BaseException | None,  # noqa: ARG002 - the hook's signature
    ) -> None:
        """Count what became of a recruit."""
        with self._lock:
            self._batch.outcome(job, outcome, items, seconds)

    def rouse(self) -> None:
        """Wake the thread, or start it: a task has enlisted while it was quiet."""
        with self._lock:
            if self._closed:
                return
            if self.is_quiet:
                self.is_quiet = False
                self._next_send = self._clock.monotonic() + self._interval
            self._rouse()

    def flush(self, timeout: Duration = 1.0) -> bool:
        """Send now what has been counted, the last enlists included, and wait for it.

        Arguments and returns as of `Gathering.flush`.
        """
        self._recruiter.flush()
        return super().flush(timeout)

    def _rest(self) -> None:
        while not (self._closed or self._waiting):
            if self.is_quiet:
                self._sleep()
                continue
            self._sleep(min(self._interval, _LOOK_SECONDS))
            self._recruiter.flush()
            with self._lock:
                now = self._clock.monotonic()
                if now >= self._next_send or self._batch.enlisted >= ENOUGH:
                    self._next_send = now + self._interval
                    return

    def _deliver(self) -> bool:
        self._recruiter.flush()
        with self._lock:
            batch, self._batch = self._batch, self._new_batch()
            if not batch:
                self.is_quiet = True
        if not batch:
            # An earlier enlist is found now; a later one sees that the thread is quiet.
            self._recruiter.flush()
            with self._lock:
                self.is_quiet = not self._batch
            return True
        try:
            self._send(batch)
        except UnsentError as error:
            with self._lock:
                self._batch.add(batch.by_field)
            raise error.cause from None
        return True

    def _send(self, batch: Counts) -> None:
        """Add a batch to the application's hash.

        Raises: UnsentError if it certainly has not arrived; a connection fault if that is unknown.
        """
        try:
            if self._job_client is None:
                self._job_client = job_client_of(self._settings.connected())
            job_client = self._job_client
            node = job_client.node_of(require_one_slot((self._key,)))
        except Exception as error:
            raise UnsentError(error) from error
        budget = Budget(_SEND_SECONDS, _WAIT_SECONDS)
        with job_client.connection(node) as connection:
            _greet(connection, budget)
            adds: list[Command] = [
                ("HINCRBY", self._key, field, count)
                for field, count in batch.by_field.items()
                if count
            ]
            try:
                replies = connection.call(
                    [("MULTI",), *adds, ("EXPIRE", self._key, KEEP_SECONDS), ("EXEC",)], budget
                )
            except Exception as error:
                if is_connection_fault(error) or isinstance(error, Unanswered):
                    raise
                # The slot has moved, or there was no time to begin.
                raise UnsentError(error) from error
            _require_applied(replies)

    def _release(self) -> None:
        if self._job_client is not None:
            self._job_client.close()


def _greet(connection: OneAttempt, budget: Budget) -> None:
    """Open the connection by a PING, so that a server that cannot be reached costs no counts."""
    if connection.is_open:
        return
    try:
        replies: list[Any] = connection.call([("PING",)], budget)
    except Exception as error:
        raise UnsentError(error) from error
    if isinstance(replies[0], Exception):
        raise UnsentError(replies[0])


def _require_applied(replies: list[Any]) -> None:
    """Raise UnsentError if the server has refused all of it; its error if it refused a part."""
    last = replies[-1]
    refused = [reply for reply in replies if isinstance(reply, Exception)]
    if isinstance(last, Exception):
        raise UnsentError(refused[0])
    for reply in last or ():
        if isinstance(reply, Exception):
            raise reply
