"""Keeping a shuffle queue whole: what its dead consumers and its losses have left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from workstealing.errors import OutOfTime
from workstealing.recruiting.slice import Slice
from workstealing.store.connection import Budget, Command, checked
from workstealing.store.operations import as_layout_error
from workstealing.store.scripts import load
from workstealing.store.twin import Twin
from workstealing.structures.shuffle_queue.deleting import foreign_meta, groups_in, meta_of
from workstealing.structures.shuffle_queue.names import (
    LEGACY,
    QUEUE_VERSION,
    RETURNED,
    GroupNames,
    QueueNames,
)

WINDOW = 64
"""How many streams, consumers or tracking ids are looked at, of which a slice takes some."""
STREAMS_A_SLICE = 4
LEAST_ENTRIES = 32
"""How many pending entries of a stream are looked at, however small a slice is."""
STREAMS_A_SCRIPT = 128
SCRIPTS_A_CONSUMER = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a queue's meta says: the server's time in ms, the span, and the groups."""

    now: int
    span: int
    groups: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a script has done to one stream, for one group.

    Fields: handled: entries that were returned, set aside, cleared away or put right; stale: how
    many stale entries were seen; oldest_ms: for how long the oldest was held; ended: whether the
    lap over the stream's pending entries has come to its end.
    """

    handled: int
    stale: int
    oldest_ms: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """What a reaper goes by: idle_ms, max_attempts, consumer_idle_ms; random, in [0, 1)."""

    idle_ms: int
    max_attempts: int
    consumer_idle_ms: int
    random: Callable[[], float]


class QueueReaper:
    """Reaps one queue through a twin's one-attempt connections.

    Arguments: twin and names, of the queue; settings; streams: how many there are at least,
    whatever a damaged meta says. Commands of stream groups break no WATCH, so every change is
    decided and done by one script; what is looked at before it says only where to look.
    """

    def __init__(self, twin: Twin, names: QueueNames, settings: Settings, streams: int) -> None:
        self._twin = twin
        self._names = names
        self._settings = settings
        self._streams = streams
        # Where a look for what can be trimmed goes on; this process's own.
        self._places: dict[int, bytes] = {}

    def reap(self, slice: Slice) -> int:
        """Recover what one group's dead consumers hold, and do one of the other chores.

        Returns: how many items were handled, at most the slice's limit. Errors: LayoutError;
        OutOfTime if nothing was done; connection faults. At most six round trips.
        """
        facts = self.facts(slice)
        if facts is None or not facts.groups:
            slice.observe(oldest_seconds=0.0, backlog=0)
            return 0
        group = self._names.group(self._one_of(facts.groups))
        chores = (self._mend, self._mend, self._dismiss, self._untrack)
        chore = self._one_of(chores)
        handled = 0
        try:
            # However much there is to recover, the rest has its turn.
            is_first = self._settings.random() < 1 / len(chores)
            if is_first:
                handled += chore(facts, group, slice, max(1, slice.limit // 4))
            if handled < slice.limit and not slice.expired:
                handled += self._recover(facts, group, slice, slice.limit - handled)
            if not is_first and handled < slice.limit and not slice.expired:
                handled += chore(facts, group, slice, slice.limit - handled)
        except OutOfTime:
            if not handled:
                raise
        return handled

    def count(self, slice: Slice) -> int:
        """Return how many entries `reap` would return, set aside or put right; change nothing.

        Three round trips.
        """
        facts = self.facts(slice)
        if facts is None or not facts.groups:
            return 0
        group = self._names.group(self._one_of(facts.groups))
        due = self._due_streams(facts, group, slice)[0][:STREAMS_A_SLICE]
        window = max(LEAST_ENTRIES, 4 * slice.limit)
        held = self._held(group, due, window, Budget(slice.remaining()))
        numbers = self._some_streams(facts)
        heal = self._heal_command(group, numbers, slice.limit, is_dry=True)
        (healed,) = self._call([heal], Budget(slice.remaining()))
        ages = [age for found in held for age in self._stale(found)]
        return min(slice.limit, len(ages) + int(healed[0]))

    def facts(self, slice: Slice) -> Facts | None:
        """Return what the queue's meta says; None where there is no queue. One round trip."""
        slice.spend(2)
        return self.read_facts(Budget(slice.remaining()))

    def read_facts(self, budget: Budget) -> Facts | None:
        """As `facts`, within a budget."""
        try:
            clock, flat = self._call([("TIME",), ("HGETALL", self._names.meta)], budget)
        except ResponseError as error:
            raise foreign_meta(self._names, error) from error
        meta = meta_of(flat)
        if not meta:
            return None
        if meta.get(b"mark") not in (None, QUEUE_VERSION.encode()):
            # A script says in its own words why this release must not touch it.
            self._call([self._heal_command(self._names.group("-"), [], 0, is_dry=True)], budget)
        groups = groups_in(meta)
        now = int(clock[0]) * 1000 + int(clock[1]) // 1000
        span = max(int(meta.get(b"span") or 0), self._streams)
        # All names at once are made quicker than one after the other.
        self._names.streams(span)
        return Facts(now, span, groups)

    def stale_ages(
        self, facts: Facts, most_entries: int, budget: Budget
    ) -> tuple[list[float], bool]:
        """Return since when stale entries have been held, in seconds, and whether those are all.

        Arguments: most_entries: how many pending entries of each stream are looked at. Two round
        trips for each group.
        """
        ages: list[float] = []
        exact = True
        for name in facts.groups:
            group = self._names.group(name)
            cutoff = facts.now - self._settings.idle_ms
            look = ("ZRANGEBYSCORE", group.pending, "-inf", cutoff, "LIMIT", 0, 4 * WINDOW)
            (due,) = self._call([look], budget)
            held = self._held(group, [int(number) for number in due], most_entries, budget)
            ages += [age / 1000 for found in held for age in self._stale(found)]
            exact = exact and len(due) < 4 * WINDOW
            exact = exact and all(len(found) < most_entries for found in held)
        return ages, exact

    # One stream after the other, for a sweep.

    def mend_streams(
        self, facts: Facts, numbers: Sequence[int], slice: Slice
    ) -> tuple[int, set[int]]:
        """Put right what is missing beside some streams, for all groups.

        Returns: how much was, and those of the streams that exist. One round trip.
        """
        commands = [
            self._heal_command(self._names.group(name), numbers, slice.limit, is_dry=False)
            for name in facts.groups
        ]
        slice.spend(len(commands))
        replies = self._call(commands, Budget(slice.remaining()))
        live = {int(number) for _, *found in replies for number in found}
        return sum(int(reply[0]) for reply in replies), live

    def sweep_stream(self, facts: Facts, number: int, slice: Slice) -> tuple[int, bool]:
        """Recover and trim one stream, for all groups.

        Returns: how much was handled, and whether there is more to look at. Two round trips.
        """
        each = max(1, slice.limit // max(1, len(facts.groups)))
        commands = [
            self._reap_command(facts, self._names.group(name), number, each)
            for name in facts.groups
        ]
        slice.spend(len(commands) + 1)
        reaped = [self._reaped(one) for one in self._call(commands, Budget(slice.remaining()))]
        handled = sum(one.handled for one in reaped)
        is_more = not all(one.ended for one in reaped)
        if handled < slice.limit:
            handled += self._trim([number], slice, slice.limit - handled)
            is_more = is_more or number in self._places
        return handled, is_more

    def tidy(self, facts: Facts, slice: Slice) -> int:
        """Remove consumers and tracking ids that nobody needs, of one group; see `reap`."""
        group = self._names.group(self._one_of(facts.groups))
        handled = self._dismiss(facts, group, slice, slice.limit)
        if handled < slice.limit and not slice.expired:
            handled += self._untrack(facts, group, slice, slice.limit - handled)
        return handled

    # What a slice does.

    def _recover(self, facts: Facts, group: GroupNames, slice: Slice, limit: int) -> int:
        due, _ = self._due_streams(facts, group, slice)
        chosen = due[: min(STREAMS_A_SLICE, limit)]
        if not chosen:
            slice.observe(oldest_seconds=0.0, backlog=0)
            return 0
        each = limit // len(chosen)
        commands = [self._reap_command(facts, group, number, each) for number in chosen]
        slice.spend(len(commands))
        replies = self._call(commands, Budget(slice.remaining()))
        reaped = [self._reaped(reply) for reply in replies]
        oldest = max(one.oldest_ms for one in reaped) - self._settings.idle_ms
        slice.observe(
            oldest_seconds=max(0, oldest) / 1000, backlog=sum(one.stale for one in reaped)
        )
        return sum(one.handled for one in reaped)

    def _mend(self, facts: Facts, group: GroupNames, slice: Slice, limit: int) -> int:
        """Look at some streams; put right what is missing beside them, and trim two of them."""
        command = self._heal_command(group, self._some_streams(facts), limit, is_dry=False)
        slice.spend(1)
        ((healed, *live),) = self._call([command], Budget(slice.remaining()))
        handled = int(healed)
        chosen = self._shuffled([int(number) for number in live])[:2]
        if chosen and handled < limit and not slice.expired:
            handled += self._trim(chosen, slice, limit - handled)
        return handled

    def _trim(self, numbers: Sequence[int], slice: Slice, limit: int) -> int:
        names = self._names
        numbers = numbers[:limit]
        each = limit // len(numbers)
        commands = [
            self._script(
                "trim",
                (names.meta, names.tracking, names.stream(number)),
                *(number, self._places.pop(number, b"-"), max(LEAST_ENTRIES, 4 * each), each),
            )
            for number in numbers
        ]
        slice.spend(len(commands))
        handled = 0
        replies = self._call(commands, Budget(slice.remaining()))
        for number, (deleted, place) in zip(numbers, replies, strict=True):
            handled += int(deleted)
            if place:
                self._places[number] = place
        return handled

    def _dismiss(self, facts: Facts, group: GroupNames, slice: Slice, limit: int) -> int:
        """Remove consumers that have been idle for long and own nothing."""
        cutoff = facts.now - self._settings.consumer_idle_ms
        look = ("ZRANGEBYSCORE", group.consumers, "-inf", cutoff, "LIMIT", 0, WINDOW)
        slice.spend(1)
        (found,) = self._call([look], Budget(slice.remaining()))
        if not found:
            return 0
        # The legacy stream comes last.
        places = [*range(facts.span), LEGACY]
        if len(places) > STREAMS_A_SCRIPT:
            return self._dismiss_slowly(group, self._one_of(found), places, slice)
        some = self._shuffled(found)[: min(limit, 2 * STREAMS_A_SCRIPT // len(places))]
        commands = [self._consumer_command(group, consumer, places, 0) for consumer in some]
        slice.spend(len(commands))
        replies = self._call(commands, Budget(slice.remaining()))
        return sum(int(left) for left, _ in replies)

    def _dismiss_slowly(
        self, group: GroupNames, consumer: bytes, places: list[int], slice: Slice
    ) -> int:
        """Remove one consumer from many streams, some at a time; others may go on with it."""
        first = 0
        for _ in range(SCRIPTS_A_CONSUMER):
            slice.spend(1)
            command = self._consumer_command(group, consumer, places, first)
            ((left, first),) = self._call([command], Budget(slice.remaining()))
            if left or first <= 0 or slice.expired:
                return int(left)
        return 0

    def _untrack(self, facts: Facts, _group: GroupNames, slice: Slice, limit: int) -> int:
        """Forget tracking ids whose message has gone."""
        names = self._names
        slice.spend(2)
        look = ("HRANDFIELD", names.tracking, WINDOW, "WITHVALUES")
        flat = self._call([look], Budget(slice.remaining()))[0] or []
        keys: list[bytes] = []
        args: list[bytes] = []
        for tracked, place in zip(flat[::2], flat[1::2], strict=True):
            number, _, entry = place.partition(b":")
            if _is_number(number) and -1 <= int(number) < facts.span and entry:
                keys.append(names.stream(int(number)))
                args += (tracked, place, entry)
        if not keys:
            return 0
        (forgotten,) = self._call(
            [self._script("track", (names.meta, names.tracking, *keys), limit, *args)],
            Budget(slice.remaining()),
        )
        return int(forgotten)

    # Looking.

    def _due_streams(self, facts: Facts, group: GroupNames, slice: Slice) -> tuple[list[int], int]:
        """Return streams that may have stale entries, shuffled, and how many there are."""
        slice.spend(2)
        cutoff = facts.now - self._settings.idle_ms
        due, size = self._call(
            [
                ("ZRANGEBYSCORE", group.pending, "-inf", cutoff, "LIMIT", 0, WINDOW),
                ("ZCOUNT", group.pending, "-inf", cutoff),
            ],
            Budget(slice.remaining()),
        )
        return self._shuffled([int(number) for number in due]), int(size)

    def _held(
        self, group: GroupNames, numbers: Sequence[int], most: int, budget: Budget
    ) -> list[list[Any]]:
        """Return pending entries of each stream. One round trip."""
        commands: list[Command] = [
            ("XPENDING", self._names.stream(n), self._reader(group, n), "-", "+", most)
            for n in numbers
        ]
        if not commands:
            return []
        replies = self._twin.call(self._twin.node_of(self._names.slot), commands, budget)
        # A stream that has gone has nothing pending.
        return [[] if isinstance(reply, ResponseError) else reply for reply in replies]

    def _stale(self, entries: list[Any]) -> list[int]:
        """Return for how long, in ms, the stale ones of pending entries have been held."""
        return [
            int(idle)
            for _, owner, idle, _ in entries
            if owner != RETURNED.encode() and int(idle) >= self._settings.idle_ms
        ]

    def _some_streams(self, facts: Facts) -> list[int]:
        """Return neighbouring streams from a random one on, the legacy one among them."""
        places = [LEGACY, *range(facts.span)]
        if len(places) <= WINDOW:
            return places
        start = self._below(len(places))
        return (places[start:] + places[:start])[:WINDOW]

    # The scripts.

    def _reap_command(self, facts: Facts, group: GroupNames, number: int, limit: int) -> Command:
        names, settings = self._names, self._settings
        others: list[bytes] = []
        if number == LEGACY:
            # All groups read it under one name.
            for name in facts.groups:
                if name != group.group:
                    other = names.group(name)
                    others += (other.returned, other.delayed)
        keys = (
            *(names.meta, group.ring, group.laps, group.pending, group.returned, group.delayed),
            *(group.consumers, group.dead, names.tracking, names.notifications),
            *(names.stream(number), *others),
        )
        window = max(LEAST_ENTRIES, 4 * limit)
        return self._script(
            "reap",
            keys,
            *(group.group, number, settings.idle_ms, settings.max_attempts, limit, window),
        )

    def _heal_command(
        self, group: GroupNames, numbers: Sequence[int], limit: int, *, is_dry: bool
    ) -> Command:
        names = self._names
        keys = (
            *(names.meta, group.ring, group.pending, group.returned, group.delayed),
            *(group.consumers, names.notifications, *map(names.stream, numbers)),
        )
        return self._script("heal", keys, group.group, int(is_dry), limit, *numbers)

    def _consumer_command(
        self, group: GroupNames, consumer: bytes, places: list[int], first: int
    ) -> Command:
        names = self._names
        some = places[first : first + STREAMS_A_SCRIPT]
        keys = (names.meta, group.laps, group.consumers, *map(names.stream, some))
        readers = [self._reader(group, number) for number in some]
        idle = self._settings.consumer_idle_ms
        return self._script("consumer", keys, consumer, idle, first, len(places), *readers)

    def _reader(self, group: GroupNames, number: int) -> bytes:
        """Return what a group is called on a stream."""
        return self._names.legacy if number == LEGACY else group.group

    def _script(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Command:
        return ("EVAL", load(f"shuffle_queue_{name}").body, len(keys), *keys, *args)

    def _reaped(self, reply: list[Any]) -> Reaped:
        returned, dead, cleared, healed, stale, oldest, ended = map(int, reply)
        return Reaped(returned + dead + cleared + healed, stale, oldest, bool(ended))

    def _call(self, commands: Sequence[Command], budget: Budget) -> list[Any]:
        """Send commands on the queue's keys in one round trip; a script's refusal is raised."""
        replies = self._twin.call(self._twin.node_of(self._names.slot), commands, budget)
        try:
            return checked(replies)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    def _below(self, bound: int) -> int:
        return min(int(self._settings.random() * bound), bound - 1)

    def _one_of(self, items: Sequence[T]) -> T:
        return items[self._below(len(items))]

    def _shuffled(self, items: list[T]) -> list[T]:
        return sorted(items, key=lambda _: self._settings.random())


def _is_number(text: bytes) -> bool:
    return text.removeprefix(b"-").isdigit()
