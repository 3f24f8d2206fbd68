"""The job that returns ended leases and clears away consumed messages, where nobody works now.

The job chooses the time shards; a `Sweeping` of the queue's store sweeps them. Each database has
its own one, which `sweeping_of` finds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, Protocol

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_attempts, checked_limit
from workstealing.recruiting.job import Backlog, Job
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import TIMEOUT_SECONDS
from workstealing.structures.access import JobAccess
from workstealing.structures.time_shard_queue import AsyncTimeShardQueue, TimeShardQueue
from workstealing.structures.time_shard_queue.rotation import FEWEST_WITH_A_QUIET_ONE


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


class TimeShardSweeper(Job):
    """Sweeps the time shards that neither producers nor consumers touch.

    Arguments:
        queue: the TimeShardQueue, whose clock also chooses the time shard.
        limit: the most messages a slice handles.
        max_attempts: how often a message may be taken without a release, by default the queue's
            own; when the last of these leases ends, the message goes to the dead set, and nothing
            is ever dropped.
        dry_run: count the work, and change nothing.
        name: of the job, by default ``time_shard_sweeper.<queue>``.
        random: returns a float in [0, 1).

    Raises: ConfigurationError.

    A message whose lease has ended waits again, its attempts counted. An acknowledged or cancelled
    message is removed with its history. With 6 or more time shards, a slice works in one that no
    producer or consumer touches before the slice must have ended, as long as no clock is a period
    or more from this process's own. Acknowledgements, releases and cancellations write no WATCHed
    key, so only another sweeper, or a consumer with ``drain_all``, can abort the slice. With 6
    there may be no such time shard near the end of a period: then the slice does nothing. With 4 or
    5 there never is one: see `careful`.

    Of several such time shards it takes, at random, one where this process knows of work: a slice
    has left some there, or a count or a look has seen some. If it knows of none, it looks at up to
    8 of them in one round trip (on a cluster, at those of one node).

    A slice costs two round trips, in one attempt, and one more if it has to look first. If the look
    finds no work, that one is all.
    """

    access = JobAccess(("time shard queue",))
    unit = "messages"

    def __init__(
        self,
        queue: TimeShardQueue | AsyncTimeShardQueue,
        limit: int = 25,
        *,
        max_attempts: int | None = None,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(queue, TimeShardQueue | AsyncTimeShardQueue):
            raise ConfigurationError(f"{queue!r} cannot be swept: give a TimeShardQueue")
        self.queue = queue
        self.structures = (queue,)
        self.sweeping = sweeping_of(queue.time_shards)
        self.limit = checked_limit(limit)
        self.max_attempts = (
            queue.max_attempts if max_attempts is None else checked_attempts(max_attempts)
        )
        self.dry_run = dry_run
        self.name = f"time_shard_sweeper.{queue.name}" if name is None else name
        self.dependency: Hashable = self.sweeping.identity
        self._random = random
        self._dirty: set[int] = set()

    @property
    def careful(self) -> bool:
        """Whether there are too few time shards for one that is certainly untouched: 4 or 5.

        Then a slice takes the time shard whose visitors' clocks would have to be the most wrong. If
        a visitor does come, the slice is aborted, and nothing is changed. If clocks differ by less
        than half a period, 5 always have an untouched time shard, and 4 have one only in the middle
        of a period.
        """
        return self.queue.rotation.time_shards < FEWEST_WITH_A_QUIET_ONE

    def perform(self, slice: Slice) -> int:
        """Handle up to ``slice.limit`` messages of one time shard, in one attempt.

        Returns: how many it returned, set aside and cleared (would, on a dry run); 0 where no time
        shard may be touched now. Raises: Aborted if a sweeper or a consumer came first;
        LayoutError; connection faults.
        """
        time_shard = self._choose(slice)
        if time_shard is None:
            return 0
        # Even if the slice is aborted: then another sweeper is at work there.
        self._dirty.discard(time_shard)
        swept = self.sweeping.sweep(
            time_shard,
            limit=slice.limit,
            max_attempts=self.max_attempts,
            slice=slice,
            random=self._random,
            dry_run=bool(self.dry_run),
        )
        if swept.items >= slice.limit:
            self._dirty.add(time_shard)
        return int(swept.items)

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the messages that wait for sweepers in all time shards.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta.

        A message that was acknowledged after its lease had ended counts twice. Raises: as
        `perform`. Two round trips to each node, one more for every 64 of its time shards.
        """
        time_shards = range(self.queue.rotation.time_shards)
        return self._count(time_shards, seconds_of(seconds, "seconds"))

    def within_reach(self, seconds: Duration = 1.0) -> Backlog:
        """Count the messages in the time shards in which a slice may work now.

        Messages in the other time shards have to wait until nobody works there.

        Arguments:
            seconds: how long a slice lasts, in seconds or a timedelta.

        Round trips as of `backlog`.
        """
        return self._count(self._workable(seconds_of(seconds, "seconds")), None)

    def _count(self, time_shards: Sequence[int], seconds: float | None) -> Backlog:
        found = self.sweeping.unswept(time_shards, seconds=seconds)
        for time_shard, one in zip(time_shards, found, strict=True):
            self._note(time_shard, is_dirty=bool(one.ended or one.consumed))
        count = sum(one.ended + one.consumed for one in found)
        # Nothing records how long a consumed message has waited.
        age_known = not count or any(one.ended for one in found)
        oldest = max((one.oldest_seconds for one in found), default=0.0)
        return Backlog(count, oldest if age_known else None, "messages to sweep")

    def warm_up(self) -> None:
        """Prepare for a first slice without a connection; no round trip."""
        self.sweeping.warm_up()

    def _choose(self, slice: Slice) -> int | None:
        """Return the time shard for this slice, or None if there is none now."""
        # Its whole length, by which `within_reach` counts, too. A little less is left of it by now,
        # and a busy machine would decide how much.
        found = self._workable(slice.seconds)
        if len(found) < 2:
            return found[0] if found else None
        dirty: Sequence[int] = [time_shard for time_shard in found if time_shard in self._dirty]
        if not dirty:
            seen, dirty = self.sweeping.look(found, slice, self._random)
            for time_shard in seen:
                self._note(time_shard, is_dirty=time_shard in dirty)
            if not dirty:
                slice.observe(oldest_seconds=0.0, backlog=0)
                return None
        # A random one: every other sweeper would choose the safest too.
        return dirty[int(self._random() * len(dirty))]

    def _note(self, time_shard: int, *, is_dirty: bool) -> None:
        (self._dirty.add if is_dirty else self._dirty.discard)(time_shard)

    def _workable(self, seconds: float) -> tuple[int, ...]:
        """Return the time shards in which a slice may work that begins now and lasts so long."""
        rotation, now_ms = self.queue.rotation, math.floor(self.queue.clock.time() * 1000)
        # A slice's EXEC may come late by as much as a time-out.
        lasting_ms = math.ceil((max(0.0, seconds) + TIMEOUT_SECONDS) * 1000)
        choose = rotation.least_touched if self.careful else rotation.untouched
        return choose(now_ms, lasting_ms)
