"""What becomes of messages that were delivered, and of those that are cancelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.operations import Operation, Steps
from workstealing.store.paging import Page
from workstealing.structures.names import checked_text
from workstealing.structures.shuffle_queue.base import LONGEST_SECONDS, QueueBase, same
from workstealing.structures.shuffle_queue.message import (
    Message,
    OverdueMessage,
    as_text,
    overdue_message,
)
from workstealing.structures.shuffle_queue.names import LEGACY, MESSAGES_A_SCRIPT

STREAMS_A_SCRIPT = 512
MOST_OVERDUE = 1000
# How often a tracking id may be given to another message while one is being cancelled.
_TRIES = 100


class Settling(QueueBase):
    """The steps of `ack`, `nack`, `extend`, `cancel`, `length` and `groups`."""

    def ack_steps(self, messages: tuple[Message, ...]) -> Steps[int]:
        """Say that messages are done.

        Arguments: messages: as they were read. Returns: how many were pending. Errors:
        ConfigurationError; LayoutError. One script for each group and 100 messages.
        """
        keys = self.keys
        acked = 0
        for group, some in _in_parts(messages):
            names = keys.group(group)
            streams, described = self._described(some, tracked=True)
            beside = (names.returned, names.delayed, keys.deadlines, keys.legacy)
            fixed = (keys.meta, keys.tracking, *beside)
            args = (names.group, *described)
            acked += yield Operation(self.script("ack"), (*fixed, *streams), args, same)
        return acked

    def nack_steps(self, messages: tuple[Message, ...], delay: float) -> Steps[int]:
        """Give messages back.

        Arguments: messages: as they were read; delay: seconds until they may be served again.
        Returns: how many were still this delivery's. Errors: ConfigurationError; LayoutError. One
        script for each group and 100 messages.
        """
        delay_ms = _checked_delay(delay)
        parts = list(_in_parts(messages))
        if not parts:
            return 0
        due, mark, text = self._place or (yield from self.place_steps())
        keys = self.keys
        given = 0
        for group, some in parts:
            names = keys.group(group)
            streams, described = self._described(some)
            fixed = (
                *(keys.meta, due, mark, keys.notifications, names.ring),
                *(names.returned, names.delayed, keys.legacy),
            )
            args = (text, keys.name, self.ttl_ms, names.group, delay_ms, *described)
            given += yield Operation(self.script("nack"), (*fixed, *streams), args, same)
        return given

    def extend_steps(self, messages: tuple[Message, ...]) -> Steps[int]:
        """Let the idle time of messages start anew.

        Arguments: messages: as they were read. Returns: how many were still this delivery's.
        Errors: ConfigurationError; LayoutError. One script for each group and 100 messages.
        """
        parts = list(_in_parts(messages))
        if not parts:
            return 0
        due, mark, text = self._place or (yield from self.place_steps())
        keys = self.keys
        extended = 0
        for group, some in parts:
            streams, described = self._described(some)
            extended += yield Operation(
                self.script("extend"),
                (keys.meta, due, mark, keys.legacy, *streams),
                (text, keys.name, self.ttl_ms, keys.group(group).group, *described),
                same,
            )
        return extended

    def cancel_steps(self, tracking_id: str | bytes) -> Steps[bool]:
        """Delete the message of a tracking id.

        Arguments: tracking_id: as it was written with. Returns: whether the message still existed.
        Errors: ConfigurationError; LayoutError. Two round trips.
        """
        checked_text(tracking_id, "tracking id")
        keys = self.keys
        for _ in range(_TRIES):
            place = yield self.operation("tracked", (keys.meta, keys.tracking), tracking_id)
            if place is None:
                return False
            stream = keys.stream(int(as_text(place).split(":", 1)[0]))
            deleted = yield self.operation(
                "cancel", (keys.meta, keys.tracking, keys.deadlines, stream), tracking_id, place
            )
            if deleted >= 0:
                return bool(deleted)
        return False

    def overdue_steps(self, n: int, start: int) -> Steps[Page[OverdueMessage]]:
        """List overdue messages; see `ShuffleQueue.overdue`."""
        _checked_place(n, "n", 1, MOST_OVERDUE)
        _checked_place(start, "start", 0, 2**53 - MOST_OVERDUE)
        keys = (self.keys.meta, self.keys.deadlines)
        total, *flat = yield self.operation("overdue", keys, start, n)
        found = zip(flat[::2], flat[1::2], strict=True)
        return Page((overdue_message(*each) for each in found), int(total), start)

    def length_steps(self) -> Steps[int]:
        """Count the messages.

        Returns: how many all streams hold, the legacy one too. Errors: LayoutError. One script for
        each 512 streams.
        """
        keys = self.keys
        counted, span, length = 0, self.streams, 0
        while counted < span:
            streams = keys.streams(span)[counted : counted + STREAMS_A_SCRIPT]
            # The first of the queue's own are asked for together with the legacy one.
            first = () if counted else (keys.legacy,)
            known, found = yield self.operation("length", (keys.meta, *first, *streams))
            counted, span = counted + len(streams), max(span, known)
            length += found
        return length

    def groups_steps(self) -> Steps[list[str]]:
        """Name the groups.

        Returns: the names, sorted. Errors: LayoutError. One round trip.
        """
        found = yield self.operation("groups", (self.keys.meta,))
        return sorted(map(as_text, found))

    def _described(
        self, messages: list[Message], *, tracked: bool = False
    ) -> tuple[list[bytes], list[Any]]:
        """Return the keys of the messages' streams, and what a script is told of each message.

        Arguments: tracked: tell its tracking id, and whether it has a deadline, rather than whose
        delivery it is, and which.
        """
        places: dict[int, int] = {LEGACY: 0}
        described: list[Any] = []
        for message in messages:
            number = message.number
            place = places.setdefault(number, len(places))
            described += (place, number, message.entry_id)
            if tracked:
                described += (message.tracking_id or "", "" if message.deadline is None else 1)
            else:
                described += (message.consumer, message.attempts)
        return [self.keys.stream(number) for number in list(places)[1:]], described


def _in_parts(messages: tuple[Message, ...]) -> Iterable[tuple[str, list[Message]]]:
    groups: dict[str, list[Message]] = {}
    for message in messages:
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"{message!r} is no message: give what read() or read_many() returned"
            )
        groups.setdefault(message.group, []).append(message)
    for group, some in groups.items():
        for start in range(0, len(some), MESSAGES_A_SCRIPT):
            yield group, some[start : start + MESSAGES_A_SCRIPT]


def _checked_place(number: object, name: str, least: int, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise ConfigurationError(
            f"{name}={number!r} does not say which overdue messages to list: give a number from"
            f" {least} to {most:,}"
        )


def _checked_delay(delay: object) -> int:
    if (
        isinstance(delay, bool)
        or not isinstance(delay, int | float)
        or not 0 <= delay <= LONGEST_SECONDS
    ):
        raise ConfigurationError(f"delay={delay!r} is no time to wait: give seconds, 0 for none")
    return int(delay * 1000)
