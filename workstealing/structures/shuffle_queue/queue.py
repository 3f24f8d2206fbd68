"""A queue of many tenants, of which none can hold up the others, and its deletion.

A deletion takes some keys at a time, and after a kill the next one goes on from there.
Streams go first, from the highest number down, and the span shrinks with them, so it tells which
streams are left. The groups follow, each with all its keys. The queue's other keys go last, all at
once, with the queue's place in the due index. A writer that comes in between finds a smaller queue
that is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workstealing.store.grants import AsynchronousAsks, BlockingAsks
from workstealing.store.keys import to_bytes
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
from workstealing.structures.queue_place import KEYS_A_SCRIPT, Deleted, IdleQueues
from workstealing.structures.shuffle_queue.base import QueueBase, QueueNamespace
from workstealing.structures.shuffle_queue.exchanging import Exchanging
from workstealing.structures.shuffle_queue.names import MOST_STREAMS, QUEUE_VERSION, QueueNames
from workstealing.structures.shuffle_queue.settling import DeadMessage, Settling
from workstealing.structures.shuffle_queue.stats import Describing
from workstealing.structures.shuffle_queue.writing import Writing
from workstealing.structures.stored import holding_ours, stored_number
from workstealing.structures.structure import Check, DeadItem, DeadLetters, Structure

LOOK_AGAIN_MS = 24 * 3600 * 1000
"""When the expiry looks again at an idle queue that it keeps for its dead messages."""


def delete_some(
    names: QueueNames, due: bytes, limit: int, *, is_forced: bool, clock_shift_ms: int = 0
) -> Steps[Deleted]:
    """Delete at most `limit` keys of a queue that is due, by one script.

    Arguments:
        names: of the queue.
        due: the due index that it stands in.
        is_forced: delete it even if it is not due, and its dead messages too, which otherwise stay.
        clock_shift_ms: for tests.

    Raises: LayoutError. Two round trips.
    """
    with holding_ours(names.meta):
        reply = yield ("HGETALL", names.meta)
    meta = meta_of(reply)
    script = load("shuffle_queue/expire", clock_shift_ms)
    joined, span = meta.get(b"joined", b""), meta.get(b"span", b"")

    def step(part: str, keys: tuple[bytes, ...], *args: Any) -> Operation:
        fixed = (names.name, int(is_forced), joined, span, part)
        return Operation(script, (names.meta, due, *keys), (*fixed, *args))

    streams = span_in(names, meta, MOST_STREAMS)
    groups = groups_in(meta)
    if streams:
        left = max(0, streams - limit)
        keys = tuple(names.streams(streams)[left:])
        deleted, _ = yield step("streams", keys, left)
        return Deleted(max(0, deleted), came_back=deleted < 0)
    kept = 0
    for name in groups:
        group = names.group(name)
        others = tuple(key for key in group.all if key != group.dead)
        deleted, is_done = yield step("group", (group.dead, *others), limit, name)
        if deleted or not is_done:
            return Deleted(max(0, deleted), came_back=deleted < 0)
        reply = yield ("HEXISTS", names.meta, b"group:" + name)
        if not reply:
            return Deleted(0)
        kept += 1
    again = LOOK_AGAIN_MS if kept else ""
    others = (names.notifications, names.tracking, names.deadlines)
    deleted, is_done = yield step("rest", others, limit, again)
    return Deleted(max(0, deleted), is_done=bool(is_done), came_back=deleted < 0)


def meta_of(reply: Any) -> dict[bytes, bytes]:
    """Return a queue's meta from a HGETALL reply of any client."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {to_bytes(name): to_bytes(value) for name, value in pairs}


def span_in(names: QueueNames, meta: dict[bytes, bytes], unknown: int = 0) -> int:
    """Return how many streams a queue's meta says that there are; `unknown` if it does not say.

    Raises: LayoutError for anything but such a number.
    """
    span = meta.get(b"span")
    return unknown if span is None else stored_number(names.meta, "span", span, 0, MOST_STREAMS)


def groups_in(meta: dict[bytes, bytes]) -> tuple[bytes, ...]:
    """Return the groups that a queue's meta names."""
    return tuple(name.removeprefix(b"group:") for name in meta if name.startswith(b"group:"))


