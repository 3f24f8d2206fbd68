"""The upkeep of a shuffle queue: its facts, its scripts' calls, and the removal of litter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import JobClient
from workstealing.store.scripts import load
from workstealing.structures.shuffle_queue.names import (
    LEGACY,
    QUEUE_VERSION,
    GroupNames,
    QueueNames,
    stored_place,
)
from workstealing.structures.shuffle_queue.queue import (
    groups_in,
    meta_of,
    span_in,
)
from workstealing.structures.stored import stored_number, wrong_type

T = TypeVar("T")
WINDOW = 64
"""How many streams, consumers or tracking ids are looked at, of which a slice takes some."""
STREAMS_A_SCRIPT = 128
SCRIPTS_A_CONSUMER = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts in a queue's meta: the server's time in ms, the span, and the groups.

    noted: span and joined as meta has them, for scripts that rely on them; is_overdue: whether the
    earliest deadline of all messages has passed; overdue_seconds: for how long it has, 0.0 if not.
    """

    now: int
    span: int
    groups: tuple[bytes, ...]
    noted: tuple[bytes, bytes]
    overdue_seconds: float = 0.0
    is_overdue: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a reaper: lease_ms, max_attempts, consumer_idle_ms; random, in [0, 1)."""

    lease_ms: int
    max_attempts: int
    consumer_idle_ms: int
    random: Callable[[], float]


class Upkeep:
    """A queue as its reaper reaches it: through a job client's one-attempt connections.

    Arguments:
        job_client: of the queue.
        names: of the queue.
        streams: how many there are at least, whatever a damaged meta says.
    """

    def __init__(
        self, job_client: JobClient, names: QueueNames, settings: Settings, streams: int
    ) -> None:
        self._job_client = job_client
        self._names = names
        self._settings = settings
        self._streams = streams

    def facts(self, slice: Slice) -> Facts | None:
        """Return the facts in the queue's meta; None if there is no queue.

        Arguments:
            slice: whose time it takes.

        Raises: LayoutError; OutOfTime; connection faults. One round trip.
        """
        slice.spend(3)
        return self.read_facts(Budget(slice.remaining()))

    def read_facts(self, budget: Budget) -> Facts | None:
        """Return the facts within a budget of time; no slice counts the commands.

        Returns and raises: as `facts`. Raises: LayoutError; OutOfTime; connection faults.
        """
        try:
            clock, flat, first = self.call(
                [
                    ("TIME",),
                    ("HGETALL", self._names.meta),
                    ("ZRANGE", self._names.deadlines, 0, 0, "WITHSCORES"),
                ],
                budget,
            )
        except (ResponseError, LayoutError):
            # A script reports in its own words which of the two is foreign.
            self.call(
                [self.script("overdue", (self._names.meta, self._names.deadlines), 0, 1)], budget
            )
            raise
        meta = meta_of(flat)
        if not meta:
            return None
        if meta.get(b"mark") not in (None, QUEUE_VERSION.encode()):
            # A script reports in its own words why this release must not touch it.
            self.call([self.script("groups", (self._names.meta,))], budget)
        groups = groups_in(meta)
        now = int(clock[0]) * 1000 + int(clock[1]) // 1000
        span = max(span_in(self._names, meta), self._streams)
        # All names at once are made quicker than one after the other.
        self._names.streams(span)
        first_ms = self._deadline(first[1]) if first else now + 1
        noted = meta.get(b"span", b""), meta.get(b"joined", b"")
        return Facts(now, span, groups, noted, max(0.0, now - first_ms) / 1000, first_ms <= now)

    def _deadline(self, score: Any) -> int:
        return stored_number(self._names.deadlines, "a deadline in ms", score)

    def reader(self, group: GroupNames, number: int) -> bytes:
        """Return the name of the group that reads a stream.

        Arguments:
            number: of the stream.

        Returns: the legacy stream's one group, or else the group itself.
        """
        return self._names.legacy if number == LEGACY else group.group

    def script(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Command:
        """Return the command that runs a script of shuffle queues.

        Arguments:
            name: without its folder.
            keys: as the script takes them.
            args: as the script takes them.
        """
        return ("EVAL", load(f"shuffle_queue/{name}").body, len(keys), *keys, *args)

    def call(self, commands: Sequence[Command], budget: Budget) -> list[Any]:
        """Send commands on the queue's keys in one round trip.

        Arguments:
            budget: of time.

        Returns: their replies. Raises: LayoutError if a script refuses or a key has another type,
        or else the first error reply; OutOfTime; connection faults.
        """
        node = self._job_client.node_of(self._names.slot)
        try:
            return checked(self._job_client.call(node, commands, budget))
        except ResponseError as error:
            raise wrong_type(self._names.base, error) from error

    def below(self, bound: int) -> int:
        """Return a random whole number from 0 to bound - 1."""
        return min(int(self._settings.random() * bound), bound - 1)

    def one_of(self, items: Sequence[T]) -> T:
        """Return a random one of some items."""
        return items[self.below(len(items))]

    def shuffled(self, items: list[T]) -> list[T]:
        """Return some items in random order."""
        return sorted(items, key=lambda _: self._settings.random())


class Tidying(Upkeep):
    """Removes overdue messages, idle consumers, streams beyond the number, lost tracking ids."""

    # How many overdue messages there were at the last look.
    _overdue = 0

    def tidy(self, facts: Facts, slice: Slice) -> int:
        """Remove overdue messages, and consumers and tracking ids that nobody needs, of one group.

        Returns: how many were removed, at most the slice's limit. Raises: LayoutError; OutOfTime;
        connection faults. At most ten round trips.
        """
        handled = 0
        if facts.is_overdue:
            handled += self.drop_overdue(facts, None, slice, slice.limit)
        if handled < slice.limit and not slice.expired and self.is_wide(facts):
            handled += self.narrow(facts, None, slice, slice.limit - handled)
        if not facts.groups or handled >= slice.limit or slice.expired:
            return handled
        group = self._names.group(self.one_of(facts.groups))
        handled += self.dismiss(facts, group, slice, slice.limit - handled)
        if handled < slice.limit and not slice.expired:
            handled += self.untrack(facts, group, slice, slice.limit - handled)
        return handled

    def dismiss(self, facts: Facts, group: GroupNames, slice: Slice, limit: int) -> int:
        """Remove consumers that have been idle for long and own nothing.

        Arguments:
            group: whose.
            limit: the most to remove.

        Returns: how many were. Raises: LayoutError; OutOfTime; connection faults. Two round trips;
        with more than 127 streams up to five, and one consumer at most.
        """
        cutoff = facts.now - self._settings.consumer_idle_ms
        look = ("ZRANGEBYSCORE", group.consumers, "-inf", cutoff, "LIMIT", 0, WINDOW)
        slice.spend(1)
        (found,) = self.call([look], Budget(slice.remaining()))
        if not found:
            return 0
        # The legacy stream comes last.
        places = [*range(facts.span), LEGACY]
        if len(places) > STREAMS_A_SCRIPT:
            return self._dismiss_slowly(group, self.one_of(found), places, slice)
        some = self.shuffled(found)[: min(limit, 2 * STREAMS_A_SCRIPT // len(places))]
        commands = [self._consumer_command(group, consumer, places, 0) for consumer in some]
        slice.spend(len(commands))
        replies = self.call(commands, Budget(slice.remaining()))
        return sum(int(left) for left, _ in replies)

    def _dismiss_slowly(
        self, group: GroupNames, consumer: bytes, places: list[int], slice: Slice
    ) -> int:
        """Remove one consumer from many streams, some at a time; others may go on with it."""
        first = 0
        for _ in range(SCRIPTS_A_CONSUMER):
            slice.spend(1)
            command = self._consumer_command(group, consumer, places, first)
            ((left, first),) = self.call([command], Budget(slice.remaining()))
            if left or first <= 0 or slice.expired:
                return int(left)
        return 0

    def overdue(self, facts: Facts, budget: Budget) -> int:
        """Count the messages whose deadline has passed.

        Arguments:
            budget: of time.

        Raises: OutOfTime; connection faults. One round trip.
        """
        look = ("ZCOUNT", self._names.deadlines, "-inf", facts.now)
        return int(self.call([look], budget)[0])

    def drop_overdue(
        self, facts: Facts, _group: GroupNames | None, slice: Slice, limit: int
    ) -> int:
        """Delete messages whose deadline has passed, as a read would, with their tracking ids.

        A message that a consumer has in hand stays.

        Arguments:
            limit: the most to delete.

        A group is taken as by `dismiss`, and not looked at: they go for all. Returns: how many
        were. Raises: LayoutError; OutOfTime; connection faults. Two round trips.
        """
        names = self._names
        slice.spend(3)
        # The first ones may all be in hand, and other reapers look there as well.
        start = self.below(max(1, self._overdue - WINDOW + 1)) if self.below(2) else 0
        count, found = self.call(
            [
                ("ZCOUNT", names.deadlines, "-inf", facts.now),
                ("ZRANGE", names.deadlines, start, start + WINDOW - 1, "WITHSCORES"),
            ],
            Budget(slice.remaining()),
        )
        self._overdue = int(count)
        streams: list[bytes] = []
        described: list[bytes] = []
        for member, score in zip(found[::2], found[1::2], strict=True):
            if self._deadline(score) <= facts.now:
                number, entry, _ = stored_place(names.deadlines, member)
                streams.append(names.stream(number))
                described += (member, b"%d" % number, entry.encode())
        waiting = slice.backlog or 0
        if not streams:
            slice.observe(oldest_seconds=0.0, backlog=waiting + self._overdue)
            return 0
        groups = [names.group(name) for name in facts.groups]
        keys = [key for each in groups for key in (each.state, each.returned, each.delayed)]
        ((dropped, in_hand, oldest_ms),) = self.call(
            [
                self.script(
                    "drop",
                    (names.meta, names.tracking, names.deadlines, *keys, *streams),
                    *(limit, len(groups), *facts.groups, *described),
                )
            ],
            Budget(slice.remaining()),
        )
        # A message in a consumer's hands is no garbage, however long the work takes.
        backlog = waiting + max(0, self._overdue - int(in_hand))
        slice.observe(oldest_seconds=int(oldest_ms) / 1000, backlog=backlog)
        return int(dropped)

    def is_wide(self, facts: Facts) -> bool:
        """Say whether the queue has had more streams than this process gives it; no round trip."""
        return facts.span > self._streams

    def narrow(
        self,
        facts: Facts,
        _group: GroupNames | None,
        slice: Slice,
        limit: int,
        *,
        is_dry: bool = False,
    ) -> int:
        """Give up the highest streams beyond this process's number that nobody uses any more.

        Arguments:
            limit: the most to give up.
            is_dry: count them alone.

        A group is taken as by `dismiss`, and not looked at: they go for all. Returns: how many
        were. Raises: LayoutError; OutOfTime; connection faults. One round trip.
        """
        names = self._names
        groups = [names.group(name) for name in facts.groups]
        keys = [
            key for each in groups for key in (each.ring, each.pending, each.returned, each.laps)
        ]
        least = max(self._streams, facts.span - WINDOW)
        slice.spend(1)
        command = self.script(
            "narrow",
            (names.meta, *keys, *names.streams(facts.span)[least:]),
            *(*facts.noted, int(is_dry), self._settings.consumer_idle_ms, limit),
            *(len(groups), *facts.groups),
        )
        return int(self.call([command], Budget(slice.remaining()))[0])

    def untrack(self, _facts: Facts, _group: GroupNames, slice: Slice, limit: int) -> int:
        """Forget tracking ids of messages that have gone.

        Arguments:
            limit: the most to forget.

        Facts and a group are taken as by `dismiss`, and not looked at. Returns: how many were.
        Raises: LayoutError; OutOfTime; connection faults. Two round trips.
        """
        names = self._names
        slice.spend(2)
        look = ("HRANDFIELD", names.tracking, WINDOW, "WITHVALUES")
        flat = self.call([look], Budget(slice.remaining()))[0] or []
        keys: list[bytes] = []
        args: list[bytes] = []
        for tracked, place in zip(flat[::2], flat[1::2], strict=True):
            number, entry, _ = stored_place(names.tracking, place)
            keys.append(names.stream(number))
            args += (tracked, place, entry.encode())
        if not keys:
            return 0
        (forgotten,) = self.call(
            [self.script("track", (names.meta, names.tracking, *keys), limit, *args)],
            Budget(slice.remaining()),
        )
        return int(forgotten)

    def _consumer_command(
        self, group: GroupNames, consumer: bytes, places: list[int], first: int
    ) -> Command:
        names = self._names
        some = places[first : first + STREAMS_A_SCRIPT]
        keys = (names.meta, group.laps, group.consumers, *map(names.stream, some))
        readers = [self.reader(group, number) for number in some]
        idle = self._settings.consumer_idle_ms
        return self.script("consumer", keys, consumer, idle, first, len(places), *readers)
