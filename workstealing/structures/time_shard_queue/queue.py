"""TimeShardQueue: messages by due time, whose producers and consumers take turns."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Generic, Literal, Protocol, TypeVar

from workstealing.errors import ConfigurationError
from workstealing.store.paging import Page
from workstealing.structures.time_shard_queue.message import (
    LONGEST_CONSUMER,
    DeadMessage,
    DueTime,
    Taken,
    TimeShardCounts,
    due_of,
    message_bytes,
    milliseconds,
)
from workstealing.structures.time_shard_queue.rules import (
    MOST_AT_ONCE,
    Rules,
    Steps,
    checked_number,
    is_utf8,
)
from workstealing.structures.time_shard_queue.store import Store

# What a call gives back: the result, or something to await.
_NoneT = TypeVar("_NoneT")
_IdT = TypeVar("_IdT")
_TakenT = TypeVar("_TakenT")
_ManyT = TypeVar("_ManyT")
_IntT = TypeVar("_IntT")
_BoolT = TypeVar("_BoolT")
_CountsT = TypeVar("_CountsT")
_DeadT = TypeVar("_DeadT")


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


class _Queue(Rules, Generic[_NoneT, _IdT, _TakenT, _ManyT, _IntT, _BoolT, _CountsT, _DeadT]):
    """What both forms have in common."""

    def _do(self, steps: Steps) -> Any:
        raise NotImplementedError

    def open(self) -> _NoneT:
        """Check the layout, or write it down, as the first put does; every call checks it, once.

        Errors: ConfigurationError for another number of time shards or another period than the
        queue has; LayoutError; EvictionPolicyError. Two or three round trips the first time,
        then none.
        """
        result: _NoneT = self._do(self._opened(create=True))
        return result

    def put(self, message: str | bytes, due: DueTime = None) -> _IdT:
        """Put a message into the producers' time shard.

        Arguments: message: bytes, or text, kept as UTF-8; due: from when on it may be taken: an
        aware datetime, Unix seconds, or a timedelta from now; None: now. Judged by the store's
        clock, never by this process's. Returns: its id. Errors: ConfigurationError; LayoutError;
        with Redis, OutOfMemoryError if it is full. One round trip; three for the first message of a
        time shard.
        """
        body, when = message_bytes(message), due_of(due)
        result: _IdT = self._do(self._putting(body, when))
        return result

    def take(self, consumer: str, lease_s: float = 60.0, drain_all: bool = False) -> _TakenT:
        """Lease the message with the lowest due time of the consumers' time shard.

        Messages that are due in the future stay. Where no others are left, one whose lease has
        ended is leased anew; one that has been taken `max_attempts` times in vain is set aside.

        Arguments: consumer: a name, for people to read; lease_s: seconds until the lease ends by
        itself, to be longer than the work takes; drain_all: look at every other time shard too,
        if there is nothing in the consumers'. Returns: a `Taken`, or None. Errors:
        ConfigurationError; LayoutError. One round trip; with drain_all at most N.
        """
        arguments = (*_checked_taking(consumer, lease_s), 1, drain_all)
        result: _TakenT = self._do(self._taking_one(*arguments))
        return result

    def take_many(
        self, consumer: str, n: int, lease_s: float = 60.0, drain_all: bool = False
    ) -> _ManyT:
        """Lease up to n messages; see `take`.

        Arguments: n: 1 to 1,000. Returns: a list of `Taken`, in each time shard those with the
        lowest due times first. With Redis a round trip for each 100, each atomic: if the process
        dies between two of them, the leases of those taken end by themselves.
        """
        checked_number("n", n, MOST_AT_ONCE)
        result: _ManyT = self._do(self._taking(*_checked_taking(consumer, lease_s), n, drain_all))
        return result

    def ack(self, *messages: Taken | str) -> _IntT:
        """Say that messages are done: nobody is given them again, whoever has a lease of them.

        An acknowledgement always wins, a late one too. Arguments: `Taken` or ids. Returns: how many
        were known and not consumed before. Errors: ConfigurationError for what is no id of this
        queue. One round trip for each time shard they lie in and 200 messages there.
        """
        result: _IntT = self._do(self._changing("consume", messages))
        return result

    def delete(self, message: Taken | str) -> _BoolT:
        """Remove a message, whether or not it was taken. Returns: whether it was there to remove.

        A consumer that has it now is not stopped. Errors: as of `ack`. One round trip.
        """
        result: _BoolT = self._do(self._deleting(message))
        return result

    def release(self, message: Taken | str, due: DueTime = None) -> _BoolT:
        """End a lease early, so that the message is taken again at its time shard's turn.

        This attempt is forgotten. Arguments: a `Taken`, whose lease must be the last one; or an id:
        whoever has the lease; due: a new due time, None for the old one. Returns: whether it was
        released; False if somebody else has taken it since, or it is consumed or set aside. Errors:
        ConfigurationError. One round trip.
        """
        when = None if due is None else due_of(due)
        result: _BoolT = self._do(self._releasing(message, when))
        return result

    def extend(self, taken: Taken, lease_s: float = 60.0) -> _BoolT:
        """Let a lease last longer, for work that takes longer than was thought.

        Arguments: taken: a `Taken`, whose lease must be the last one; lease_s: for how many seconds
        from now on, by the store's clock; a lease that lasts longer anyhow is not shortened.
        Returns: whether the lease still holds; False if somebody else has taken the message since,
        it waits again, or it was released, consumed or set aside: then stop working on it. Errors:
        ConfigurationError. One round trip.
        """
        if not isinstance(taken, Taken):
            raise ConfigurationError(
                f"{taken!r} is no lease: give the Taken that a take has returned"
            )
        lease_ms = milliseconds("lease_s", lease_s)
        result: _BoolT = self._do(self._extending(taken, lease_ms))
        return result

    def drop(self) -> _IntT:
        """Remove the queue with all its messages, the dead ones too, and what it is made like.

        After that the name can be used anew, with other time shards and another period. Nobody may
        use the queue meanwhile: what is put while it is dropped may be removed or refused. If a
        call is cut off, the layout says so to whoever opens the queue, and another call finishes.

        Returns: how many messages it held that had not been consumed. Errors: ConfigurationError
        for another number of time shards or another period than the queue has, in which case
        nothing was removed; LayoutError. One round trip for each time shard, and three.
        """
        result: _IntT = self._do(self._dropping())
        return result

    def observe(self) -> _CountsT:
        """Count what is in each time shard; return a list of `TimeShardCounts`. One round trip."""
        result: _CountsT = self._do(self._observing())
        return result

    def dead(self, n: int = 100) -> _DeadT:
        """List messages that were set aside, those of longest ago first.

        Arguments: n: 1 to 1,000. Returns: a `Page` of `DeadMessage`, a list whose `more` says how
        many others there are. One round trip a time shard for each 200, and one to count if there
        are n or more.
        """
        checked_number("n", n, MOST_AT_ONCE)
        result: _DeadT = self._do(self._listing_dead(n))
        return result

    def revive(self, *ids: str) -> _IntT:
        """Let dead messages wait again, each in its time shard, their attempts forgotten.

        Returns: how many were dead. Errors: as of `ack`. One round trip a time shard.
        """
        result: _IntT = self._do(self._changing("revive", ids))
        return result

    def discard(self, *ids: str) -> _IntT:
        """Remove dead messages for good.

        Returns: how many were dead. Errors: as of `ack`. One round trip a time shard.
        """
        result: _IntT = self._do(self._changing("discard", ids))
        return result


class TimeShardQueue(
    _Queue[
        None,
        str,
        Taken | None,
        list[Taken],
        int,
        bool,
        list[TimeShardCounts],
        Page[DeadMessage],
    ]
):
    """A queue by due time, whose producers and consumers never touch the same time shard at once.

    With t = whole periods since the Unix epoch by the caller's own clock, producers write into time
    shard t mod N and consumers read (t - 2) mod N, so that clocks which differ by up to a period do
    no harm. A message therefore waits for its time shard's turn: see `docs/time_shard_queue.md`.
    Messages are delivered at least once: a take is a lease.

    Arguments: store: where it is kept, `RedisStore(client)` (`AsyncTimeShardQueue` takes a
    store for asyncio); name; shards: N, 4 to 1,024, from 6 on with a time shard that nobody
    touches; period_s: seconds; max_attempts: how often a message may be taken in vain before it is
    set aside; clock: what chooses time shards, for tests. N and the period are written down at the
    first use and the same for all.

    Source: the time shards of cassandra-ruby-queue (whose own arithmetic jumps at each hour).
    """

    _is_async_client: Literal[False] = False

    def _do(self, steps: Steps) -> Any:
        reply: Any = None
        while True:
            try:
                reply = steps.send(reply)
            except StopIteration as done:
                return done.value


class AsyncTimeShardQueue(
    _Queue[
        Awaitable[None],
        Awaitable[str],
        Awaitable[Taken | None],
        Awaitable[list[Taken]],
        Awaitable[int],
        Awaitable[bool],
        Awaitable[list[TimeShardCounts]],
        Awaitable[Page[DeadMessage]],
    ]
):
    """A `TimeShardQueue` on a store for asyncio: every method is awaited."""

    _is_async_client: Literal[True] = True

    async def _do(self, steps: Steps) -> Any:
        reply: Any = None
        error: Exception | None = None
        while True:
            try:
                pending = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as done:
                return done.value
            try:
                reply, error = await pending, None
            except Exception as raised:  # noqa: BLE001 - it is thrown into the steps
                reply, error = None, raised


def _checked_taking(consumer: Any, lease_s: Any) -> tuple[str, int]:
    if (
        not isinstance(consumer, str)
        or not 0 < len(consumer) <= LONGEST_CONSUMER
        or not is_utf8(consumer)
    ):
        raise ConfigurationError(
            f"consumer={consumer!r} is no name: give a text of 1 to {LONGEST_CONSUMER} characters"
        )
    return consumer, milliseconds("lease_s", lease_s)
