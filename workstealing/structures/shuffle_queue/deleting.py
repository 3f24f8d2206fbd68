"""Deleting a whole queue, some keys at a time: after a kill the next deletion goes on from there.

Streams go first, from the highest number down, and the span shrinks with them, so it tells which
streams are left. The groups follow, each with all its keys. The queue's other keys go last, all at
once, with the queue's place in the due index. A writer that comes in between finds a smaller queue
that is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation, Steps, operation
from workstealing.store.scripts import load
from workstealing.structures.shuffle_queue.base import QueueBase
from workstealing.structures.shuffle_queue.names import MOST_STREAMS, QueueNames
from workstealing.structures.stored import holding_ours, stored_number

KEYS_A_SCRIPT = 100
LOOK_AGAIN_MS = 24 * 3600 * 1000
"""When the expiry looks again at an idle queue that it keeps for its dead messages."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of one step of a deletion.

    Fields: keys: how many; is_done: whether nothing is left to do; came_back: whether somebody has
    used the queue or deleted a part of it since; then nothing was done.
    """

    keys: int
    is_done: bool = False
    came_back: bool = False


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


class Deleting(QueueBase):
    """The operation that ends a queue."""

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
