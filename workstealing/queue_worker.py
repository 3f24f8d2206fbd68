"""QueueWorker: threads that take messages from a queue, call a handler, and settle each message.

It rests on the public methods of the queues alone. `workstealing queue work` runs one in a process
of its own.

A message in hand is in one of three states: it runs, it was lost, or somebody has claimed it to
settle it. The handler's thread and `stop` both want to settle it, and the heartbeats may find it
lost, so the change of the state decides: one of them makes it, and only this one sends anything
further. No acknowledgement follows a message that was given back, or that is known to be another's.

Nothing that was sent is sent again. If the reply to an acknowledgement is cut off, nobody knows
whether it was done; the message comes again after its lease if it was not.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from redis.exceptions import NoPermissionError, RedisClusterException, RedisError

from workstealing.clock import Duration, seconds_of, spell
from workstealing.errors import Aborted, ConfigurationError, WorkStealingError
from workstealing.recruiting import Recruiter
from workstealing.recruiting.checks import checked_count
from workstealing.safe_text import visible
from workstealing.store.sending import nothing_was_done
from workstealing.structures import FairMessage, FairQueue, ShuffleQueue, TimeShardQueue
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.message import Message
from workstealing.structures.time_shard_queue import Taken

__all__ = ["QueueWorker"]

GROUP = "consumers"
LEASE = 60.0
MOST_THREADS = 1000
# A stop waits for a read that is under way.
_LOOK_SECONDS = 1.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_SETTLE_SECONDS = 5.0
_TURN_SECONDS = 0.05
_BEATS_A_LEASE = 3

DONE, FAILED, GIVEN_BACK = "done", "failed", "given_back"
LATE, REFUSED, UNKNOWN = "late", "refused", "unknown"
ENDS = (DONE, FAILED, GIVEN_BACK, LATE, REFUSED, UNKNOWN)
"""How a message in hand may end: see `QueueWorker`."""

_FAULTS = (RedisError, RedisClusterException, OSError, Aborted)
# The server and its network are well, and the next message may be too.
_BAD_MESSAGES = (UnicodeDecodeError,)
_RUNNING, _LOST, _CLAIMED = "running", "lost", "claimed"

logger = logging.getLogger("workstealing")

Handler = Callable[[Any], Any]


@dataclass(slots=True, eq=False)
class _Hand:
    """A message whose handler runs, and its state."""

    message: Any
    state: str = _RUNNING


class QueueWorker:
    """Calls a handler with each message of a queue, in threads, until `stop`.

    A handler that returns acknowledges its message. One that raises gives it back, to be taken
    again after a random time of up to backoff, twice that, four times that, up to backoff_cap: full
    jitter. The queue's `max_attempts` sets poison aside. On a TimeShardQueue, where a release is no
    attempt, a message that failed waits for the end of its lease, or for the backoff if that is
    longer.

    Arguments:
        queue: a ShuffleQueue, a FairQueue or a TimeShardQueue on Redis, in its blocking form.
        handler: is called with a Message, a FairMessage or a Taken; a coroutine that it returns
            runs on an event loop of the thread's own.
        concurrency: how many messages are worked on at once, each in a thread.
        lease: seconds for which a message is ours without a heartbeat, 60 by default. That of a
            ShuffleQueue is its reaper's; that of a FairQueue is the queue's, and no other fits.
        backoff: seconds, of the first failure.
        backoff_cap: seconds, the most.
        group: of a ShuffleQueue: "consumers" by default.
        drain_all: look at every time shard of a TimeShardQueue.
        consumer: the name, by default the host's and the process's; each thread adds its number.
        recruiter: each thread enlists after a look that found nothing, and holds no message then.
        chance: returns a number of 0 to below 1, for the jitter.

    A thread extends the leases of all running messages three times a lease. A message that another
    consumer has by then is lost: its handler goes on, and its end is not sent. While the server
    cannot be reached, the reads go on with growing pauses of up to 5 s, and one line is logged.

    Attributes: ends: how many messages ended so: done; failed: given back with a backoff, or set
    aside; given_back: by `stop`; late: another consumer had it, or it was gone, also if the client
    itself has sent the call twice; refused: surely not settled; unknown: nobody knows. failure: the
    error that ended a thread, or None: nothing more is taken then.

    Raises: ConfigurationError. No round trip.
    """

    def __init__(
        self,
        queue: ShuffleQueue | FairQueue | TimeShardQueue,
        handler: Handler,
        *,
        concurrency: int = 1,
        lease: Duration | None = None,
        backoff: Duration = 1.0,
        backoff_cap: Duration = 300.0,
        group: str | None = None,
        drain_all: bool = False,
        consumer: str | None = None,
        recruiter: Recruiter | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if not callable(handler):
            raise ConfigurationError(
                f"{handler!r} cannot be called: give a function that takes a message"
            )
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise ConfigurationError(
                f"{handler!r} is a generator, whose body no call runs: give a function without"
                " `yield`"
            )
        self.handler = handler
        self.concurrency = checked_count(concurrency, "concurrency", 1, MOST_THREADS)
        self.backoff = seconds_of(backoff, "backoff")
        self.backoff_cap = seconds_of(backoff_cap, "backoff_cap")
        self.recruiter = recruiter
        self.consumer = consumer or f"{socket.gethostname()}-{os.getpid()}"
        self.ends: Counter[str] = Counter(dict.fromkeys(ENDS, 0))
        self.failure: BaseException | None = None
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._place = _place_of(queue, lease, group, drain_all)
        self._chance = chance
        self._tracing = _tracing(self._place)
        self._lock = threading.Lock()
        self._running: set[_Hand] = set()
        self._handling: set[threading.Thread] = set()
        # The threads whose last call has not reached the queue.
        self._away: set[threading.Thread] = set()
        self._threads: list[threading.Thread] = []
        self._beating: threading.Thread | None = None

    @property
    def queue_name(self) -> str:
        """The queue's name, as text."""
        return self._place.name

    @property
    def lease(self) -> float:
        """For how many seconds a message is ours without a heartbeat."""
        return self._place.lease

    @property
    def in_hand(self) -> int:
        """How many messages have a running handler, and are ours as far as is known."""
        return len(self._running)

    def start(self) -> None:
        """Begin to take messages, in threads of its own; return at once.

        Raises: ConfigurationError if it was started before.
        """
        if self._beating is not None:
            raise ConfigurationError("a worker is started once: make a new QueueWorker")
        self._beating = self._thread("heartbeats", self._beat)
        self._threads = [
            self._thread(str(number), self._work, f"{self.consumer}-{number}")
            for number in range(1, self.concurrency + 1)
        ]
        for each in (self._beating, *self._threads):
            each.start()

    def stop(self, grace: Duration = 30.0) -> bool:
        """Take nothing more, wait for the handlers, and give back what still runs.

        Call it from a thread, never from a signal's handler. A handler that still runs goes on in
        its daemon thread, and nothing is sent at its end.

        Arguments:
            grace: seconds to wait for the handlers.

        Returns: False if a message could not be settled for certain since the call, or is being
        settled still: it comes again after its lease. Takes grace and six seconds at most, and what
        the client's time-outs add.
        """
        seconds = seconds_of(grace, "grace")
        end, before = time.monotonic() + seconds, self._unsettled()
        self._stopping.set()
        count = self.in_hand
        has = f"{count} in hand, for up to {spell(seconds)}" if count else "nothing in hand"
        logger.info("ending: %s", has)
        for each in self._threads:
            each.join(max(0.0, end - time.monotonic()))
        with self._lock:
            left = list(self._running)
        for hand in left:
            if self._claim(hand):
                self._settle(hand, GIVEN_BACK, self._place.give_back)
        # A read that is under way may still bring a message, which its thread gives back.
        end = time.monotonic() + _LOOK_SECONDS + _SETTLE_SECONDS
        while (busy := self._busy()) and time.monotonic() < end:
            busy[0].join(_TURN_SECONDS)
        self._ended.set()
        if self._beating is not None:
            self._beating.join(_SETTLE_SECONDS)
        # A handler that has ended meanwhile was settled by its thread.
        return self._unsettled() == before and not self._busy()

    @property
    def is_abandoned(self) -> bool:
        """Whether a handler runs although the worker has stopped."""
        return self._ended.is_set() and any(each.is_alive() for each in self._threads)

    def _unsettled(self) -> int:
        """Return how many messages were surely not settled, or nobody knows."""
        with self._lock:
            return self.ends[REFUSED] + self.ends[UNKNOWN]

    def _busy(self) -> list[threading.Thread]:
        """Return the threads that read or settle: these end soon, unlike a handler."""
        return [each for each in self._threads if each.is_alive() and each not in self._handling]

    def _thread(self, name: str, work: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the worker raises it
                self.failure = self.failure or error
                self._stopping.set()

        return threading.Thread(target=guarded, name=f"queue worker {name}", daemon=True)

    def _work(self, consumer: str) -> None:
        """Take messages, one after the other, and call the handler with each."""
        faults = 0
        # It makes its event loop at the first coroutine.
        with closing(asyncio.Runner()) as loop:
            while not self._stopping.is_set():
                try:
                    message = self._place.take(consumer, _LOOK_SECONDS)
                except NoPermissionError:
                    # No server that comes back will grant it: the worker ends, and says so.
                    raise
                except (*_FAULTS, *_BAD_MESSAGES) as error:
                    # Nothing is in hand: a read gives back what it was granted without a reply.
                    self._note_fault(error)
                    self._stopping.wait(_pause(faults, self._chance()))
                    faults += 1
                    continue
                faults = 0
                self._note_answer()
                if message is not None:
                    self._handle(_Hand(message), loop)
                elif self.recruiter is not None and not self._stopping.is_set():
                    self.recruiter.enlist()

    def _handle(self, hand: _Hand, loop: asyncio.Runner) -> None:
        me, error = threading.current_thread(), None
        with self._lock:
            # A stop looks at what runs after it has said so: it sees this message, or we see it.
            if is_wanted := not self._stopping.is_set():
                self._running.add(hand)
                self._handling.add(me)
        if not is_wanted:
            self._settle(hand, GIVEN_BACK, self._place.give_back)
            return
        try:
            with self._tracing(hand.message):
                result = self.handler(hand.message)
                if inspect.isawaitable(result):
                    # In this context, for the sake of the span.
                    loop.run(_awaited(result), context=contextvars.copy_context())
        except BaseException as raised:  # noqa: BLE001 - an exit of the handler's is a failure too
            error = raised
        finally:
            with self._lock:
                self._handling.discard(me)
        if not self._claim(hand):
            self._note_unsent(hand, error)
        elif error is None:
            self._settle(hand, DONE, self._place.ack)
        else:
            self._give_back_later(hand, error)

    def _give_back_later(self, hand: _Hand, error: BaseException) -> None:
        attempts, most = self._place.attempts(hand.message), self._place.max_attempts
        seconds = self._backoff(attempts)
        said = "it is set aside" if attempts >= most else self._place.comes_again(seconds)
        logger.warning(
            "message %s failed, attempt %d of %d, %s: %s",
            *(hand.message.id, attempts, most, said, _said(error)),
            exc_info=error,
        )
        self._settle(hand, FAILED, lambda message: self._place.fail(message, seconds))

    def _backoff(self, attempts: int) -> float:
        """Return the pause after so many attempts, in seconds."""
        # The exponent is bounded, because a float is.
        most = min(self.backoff_cap, self.backoff * 2.0 ** min(attempts - 1, 64))
        return most * self._chance()

    def _claim(self, hand: _Hand) -> bool:
        """Say whether the caller is the one who settles a message."""
        with self._lock:
            is_ours = hand.state == _RUNNING
            if is_ours:
                hand.state = _CLAIMED
                self._running.discard(hand)
            return is_ours

    def _settle(self, hand: _Hand, end: str, call: Callable[[Any], bool]) -> None:
        """Settle a message that was claimed, once, and count how it has ended."""
        message = hand.message
        try:
            if not call(message):
                end = LATE
                logger.warning(
                    "message %s was not there at its end: its lease had ended, or it was cancelled,"
                    " or the client's own retries have settled it",
                    message.id,
                )
        except (*_FAULTS, WorkStealingError) as error:
            is_certain = not isinstance(error, Aborted) and nothing_was_done(error)
            wanted, end = end, REFUSED if is_certain else UNKNOWN
            logger.warning(
                "message %s (%s) %s: %s; it is not sent again, and the message comes again after"
                " its lease if it was not settled",
                *(message.id, wanted),
                "was not settled" if is_certain else "may be settled or not, nobody knows",
                _said(error),
            )
        self._count(end)

    def _count(self, end: str) -> None:
        with self._lock:
            self.ends[end] += 1

    def _note_unsent(self, hand: _Hand, error: BaseException | None) -> None:
        """Count a message that was lost; one that was given back is counted already."""
        if hand.state == _LOST:
            self._count(LATE)
        logger.warning(
            "the handler of message %s %s after the message had gone to others; nothing was sent",
            hand.message.id,
            "returned" if error is None else f"failed ({_said(error)})",
        )

    def _beat(self) -> None:
        """Extend the leases of the running messages, three times a lease."""
        usual = self.lease / _BEATS_A_LEASE
        pause = usual
        while not self._ended.wait(pause):
            with self._lock:
                hands = list(self._running)
            # After a fault the leases still have time.
            pause = usual if self._extend(hands) else usual / _BEATS_A_LEASE

    def _extend(self, hands: list[_Hand]) -> bool:
        """Extend leases; return False at a fault, after which the others are not tried."""
        for hand in hands:
            if hand.state != _RUNNING:
                continue
            try:
                is_ours = self._place.extend(hand.message)
            except _FAULTS as error:
                self._note_fault(error)
                return False
            if not is_ours:
                self._lose(hand)
            self._note_answer()
        return True

    def _lose(self, hand: _Hand) -> None:
        with self._lock:
            # It may have been settled since it was asked for.
            if hand.state != _RUNNING:
                return
            hand.state = _LOST
            self._running.discard(hand)
        logger.warning(
            "message %s was lost while its handler runs: its lease has ended, or it was cancelled;"
            " nothing will be sent at the handler's end",
            hand.message.id,
        )

    def _note_fault(self, error: BaseException) -> None:
        if isinstance(error, _BAD_MESSAGES):
            logger.warning("a message cannot be read by this client: %s", _said(error))
            return
        with self._lock:
            is_first = not self._away
            self._away.add(threading.current_thread())
        if is_first:
            logger.warning("the queue cannot be reached, trying on: %s", _said(error))

    def _note_answer(self) -> None:
        # Heartbeats without a message ask nothing: a read that was answered speaks for them.
        mine = {threading.current_thread(), self._beating}
        if not mine & self._away:
            return
        with self._lock:
            self._away -= mine
            is_last = not self._away
        if is_last:
            logger.warning("the queue can be reached again")


def _pause(faults: int, chance: float) -> float:
    """Return the seconds before the next read, after so many faults before this one."""
    return min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2.0 ** min(faults, 16)) * (0.5 + chance / 2)


