"""Writing messages, and the producers' view of them: cancelling, counting and overdue ones.

A message goes to the shortest of its account's streams, and this stream goes into every group's
ring. The account is the tenant, unless the producer says another one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import AS_BYTES, Operation, Steps, command, operation
from workstealing.store.paging import Page
from workstealing.structures.layout import as_text, checked_text
from workstealing.structures.queue_messages import (
    NewMessage,
    checked_fields,
    checked_new,
    deadline_ms,
    unwritable,
    written_text,
)
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.shuffle_queue.base import QueueBase
from workstealing.structures.shuffle_queue.message import (
    DEADLINE,
    TENANT,
    TRACKING,
    OverdueMessage,
    overdue_message,
)
from workstealing.structures.shuffle_queue.names import stored_place
from workstealing.structures.shuffle_queue.streams import checked_tenant
from workstealing.structures.stored import holding_ours

MOST_OVERDUE = 1000
ACCOUNTS_KNOWN = 4096
STREAMS_A_SCRIPT = 512
# How often the groups may change while a message is being written, and how often a tracking id
# may be given to another message while one is being cancelled.
_TRIES = 100


# What a `FairQueue` knows of a message, and this queue does not.
_FAIR_ONLY = {
    "priority": 0,
    "delay": 0.0,
    "ttl": None,
    "dedupe": None,
    "dedupe_ended": False,
}


class _Described(NamedTuple):
    """A message as it is sent: the keys of its streams, the queue's own parts, all fields."""

    streams: tuple[bytes, ...]
    tracked: str | bytes
    ends: int | str
    flat: list[Any]
    fields: Mapping[Any, Any]


