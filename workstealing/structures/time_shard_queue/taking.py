"""TimeShardTaking: a take looks at the consumers' time shard or at all, and may wait.

A take that finds nothing and may wait lets its store sleep until there may be something, and takes
again. It chooses the time shards anew after each sleep, and no sleep lasts longer than the
consumers' turn. How the sleep ends in time is the store's: see `redis_waiting` for the reason why
no wake-up is lost there. A take may come too late after a wake-up, because another consumer was
faster; then it sleeps on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from workstealing.clock import Duration, milliseconds_of, seconds_of
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count
from workstealing.store.grants import Asking, asks
from workstealing.store.operations import Steps
from workstealing.structures.queue_place import MOST_SECONDS, Patience
from workstealing.structures.time_shard_queue.putting import TimeShardPutting, is_utf8
from workstealing.structures.time_shard_queue.store import (
    LONGEST_CONSUMER,
    AskedTakes,
    Held,
    Taken,
    moment,
)

T = TypeVar("T")

MOST_AT_ONCE = 1000
_LEAST_SECONDS = 0.01
"""No sleep is shorter for the end of a turn, however short turns are."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """The arguments of a take; asked: takes note of what it is granted, if its store can."""

    consumer: str
    n: int
    lease_ms: int
    drain_all: bool
    patience: Patience
    asked: AskedTakes | None


class TimeShardTaking(TimeShardPutting):
    """The operations `take` and `take_many`."""

    max_attempts: int

    @asks
    def take(
        self,
        consumer: str,
        lease: Duration = 60.0,
        drain_all: bool = False,
        block: Duration = 0,
    ) -> Asking[Taken | None]:
        """Lease the message with the lowest due time of the consumers' time shard.

        Messages that are due in the future stay. If no other message is left, a message whose lease
        has ended is leased anew. A message that has been taken `max_attempts` times in vain is set
        aside.

        Arguments:
            consumer: a name, for people to read.
            lease: seconds, or a timedelta, until the lease ends by itself: choose it longer than
                the work takes.
            drain_all: look at every other time shard too, if there is nothing in the consumers'.
            block: how long to wait for a message, in seconds or a timedelta, 0 not to wait.

        Returns: a `Taken`, or None. Raises: ConfigurationError; LayoutError. One round trip; with
        drain_all at most N. A call that waits wakes when a message becomes due, a lease or a turn
        ends, or somebody puts or releases a message in a time shard that it looks at. Each time it
        has slept, two more round trips, each to each node, and one to take. With Redis it looks
        every five seconds at least, with drain_all on a cluster every second; with Cassandra it
        takes again after pauses of up to a second.

        A call that is interrupted or cut off releases what it has leased. With Redis, one that
        redis-py sends twice is answered by the same message.
        """
        wish = self._wish(consumer, 1, lease, drain_all, block)
        return self._asking(self._taking_one(wish), wish.asked)

    @asks
    def take_many(
        self,
        consumer: str,
        n: int,
        lease: Duration = 60.0,
        drain_all: bool = False,
        block: Duration = 0,
    ) -> Asking[list[Taken]]:
        """Lease up to n messages; see `take`.

        Arguments:
            n: 1 to 1,000.
            block: as of `take`; the call waits for the first message only.

        Returns: a list of `Taken`, of each time shard the lowest due times first. With Redis, one
        round trip for each 100, each atomic: if the process dies between two of them, the leases of
        the taken messages end by themselves.
        """
        wish = self._wish(consumer, checked_count(n, "n", 1, MOST_AT_ONCE), lease, drain_all, block)
        return self._asking(self._taking(wish), wish.asked)

    def now_ms(self) -> int:
        """Return the time of day, by this process's own clock, that chooses time shards."""
        return int(self.clock.time() * 1000)

    def _wish(self, consumer: Any, n: int, lease: Any, drain_all: bool, block: Any) -> _Wish:
        """Return the checked arguments of a take. Raises: ConfigurationError."""
        if (
            not isinstance(consumer, str)
            or not 0 < len(consumer) <= LONGEST_CONSUMER
            or not is_utf8(consumer)
        ):
            raise ConfigurationError(
                f"consumer={consumer!r} is no name: give a text of 1 to {LONGEST_CONSUMER}"
                " characters"
            )
        lease_ms = milliseconds_of(lease, "lease")
        seconds = seconds_of(block, "block")
        if seconds and not hasattr(self.time_shards, "wait"):
            raise ConfigurationError(
                f"block={block!r} is not possible: the time shards of a"
                f" {type(self.store).__name__} have no wait(); take without block, and sleep"
            )
        patience = Patience(seconds, MOST_SECONDS, polls=False, monotonic=time.monotonic)
        asked = AskedTakes() if hasattr(self.store, "ask") else None
        return _Wish(consumer, n, lease_ms, drain_all, patience, asked)

    def _asking(self, steps: Steps[T], asked: AskedTakes | None) -> Asking[T]:
        shards: Any = self.time_shards
        return Asking(steps, lambda: shards.give_back(asked), asked)

    def _taking_one(self, wish: _Wish) -> Steps[Taken | None]:
        taken = yield from self._taking(wish)
        return taken[0] if taken else None

    def _taking(self, wish: _Wish) -> Steps[list[Taken]]:
        yield from self._opening()
        shards: Any = self.time_shards
        taken = yield from self._taking_from(wish, self._time_shards_of(wish))
        waits = 0
        while not taken and (seconds := wish.patience.next_seconds(None)) is not None:
            if wish.asked is not None:
                # The replies were there, and were empty.
                wish.asked.receipts.clear()
            now_ms, period_ms = self.now_ms(), self.rotation.period_ms
            turn = (period_ms - now_ms % period_ms) / 1000
            found = yield from shards.wait(
                self._time_shards_of(wish),
                self.rotation.producing(now_ms),
                min(seconds, max(turn, _LEAST_SECONDS)),
                waits,
            )
            taken = yield from self._taking_from(wish, found)
            waits += 1
        return taken

    def _time_shards_of(self, wish: _Wish) -> list[int]:
        """Return the time shards that a take looks at now, in this order."""
        mine, count = self.rotation.consuming(self.now_ms()), self.rotation.time_shards
        # Backwards: the oldest time shards come first, and the producers' comes near the end.
        return [(mine - i) % count for i in range(count if wish.drain_all else 1)]

    def _taking_from(self, wish: _Wish, time_shards: Sequence[int]) -> Steps[list[Taken]]:
        shards: Any = self.time_shards
        asked = wish.asked
        options = {} if asked is None else {"asked": asked}
        taken: list[Taken] = []
        mine = self.rotation.consuming(self.now_ms())
        for time_shard in time_shards:
            wanted = wish.n - len(taken)
            begun = 0 if asked is None else len(asked.receipts)
            try:
                held = yield from shards.take(
                    *(time_shard, wish.consumer, wish.lease_ms, wanted, self.max_attempts),
                    is_turn=time_shard == mine,
                    **options,
                )
            except self.time_shards.faults as error:
                if not taken:
                    raise
                if asked is not None and len(asked.receipts) > begun:
                    asked.note_cut(asked.receipts[-1], error)
                # Else the caller would lose its messages, which some such takes would set aside.
                break
            taken += [_taken(each, time_shard) for each in held]
            if len(taken) >= wish.n:
                break
        return taken


def _taken(held: Held, time_shard: int) -> Taken:
    return Taken(
        held.id,
        held.message,
        moment(held.due_ms),
        held.attempts,
        moment(held.ends_ms),
        held.token,
        time_shard,
    )
