"""The job that deletes queues that have been idle for their time to live."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import LayoutError, OutOfTime
from workstealing.jobs.shared.due_collecting import (
    PATIENCE_SECONDS,
    CollectingJob,
    DueCollector,
    Served,
    left_of,
)
from workstealing.jobs.shared.due_looks import items_backlog, looks
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.fleet import AnyFleet
from workstealing.store.job_client import Node
from workstealing.structures.access import JobAccess
from workstealing.structures.due_index import DueIndex, DueKey
from workstealing.structures.queue_place import KEYS_A_SCRIPT, Deleted, IdleQueues, PlacedQueue
from workstealing.structures.shuffle_queue import ShuffleQueue

__all__ = ["QueueExpiry"]


class QueueExpiry(CollectingJob):
    """Deletes whole queues of one namespace that have been idle for their ttl.

    A queue has no EXPIRE, because a ``volatile-*`` policy could then evict messages. Instead it
    stands in a due index, and every write, read, nack and revive moves its time on. Dead messages
    are not deleted: they stay, the rest of their queue is deleted, and the queue is looked at again
    a day later. The legacy stream is not the queue's own, and stays too.

    Arguments:
        queues: one of the namespace's queues, a `ShuffleQueue` or a `FairQueue`; or, for shuffle
            queues, a client or a fleet.
        limit: the most keys a slice deletes (a script at most 100; the 17 keys of a fair queue go
            together).
        namespace: by default the queue's, or ``shuffle_queues``.
        dry_run: count the keys of idle queues, at most `limit`, and delete nothing.
        name: of the job, by default ``queue_expiry.<namespace>``.
        random: returns a float in [0, 1), for the choice among due queues.

    A slice takes at most two round trips to find queues that are due, and two for each script. Each
    script checks again that the queue is due, so a user who comes in between wins. The keys deleted
    until then are gone, and the rest is a whole queue. The last script deletes the last key
    together with the queue's entry in the due index, so the queue is found until then.
    """

    access = JobAccess(("fair queues", "shuffle queues"))
    unit = "keys"

    def __init__(
        self,
        queues: Any,
        limit: int = 25,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        shift_ms = 0
        client = queues
        self.queues = queues
        idle = ShuffleQueue.idle
        if isinstance(queues, PlacedQueue):
            client, shift_ms, idle = queues.client, queues.clock_shift_ms, queues.idle
            namespace = namespace or queues.namespace
        named = namespace or idle.named
        clients = client.nodes if isinstance(client, AnyFleet) else {"": client}
        homes = {node: idle.namespace(each, named) for node, each in clients.items()}
        self.structures = tuple(homes.values())
        if isinstance(client, AnyFleet):
            for home in self.structures:
                home.fleet = client
        collectors = {
            node: _QueueCollector(
                DueIndex(home.job_client, home.names, shift_ms, random, clock), idle, shift_ms
            )
            for node, home in homes.items()
        }
        super().__init__(
            collectors,
            f"queue_expiry.{named}" if name is None else name,
            limit,
            dry_run=dry_run,
            random=random,
        )


class _QueueCollector(DueCollector):
    """Collects the idle queues of one namespace, through a job client's one-attempt connections.

    Arguments:
        index: of the namespace.
        idle: how its queues are deleted.
        clock_shift_ms: for tests.
    """

    what = "keys of idle queues"

    def __init__(self, index: DueIndex, idle: IdleQueues, clock_shift_ms: int) -> None:
        super().__init__(index)
        self.scripts = idle.scripts
        self._idle = idle
        self._shift_ms = clock_shift_ms

    def serve(
        self, found: list[DueKey], most: int, slice: Slice, timeout: float | None = PATIENCE_SECONDS
    ) -> Served:
        """Delete keys of queues, one queue after the other; two round trips for each script."""
        deleted, served = 0, 0
        problem: LayoutError | None = None
        for due in found:
            if deleted >= most:
                break
            try:
                deleted += self._delete(due, most - deleted, slice, timeout)
            except LayoutError as error:
                problem = error
            except OutOfTime:
                if not deleted:
                    raise
                break
            else:
                served += 1
        return Served(deleted, served, problem)

    def count(self, slice: Slice) -> int:
        """Return how many keys of idle queues a slice would delete now, at most the limit.

        Two round trips for each queue.
        """
        counted = 0
        try:
            for look in looks(self._index, slice):
                for due in look.found:
                    counted += self._index.drive(
                        self._idle.keys(due.key), Budget(slice.remaining())
                    )
                    if counted >= slice.limit or slice.expired:
                        return min(counted, slice.limit)
        except OutOfTime:
            if not counted:
                raise
        return min(counted, slice.limit)

    def backlog(self, seconds: float, most_queues: int = 200) -> Backlog:
        """Count the keys of idle queues; with more than 200 of these, those stand for the others.

        Two round trips to each node, and two for each queue.
        """
        drive, budget = self._index.drive, Budget.whole(seconds)

        def count(_: Node, found: Sequence[bytes]) -> int:
            return sum(drive(self._idle.keys(each), budget) for each in found)

        return items_backlog(self._index, seconds, self.what, count, most_queues)

    def _delete(self, due: DueKey, limit: int, slice: Slice, timeout: float | None) -> int:
        """Delete at most `limit` keys of one queue; fewer if the queue is used again."""
        deleted = 0
        while deleted < limit:
            budget = left_of(slice, timeout)
            slice.spend(2)
            try:
                some = self._delete_some(due, min(limit - deleted, KEYS_A_SCRIPT), budget)
            except OutOfTime:
                if not deleted:
                    raise
                break
            deleted += some.keys
            if some.is_done or some.came_back:
                break
        return deleted

    def _delete_some(self, due: DueKey, limit: int, budget: Budget) -> Deleted:
        index = self._index.names.due(due.shard)
        steps = self._idle.delete(due.key, index, limit, self._shift_ms)
        return self._index.drive(steps, budget)
