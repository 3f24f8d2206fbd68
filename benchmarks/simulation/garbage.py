"""The garbage of a simulation: hashes whose fields have expired, in the index shards of one server.

It is found as HashFieldExpiry finds it: a few index shards at random, the oldest hashes of each in
a random order, and all other index shards if that was too little.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

_SHARDS = 16
_FIRST_LOOK = 3
_HASHES_A_SHARD = 16
_HASHES_AN_ATTEMPT = 25


class Steps:
    """A frequency that is constant between changes.

    Arguments:
        first: events a second from the beginning on.
        then: pairs of a whole second and the frequency from then on.
    """

    def __init__(self, first: float, then: Sequence[tuple[float, float]] = ()) -> None:
        self.changes = [at for at, _ in then]
        self._values = [first, *(value for _, value in then)]

    def __call__(self, now: float) -> float:
        """Return the frequency at a moment."""
        return self._values[bisect_right(self.changes, now)]

    def total(self, seconds: float) -> float:
        """Return how many events are expected until a moment."""
        ends = [*(min(at, seconds) for at in self.changes), seconds]
        begins = [0.0, *ends[:-1]]
        return sum(
            value * max(0.0, end - begin)
            for value, begin, end in zip(self._values, begins, ends, strict=True)
        )


@dataclass(slots=True)
class Found:
    """What one slice has found: items removed, the oldest age seen, commands, and round trips."""

    items: int
    oldest_seconds: float
    operations: int
    round_trips: int


class Garbage:
    """What waits to be removed, and for how long everything waited.

    Arguments:
        inflow: items a second at a time.
        fields: how many items come at once, as one hash.
    """

    def __init__(self, inflow: Callable[[float], float], fields: int, random: Random) -> None:
        self._inflow = inflow
        self._fields = fields
        self._random = random
        self._shards: list[deque[list[float]]] = [deque() for _ in range(_SHARDS)]
        self._horizon = 0.0
        self.waiting = 0
        self.waited = 0.0
        self.worst = 0.0
        # The oldest item's age at each whole second from 1 on.
        self.ages: list[float] = []

    def arrive(self, now: float) -> None:
        """Let everything arrive that has become garbage by now."""
        random, shards, fields = self._random.random, self._shards, self._fields
        expovariate = self._random.expovariate
        while self._horizon < now:
            at = self._horizon
            # The pace may change at whole seconds; waiting times have no memory, so each second
            # begins anew.
            second = float(int(at) + 1)
            end = min(now, second)
            pace = self._inflow(at) / fields
            if pace > 0.0:
                at += expovariate(pace)
                while at < end:
                    shards[int(random() * _SHARDS)].append([at, fields])
                    self.waiting += fields
                    at += expovariate(pace)
            self._horizon = end
            if end == second:
                self.ages.append(self.oldest(end))

    def oldest(self, now: float) -> float:
        """Return the age of the oldest item, 0.0 if there is none."""
        return max((now - shard[0][0] for shard in self._shards if shard), default=0.0)

    def take(self, now: float, limit: int) -> Found:
        """Remove up to `limit` items as one slice does."""
        order = self._random.sample(range(_SHARDS), _SHARDS)
        found = Found(0, 0.0, 0, 0)
        for some in (order[:_FIRST_LOOK], order[_FIRST_LOOK:]):
            # TIME, a ZRANGE of each index shard, and a ZCOUNT.
            found.operations += 2 + len(some)
            found.round_trips += 1
            self._take_from(now, limit, some, found)
            if found.items >= limit:
                break
        return found

    def _take_from(self, now: float, limit: int, some: list[int], found: Found) -> None:
        chosen: list[tuple[int, int]] = []
        # The index shards come in a random order, too.
        for shard in some:
            hashes = self._shards[shard]
            if hashes:
                found.oldest_seconds = max(found.oldest_seconds, now - hashes[0][0])
                count = min(len(hashes), _HASHES_A_SHARD)
                chosen += [(shard, index) for index in self._random.sample(range(count), count)]
        emptied: list[tuple[int, int]] = []
        while chosen and found.items < limit:
            most = max(1, min(_HASHES_AN_ATTEMPT, (limit - found.items) // self._fields))
            some, chosen = chosen[:most], chosen[most:]
            self._attempt(now, limit, some, found, emptied)
        for shard, index in sorted(emptied, reverse=True):
            del self._shards[shard][index]

    def _attempt(
        self,
        now: float,
        limit: int,
        some: list[tuple[int, int]],
        found: Found,
        emptied: list[tuple[int, int]],
    ) -> None:
        """Take from some hashes as one attempt does, and count its commands."""
        each = -(-(limit - found.items) // len(some))
        ended, cut = set(), set()
        # WATCH, a ZRANGE of each hash; MULTI, EXEC.
        found.operations += 3 + len(some)
        found.round_trips += 2
        for shard, index in some:
            due, items = self._shards[shard][index]
            taken = min(int(items), each, limit - found.items)
            if not taken:
                break
            self._shards[shard][index][1] -= taken
            self._remove(now, due, taken)
            found.items += taken
            # HDEL; and ZREM if deadlines are left.
            found.operations += 1 if taken == items else 2
            if taken == items:
                emptied.append((shard, index))
            (ended if taken == items else cut).add(shard)
        # UNLINK of all deadlines that are used up; for each index shard ZREM or ZADD of its hashes.
        found.operations += bool(ended) + len(ended) + len(cut)

    def sweep(self, now: float, most: int) -> tuple[int, int]:
        """Remove up to `most` items, the oldest of each index shard; return items and hashes."""
        items = hashes = 0
        for shard in self._shards:
            while shard and items < most:
                due, count = shard[0]
                taken = min(int(count), most - items)
                self._remove(now, due, taken)
                items += taken
                hashes += 1
                shard[0][1] -= taken
                if taken == count:
                    shard.popleft()
        return items, hashes

    def settle(self, now: float) -> None:
        """Count what is left over as if it were removed at the end."""
        self.arrive(now)
        self.sweep(now, self.waiting)

    def _remove(self, now: float, due: float, items: int) -> None:
        self.waiting -= items
        self.waited += (now - due) * items
        self.worst = max(self.worst, now - due)