class Writing(QueueBase):
    """The producers' operations: `write`, `write_many`, `cancel`, `overdue`, `length`, `groups`."""

    # The queue's `joined` number, and the rings of the groups of that time: one value, so
    # that threads see both or neither change.
    _known: tuple[str, tuple[bytes, ...]] = ("0", ())

    @operation
    def write(
        self,
        tenant: str | bytes,
        fields: Mapping[Any, Any],
        deadline: dt.datetime | float | None = None,
        tracking_id: str | bytes | None = None,
        *,
        account: str | bytes | None = None,
    ) -> Steps[str]:
        """Write a message into the shortest of the streams of its account.

        Arguments:
            tenant: a name that the consumer sees.
            fields: names and values, as redis-py takes them, up to 1,000, none of which begins with
                ``ws:``.
            deadline: an aware datetime or Unix seconds, after which, by the server's clock, the
                message is no longer delivered.
            tracking_id: by it `cancel` finds the message; if it is given again, it means the later
                message.
            account: the name that decides the streams, by default the tenant. A tenant that splits
                itself into many gains nothing if its account stays.

        Returns: the message's id, "<stream>-<ms>-<sequence>". Raises: ConfigurationError;
        LayoutError; errors of redis-py, for instance of a full server: then nothing is written. One
        round trip, and one more after a group has read for the first time; about 10 Redis commands,
        and up to 3 more for each further group.
        """
        described = self._described_new(tenant, fields, deadline, tracking_id, account)
        return self._writing_one(described)

    @operation
    def write_many(self, messages: Iterable[NewMessage]) -> Steps[list[str]]:
        """Write messages, up to 100 by each script.

        Arguments:
            messages: `NewMessage`s; `write` says their fields. The others belong to a `FairQueue`.

        Returns: their ids, in order. Raises: as `write`. Each script writes all of its messages or
        none. If a fault ends the call after the first script, some of the messages are written. One
        round trip for each 100; about eight Redis commands a message, and up to 3 more for each
        group and stream.
        """
        new = checked_new(messages)
        for each in new:
            _refuse_foreign(each)
        return self._writing_many(
            [
                self._described_new(
                    each.tenant, each.fields, each.deadline, each.tracking_id, each.account
                )
                for each in new
            ]
        )

    def _described_new(
        self,
        tenant: str | bytes,
        fields: Mapping[Any, Any],
        deadline: dt.datetime | float | None,
        tracking_id: str | bytes | None,
        account: str | bytes | None,
    ) -> _Described:
        """Check a message to be written, and say what is sent. Raises: ConfigurationError."""
        flat = checked_fields(fields)
        # The queue's own come last, where the scripts look for them.
        flat += (TENANT, tenant)
        ends: int | str = ""
        if deadline is not None:
            ends = deadline_ms(deadline)
            flat += (DEADLINE, ends)
        tracked: str | bytes = ""
        if tracking_id is not None:
            tracked = checked_text(tracking_id, "tracking id")
            flat += (TRACKING, tracked)
        called = "account"
        if account is None:
            account, called = tenant, "tenant"
        else:
            checked_tenant(tenant)
        try:
            known = self._accounts.get(account)
        except TypeError:
            # What has no hash is no name; the check says so.
            known = None
        return _Described(known or self._learn(account, called), tracked, ends, flat, fields)

    def _writing_one(self, described: _Described) -> Steps[str]:
        ids = yield from self._writing_some([described])
        return ids[0]

    def _writing_many(self, described: list[_Described]) -> Steps[list[str]]:
        ids: list[str] = []
        for first in range(0, len(described), MESSAGES_A_SCRIPT):
            some = described[first : first + MESSAGES_A_SCRIPT]
            ids += yield from self._writing_some(some, first)
        return ids

    def _writing_some(self, some: list[_Described], before: int = 0) -> Steps[list[str]]:
        """Write messages by one script.

        Arguments:
            before: how many the call has written before.
        """
        due, mark, text = self._place or (yield from self._placing())
        keys = self.keys
        script = self._script("write")
        places: dict[bytes, int] = {}
        parts: list[Any] = []
        for each in some:
            among = [places.setdefault(stream, len(places) + 1) for stream in each.streams]
            parts += (each.tracked, each.ends, " ".join(map(str, among)), len(each.flat))
            parts += each.flat
        named = (keys.notifications, keys.tracking, keys.deadlines, *places)
        for _ in range(_TRIES):
            joined, rings = self._known
            settings = (self.ttl_ms, joined, self.streams, int(self.notify), len(places))
            args = (text, keys.name, *settings, *parts)
            try:
                all_keys = (keys.meta, due, mark, *named, *rings)
                is_done, *found = yield Operation(script, all_keys, args, once=True)
            except UnicodeEncodeError as error:
                raise unwritable(error, *(each.fields for each in some)) from None
            if is_done:
                return [as_text(each) for each in found]
            now_joined, *groups = found
            if as_text(now_joined) == "0":
                # The queue has gone, and its namespace perhaps, without which no job finds it.
                self.forget()
                due, mark, text = yield from self._placing()
            rings = tuple(keys.group(name).ring for name in groups)
            self._known, self._has_learned = (as_text(now_joined), rings), True
        raise LayoutError(
            f"the groups of the queue {keys.text!r} change faster than one message can be written:"
            " stop the program that makes and deletes groups all the time;"
            f" {written_text(before)}"
        )

    def learning_steps(self) -> Steps[None]:
        """Learn the groups, if none is known: a write that does not know them writes nothing."""
        if self._has_learned:
            return
        # In this order: a group that comes in between makes the number an old one.
        with holding_ours(self.keys.meta):
            (joined,), groups = yield [
                command("HMGET", self.keys.meta, "joined", options=AS_BYTES),
                self._step("groups", (self.keys.meta,)),
            ]
        rings = tuple(self.keys.group(name).ring for name in groups)
        self._known, self._has_learned = (as_text(joined or b"0"), rings), True

    def _learn(self, account: str | bytes, called: str) -> tuple[bytes, ...]:
        checked_tenant(account, called)
        streams = tuple(self.keys.stream(number) for number in self.streams_of(account))
        if len(self._accounts) >= ACCOUNTS_KNOWN:
            self._accounts = {}
        self._accounts[account] = streams
        return streams

    @operation
    def cancel(self, tracking_id: str | bytes) -> Steps[bool]:
        """Delete the message of a tracking id, for all groups, so that it is not delivered (again).

        A consumer that works on it now is not stopped; its `ack` does nothing more. Returns:
        whether the message still existed. Raises: ConfigurationError; LayoutError. Two round trips.
        """
        checked_text(tracking_id, "tracking id")
        return self._cancelling(tracking_id)

    def _cancelling(self, tracking_id: str | bytes) -> Steps[bool]:
        keys = self.keys
        for _ in range(_TRIES):
            place = yield self._step("tracked", (keys.meta, keys.tracking), tracking_id)
            if place is None:
                return False
            stream = keys.stream(stored_place(keys.tracking, place)[0])
            deleted = yield self._step(
                "cancel", (keys.meta, keys.tracking, keys.deadlines, stream), tracking_id, place
            )
            if deleted >= 0:
                return bool(deleted)
        return False

    @operation
    def overdue(self, n: int = 100, start: int = 0) -> Steps[Page[OverdueMessage]]:
        """List messages whose deadline has passed and that are still there, the earliest first.

        Overdue messages are no longer delivered: the next read that meets them deletes them, or
        `ShuffleQueueReaper` does. A message that a consumer has in hand is among them.

        Arguments:
            n: 1 to 1,000.
            start: how many to pass over, for the next page.

        Returns: a `Page` of `OverdueMessage`, with the tracking id of each; its `total` says how
        many are overdue, and its `more` how many follow the listed ones. Raises:
        ConfigurationError; LayoutError. One round trip.
        """
        n = _checked_place(n, "n", 1, MOST_OVERDUE)
        start = _checked_place(start, "start", 0, 2**53 - MOST_OVERDUE)
        return self._listing_overdue(n, start)

    def _listing_overdue(self, n: int, start: int) -> Steps[Page[OverdueMessage]]:
        keys = (self.keys.meta, self.keys.deadlines)
        total, *flat = yield self._step("overdue", keys, start, n)
        found = zip(flat[::2], flat[1::2], strict=True)
        return Page(
            (overdue_message(self.keys.deadlines, *each) for each in found), int(total), start
        )

    @operation
    def length(self) -> Steps[int]:
        """Return how many messages all streams hold.

        A message counts until every group has acknowledged it; messages of the legacy stream count
        too. Raises: LayoutError. One round trip for each 512 streams; an XLEN a stream.
        """
        keys = self.keys
        counted, span, length = 0, self.streams, 0
        while counted < span:
            streams = keys.streams(span)[counted : counted + STREAMS_A_SCRIPT]
            # The first question asks for the queue's first streams and the legacy one.
            first = () if counted else (keys.legacy,)
            known, found = yield self._step("length", (keys.meta, *first, *streams))
            counted, span = counted + len(streams), max(span, known)
            length += found
        return length

    @operation
    def groups(self) -> Steps[list[str]]:
        """Return the names of the groups that have ever read, sorted.

        Raises: LayoutError; errors of redis-py. One round trip.
        """
        found = yield self._step("groups", (self.keys.meta,))
        return sorted(map(as_text, found))


def _checked_place(number: object, name: str, least: int, most: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise ConfigurationError(
            f"{name}={number!r} is not usable to list overdue messages: give a whole number from"
            f" {least} to {most:,}"
        )
    return int(number)


def _refuse_foreign(new: NewMessage) -> None:
    """Raise ConfigurationError for a message with fields that only a `FairQueue` knows."""
    foreign = [name for name, value in _FAIR_ONLY.items() if getattr(new, name) != value]
    if foreign:
        raise ConfigurationError(
            f"a ShuffleQueue has no {' and no '.join(foreign)}: leave such fields of a NewMessage"
            " out, or take a FairQueue"
        )
