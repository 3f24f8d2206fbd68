"""What all upkeep of a shuffle queue stands on: its facts, and how its scripts are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.operations import as_layout_error
from workstealing.store.scripts import load
from workstealing.store.twin import Twin
from workstealing.structures.shuffle_queue.deleting import foreign_meta, groups_in, meta_of
from workstealing.structures.shuffle_queue.names import (
    LEGACY,
    QUEUE_VERSION,
    GroupNames,
    QueueNames,
)

T = TypeVar("T")
WINDOW = 64
"""How many streams, consumers or tracking ids are looked at, of which a slice takes some."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a queue's meta says: the server's time in ms, the span, and the groups.

    is_overdue: whether the earliest deadline of all messages has passed.
    """

    now: int
    span: int
    groups: tuple[bytes, ...]
    is_overdue: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What a reaper goes by: idle_ms, max_attempts, consumer_idle_ms; random, in [0, 1)."""

    idle_ms: int
    max_attempts: int
    consumer_idle_ms: int
    random: Callable[[], float]


class Upkeep:
    """A queue as its reaper reaches it: through a twin's one-attempt connections.

    Arguments: twin and names, of the queue; settings; streams: how many there are at least,
    whatever a damaged meta says.
    """

    def __init__(self, twin: Twin, names: QueueNames, settings: Settings, streams: int) -> None:
        self._twin = twin
        self._names = names
        self._settings = settings
        self._streams = streams

    def facts(self, slice: Slice) -> Facts | None:
        """Return what the queue's meta says; None where there is no queue.

        Arguments: slice: whose time it takes. Errors: LayoutError; OutOfTime; connection faults.
        One round trip.
        """
        slice.spend(3)
        return self.read_facts(Budget(slice.remaining()))

    def read_facts(self, budget: Budget) -> Facts | None:
        """As `facts`, within a budget of time, and without a slice to tell its commands to."""
        try:
            clock, flat, first = self.call(
                [
                    ("TIME",),
                    ("HGETALL", self._names.meta),
                    ("ZRANGE", self._names.deadlines, 0, 0, "WITHSCORES"),
                ],
                budget,
            )
        except ResponseError as error:
            # A script says in its own words which of the two is somebody else's.
            self.call(
                [self.script("overdue", (self._names.meta, self._names.deadlines), 0, 1)], budget
            )
            raise foreign_meta(self._names, error) from error
        meta = meta_of(flat)
        if not meta:
            return None
        if meta.get(b"mark") not in (None, QUEUE_VERSION.encode()):
            # A script says in its own words why this release must not touch it.
            self.call([self.script("groups", (self._names.meta,))], budget)
        groups = groups_in(meta)
        now = int(clock[0]) * 1000 + int(clock[1]) // 1000
        span = max(int(meta.get(b"span") or 0), self._streams)
        # All names at once are made quicker than one after the other.
        self._names.streams(span)
        is_overdue = bool(first) and float(first[1]) <= now
        return Facts(now, span, groups, is_overdue)

    def reader(self, group: GroupNames, number: int) -> bytes:
        """Return what a group is called on a stream.

        Arguments: group; number: of the stream. Returns: the legacy stream's one group, or else the
        group itself.
        """
        return self._names.legacy if number == LEGACY else group.group

    def script(self, name: str, keys: tuple[bytes, ...], *args: Any) -> Command:
        """Return the command that runs a script of shuffle queues.

        Arguments: name: without its folder; keys and args: as the script takes them.
        """
        return ("EVAL", load(f"shuffle_queue/{name}").body, len(keys), *keys, *args)

    def call(self, commands: Sequence[Command], budget: Budget) -> list[Any]:
        """Send commands on the queue's keys in one round trip.

        Arguments: commands; budget: of time. Returns: their replies. Errors: LayoutError for what a
        script refuses, or else the first error reply; OutOfTime; connection faults.
        """
        replies = self._twin.call(self._twin.node_of(self._names.slot), commands, budget)
        try:
            return checked(replies)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    def below(self, bound: int) -> int:
        """Return a random whole number from 0 to bound - 1."""
        return min(int(self._settings.random() * bound), bound - 1)

    def one_of(self, items: Sequence[T]) -> T:
        """Return a random one of some items."""
        return items[self.below(len(items))]

    def shuffled(self, items: list[T]) -> list[T]:
        """Return some items in random order."""
        return sorted(items, key=lambda _: self._settings.random())
