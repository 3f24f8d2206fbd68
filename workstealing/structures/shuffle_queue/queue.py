"""A queue of many tenants, in which none can hold up the others."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Mapping
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from redis.exceptions import ResponseError

from workstealing.store.operations import Steps, as_layout_error, drive, drive_async
from workstealing.store.paging import Page
from workstealing.structures.shuffle_queue.dead import DeadCommands, DeadMessage
from workstealing.structures.shuffle_queue.deleting import DeletingCommands
from workstealing.structures.shuffle_queue.message import Message, OverdueMessage
from workstealing.structures.shuffle_queue.reading import (
    Nothing,
    Reading,
    checked_consumer,
    checked_count,
    checked_stream,
)
from workstealing.structures.shuffle_queue.settling import Settling
from workstealing.structures.shuffle_queue.stats import StatsCommands
from workstealing.structures.shuffle_queue.waiting import (
    AsyncWaiter,
    Patience,
    checked_block,
    wait,
)
from workstealing.structures.shuffle_queue.writing import Writing

# What a call gives back: the result, or something to await.
_IdT = TypeVar("_IdT")
_MessageT = TypeVar("_MessageT")
_MessagesT = TypeVar("_MessagesT")
_IntT = TypeVar("_IntT")
_BoolT = TypeVar("_BoolT")
_GroupsT = TypeVar("_GroupsT")
_StatsT = TypeVar("_StatsT")
_DeadT = TypeVar("_DeadT")
_OverdueT = TypeVar("_OverdueT")


class _Queue(
    StatsCommands[_StatsT],
    DeadCommands[_DeadT, _IntT],
    DeletingCommands[_IntT],
    Writing,
    Reading,
    Settling,
    Generic[_IdT, _MessageT, _MessagesT, _IntT, _BoolT, _GroupsT, _StatsT, _DeadT, _OverdueT],
):
    """What the blocking and the asyncio form have in common."""

    def write(
        self,
        tenant: str | bytes,
        fields: Mapping[Any, Any],
        deadline: dt.datetime | float | None = None,
        tracking_id: str | bytes | None = None,
    ) -> _IdT:
        """Write a message into the shortest of the tenant's streams.

        Arguments: tenant; fields: names and values, as redis-py takes them, up to 1,000, none named
        ``ws:tenant``, ``ws:deadline`` or ``ws:tracking``; deadline: an aware datetime or Unix
        seconds, from which on, by the server's clock, the message is not delivered any more;
        tracking_id: by which `cancel` finds it; given again, it means the later message. Returns:
        the message's id, "<stream>-<ms>-<sequence>". Errors: ConfigurationError; LayoutError; those
        of redis-py, of a full server for instance: then nothing is written. One round trip, and one
        more after a group has read for the first time; about 10 Redis commands, and up to 3 more
        for each further group.
        """
        written: _IdT = self._run(self.write_steps(tenant, fields, deadline, tracking_id))
        return written

    def read(
        self,
        group: str | bytes,
        consumer: str | bytes,
        block_ms: float = 0,
        prefer_stream: int | None = None,
    ) -> _MessageT:
        """Return the message whose turn it is, or None. Never more than one is taken.

        The streams that have messages for the group take turns, whoever reads. A message stays
        pending until `ack`; `nack` gives it back.

        Arguments: group: it is created when needed, and gets every message that is there; consumer:
        a name of this reader's own; block_ms: how long to wait for a message, 0 for not at all;
        prefer_stream: the number of one that goes first, if it has anything. Errors:
        ConfigurationError; LayoutError. One round trip and about nine Redis commands, however many
        streams there are, if the streams next in turn are those that the read before has seen; two
        more round trips at worst. One more every five seconds, to show that the consumer is alive.
        """
        return self._read(group, consumer, None, block_ms, prefer_stream)  # type: ignore[no-any-return]

    def read_many(
        self,
        group: str | bytes,
        consumer: str | bytes,
        n: int,
        block_ms: float = 0,
        prefer_stream: int | None = None,
    ) -> _MessagesT:
        """Return up to n messages, in turn: one of each stream, and round again.

        Arguments: n: 1 to 1,000; others as of `read`. Returns: a list, empty if nothing came. It
        waits for the first message only. Errors as of `read`. More than 100 are read in pieces of
        up to 100, each by a script of its own, between which others may read too: a fault after the
        first piece ends the call with the messages that were read, and a process that is killed
        then leaves them pending, for the reaper to return. Round trips as of `read` for each piece;
        about six Redis commands a message.
        """
        return self._read(group, consumer, checked_count(n), block_ms, prefer_stream)  # type: ignore[no-any-return]

    def _read(
        self,
        group: str | bytes,
        consumer: str | bytes,
        n: int | None,
        block_ms: float,
        prefer_stream: int | None,
    ) -> Any:
        view = self.view(group)
        consumer = checked_consumer(consumer)
        prefer = checked_stream(prefer_stream)
        patience = Patience(checked_block(block_ms), self.ttl, not self.notify, self.monotonic)

        def look(woken: int | None) -> Steps[list[Message] | Nothing]:
            return self.look_steps(view, consumer, n or 1, prefer, woken)

        return self._read_on(look, patience, n is None)

    def _read_on(self, look: Any, patience: Patience, is_single: bool) -> Any:
        """Look, wait and look again, until something is found or the time is over."""
        raise NotImplementedError

    def ack(self, *messages: Message) -> _IntT:
        """Say that messages are done. What every group has acknowledged is deleted.

        Returns: how many were still pending, whoever had them. Errors: ConfigurationError;
        LayoutError. One round trip for each group and 100 messages, each atomic: those of the
        pieces that a fault or a kill has prevented stay pending, and the reaper returns them. Three
        Redis commands a message with one group, more with several.
        """
        acked: _IntT = self._run(self.ack_steps(messages))
        return acked

    def nack(self, *messages: Message, delay: float = 0.0) -> _IntT:
        """Give messages back, to be delivered again at their streams' turns, to any consumer.

        Arguments: messages; delay: seconds before they may be. Returns: how many were given back:
        not those that have been delivered again since, be it to this consumer. A message that fails
        for ever is given back for ever: `ShuffleQueueReaper` sets it aside past its cap, which is
        its own setting, so that no `nack` decides by another. Errors: ConfigurationError;
        LayoutError. One round trip for each group and 100 messages, in pieces as of `ack`.
        """
        given: _IntT = self._run(self.nack_steps(messages, delay))
        return given

    def extend(self, *messages: Message) -> _IntT:
        """Say that messages are still being worked on, so that the reaper leaves them alone.

        The queue is in use too, so that its ttl starts anew. Returns: how many were still this
        delivery's. Errors: ConfigurationError; LayoutError. One round trip for each group and 100
        messages, in pieces as of `ack`.
        """
        extended: _IntT = self._run(self.extend_steps(messages))
        return extended

    def cancel(self, tracking_id: str | bytes) -> _BoolT:
        """Delete the message of a tracking id, for all groups, so that it is not delivered (again).

        A consumer that works on it now is not stopped; its `ack` does nothing more. Returns:
        whether the message still existed. Errors: ConfigurationError; LayoutError. Two round trips.
        """
        cancelled: _BoolT = self._run(self.cancel_steps(tracking_id))
        return cancelled

    def overdue(self, n: int = 100, start: int = 0) -> _OverdueT:
        """List messages whose deadline has passed and that are still there, the earliest first.

        Nobody is given them any more; the next read that comes by deletes them, or
        `ShuffleQueueReaper`. One that a consumer has in hand is among them. Arguments: n: 1 to
        1,000; start: how many to pass over, for the next page. Returns: a `Page` of
        `OverdueMessage`, with the tracking id of each; its `total` says how many are overdue, and
        its `more` how many come after those listed. Errors: ConfigurationError; LayoutError. One
        round trip.
        """
        overdue: _OverdueT = self._run(self.overdue_steps(n, start))
        return overdue

    def length(self) -> _IntT:
        """Say how many messages all streams hold, whatever has become of them.

        A message counts until every group has acknowledged it; those of the legacy stream count
        too. Errors: LayoutError. One round trip for each 512 streams; an XLEN a stream.
        """
        length: _IntT = self._run(self.length_steps())
        return length

    def groups(self) -> _GroupsT:
        """Return the names of the groups that have ever read, sorted. One round trip."""
        names: _GroupsT = self._run(self.groups_steps())
        return names


class ShuffleQueue(
    _Queue[
        str,
        Message | None,
        list[Message],
        int,
        bool,
        list[str],
        dict[str, Any],
        Page[DeadMessage],
        Page[OverdueMessage],
    ]
):
    """A queue of many tenants over Redis streams, served fairly.

    A tenant's messages go to the shortest of a few streams that are its own by a stable choice; two
    tenants rarely share all of theirs. Readers go round the streams that have messages, one message
    each, so that a tenant with a million messages delays nobody but who shares its streams.
    At least once: what is delivered stays pending until `ack`.

    Arguments: client: a redis.Redis or redis.RedisCluster (`AsyncShuffleQueue` takes an
    asyncio client); name: the queue's; all its keys share one hash slot, and on a cluster a
    name with a lone brace is refused. A stream at the name itself, of other producers, is read too,
    by the group of that same name, so that a plain stream can be moved over without a pause.
    streams and streams_per_tenant: may differ between processes and change at any time, nothing is
    stranded by that. ttl: for how many seconds an unused queue is kept before `QueueExpiry` deletes
    it. notify: whether writes wake those who wait; without it they look ten times a second.
    namespace: whose due index the queue stands in. allow_eviction: names of ``allkeys-*`` policies
    that are accepted although they may evict messages. clock_shift_ms: for tests.

    Makes no connection before the first call, which costs two to four round trips more. Attributes:
    name: the queue's, as a text.

    Source: seed of replicate's shuffle queues (shuffle sharding), with an index of the streams that
    have messages added.
    """

    _is_async_client: Literal[False] = False

    def _run(self, steps: Steps[Any]) -> Any:
        try:
            return drive(self.client, steps)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    def _read_on(self, look: Any, patience: Patience, is_single: bool) -> Any:
        woken = None
        while True:
            found = self._run(look(woken))
            if not isinstance(found, Nothing):
                return found[0] if is_single else found
            seconds = patience.next_seconds(found)
            if seconds is None:
                return None if is_single else []
            woken = wait(self.twin, self.keys, found, seconds)


class AsyncShuffleQueue(
    _Queue[
        Awaitable[str],
        Awaitable[Message | None],
        Awaitable[list[Message]],
        Awaitable[int],
        Awaitable[bool],
        Awaitable[list[str]],
        Awaitable[dict[str, Any]],
        Awaitable[Page[DeadMessage]],
        Awaitable[Page[OverdueMessage]],
    ]
):
    """A `ShuffleQueue` on a redis.asyncio client: every method is awaited."""

    _is_async_client: Literal[True] = True

    @cached_property
    def _waiter(self) -> AsyncWaiter:
        return AsyncWaiter(self.twin)

    async def aclose(self) -> None:
        """Close the connections on which reads have waited."""
        await self._waiter.close()

    async def _run(self, steps: Steps[Any]) -> Any:
        try:
            return await drive_async(self.client, steps)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    async def _read_on(self, look: Any, patience: Patience, is_single: bool) -> Any:
        woken = None
        while True:
            found = await self._run(look(woken))
            if not isinstance(found, Nothing):
                return found[0] if is_single else found
            seconds = patience.next_seconds(found)
            if seconds is None:
                return None if is_single else []
            woken = await self._waiter.wait(self.keys, found, seconds)
