"""The task of a sweep or a reconciliation: why it cannot begin, and its turn."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import (
    ConfigurationError,
    LayoutError,
    OutOfTime,
    Skipped,
    Unmapped,
    WorkStealingError,
    is_abort,
    is_connection_fault,
)
from workstealing.recruiting.checks import checked_items
from workstealing.recruiting.job import Job, PartJob
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Pace
from workstealing.store.connection import SENT


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a task could not begin, on its way to the driver, which raises it as what it was."""

    kind: type[Exception]
    text: str

    def error(self) -> Exception:
        """Return the error."""
        return self.kind(self.text)


def refusal_of(error: Exception) -> Refusal | None:
    """Return what the driver should raise for an error of a task; None: let Spark show it."""
    if isinstance(error, LayoutError):
        return Refusal(LayoutError, str(error))
    if isinstance(error, WorkStealingError):
        return Refusal(ConfigurationError, str(error))
    if is_connection_fault(error):
        return Refusal(ConnectionError, f"the server could not be asked: {error}")
    return None


def checked_share(share: object, what: str) -> float:
    """Return a share as a float. Raises: ConfigurationError unless 0 < share <= 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigurationError(
            f"{what} is {share!r}; expected a share of the server's time, 0 < share <= 1"
        )
    return float(share)


IDLE_IN_A_ROW = 5
"""How often in a row a job that does not divide must find nothing, to be taken for drained."""
VAIN_IN_A_ROW = 8
"""After how many slices in a row that were aborted, or came to nothing, a turn ends."""
_FIRST_PAUSE_SECONDS = 0.005


SLICE_SECONDS = 0.002
"""With max_share: the seconds of a server's time that a slice should take; others wait behind."""
_FIRST_ITEMS, _LEAST_ITEMS = 64, 16


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of a task.

    Fields: limit: items a slice; seconds: the length of a slice; turn_seconds: after how long a
    turn ends at the next slice; max_ops: Redis commands a second of this part, None for no bound;
    max_share: the share of the server's time that this part may take, None for no bound.
    """

    limit: int
    seconds: float
    turn_seconds: float
    max_ops: float | None = None
    max_share: float | None = None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of a turn.

    Fields: items; slices; aborted: slices in which another writer came first, a slot was on the
    move or the database was not ready; failed: 1 if an error ended the turn; operations: Redis
    commands; seconds; is_drained: nothing was left; error: the last one, "" for none.
    """

    items: int = 0
    slices: int = 0
    aborted: int = 0
    failed: int = 0
    operations: int = 0
    seconds: float = 0.0
    is_drained: bool = False
    error: str = ""


class CommandRate:
    """Bounds commands a second: what has been sent is paid for by waiting before the next slice.

    In any window of T seconds at most T times the rate is sent, and the commands of one slice.

    Arguments:
        rate: commands a second, None for no bound.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        rate: float | None,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._free_at = clock.monotonic()

    def wait(self) -> None:
        """Wait until everything is paid for."""
        pause = self._free_at - self._clock.monotonic()
        if pause > 0:
            self._sleep(pause)

    def pay(self, commands: int) -> None:
        """Note commands that have just been sent."""
        if self._rate is not None:
            self._free_at = max(self._free_at, self._clock.monotonic()) + commands / self._rate


def take_turn(
    job: Job,
    orders: Orders,
    *,
    clock: Clock = SYSTEM_CLOCK,
    sleep: Callable[[float], None] = time.sleep,
    random: Callable[[], float] = random.random,
) -> TurnResult:
    """Do slices of a job until it is drained, an error ends the turn, or its time is up.

    Arguments:
        job: a part of a divided job, which knows when it is drained; any other one is taken for
            drained when it has found nothing several times in a row.
        clock: for tests.
        sleep: for tests.
        random: for tests.

    Returns: what was done; errors of the job are in there.
    """
    items = slices = aborted = operations = idle = vain = 0
    error, is_failed = "", False
    limit = orders.limit
    if orders.max_ops is not None:
        # No slice sends much more than a second's commands at once.
        limit = max(1, min(limit, int(orders.max_ops)))
    pace = CommandRate(orders.max_ops, clock, sleep)
    share: Pace | None = None
    if orders.max_share is not None:
        share = Pace(
            orders.max_share,
            first=min(_FIRST_ITEMS, limit),
            least=min(_LEAST_ITEMS, limit),
            most=limit,
            longest=SLICE_SECONDS,
        )
    asks_time = share is not None
    started = clock.monotonic()
    while not _is_drained(job, idle) and vain < VAIN_IN_A_ROW and not is_failed:
        if clock.monotonic() - started >= orders.turn_seconds:
            break
        pace.wait()
        began = clock.monotonic()
        if share is not None:
            if share.next_at > began:
                sleep(share.next_at - began)
                began = clock.monotonic()
            limit = share.room
        before, handled, was_in_vain = SENT.commands, 0, False
        trips_before, own_before = SENT.seconds, SENT.server_seconds
        slices += 1
        slice = Slice(limit, orders.seconds, clock)
        SENT.asks_time = asks_time
        try:
            answer = job.perform(slice)
            handled = checked_items(answer, job.name)
        except Exception as problem:  # noqa: BLE001 - reported with the part
            if not (is_abort(problem) or isinstance(problem, OutOfTime | Skipped | Unmapped)):
                is_failed = True
            else:
                aborted += not isinstance(problem, OutOfTime)
                was_in_vain = True
            error = f"{type(problem).__name__}: {problem}"
        finally:
            # A server that refuses TIME is not asked for it again.
            asks_time, SENT.asks_time = SENT.asks_time, False
        # The commands of a job with a client of its own are not counted here. A script that handles
        # many keys is told as so many.
        spent = max(SENT.commands - before, slice.operations) or max(1, handled)
        pace.pay(spent)
        if share is not None:
            trips, own = SENT.seconds - trips_before, SENT.server_seconds - own_before
            # A job with a client of its own is taken to use the server for the whole slice.
            lasted = clock.monotonic() - began
            share.paid(began, own or lasted, trips or lasted, handled)
        operations += spent
        items += handled
        idle = 0 if handled or was_in_vain else idle + 1
        vain = vain + 1 if was_in_vain else 0
        if vain:
            sleep(random() * _FIRST_PAUSE_SECONDS * 2**vain)
    return TurnResult(
        items,
        slices,
        aborted,
        int(is_failed),
        operations,
        clock.monotonic() - started,
        not is_failed and _is_drained(job, idle),
        error,
    )


def _is_drained(job: Job, idle: int) -> bool:
    return job.is_drained if isinstance(job, PartJob) else idle >= IDLE_IN_A_ROW
