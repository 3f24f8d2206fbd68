"""TimeShardQueue: messages by due time, whose producers and consumers take turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from workstealing.clock import SYSTEM_CLOCK, Duration, WallClock, milliseconds_of, seconds_of
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.recruiting.checks import checked_count
from workstealing.store.grants import Asking, AsynchronousAsks, BlockingAsks
from workstealing.store.job_client import wrong_form
from workstealing.store.keys import require_users_name, to_bytes
from workstealing.store.operations import Asynchronous, Steps, operation
from workstealing.store.paging import Page, oldest
from workstealing.store.pipeline import (
    AsyncPipeline,
    BlockingPipeline,
    OwnedPipeline,
    queued_operations,
)
from workstealing.structures.access import OPENING_SCRIPTS, QUEUED, Access
from workstealing.structures.structure import (
    FAULT,
    INSPECT_SECONDS,
    NOTE,
    OK,
    Check,
    DeadItem,
    DeadLetters,
    Structure,
)
from workstealing.structures.time_shard_queue.putting import is_utf8
from workstealing.structures.time_shard_queue.rotation import (
    FEWEST_WITH_A_QUIET_ONE,
    Rotation,
    rotation_of,
)
from workstealing.structures.time_shard_queue.store import (
    Buried,
    DeadDueMessage,
    Due,
    DueTime,
    Taken,
    TimeShardCounts,
    TimeShards,
    TimeShardStats,
    due_of,
    moment,
    time_shard_of,
)
from workstealing.structures.time_shard_queue.taking import MOST_AT_ONCE, TimeShardTaking

T = TypeVar("T")

MAX_ATTEMPTS = 5
# How many ids one script of the store is given, so that none holds the server for long.
CHANGED_A_PIECE = 200


class _TimeShardQueueOperations(TimeShardTaking, Structure):
    """The operations of both forms, over the steps of a store."""

    kind = "time shard queue"
    access = Access(
        keys=("ws:time_shard_queue:layout:NAME", "{*}:ws:time_shard:*:NAME"),
        scripts=("time_shard_queue", *OPENING_SCRIPTS),
        commands=QUEUED | {"EXISTS", "SCARD", "SRANDMEMBER", "TIME", "XREAD", "ZCOUNT", "ZRANGE"},
    )

    def __init__(
        self,
        store: Any,
        name: str | bytes,
        shards: int = 6,
        period: Duration = 60,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        clock: WallClock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(name, str | bytes) or not name or not is_utf8(name):
            raise ConfigurationError(f"the name {name!r} is not usable: give a text or bytes")
        require_users_name(to_bytes(name))
        if not callable(getattr(store, "bind", None)):
            raise ConfigurationError(
                f"a store was expected, not {type(store).__name__}: give RedisStore(client) or"
                " CassandraStore(session, keyspace)"
            )
        if callable(getattr(store, "placed", None)):
            store = store.placed(to_bytes(name))
        if bool(getattr(store, "asynchronous", False)) is not isinstance(self, Asynchronous):
            raise wrong_form(self, "store")
        self.rotation: Rotation = rotation_of(shards, period)
        """Which time shards have their turn when; pure functions of a clock."""
        self.max_attempts: int = checked_count(max_attempts, "max_attempts", 1, 10**6)
        self.store = store
        # Of a store on Redis.
        on_redis: dict[str, Any] = {"client": None, "job_client": None} | vars(store)
        self.client, self.job_client = on_redis["client"], on_redis["job_client"]
        self.time_shards: TimeShards = store.bind(to_bytes(name), self.rotation)
        """This queue in its store."""
        self.clock = clock
        # The time shards that pipelines have put into.
        self._marked: set[int] = set()
        self.name = to_bytes(name).decode(errors="backslashreplace")

    def inspect(self, steps: Steps[T], seconds: Duration = INSPECT_SECONDS) -> T:
        """Run a question's steps as the store does; see `Structure.inspect`."""
        found: T = self.store.inspect(steps, seconds_of(seconds, "seconds"))
        return found

    @operation
    def open(self) -> Steps[None]:
        """Check the layout, or write it, as the first put does; every object does this once.

        Raises: ConfigurationError if the queue has another number of time shards or another period;
        LayoutError; EvictionPolicyError. Two or three round trips the first time, then none.
        """
        return self._opening(create=True)

    @operation
    def ack(self, *messages: Taken | str) -> Steps[int]:
        """Say that messages are done: no take returns them again, whether or not they are leased.

        An acknowledgement always wins, a late one too. Messages are `Taken` or ids. Returns: how
        many were known and not consumed before. Raises: ConfigurationError for anything but an id
        of this queue. One round trip for each 200 messages of each time shard.
        """
        return self._changing("consume", self._placed(messages))

    @operation
    def cancel(self, message: Taken | str) -> Steps[bool]:
        """Take a message out of the queue, leased or not. Returns: whether it was there.

        A consumer that has it now is not stopped. Raises: as `ack`. One round trip.
        """
        return self._cancelling(self._placed((message,)))

    @operation
    def release(self, message: Taken | str, due: DueTime = None) -> Steps[bool]:
        """End a lease early, so that the message is taken again at its time shard's turn.

        This attempt is forgotten.

        Arguments:
            message: a `Taken`, whose lease must be the last one; or an id, for any lease.
            due: a new due time, None for the old one.

        Returns: whether it was released;
        False if another consumer has taken it since, or if it was consumed or set aside. Raises:
        ConfigurationError. One round trip.
        """
        when = None if due is None else due_of(due)
        token = message.token if isinstance(message, Taken) else None
        return self._releasing(*self._place(message), token, when)

    @operation
    def extend(self, taken: Taken, lease: Duration = 60.0) -> Steps[bool]:
        """Let a lease last longer, for work that takes longer than expected.

        Arguments:
            taken: a `Taken`, whose lease must be the last one.
            lease: for how long from now on, in seconds or as a timedelta, by the store's clock; a
                longer lease is not shortened.

        Returns: whether the lease still holds. False if another consumer has taken the message
        since, if it waits again, or if it was released, consumed or set aside: then stop working on
        it. Raises: ConfigurationError. One round trip.
        """
        if not isinstance(taken, Taken):
            raise ConfigurationError(
                f"{taken!r} is no lease: give the Taken that a take has returned"
            )
        return self._extending(*self._place(taken), taken.token, milliseconds_of(lease, "lease"))

    @operation
    def delete(self) -> Steps[int]:
        """Remove the queue with all its messages, the dead ones too, and its layout.

        After that the name can be used anew, with other time shards and another period. Nobody may
        use the queue meanwhile: a message that is put meanwhile may be removed or refused. If a
        call is cut off, the next use of the queue raises an error that says so, and another call
        finishes.

        Returns: how many messages it held that had not been consumed. Raises: ConfigurationError
        for another number of time shards or another period than the queue has, in which case
        nothing was removed; LayoutError. One round trip for each time shard, and three.
        """
        return self.time_shards.delete()

    @operation
    def stats(self) -> Steps[list[TimeShardStats]]:
        """Count the messages in each time shard; return a list of `TimeShardStats`.

        Raises: ConfigurationError for another rotation than the queue has; LayoutError. One round
        trip.
        """
        return self._counting()

    @operation
    def dead(self, n: int = 100) -> Steps[Page[DeadDueMessage]]:
        """List messages that were set aside, the oldest first.

        Arguments:
            n: 1 to 1,000.

        Returns: a `Page` of `DeadDueMessage`, a list whose `more` says how many others there are.
        Raises: ConfigurationError; LayoutError. One round trip for each 200 of each time shard, and
        one to count if there are n or more.
        """
        return self._listing_dead(checked_count(n, "n", 1, MOST_AT_ONCE))

    @operation
    def revive(self, *ids: str) -> Steps[int]:
        """Let dead messages wait again, each in its time shard, and forget their attempts.

        Returns: how many were dead. Raises: as `ack`. One round trip for each 200 messages of each
        time shard.
        """
        return self._changing("revive", self._placed(ids))

    @operation
    def discard(self, *ids: str) -> Steps[int]:
        """Remove dead messages for good.

        Returns: how many were dead. Raises: as `ack`. One round trip for each 200 messages of each
        time shard.
        """
        return self._changing("discard", self._placed(ids))

    def size_steps(self) -> Steps[int | None]:
        """Count the messages that are still to be worked on. One round trip to each node."""
        return sum(each.total for each in (yield from self._counting()))

    def dead_steps(self) -> Steps[Sequence[DeadLetters]]:
        """Return the dead set of all time shards, if anything is in it; costs as `stats`."""
        size = sum(each.dead for each in (yield from self._counting()))
        return (_DeadSet(self, size),) if size else ()

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Say whether the layout exists and is this process's. One round trip, two the first."""
        named = f"queue {self.name}"
        try:
            rotation = yield from self.time_shards.open(only_read=True)
        except LayoutError as error:
            return (Check("", FAULT, f"{named}: {error}"),)
        if rotation is None:
            return (Check("", NOTE, f"{named}: nothing has been written yet"),)
        if rotation != self.rotation:
            mine = f"and this process {_turns(self.rotation)}"
            return (Check("", FAULT, f"{named}: has {_turns(rotation)}, {mine}"),)
        few = rotation.time_shards < FEWEST_WITH_A_QUIET_ONE
        careful = "; with 6 or more its sweeper would never meet anybody" if few else ""
        return (Check("", OK, f"{named}: {_turns(rotation)}{careful}"),)

    def opening_steps(self, puts: bool) -> Steps[None]:
        """Open the queue for a pipeline; if that puts, mark the producers' time shard."""
        yield from self._opening(create=puts)
        now_s = self.clock.time()
        time_shard = self.rotation.producing(int(now_s * 1000))
        if puts and time_shard not in self._marked:
            yield from self.time_shards.put(time_shard, (), now_s)
            self._marked.add(time_shard)

    def _changing(self, method: str, placed: dict[int, list[str]]) -> Steps[int]:
        yield from self._opening()
        change: Callable[[int, list[str]], Steps[int]] = getattr(self.time_shards, method)
        count = 0
        for time_shard, ids in placed.items():
            for first in range(0, len(ids), CHANGED_A_PIECE):
                count += yield from change(time_shard, ids[first : first + CHANGED_A_PIECE])
        return count

    def _cancelling(self, placed: dict[int, list[str]]) -> Steps[bool]:
        return (yield from self._changing("consume", placed)) == 1

    def _releasing(
        self, time_shard: int, message_id: str, token: str | None, due: Due | None
    ) -> Steps[bool]:
        yield from self._opening()
        return (yield from self.time_shards.release(time_shard, message_id, token, due))

    def _extending(
        self, time_shard: int, message_id: str, token: str, lease_ms: int
    ) -> Steps[bool]:
        yield from self._opening()
        return (yield from self.time_shards.extend(time_shard, message_id, token, lease_ms))

    def _counting(self) -> Steps[list[TimeShardStats]]:
        yield from self._opening(only_read=True)
        numbers = range(self.rotation.time_shards)
        found: list[TimeShardCounts] = yield from self.time_shards.counts(numbers)
        now_ms = self.now_ms()
        return [
            TimeShardStats(
                number, self.rotation.role(number, now_ms), *each[:-1], each.overdue_ms / 1000
            )
            for number, each in zip(numbers, found, strict=True)
        ]

    def _listing_dead(self, n: int) -> Steps[Page[DeadDueMessage]]:
        yield from self._opening(only_read=True)
        every = range(self.rotation.time_shards)
        found: list[Buried] = []
        for time_shard in every:
            found += yield from self.time_shards.dead(time_shard, n)
        total = len(found)
        if total >= n:
            counts = yield from self.time_shards.counts(every)
            total = sum(each.dead for each in counts)
        first = oldest(found, n, lambda each: (each.since_ms, each.id), total)
        return Page(map(_dead, first), first.total)

    def _place(self, message: Taken | str) -> tuple[int, str]:
        message_id = message.id if isinstance(message, Taken) else message
        return time_shard_of(message_id, self.rotation.time_shards), message_id

    def _placed(self, messages: Sequence[Taken | str]) -> dict[int, list[str]]:
        """Return the ids of messages by the time shard that they lie in."""
        groups: defaultdict[int, list[str]] = defaultdict(list)
        for message in messages:
            time_shard, message_id = self._place(message)
            groups[time_shard].append(message_id)
        return groups


