"""What a TimeShardQueue asks of the database that keeps it, free of any one database's words.

A `Store` is bound to a queue's name and rotation; what comes out keeps the time shards. Every
method acts on one time shard, so that a database may lay each where it likes. A store judges due
times and the ends of leases by its own clock, never by a client's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from workstealing.recruiting.slice import Slice
from workstealing.structures.time_shard_queue.rotation import Rotation


class Due(NamedTuple):
    """When a message is due.

    Fields: ms: a Unix time in milliseconds, or, if from_now, milliseconds from the moment at which
    the store sees it; from_now.
    """

    ms: int
    from_now: bool


class Entry(NamedTuple):
    """A message on its way into a time shard. Fields: id; message; due."""

    id: str
    message: bytes
    due: Due


class Held(NamedTuple):
    """A message that a take has leased.

    Fields: id; message; due_ms: Unix time; attempts: how often it has been taken without having
    been released, this time included; token: other than that of any other take of this message;
    ends_ms: when the lease ends by itself, Unix time by the store's clock.
    """

    id: str
    message: bytes
    due_ms: int
    attempts: int
    token: str
    ends_ms: int


class Counts(NamedTuple):
    """What one time shard holds.

    Fields: waiting: messages that nobody has a lease of, released ones included; due: those of them
    whose time has come; leased: by whomever, lease ended or not; consumed: acknowledged or deleted
    ones that are counted in the others until they are cleared; dead: set aside; overdue_ms: how
    long the lowest due one has been due, 0 without one.
    """

    waiting: int
    due: int
    leased: int
    consumed: int
    dead: int
    overdue_ms: int


class Buried(NamedTuple):
    """A message in the dead set of a time shard.

    Fields: id; message; due_ms; attempts; since_ms: when it was set aside; consumer: who had it
    last.
    """

    id: str
    message: bytes
    due_ms: int
    attempts: int
    since_ms: int
    consumer: str


class Swept(NamedTuple):
    """What a slice of sweeping did, or, in a dry run, would have done.

    Fields: returned: messages whose lease had ended, waiting again; buried: set aside, because
    their lease had ended too often; cleared: consumed messages removed for good.
    """

    returned: int
    buried: int
    cleared: int

    @property
    def items(self) -> int:
        """All of them together."""
        return self.returned + self.buried + self.cleared


class Unswept(NamedTuple):
    """What waits for a sweeper in one time shard.

    Fields: ended: leases that have ended, consumed ones included; consumed; oldest_s: how long ago
    the first of the leases has ended, in seconds, 0.0 without one.
    """

    ended: int
    consumed: int
    oldest_s: float


class Sweeping(Protocol):
    """What the sweeper asks of a store. Always blocking, and through a slice's own connections."""

    @property
    def identity(self) -> Hashable:
        """What jobs on one database have in common, so that they share a breaker."""
        ...

    def warm_up(self) -> None:
        """Do what a first slice would have to do and needs no database for; see `Job.warm_up`."""
        ...

    def sweep(
        self,
        time_shard: int,
        *,
        limit: int,
        max_attempts: int,
        slice: Slice,
        random: Callable[[], float],
        dry_run: bool = False,
    ) -> Swept:
        """Handle at most `limit` messages of a time shard, in one attempt.

        A message that is leased, whose lease has ended and which is not consumed, waits again, at
        the due time of its release if there is one; or it is set aside if its attempts have reached
        max_attempts and it was not released. A consumed one is removed with all that belongs to it.
        Errors: Aborted if another writer came first; then nothing was changed.
        """
        ...

    def unswept(self, time_shards: Sequence[int], slice: Slice | None = None) -> list[Unswept]:
        """Return what waits for a sweeper in each of these time shards."""
        ...

    def look(
        self, time_shards: Sequence[int], slice: Slice, random: Callable[[], float]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Look at some of these time shards, a random few, for less than a slice costs.

        Returns: those it has looked at, and those of them where something waits for a sweeper.
        """
        ...


class TimeShards(Sweeping, Protocol):
    """The time shards of one queue in a store.

    With a store for asyncio all methods but those of `Sweeping` return what must be awaited.
    """

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """What its calls raise when the database cannot do them."""
        ...

    def open(self, create: bool) -> Any:
        """Read the layout; if there is none and one is to be created, write it down.

        Returns: the `Rotation` that holds, or None for a queue that nobody has put into yet.
        Errors: LayoutError for what is foreign or newer.
        """
        ...

    def put(self, time_shard: int, entries: Sequence[Entry]) -> Any:
        """Keep messages; one whose id is known already is left as it is. Returns: None."""
        ...

    def take(self, time_shard: int, consumer: str, lease_ms: int, n: int, max_attempts: int) -> Any:
        """Lease up to n messages that are due and not consumed, the lowest due time first.

        When no others are left, those whose lease has ended are leased anew, unless their attempts
        have reached max_attempts: these are set aside. Returns: a list of `Held`, of which no other
        take can return any until its lease has ended or it was released.
        """
        ...

    def consume(self, time_shard: int, ids: Sequence[str]) -> Any:
        """Never give these messages to anybody again, whoever has a lease of them.

        Must change nothing that `sweep` depends on being unchanged. Returns: how many were known
        and not consumed yet.
        """
        ...

    def release(self, time_shard: int, message_id: str, token: str | None, due: Due | None) -> Any:
        """End a lease early, so that the message waits again; its attempt is forgotten.

        Arguments: token: of the `Held`; None: whoever has the lease; due: None for what it was.
        Must change nothing that `sweep` depends on. Returns: whether that lease still held.
        """
        ...

    def extend(self, time_shard: int, message_id: str, token: str, lease_ms: int) -> Any:
        """Let a lease last for so long from now on at least.

        Must change nothing that `sweep` depends on. Returns: whether that lease still held: it may
        have ended, as long as nobody has taken or swept the message since.
        """
        ...

    def counts(self, time_shards: Sequence[int]) -> Any:
        """Return a list with the `Counts` of each of these time shards."""
        ...

    def dead(self, time_shard: int, n: int) -> Any:
        """Return a list of up to n `Buried`, those set aside longest ago first."""
        ...

    def revive(self, time_shard: int, ids: Sequence[str]) -> Any:
        """Let messages of the dead set wait again, their attempts forgotten. Returns: how many."""
        ...

    def discard(self, time_shard: int, ids: Sequence[str]) -> Any:
        """Remove messages of the dead set for good. Returns: how many."""
        ...

    def drop(self) -> Any:
        """Remove all time shards with all that is in them, and then the layout.

        Whatever a call that is cut off has left is found by the next one. Returns: how many
        messages were there that had not been consumed. Errors: ConfigurationError if the layout
        says another rotation.
        """
        ...


class Store(Protocol):
    """A database that keeps TimeShardQueues."""

    @property
    def asynchronous(self) -> bool:
        """Whether what `bind` returns is for asyncio."""
        ...

    def bind(self, name: bytes, rotation: Rotation) -> TimeShards:
        """Return the time shards of a queue; no round trip."""
        ...
