"""TimeShardQueue: messages by due time, whose producers and consumers take turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any, Literal, Protocol, Self, overload

from workstealing.clock import SYSTEM_CLOCK, WallClock
from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.structures.time_shard_queue.message import (
    LONGEST_CONSUMER,
    DeadMessage,
    DueTime,
    Taken,
    TimeShardCounts,
    due_of,
    message_bytes,
    milliseconds,
    moment,
    new_id,
    time_shard_of,
)
from workstealing.structures.time_shard_queue.rotation import Rotation, rotation_of
from workstealing.structures.time_shard_queue.store import Counts, Entry, Held, Store

MAX_ATTEMPTS = 5
MOST_AT_ONCE = 1000

# Yields what a store's method has returned, is sent what came of it, and returns the result.
Steps = Generator[Any, Any, Any]


class BlockingStore(Store, Protocol):
    """A store whose time shards answer at once."""

    @property
    def asynchronous(self) -> Literal[False]:
        """Whether what `bind` returns is for asyncio."""
        ...


class AsyncStore(Store, Protocol):
    """A store whose time shards are awaited."""

    @property
    def asynchronous(self) -> Literal[True]:
        """Whether what `bind` returns is for asyncio."""
        ...


class _Queue:
    """What both forms have in common: every rule, written once."""

    def __init__(
        self,
        store: Any,
        name: str | bytes,
        shards: int = 4,
        period_s: float = 60,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        clock: WallClock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(name, str | bytes) or not name:
            raise ConfigurationError(f"the name {name!r} is not usable: give a text or bytes")
        if not callable(getattr(store, "bind", None)):
            raise ConfigurationError(
                f"a store was expected, not {type(store).__name__}: give RedisStore(client)"
            )
        self.rotation: Rotation = rotation_of(shards, period_s)
        """Whose turn it is when; pure functions of a clock."""
        self.max_attempts: int = _checked_number("max_attempts", max_attempts, 10**6)
        self.store = store
        self.time_shards = store.bind(to_bytes(name), self.rotation)
        """This queue in its store; what the sweeper works with."""
        self.clock = clock
        self._name = to_bytes(name)

    @property
    def name(self) -> str:
        """The name, as text."""
        return self._name.decode(errors="backslashreplace")

    def now_ms(self) -> int:
        """Return the time of day, by this process's own clock, that chooses time shards."""
        return int(self.clock.time() * 1000)

    def _do(self, steps: Steps) -> Any:
        raise NotImplementedError

    def open(self) -> Any:
        """Check the layout, or write it down; every call does so by itself, once.

        Errors: ConfigurationError for another number of time shards or another period than the
        queue has; LayoutError; EvictionPolicyError. Two round trips the first time, then none.
        """
        return self._do(self._open())

    def put(self, message: str | bytes, due: DueTime = None) -> Any:
        """Put a message into the producers' time shard.

        Arguments: message: bytes, or text, kept as UTF-8; due: from when on it may be taken: an
        aware datetime, Unix seconds, or a timedelta from now; None: now. Judged by the store's
        clock, never by this process's. Returns: its id. Errors: ConfigurationError; LayoutError;
        with Redis, OutOfMemoryError if it is full. One round trip.
        """
        body, when = message_bytes(message), due_of(due)
        return self._do(self._put(body, when))

    def take(self, consumer: str, lease_s: float = 60.0, drain_all: bool = False) -> Any:
        """Lease the message with the lowest due time of the consumers' time shard.

        Messages that are due in the future stay. Where no others are left, one whose lease has
        ended is leased anew; one that has been taken `max_attempts` times in vain is set aside.

        Arguments: consumer: a name, for people to read; lease_s: seconds until the lease ends by
        itself, to be longer than the work takes; drain_all: look at every other time shard too,
        if there is nothing in the consumers'. Returns: a `Taken`, or None. Errors:
        ConfigurationError; LayoutError. One round trip; with drain_all at most N.
        """
        arguments = (*_checked_taking(consumer, lease_s), 1, drain_all)
        return self._do(self._first(*arguments))

    def take_many(
        self, consumer: str, n: int, lease_s: float = 60.0, drain_all: bool = False
    ) -> Any:
        """Lease up to n messages; see `take`.

        Arguments: n: 1 to 1,000. Returns: a list of `Taken`, in each time shard those with the
        lowest due times first. The same round trips.
        """
        _checked_number("n", n, MOST_AT_ONCE)
        return self._do(self._take(*_checked_taking(consumer, lease_s), n, drain_all))

    def ack(self, *messages: Taken | str) -> Any:
        """Say that messages are done: nobody is given them again, whoever has a lease of them.

        An acknowledgement always wins, a late one too. Arguments: `Taken` or ids. Returns: how many
        were known and not consumed before. Errors: ConfigurationError for what is no id of this
        queue. One round trip for each time shard they lie in.
        """
        return self._do(self._by_time_shard("consume", messages))

    def delete(self, message: Taken | str) -> Any:
        """Remove a message, whether or not it was taken. Returns: whether it was there to remove.

        A consumer that has it now is not stopped. Errors: as of `ack`. One round trip.
        """
        return self._do(self._delete(message))

    def release(self, message: Taken | str, due: DueTime = None) -> Any:
        """End a lease early, so that the message is taken again at its time shard's turn.

        This attempt is forgotten. Arguments: a `Taken`, whose lease must be the last one; or an id:
        whoever has the lease; due: a new due time, None for the old one. Returns: whether it was
        released; False if somebody else has taken it since, or it is consumed or set aside. Errors:
        ConfigurationError. One round trip.
        """
        when = None if due is None else due_of(due)
        return self._do(self._release(message, when))

    def observe(self) -> Any:
        """Count what is in each time shard; return a list of `TimeShardCounts`. One round trip."""
        return self._do(self._observe())

    def dead(self, n: int = 100) -> Any:
        """List messages that were set aside, those of longest ago first.

        Arguments: n: 1 to 1,000. Returns: a list of `DeadMessage`. One round trip a time shard.
        """
        _checked_number("n", n, MOST_AT_ONCE)
        return self._do(self._dead(n))

    def revive(self, *ids: str) -> Any:
        """Let dead messages wait again, each in its time shard, their attempts forgotten.

        Returns: how many were dead. Errors: as of `ack`. One round trip a time shard.
        """
        return self._do(self._by_time_shard("revive", ids))

    def discard(self, *ids: str) -> Any:
        """Remove dead messages for good.

        Returns: how many were dead. Errors: as of `ack`. One round trip a time shard.
        """
        return self._do(self._by_time_shard("discard", ids))

    def _open(self) -> Steps:
        found = yield self.time_shards.open()
        if found != self.rotation:
            raise ConfigurationError(
                f"the queue {self.name!r} has {found.time_shards} time shards with a period of"
                f" {found.period_ms / 1000:g} s, not {self.rotation.time_shards} with"
                f" {self.rotation.period_ms / 1000:g} s: give shards={found.time_shards} and"
                f" period_s={found.period_ms / 1000:g}, or use another name; nothing was changed"
            )

    def _put(self, body: bytes, due: Any) -> Steps:
        yield from self._open()
        now_s = self.clock.time()
        time_shard = self.rotation.producing(int(now_s * 1000))
        message_id = new_id(time_shard, now_s)
        yield self.time_shards.put(time_shard, [Entry(message_id, body, due)])
        return message_id

    def _take(self, consumer: str, lease_ms: int, n: int, drain_all: bool) -> Steps:
        yield from self._open()
        taken: list[Taken] = []
        mine = self.rotation.consuming(self.now_ms())
        count = self.rotation.time_shards if drain_all else 1
        for i in range(count):
            # Backwards: what the producers write now comes last but few, what is oldest first.
            time_shard = (mine - i) % self.rotation.time_shards
            wanted = n - len(taken)
            held = yield self.time_shards.take(
                time_shard, consumer, lease_ms, wanted, self.max_attempts
            )
            taken += [_taken(each, time_shard) for each in held]
            if len(taken) >= n:
                break
        return taken

    def _first(self, consumer: str, lease_ms: int, n: int, drain_all: bool) -> Steps:
        taken = yield from self._take(consumer, lease_ms, n, drain_all)
        return taken[0] if taken else None

    def _by_time_shard(self, method: str, messages: Sequence[Taken | str]) -> Steps:
        groups: defaultdict[int, list[str]] = defaultdict(list)
        for message in messages:
            time_shard, message_id = self._place(message)
            groups[time_shard].append(message_id)
        yield from self._open()
        count = 0
        for time_shard, ids in groups.items():
            for first in range(0, len(ids), MOST_AT_ONCE):
                chunk = ids[first : first + MOST_AT_ONCE]
                count += yield getattr(self.time_shards, method)(time_shard, chunk)
        return count

    def _delete(self, message: Taken | str) -> Steps:
        return (yield from self._by_time_shard("consume", (message,))) == 1

    def _release(self, message: Taken | str, due: Any) -> Steps:
        time_shard, message_id = self._place(message)
        token = message.token if isinstance(message, Taken) else None
        yield from self._open()
        return (yield self.time_shards.release(time_shard, message_id, token, due))

    def _observe(self) -> Steps:
        yield from self._open()
        numbers = range(self.rotation.time_shards)
        found: list[Counts] = yield self.time_shards.counts(numbers)
        now_ms = self.now_ms()
        return [
            TimeShardCounts(
                number, self.rotation.role(number, now_ms), *each[:-1], each.overdue_ms / 1000
            )
            for number, each in zip(numbers, found, strict=True)
        ]

    def _dead(self, n: int) -> Steps:
        yield from self._open()
        found = []
        for time_shard in range(self.rotation.time_shards):
            found += yield self.time_shards.dead(time_shard, n)
        found.sort(key=lambda each: each.since_ms)
        return [
            DeadMessage(
                each.id,
                each.message,
                moment(each.due_ms),
                each.attempts,
                moment(each.since_ms),
                each.consumer,
            )
            for each in found[:n]
        ]

    def _place(self, message: Taken | str) -> tuple[int, str]:
        message_id = message.id if isinstance(message, Taken) else message
        return time_shard_of(message_id, self.rotation.time_shards), message_id