class TimeShardQueue(_TimeShardQueueOperations, BlockingAsks):
    """A queue by due time whose producers and consumers never touch the same time shard at once.

    Let t be the number of whole periods since the Unix epoch by the caller's own clock. Producers
    write into time shard t mod N, and consumers read (t - 2) mod N, so clocks that differ by less
    than a period do no harm. A message therefore waits for its time shard's turn: see
    `docs/time_shard_queue.md`. Messages are delivered at least once: a take is a lease.

    Arguments:
        store: the database that keeps it, `RedisStore(client)` or `CassandraStore(session,
            keyspace)` (`AsyncTimeShardQueue` takes one for asyncio); name.
        shards: N, 4 to 1,024; with 6 or more there is a time shard that nobody touches.
        period: the length of a turn, in seconds or as a timedelta.
        max_attempts: how often a message may be taken in vain before it is set aside.
        clock: chooses time shards, for tests.

    The first use writes N and the period down, and all processes must give the same. Raises:
    ConfigurationError for an argument that cannot be used. No command. The round trips that the
    methods' docstrings name are those on Redis; docs/cassandra.md lists those on Cassandra.

    Source: the time shards of cassandra-ruby-queue (whose own arithmetic jumps at each hour).
    """

    def pipeline(self, transaction: bool = True) -> TimeShardQueuePipeline:
        """Return a pipeline: its calls are sent, with the user's own commands, by `execute`.

        Raises: ConfigurationError on Cassandra.
        """
        return TimeShardQueuePipeline(self, transaction)

    def _run(self, steps: Steps[T]) -> T:
        result: T = self.store.run(steps)
        return result

    def _ask(self, asking: Asking[T]) -> T:
        ask = getattr(self.store, "ask", None)
        return self._run(asking.steps) if ask is None else ask(asking)


