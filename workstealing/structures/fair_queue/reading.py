"""FairReading: of the accounts that have a turn, the one with the least tag is served.

Why no wake-up is lost. A look that finds nothing has seen that no account has a turn, and returns
the last id of the notifications. A script that gives an account a turn while none has one adds a
notification. So does a script after which something may come sooner than a sleeper knows: a delayed
message, an account that its rate has stopped. XREAD BLOCK from the id of the look returns at once
if one was added since. A lease that lapses adds none, but a sleeper knows the end of each lease of
before its look, and sleeps no longer than a lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redis.exceptions import RedisError

from workstealing.clock import Duration, seconds_of
from workstealing.errors import LayoutError
from workstealing.recruiting.checks import checked_count
from workstealing.store.blocking import block_ms
from workstealing.store.grants import AskedReads, Asking, Receipts, asks
from workstealing.store.operations import Steps, Wait
from workstealing.structures.fair_queue.base import ANNOUNCE_SECONDS
from workstealing.structures.fair_queue.message import FairMessage, SharedTime
from workstealing.structures.fair_queue.settling import FairSettling, described
from workstealing.structures.fair_queue.writing import FairWriting
from workstealing.structures.layout import as_text, checked_text
from workstealing.structures.queue_messages import Exchanged
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT, Patience
from workstealing.structures.shuffle_queue.message import note_pickup_delay

CONSUMERS_KNOWN = 4096
MOST_MESSAGES = 1000
_FOUND, _NOTHING, _AGAIN, _GONE = range(4)


@dataclass(frozen=True, slots=True)
class EmptyLook:
    """The reply of a look that found nothing; a wait from here misses no moment.

    Fields: notification: the last id at the very look; wait_ms: until something may come without
    a notification, None if nothing does.
    """

    notification: str
    wait_ms: int | None


class FairReading(FairWriting, FairSettling):
    """The operations `read`, `read_many` and `exchange`."""

    @asks
    def read(self, consumer: str | bytes, block: Duration = 0) -> Asking[FairMessage | None]:
        """Return the message whose account has its turn, or None; never take more than one.

        The message is the consumer's for the queue's lease, or until `ack`; `extend` begins the
        lease anew.

        Arguments:
            consumer: a name of this reader's own.
            block: how long to wait for a message, in seconds or a timedelta, 0 not to wait.

        Raises: ConfigurationError; LayoutError. One round trip and about 14 Redis commands,
        however many accounts there are; one more round trip for each 16 messages that were
        cancelled or are past their deadline, and one every five seconds, to show that the consumer
        is alive.

        A read that redis-py sends twice is answered by the same message. A call that is interrupted
        or cut off gives back what it was granted, within the client's own time-out.
        """
        return self._looking_on(consumer, None, block, same_account=False)

    @asks
    def read_many(
        self,
        consumer: str | bytes,
        n: int,
        block: Duration = 0,
        *,
        same_account: bool = False,
    ) -> Asking[list[FairMessage]]:
        """Return up to n messages, each of the account that has its turn then.

        Arguments:
            consumer: as of `read`.
            n: 1 to 1,000.
            block: as of `read`.
            same_account: give only messages of the account that has the first turn, for work that
                is cheaper together; the account is charged for all of them.

        Returns: a list, empty if nothing came. The call waits for the first message only. Raises:
        as `read`. More than 100 are read in pieces of up to 100, each by a script of its own; other
        consumers may read in between. A fault after the first piece ends the call with the messages
        that were read. About ten Redis commands a message.
        """
        n = checked_count(n, "n", 1, MOST_MESSAGES)
        return self._looking_on(consumer, n, block, same_account=same_account)

    @asks
    def exchange(
        self,
        *done: FairMessage,
        consumer: str | bytes,
        n: int = 1,
        block: Duration = 0,
        same_account: bool = False,
    ) -> Asking[Exchanged[FairMessage]]:
        """Say that messages are done, and read the next ones, in one round trip.

        Arguments:
            done: up to 100.
            consumer: as of `read`.
            n: 1 to 100.
            block: as of `read`.
            same_account: as of `read_many`.

        Returns: an `Exchanged`. Raises: as `read`. If the call is interrupted, nobody knows whether
        the messages were done; those that were read are given back.
        """
        checked_count(len(done), "the number of messages that are done", 0, MESSAGES_A_SCRIPT)
        n = checked_count(n, "n", 1, MESSAGES_A_SCRIPT)
        settled = described(done)
        return self._looking_on(consumer, n, block, same_account=same_account, settled=settled)

    def _looking_on(
        self,
        consumer: str | bytes,
        n: int | None,
        block: Duration,
        *,
        same_account: bool,
        settled: tuple[Any, ...] | None = None,
    ) -> Asking[Any]:
        """Check the arguments of a read, and return what it asks; n: None for one message alone."""
        consumer = checked_text(consumer, "consumer")
        seconds = seconds_of(block, "block") if block else 0.0
        # A sleeper uses the queue too; and it knows no lease that others have been given since.
        most = min(self.ttl / 3, self.lease)
        patience = Patience(seconds, most, not self.notify, self.monotonic)
        asked = AskedReads(self._receipts, consumer)
        steps = self._reading_on(asked, n, patience, same_account, settled)
        return Asking(
            steps,
            lambda: self._withdrawing(asked),
            asked,
            lambda: self._announcing_if_due(asked.consumer),
        )

    @cached_property
    def _receipts(self) -> Receipts:
        return Receipts(self.keys.receipt)

    @cached_property
    def _announced(self) -> dict[str | bytes, float]:
        return {}

    def _withdrawing(self, asked: AskedReads) -> Steps[None]:
        """Give back what the reads of a call were granted, by their receipts; one round trip."""
        operations = [
            self._asking("withdraw", receipt.number, int(self.notify), receipt.key)
            for receipt, _ in asked.open()
        ]
        if operations:
            yield operations

    def _reading_on(
        self,
        asked: AskedReads,
        n: int | None,
        patience: Patience,
        same_account: bool,
        settled: tuple[Any, ...] | None,
    ) -> Steps[Any]:
        """Look, wait and look again, until something is found or the time is over."""
        done = 0
        asked.begin()
        left = settled or ()
        while True:
            try:
                count, found = yield from self._looking(asked, n or 1, same_account, left)
            except UnicodeDecodeError:
                # The reply was there. Given back at once, the message would go round for ever.
                asked.note_nothing()
                raise
            done, left = done + count, ()
            if not isinstance(found, EmptyLook):
                asked.end()
                return _answer(n, settled, done, found)
            asked.renew()
            seconds = patience.next_seconds(found.wait_ms)
            if seconds is None:
                asked.end()
                return _answer(n, settled, done, [])
            keys = self.keys
            waiting = ("STREAMS", keys.notifications, found.notification)
            command = ("XREAD", "COUNT", 1, "BLOCK", block_ms(seconds), *waiting)
            yield Wait(keys.slot, command, seconds)

    def _looking(
        self, asked: AskedReads, n: int, same_account: bool, settled: tuple[Any, ...]
    ) -> Steps[tuple[int, list[FairMessage] | EmptyLook]]:
        """Look for at most n messages, at most `MESSAGES_A_SCRIPT` by each script.

        Returns: how many messages were done, and the messages or `EmptyLook`.
        """
        piece = min(n, MESSAGES_A_SCRIPT)
        done, found = yield from self._look_once(asked, piece, same_account, settled)
        if isinstance(found, EmptyLook) or same_account:
            return done, found
        messages = found
        while len(found) == piece and len(messages) < n:
            piece = min(n - len(messages), MESSAGES_A_SCRIPT)
            receipt = asked.begin()
            try:
                _, found = yield from self._look_once(asked, piece, same_account, ())
            except (RedisError, OSError, LayoutError) as error:
                # What was delivered must not be lost by what was not. The next call meets the
                # fault again; a host's time-out passes.
                asked.note_cut(receipt, error)
                break
            if isinstance(found, EmptyLook):
                asked.note_nothing()
                break
            messages += found
        return done, messages

    def _look_once(
        self, asked: AskedReads, n: int, same_account: bool, settled: tuple[Any, ...]
    ) -> Steps[tuple[int, list[FairMessage] | EmptyLook]]:
        """Look for n messages at most, until some are found or it is certain that none is there."""
        consumer = asked.consumer
        yield from self._announcing_if_due(consumer)
        done = 0
        while True:
            receipt = asked.ask((0,))
            reply = yield self._asking(
                "read",
                *(consumer, receipt.number, receipt.key, n, self.lease_ms, self.max_attempts),
                *(int(same_account), int(self.notify), *settled),
            )
            kind, now, count, *rest = reply
            done, settled = done + int(count), ()
            if kind == _FOUND:
                batch = SharedTime() if len(rest) > 1 else None
                name = as_text(consumer)
                messages, undecodable = [], None
                for each in rest:
                    try:
                        messages.append(self._message(now, each, name, batch))
                    except UnicodeDecodeError as error:
                        # Its lease ends by itself; the others of the read are none the worse.
                        undecodable = error
                if undecodable is not None and not messages:
                    raise undecodable
                for message in messages:
                    note_pickup_delay(message)
                return done, messages
            if kind == _NOTHING:
                wait = int(rest[1])
                return done, EmptyLook(as_text(rest[0]), None if wait < 0 else wait)
            # What was looked at was gone, or a former sending of this read has had it.
            asked.renew()

    def _announcing_if_due(self, consumer: str | bytes) -> Steps[None]:
        """Say that a consumer is alive, if it has not said so lately; one round trip."""
        announced = self._announced.get(consumer)
        # A queue that is read is in use, however short its time to live.
        often = min(ANNOUNCE_SECONDS, self.ttl / 4)
        if announced is not None and self.monotonic() - announced < often:
            return
        yield from self._beginning("announce", consumer, self.lease_ms)
        if len(self._announced) >= CONSUMERS_KNOWN:
            # Consumers that still read are announced once more.
            self._announced.clear()
        self._announced[consumer] = self.monotonic()


def _answer(
    n: int | None, settled: tuple[Any, ...] | None, done: int, messages: list[FairMessage]
) -> Any:
    """Return what a read answers: a message or None, a list, or what was exchanged."""
    if settled is not None:
        return Exchanged(done, messages)
    if n is None:
        return messages[0] if messages else None
    return messages
