"""The job that frees the slots of lapsed deliveries of a fair queue, and keeps its keys right."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError, OutOfTime
from workstealing.recruiting.checks import checked_seconds
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    PartJob,
    checked_parts,
    drawn,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.scripts import load
from workstealing.structures.access import JobAccess
from workstealing.structures.fair_queue import AsyncFairQueue, FairQueue
from workstealing.structures.layout import as_text
from workstealing.structures.stored import wrong_type

__all__ = ["FairQueueReaper"]

WHAT = "lapsed deliveries"
PARTS = ("accounts", "messages", "held", "back", "tracking", "dedupe", "reads")
"""The parts of a queue that are walked over for what a loss of keys, or a dead reader, has left."""
MOST_LAPSED = 100
"""The most items that one script handles: it must not hold the server up."""
PAGE = 50
"""How many items of a key a slice looks at, beside those that it handles."""


class FairQueueReaper(DivisibleJob):
    """Frees the slots of dead consumers, and keeps the accounts of a fair queue right.

    - A message whose lease has lapsed is served again, before the others of its account, and its
      slot is free. Reads do the same: one lapsed delivery each, and eight where nothing is ready.
      After `max_attempts` deliveries it is set aside: see `FairQueue.dead`.
    - A message past its deadline is deleted even if nobody reads, unless a consumer has it in hand.
    - An idle account is forgotten, once its tag says nothing any more.
    - A consumer that was not seen for consumer_idle is forgotten, and the receipts of readers that
      are gone are deleted.
    - A loss of keys is repaired: accounts stand where they belong, and messages can be served.

    Arguments:
        queue: a `FairQueue` or `AsyncFairQueue`; its lease and max_attempts hold.
        limit: the most items a slice handles.
        consumer_idle: seconds or a timedelta.
        dry_run: count the items that would be handled, and change nothing.
        name: of the job, by default ``fair_queue_reaper.<queue>``.
        random: returns a float in [0, 1), for the choice of the key that is walked over.

    Raises: ConfigurationError.

    A slice costs two round trips: a script that reaps, and one that looks at 50 items of a key,
    from where the slice before has ended. Each script decides and does its changes: it aborts
    nobody, and nobody aborts it.
    """

    access = JobAccess(("fair queue",))

    def __init__(
        self,
        queue: FairQueue | AsyncFairQueue,
        limit: int = 25,
        *,
        consumer_idle: Duration = 3600.0,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(queue, FairQueue | AsyncFairQueue):
            raise ConfigurationError(f"{queue!r} cannot be reaped: give a FairQueue")
        self.queue = queue
        default = f"fair_queue_reaper.{queue.name}"
        self._keep_clean(queue, limit=limit, name=name, default=default, dry_run=dry_run)
        self._idle_ms = max(1, int(checked_seconds(consumer_idle, "consumer_idle") * 1000))
        self._random = random

    def perform(self, slice: Slice) -> int:
        """Reap, and look at some items of one key.

        Returns: how many items were handled (would be, on a dry run). Raises: LayoutError;
        OutOfTime if nothing was done; connection faults. Two round trips.
        """
        handled = self.reap(slice)
        if handled < slice.limit and not slice.expired:
            part = PARTS[drawn(len(PARTS), self._random)]
            try:
                handled += self.mend(part, "", slice)[1]
            except OutOfTime:
                if not handled:
                    raise
        return min(handled, slice.limit)

    def reap(self, slice: Slice) -> int:
        """Handle lapsed deliveries, overdue messages, idle accounts and consumers; one script."""
        most = min(slice.limit, MOST_LAPSED)
        settings = (most, self.queue.max_attempts, self._idle_ms)
        slice.spend(1)
        *handled, lapsing, oldest = self._call(
            "reap", Budget(slice.remaining()), *settings, 1, int(bool(self.dry_run))
        )
        slice.observe(oldest_seconds=int(oldest) / 1000, backlog=int(lapsing))
        return sum(map(int, handled))

    def mend(self, part: str, cursor: str, slice: Slice) -> tuple[str, int]:
        """Look at some items of a key; return where to go on, and how many were put right."""
        slice.spend(1)
        found = self._call(
            "mend", Budget(slice.remaining()), part, cursor, PAGE, 1, int(bool(self.dry_run))
        )
        return as_text(found[0]), int(found[1])

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.queue.job_client.warm_up("fair_queue/")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide the queue for a sweep: each part is some of its keys. No round trip."""
        refuse_dry_run(self.name, dry_run=self.dry_run)
        return groups_of(range(len(PARTS)), checked_parts(n))

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that works through some keys, all of them."""
        return _FairQueuePart(self, [PARTS[number] for number in part])

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the deliveries whose lease has lapsed, and say for how long the first one has.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta.

        Raises: LayoutError; OutOfTime; connection faults. Changes nothing. One round trip.
        """
        settings = (1, self.queue.max_attempts, self._idle_ms)
        *_, lapsing, oldest = self._call("reap", Budget.whole(seconds), *settings, 0, 1)
        return Backlog(int(lapsing), int(oldest) / 1000, WHAT)

    def _call(self, name: str, budget: Budget, *args: Any) -> list[Any]:
        queue = self.queue
        keys = queue.all_keys()
        script = load(f"fair_queue/{name}", queue.clock_shift_ms)
        command = ("EVAL", script.body, len(keys), *keys, *args)
        node = queue.job_client.node_of(queue.keys.slot)
        try:
            (reply,) = checked(queue.job_client.call(node, [command], budget))
        except ResponseError as error:
            raise wrong_type(queue.keys.base, error) from error
        return list(reply)


class _FairQueuePart(PartJob):
    """Works through some keys until each was looked at as a whole, and nothing is to be reaped."""

    def __init__(self, job: FairQueueReaper, parts: Sequence[str]) -> None:
        self.name, self.limit = job.name, job.limit
        self._job = job
        self._left = deque(parts)
        self._cursor = "0"
        self._is_reaped = PARTS[0] not in parts

    @property
    def is_drained(self) -> bool:
        """Whether each key was looked at as a whole, and the last look found nothing to reap."""
        return not self._left and self._is_reaped

    def perform(self, slice: Slice) -> int:
        """Look at some items of the first key, or reap; errors as of the job's."""
        if self._left:
            self._cursor, mended = self._job.mend(self._left[0], self._cursor, slice)
            if self._cursor == "0":
                self._left.popleft()
            return mended
        if self._is_reaped:
            return 0
        handled = self._job.reap(slice)
        self._is_reaped = not handled
        return handled
