"""FairWriting messages, and the producers' view of them: cancelling, counting, purging, peeking."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError, QueueFull
from workstealing.recruiting.checks import checked_count
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Steps, command, operation
from workstealing.store.paging import Page
from workstealing.structures.fair_queue.base import (
    FairQueueBase,
    checked_account,
    checked_delay,
)
from workstealing.structures.fair_queue.message import FairMessage, packed
from workstealing.structures.fair_queue.names import FAIR_VERSION
from workstealing.structures.layout import as_text, checked_text
from workstealing.structures.queue_messages import (
    NewMessage,
    checked_dedupe,
    checked_fields,
    checked_new,
    deadline_ms,
    unwritable,
    written_text,
)
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.shuffle_queue.message import OverdueMessage
from workstealing.structures.stored import holding_ours

MOST_OVERDUE = 1000
MOST_PEEKED = 1000


class FairWriting(FairQueueBase):
    """The producers' operations."""

    @operation
    def write(
        self,
        tenant: str | bytes,
        fields: Mapping[Any, Any],
        deadline: dt.datetime | float | None = None,
        tracking_id: str | bytes | None = None,
        *,
        account: str | bytes | None = None,
        priority: int = 0,
        delay: Duration = 0.0,
        ttl: Duration | None = None,
        dedupe: tuple[str | bytes, Duration] | None = None,
        dedupe_ended: bool = False,
    ) -> Steps[str]:
        """Write a message at the end of its account.

        Arguments:
            tenant: a name that the consumer sees.
            fields: names and values, as redis-py takes them, up to 1,000, none of which begins with
                ``ws:``.
            deadline: an aware datetime or Unix seconds, after which, by the server's clock, the
                message is no longer delivered.
            tracking_id: by it `cancel` finds the message; if it is given again, it means the later
                message.
            account: the name under which the message's turns, time and slots are counted, by
                default the tenant. A tenant that splits itself gains nothing if its account stays.
            priority: 1 for a message that goes before the others of its account.
            delay: before it may be delivered, in seconds or a timedelta.
            ttl: for how long it may be delivered, in place of a deadline, in seconds or a
                timedelta.
            dedupe: a key, and for how many seconds (or a timedelta) a further message with this
                key is not written as long as this one is in the queue. Every end of the message
                frees the key.
            dedupe_ended: whether the key holds for all its seconds, also when this message has
                ended; `FairQueueReaper` then forgets it.

        Returns: the message's id; that of the earlier message if the dedupe key is in use. Raises:
        ConfigurationError; QueueFull if the account has as many messages as its rule allows;
        LayoutError; errors of redis-py, for instance of a full server: then nothing is written.
        One round trip; about 10 Redis commands, and one or two more for each option.
        """
        new = NewMessage(
            tenant,
            fields,
            deadline,
            tracking_id,
            account,
            priority,
            delay,
            ttl,
            dedupe,
            dedupe_ended,
        )
        return self._writing_one(self._described(new))

    def _writing_one(self, described: tuple[Any, ...]) -> Steps[str]:
        ids = yield from self._writing_some(described)
        return ids[0]

    @operation
    def write_many(self, messages: Iterable[NewMessage]) -> Steps[list[str]]:
        """Write messages, up to 100 by each script.

        Arguments:
            messages: `NewMessage`s; `write` says their fields.

        Returns: their ids, in order. Raises: as `write`. Each script is atomic. If a fault ends the
        call after the first script, some of the messages are written. One round trip for each 100;
        about five Redis commands a message.
        """
        return self._writing_many([self._described(each) for each in checked_new(messages)])

    def _writing_many(self, described: list[tuple[Any, ...]]) -> Steps[list[str]]:
        ids: list[str] = []
        for first in range(0, len(described), MESSAGES_A_SCRIPT):
            some = described[first : first + MESSAGES_A_SCRIPT]
            args = tuple(part for one in some for part in one)
            ids += yield from self._writing_some(args, before=first)
        return ids

    def _writing_some(self, described: tuple[Any, ...], before: int = 0) -> Steps[list[str]]:
        check = int(self._is_check_due())
        try:
            reply = yield from self._beginning(
                "write", int(self.notify), check, *described, once=True
            )
        except BaseException:
            self._checked = None
            raise
        if reply and reply[0] == 0:
            _, account, waiting, most = reply
            raise QueueFull(
                f"the account {as_text(account)!r} of the queue {self.name!r} has {int(waiting):,}"
                f" messages, and its rule allows {int(most):,}: write later, or set another"
                f" max_length; {written_text(before)}"
            )
        return [as_text(each) for each in reply]

    def _described(self, new: NewMessage) -> tuple[Any, ...]:
        """Return the arguments of a script for a message. Raises: ConfigurationError."""
        flat = checked_fields(new.fields)
        tenant = checked_account(new.tenant, "tenant")
        account = tenant if new.account is None else checked_account(new.account, "account")
        if isinstance(new.priority, bool) or new.priority not in (0, 1):
            raise ConfigurationError(
                f"priority={new.priority!r} is no priority: give 0, or 1 for a message that goes"
                " first"
            )
        delay = checked_delay(new.delay)
        ends: int | str = ""
        if new.deadline is not None:
            if new.ttl is not None:
                raise ConfigurationError("a message has a deadline or a ttl, not both: give one")
            # 0 stands for no deadline.
            ends = max(1, deadline_ms(new.deadline))
        elif new.ttl is not None:
            ends = f"+{max(1, int(seconds_of(new.ttl, 'ttl', least=0.001) * 1000))}"
        tracked = b""
        if new.tracking_id is not None:
            tracked = to_bytes(checked_text(new.tracking_id, "tracking id"))
        key, named, window = b"", b"", "0"
        if not isinstance(new.dedupe_ended, bool) or (new.dedupe_ended and new.dedupe is None):
            raise ConfigurationError(
                f"dedupe_ended={new.dedupe_ended!r} is not usable: give True with a dedupe key, or"
                " False"
            )
        if new.dedupe is not None:
            key, ms = checked_dedupe(new.dedupe)
            # A message that does not know its key frees it by no end of its own.
            named, window = (b"", f"+{ms}") if new.dedupe_ended else (key, str(ms))
        try:
            text = packed(
                flat, self._encoder.encode, int(new.priority), tenant, account, tracked, named
            )
        except UnicodeEncodeError as error:
            raise unwritable(error, new.fields) from None
        return (account, text, int(new.priority), delay, ends, tracked, key, window)

    @operation
    def cancel(self, tracking_id: str | bytes) -> Steps[bool]:
        """Delete the message of a tracking id, so that it is not delivered (again).

        A consumer that works on it now is not stopped; its `ack` does nothing more. Returns:
        whether the message still existed. Raises: ConfigurationError; LayoutError. One round trip.
        """
        checked_text(tracking_id, "tracking id")
        return self._cancelling(tracking_id)

    def _cancelling(self, tracking_id: str | bytes) -> Steps[bool]:
        return bool((yield self._asking("cancel", int(self.notify), tracking_id)))

    @operation
    def overdue(self, n: int = 100, start: int = 0) -> Steps[Page[OverdueMessage]]:
        """List messages whose deadline has passed and that are still there, the earliest first.

        They are no longer delivered: the next read that meets one deletes it, or `FairQueueReaper`
        does. A message that a consumer has in hand is among them.

        Arguments:
            n: 1 to 1,000.
            start: how many to pass over, for the next page.

        Returns: a `Page` of `OverdueMessage`; its `total` says how many are overdue. Raises:
        ConfigurationError; LayoutError. One round trip.
        """
        n = checked_count(n, "n", 1, MOST_OVERDUE)
        start = checked_count(start, "start", 0, 2**53 - MOST_OVERDUE)
        return self._listing_overdue(n, start)

    def _listing_overdue(self, n: int, start: int) -> Steps[Page[OverdueMessage]]:
        total, *flat = yield self._asking("overdue", start, n)
        found = []
        for member, ends, text in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            tracked = self._kept(text).tracked if text else None
            found.append(OverdueMessage(as_text(member), tracked, float(ends) / 1000))
        return Page(found, int(total), start)

    @operation
    def length(self) -> Steps[int]:
        """Return how many messages the queue holds, those in flight and the delayed ones too.

        Messages that were set aside are not counted. Raises: LayoutError. One round trip.
        """
        keys = self.keys
        with holding_ours(keys.base):
            mark, length = yield [
                command("HGET", keys.meta, "mark"),
                command("HLEN", keys.of("messages")),
            ]
        if mark is not None and as_text(mark) != FAIR_VERSION:
            # A script knows the rule of versions, and refuses what this release cannot read.
            yield self._asking("stats", 0, "mark")
        return int(length)

    @operation
    def peek(self, account: str | bytes, n: int = 10) -> Steps[list[FairMessage]]:
        """Show the messages of an account that wait, in the order in which they are served.

        Arguments:
            account: as it was written.
            n: 1 to 1,000.

        Returns: up to n messages, without a delivery: they cannot be acknowledged. Delayed ones are
        not among them. Raises: ConfigurationError; LayoutError. One round trip; one or two Redis
        commands a message.
        """
        name = checked_account(account, "account")
        return self._peeking(name, checked_count(n, "n", 1, MOST_PEEKED))

    def _peeking(self, account: bytes, n: int) -> Steps[list[FairMessage]]:
        now, *found = yield self._asking("peek", account, n)
        return [
            self._message(now, [identity, b"", attempts, text], "", None)
            for identity, attempts, text in found
        ]

    @operation
    def purge(self, account: str | bytes) -> Steps[int]:
        """Delete the messages of an account that wait or are delayed; those in flight stay.

        Returns: how many were deleted. Raises: ConfigurationError; LayoutError. One round trip for
        each 100 messages of the account, and for each 100 delayed ones of the queue; each script is
        atomic. After a fault or a kill the rest still waits.
        """
        return self._purging(checked_account(account, "account"))

    def _purging(self, account: bytes) -> Steps[int]:
        deleted, cursor = 0, ""
        while cursor != "0":
            some, found = yield self._asking(
                "purge", account, cursor, MESSAGES_A_SCRIPT, int(self.notify)
            )
            deleted, cursor = deleted + int(some), as_text(found)
        return deleted

    def _message(self, now: int, found: Any, consumer: str, batch: Any) -> FairMessage:
        """Make a message of { id, delivery, attempts, text }."""
        identity, delivery, attempts, text = found
        kept = self._kept(text)
        return FairMessage(
            as_text(identity),
            "",
            consumer,
            as_text(kept.tenant),
            kept.fields,
            int(attempts),
            max(0, now - kept.written_ms),
            kept.deadline,
            kept.tracked,
            None,
            as_text(kept.account),
            kept.priority,
            as_text(delivery),
            batch,
        )
