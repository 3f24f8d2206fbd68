"""The end of a delivery: messages are acknowledged, given back, extended, or revived.

An acknowledgement names the delivery: the message's id, and the number that only this delivery has.
A message that was delivered too often is set aside by the script that sees it: `max_attempts`
belongs to the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count
from workstealing.store.operations import Steps, operation
from workstealing.store.paging import LOOKED_AT, Page, oldest
from workstealing.structures.fair_queue.base import FairQueueBase, checked_delay
from workstealing.structures.fair_queue.message import DeadFairMessage, FairMessage
from workstealing.structures.layout import as_text, checked_text
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.stored import stored_number

MOST_DEAD = 10_000


class FairSettling(FairQueueBase):
    """The operations on messages that were delivered, and on those that were set aside."""

    @operation
    def ack(self, *messages: FairMessage) -> Steps[int]:
        """Say that messages are done: they are deleted, and their slots are free.

        Each account is charged for the time since the delivery instead of its estimate. Messages of
        one `read_many` share the time, because one is worked on after the other.

        Returns: how many were still there, and in nobody else's hands. Raises: ConfigurationError;
        LayoutError. One round trip for each 100 messages, each atomic; about 8 Redis commands a
        message. If a fault or a kill prevents some pieces, their messages are served again when
        their leases have lapsed.
        """
        return self._acking(described(messages))

    def _acking(self, args: tuple[Any, ...]) -> Steps[int]:
        acked = 0
        for some in _pieces(args, 3):
            acked += yield self._asking("ack", int(self.notify), *some)
        return acked

    @operation
    def nack(self, *messages: FairMessage, delay: Duration = 0.0) -> Steps[int]:
        """Give messages back, to be delivered again at their accounts' turns, to any consumer.

        A message that was delivered `max_attempts` times is set aside at once: see `dead`.

        Arguments:
            delay: before they may be delivered, in seconds or a timedelta.

        Returns: how many were given back or set aside; a message that has been delivered again
        since is not counted. Raises: ConfigurationError; LayoutError. One round trip for each 100
        messages, in pieces as of `ack`.
        """
        return self._nacking(described(messages), checked_delay(delay))

    def _nacking(self, args: tuple[Any, ...], delay_ms: int) -> Steps[int]:
        given = 0
        for some in _pieces(args, 3):
            given += yield (
                yield from self._using("nack", int(self.notify), delay_ms, self.max_attempts, *some)
            )
        return given

    @operation
    def extend(self, *messages: FairMessage) -> Steps[int]:
        """Say that messages are still being worked on: their leases begin again.

        Returns: how many were still this delivery. Raises: ConfigurationError; LayoutError. One
        round trip for each 100 messages, in pieces as of `ack`.
        """
        named = tuple(part for each in _checked(messages) for part in (each.id, each.delivery))
        return self._extending(named)

    def _extending(self, args: tuple[Any, ...]) -> Steps[int]:
        extended = 0
        for some in _pieces(args, 2):
            extended += yield (yield from self._using("extend", self.lease_ms, *some))
        return extended

    @operation
    def dead(self, n: int = 100) -> Steps[Page[DeadFairMessage]]:
        """List messages that were set aside, the oldest first.

        Arguments:
            n: 1 to 10,000.

        Returns: a `Page` of `DeadFairMessage`, a list whose `more` says how many others there are;
        of more than 1,000 (or n) it looks at that many only. Raises: ConfigurationError;
        LayoutError. One round trip for each 100 messages looked at.
        """
        return self._listing_dead(checked_count(n, "n", 1, MOST_DEAD))

    def _listing_dead(self, n: int) -> Steps[Page[DeadFairMessage]]:
        found: dict[str, Any] = {}
        cursor, total = "0", 0
        while True:
            count, after, *some = yield self._asking("dead", cursor, MESSAGES_A_SCRIPT)
            total, cursor = int(count), as_text(after)
            found.update((as_text(one[0]), one) for one in some)
            if cursor == "0" or len(found) >= max(n, LOOKED_AT):
                break
        messages = [self._dead_message(one) for one in found.values()]
        return oldest(messages, n, lambda each: (each.set_aside, each.id), total)

    @operation
    def revive(self, *ids: str) -> Steps[int]:
        """Write messages that were set aside into their accounts again, and forget their attempts.

        Such messages get new ids, and wait at the end of their account.

        Arguments:
            ids: of `dead`.

        Returns: how many were dead. Raises: ConfigurationError; LayoutError; errors of redis-py: a
        server that is out of memory has changed nothing of the 100 messages at hand. One round trip
        for each 100, each atomic. If a fault or a kill prevents some, they are still dead.
        """
        return self._reviving(_checked_ids(ids))

    def _reviving(self, ids: tuple[str, ...]) -> Steps[int]:
        revived = 0
        for some in _pieces(ids, 1):
            revived += yield (yield from self._using("revive", int(self.notify), *some))
        return revived

    @operation
    def discard(self, *ids: str) -> Steps[int]:
        """Forget messages that were set aside, for good.

        Arguments:
            ids: of `dead`.

        Returns: how many were dead. Raises: ConfigurationError; LayoutError. One round trip for
        each 100 ids, each atomic; after a fault the rest is still dead.
        """
        return self._discarding(_checked_ids(ids))

    def _discarding(self, ids: tuple[str, ...]) -> Steps[int]:
        discarded = 0
        for some in _pieces(ids, 1):
            discarded += yield self._asking("discard", *some)
        return discarded

    def _dead_message(self, listed: list[Any]) -> DeadFairMessage:
        key = self.keys.of("dead")
        name, attempts, delivered, set_aside, text = listed
        kept = self._kept(text, "dead")
        ended = stored_number(key, "the end of a message", set_aside)
        return DeadFairMessage(
            id=as_text(name),
            tenant=as_text(kept.tenant),
            account=as_text(kept.account),
            fields=kept.fields,
            attempts=stored_number(key, "the attempts of a message", attempts),
            written=kept.written_ms / 1000,
            delivered=stored_number(key, "the last delivery of a message", delivered) / 1000,
            set_aside=ended / 1000,
            deadline=kept.deadline,
            tracking_id=kept.tracked,
            priority=kept.priority,
        )


def described(messages: Sequence[FairMessage]) -> tuple[Any, ...]:
    """Return a script's arguments for messages: id, delivery, and the work in us or nothing.

    Raises: ConfigurationError for anything but messages that were read.
    """
    checked = _checked(messages)
    batches = Counter(id(each.batch) for each in checked if each.batch is not None)
    spent: dict[int, int] = {}
    args: list[Any] = []
    for each in checked:
        used: int | str = ""
        if each.batch is not None:
            key = id(each.batch)
            if key not in spent:
                spent[key] = each.batch.spent_us(batches[key])
            used = spent[key]
        args += (each.id, each.delivery, used)
    return tuple(args)


def _checked(messages: Sequence[FairMessage]) -> Sequence[FairMessage]:
    for each in messages:
        if not isinstance(each, FairMessage) or not each.delivery:
            raise ConfigurationError(
                f"{each!r} is no message of this queue: give one as read() returns it"
            )
    return messages


def _checked_ids(ids: tuple[str, ...]) -> tuple[str, ...]:
    for each in ids:
        checked_text(each, "id of a message")
    return ids


def _pieces(args: tuple[Any, ...], width: int) -> list[tuple[Any, ...]]:
    """Cut the arguments of messages, so many for each, into pieces for one script each."""
    size = width * MESSAGES_A_SCRIPT
    return [args[first : first + size] for first in range(0, len(args), size)]
