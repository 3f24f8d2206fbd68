"""Reaping a shuffle queue: messages of dead consumers are recovered, and lost keys put right.

The job has its queue and its settings, its slices and its sweep.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError, OutOfTime
from workstealing.jobs.shuffle_queue_reaper.upkeep import WINDOW, Facts, Settings, Tidying
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    PartJob,
    checked_parts,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.store.job_client import JobClient
from workstealing.structures.access import JobAccess
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.shuffle_queue import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue.names import (
    LEGACY,
    RETURNED,
    GroupNames,
    QueueNames,
    stored_stream,
)

# Handles at most so many items of a queue, one group's among them, within a slice.
_Chore = Callable[[Facts, GroupNames, Slice, int], int]
STREAMS_A_SLICE = 4
LEAST_ENTRIES = 32
"""How many pending entries of a stream are looked at, however small a slice is."""


@dataclass(frozen=True, slots=True)
class Reaped:
    """The work of a script on one stream, for one group.

    Fields: handled: entries that were returned, set aside, cleared away or put right; stale: how
    many stale entries were seen; oldest_ms: for how long the oldest was held; ended: whether the
    lap over the stream's pending entries has come to its end.
    """

    handled: int
    stale: int
    oldest_ms: int
    ended: bool


class QueueReaper(Tidying):
    """Reaps one queue through a job client's one-attempt connections.

    Arguments:
        job_client: of the queue.
        names: of the queue.
        streams: how many there are at least, whatever a damaged meta says.

    Commands of stream groups break no WATCH, so one script decides and does every change; the look
    before it only says where to look.
    """

    def __init__(
        self, job_client: JobClient, names: QueueNames, settings: Settings, streams: int
    ) -> None:
        super().__init__(job_client, names, settings, streams)
        # Where a look for what can be trimmed goes on; this process's own.
        self._places: dict[int, bytes] = {}
        # The same for deadlines that the index has lost.
        self._noted: dict[int, bytes] = {}

    def reap(self, slice: Slice) -> int:
        """Recover what one group's dead consumers hold, and do one of the other chores.

        Returns: how many items were handled, at most its limit. Raises: LayoutError; OutOfTime if
        nothing was done; connection faults. At most six round trips.
        """
        facts = self.facts(slice)
        if facts is None or not facts.groups:
            slice.observe(oldest_seconds=0.0, backlog=0)
            return 0 if facts is None else self._keep_unread(facts, slice)
        group = self._names.group(self.one_of(facts.groups))
        chores: list[_Chore] = [self._mend, self._mend, self.dismiss, self.untrack]
        if self.is_wide(facts):
            chores.append(self.narrow)
        chore = self.one_of(chores)
        if facts.is_overdue and self.below(4):
            # Three times in four, so that the rest has its turn however many there are.
            chore = self.drop_overdue
        handled = 0
        try:
            # However many messages wait for recovery, the rest has its turn.
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
        """Return how much `reap` would return, set aside, mend, drop or give up; change nothing.

        Arguments:
            slice: whose limit it counts up to.

        Raises: LayoutError; OutOfTime; connection faults. Four round trips, and one where a
        deadline has passed, or streams can go.
        """
        facts = self.facts(slice)
        if facts is None:
            return 0
        others = self.overdue(facts, Budget(slice.remaining())) if facts.is_overdue else 0
        if self.is_wide(facts):
            others += self.narrow(facts, None, slice, slice.limit, is_dry=True)
        if not facts.groups:
            return min(slice.limit, others)
        group = self._names.group(self.one_of(facts.groups))
        due = self._due_streams(facts, group, slice)[0][:STREAMS_A_SLICE]
        window = max(LEAST_ENTRIES, 4 * slice.limit)
        held = self._held(group, due, window, Budget(slice.remaining()))
        numbers = self._some_streams(facts)
        heal = self._heal_command(group, numbers, slice.limit, is_dry=True)
        (healed,) = self.call([heal], Budget(slice.remaining()))
        ages = [age for found in held for age in self._stale(found)]
        return min(slice.limit, len(ages) + int(healed[0]) + others)

    def stale_ages(
        self, facts: Facts, most_entries: int, budget: Budget
    ) -> tuple[list[float], bool]:
        """Return since when stale entries have been held, in seconds, and whether those are all.

        Arguments:
            most_entries: how many pending entries of each stream are looked at.
            budget: of time.

        Raises: OutOfTime; connection faults. Two round trips for each group.
        """
        ages: list[float] = []
        exact = True
        for name in facts.groups:
            group = self._names.group(name)
            cutoff = facts.now - self._settings.lease_ms
            look = ("ZRANGEBYSCORE", group.pending, "-inf", cutoff, "LIMIT", 0, 4 * WINDOW)
            (due,) = self.call([look], budget)
            numbers = [stored_stream(group.pending, number) for number in due]
            held = self._held(group, numbers, most_entries, budget)
            ages += [age / 1000 for found in held for age in self._stale(found)]
            exact = exact and len(due) < 4 * WINDOW
            exact = exact and all(len(found) < most_entries for found in held)
        return ages, exact

    # One stream after the other, for a sweep.

    def mend_streams(
        self, facts: Facts, numbers: Sequence[int], slice: Slice
    ) -> tuple[int, set[int]]:
        """Repair lost keys beside some streams, for all groups.

        Arguments:
            numbers: of the streams.

        Returns: how many repairs, and the streams that exist. Raises: LayoutError; OutOfTime;
        connection faults. One round trip.
        """
        commands = [
            self._heal_command(self._names.group(name), numbers, slice.limit, is_dry=False)
            for name in facts.groups
        ]
        slice.spend(len(commands))
        replies = self.call(commands, Budget(slice.remaining()))
        live = {int(number) for _, *found in replies for number in found}
        return sum(int(reply[0]) for reply in replies), live

    def sweep_stream(self, facts: Facts, number: int, slice: Slice) -> tuple[int, bool]:
        """Recover and trim one stream, for all groups.

        Arguments:
            number: of the stream.

        Returns: how much was handled, and whether there is more to look at. Raises: as
        `mend_streams`. Three round trips.
        """
        each = max(1, slice.limit // max(1, len(facts.groups)))
        commands = [
            self._reap_command(facts, self._names.group(name), number, each)
            for name in facts.groups
        ]
        slice.spend(len(commands) + 1)
        reaped = [self._reaped(one) for one in self.call(commands, Budget(slice.remaining()))]
        handled = sum(one.handled for one in reaped)
        is_more = not all(one.ended for one in reaped)
        if handled < slice.limit:
            handled += self._trim([number], slice, slice.limit - handled)
            is_more = is_more or number in self._places
        if handled < slice.limit:
            handled += self._note([number], slice, slice.limit - handled)
            is_more = is_more or number in self._noted
        return handled, is_more

    # The parts of a slice.

    def _recover(self, facts: Facts, group: GroupNames, slice: Slice, limit: int) -> int:
        due, _ = self._due_streams(facts, group, slice)
        chosen = due[: min(STREAMS_A_SLICE, limit)]
        if not chosen:
            slice.observe(oldest_seconds=0.0, backlog=0)
            return 0
        each = limit // len(chosen)
        commands = [self._reap_command(facts, group, number, each) for number in chosen]
        slice.spend(len(commands))
        replies = self.call(commands, Budget(slice.remaining()))
        reaped = [self._reaped(reply) for reply in replies]
        oldest = max(one.oldest_ms for one in reaped) - self._settings.lease_ms
        slice.observe(
            oldest_seconds=max(0, oldest) / 1000, backlog=sum(one.stale for one in reaped)
        )
        return sum(one.handled for one in reaped)

    def _mend(self, facts: Facts, group: GroupNames, slice: Slice, limit: int) -> int:
        """Look at some streams; put right what is missing beside them, and trim two of them."""
        command = self._heal_command(group, self._some_streams(facts), limit, is_dry=False)
        slice.spend(1)
        ((healed, *live),) = self.call([command], Budget(slice.remaining()))
        handled = int(healed)
        chosen = self.shuffled([int(number) for number in live])[:2]
        if chosen and handled < limit and not slice.expired:
            handled += self._trim(chosen, slice, limit - handled)
        if chosen and handled < limit and not slice.expired:
            handled += self._note(chosen, slice, limit - handled)
        return handled

    def _keep_unread(self, facts: Facts, slice: Slice) -> int:
        """Do what there is to do in a queue that no group has read yet."""
        if facts.is_overdue:
            return self.drop_overdue(facts, None, slice, slice.limit)
        numbers = [number for number in self._some_streams(facts) if number != LEGACY]
        handled = self._note(self.shuffled(numbers)[:2], slice, slice.limit)
        if handled < slice.limit and not slice.expired and self.is_wide(facts):
            handled += self.narrow(facts, None, slice, slice.limit - handled)
        return handled

    def _note(self, numbers: Sequence[int], slice: Slice, limit: int) -> int:
        """Put into the index the deadlines of some streams that it lacks. One round trip."""
        names = self._names
        numbers = [number for number in numbers if number != LEGACY][:limit]
        if not numbers:
            return 0
        each = min(limit // len(numbers), MESSAGES_A_SCRIPT)
        commands = [
            self.script(
                "note",
                (names.meta, names.deadlines, names.stream(number)),
                *(number, self._noted.pop(number, b"-"), max(LEAST_ENTRIES, each), each),
            )
            for number in numbers
        ]
        slice.spend(len(commands))
        handled = 0
        replies = self.call(commands, Budget(slice.remaining()))
        for number, (noted, place) in zip(numbers, replies, strict=True):
            handled += int(noted)
            if place:
                self._noted[number] = place
        return handled

    def _trim(self, numbers: Sequence[int], slice: Slice, limit: int) -> int:
        names = self._names
        numbers = numbers[:limit]
        each = min(limit // len(numbers), MESSAGES_A_SCRIPT)
        commands = [
            self.script(
                "trim",
                (names.meta, names.tracking, names.deadlines, names.stream(number)),
                *(number, self._places.pop(number, b"-"), max(LEAST_ENTRIES, 4 * each), each),
            )
            for number in numbers
        ]
        slice.spend(len(commands))
        handled = 0
        replies = self.call(commands, Budget(slice.remaining()))
        for number, (deleted, place) in zip(numbers, replies, strict=True):
            handled += int(deleted)
            if place:
                self._places[number] = place
        return handled

    # Looking.

    def _due_streams(self, facts: Facts, group: GroupNames, slice: Slice) -> tuple[list[int], int]:
        """Return streams that may have stale entries, shuffled, and how many there are."""
        slice.spend(2)
        cutoff = facts.now - self._settings.lease_ms
        due, size = self.call(
            [
                ("ZRANGEBYSCORE", group.pending, "-inf", cutoff, "LIMIT", 0, WINDOW),
                ("ZCOUNT", group.pending, "-inf", cutoff),
            ],
            Budget(slice.remaining()),
        )
        numbers = [stored_stream(group.pending, number) for number in due]
        return self.shuffled(numbers), int(size)

    def _held(
        self, group: GroupNames, numbers: Sequence[int], most: int, budget: Budget
    ) -> list[list[Any]]:
        """Return pending entries of each stream. One round trip."""
        commands: list[Command] = [
            ("XPENDING", self._names.stream(n), self.reader(group, n), "-", "+", most)
            for n in numbers
        ]
        if not commands:
            return []
        replies = self._job_client.call(
            self._job_client.node_of(self._names.slot), commands, budget
        )
        for reply in replies:
            # A stream that has gone has nothing pending; a refusal is no empty stream.
            if isinstance(reply, ResponseError) and not _has_gone(reply):
                raise reply
        return [[] if isinstance(reply, ResponseError) else reply for reply in replies]

    def _stale(self, entries: list[Any]) -> list[int]:
        """Return for how long, in ms, the stale ones of pending entries have been held."""
        return [
            int(idle)
            for _, owner, idle, _ in entries
            if owner != RETURNED.encode() and int(idle) >= self._settings.lease_ms
        ]

    def _some_streams(self, facts: Facts) -> list[int]:
        """Return neighbouring streams from a random one on, the legacy one among them."""
        places = [LEGACY, *range(facts.span)]
        if len(places) <= WINDOW:
            return places
        start = self.below(len(places))
        return (places[start:] + places[:start])[:WINDOW]

    # The scripts.

    def _reap_command(self, facts: Facts, group: GroupNames, number: int, limit: int) -> Command:
        names, settings = self._names, self._settings
        limit = min(limit, MESSAGES_A_SCRIPT)
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
            *(names.deadlines, names.stream(number), *others),
        )
        window = max(LEAST_ENTRIES, 4 * limit)
        return self.script(
            "reap",
            keys,
            *(group.group, number, settings.lease_ms, settings.max_attempts, limit, window),
        )

    def _heal_command(
        self, group: GroupNames, numbers: Sequence[int], limit: int, *, is_dry: bool
    ) -> Command:
        names = self._names
        keys = (
            *(names.meta, group.ring, group.pending, group.returned, group.delayed),
            *(group.consumers, names.notifications, *map(names.stream, numbers)),
        )
        return self.script("heal", keys, group.group, int(is_dry), limit, *numbers)

    def _reaped(self, reply: list[Any]) -> Reaped:
        returned, dead, cleared, healed, stale, oldest, ended = map(int, reply)
        return Reaped(returned + dead + cleared + healed, stale, oldest, bool(ended))


def _has_gone(refusal: ResponseError) -> bool:
    """Say whether a stream, its group or its kind is no longer what it was."""
    return str(refusal).startswith(("NOGROUP", "WRONGTYPE"))


WAITING = "messages of dead consumers, or past their deadline"


class ShuffleQueueReaper(DivisibleJob):
    """Gives the messages of dead consumers to others, and keeps the keys beside the streams right.

    - A message that a consumer has held for the lease is served again, at its stream's turn, before
      the new ones there. The turns of the streams, and so of the tenants, stay as they were.
    - A message that has been delivered as often as the queue's max_attempts says is set aside as it
      is: see `ShuffleQueue.dead`, `revive` and `discard`. Nothing is ever dropped. (`nack` does the
      same at once.)
    - A message past its deadline is deleted even if nobody reads, as a read would delete it: with
      its tracking id, for every group, and counted as overdue. A message that a consumer has in
      hand stays there.
    - A message that every group has acknowledged is deleted, also after an XACK of another program.
    - A consumer that was not seen for consumer_idle and owns nothing is removed. So are tracking
      ids of messages that have gone.
    - Streams beyond the queue's `streams` are given up, the highest first, if they are empty, were
      not written to for consumer_idle, and no consumer owns anything there. A process with a larger
      number may still write there: its write makes the stream again.
    - A loss of keys is repaired: a stream that is missing from a ring or from the list of streams
      with pending entries, and a returned entry that no list names.

    Arguments:
        queue: a `ShuffleQueue` or `AsyncShuffleQueue`.
        limit: the most items a slice handles.
        lease: how long a consumer holds a message, in seconds or a timedelta: longer than it works
            without `extend`, or the message is delivered twice.
        consumer_idle: seconds or a timedelta.
        dry_run: count the items that would be handled, and change nothing.
        name: of the job, by default ``shuffle_queue_reaper.<queue>``.
        random: returns a float in [0, 1).

    Raises: ConfigurationError.

    A slice serves one group, chosen at random: up to four of its streams, and one of the other
    chores on at most 64 streams, consumers or tracking ids. Commands of stream groups break no
    WATCH. So one script decides and does each change: it aborts nobody, and nobody aborts it. At
    most six round trips.

    Source: seed of replicate's shuffle queues, which never recover anything.
    """

    access = JobAccess(("shuffle queue",))

    def __init__(
        self,
        queue: ShuffleQueue | AsyncShuffleQueue,
        limit: int = 25,
        *,
        lease: Duration = 60.0,
        consumer_idle: Duration = 3600.0,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(queue, ShuffleQueue | AsyncShuffleQueue):
            raise ConfigurationError(f"{queue!r} cannot be reaped: give a ShuffleQueue")
        self.queue = queue
        default = f"shuffle_queue_reaper.{queue.keys.text}"
        self._keep_clean(queue, limit=limit, name=name, default=default, dry_run=dry_run)
        settings = Settings(
            lease_ms=_checked_ms(lease, "lease"),
            max_attempts=queue.max_attempts,
            consumer_idle_ms=_checked_ms(consumer_idle, "consumer_idle"),
            random=random,
        )
        self.reaper = QueueReaper(queue.job_client, queue.keys, settings, queue.streams)

    def perform(self, slice: Slice) -> int:
        """Do one slice of one group.

        Returns: how many items were handled (would be, on a dry run). Raises: LayoutError;
        OutOfTime if nothing was done; connection faults.
        """
        return self.reaper.count(slice) if self.dry_run else self.reaper.reap(slice)

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self.queue.job_client.warm_up("shuffle_queue/")

    def parts(self, n: int) -> list[tuple[int, ...]]:
        """Divide the queue for a sweep: each part is a group of streams, by number.

        No part if there is no queue. One round trip.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        n = checked_parts(n)
        facts = self.reaper.read_facts(Budget(10.0, timeout=1.0))
        if facts is None:
            return []
        return groups_of([LEGACY, *range(facts.span)], n)

    def for_part(self, part: Sequence[int]) -> PartJob:
        """Return the job that works through some streams, all of them, and for all groups."""
        return _QueuePart(self, part)

    def backlog(self, seconds: Duration = 5.0, most_entries: int = 1000) -> Backlog:
        """Count the messages that dead consumers hold, and those past their deadline.

        A message past its deadline that a consumer has in hand is counted too.

        Arguments:
            seconds: how long it may take, in seconds or a timedelta.
            most_entries: how many pending entries of each stream are looked at.

        Returns: a `Backlog`, not exact if it has not looked at all entries, or if a message may
        have been counted as both. Raises: LayoutError; OutOfTime; connection faults. Changes
        nothing. Two round trips, and two for each group.
        """
        budget = Budget.whole(seconds)
        facts = self.reaper.read_facts(budget)
        if facts is None:
            return Backlog(0, 0.0, WAITING)
        ages, exact = self.reaper.stale_ages(facts, max(1, most_entries), budget)
        overdue = self.reaper.overdue(facts, budget) if facts.is_overdue else 0
        oldest = max(ages, default=0.0)
        if overdue:
            oldest, exact = max(oldest, facts.overdue_seconds), exact and not ages
        return Backlog(len(ages) + overdue, oldest, WAITING, exact)


