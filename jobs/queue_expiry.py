"""The job that deletes shuffle queues which nobody has used for their time to live."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.store.twin import twin_of
from workstealing.structures.namespaces.due_collecting import CollectingJob
from workstealing.structures.namespaces.due_index import DueIndex
from workstealing.structures.shuffle_queue import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue.expiring import QueueBacklog, QueueCollector
from workstealing.structures.shuffle_queue.names import IndexNames

__all__ = ["QueueBacklog", "QueueExpiry"]


class QueueExpiry(CollectingJob[QueueCollector]):
    """Deletes whole queues of one namespace that have been idle for their ttl.

    A queue carries no EXPIRE, under which a ``volatile-*`` policy would evict messages; it stands
    in a due index, which every write, read, nack and revive moves on. Messages that were set aside
    are not deleted: a queue with such is left with them alone, and looked at again a day later. The
    legacy stream is somebody else's, and is left too.

    Arguments: queues: a client, or one of the namespace's queues; limit: the most keys a slice
    deletes (a script at most 100); namespace: by default the queue's, or ``shuffle_queues``;
    dry_run: count idle queues, at most `limit`, and delete nothing; name: what the job is called,
    by default ``queue_expiry.<namespace>``; random: returns a float in [0, 1), for the choice among
    due queues.

    One slice: at most two round trips to find queues that are due, and two for each script. Each
    script looks once more whether the queue is due, so that whoever comes in between wins. What was
    deleted until then is gone, and what is left is a whole queue; one that is due is found until
    its last key has gone, in one script with its place in the due index.
    """

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
        if isinstance(queues, ShuffleQueue | AsyncShuffleQueue):
            client, shift_ms = queues.client, queues.clock_shift_ms
            namespace = namespace or queues.namespace
        self.names = names = IndexNames(namespace or "shuffle_queues")
        self.twin = twin = twin_of(client)
        index = DueIndex(twin, names, shift_ms, random, clock)
        super().__init__(
            QueueCollector(index, shift_ms),
            f"queue_expiry.{names.namespace}" if name is None else name,
            limit,
            dry_run=dry_run,
        )

    def backlog(self, seconds: float = 5.0) -> QueueBacklog:
        """Count idle queues, and say for how long the first of them has been due.

        Arguments: seconds: how long it may take. Two round trips to each node.
        """
        return self._collector.backlog(seconds)
