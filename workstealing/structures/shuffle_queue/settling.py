"""The end of a delivery: messages are acknowledged, given back, extended or revived.

A message that was delivered too often is set aside for its group by the script that sees it: a
`nack`, or the reaper's where its consumer has died. `max_attempts` belongs to the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import Operation, Steps, operation
from workstealing.store.paging import LOOKED_AT, Page, oldest
from workstealing.structures.layout import as_text
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.shuffle_queue.base import QueueBase
from workstealing.structures.shuffle_queue.message import (
    Message,
    message_id,
    read_message,
    split_id,
)
from workstealing.structures.shuffle_queue.names import (
    LEGACY,
    GroupNames,
    stored_place,
)
from workstealing.structures.stored import stored_number

# How often the groups may change while messages are being revived.
_TRIES = 100


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that was set aside for one group.

    Fields: id: as `ShuffleQueue.write` returned it; group; tenant: None for one of the legacy
    stream; fields: the user's; attempts: how often it was delivered; written, delivered, set_aside:
    when it was written, delivered for the last time, and set aside, in Unix seconds; deadline: Unix
    seconds or None; tracking_id.
    """

    id: str
    group: str
    tenant: str | None
    fields: dict[Any, Any]
    attempts: int
    written: float
    delivered: float
    set_aside: float
    deadline: float | None
    tracking_id: str | None


class Settling(QueueBase):
    """The operations on messages that were delivered, and on those that were set aside."""

    @operation
    def ack(self, *messages: Message) -> Steps[int]:
        """Say that messages are done. A message that every group has acknowledged is deleted.

        Returns: how many were still pending, with any consumer. Raises: ConfigurationError;
        LayoutError. One round trip for each group and 100 messages, each atomic. If a fault or a
        kill prevents some pieces, their messages stay pending, and the reaper returns them. Three
        Redis commands a message with one group, more with several.
        """
        return self._acking(self._acks(messages))

    def _acking(self, acks: list[Operation]) -> Steps[int]:
        acked = 0
        for each in acks:
            acked += yield each
        return acked

    def _acks(self, messages: tuple[Message, ...]) -> list[Operation]:
        """Return the scripts by which messages are done. Raises: ConfigurationError."""
        keys = self.keys
        acks = []
        for group, some in _in_parts(messages):
            names = keys.group(group)
            streams, described = self._described(some, tracked=True)
            beside = (names.returned, names.delayed, keys.deadlines, keys.legacy)
            fixed = (keys.meta, keys.tracking, *beside)
            args = (names.group, *described)
            acks.append(Operation(self._script("ack"), (*fixed, *streams), args))
        return acks

    @operation
    def nack(self, *messages: Message, delay: Duration = 0.0) -> Steps[int]:
        """Give messages back, to be delivered again at their streams' turns, to any consumer.

        A message that was delivered `max_attempts` times is set aside at once: see `dead`.

        Arguments:
            delay: before they may be delivered, in seconds or a timedelta.

        Returns: how many were given back or set aside; a message that has been delivered again
        since is not counted. Raises: ConfigurationError; LayoutError. One round trip for each group
        and 100 messages, in pieces as of `ack`.
        """
        delay_ms = int(seconds_of(delay, "delay") * 1000)
        return self._nacking(_in_parts(messages), delay_ms)

    def _nacking(self, parts: list[_Part], delay_ms: int) -> Steps[int]:
        if not parts:
            return 0
        due, mark, text = self._place or (yield from self._placing())
        keys = self.keys
        given = 0
        for group, some in parts:
            names = keys.group(group)
            streams, described = self._described(some)
            fixed = (
                *(keys.meta, due, mark, keys.notifications, names.ring),
                *(names.returned, names.delayed, names.dead, keys.tracking, keys.deadlines),
                keys.legacy,
            )
            settings = (self.ttl_ms, names.group, delay_ms, self.max_attempts)
            args = (text, keys.name, *settings, *described)
            given += yield Operation(self._script("nack"), (*fixed, *streams), args)
        return given

    @operation
    def extend(self, *messages: Message) -> Steps[int]:
        """Say that messages are still being worked on, so that the reaper leaves them alone.

        The queue is in use too, so that its ttl starts anew. Returns: how many still belonged to
        this delivery. Raises: ConfigurationError; LayoutError. One round trip for each group and
        100 messages, in pieces as of `ack`.
        """
        return self._extending(_in_parts(messages))

    def _extending(self, parts: list[_Part]) -> Steps[int]:
        if not parts:
            return 0
        due, mark, text = self._place or (yield from self._placing())
        keys = self.keys
        extended = 0
        for group, some in parts:
            streams, described = self._described(some)
            extended += yield Operation(
                self._script("extend"),
                (keys.meta, due, mark, keys.legacy, *streams),
                (text, keys.name, self.ttl_ms, keys.group(group).group, *described),
            )
        return extended

    @operation
    def dead(self, group: str | bytes, n: int = 100) -> Steps[Page[DeadMessage]]:
        """List messages that were set aside for a group, the oldest first.

        Arguments:
            n: 1 to 10,000.

        Returns: a `Page` of `DeadMessage`, a list whose `more` says how many others there are; of
        more than 1,000 (or n) it looks at that many only. Raises: ConfigurationError; LayoutError.
        One round trip for each 100 messages looked at.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 10_000:
            raise ConfigurationError(
                f"n={n!r} dead messages cannot be listed: give a number from 1 to 10,000"
            )
        return self._listing_dead(self.keys.group(group), int(n))

    def _listing_dead(self, names: GroupNames, n: int) -> Steps[Page[DeadMessage]]:
        keys = (self.keys.meta, names.dead)
        found: dict[str, Any] = {}
        cursor, total = "0", 0
        while True:
            reply = yield self._step("dead", keys, cursor, MESSAGES_A_SCRIPT)
            total, cursor = int(reply[0]), as_text(reply[1])
            found.update((as_text(one[0]), one) for one in reply[2:])
            if cursor == "0" or len(found) >= max(n, LOOKED_AT):
                break
        messages = [_dead_message(names, one) for one in found.values()]
        return oldest(messages, n, lambda each: (each.set_aside, each.id), total)

    @operation
    def revive(self, group: str | bytes, *ids: str) -> Steps[int]:
        """Write messages that were set aside into their streams again, and forget their attempts.

        Such messages get new ids, wait at the end of their stream, and are delivered to this group
        alone. A message of the legacy stream goes to any of that stream's readers.

        Arguments:
            ids: of `dead`.

        Returns: how many were dead. Raises: ConfigurationError for anything but an id; LayoutError;
        errors of redis-py: a server that is out of memory has changed nothing of the 100 messages
        at hand. One round trip for each 100, each atomic, and one when the groups have changed. If
        a fault or a kill prevents some pieces, their messages are still dead.
        """
        return self._reviving(self.keys.group(group), _places(ids))

    def _reviving(self, names: GroupNames, places: list[str]) -> Steps[int]:
        revived = 0
        for first in range(0, len(places), MESSAGES_A_SCRIPT):
            some = places[first : first + MESSAGES_A_SCRIPT]
            revived += yield from self._reviving_some(names, some)
        return revived

    def _reviving_some(self, names: GroupNames, places: list[str]) -> Steps[int]:
        due, mark, text = self._place or (yield from self._placing())
        keys = self.keys
        streams = [keys.stream(int(place.split(":", 1)[0])) for place in places]
        joined: str = "0"
        rings: list[bytes] = []
        for _ in range(_TRIES):
            reply = yield Operation(
                self._script("revive"),
                (
                    *(keys.meta, due, mark, keys.notifications, keys.tracking, names.dead),
                    *(keys.deadlines, *streams, *rings),
                ),
                (text, keys.name, self.ttl_ms, names.group, joined, len(streams), *places),
            )
            if not isinstance(reply, list):
                return int(reply)
            joined = as_text(reply[0])
            rings = [keys.group(name).ring for name in reply[1:]]
        raise LayoutError(
            f"the groups of the queue {keys.text!r} change faster than a message can be revived:"
            " stop the program that makes and deletes groups all the time; nothing was revived"
        )

    @operation
    def discard(self, group: str | bytes, *ids: str) -> Steps[int]:
        """Forget messages that were set aside, for good.

        Arguments:
            ids: of `dead`.

        Returns: how many were dead. Raises: ConfigurationError; LayoutError. One round trip for
        each 100 ids, each atomic; after a fault the rest is still dead.
        """
        return self._discarding(self.keys.group(group), _places(ids))

    def _discarding(self, names: GroupNames, places: list[str]) -> Steps[int]:
        discarded = 0
        for first in range(0, len(places), MESSAGES_A_SCRIPT):
            some = places[first : first + MESSAGES_A_SCRIPT]
            reply = yield self._step("discard", (self.keys.meta, names.dead), *some)
            discarded += int(reply)
        return discarded

    def _described(
        self, messages: list[Message], *, tracked: bool = False
    ) -> tuple[list[bytes], list[Any]]:
        """Return the keys of the messages' streams, and a script's arguments for each message.

        Arguments:
            tracked: give its tracking id, and whether it has a deadline, instead of its consumer
                and its delivery.
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