class _QueuePart(PartJob):
    """Works through some streams until each was found without anything to do."""

    def __init__(self, job: ShuffleQueueReaper, numbers: Sequence[int]) -> None:
        self.name, self.limit = job.name, job.limit
        self._reaper = job.reaper
        self._unseen = deque(numbers)
        self._live: deque[int] = deque()
        # Consumers and tracking ids belong to no stream: one part alone looks at them.
        self._is_tidy = LEGACY not in numbers

    @property
    def is_drained(self) -> bool:
        """Whether a look at every stream, and at the keys beside them, found nothing to do."""
        return self._is_tidy and not self._unseen and not self._live

    def perform(self, slice: Slice) -> int:
        """Look at up to 64 more streams, or work on one of those found; errors as of the job's."""
        facts = None if self.is_drained else self._reaper.facts(slice)
        if facts is None or not facts.groups:
            self._unseen.clear()
            self._live.clear()
            handled = 0 if facts is None or self._is_tidy else self._reaper.tidy(facts, slice)
            self._is_tidy = not handled
            return handled
        if self._unseen:
            some = [self._unseen.popleft() for _ in range(min(WINDOW, len(self._unseen)))]
            # Look at them again until nothing is missing.
            self._unseen.extend(some)
            mended, live = self._reaper.mend_streams(facts, some, slice)
            if mended < slice.limit:
                self._unseen = deque(one for one in self._unseen if one not in some)
                self._live.extend(live)
            return mended
        if self._live:
            number = self._live[0]
            self._live.rotate(-1)
            handled, is_more = self._reaper.sweep_stream(facts, number, slice)
            if not handled and not is_more:
                self._live.remove(number)
            return handled
        handled = self._reaper.tidy(facts, slice)
        self._is_tidy = not handled
        return handled


def _checked_ms(duration: Duration, name: str) -> int:
    return int(seconds_of(duration, name, least=0.001) * 1000)
