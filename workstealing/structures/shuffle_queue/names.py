"""The names of the keys of a shuffle queue, and of the namespace whose due index finds it."""

from __future__ import annotations

import re
from typing import Any

from workstealing.structures.layout import NamesBeside, as_text
from workstealing.structures.namespace import Names, NamespaceKind
from workstealing.structures.queue_place import checked_queue_name
from workstealing.structures.stored import stored_number, unbelieved

STREAMS = "streams"
SHUFFLE_QUEUES = NamespaceKind(
    name="shuffle_queues",
    called="shuffle queues",
    version=1,
    backends=(STREAMS,),
    evicted="streams of a queue with all their messages",
)
QUEUE_VERSION = "1"
"""The value of the field `mark` of a queue's `meta`."""
MOST_STREAMS = 4096
LEGACY = -1
"""The legacy stream's number in a ring, and in the ids of entries."""
RETURNED = "workstealing:returned"
"""The consumer that owns the pending entries which wait to be served again."""
DELAY_PREFIX = "delay:"
"""Fields of a group's state: ``delay:<top>`` counts first deliveries with a pickup delay of at most
that many ms, and more than half of it; the tops are the powers of two from 1 on."""

_PLACE = re.compile(r"(-?[0-9]{1,4}):([0-9]{1,20}-[0-9]{1,20})(?::(.*))?", re.DOTALL)


def stored_stream(key: bytes, value: Any) -> int:
    """Return the number of a stream that was read from a key of a queue's.

    Raises: LayoutError for anything that is no number of a stream.
    """
    return stored_number(key, "the number of a stream", value, LEGACY, MOST_STREAMS - 1)


def stored_place(key: bytes, value: Any) -> tuple[int, str, str | None]:
    """Return the place of a message that was read from a key of a queue's.

    Arguments:
        value: ``number:entry id``, and behind a colon the tracking id if it has one.

    Returns: these three. Raises: LayoutError for anything else.
    """
    found = _PLACE.fullmatch(as_text(value))
    if found is None:
        raise unbelieved(key, "the place of a message", value, "a stream's number and an entry id")
    return stored_stream(key, found[1]), found[2], found[3]


class IndexNames(Names):
    """The names of a namespace of queues; see the catalogue in ``lua/README.md``."""

    kind = SHUFFLE_QUEUES


class GroupNames:
    """The keys of one group of one queue; see the catalogue in ``lua/README.md``."""

    __slots__ = (
        "all",
        "consumers",
        "dead",
        "delayed",
        "group",
        "laps",
        "pending",
        "returned",
        "ring",
        "state",
    )

    def __init__(self, base: bytes, group: bytes) -> None:
        self.group = group
        self.ring = base + b"ring:" + group
        self.state = base + b"state:" + group
        self.pending = base + b"pending:" + group
        self.returned = base + b"returned:" + group
        self.delayed = base + b"delayed:" + group
        self.consumers = base + b"consumers:" + group
        self.dead = base + b"dead:" + group
        self.laps = base + b"laps:" + group
        self.all = (
            *(self.ring, self.state, self.pending, self.returned),
            *(self.delayed, self.consumers, self.dead, self.laps),
        )


class QueueNames(NamesBeside[GroupNames]):
    """The keys of one queue; all share the slot of its name.

    Arguments:
        name: of the queue, and of the legacy stream that is read too.

    Raises: ConfigurationError for anything but a usable name.
    """

    def __init__(self, name: object) -> None:
        super().__init__(checked_queue_name(name), b"queue", GroupNames)
        self.text = self.name.decode(errors="backslashreplace")
        self.legacy = self.name
        self.notifications = self.base + b"notifications"
        self.tracking = self.base + b"tracking"
        self.deadlines = self.base + b"deadlines"
        self._streams: list[bytes] = []

    def stream(self, number: int) -> bytes:
        """Return the key of a stream; `LEGACY` is the legacy one."""
        if number == LEGACY:
            return self.legacy
        try:
            return self._streams[number]
        except IndexError:
            return self.streams(number + 1)[number]

    def receipt(self, nonce: bytes) -> bytes:
        """Return the key of the receipts that a reader names by a nonce."""
        return self.base + b"read." + nonce

    def streams(self, span: int) -> list[bytes]:
        """Return the keys of the streams 0 to span - 1."""
        known = self._streams
        if len(known) < span:
            # Another thread may do the same: a new list is the same for both.
            known = self._streams = [b"%ss%d" % (self.base, number) for number in range(span)]
        return known if len(known) == span else known[:span]
