"""A TimeShardQueue under full load: skewed producers and consumers, late acks, many sweepers.

Time goes on in steps, between which all clocks stand still: so a clock that is 59 s wrong is just
that, however busy the machine is. Within a step everybody works at once, in threads.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import redis

from support.time_shards import START, Wall, finish, queue_on
from workstealing.errors import Aborted
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.structures.time_shard_queue import TimeShardQueue
from workstealing.testing import ManualClock

STEP_SECONDS = 7.3
LEASE_SECONDS = 0.004
SLICE_SECONDS = 5.0
MOST_ATTEMPTS = 10_000


@dataclass(frozen=True)
class Attempted:
    """One slice of a sweeper.

    Fields: time_shard; start, end: monotonic; items: how many it handled; aborted; lost: whether it
    ended in a time-out, so that nobody knows what it has done.
    """

    time_shard: int
    start: float
    end: float
    items: int
    aborted: bool
    lost: bool = False

    def overlaps(self, other: Attempted) -> bool:
        """Say whether two slices were at work at the same moment."""
        return self.start <= other.end and other.start <= self.end


@dataclass
class Tally:
    """What has happened. Fields: put: ids; acked: id -> when (monotonic) that was answered."""

    put: set[str] = field(default_factory=set)
    acked: dict[str, float] = field(default_factory=dict)
    attempts: list[Attempted] = field(default_factory=list)
    taken: int = 0
    late: int = 0
    again_after_ack: list[str] = field(default_factory=list)

    @property
    def aborted(self) -> list[Attempted]:
        """Attempts that were aborted."""
        return [one for one in self.attempts if one.aborted]

    @property
    def aborted_by_traffic(self) -> list[Attempted]:
        """Attempts aborted while no other sweeper changed anything in the same time shard."""
        changes = [one for one in self.attempts if one.items or one.lost]
        return [
            one
            for one in self.aborted
            if not any(
                other.time_shard == one.time_shard and other.overlaps(one) for other in changes
            )
        ]


class Load:
    """Producers, consumers and sweepers of one queue.

    Arguments:
        skews: of each producer and each consumer, in seconds.
        sweepers: how many.
        where: the time shard that sweepers work in, by their queue, instead of the right one: for
            comparison.
    """

    def __init__(
        self,
        client: Any,
        *,
        shards: int = 6,
        skews: Sequence[float] = (-59.0, 0.0, 59.0),
        sweepers: int = 1,
        seed: int = 1,
        where: Callable[[TimeShardQueue], int] | None = None,
    ) -> None:
        self.client, self.shards = client, shards
        self.wall, self.tally = Wall(START), Tally()
        self._lock = threading.Lock()
        self._held: list[Any] = []
        self._where = where
        rng = random.Random(seed)
        self._workers: list[Callable[[], None]] = []
        for skew in skews:
            for work in (self._produce, self._consume, self._finish_late):
                queue = self._queue(skew)
                own = random.Random(rng.random())
                self._workers.append(lambda w=work, q=queue, r=own: w(q, r))  # type: ignore[misc]
        self._sweepers = [(self._queue(), random.Random(rng.random())) for _ in range(sweepers)]
        self._busy = 0

    def run(self, steps: int) -> Tally:
        """Let everybody work for so many steps of time."""
        with ThreadPoolExecutor(len(self._workers) + len(self._sweepers)) as pool:
            for _ in range(steps):
                self._busy = len(self._workers)
                jobs = [pool.submit(self._work, work) for work in self._workers]
                jobs += [pool.submit(self._sweep, *sweeper) for sweeper in self._sweepers]
                for job in jobs:
                    job.result()
                self.wall.seconds += STEP_SECONDS
        return self.tally

    def finish(self) -> set[str]:
        """Take and acknowledge all that is left, sweep it away; return what was taken."""
        return set(finish(self._queue(), self.wall))

    def _queue(self, skew: float = 0.0) -> TimeShardQueue:
        # Leases end so soon that consumers who merely are slow would make poison of any message.
        return queue_on(
            self.client, self.wall, shards=self.shards, skew=skew, max_attempts=MOST_ATTEMPTS
        )

    def _work(self, work: Callable[[], None]) -> None:
        try:
            for _ in range(3):
                work()
        finally:
            with self._lock:
                self._busy -= 1

    def _produce(self, queue: TimeShardQueue, rng: random.Random) -> None:
        for _ in range(3):
            # Some are due later, some long ago: all before the end of the test.
            due = time.time() + rng.choice((-100.0, -1.0, 0.0, 0.05))
            message_id = queue.put("message", due)
            with self._lock:
                self.tally.put.add(message_id)

    def _consume(self, queue: TimeShardQueue, rng: random.Random) -> None:
        start = time.monotonic()
        taken = queue.take_many("consumer", 4, LEASE_SECONDS)
        with self._lock:
            self.tally.taken += len(taken)
            self.tally.again_after_ack += [
                each.id for each in taken if self.tally.acked.get(each.id, start) < start
            ]
        for each in taken:
            fate = rng.random()
            if fate < 0.3:
                self._ack(queue, each)
            elif fate < 0.4:
                queue.release(each)
            elif fate < 0.8:
                with self._lock:
                    self._held.append(each)

    def _finish_late(self, queue: TimeShardQueue, rng: random.Random) -> None:
        """Acknowledge, delete or release what was taken long ago, wherever it is now."""
        for _ in range(3):
            with self._lock:
                if len(self._held) < 40:
                    return
                each = self._held.pop(rng.randrange(len(self._held)))
                # Whatever its clock says, its time shard may be the one that is being swept.
                self.tally.late += each.time_shard in queue.rotation.untouched(
                    int(self.wall.seconds * 1000)
                )
            fate = rng.random()
            if fate < 0.6:
                self._ack(queue, each)
            elif fate < 0.8:
                queue.release(each)
            elif queue.cancel(each.id):
                with self._lock:
                    self.tally.acked[each.id] = time.monotonic()

    def _ack(self, queue: TimeShardQueue, each: Any) -> None:
        queue.ack(each)
        with self._lock:
            self.tally.acked.setdefault(each.id, time.monotonic())

    def _sweep(self, queue: TimeShardQueue, rng: random.Random) -> None:
        """Sweep for as long as anybody else works."""
        job = TimeShardSweeper(queue, 5, random=rng.random)
        sweep = job.sweeping.sweep

        def recorded(time_shard: int, **options: Any) -> Any:
            if self._where is not None:
                time_shard = self._where(queue)
            start = time.monotonic()
            items = 0
            error: Exception | None = None
            try:
                done = sweep(time_shard, **options)
                items = done.items
                return done
            except (Aborted, redis.TimeoutError) as raised:
                error = raised
                raise
            finally:
                is_aborted, is_lost = (
                    isinstance(error, Aborted),
                    isinstance(error, redis.TimeoutError),
                )
                end = time.monotonic()
                attempted = Attempted(time_shard, start, end, items, is_aborted, is_lost)
                with self._lock:
                    self.tally.attempts.append(attempted)

        job.sweeping.sweep = recorded  # type: ignore[method-assign]
        try:
            while self._busy:
                try:
                    # Its length decides where it works. By a clock that stands still it keeps it,
                    # and a busy machine does not end it.
                    job.perform(Slice(5, SLICE_SECONDS, ManualClock()))
                except (Aborted, redis.TimeoutError):
                    continue
        finally:
            job.sweeping.sweep = sweep  # type: ignore[method-assign]
