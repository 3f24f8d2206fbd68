"""The job: its queue and its settings, its slices and its sweep."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.jobs.shuffle_queue_reaper.reaping import QueueReaper
from workstealing.jobs.shuffle_queue_reaper.upkeep import WINDOW, Settings
from workstealing.recruiting.checks import checked_attempts, checked_limit
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    PartJob,
    checked_parts,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.structures.access import JobAccess
from workstealing.structures.shuffle_queue import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue.names import LEGACY

WAITING = "messages of dead consumers, or past their deadline"


class ShuffleQueueReaper(DivisibleJob):
    """Gives the messages of dead consumers to others, and keeps the keys beside the streams right.

    - A message that a consumer has held for the lease is served again, at its stream's turn, before
      the new ones there. The turns of the streams, and so of the tenants, stay as they were.
    - A message that has been delivered max_attempts times without an `ack`, after a `nack` too, is
      set aside as it is: see `ShuffleQueue.dead`, `revive` and `discard`. Nothing is ever dropped.
    - A message past its deadline is deleted even if nobody reads, as a read would delete it: with
      its tracking id, for every group, and counted as overdue. A message that a consumer has in
      hand stays there.
    - A message that every group has acknowledged is deleted, also after an XACK of another program.
    - A consumer that was not seen for consumer_idle and owns nothing is removed. So are tracking
      ids of messages that have gone.
    - Streams beyond the queue's `streams` are given up, the highest first, if they are empty, were
      not written to for consumer_idle, and no consumer owns anything there. A process with a larger
      number may still write there: its write makes the stream again.
    - A loss of keys is repaired: a stream that is missing from a ring or from the list of streams
      with pending entries, and a returned entry that no list names.

    Arguments:
        queue: a `ShuffleQueue` or `AsyncShuffleQueue`.
        limit: the most items a slice handles.
        lease: how long a consumer holds a message, in seconds or a timedelta: longer than it works
            without `extend`, or the message is delivered twice.
        max_attempts: the most deliveries of a message.
        consumer_idle: seconds or a timedelta.
        dry_run: count the items that would be handled, and change nothing.
        name: of the job, by default ``shuffle_queue_reaper.<queue>``.
        random: returns a float in [0, 1).

    Raises: ConfigurationError.

    A slice serves one group, chosen at random: up to four of its streams, and one of the other
    chores on at most 64 streams, consumers or tracking ids. Commands of stream groups break no
    WATCH. So one script decides and does each change: it aborts nobody, and nobody aborts it. At
    most six round trips.

    Source: seed of replicate's shuffle queues, which never recover anything.
    """

    access = JobAccess(("shuffle queue",))

    def __init__(
        self,
        queue: ShuffleQueue | AsyncShuffleQueue,
        limit: int = 25,
        *,
        lease: Duration = 60.0,
        max_attempts: int = 5,
        consumer_idle: Duration = 3600.0,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(queue, ShuffleQueue | AsyncShuffleQueue):
            raise ConfigurationError(f"{queue!r} cannot be reaped: give a ShuffleQueue")
        self.queue = queue
        self.structures = (queue,)
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.name = f"shuffle_queue_reaper.{queue.keys.text}" if name is None else name
        self.dependency: Hashable = queue.job_client.identity
        settings = Settings(
            lease_ms=_checked_ms(lease, "lease"),
            max_attempts=checked_attempts(max_attempts),
            consumer_idle_ms=_checked_ms(consumer_idle, "consumer_idle"),
            random=random,
        )
        self.reaper = QueueReaper(queue.job_client, queue.keys, settings, queue.streams)

    def perform(self, slice: Slice) -> int:
        """Do one slice of one group.

        Returns: how many items were handled (would be, on a dry run). Raises: LayoutError;
        OutOfTime if nothing was done; connection faults.
        """
        return self.reaper.count(slice) if self.dry_run else self.reaper.reap(slice)

    def warm_up(self) -> None:
        """Load the structure's scripts from their files and prepare connections; no round trip."""
        self.queue.job_client.warm_up("shuffle_queue/")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide the queue for a sweep: each part is a group of streams, by number.

        No part if there is no queue. One round trip.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        n = checked_parts(n)
        facts = self.reaper.read_facts(Budget(10.0, timeout=1.0))
        if facts is None:
            return []
        return groups_of([LEGACY, *range(facts.span)], n)

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that works through some streams, all of them, and for all groups."""
        return _QueuePart(self, part)

    def backlog(self, seconds: Duration = 5.0, most_entries: int = 1000) -> Backlog:
        """Count the messages that dead consumers hold, and those past their deadline.

        A message past its deadline that a consumer has in hand is counted too.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta.
            most_entries: how many pending entries of each stream are looked at.

        Returns: a `Backlog`, not exact if it has not looked at all entries, or if a message may
        have been counted as both. Raises: LayoutError; OutOfTime; connection faults. Changes
        nothing. Two round trips, and two for each group.
        """
        budget = Budget.whole(seconds)
        facts = self.reaper.read_facts(budget)
        if facts is None:
            return Backlog(0, 0.0, WAITING)
        ages, exact = self.reaper.stale_ages(facts, max(1, most_entries), budget)
        overdue = self.reaper.overdue(facts, budget) if facts.is_overdue else 0
        oldest = max(ages, default=0.0)
        if overdue:
            oldest, exact = max(oldest, facts.overdue_seconds), exact and not ages
        return Backlog(len(ages) + overdue, oldest, WAITING, exact)


class _QueuePart(PartJob):
    """Works through some streams until each was found without anything to do."""

    def __init__(self, job: ShuffleQueueReaper, numbers: Sequence[int]) -> None:
        self.name, self.limit = job.name, job.limit
        self._reaper = job.reaper
        self._unseen = deque(numbers)
        self._live: deque[int] = deque()
        # Consumers and tracking ids belong to no stream: one part alone looks at them.
        self._is_tidy = LEGACY not in numbers

    @property
    def is_drained(self) -> bool:
        """Whether a look at every stream, and at the keys beside them, found nothing to do."""
        return self._is_tidy and not self._unseen and not self._live

    def perform(self, slice: Slice) -> int:
        """Look at up to 64 more streams, or work on one of those found; errors as of the job's."""
        facts = None if self.is_drained else self._reaper.facts(slice)
        if facts is None or not facts.groups:
            self._unseen.clear()
            self._live.clear()
            handled = 0 if facts is None or self._is_tidy else self._reaper.tidy(facts, slice)
            self._is_tidy = not handled
            return handled
        if self._unseen:
            some = [self._unseen.popleft() for _ in range(min(WINDOW, len(self._unseen)))]
            # Look at them again until nothing is missing.
            self._unseen.extend(some)
            mended, live = self._reaper.mend_streams(facts, some, slice)
            if mended < slice.limit:
                self._unseen = deque(one for one in self._unseen if one not in some)
                self._live.extend(live)
            return mended
        if self._live:
            number = self._live[0]
            self._live.rotate(-1)
            handled, is_more = self._reaper.sweep_stream(facts, number, slice)
            if not handled and not is_more:
                self._live.remove(number)
            return handled
        handled = self._reaper.tidy(facts, slice)
        self._is_tidy = not handled
        return handled


def _checked_ms(duration: Duration, name: str) -> int:
    return int(seconds_of(duration, name, least=0.001) * 1000)
