"""A queue of many tenants, of which none can hold up the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workstealing.store.grants import AsynchronousAsks, BlockingAsks
from workstealing.store.operations import (
    AS_BYTES,
    AsynchronousWaiting,
    BlockingWaiting,
    Steps,
    command,
)
from workstealing.store.paging import Page
from workstealing.structures.access import ALWAYS, DUE, OPENING_SCRIPTS, Access
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.base import QueueNamespace
from workstealing.structures.shuffle_queue.deleting import Deleting
from workstealing.structures.shuffle_queue.names import QUEUE_VERSION
from workstealing.structures.shuffle_queue.reading import ReadingMessages
from workstealing.structures.shuffle_queue.settling import DeadMessage, Settling
from workstealing.structures.shuffle_queue.stats import Describing
from workstealing.structures.shuffle_queue.writing import Writing
from workstealing.structures.stored import holding_ours
from workstealing.structures.structure import FAULT, Check, DeadItem, DeadLetters, Structure


class _Operations(Writing, ReadingMessages, Settling, Describing, Deleting, Structure):
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
        checks = yield from QueueNamespace(self.client, self.namespace).check_steps()
        keys = self.keys
        with holding_ours(keys.meta):
            reply = yield command("HMGET", keys.meta, "mark", "namespace", options=AS_BYTES)
        mark, namespace = (None if each is None else as_text(each) for each in reply)
        named = f"queue {self.name}"
        if mark not in (None, QUEUE_VERSION):
            # A script knows the rule of versions, and refuses what this release cannot read.
            yield from Writing.groups.steps(self)
        if namespace not in (None, self.namespace):
            said = (
                f"{named}: belongs to the namespace {namespace}, and this process says"
                f" {self.namespace}"
            )
            return (Check("", FAULT, said),)
        return checks


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
        namespace: its due index names the queue.
        allow_eviction: names of ``allkeys-*`` policies that are accepted although they may evict
            messages.
        clock_shift_ms: for tests.

    Makes no connection before the first call, which costs two to four more round trips. Attributes:
    name: the queue's, as a text.

    Source: seed of replicate's shuffle queues (shuffle sharding), with an index of the streams that
    have messages added.
    """


class AsyncShuffleQueue(_Operations, AsynchronousAsks, AsynchronousWaiting):
    """A `ShuffleQueue` on a redis.asyncio client: every method is awaited."""
