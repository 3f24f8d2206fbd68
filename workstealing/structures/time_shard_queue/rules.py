"""What a TimeShardQueue does, written once as generators over what a store returns.

They yield what a store's method has returned, are sent what came of it (for asyncio: once it was
awaited), and return the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any

from redis.exceptions import DataError

from workstealing.clock import SYSTEM_CLOCK, WallClock
from workstealing.errors import ConfigurationError
from workstealing.store.keys import require_users_name, to_bytes
from workstealing.store.paging import Page, oldest
from workstealing.store.twin import wrong_form
from workstealing.structures.time_shard_queue.message import (
    DeadMessage,
    Taken,
    TimeShardCounts,
    moment,
    new_id,
    time_shard_of,
)
from workstealing.structures.time_shard_queue.rotation import Rotation, rotation_of
from workstealing.structures.time_shard_queue.store import Counts, Due, Entry, Held

MAX_ATTEMPTS = 5
MOST_AT_ONCE = 1000
# How many ids one script of the store is given, so that none holds the server for long.
CHANGED_A_PIECE = 200
Steps = Generator[Any, Any, Any]


class Rules:
    """The rules of one queue; see `TimeShardQueue` for the arguments."""

    _is_async_client: bool

    def __init__(
        self,
        store: Any,
        name: str | bytes,
        shards: int = 4,
        period_s: float = 60,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        clock: WallClock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(name, str | bytes) or not name or not is_utf8(name):
            raise ConfigurationError(f"the name {name!r} is not usable: give a text or bytes")
        require_users_name(to_bytes(name))
        if not callable(getattr(store, "bind", None)):
            raise ConfigurationError(
                f"a store was expected, not {type(store).__name__}: give RedisStore(client)"
            )
        if bool(getattr(store, "asynchronous", False)) is not self._is_async_client:
            raise wrong_form(self, "store")
        self.rotation: Rotation = rotation_of(shards, period_s)
        """Whose turn it is when; pure functions of a clock."""
        self.max_attempts: int = checked_number("max_attempts", max_attempts, 10**6)
        self.store = store
        self.time_shards = store.bind(to_bytes(name), self.rotation)
        """This queue in its store; what the sweeper works with."""
        self.clock = clock
        self._name = to_bytes(name)

    @property
    def name(self) -> str:
        """The name, as text."""
        return self._name.decode(errors="backslashreplace")

    def now_ms(self) -> int:
        """Return the time of day, by this process's own clock, that chooses time shards."""
        return int(self.clock.time() * 1000)

    def _opened(self, create: bool = False) -> Steps:
        # Only who puts something into a queue writes down what it is like.
        found = yield self.time_shards.open(create)
        self.rotation.require(found, self.name)

    def _putting(self, body: bytes, due: Due) -> Steps:
        yield from self._opened(create=True)
        now_s = self.clock.time()
        time_shard = self.rotation.producing(int(now_s * 1000))
        message_id = new_id(time_shard, now_s)
        yield self.time_shards.put(time_shard, [Entry(message_id, body, due)])
        return message_id

    def _taking(self, consumer: str, lease_ms: int, n: int, drain_all: bool) -> Steps:
        yield from self._opened()
        taken: list[Taken] = []
        mine = self.rotation.consuming(self.now_ms())
        count = self.rotation.time_shards if drain_all else 1
        for i in range(count):
            # Backwards: what the producers write now comes last but few, what is oldest first.
            time_shard = (mine - i) % self.rotation.time_shards
            wanted = n - len(taken)
            try:
                held = yield self.time_shards.take(
                    time_shard, consumer, lease_ms, wanted, self.max_attempts
                )
            except self.time_shards.faults:
                if not taken:
                    raise
                # Or they would have been taken in vain, again and again, until they are set aside.
                break
            taken += [_taken(each, time_shard) for each in held]
            if len(taken) >= n:
                break
        return taken

    def _taking_one(self, consumer: str, lease_ms: int, n: int, drain_all: bool) -> Steps:
        taken = yield from self._taking(consumer, lease_ms, n, drain_all)
        return taken[0] if taken else None

    def _changing(self, method: str, messages: Sequence[Taken | str]) -> Steps:
        groups: defaultdict[int, list[str]] = defaultdict(list)
        for message in messages:
            time_shard, message_id = self._place(message)
            groups[time_shard].append(message_id)
        yield from self._opened()
        count = 0
        for time_shard, ids in groups.items():
            for first in range(0, len(ids), CHANGED_A_PIECE):
                chunk = ids[first : first + CHANGED_A_PIECE]
                count += yield getattr(self.time_shards, method)(time_shard, chunk)
        return count

    def _deleting(self, message: Taken | str) -> Steps:
        return (yield from self._changing("consume", (message,))) == 1

    def _releasing(self, message: Taken | str, due: Due | None) -> Steps:
        time_shard, message_id = self._place(message)
        token = message.token if isinstance(message, Taken) else None
        yield from self._opened()
        return (yield self.time_shards.release(time_shard, message_id, token, due))

    def _extending(self, taken: Taken, lease_ms: int) -> Steps:
        time_shard, message_id = self._place(taken)
        yield from self._opened()
        return (yield self.time_shards.extend(time_shard, message_id, taken.token, lease_ms))

    def _dropping(self) -> Steps:
        return (yield self.time_shards.drop())

    def _observing(self) -> Steps:
        yield from self._opened()
        numbers = range(self.rotation.time_shards)
        found: list[Counts] = yield self.time_shards.counts(numbers)
        now_ms = self.now_ms()
        return [
            TimeShardCounts(
                number, self.rotation.role(number, now_ms), *each[:-1], each.overdue_ms / 1000
            )
            for number, each in zip(numbers, found, strict=True)
        ]

    def _listing_dead(self, n: int) -> Steps:
        yield from self._opened()
        found = []
        for time_shard in range(self.rotation.time_shards):
            found += yield self.time_shards.dead(time_shard, n)
        total = len(found)
        if total >= n:
            counts: list[Counts] = yield self.time_shards.counts(range(self.rotation.time_shards))
            total = sum(each.dead for each in counts)
        first = oldest(found, n, lambda each: (each.since_ms, each.id), total)
        return Page(
            (
                DeadMessage(
                    each.id,
                    each.message,
                    moment(each.due_ms),
                    each.attempts,
                    moment(each.since_ms),
                    each.consumer,
                )
                for each in first
            ),
            first.total,
        )

    def _place(self, message: Taken | str) -> tuple[int, str]:
        message_id = message.id if isinstance(message, Taken) else message
        return time_shard_of(message_id, self.rotation.time_shards), message_id


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


def is_utf8(text: str | bytes) -> bool:
    """Return whether a text can be sent as UTF-8; bytes always can."""
    try:
        to_bytes(text)
    except DataError:
        return False
    return True


def checked_number(name: str, number: Any, most: int) -> int:
    """Return a number of 1 to most. Errors: ConfigurationError, naming the argument."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        raise ConfigurationError(f"{name}={number!r} is not usable: give 1 to {most}")
    return number
