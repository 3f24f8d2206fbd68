"""RedisDedupe: of messages with one dedupe key, one is put, whichever time shards they would be in.

A key's note lies in a slot of its own, and its message in that of a time shard, so no script sees
both. The producer chooses the message's id, claims the key by writing the id into the note, and
then puts the message. Who finds another id in the note asks its time shard. If that message is
there, it is the answer. If it has ended, or was never put, the asker bars its put by the same
script that has seen this, and only then takes the note over. A put is refused if it is barred, or
if it comes more than a minute after its claim, or before it. So at most one message of a key is
there while the key holds. A put that redis-py sends again is no other one: if its message is there,
or has ended and is not cleared away yet, it was done.

What a kill leaves:

- after a claim, before the put: a note without a message. The next put with the key bars it and
  takes the note over, after 0.2 seconds from the claim on, in which the put may be under way;
- after the bar: the same note. Its producer, if it still lives, claims the key anew;
- after the takeover, before the put: again a note without a message.

So no note blocks anybody. Every end of a message frees its key, because the next put asks the time
shard: an acknowledgement, a cancellation, its being set aside. Nothing is to be swept: the server
removes a note a minute after its key holds no more, and a bar after two. The minute is for a put
that is still under way then. On a cluster that needs clocks of nodes that are less than a minute
apart; else puts are refused. A policy of eviction that removes keys with a time to live may remove
a note, and a deletion of the queue leaves them: they name messages that are not there.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from workstealing.errors import Aborted, ConfigurationError
from workstealing.store.operations import AS_BYTES, Operation, Sleep, Steps
from workstealing.store.scripts import load
from workstealing.structures.time_shard_queue.rotation import Rotation
from workstealing.structures.time_shard_queue.store import Entry, new_id, time_shard_of

YOUNG_MS = 200
"""For so long after a claim nobody bars its put, which may be under way."""
UNTIMELY = -3
"""The answer of a put that is refused because it comes more than a minute from its claim."""
_MOST_UNTIMELY = 3
_RIVALS = 30
_PAUSE_SECONDS = 0.01
_ABSENT, _ENDED, _THERE = range(3)


def note_key(name: bytes, key: bytes) -> bytes:
    """Return the key of the note of a queue's dedupe key."""
    # Any text may be a dedupe key, and a digest is short, and spreads over the slots.
    digest = hashlib.blake2b(key, digest_size=16).hexdigest().encode()
    return b"{%s}:ws:time_shard:claimed:%s" % (digest, name)


class RedisDedupe:
    """The steps of a put with a dedupe key, for `RedisTimeShards`."""

    name: bytes
    rotation: Rotation
    clock_shift_ms: int
    names: Callable[[int], Any]
    put_as: Callable[..., Steps[int]]
    _operation: Callable[..., Operation]

    def put_once(
        self, time_shard: int, entry: Entry, now_s: float, key: bytes, window_ms: int
    ) -> Steps[str]:
        """Keep a message unless another one with its dedupe key is there; see the store's module.

        Two round trips; two if another one is there; four if that has ended. Raises: Aborted if
        too many others put messages with the same key at the same time, or the clocks of nodes
        differ by more than a minute.
        """
        mine, known, other, rivals, untimely = new_id(time_shard, now_s), "", "", 0, 0
        while rivals < _RIVALS:
            claimed: tuple[str, int, int, bool]
            claimed = yield self._claiming(key, mine, known, window_ms)
            said, now_ms, age_ms, is_over = claimed
            if said == mine:
                new = yield from self.put_as(time_shard, [mine], [entry], now_ms)
                if new >= 0:
                    return mine
                # A producer that was stopped for so long comes in time the next time.
                untimely += new == UNTIMELY
                if untimely == _MOST_UNTIMELY:
                    raise Aborted(
                        "the clocks of the nodes that keep a dedupe key and its message seem to be"
                        f" more than a minute apart: of the key {key!r} of the queue"
                        f" {self.name.decode(errors='backslashreplace')!r} nothing was put; set the"
                        " clocks, and put it once more"
                    )
                # Else another producer took this one to be dead.
                mine, known, rivals = new_id(time_shard, now_s), mine, rivals + 1
                continue
            if said != other:
                other, rivals = said, rivals + 1
            # Where many are slow, each has more time, or none would come to its put.
            state = yield from self._barring(said, age_ms > YOUNG_MS * rivals)
            if state == _THERE and not is_over:
                return said
            if state == _ABSENT:
                yield Sleep(random.uniform(_PAUSE_SECONDS, 3 * _PAUSE_SECONDS))
            else:
                known = said
        raise Aborted(
            f"{_RIVALS} others came first with the dedupe key {key!r} of the queue"
            f" {self.name.decode(errors='backslashreplace')!r}, and none of their messages was"
            " there: nothing was put; put it once more"
        )

    def _barring(self, message_id: str, bars: bool) -> Steps[int]:
        """Ask for a message, and bar its put if it is not there; one round trip."""
        try:
            time_shard = time_shard_of(message_id, self.rotation.time_shards)
        except ConfigurationError:
            # Of a queue that was deleted, with more time shards; this one has no place for it.
            return _ENDED
        names = self.names(time_shard)
        keys = (names.messages, names.consumed, names.dead, names.bar(message_id.encode()))
        state: int = yield self._operation("bar", keys, time_shard, (message_id, int(bars)), int)
        return state

    def _claiming(self, key: bytes, mine: str, known: str, window_ms: int) -> Operation:
        return Operation(
            load("time_shard_queue/claim", self.clock_shift_ms),
            (note_key(self.name, key),),
            (mine.encode(), known.encode(), window_ms),
            _claimed,
            AS_BYTES,
        )


def _claimed(reply: Sequence[Any]) -> tuple[str, int, int, bool]:
    said, now_ms, age_ms, is_over = reply
    return said.decode(errors="backslashreplace"), int(now_ms), int(age_ms), is_over == 1
