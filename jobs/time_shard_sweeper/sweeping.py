"""The interface between the sweeper and a queue's database; each store has its own `Sweeping`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, Protocol

from workstealing.errors import ConfigurationError
from workstealing.recruiting.slice import Slice


class Swept(NamedTuple):
    """The work of a slice of sweeping, or, in a dry run, the work that it would have done.

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
    """The messages that wait for a sweeper in one time shard.

    Fields: ended: leases that have ended, consumed messages' included; consumed; oldest_seconds:
    how long ago the first of these leases ended, 0.0 without one.
    """

    ended: int
    consumed: int
    oldest_seconds: float


class Sweeping(Protocol):
    """Sweeps the time shards of one queue. A sweep blocks, and keeps to the slice's time."""

    @property
    def identity(self) -> Hashable:
        """A value that jobs on one database share, and with it a breaker."""
        ...

    def warm_up(self) -> None:
        """Prepare for a first slice without a connection; see `Job.warm_up`."""
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

        A message whose lease has ended, and which is not consumed, waits again, at the due time of
        its release if there is one. If its attempts have reached max_attempts and it was not
        released, it is set aside. A consumed message is removed with its history.
        Raises: Aborted if another writer came first; then nothing was changed.
        """
        ...

    def unswept(
        self, time_shards: Sequence[int], slice: Slice | None = None, seconds: float | None = None
    ) -> list[Unswept]:
        """Count the messages that wait for a sweeper in each of these time shards.

        Arguments:
            slice: or seconds: how long it may take.
        """
        ...

    def look(
        self, time_shards: Sequence[int], slice: Slice, random: Callable[[], float]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Look at some of these time shards, a random few, for less than a slice costs.

        Returns: the time shards that it looked at, and those among them with work for a sweeper.
        """
        ...


@singledispatch
def sweeping_of(time_shards: Any) -> Sweeping:
    """Return the `Sweeping` of the time shards that a store has bound.

    A writer of a store registers the sweeping of its time shards:
    ``sweeping_of.register(MyTimeShards, MySweeping)``. Raises: ConfigurationError if no sweeping is
    registered for these time shards. No round trip.
    """
    raise ConfigurationError(
        f"there is no sweeper for {type(time_shards).__name__}: register one with sweeping_of"
    )