def _delete_idle(queue: bytes, due: bytes, limit: int, shift_ms: int) -> Steps[Deleted]:
    return delete_some(QueueNames(queue), due, limit, is_forced=False, clock_shift_ms=shift_ms)


def _keys_of(queue: bytes) -> Steps[int]:
    """Count the keys that an expiry would delete of an idle queue. Two round trips.

    Where a group has dead messages, these and the queue's meta stay.
    """
    names = QueueNames(queue)
    with holding_ours(names.meta):
        reply = yield ("HGETALL", names.meta)
    meta = meta_of(reply)
    groups = [names.group(each) for each in groups_in(meta)]
    going = [*names.streams(span_in(names, meta, MOST_STREAMS)), names.notifications]
    going += [names.tracking, names.deadlines]
    going += [key for group in groups for key in group.all if key != group.dead]
    there = yield ("EXISTS", *going)
    dead = [group.dead for group in groups]
    has_dead = (yield ("EXISTS", *dead)) if dead else 0
    return int(there) + (bool(meta) and not has_dead)


class Deleting(QueueBase):
    """The operation that ends a queue."""

    idle = IdleQueues(QueueNamespace, "shuffle_queues", "shuffle_queue/", _delete_idle, _keys_of)

    @operation
    def delete(self) -> Steps[int]:
        """Delete the queue with all its messages, groups and dead.

        The legacy stream belongs to others, and stays. Returns: how many keys were deleted. Raises:
        LayoutError. Two round trips for each 100 keys: it is not atomic, and messages written
        meanwhile may stay. If this process dies, `QueueExpiry` goes on when the queue has been idle
        for its ttl.
        """
        due, _, _ = self._place or (yield from self._placing())
        deleted = 0
        # Concurrent writers could keep it at work for ever.
        for _ in range(100 + 2 * MOST_STREAMS // KEYS_A_SCRIPT):
            some = yield from delete_some(
                self.keys,
                due,
                KEYS_A_SCRIPT,
                is_forced=True,
                clock_shift_ms=self.clock_shift_ms,
            )
            deleted += some.keys
            if some.is_done:
                break
        return deleted


class _QueueOperations(Writing, Exchanging, Describing, Deleting):
    """The operations of a queue, for the blocking, the asyncio and the pipeline form."""


class _Operations(_QueueOperations, Structure):
    """The operations of both forms, and the answers to the dashboard, `doctor` and `drain`."""

    kind = "shuffle queue"
    access = Access(
        keys=(
            *("NAME", "NAME/queue/{NAME}/*", "ws:NAMESPACE:layout", "ws:NAMESPACE:slots"),
            "{*}:ws:NAMESPACE:*",
        ),
        scripts=("shuffle_queue", *OPENING_SCRIPTS),
        commands=ALWAYS
        | DUE
        | {"MULTI", "EXEC"}
        | {"HEXISTS", "HGETALL", "HLEN", "HMGET", "HRANDFIELD", "XREAD", "XPENDING"}
        | {"ZRANGEBYSCORE"},
    )

    def size_steps(self) -> Steps[int | None]:
        """Return how many messages all streams hold; see `length`."""
        return Writing.length.steps(self)

    def dead_steps(self) -> Steps[Sequence[DeadLetters]]:
        """Return a part for each group with messages that were set aside."""
        groups = yield from Writing.groups.steps(self)
        if not groups:
            return ()
        with holding_ours(self.keys.base):
            sizes = yield [command("HLEN", self.keys.group(group).dead) for group in groups]
        return tuple(
            _GroupsDead(self, group, size)
            for group, size in zip(groups, sizes, strict=True)
            if size
        )

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Say whether the namespace and the queue exist, and belong together."""
        return self._place_checks(QUEUE_VERSION, lambda: Writing.groups.steps(self))


@dataclass(slots=True)
class _GroupsDead(DeadLetters):
    """The messages that were set aside for one group; other groups may have the same ones."""

    queue: _Operations
    group: str
    size: int

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the part."""
        return f"group {self.group}"

    def list_steps(self, n: int) -> Steps[Page[DeadItem]]:
        """List up to n dead messages, the oldest first."""
        page: Page[DeadMessage] = yield from Settling.dead.steps(self.queue, self.group, n)
        items = (
            DeadItem(
                each.id,
                each.attempts,
                (each.set_aside,),
                payload=each.fields,
                tenant=each.tenant,
                error=f"delivered {_times(each.attempts)} and never acknowledged",
            )
            for each in page
        )
        return Page(items, page.total, page.start)

    def revive_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Put dead messages back for this group; return how many were dead."""
        return Settling.revive.steps(self.queue, self.group, *members)

    def discard_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Forget dead messages of this group for good; return how many were dead."""
        return Settling.discard.steps(self.queue, self.group, *members)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


class ShuffleQueue(_Operations, BlockingAsks, BlockingWaiting):
    """A queue of many tenants over Redis streams, served fairly.

    Each tenant has a few streams of its own by a stable choice, and its messages go to the shortest
    of these streams; two tenants rarely have all streams in common. Readers go round the streams
    that have messages, one message each. So a tenant with a million messages delays only tenants
    that share its streams. Delivery is at least once: a delivered message stays pending until
    `ack`.

    Arguments:
        client: a redis.Redis or redis.RedisCluster (`AsyncShuffleQueue` takes an asyncio client).
        name: the queue's; all its keys share one hash slot, and on a cluster a name with a lone
            brace is refused. Other producers' stream at the name itself is read too, by the group
            of that same name, so a plain stream can be moved over without a pause. streams and
            streams_per_tenant: may differ between processes and change at any time; no message is
            stranded by that.
        ttl: for how long an unused queue is kept before `QueueExpiry` deletes it, in seconds or a
            timedelta.
        notify: whether writes wake waiting readers; without it they look ten times a second.
        max_attempts: after so many deliveries without an `ack` a message is set aside. The same in
            all processes.
        namespace: its due index names the queue.
        allow_eviction: names of ``allkeys-*`` policies that are accepted although they may evict
            messages.
        clock_shift_ms: for tests.

    Makes no connection before the first call, which costs two to four more round trips. Attributes:
    name: the queue's, as a text.

    Source: seed of replicate's shuffle queues (shuffle sharding), with an index of the streams that
    have messages added.
    """

    def pipeline(self, transaction: bool = True) -> ShuffleQueuePipeline:
        """Return a pipeline: its calls are sent, with the user's own commands, by `execute`."""
        return ShuffleQueuePipeline(self, transaction)


class AsyncShuffleQueue(_Operations, AsynchronousAsks, AsynchronousWaiting):
    """A `ShuffleQueue` on a redis.asyncio client: every method is awaited."""

    def pipeline(self, transaction: bool = True) -> AsyncShuffleQueuePipeline:
        """Return a pipeline whose `execute` is awaited; see `ShuffleQueue.pipeline`."""
        return AsyncShuffleQueuePipeline(self, transaction)


if TYPE_CHECKING:

    class _QueuedQueue(OwnedPipeline, _QueueOperations):
        pass

else:
    _QueuedQueue = queued_operations(_QueueOperations)


class _EitherShuffleQueuePipeline(_QueuedQueue):
    """Both forms of a pipeline learn the groups before anything is queued."""

    def _opening(self) -> Steps[Any]:
        yield from self._owner._placing()  # noqa: SLF001 - a part of it
        yield from super()._opening()
        if self._called & {"write", "write_many"}:
            yield from self._owner.learning_steps()


class ShuffleQueuePipeline(_EitherShuffleQueuePipeline, BlockingPipeline):
    """The methods of a `ShuffleQueue`, and the user's own commands, sent together by `execute`.

    One round trip; a few more at the first use, and every five seconds for a consumer that reads. A
    write that does not know a new group, and a read that does not know whose turn it is, is
    finished after the rest, outside of its transaction: nothing of it had been done.
    """


class AsyncShuffleQueuePipeline(_EitherShuffleQueuePipeline, AsyncPipeline):
    """A `ShuffleQueuePipeline` whose `execute` is awaited."""
