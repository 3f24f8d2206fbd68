"""Writing messages, and the producers' view of them: cancelling, counting and overdue ones.

A message goes to the shortest of its account's streams, and this stream goes into every group's
ring. The account is the tenant, unless the producer says another one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import Operation, Steps, operation
from workstealing.store.paging import Page
from workstealing.structures.layout import as_text, checked_text
from workstealing.structures.shuffle_queue.base import QueueBase
from workstealing.structures.shuffle_queue.message import (
    DEADLINE,
    TENANT,
    TRACKING,
    OverdueMessage,
    checked_fields,
    deadline_ms,
    overdue_message,
    unwritable,
)
from workstealing.structures.shuffle_queue.names import stored_place
from workstealing.structures.shuffle_queue.streams import checked_tenant

MOST_FIELDS = 1000
MOST_OVERDUE = 1000
ACCOUNTS_KNOWN = 4096
STREAMS_A_SCRIPT = 512
# How often the groups may change while a message is being written, and how often a tracking id
# may be given to another message while one is being cancelled.
_TRIES = 100


class Writing(QueueBase):
    """The producers' operations: `write`, `cancel`, `overdue`, `length` and `groups`."""

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
        flat = checked_fields(fields)
        if len(flat) > 2 * MOST_FIELDS:
            raise ConfigurationError(
                f"a message of {len(flat) // 2} fields is too wide: give at most {MOST_FIELDS}"
            )
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
        if account is None:
            account = tenant
        else:
            checked_tenant(tenant)
        try:
            known = self._accounts.get(account)
        except TypeError:
            # What has no hash is no name; the check says so.
            known = None
        streams = known or self._learn(account, "tenant" if account is tenant else "account")
        return self._writing(streams, tracked, ends, flat, fields)

    def _writing(
        self,
        streams: tuple[bytes, ...],
        tracked: str | bytes,
        ends: int | str,
        flat: list[Any],
        fields: Mapping[Any, Any],
    ) -> Steps[str]:
        due, mark, text = self._place or (yield from self._placing())
        keys = self.keys
        script = self._script("write")
        named = (keys.notifications, keys.tracking, keys.deadlines, *streams)
        for _ in range(_TRIES):
            joined, rings = self._known
            args = (
                text,
                keys.name,
                self.ttl_ms,
                joined,
                self.streams,
                int(self.notify),
                len(streams),
                tracked,
                ends,
                *flat,
            )
            try:
                all_keys = (keys.meta, due, mark, *named, *rings)
                reply = yield Operation(script, all_keys, args, once=True)
            except UnicodeEncodeError as error:
                raise unwritable(fields, error) from None
            if not isinstance(reply, list):
                return as_text(reply)
            if as_text(reply[0]) == "0":
                # The queue has gone, and its namespace perhaps, without which no job finds it.
                self.forget()
                due, mark, text = yield from self._placing()
            self._known = (as_text(reply[0]), tuple(keys.group(name).ring for name in reply[1:]))
        raise LayoutError(
            f"the groups of the queue {keys.text!r} change faster than one message can be written:"
            " stop the program that makes and deletes groups all the time; nothing was written"
        )

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
