"""What tests of a TimeShardQueue's sweeper share: clocks that are set by hand, and what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import redis

from support.time_shard_queues import is_receipt
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.store.keys import to_bytes
from workstealing.structures.time_shard_queue import RedisStore, TimeShardQueue
from workstealing.structures.time_shard_queue.redis_store import TimeShardNames, layout_key

PERIOD = 60.0
# Nothing is special about it: whole periods since the epoch, divisible by 4, 5, 6, 7 and 16.
START = 60.0 * 1680 * 17_000
NAME = "queue"
_HELD = """
local found = {}
for each = 1, 4 do found[each] = redis.call('ZRANGE', KEYS[each], 0, -1, 'WITHSCORES') end
for each = 5, 6 do found[each] = redis.call('HGETALL', KEYS[each]) end
found[7] = redis.call('SMEMBERS', KEYS[7])
return found
"""


class Wall:
    """A time of day that all clocks of a test go by.

    Arguments:
        seconds: since the epoch.
    """

    def __init__(self, seconds: float = START) -> None:
        self.seconds = seconds

    def skewed(self, seconds: float = 0.0) -> Skewed:
        """Return a clock that is ahead of this one, or behind it."""
        return Skewed(self, seconds)


class Skewed:
    """One process' own clock."""

    def __init__(self, wall: Wall, skew: float) -> None:
        self._wall, self._skew = wall, skew

    def time(self) -> float:
        """Return seconds since the epoch, as this process believes."""
        return self._wall.seconds + self._skew


def queue_on(
    client: Any,
    wall: Wall,
    *,
    shards: int = 6,
    skew: float = 0.0,
    max_attempts: int = 5,
    name: str = NAME,
) -> TimeShardQueue:
    """Return the queue as a process sees it whose clock is wrong by so many seconds."""
    return TimeShardQueue(
        RedisStore(client),
        name,
        shards=shards,
        period=PERIOD,
        max_attempts=max_attempts,
        clock=wall.skewed(skew),
    )


def names_of(shards: int = 6, name: str = NAME) -> list[TimeShardNames]:
    """Return the keys of each time shard."""
    return [TimeShardNames(to_bytes(name), number) for number in range(shards)]


def end_leases(client: redis.Redis, names: TimeShardNames) -> int:
    """Let all leases of a time shard have ended long ago; return how many there are."""
    ids = client.zrange(names.leased, 0, -1)
    if ids:
        client.zadd(names.leased, dict.fromkeys(ids, 1))
    return len(ids)


def held(client: redis.Redis, names: TimeShardNames) -> dict[str, Any]:
    """Return all that a time shard's keys hold, at one moment: others may be at work."""
    kinds = ("waiting", "leased", "released", "dead", "messages", "history", "consumed")
    # No MULTI, which a full server refuses.
    replies = client.eval(_HELD, len(kinds), *(getattr(names, kind) for kind in kinds))
    found: dict[str, Any] = {
        kind: dict(zip(reply[::2], reply[1::2], strict=True))
        for kind, reply in zip(kinds[:-1], replies, strict=False)
    }
    for kind in kinds[:4]:
        found[kind] = {member: float(score) for member, score in found[kind].items()}
    return {**found, "consumed": set(replies[-1])}


def assert_sound(client: redis.Redis, names: TimeShardNames) -> set[bytes]:
    """Check that each message of a time shard is in one place, and nothing belongs to none.

    Returns: the ids of the messages that are not consumed.
    """
    found = held(client, names)
    places = Counter([*found["waiting"], *found["leased"], *found["dead"]])
    assert set(places) == set(found["messages"])
    assert all(count == 1 for count in places.values())
    assert set(found["history"]) <= set(found["messages"])
    return set(found["messages"]) - found["consumed"]


def finish(queue: TimeShardQueue, wall: Wall) -> list[str]:
    """Take and acknowledge all that is left, and sweep it away; return the ids of what was taken.

    Leases must have ended, or end by themselves in no time.
    """
    found: list[str] = []
    while any(each.waiting + each.leased > each.consumed for each in queue.stats()):
        taken = queue.take_many("last", 500, 600.0, drain_all=True)
        found += [each.id for each in taken]
        queue.ack(*taken)
    sweep_away(queue, wall)
    return found


def sweep_away(queue: TimeShardQueue, wall: Wall) -> None:
    """Sweep until nothing is left to be cleared away, while time goes on."""
    job = TimeShardSweeper(queue, limit=500)
    for _ in range(20 * queue.rotation.time_shards):
        found = job.backlog()
        if not found.count:
            return
        wall.seconds = (wall.seconds // PERIOD + 1) * PERIOD + 20
        while job.perform(Slice(500, 5.0)):
            pass
    raise AssertionError(f"there is still {job.backlog()}")


def only_layout_is_left(
    nodes: list[redis.Redis], shards: int = 6, names: Iterable[str] = (NAME,)
) -> None:
    """Check that no key but those that say what the queues are like is left."""
    allowed = {layout_key(to_bytes(name)) for name in names}
    allowed |= {TimeShardNames(to_bytes(n), i).mark for n in names for i in range(shards)}
    left = {
        key for node in nodes for key in node.scan_iter(count=1000) if not is_receipt(node, key)
    }
    assert left <= allowed