_Part = tuple[str, list[Message]]


def _in_parts(messages: tuple[Message, ...]) -> list[_Part]:
    if len(messages) == 1 and isinstance(messages[0], Message):
        return [(messages[0].group, [messages[0]])]
    groups: dict[str, list[Message]] = {}
    for message in messages:
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"{message!r} is no message: give a Message, as read() and read_many() return it"
            )
        groups.setdefault(message.group, []).append(message)
    return [
        (group, some[start : start + MESSAGES_A_SCRIPT])
        for group, some in groups.items()
        for start in range(0, len(some), MESSAGES_A_SCRIPT)
    ]


def _places(ids: tuple[str, ...]) -> list[str]:
    """Return ids of messages in the form in which the dead are kept."""
    places = []
    for each in ids:
        number, entry = split_id(each)
        places.append(f"{number}:{entry}")
    return places


def _dead_message(names: GroupNames, listed: list[Any]) -> DeadMessage:
    key, group = names.dead, as_text(names.group)
    place, attempts, delivered, set_aside, flat = listed
    number, entry, _ = stored_place(key, place)
    tries = stored_number(key, "the attempts of a message", attempts)
    ended = stored_number(key, "the end of a message", set_aside)
    message = read_message(number, entry, flat, group, "", attempts=tries, now=ended)
    return DeadMessage(
        id=message_id(number, entry),
        group=group,
        tenant=message.tenant,
        fields=message.fields,
        attempts=message.attempts,
        written=int(entry.split("-", 1)[0]) / 1000,
        delivered=stored_number(key, "the last delivery of a message", delivered) / 1000,
        set_aside=ended / 1000,
        deadline=message.deadline,
        tracking_id=message.tracking_id,
    )