class AsyncTimeShardQueue(_TimeShardQueueOperations, AsynchronousAsks):
    """A `TimeShardQueue` on a store for asyncio: every method is awaited."""

    def pipeline(self, transaction: bool = True) -> AsyncTimeShardQueuePipeline:
        """Return a pipeline whose `execute` is awaited; see `TimeShardQueue.pipeline`."""
        return AsyncTimeShardQueuePipeline(self, transaction)

    def _run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        result: Coroutine[Any, Any, T] = self.store.run(steps)
        return result

    def _ask(self, asking: Asking[T]) -> Coroutine[Any, Any, T]:
        ask = getattr(self.store, "ask", None)
        return self._run(asking.steps) if ask is None else ask(asking)

    async def aclose(self) -> None:
        """Close the connections on which calls have waited: those of the store, for all queues."""
        close = getattr(self.store, "aclose", None)
        if close is not None:
            await close()


if TYPE_CHECKING:

    class _QueuedTimeShards(OwnedPipeline, _TimeShardQueueOperations):  # type: ignore[misc]
        pass

else:
    _QueuedTimeShards = queued_operations(_TimeShardQueueOperations)


class _EitherTimeShardPipeline(_QueuedTimeShards):
    """Both forms of a pipeline check the layout before anything is queued."""

    def __init__(self, queue: _TimeShardQueueOperations, transaction: bool) -> None:
        if queue.client is None:
            raise ConfigurationError(
                f"a queue in a {type(queue.store).__name__} has no pipeline, because its database"
                " has none: call the methods of the queue, or keep it in a RedisStore"
            )
        super().__init__(queue, transaction)

    def _opening(self) -> Steps[Any]:  # type: ignore[override]
        puts = not self._called.isdisjoint({"put", "put_many"})
        yield from self._owner.opening_steps(puts)


