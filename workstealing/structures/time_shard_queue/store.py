"""The interface between a TimeShardQueue and its database, in no database's own words.

Here are the messages that go through it, with their ids and due times, and the store itself.

To write another store, write the methods of `Store`: `bind` takes a queue's name and rotation, and
`run` runs the steps of the queue's methods. `bind` returns the `TimeShards`, whose methods are
generators of such steps. Each generator yields steps that the store understands, is sent their
replies, and returns the result. So a store for asyncio and a blocking one share their time shards,
and differ only in `run`.

Every method acts on one time shard, so a database may place each time shard anywhere. A store
judges due times and the ends of leases by its own clock, never by a client's. The sweeper of a
store is registered beside the job: see `workstealing.jobs.time_shard_sweeper.sweeping_of`.

A store that has a method `ask` answers a take that is asked for twice by the same messages, and
takes back what nobody has the reply of: it runs an `Asking` as `ask_for` does. Its time shards'
`take` is given the `AskedTakes` of the call as `asked`, and they have one more method:
`give_back(asked)`, which makes the steps that end these leases.

Two more methods of time shards are for what a store can do, and `TimeShards` has them not, because
a queue does without them:

- `wait(time_shards, producing, seconds, waits)` makes the steps of a take that waits: they last
  for so many seconds at most, and end earlier when one of these time shards may have something to
  take. They return those that may. `producing` is the time shard of the producers, `waits` how
  often the call has waited before. Without the method a take refuses to wait.
- `put_once(time_shard, entry, now_s, key, window_ms)` makes the steps that keep a message with a
  dedupe key, which holds for so many milliseconds. They return its id, or that of another message
  with this key which is still there. Without the method a put refuses `dedupe`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from workstealing.errors import ConfigurationError
from workstealing.store.grants import AskedPieces, new_nonce
from workstealing.store.operations import Steps
from workstealing.structures.time_shard_queue.rotation import Rotation


class Due(NamedTuple):
    """When a message is due.

    Fields: ms: a Unix time in milliseconds; or, if from_now, milliseconds after the store gets it;
    from_now.
    """

    ms: int
    from_now: bool


class Entry(NamedTuple):
    """A message on its way into a time shard. Fields: message; due."""

    message: bytes
    due: Due


class Held(NamedTuple):
    """A message that a take has leased.

    Fields: id; message; due_ms: Unix time; attempts: how often it has been taken without having
    been released, this time included; token: different for each take of this message; ends_ms: when
    the lease ends by itself, Unix time by the store's clock.
    """

    id: str
    message: bytes
    due_ms: int
    attempts: int
    token: str
    ends_ms: int


class AskedTakes(AskedPieces[tuple[int, Any]]):
    """The takes of one call.

    The receipt of each is its time shard, and what the store knows it again by: a nonce on Redis.
    """

    def another(self, time_shard: int) -> bytes:
        """Note one more take of a time shard; return its nonce."""
        nonce = new_nonce()
        self.receipts.append((time_shard, nonce))
        return nonce


class TimeShardCounts(NamedTuple):
    """How many messages one time shard holds.

    Fields: waiting: without a lease, released ones included; due: waiting messages whose time has
    come; leased: with a lease, ended or not; consumed: acknowledged or cancelled ones, which the
    other fields count until they are cleared; dead: set aside; overdue_ms: for how long the message
    with the lowest due time has been due, 0 if none is due.
    """

    waiting: int
    due: int
    leased: int
    consumed: int
    dead: int
    overdue_ms: int


class Buried(NamedTuple):
    """A message in the dead set of a time shard.

    Fields: id; message; due_ms; attempts; since_ms: when it was set aside; consumer: the last one
    to hold it.
    """

    id: str
    message: bytes
    due_ms: int
    attempts: int
    since_ms: int
    consumer: str


class TimeShards(Protocol):
    """The time shards of one queue in a store.

    Every method but `faults` returns a generator of steps, which the store's `run` drives. The
    store writes the layout at a queue's first use: the rotation, and the releases that may read and
    write the queue.
    """

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """The errors by which the database says that it cannot do a step."""
        ...

    def open(self, create: bool = False, only_read: bool = False) -> Steps[Rotation | None]:
        """Read the layout.

        Arguments:
            create: write a layout if there is none yet.
            only_read: the caller writes nothing, so a layout that this release may only read is
                good enough.

        Returns: the queue's `Rotation`, None without a layout. Raises: LayoutError for a foreign
        layout, for a layout that this release may not use in this way, and for a queue that is
        being deleted.
        """
        ...

    def put(self, time_shard: int, entries: Sequence[Entry], now_s: float) -> Steps[list[str]]:
        """Keep messages, and name them.

        Arguments:
            now_s: the producer's clock, by which messages of the same due time are put in order;
                those of one call are put in their own order.

        Returns: their ids, in the form of `new_id`: the store may say in them where it keeps a
        message.
        """
        ...

    def take(
        self,
        time_shard: int,
        consumer: str,
        lease_ms: int,
        n: int,
        max_attempts: int,
        *,
        is_turn: bool,
    ) -> Steps[list[Held]]:
        """Lease up to n messages that are due and not consumed, the lowest due time first.

        If no others are left, messages whose lease has ended are leased anew, or set aside if their
        attempts have reached max_attempts.

        Arguments:
            is_turn: whether the consumers have their turn here, so that no producer writes.

        Returns: messages that no other take can return before their lease ends or they are
        released.
        """
        ...

    def consume(self, time_shard: int, ids: Sequence[str]) -> Steps[int]:
        """Mark messages as consumed: no take returns them again, whether or not they are leased.

        Does not abort a sweep. Returns: how many were known and not consumed yet.
        """
        ...

    def release(
        self, time_shard: int, message_id: str, token: str | None, due: Due | None
    ) -> Steps[bool]:
        """End a lease early, so that the message waits again; its attempt is forgotten.

        Arguments:
            token: of the `Held`; None: of any lease.
            due: None for the old due time.

        Returns: whether that lease still held.
        """
        ...

    def extend(self, time_shard: int, message_id: str, token: str, lease_ms: int) -> Steps[bool]:
        """Let a lease last for so long from now on at least.

        Returns: whether that lease still held: it may have ended, as long as the message was
        neither taken nor swept since.
        """
        ...

    def counts(self, time_shards: Sequence[int]) -> Steps[list[TimeShardCounts]]:
        """Count the messages of each of these time shards."""
        ...

    def dead(self, time_shard: int, n: int) -> Steps[list[Buried]]:
        """List up to n messages of the dead set, the oldest first."""
        ...

    def revive(self, time_shard: int, ids: Collection[str]) -> Steps[int]:
        """Let messages of the dead set wait again, their attempts forgotten. Returns: how many."""
        ...

    def discard(self, time_shard: int, ids: Collection[str]) -> Steps[int]:
        """Remove messages of the dead set for good. Returns: how many."""
        ...

    def delete(self) -> Steps[int]:
        """Remove all time shards with their messages, and then the layout.

        A call that is cut off leaves the layout, so that the next call finds the rest. Returns: how
        many messages had not been consumed. Raises: ConfigurationError if the layout says another
        rotation.
        """
        ...


class Store(Protocol):
    """A database that keeps TimeShardQueues."""

    @property
    def asynchronous(self) -> bool:
        """Whether what `run` returns must be awaited."""
        ...

    def bind(self, name: bytes, rotation: Rotation) -> TimeShards:
        """Return the time shards of a queue; no round trip."""
        ...

    def run(self, steps: Steps[Any]) -> Any:
        """Run a generator of the steps that this store's time shards yield.

        An error of a step is thrown into the generator. Returns: the generator's result, or
        something to await for it.
        """
        ...

    def inspect(self, steps: Steps[Any], seconds: float) -> Any:
        """Run such a generator for an observer: block, and give up after so many seconds.

        A store for asyncio has it too. Returns: the generator's result.
        """
        ...


DueTime = datetime | timedelta | float | int | None
LONGEST_CONSUMER = 512
_LAST_MS = 253_402_300_799_999  # the end of the year 9999
_ID = re.compile(r"(0|[1-9][0-9]{0,3})-([0-9a-f]+)")


class Taken(NamedTuple):
    """A message that is leased to a consumer until it is acknowledged, released, or the lease ends.

    Fields: id; message: bytes; due: when it was due, an aware datetime; attempts: how many takes
    were not released, this one included; lease_end: an aware datetime by the store's clock; token:
    of this lease, for `release`; time_shard.
    """

    id: str
    message: bytes
    due: datetime
    attempts: int
    lease_end: datetime
    token: str
    time_shard: int


class TimeShardStats(NamedTuple):
    """How many messages one time shard holds.

    Fields: time_shard: its number; role: now, by this process's clock: producing, consuming or
    quiet; waiting: messages without a lease; due: waiting messages whose time has come; leased;
    consumed: acknowledged or cancelled messages, which also count as waiting or leased until they
    are cleared away; dead: set aside; overdue_seconds: for how long the message with the lowest due
    time has waited.
    """

    time_shard: int
    role: str
    waiting: int
    due: int
    leased: int
    consumed: int
    dead: int
    overdue_seconds: float

    @property
    def total(self) -> int:
        """How many messages are not done: waiting plus leased messages, minus consumed ones."""
        return max(0, self.waiting + self.leased - self.consumed)


class DeadDueMessage(NamedTuple):
    """A message that was set aside because its lease has ended too often.

    Fields: id; message: bytes; due: aware datetime; attempts; since: when it was set aside, aware;
    consumer: the last one to hold it.
    """

    id: str
    message: bytes
    due: datetime
    attempts: int
    since: datetime
    consumer: str


def new_id(time_shard: int, now_s: float, number: int = 0) -> str:
    """Return an id: `<time shard>-<16 digits of microseconds><16 random digits>`, hexadecimal.

    Of two messages with the same due time, the message with the lower id is taken first.

    Arguments:
        now_s: the producer's clock.
        number: of the message among those that are put at that moment; each is a microsecond later.
    """
    micros = int(now_s * 1e6) + number & (1 << 64) - 1
    return f"{time_shard}-{micros:016x}{os.urandom(8).hex()}"


def time_shard_of(message_id: Any, time_shards: int) -> int:
    """Return the time shard that an id names.

    Raises: ConfigurationError for anything but an id of a queue with so many time shards.
    """
    found = _ID.fullmatch(message_id) if isinstance(message_id, str) else None
    if found is None or int(found[1]) >= time_shards:
        raise ConfigurationError(
            f"{message_id!r} is no id of a message of this queue: give an id that put() has"
            " returned, or a Taken"
        )
    return int(found[1])


def message_bytes(message: Any) -> bytes:
    """Return a message as bytes, text in UTF-8. Raises: ConfigurationError for anything else."""
    if isinstance(message, str):
        try:
            return message.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the message {message!r} is no UTF-8 text ({error}): give bytes, or another text"
            ) from None
    if isinstance(message, bytes | bytearray | memoryview):
        return bytes(message)
    raise ConfigurationError(
        f"a message of type {type(message).__name__} cannot be kept: give bytes or text"
    )


def due_of(due: Any) -> Due:
    """Return a due time as a store takes it: None is now, a timedelta counts from now.

    Raises: ConfigurationError for a datetime without a time zone, and for anything but a time.
    """
    if due is None:
        return Due(0, True)
    if isinstance(due, timedelta):
        return Due(_checked(due.total_seconds(), due), True)
    if isinstance(due, datetime):
        if due.utcoffset() is None:
            raise ConfigurationError(
                f"due={due!r} has no time zone: give an aware datetime, as with tzinfo=UTC"
            )
        return Due(_checked((due - _EPOCH).total_seconds(), due), False)
    if isinstance(due, bool) or not isinstance(due, int | float):
        raise ConfigurationError(
            f"due={due!r} is no time: give an aware datetime, Unix seconds, or a timedelta from now"
        )
    return Due(_checked(due, due), False)


def moment(ms: int) -> datetime:
    """Return a Unix time in milliseconds as an aware datetime."""
    return _EPOCH + timedelta(milliseconds=min(ms, _LAST_MS))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _checked(seconds: float, due: Any) -> int:
    # As a float the last microseconds of that year are its end.
    if not abs(seconds) <= (_LAST_MS + 1) / 1000:
        raise ConfigurationError(f"due={due!r} is out of range: give a time before the year 10000")
    # Rounded up: a message is never readable before its time.
    return min(_LAST_MS, math.ceil(seconds * 1000 - 1e-3))
