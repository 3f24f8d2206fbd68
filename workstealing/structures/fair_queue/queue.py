"""A queue of accounts, of which each gets its share of turns, of time and of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workstealing.store.grants import AsynchronousAsks, BlockingAsks
from workstealing.store.operations import (
    AsynchronousWaiting,
    BlockingWaiting,
    Operation,
    Steps,
    command,
    operation,
)
from workstealing.store.paging import Page
from workstealing.store.pipeline import (
    AsyncPipeline,
    BlockingPipeline,
    OwnedPipeline,
    queued_operations,
)
from workstealing.store.scripts import load
from workstealing.structures.access import ALWAYS, DUE, OPENING_SCRIPTS, Access
from workstealing.structures.fair_queue.base import FairQueueBase, FairQueueNamespace
from workstealing.structures.fair_queue.message import DeadFairMessage
from workstealing.structures.fair_queue.names import FAIR_VERSION, FairQueueNames
from workstealing.structures.fair_queue.reading import FairReading
from workstealing.structures.fair_queue.settling import FairSettling
from workstealing.structures.fair_queue.stats import FairDescribing
from workstealing.structures.fair_queue.writing import FairWriting
from workstealing.structures.queue_place import Deleted, IdleQueues
from workstealing.structures.stored import holding_ours
from workstealing.structures.structure import (
    Check,
    DeadItem,
    DeadLetters,
    Structure,
    times_text,
)

LOOK_AGAIN_MS = 24 * 3600 * 1000
"""When the expiry looks again at an idle queue that it keeps for its dead messages."""


def expiring(
    names: FairQueueNames,
    due: bytes,
    *,
    is_forced: bool = False,
    clock_shift_ms: int = 0,
) -> Operation:
    """Return the script that deletes a queue that is due.

    Arguments:
        names: of the queue.
        due: the due index that it stands in.
        is_forced: delete it even if it is not due, and its dead messages too, which otherwise stay.
        clock_shift_ms: for tests.

    Its reply is the number of keys, -1 if somebody has used the queue since. A queue has few keys,
    and the server frees large ones aside.
    """
    return Operation(
        load("fair_queue/expire", clock_shift_ms),
        (names.meta, due, names.meta, *names.parts),
        (names.name, int(is_forced), LOOK_AGAIN_MS),
    )


def _delete_idle(queue: bytes, due: bytes, _: int, shift_ms: int) -> Steps[Deleted]:
    deleted = yield expiring(FairQueueNames(queue), due, clock_shift_ms=shift_ms)
    return Deleted(max(0, deleted), is_done=deleted >= 0, came_back=deleted < 0)


def _keys_of(queue: bytes) -> Steps[int]:
    """Count the keys that an expiry would delete of an idle queue. Three round trips.

    Where messages were set aside, these and the queue's meta stay.
    """
    names = FairQueueNames(queue)
    dead = names.of("dead")
    with holding_ours(names.meta):
        there = yield ("EXISTS", *(each for each in names.parts if each != dead))
        has_dead = yield ("EXISTS", dead)
        has_meta = yield ("EXISTS", names.meta)
    return int(there) + (bool(has_meta) and not has_dead)


class FairDeleting(FairQueueBase):
    """The operation that ends a queue."""

    idle = IdleQueues(FairQueueNamespace, "fair_queues", "fair_queue/", _delete_idle, _keys_of)

    @operation
    def delete(self) -> Steps[int]:
        """Delete the queue with all its messages, accounts, rules and dead.

        Returns: how many keys were deleted. Raises: LayoutError. One round trip, by one script.
        """
        due, _, _ = self._place or (yield from self._placing())
        deleted = yield expiring(self.keys, due, is_forced=True, clock_shift_ms=self.clock_shift_ms)
        return max(0, int(deleted))


class _FairQueueOperations(FairReading, FairDescribing, FairDeleting):
    """The operations of a queue, for the blocking, the asyncio and the pipeline form."""


class _FairOperations(_FairQueueOperations, Structure):
    """The operations of both forms, and the answers to the dashboard, `doctor` and `drain`."""

    kind = "fair queue"
    access = Access(
        keys=(
            *("NAME/fair/{NAME}/*", "ws:NAMESPACE:layout", "ws:NAMESPACE:slots"),
            "{*}:ws:NAMESPACE:*",
        ),
        scripts=("fair_queue", *OPENING_SCRIPTS),
        commands=ALWAYS | DUE | {"MULTI", "EXEC", "EXISTS", "HGET", "HLEN", "HMGET", "XREAD"},
    )

    def size_steps(self) -> Steps[int | None]:
        """Return how many messages the queue holds; see `length`."""
        return FairWriting.length.steps(self)

    def dead_steps(self) -> Steps[Sequence[DeadLetters]]:
        """Return the messages that were set aside, if there are any."""
        with holding_ours(self.keys.base):
            size = yield command("HLEN", self.keys.of("dead"))
        return (_FairDead(self, int(size)),) if size else ()

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Say whether the namespace and the queue exist, and belong together."""
        return self._place_checks(FAIR_VERSION, self._looking_at_facts)

    def _looking_at_facts(self) -> Steps[Any]:
        return (yield self._asking("stats", 0, "mark"))