class TimeShardQueuePipeline(_EitherTimeShardPipeline, BlockingPipeline):
    """The methods of a `TimeShardQueue`, and the user's own commands, sent together by `execute`.

    One round trip; two or three more at the first use of the queue, and for the first messages of a
    time shard. Each time shard has a cluster slot of its own, so on a cluster there is no MULTI.
    """


class AsyncTimeShardQueuePipeline(_EitherTimeShardPipeline, AsyncPipeline):
    """A `TimeShardQueuePipeline` whose `execute` is awaited."""


class _DeadSet(DeadLetters):
    """The dead messages of all time shards of a queue."""

    def __init__(self, queue: _TimeShardQueueOperations, size: int) -> None:
        self._queue, self.size = queue, size

    def list_steps(self, n: int) -> Steps[Sequence[DeadItem]]:
        """List up to n dead messages by id; see `DeadLetters`."""
        found = yield from _TimeShardQueueOperations.dead.steps(self._queue, n)
        return Page(map(_dead_item, found), found.total)

    def revive_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Let dead messages wait again; see `DeadLetters`."""
        return _TimeShardQueueOperations.revive.steps(self._queue, *map(str, members))

    def discard_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Remove dead messages for good; see `DeadLetters`."""
        return _TimeShardQueueOperations.discard.steps(self._queue, *map(str, members))


def _dead(buried: Buried) -> DeadDueMessage:
    return DeadDueMessage(
        buried.id,
        buried.message,
        moment(buried.due_ms),
        buried.attempts,
        moment(buried.since_ms),
        buried.consumer,
    )


def _dead_item(dead: DeadDueMessage) -> DeadItem:
    times = "once" if dead.attempts == 1 else f"{dead.attempts} times"
    return DeadItem(
        dead.id,
        dead.attempts,
        (dead.since.timestamp(),),
        payload=dead.message,
        error=f"its lease ended {times}; {dead.consumer} held it last",
    )


def _turns(rotation: Rotation) -> str:
    return f"{rotation.time_shards} time shards of {rotation.period_ms / 1000:g} s"
