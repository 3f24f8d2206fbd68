"""Clearing away what nobody needs: overdue messages, and what stands beside the streams."""

from __future__ import annotations

from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.structures.shuffle_queue.names import LEGACY, MOST_STREAMS, GroupNames
from workstealing.structures.shuffle_queue.upkeep import WINDOW, Facts, Upkeep

STREAMS_A_SCRIPT = 128
SCRIPTS_A_CONSUMER = 4


class Tidying(Upkeep):
    """Removes overdue messages, idle consumers that own nothing, and tracking ids without one."""

    # How many overdue messages there were at the last look.
    _overdue = 0

    def tidy(self, facts: Facts, slice: Slice) -> int:
        """Remove overdue messages, and consumers and tracking ids that nobody needs, of one group.

        Arguments: facts; slice. Returns: how many were removed, at most the slice's limit. Errors:
        LayoutError; OutOfTime; connection faults. At most nine round trips.
        """
        handled = 0
        if facts.is_overdue:
            handled += self.drop_overdue(facts, None, slice, slice.limit)
        if not facts.groups or handled >= slice.limit or slice.expired:
            return handled
        group = self._names.group(self.one_of(facts.groups))
        handled += self.dismiss(facts, group, slice, slice.limit - handled)
        if handled < slice.limit and not slice.expired:
            handled += self.untrack(facts, group, slice, slice.limit - handled)
        return handled

    def dismiss(self, facts: Facts, group: GroupNames, slice: Slice, limit: int) -> int:
        """Remove consumers that have been idle for long and own nothing.

        Arguments: facts; group: whose; slice; limit: the most to remove. Returns: how many were.
        Errors: LayoutError; OutOfTime; connection faults. Two round trips; with more than 127
        streams up to five, and one consumer at most.
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

        Arguments: facts; budget: of time. Errors: OutOfTime; connection faults. One round trip.
        """
        look = ("ZCOUNT", self._names.deadlines, "-inf", facts.now)
        return int(self.call([look], budget)[0])

    def drop_overdue(
        self, facts: Facts, _group: GroupNames | None, slice: Slice, limit: int
    ) -> int:
        """Delete messages whose deadline has passed, as a read would, with their tracking ids.

        One that a consumer has in hand is left to it. Arguments: facts; slice; limit: the most to
        delete. A group is taken as by `dismiss`, and not looked at: they go for all. Returns: how
        many were. Errors: LayoutError; OutOfTime; connection faults. Two round trips.
        """
        names = self._names
        slice.spend(3)
        # The first ones may all be in somebody's hands, and others look there as well.
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
            number, _, rest = member.partition(b":")
            is_due = float(score) <= facts.now
            if is_due and number.isdigit() and int(number) < MOST_STREAMS:
                streams.append(names.stream(int(number)))
                described += (member, number, rest.partition(b":")[0])
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
        # What somebody works on is no garbage, however long that takes.
        backlog = waiting + max(0, self._overdue - int(in_hand))
        slice.observe(oldest_seconds=int(oldest_ms) / 1000, backlog=backlog)
        return int(dropped)

    def untrack(self, facts: Facts, _group: GroupNames, slice: Slice, limit: int) -> int:
        """Forget tracking ids whose message has gone.

        Arguments: facts; slice; limit: the most to forget. A group is taken as by `dismiss`, and
        not looked at. Returns: how many were. Errors: LayoutError; OutOfTime; connection faults.
        Two round trips.
        """
        names = self._names
        slice.spend(2)
        look = ("HRANDFIELD", names.tracking, WINDOW, "WITHVALUES")
        flat = self.call([look], Budget(slice.remaining()))[0] or []
        keys: list[bytes] = []
        args: list[bytes] = []
        for tracked, place in zip(flat[::2], flat[1::2], strict=True):
            number, _, entry = place.partition(b":")
            if _is_number(number) and -1 <= int(number) < facts.span and entry:
                keys.append(names.stream(int(number)))
                args += (tracked, place, entry)
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


def _is_number(text: bytes) -> bool:
    return text.removeprefix(b"-").isdigit()
