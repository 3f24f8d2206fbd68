"""The job that returns ended leases and clears away what was consumed, where nobody works now."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_attempts, checked_limit
from workstealing.recruiting.job import Job
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import TIMEOUT_SECONDS
from workstealing.structures.time_shard_queue import AsyncTimeShardQueue, TimeShardQueue
from workstealing.structures.time_shard_queue.rotation import FEWEST_WITH_A_QUIET_ONE

__all__ = ["TimeShardBacklog", "TimeShardSweeper"]


@dataclass(frozen=True, slots=True)
class TimeShardBacklog:
    """What waits for sweepers, in all time shards together.

    Fields: ended: leases that have ended; consumed: messages acknowledged or deleted, not yet
    cleared away; oldest_seconds: how long ago the first of the leases has ended.
    """

    ended: int
    consumed: int
    oldest_seconds: float

    @property
    def messages(self) -> int:
        """How many they are together; one acknowledged after its lease had ended counts twice."""
        return self.ended + self.consumed


class TimeShardSweeper(Job):
    """Sweeps the time shards that neither producers nor consumers touch.

    Arguments: queue: the TimeShardQueue, whose clock also chooses the time shard; limit: the most
    messages a slice handles; max_attempts: how often a message is taken at most without being
    released, by default the queue's own; when the last of these leases ends, the message is set
    aside into the dead set, and nothing is ever dropped; dry_run: count what would be done, and
    change nothing; name: what the job is called, by default ``time_shard_sweeper.<queue>``; random:
    returns a float in [0, 1).

    A message whose lease has ended waits again, its attempts counted; one that was acknowledged or
    deleted goes with all that belongs to it. From 6 time shards on, a slice works in one that no
    producer or consumer touches until the slice must have ended, as long as no
    clock is a period or more from this process' own: acknowledgements, releases and deletions write
    nothing that is WATCHed, so nothing but another sweeper, or a consumer with ``drain_all``, can
    abort it. At the end of a period there may be no such time shard, if there are 6 in all: then
    the slice does nothing. With 4 or 5 there never is one: see `careful`.

    Of several such time shards it takes, at random, one of those where this process knows that
    something waits: a slice has left it there, or a count or a look has seen it. Where it knows of
    none, it looks at up to 8 of them, on a cluster of one node, in one round trip.

    One slice: two round trips, in one attempt, and one for the look where it has to look; that one
    alone where it sees nothing to do.
    """

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
        self.limit = checked_limit(limit)
        self.max_attempts = (
            queue.max_attempts if max_attempts is None else checked_attempts(max_attempts)
        )
        self.dry_run = dry_run
        self.name = f"time_shard_sweeper.{queue.name}" if name is None else name
        self.dependency: Hashable = queue.time_shards.identity
        self._random = random
        self._dirty: set[int] = set()

    @property
    def careful(self) -> bool:
        """Whether there are too few time shards for one that is certainly untouched: 4 or 5.

        Then a slice takes the one whose visitors' clocks would have to be the most wrong, and what
        comes between nevertheless aborts it, which changes nothing. With 5 there always is one for
        clocks that differ by less than half a period; with 4, only in the middle of a period.
        """
        return self.queue.rotation.time_shards < FEWEST_WITH_A_QUIET_ONE

    def perform(self, slice: Slice) -> int:
        """Handle up to ``slice.limit`` messages of one time shard, in one attempt.

        Returns: how many it returned, set aside and cleared (would, on a dry run); 0 where no time
        shard may be touched now. Errors: Aborted if a sweeper or a consumer came first;
        LayoutError; connection faults.
        """
        time_shard = self._choose(slice)
        if time_shard is None:
            return 0
        # Whatever becomes of it: who was aborted there has met somebody who is at it.
        self._dirty.discard(time_shard)
        swept = self.queue.time_shards.sweep(
            time_shard,
            limit=slice.limit,
            max_attempts=self.max_attempts,
            slice=slice,
            random=self._random,
            dry_run=self.dry_run,
        )
        if swept.items >= slice.limit:
            self._dirty.add(time_shard)
        return int(swept.items)

    def backlog(self) -> TimeShardBacklog:
        """Count what waits for sweepers in all time shards.

        Two round trips to each node, one more for every 64 of its time shards; see
        `Sweeping.unswept`.
        """
        return self._count(range(self.queue.rotation.time_shards))

    def within_reach(self, seconds: float = 1.0) -> TimeShardBacklog:  # type: ignore[override]
        """Count what waits in the time shards in which a slice may work now.

        What waits in the others has to wait until nobody works there. Arguments: seconds: how long
        a slice lasts. Round trips as of `backlog`.
        """
        return self._count(self._workable(seconds))

    def _count(self, time_shards: Sequence[int]) -> TimeShardBacklog:
        found = self.queue.time_shards.unswept(time_shards)
        for time_shard, one in zip(time_shards, found, strict=True):
            self._note(time_shard, is_dirty=bool(one.ended or one.consumed))
        return TimeShardBacklog(
            sum(one.ended for one in found),
            sum(one.consumed for one in found),
            max((one.oldest_s for one in found), default=0.0),
        )

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self.queue.time_shards.warm_up()

    def _choose(self, slice: Slice) -> int | None:
        """Return the time shard for this slice, or None if there is none now."""
        found = self._workable(slice.remaining())
        if len(found) < 2:
            return found[0] if found else None
        dirty: Sequence[int] = [time_shard for time_shard in found if time_shard in self._dirty]
        if not dirty:
            seen, dirty = self.queue.time_shards.look(found, slice, self._random)
            for time_shard in seen:
                self._note(time_shard, is_dirty=time_shard in dirty)
            if not dirty:
                slice.observe(oldest_seconds=0.0, backlog=0)
                return None
        # Not always the safest, where every other sweeper would be too.
        return dirty[int(self._random() * len(dirty))]

    def _note(self, time_shard: int, *, is_dirty: bool) -> None:
        (self._dirty.add if is_dirty else self._dirty.discard)(time_shard)

    def _workable(self, seconds: float) -> tuple[int, ...]:
        """Return the time shards in which a slice may work that begins now and lasts so long."""
        rotation, now_ms = self.queue.rotation, math.floor(self.queue.clock.time() * 1000)
        # A slice may be held for a time-out longer than it is long: its EXEC may come that late.
        lasting_ms = math.ceil((max(0.0, seconds) + TIMEOUT_SECONDS) * 1000)
        choose = rotation.least_touched if self.careful else rotation.untouched
        return choose(now_ms, lasting_ms)
