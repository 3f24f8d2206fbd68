"""A TimeShardQueue on Redis: each time shard in a slot of its own, each operation one script."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

from redis.client import NEVER_DECODE
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from workstealing.errors import LayoutError
from workstealing.store.operations import Operation, as_layout_error, driven, driven_async
from workstealing.store.scripts import load
from workstealing.store.twin import Twin, twin_of
from workstealing.structures.layout import Kind, as_text, require_policy
from workstealing.structures.steps import send, send_async
from workstealing.structures.time_shard_queue.names import (
    STRUCTURE,
    VERSION,
    TimeShardNames,
    layout_key,
    mark_of,
    new_fields,
    parse,
)
from workstealing.structures.time_shard_queue.replies import buried, held
from workstealing.structures.time_shard_queue.rotation import Rotation
from workstealing.structures.time_shard_queue.store import Buried, Counts, Due, Entry, Held
from workstealing.structures.time_shard_queue.sweeping import RedisSweeping

_KIND = Kind(
    STRUCTURE,
    "a TimeShardQueue",
    VERSION,
    evicted="a part of a time shard and with it messages",
)
# As bytes, whatever the client makes of replies: messages are any bytes.
_AS_BYTES: dict[str, Any] = {NEVER_DECODE: True}
# How many messages one script leases, so that it does not hold the server for long.
TAKEN_A_PIECE = 100
# And how many dead ones it lists.
LISTED_A_PIECE = 200
_BESIDE = (16, 250)
"""How much litter a take looks at beside what it wants: at first, and where there is much of it."""
Steps = Generator[list[Operation], Any, Any]


class RedisTimeShards(RedisSweeping):
    """The time shards of one queue on a blocking client; see `TimeShards` for what each call does.

    Arguments: client; name; rotation; policies: eviction policies that are accepted;
    clock_shift_ms: for tests. Every call is one round trip and one script; `open` is two the first
    time, three for a new queue, then none; `counts` is one for all. Errors of all: LayoutError for
    what is foreign, newer or of another rotation, in which case nothing was changed; those of
    redis-py.
    """

    def __init__(
        self,
        client: Any,
        name: bytes,
        rotation: Rotation,
        policies: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        self.client = client
        self.name, self.rotation = name, rotation
        self._policies = policies
        self._clock_shift_ms = clock_shift_ms
        self._names: dict[int, TimeShardNames] = {}
        self._opened: Rotation | None = None
        super().__init__(twin_of(client), self.names, mark_of(rotation), clock_shift_ms)

    @property
    def twin(self) -> Twin:
        """The one-attempt connections that jobs work through."""
        return self._twin

    def names(self, time_shard: int) -> TimeShardNames:
        """Return the keys of a time shard."""
        names = self._names.get(time_shard)
        if names is None:
            names = self._names[time_shard] = TimeShardNames(self.name, time_shard)
        return names

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """What its calls raise when the server cannot do them."""
        # No OSError, which redis-py wraps: a TimeoutError may be the host's own.
        return (RedisError, RedisClusterException, LayoutError)

    @property
    def _called(self) -> str:
        return self.name.decode(errors="backslashreplace")

    def open(self, create: bool) -> Any:
        """Read the layout, or write it down; check the server's eviction policy."""
        return self._drive(self._open(create))

    def put(self, time_shard: int, entries: Sequence[Entry]) -> Any:
        """Keep messages; O(log n) each. Three round trips where the time shard has no mark."""
        return self._drive(self._put(time_shard, entries))

    def take(self, time_shard: int, consumer: str, lease_ms: int, n: int, max_attempts: int) -> Any:
        """Lease up to n messages that are due; O(n log N), in rounds of 100, or more for litter."""
        return self._drive(self._take(time_shard, consumer, lease_ms, n, max_attempts))

    def consume(self, time_shard: int, ids: Sequence[str]) -> Any:
        """Never give these messages to anybody again; writes no key that a sweeper WATCHes."""
        return self._perform(self.consume_operation(time_shard, ids))

    def release(self, time_shard: int, message_id: str, token: str | None, due: Due | None) -> Any:
        """End a lease early; writes no key that a sweeper WATCHes."""
        return self._perform(self.release_operation(time_shard, message_id, token, due))

    def extend(self, time_shard: int, message_id: str, token: str, lease_ms: int) -> Any:
        """Let a lease last longer; writes no key that a sweeper WATCHes."""
        return self._perform(self.extend_operation(time_shard, message_id, token, lease_ms))

    def counts(self, time_shards: Sequence[int]) -> Any:
        """Count what is in some time shards; O(log n) each."""
        return self._drive(self._counts(time_shards))

    def dead(self, time_shard: int, n: int) -> Any:
        """List what was set aside; O(n), a round trip for each 200."""
        return self._drive(self._dead(time_shard, n))

    def revive(self, time_shard: int, ids: Sequence[str]) -> Any:
        """Let dead messages wait again."""
        names = self.names(time_shard)
        keys = (names.waiting, names.history, names.consumed, names.dead)
        return self._run("time_shard_revive", keys, time_shard, ids, int)

    def discard(self, time_shard: int, ids: Sequence[str]) -> Any:
        """Remove dead messages for good."""
        names = self.names(time_shard)
        keys = (names.messages, names.history, names.consumed, names.dead)
        return self._run("time_shard_discard", keys, time_shard, ids, int)

    def drop(self) -> Any:
        """Remove all time shards and the layout; the server frees their memory in its own time."""
        return self._drive(self._drop())

    def consume_operation(self, time_shard: int, ids: Sequence[str]) -> Operation:
        """Return what `consume` performs."""
        names = self.names(time_shard)
        keys = (names.messages, names.consumed)
        return self._operation("time_shard_consume", keys, time_shard, ids, int)

    def release_operation(
        self, time_shard: int, message_id: str, token: str | None, due: Due | None
    ) -> Operation:
        """Return what `release` performs."""
        names = self.names(time_shard)
        keys = (names.history, names.consumed, names.dead, names.released)
        when = ("", 0) if due is None else (due.ms, int(due.from_now))
        args = (message_id, token or "", *when)
        return self._operation("time_shard_release", keys, time_shard, args, bool)

    def extend_operation(
        self, time_shard: int, message_id: str, token: str, lease_ms: int
    ) -> Operation:
        """Return what `extend` performs."""
        names = self.names(time_shard)
        keys = (names.leased, names.history, names.consumed, names.released)
        args = (message_id, token, lease_ms)
        return self._operation("time_shard_extend", keys, time_shard, args, bool)

    def _operation(
        self,
        script: str,
        keys: tuple[bytes, ...],
        time_shard: int,
        args: Sequence[Any],
        read: Callable[[Any], Any],
    ) -> Operation:
        return Operation(
            load(script, self._clock_shift_ms),
            (self.names(time_shard).mark, *keys),
            # Not as the client's own encoding has it: what is read is UTF-8.
            tuple(each.encode() if isinstance(each, str) else each for each in (self._mark, *args)),
            read,
        )

    def _run(self, *parts: Any) -> Any:
        return self._perform(self._operation(*parts))

    def _open(self, create: bool) -> Steps:
        if self._opened is not None:
            return self._opened
        key = layout_key(self.name)
        (rotation,) = yield [_open_layout(key, ())]
        if rotation is None and not create:
            return None
        facts = Operation(load("server_facts"), (key,), (), lambda reply: as_text(reply[0]))
        (policy,) = yield [facts]
        require_policy(_KIND, policy, self._policies)
        if rotation is None:
            (rotation,) = yield [_open_layout(key, new_fields(self.rotation))]
        if rotation == self.rotation:
            # Of another one the caller is told, and it may be gone by the next call.
            self._opened = rotation
        return rotation

    def _put(self, time_shard: int, entries: Sequence[Entry]) -> Steps:
        names = self.names(time_shard)
        parts = [
            part
            for entry in entries
            for part in (entry.id, entry.message, entry.due.ms, int(entry.due.from_now))
        ]
        for seen in (0, 1):
            args = (seen, *parts)
            keys = (names.waiting, names.messages)
            (new,) = yield [self._operation("time_shard_put", keys, time_shard, args, int)]
            if new >= 0:
                return
            # Its first message ever, or since the server was flushed or the queue was dropped.
            (found,) = yield [_open_layout(layout_key(self.name), new_fields(self.rotation))]
            self.rotation.require(found, self._called)

    def _drop(self) -> Steps:
        key, rotation = layout_key(self.name), self.rotation
        (found,) = yield [_open_layout(key, (), dropped=True)]
        rotation.require(found, self._called)
        facts = (rotation.time_shards, rotation.period_ms)
        # From now on nobody opens it, nor puts into a time shard that is gone already; and as long
        # as anything is left, the layout says how many time shards to look for.
        yield [Operation(load("time_shard_drop_layout"), (key,), (*facts, 0), int)]
        self._opened = None
        count = 0
        for time_shard in range(rotation.time_shards):
            keys = self.names(time_shard).all[1:]
            (gone,) = yield [self._operation("time_shard_drop", keys, time_shard, (), int)]
            count += gone
        yield [Operation(load("time_shard_drop_layout"), (key,), (*facts, 1), int)]
        return count

    def _take(
        self, time_shard: int, consumer: str, lease_ms: int, n: int, max_attempts: int
    ) -> Steps:
        keys = self.names(time_shard).all[1:]
        taken: list[Held] = []
        more, (beside, later) = True, _BESIDE
        while more and len(taken) < n:
            wanted = min(n - len(taken), TAKEN_A_PIECE)
            args = (consumer, lease_ms, wanted, max_attempts, beside)
            # Each round that leaves more to be looked at has cleared something away.
            try:
                ((more, some),) = yield [
                    self._operation("time_shard_take", keys, time_shard, args, held)
                ]
            except self.faults:
                if not taken:
                    raise
                break
            taken += some
            # A piece that is full leaves the rest to the next.
            more = more or len(some) == wanted
            beside = later
        return taken

    def _dead(self, time_shard: int, n: int) -> Steps:
        names = self.names(time_shard)
        keys = (names.messages, names.history, names.consumed, names.dead)
        found: list[Buried] = []
        first, looked_at = 0, LISTED_A_PIECE
        while len(found) < n and looked_at == LISTED_A_PIECE:
            args = (LISTED_A_PIECE, first)
            operation = self._operation("time_shard_dead", keys, time_shard, args, _same)
            ((looked_at, flat),) = yield [operation]
            found += buried(flat)
            first += looked_at
        return found[:n]

    def _counts(self, time_shards: Sequence[int]) -> Steps:
        operations = []
        for time_shard in time_shards:
            names = self.names(time_shard)
            keys = (names.waiting, names.leased, names.consumed, names.released, names.dead)
            operations.append(
                self._operation("time_shard_counts", keys, time_shard, (), Counts._make)
            )
        return (yield operations) if operations else []

    def _perform(self, operation: Operation) -> Any:
        try:
            try:
                reply = self.client.execute_command(*operation.by_digest(), **_AS_BYTES)
            except NoScriptError:
                reply = self.client.execute_command(*operation.by_text(), **_AS_BYTES)
        except ResponseError as error:
            raise as_layout_error(error) or error from None
        return operation.read(reply)

    def _drive(self, generator: Steps) -> Any:
        return driven(generator, self._send)

    def _send(self, operations: list[Operation]) -> Any:
        if len(operations) == 1:
            return [self._perform(operations[0])]
        return send(self.client, operations)


class AsyncRedisTimeShards(RedisTimeShards):
    """The time shards of one queue on a redis.asyncio client; sweeping is blocking even so."""

    async def _perform(self, operation: Operation) -> Any:
        try:
            try:
                reply = await self.client.execute_command(*operation.by_digest(), **_AS_BYTES)
            except NoScriptError:
                reply = await self.client.execute_command(*operation.by_text(), **_AS_BYTES)
        except ResponseError as error:
            raise as_layout_error(error) or error from None
        return operation.read(reply)

    async def _drive(self, generator: Steps) -> Any:
        return await driven_async(generator, self._send)

    async def _send(self, operations: list[Operation]) -> Any:
        if len(operations) == 1:
            return [await self._perform(operations[0])]
        return await send_async(self.client, operations)


def _same(reply: Any) -> Any:
    return reply


def _open_layout(key: bytes, fields: tuple[str | int, ...], *, dropped: bool = False) -> Operation:
    return Operation(
        load("layout_open"), (key,), fields, lambda reply: parse(key, reply, dropped=dropped)
    )