class TimeShardQueue(_Queue):
    """A queue by due time, whose producers and consumers never touch the same time shard at once.

    With t = whole periods since the Unix epoch by the caller's own clock, producers write into time
    shard t mod N and consumers read (t - 2) mod N, so that clocks which differ by up to a period do
    no harm. A message therefore waits for its time shard's turn: see `docs/time_shard_queue.md`.
    Messages are delivered at least once: a take is a lease.

    Arguments: store: where it is kept, `RedisStore(client)` (a store for asyncio gives an
    `AsyncTimeShardQueue`); name; shards: N, 4 to 1,024, from 6 on with a time shard that nobody
    touches; period_s: seconds; max_attempts: how often a message may be taken in vain before it is
    set aside; clock: what chooses time shards, for tests. N and the period are written down at the
    first use and the same for all.

    Source: the time shards of cassandra-ruby-queue (whose own arithmetic jumps at each hour).
    """

    # mypy would have it return a subclass; who calls it is told the right type even so.
    @overload
    def __new__(  # type: ignore[misc]
        cls,
        store: AsyncStore,
        name: str | bytes,
        shards: int = ...,
        period_s: float = ...,
        *,
        max_attempts: int = ...,
        clock: WallClock = ...,
    ) -> AsyncTimeShardQueue: ...

    @overload
    def __new__(
        cls,
        store: BlockingStore,
        name: str | bytes,
        shards: int = ...,
        period_s: float = ...,
        *,
        max_attempts: int = ...,
        clock: WallClock = ...,
    ) -> Self: ...

    def __new__(cls, store: Any, *args: Any, **options: Any) -> Any:
        """Make an `AsyncTimeShardQueue` where the store is for asyncio."""
        if cls is TimeShardQueue and getattr(store, "asynchronous", False):
            return AsyncTimeShardQueue(store, *args, **options)
        return super().__new__(cls)

    def _do(self, steps: Steps) -> Any:
        reply: Any = None
        while True:
            try:
                reply = steps.send(reply)
            except StopIteration as done:
                return done.value


class AsyncTimeShardQueue(_Queue):
    """A `TimeShardQueue` on a store for asyncio: every method is awaited."""

    async def _do(self, steps: Steps) -> Any:
        reply: Any = None
        while True:
            try:
                pending = steps.send(reply)
            except StopIteration as done:
                return done.value
            reply = await pending


def _taken(held: Held, time_shard: int) -> Taken:
    return Taken(
        held.id,
        held.message,
        moment(held.due_ms),
        held.attempts,
        moment(held.ends_ms),
        held.token,
        time_shard,
    )


def _checked_taking(consumer: Any, lease_s: Any) -> tuple[str, int]:
    if not isinstance(consumer, str) or not 0 < len(consumer) <= LONGEST_CONSUMER:
        raise ConfigurationError(
            f"consumer={consumer!r} is no name: give a text of 1 to {LONGEST_CONSUMER} characters"
        )
    return consumer, milliseconds("lease_s", lease_s)


def _checked_number(name: str, number: Any, most: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise ConfigurationError(f"{name}={number!r} is not usable: give 1 to {most}")
    return number
