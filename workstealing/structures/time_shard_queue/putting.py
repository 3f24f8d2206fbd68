"""TimeShardPutting: the operations by which messages come into the producers' time shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.exceptions import DataError

from workstealing.clock import Duration, WallClock
from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Steps, operation
from workstealing.structures.queue_messages import checked_dedupe
from workstealing.structures.time_shard_queue.rotation import Rotation
from workstealing.structures.time_shard_queue.store import (
    Due,
    DueTime,
    Entry,
    TimeShards,
    due_of,
    message_bytes,
)

PUT_A_PIECE = 100
"""How many messages one script of the store is given, so that none holds the server for long."""


class TimeShardPutting:
    """The operations `put` and `put_many`."""

    clock: WallClock
    name: str
    rotation: Rotation
    store: Any
    time_shards: TimeShards

    @operation
    def put(
        self,
        message: str | bytes,
        due: DueTime = None,
        *,
        dedupe: tuple[str | bytes, Duration] | None = None,
    ) -> Steps[str]:
        """Put a message into the producers' time shard.

        Arguments:
            message: bytes, or text, kept as UTF-8.
            due: when it may first be taken: an aware datetime, Unix seconds, or a timedelta from
                now; None: now.
            dedupe: a key, and for how many seconds (or a timedelta) a further message with this key
                is not put as long as this one is in the queue, in whichever time shard. Every end
                of the message frees the key; so does its being set aside. With Redis only.

        The store's clock judges the due time, never this process's. Returns: the message's id; that
        of the earlier message if the dedupe key is in use. Raises: ConfigurationError; LayoutError;
        with Redis, OutOfMemoryError if the server is full; Aborted if too many producers put
        messages with one dedupe key at once, or nodes' clocks are over a minute apart. One round
        trip; three for the first message of a time shard. With dedupe two, four if an earlier
        message with the key has ended.

        A put with dedupe whose reply was lost may be made again: it is answered by the message that
        was put, or puts it, after 0.2 seconds.
        """
        key = None if dedupe is None else checked_dedupe(dedupe)
        if key is not None and not hasattr(self.time_shards, "put_once"):
            raise ConfigurationError(
                f"dedupe={dedupe!r} is not possible with a {type(self.store).__name__}, which would"
                " need a lightweight transaction, and a second partition, for each put: use a"
                " RedisStore, or put without dedupe and make the work idempotent"
            )
        return self._putting(Entry(message_bytes(message), due_of(due)), key)

    @operation
    def put_many(
        self, messages: Iterable[str | bytes | tuple[str | bytes, DueTime]], due: DueTime = None
    ) -> Steps[list[str]]:
        """Put messages into the producers' time shard, up to 100 at once.

        Arguments:
            messages: each as of `put`, or a pair of one and a due time of its own.
            due: of the messages without one of their own, as of `put`.

        Of messages with the same due time, the one that comes first here is taken first. Returns:
        their ids, in order. Raises: as `put`. With Redis, one round trip for each 100, each atomic:
        if a fault ends the call after the first, the messages of those before are put. With
        Cassandra each message is an insert of its own.
        """
        if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
            raise ConfigurationError(f"{messages!r} are no messages: give a list of bytes or text")
        usual = due_of(due)
        return self._putting_many([_entry(each, usual) for each in messages])

    def _opening(self, create: bool = False, only_read: bool = False) -> Steps[None]:
        # Only a put writes down the layout.
        found = yield from self.time_shards.open(create, only_read)
        self.rotation.require(found, self.name)

    def _putting(self, entry: Entry, dedupe: tuple[bytes, int] | None) -> Steps[str]:
        if dedupe is None:
            (message_id,) = yield from self._putting_many([entry])
            return message_id
        yield from self._opening(create=True)
        now_s = self.clock.time()
        time_shard = self.rotation.producing(int(now_s * 1000))
        shards: Any = self.time_shards
        return (yield from shards.put_once(time_shard, entry, now_s, *dedupe))  # type: ignore[no-any-return]

    def _putting_many(self, entries: list[Entry]) -> Steps[list[str]]:
        ids: list[str] = []
        if entries:
            yield from self._opening(create=True)
        last_s = 0.0
        for first in range(0, len(entries), PUT_A_PIECE):
            # A clock that has not gone on is no reason to put the later ones before.
            last_s = now_s = max(self.clock.time(), last_s + 2 * PUT_A_PIECE / 1e6)
            time_shard = self.rotation.producing(int(now_s * 1000))
            some = entries[first : first + PUT_A_PIECE]
            ids += yield from self.time_shards.put(time_shard, some, now_s)
        return ids


def _entry(message: Any, due: Due) -> Entry:
    """Return a message of a `put_many` with its due time. Raises: ConfigurationError."""
    if isinstance(message, tuple):
        if len(message) != 2:
            raise ConfigurationError(
                f"{message!r} is no message to be put: give bytes or text, or a pair of it and its"
                " due time"
            )
        return Entry(message_bytes(message[0]), due_of(message[1]))
    return Entry(message_bytes(message), due)


def is_utf8(text: str | bytes) -> bool:
    """Return whether a text can be sent as UTF-8; bytes always can."""
    try:
        to_bytes(text)
    except DataError:
        return False
    return True