class _FairDead(DeadLetters):
    """The messages that were set aside."""

    def __init__(self, queue: _FairOperations, size: int) -> None:
        self.queue, self.size = queue, size

    def list_steps(self, n: int) -> Steps[Page[DeadItem]]:
        """List up to n dead messages, the oldest first."""
        page: Page[DeadFairMessage] = yield from FairSettling.dead.steps(self.queue, n)
        items = (
            DeadItem(
                each.id,
                each.attempts,
                (each.set_aside,),
                payload=each.fields,
                tenant=each.tenant,
                error=f"delivered {times_text(each.attempts)} and never acknowledged",
            )
            for each in page
        )
        return Page(items, page.total, page.start)

    def revive_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Put dead messages back; return how many were dead."""
        return FairSettling.revive.steps(self.queue, *members)

    def discard_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Forget dead messages for good; return how many were dead."""
        return FairSettling.discard.steps(self.queue, *members)


class FairQueue(_FairOperations, BlockingAsks, BlockingWaiting):
    """A queue of accounts, each of which gets its share of turns, of time and of workers.

    Messages wait in their account, in order. A read serves the account that has had the least time
    for its weight; a message is charged an estimate when it is delivered, and its real time at
    `ack`. So neither a flood, nor messages that take a hundred times as long, nor a tenant that
    splits itself into a thousand names of one account takes more than its share. A cap bounds the
    workers that an account may hold at once. Delivery is at least once: a message is the
    consumer's for a lease, and is served again afterwards.

    Arguments:
        client: a redis.Redis or redis.RedisCluster (`AsyncFairQueue` takes an asyncio client).
        name: the queue's; all its keys share one hash slot, and on a cluster a name with a lone
            brace is refused.
        lease: for how long a delivered message is its consumer's, in seconds or a timedelta. The
            same in all processes.
        max_attempts: after so many deliveries without an `ack` a message is set aside.
        ttl: for how long an unused queue is kept before `QueueExpiry` deletes it, in seconds or a
            timedelta.
        notify: whether writes wake waiting readers; without it they look ten times a second.
        namespace: its due index names the queue.
        allow_eviction: names of ``allkeys-*`` policies that are accepted although they may evict
            messages.
        clock_shift_ms: for tests.

    Makes no connection before the first call, which costs two to four more round trips. Attributes:
    name: the queue's, as a text.

    Source: start-time fair queueing (Goyal, Vin and Cheng, 1996).
    """

    def pipeline(self, transaction: bool = True) -> FairQueuePipeline:
        """Return a pipeline: its calls are sent, with the user's own commands, by `execute`."""
        return FairQueuePipeline(self, transaction)


class AsyncFairQueue(_FairOperations, AsynchronousAsks, AsynchronousWaiting):
    """A `FairQueue` on a redis.asyncio client: every method is awaited."""

    def pipeline(self, transaction: bool = True) -> AsyncFairQueuePipeline:
        """Return a pipeline whose `execute` is awaited; see `FairQueue.pipeline`."""
        return AsyncFairQueuePipeline(self, transaction)


if TYPE_CHECKING:

    class _QueuedFairQueue(OwnedPipeline, _FairQueueOperations):
        pass

else:
    _QueuedFairQueue = queued_operations(_FairQueueOperations)


class _EitherFairQueuePipeline(_QueuedFairQueue):
    """Both forms of a pipeline find the queue's place before anything is queued."""

    def _execution(self, raise_on_error: bool) -> Steps[list[Any]]:
        try:
            return (yield from super()._execution(raise_on_error))
        finally:
            self._owner._is_placed_now = False  # noqa: SLF001 - a part of it

    def _opening(self) -> Steps[Any]:
        queue = self._owner
        if queue._place is None:  # noqa: SLF001 - a part of it
            yield from queue._placing()  # noqa: SLF001
            queue._is_placed_now = True  # noqa: SLF001
        yield from super()._opening()


class FairQueuePipeline(_EitherFairQueuePipeline, BlockingPipeline):
    """The methods of a `FairQueue`, and the user's own commands, sent together by `execute`.

    One round trip; a few more at the first use, and every five seconds for a consumer that reads. A
    call that finds the queue gone since then is finished after the rest, outside of its
    transaction: nothing of it had been done.
    """


class AsyncFairQueuePipeline(_EitherFairQueuePipeline, AsyncPipeline):
    """A `FairQueuePipeline` whose `execute` is awaited."""
