"""Exchanging: messages are acknowledged and the next ones read in one round trip.

The scripts of `ack` are sent together with the first script of the read. They are run one after the
other, so a fault may come between them; then nobody knows whether the messages were done, and the
read gives back what it was granted.
"""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import RedisError

from workstealing.clock import Duration
from workstealing.errors import LayoutError
from workstealing.recruiting.checks import checked_count
from workstealing.store.grants import Asking, asks
from workstealing.store.operations import Begun, Operation, Steps
from workstealing.structures.queue_messages import Exchanged
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.shuffle_queue.message import Message
from workstealing.structures.shuffle_queue.reading import ReadingMessages
from workstealing.structures.shuffle_queue.settling import Settling


class Exchanging(ReadingMessages, Settling):
    """The operation `exchange`."""

    @asks
    def exchange(
        self,
        *done: Message,
        group: str | bytes,
        consumer: str | bytes,
        n: int = 1,
        block: Duration = 0,
        prefer_stream: int | None = None,
    ) -> Asking[Exchanged[Message]]:
        """Say that messages are done, and read the next ones, in one round trip.

        Arguments:
            done: up to 100, as of `ack`, of any group.
            group: as of `read`.
            consumer: as of `read`.
            n: 1 to 100.
            block: as of `read`.
            prefer_stream: as of `read`.

        Returns: an `Exchanged`; its `done` counts the messages that were still pending. Raises: as
        `read`. One round trip where `read` has one, before a wait too; the commands of `ack` and of
        `read_many`.

        If the call is interrupted or cut off, nobody knows whether the messages were done, and
        those that were read are given back. If redis-py sends it twice, `done` may count too few.
        """
        checked_count(len(done), "the number of messages that are done", 0, MESSAGES_A_SCRIPT)
        n = checked_count(n, "n", 1, MESSAGES_A_SCRIPT)
        acks = self._acks(done)
        asking = self._looking_on(group, consumer, n, block, prefer_stream)
        steps = self._exchanging(acks, asking.steps)
        return Asking(steps, asking.giving_back, asking.asked, asking.preparing)

    def _exchanging(
        self, acks: Sequence[Operation], reading: Steps[list[Message]]
    ) -> Steps[Exchanged[Message]]:
        if not acks:
            return Exchanged(0, (yield from reading))
        # Then the first step of the read is a script on the queue's own keys.
        yield from self._placing()
        try:
            *done, first = yield [*acks, next(reading)]
        except (RedisError, LayoutError) as error:
            # It keeps what it had counted.
            yield from Begun(reading, error=error)
            raise
        messages = yield from Begun(reading, first)
        return Exchanged(sum(done), messages)