def _said(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return visible(f"{name}: {error}" if str(error) else name)
    except Exception:  # noqa: BLE001 - a handler's error may be of any making
        return visible(name)


async def _awaited(result: Any) -> Any:
    return await result


class _WorkedQueue(ABC):
    """A queue as the worker uses it.

    Attributes: name; lease: in seconds; max_attempts; group: None for a kind without.
    """

    name: str
    lease: float
    max_attempts: int
    group: str | None = None

    @abstractmethod
    def take(self, consumer: str, seconds: float) -> Any:
        """Take a message, wait for one for so many seconds, and return None if none came."""

    @abstractmethod
    def ack(self, message: Any) -> bool:
        """Say that a message is done; return False if it was not there any more."""

    @abstractmethod
    def fail(self, message: Any, seconds: float) -> bool:
        """Let a message be taken again after so many seconds; this attempt counts."""

    @abstractmethod
    def give_back(self, message: Any) -> bool:
        """Let a message be taken again at once."""

    @abstractmethod
    def extend(self, message: Any) -> bool:
        """Begin the lease anew; return False if the message is no longer ours."""

    def comes_again(self, seconds: float) -> str:
        """Say for the log when a message that failed with this backoff comes again."""
        return f"again after {spell(seconds)}"

    def attempts(self, message: Any) -> int:
        """Return how often a message was delivered, this time included."""
        return int(message.attempts)

    def pickup_delay_ms(self, message: Any) -> int:
        """Return how long a message waited for its delivery."""
        return int(message.pickup_delay_ms)

    def fields(self, message: Any) -> Mapping[Any, Any]:
        """Return the user's fields, in which a trace's context may be."""
        fields: Mapping[Any, Any] = message.fields
        return fields


class _OnShuffleQueue(_WorkedQueue):
    def __init__(self, queue: ShuffleQueue, lease: Duration | None, group: str | None) -> None:
        self._queue, self.name = queue, queue.name
        self.lease = LEASE if lease is None else seconds_of(lease, "lease")
        self.max_attempts = queue.max_attempts
        self.group: str = GROUP if group is None else group

    def take(self, consumer: str, seconds: float) -> Message | None:
        return self._queue.read(self.group, consumer, block=seconds)

    def ack(self, message: Message) -> bool:
        return self._queue.ack(message) == 1

    def fail(self, message: Message, seconds: float) -> bool:
        return self._queue.nack(message, delay=seconds) == 1

    def give_back(self, message: Message) -> bool:
        return self._queue.nack(message) == 1

    def extend(self, message: Message) -> bool:
        return self._queue.extend(message) == 1


class _OnFairQueue(_WorkedQueue):
    def __init__(self, queue: FairQueue, lease: Duration | None) -> None:
        if lease is not None and seconds_of(lease, "lease") != queue.lease:
            raise ConfigurationError(
                f"the lease of this FairQueue is {spell(queue.lease)}, and not"
                f" {spell(seconds_of(lease, 'lease'))}: leave it out, and make the queue with it"
            )
        self._queue, self.name, self.lease = queue, queue.name, queue.lease
        self.max_attempts = queue.max_attempts

    def take(self, consumer: str, seconds: float) -> FairMessage | None:
        return self._queue.read(consumer, block=seconds)

    def ack(self, message: FairMessage) -> bool:
        return self._queue.ack(message) == 1

    def fail(self, message: FairMessage, seconds: float) -> bool:
        return self._queue.nack(message, delay=seconds) == 1

    def give_back(self, message: FairMessage) -> bool:
        return self._queue.nack(message) == 1

    def extend(self, message: FairMessage) -> bool:
        return self._queue.extend(message) == 1


class _OnTimeShardQueue(_WorkedQueue):
    _no_fields: ClassVar[Mapping[Any, Any]] = {}

    def __init__(
        self,
        queue: TimeShardQueue,
        lease: Duration | None,
        drain_all: bool,
    ) -> None:
        self._queue, self.name = queue, queue.name
        self.lease = LEASE if lease is None else seconds_of(lease, "lease")
        self.max_attempts, self._drain_all = queue.max_attempts, drain_all

    def take(self, consumer: str, seconds: float) -> Taken | None:
        return self._queue.take(consumer, self.lease, self._drain_all, block=seconds)

    def ack(self, message: Taken) -> bool:
        return self._queue.ack(message) == 1

    def fail(self, message: Taken, seconds: float) -> bool:
        # A release would forget the attempt, and poison would go round for ever. A lease that ends
        # counts; an extension never shortens it.
        return self._queue.extend(message, max(0.001, seconds))

    def comes_again(self, seconds: float) -> str:
        return f"again when its lease has ended, within {spell(max(self.lease, seconds))}"

    def give_back(self, message: Taken) -> bool:
        return self._queue.release(message)

    def extend(self, message: Taken) -> bool:
        return self._queue.extend(message, self.lease)

    def pickup_delay_ms(self, message: Taken) -> int:
        late = timedelta(seconds=self._queue.clock.time() - message.due.timestamp())
        return max(0, late // timedelta(milliseconds=1))

    def fields(self, message: Taken) -> Mapping[Any, Any]:  # noqa: ARG002 - it has only a body
        return self._no_fields


def _place_of(
    queue: Any,
    lease: Duration | None,
    group: str | None,
    drain_all: bool,
) -> _WorkedQueue:
    """Return a queue as the worker uses it. Raises: ConfigurationError."""
    is_shuffle, is_time = isinstance(queue, ShuffleQueue), isinstance(queue, TimeShardQueue)
    if group is not None and not is_shuffle:
        raise ConfigurationError(
            f"group={group!r} is for a ShuffleQueue, and this is a {type(queue).__name__}:"
            " leave it out"
        )
    if drain_all and not is_time:
        raise ConfigurationError(
            f"drain_all is for a TimeShardQueue, and this is a {type(queue).__name__}: leave it out"
        )
    if isinstance(queue, ShuffleQueue):
        return _OnShuffleQueue(queue, lease, group)
    if isinstance(queue, FairQueue):
        return _OnFairQueue(queue, lease)
    if isinstance(queue, TimeShardQueue) and queue.client is not None:
        return _OnTimeShardQueue(queue, lease, drain_all)
    raise ConfigurationError(
        f"no worker is for {queue!r}: give a ShuffleQueue, a FairQueue, or a TimeShardQueue on"
        " Redis, each in its blocking form"
    )


def _tracing(place: _WorkedQueue) -> Callable[[Any], Any]:
    """Return what makes the span of a message, if OpenTelemetry is installed; else a null context.

    A trace whose context the message's fields carry, such as ``traceparent``, is the span's parent.
    """
    try:
        from opentelemetry import propagate, trace
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        return lambda _message: nullcontext()
    tracer = trace.get_tracer("workstealing")

    @contextmanager
    def span_of(message: Any) -> Iterator[None]:
        known = propagate.get_global_textmap().fields
        fields = {as_text(name): value for name, value in place.fields(message).items()}
        carrier = {name: as_text(fields[name]) for name in known if name in fields}
        attributes: dict[str, Any] = {
            "messaging.system": "redis",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": place.name,
            "messaging.message.id": message.id,
            "queue.attempts": place.attempts(message),
            "queue.pickup_delay_ms": place.pickup_delay_ms(message),
        }
        if place.group is not None:
            attributes["messaging.consumer.group.name"] = place.group
        with tracer.start_as_current_span(
            f"process {place.name}",
            context=propagate.extract(carrier),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    return span_of
