"""The dead messages of a shuffle queue: what was delivered too often waits here for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import Operation, Steps
from workstealing.store.paging import LOOKED_AT, Page, oldest
from workstealing.structures.shuffle_queue.base import QueueBase
from workstealing.structures.shuffle_queue.message import (
    as_text,
    message_id,
    read_message,
    split_id,
)
from workstealing.structures.shuffle_queue.names import MESSAGES_A_SCRIPT

# How often the groups may change while messages are being revived.
_TRIES = 100
# What a call gives back: the result, or something to await.
_DeadT = TypeVar("_DeadT")
_IntT = TypeVar("_IntT")


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


class DeadCommands(QueueBase, Generic[_DeadT, _IntT]):
    """A ShuffleQueue's dealings with its dead; blocking, or awaited on an asyncio client."""

    def dead(self, group: str | bytes, n: int = 100) -> _DeadT:
        """List messages that were set aside for a group, those of longest ago first.

        Arguments: group; n: 1 to 10,000. Returns: a `Page` of `DeadMessage`, a list whose `more`
        says how many others there are; of more than 1,000 (or n) so many are looked at. Errors:
        ConfigurationError; LayoutError. One round trip for each 100 that are looked at.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 10_000:
            raise ConfigurationError(
                f"n={n!r} dead messages cannot be listed: give a number from 1 to 10,000"
            )
        dead: _DeadT = self._run(self._dead_steps(group, n))
        return dead

    def revive(self, group: str | bytes, *ids: str) -> _IntT:
        """Write messages that were set aside into their streams again, their attempts forgotten.

        They get new ids, wait at the end of their stream, and are delivered to this group alone
        (those of the legacy stream to whoever reads it). Arguments: group; ids: of `dead`. Returns:
        how many were dead. Errors: ConfigurationError for what is no id; LayoutError; those of
        redis-py: a server that is out of memory has changed nothing of the 100 at hand. One round
        trip for each 100, each atomic, and one when the groups have changed; those that a fault or
        a kill has prevented are dead still.
        """
        revived: _IntT = self._run(self._revive_steps(group, _places(ids)))
        return revived

    def discard(self, group: str | bytes, *ids: str) -> _IntT:
        """Forget messages that were set aside, for good.

        Arguments: group; ids: of `dead`. Returns: how many were dead. Errors: ConfigurationError;
        LayoutError. One round trip for each 100 ids, each atomic; the rest is dead still.
        """
        discarded: _IntT = self._run(self._discard_steps(group, _places(ids)))
        return discarded

    def _dead_steps(self, group: str | bytes, n: int) -> Steps[Page[DeadMessage]]:
        names = self.keys.group(group)
        keys = (self.keys.meta, names.dead)
        found: dict[str, Any] = {}
        cursor, total = "0", 0
        while True:
            reply = yield self.operation("dead", keys, cursor, MESSAGES_A_SCRIPT)
            total, cursor = int(reply[0]), as_text(reply[1])
            found.update((as_text(one[0]), one) for one in reply[2:])
            if cursor == "0" or len(found) >= max(n, LOOKED_AT):
                break
        messages = [_dead_message(as_text(names.group), one) for one in found.values()]
        return oldest(messages, n, lambda each: (each.set_aside, each.id), total)

    def _discard_steps(self, group: str | bytes, places: list[str]) -> Steps[int]:
        names = self.keys.group(group)
        discarded = 0
        for first in range(0, len(places), MESSAGES_A_SCRIPT):
            some = places[first : first + MESSAGES_A_SCRIPT]
            reply = yield self.operation("discard", (self.keys.meta, names.dead), *some)
            discarded += int(reply)
        return discarded

    def _revive_steps(self, group: str | bytes, places: list[str]) -> Steps[int]:
        revived = 0
        for first in range(0, len(places), MESSAGES_A_SCRIPT):
            revived += yield from self._revive_some(
                group, places[first : first + MESSAGES_A_SCRIPT]
            )
        return revived

    def _revive_some(self, group: str | bytes, places: list[str]) -> Steps[int]:
        due, mark, text = self._place or (yield from self.place_steps())
        keys, names = self.keys, self.keys.group(group)
        streams = [keys.stream(int(place.split(":", 1)[0])) for place in places]
        joined: str = "0"
        rings: list[bytes] = []
        for _ in range(_TRIES):
            reply = yield Operation(
                self.script("revive"),
                (
                    *(keys.meta, due, mark, keys.notifications, keys.tracking, names.dead),
                    *(keys.deadlines, *streams, *rings),
                ),
                (text, keys.name, self.ttl_ms, names.group, joined, len(streams), *places),
                lambda found: found,
            )
            if not isinstance(reply, list):
                return int(reply)
            joined = as_text(reply[0])
            rings = [keys.group(name).ring for name in reply[1:]]
        raise LayoutError(
            f"the groups of the queue {keys.text!r} change faster than a message can be revived:"
            " look for what registers them; nothing was revived"
        )


def _places(ids: tuple[str, ...]) -> list[str]:
    """Return ids of messages as the dead are kept by."""
    places = []
    for each in ids:
        number, entry = split_id(each)
        places.append(f"{number}:{entry}")
    return places


def _dead_message(group: str, listed: list[Any]) -> DeadMessage:
    place, attempts, delivered, set_aside, flat = listed
    number, entry = as_text(place).split(":", 1)
    ended = int(set_aside)
    message = read_message(int(number), entry, flat, group, "", attempts=int(attempts), now=ended)
    return DeadMessage(
        id=message_id(int(number), entry),
        group=group,
        tenant=message.tenant,
        fields=message.fields,
        attempts=message.attempts,
        written=int(entry.split("-", 1)[0]) / 1000,
        delivered=int(delivered) / 1000,
        set_aside=ended / 1000,
        deadline=message.deadline,
        tracking_id=message.tracking_id,
    )
