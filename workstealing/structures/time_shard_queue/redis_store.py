"""TimeShardQueues on Redis: each time shard in a slot of its own, each operation one script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, Literal, Self, TypeVar

from redis.exceptions import RedisClusterException, RedisError

from workstealing.errors import LayoutError
from workstealing.store.fleet import AnyFleet, placed
from workstealing.store.grants import Asking, AsynchronousAsks, BlockingAsks
from workstealing.store.job_client import (
    AsyncClient,
    BlockingClient,
    ClientT,
    JobClient,
    job_client_for,
)
from workstealing.store.keys import key_slot, spread_tag
from workstealing.store.operations import (
    AS_BYTES,
    AsynchronousWaiting,
    BlockingWaiting,
    Operation,
    Steps,
)
from workstealing.store.scripts import load
from workstealing.store.valkey_clients import redis_client
from workstealing.structures.layout import (
    Kind,
    Versioned,
    ask_policy,
    checked_policies,
    read_pairs,
    require_policy,
)
from workstealing.structures.stored import stored_number
from workstealing.structures.structure import inspect_steps
from workstealing.structures.time_shard_queue.redis_dedupe import RedisDedupe
from workstealing.structures.time_shard_queue.redis_waiting import RedisWaiting
from workstealing.structures.time_shard_queue.rotation import (
    FEWEST_TIME_SHARDS,
    MOST_TIME_SHARDS,
    Rotation,
)
from workstealing.structures.time_shard_queue.store import (
    AskedTakes,
    Buried,
    Due,
    Entry,
    Held,
    TimeShardCounts,
    new_id,
)

T = TypeVar("T")

KIND = Kind(
    "time_shard_queue", "a TimeShardQueue", evicted="a part of a time shard and with it messages"
)
SCRIPTS = "time_shard_queue/"
# How many messages one script leases, so that it does not hold the server for long.
TAKEN_A_PIECE = 100
# And how many dead ones it lists.
LISTED_A_PIECE = 200
_BESIDE = (16, 250)
"""How many more messages a take looks at than it wants, for litter: at first, and then."""

# For how long a take may be under way, and its receipt is kept at most.
UNDER_WAY_MS = 60_000
_NO_MARK = -1
"""The answer of a put to a time shard without a mark."""
# A process remembers the receipts of so many messages.
_RECEIPTS_KNOWN = 1000


class TimeShardNames:
    """The keys of one time shard, all in its own slot; see the catalogue in ``lua/README.md``.

    Arguments:
        name: the queue's.
        time_shard: 0 and up.
    """

    def __init__(self, name: bytes, time_shard: int) -> None:
        prefix = b"{%s}:ws:time_shard:" % spread_tag(name, time_shard)
        end = b":%d:%s" % (time_shard, name)
        self._taken, self._barred, self._end = prefix + b"taken.", prefix + b"barred.", end
        self.mark = prefix + b"mark" + end
        self.waiting = prefix + b"waiting" + end
        self.leased = prefix + b"leased" + end
        self.messages = prefix + b"messages" + end
        self.history = prefix + b"history" + end
        self.consumed = prefix + b"consumed" + end
        self.released = prefix + b"released" + end
        self.dead = prefix + b"dead" + end
        self.notifications = prefix + b"notifications" + end
        self.watched = (self.waiting, self.leased)
        """The keys that the sweeper WATCHes: acknowledgements and releases write none of them."""
        self.all = (
            *(self.mark, self.waiting, self.leased, self.messages, self.history),
            *(self.consumed, self.released, self.dead),
        )

    @property
    def slot(self) -> int:
        """The hash slot of all of them."""
        return key_slot(self.mark)

    def receipt(self, nonce: bytes) -> bytes:
        """Return the key that says what was taken with a nonce."""
        return self._taken + nonce + self._end

    def bar(self, message_id: bytes) -> bytes:
        """Return the key that bars the put of a message with a dedupe key."""
        return self._barred + message_id + self._end


def layout_key(name: bytes) -> bytes:
    """Return the key of a queue's layout."""
    return b"ws:time_shard_queue:layout:" + name


def read_rotation(key: bytes, reply: Any, *, deleted: bool = False) -> Versioned[Rotation] | None:
    """Return the rotation that a layout says, None without a layout.

    Arguments:
        key: of the layout.
        reply: HGETALL's.
        deleted: whether the queue may be one that is being deleted.

    Raises: LayoutError for any other layout. No round trip.
    """
    called = f"the TimeShardQueue at {key.decode(errors='backslashreplace')}"

    def own(pairs: Mapping[str, str]) -> Rotation:
        if "dropping" in pairs and not deleted:
            raise LayoutError(
                f"{called} is being deleted: if the call that began it was cut off, call delete()"
                " once more"
            )
        shards = pairs["time_shards"]
        return Rotation(
            stored_number(key, "time_shards", shards, FEWEST_TIME_SHARDS, MOST_TIME_SHARDS),
            stored_number(key, "period_ms", pairs["period_ms"], 1),
        )

    return read_pairs(KIND, key, called, reply, own)


class RedisTimeShards(RedisWaiting, RedisDedupe):
    """The time shards of one queue on Redis; see `TimeShards` for the methods.

    Arguments:
        job_client: the one-attempt connections that jobs use.
        policies: eviction policies that are accepted.
        clock_shift_ms: for tests.

    Every call is one round trip and one script; `open` is two the first time, three for a new
    queue, then none; `counts` is one for all. Every call raises LayoutError for foreign or newer
    data and for another rotation, and then has changed nothing. It also raises redis-py's errors.
    """

    def __init__(
        self,
        job_client: JobClient,
        name: bytes,
        rotation: Rotation,
        policies: Collection[str] = (),
        clock_shift_ms: int = 0,
    ) -> None:
        self.job_client = job_client
        self.name, self.rotation = name, rotation
        self.clock_shift_ms = clock_shift_ms
        self._policies = policies
        self._names: dict[int, TimeShardNames] = {}
        # By message, the receipt of the take that has leased it.
        self._receipts: dict[str, bytes] = {}
        self._opened: Versioned[Rotation] | None = None
        self.mark = self._mark_of(KIND.version)
        """The mark that each time shard must have: `version:time shards:period in ms`."""

    def names(self, time_shard: int) -> TimeShardNames:
        """Return the keys of a time shard."""
        names = self._names.get(time_shard)
        if names is None:
            names = self._names[time_shard] = TimeShardNames(self.name, time_shard)
        return names

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """The errors by which the server says that it cannot do a step."""
        # No OSError, which redis-py wraps: a TimeoutError may be the host's own.
        return (RedisError, RedisClusterException, LayoutError)

    def require_writable(self) -> None:
        """Raise a LayoutError if the layout has been read, and may only be read."""
        if self._opened is not None:
            self._opened.require_writable()

    def open(self, create: bool = False, only_read: bool = False) -> Steps[Rotation | None]:
        """Read the layout, or write it down; check the server's eviction policy."""
        opened = self._opened
        if opened is None:
            opened = yield from self._open(create)
            if opened is None:
                return None
        if not only_read:
            opened.require_writable()
        return opened.own

    def put(self, time_shard: int, entries: Sequence[Entry], now_s: float) -> Steps[list[str]]:
        """Keep messages; O(log n) each. Three round trips if the time shard has no mark."""
        ids = [new_id(time_shard, now_s, number) for number in range(len(entries))]
        yield from self.put_as(time_shard, ids, entries)
        return ids

    def put_as(
        self,
        time_shard: int,
        ids: Sequence[str],
        entries: Sequence[Entry],
        claimed_ms: int | None = None,
    ) -> Steps[int]:
        """Keep messages under ids; as `put`.

        Arguments:
            claimed_ms: of one with a dedupe key: when it was claimed, by its note's server.

        Returns: how many are new; less than 0 if the message is barred, or comes more than a minute
        from its claim.
        """
        names = self.names(time_shard)
        parts = [
            part
            for id_, (message, due) in zip(ids, entries, strict=True)
            for part in (id_, message, due.ms, int(due.from_now))
        ]
        keys: tuple[bytes, ...] = (names.waiting, names.messages, names.notifications)
        if claimed_ms is not None:
            keys = (*keys, names.bar(ids[0].encode()))
        claimed = "" if claimed_ms is None else claimed_ms
        new = _NO_MARK
        for seen in (0, 1):
            new = yield self._operation("put", keys, time_shard, (seen, claimed, *parts), int)
            if new != _NO_MARK:
                break
            # The queue's first message ever, or since the server was flushed or the queue was
            # deleted.
            found = yield self._layout(new=True)
            self._require(found)
        return new

    def take(
        self,
        time_shard: int,
        consumer: str,
        lease_ms: int,
        n: int,
        max_attempts: int,
        *,
        is_turn: bool,  # noqa: ARG002 - a script sees all producers' messages at any time
        asked: AskedTakes | None = None,
    ) -> Steps[list[Held]]:
        """Lease up to n messages that are due; O(n log N), in rounds of 100, or more for litter."""
        asked = AskedTakes() if asked is None else asked
        names = self.names(time_shard)
        taken: list[Held] = []
        more, (beside, later) = True, _BESIDE
        while more and len(taken) < n:
            wanted = min(n - len(taken), TAKEN_A_PIECE)
            kept_ms = min(lease_ms, UNDER_WAY_MS)
            args = (consumer, lease_ms, wanted, max_attempts, beside, kept_ms)
            nonce = asked.another(time_shard)
            receipt = names.receipt(nonce)
            keys = (*names.all[1:], receipt)
            # Each round that leaves more to be looked at has cleared something away.
            try:
                more, some = yield self._operation("take", keys, time_shard, args, _held)
            except self.faults as error:
                if not taken:
                    raise
                asked.note_cut((time_shard, nonce), error)
                break
            taken += some
            if some:
                self._note(some, receipt)
            else:
                asked.receipts.pop()
            # A piece that is full leaves the rest to the next.
            more = more or len(some) == wanted
            beside = later
        return taken

    def _note(self, held: Sequence[Held], receipt: bytes) -> None:
        """Remember the receipt of messages: who has them in hand, needs it no more."""
        for each in held:
            self._receipts[each.id] = receipt
        # Of those that others acknowledge, the server drops the receipts in its own time.
        while len(self._receipts) > _RECEIPTS_KNOWN:
            with contextlib.suppress(KeyError, RuntimeError, StopIteration):
                self._receipts.pop(next(iter(self._receipts)))

    def give_back(self, asked: AskedTakes) -> Steps[int]:
        """End the leases of a call by its nonces alone; one round trip."""
        operations = []
        for time_shard, nonce in asked.receipts:
            names = self.names(time_shard)
            notes = (names.history, names.consumed, names.dead, names.released)
            keys = (*notes, names.notifications, names.receipt(nonce))
            operations.append(self._operation("withdraw", keys, time_shard, (UNDER_WAY_MS,), int))
        return sum((yield operations)) if operations else 0

    def consume(self, time_shard: int, ids: Sequence[str]) -> Steps[int]:
        """Mark messages as consumed; writes no key that a sweeper WATCHes."""
        names = self.names(time_shard)
        receipts = {self._receipts.pop(each, None) for each in ids} - {None}
        keys: tuple[Any, ...] = (names.messages, names.consumed, *receipts)
        done: int = yield self._operation("consume", keys, time_shard, ids, int)
        return done

    def release(
        self, time_shard: int, message_id: str, token: str | None, due: Due | None
    ) -> Steps[bool]:
        """End a lease early; writes no key that a sweeper WATCHes."""
        names = self.names(time_shard)
        notes = (names.history, names.consumed, names.dead, names.released)
        keys = (*notes, names.notifications)
        when = ("", 0) if due is None else (due.ms, int(due.from_now))
        args = (message_id, token or "", *when)
        done: bool = yield self._operation("release", keys, time_shard, args, bool)
        return done

    def extend(self, time_shard: int, message_id: str, token: str, lease_ms: int) -> Steps[bool]:
        """Let a lease last longer; writes no key that a sweeper WATCHes."""
        names = self.names(time_shard)
        keys = (names.leased, names.history, names.consumed, names.released)
        args = (message_id, token, lease_ms)
        done: bool = yield self._operation("extend", keys, time_shard, args, bool)
        return done

    def counts(self, time_shards: Sequence[int]) -> Steps[list[TimeShardCounts]]:
        """Count the messages of some time shards; O(log n) each."""
        operations = []
        for time_shard in time_shards:
            names = self.names(time_shard)
            keys = (names.waiting, names.leased, names.consumed, names.released, names.dead)
            operations.append(
                self._operation("counts", keys, time_shard, (), TimeShardCounts._make)
            )
        counted: list[TimeShardCounts] = yield operations
        return counted

    def dead(self, time_shard: int, n: int) -> Steps[list[Buried]]:
        """List the dead set; O(n), a round trip for each 200."""
        names = self.names(time_shard)
        keys = (names.messages, names.history, names.consumed, names.dead)
        found: list[Buried] = []
        first, looked_at = 0, LISTED_A_PIECE
        while len(found) < n and looked_at == LISTED_A_PIECE:
            args = (LISTED_A_PIECE, first)
            looked_at, some = yield self._operation("dead", keys, time_shard, args, _buried)
            found += some
            first += looked_at
        return found[:n]

    def revive(self, time_shard: int, ids: Collection[str]) -> Steps[int]:
        """Let dead messages wait again."""
        names = self.names(time_shard)
        notes = (names.waiting, names.history, names.consumed, names.dead)
        keys = (*notes, names.notifications)
        done: int = yield self._operation("revive", keys, time_shard, tuple(ids), int)
        return done

    def discard(self, time_shard: int, ids: Collection[str]) -> Steps[int]:
        """Remove dead messages for good."""
        names = self.names(time_shard)
        keys = (names.messages, names.history, names.consumed, names.dead)
        done: int = yield self._operation("discard", keys, time_shard, tuple(ids), int)
        return done

    def delete(self) -> Steps[int]:
        """Remove all time shards and the layout; the server frees their memory in its own time."""
        found = yield self._layout(deleted=True)
        self._require(found)
        # From now on nobody opens it, nor puts into a time shard that is gone already; and as long
        # as anything is left, the layout says how many time shards to look for.
        yield self._delete_layout(is_empty=False)
        self._opened = None
        count = 0
        for time_shard in range(self.rotation.time_shards):
            names = self.names(time_shard)
            keys = (*names.all[1:], names.notifications)
            count += yield self._operation("delete", keys, time_shard, (), int)
        yield self._delete_layout(is_empty=True)
        self.mark = self._mark_of(KIND.version)
        return count

    def _open(self, create: bool) -> Steps[Versioned[Rotation] | None]:
        found: Versioned[Rotation] | None = yield self._layout()
        if found is None and not create:
            return None
        policy = yield from ask_policy(layout_key(self.name))
        require_policy(KIND, policy, self._policies)
        if found is None:
            found = yield self._layout(new=True)
            assert found is not None
        if found.own == self.rotation:
            # Of another one the caller is told, and it may be gone by the next call.
            self._opened = found
            self.mark = self._mark_of(found.version)
        return found

    def _require(self, found: Versioned[Rotation] | None) -> None:
        if found is not None:
            self.rotation.require(found.own, self.name.decode(errors="backslashreplace"))
            found.require_writable()
            self.mark = self._mark_of(found.version)

    def _mark_of(self, version: int) -> str:
        return f"{version}:{self.rotation.time_shards}:{self.rotation.period_ms}"

    def _layout(self, *, new: bool = False, deleted: bool = False) -> Operation:
        key, rotation = layout_key(self.name), self.rotation
        own = ("time_shards", rotation.time_shards, "period_ms", rotation.period_ms)
        return Operation(
            load("layout/open"),
            (key,),
            KIND.fields(*own) if new else (),
            lambda reply: read_rotation(key, reply, deleted=deleted),
            AS_BYTES,
        )

    def _delete_layout(self, *, is_empty: bool) -> Operation:
        args = (self.rotation.time_shards, self.rotation.period_ms, int(is_empty))
        return Operation(load(f"{SCRIPTS}delete_layout"), (layout_key(self.name),), args)

    def _operation(
        self,
        script: str,
        keys: tuple[bytes, ...],
        time_shard: int,
        args: Sequence[Any],
        read: Callable[[Any], Any],
    ) -> Operation:
        return Operation(
            load(SCRIPTS + script, self.clock_shift_ms),
            (self.names(time_shard).mark, *keys),
            # The scripts' texts are UTF-8, whatever the client's own encoding is.
            tuple(each.encode() if isinstance(each, str) else each for each in (self.mark, *args)),
            read,
            # Messages are any bytes, so replies are never decoded.
            AS_BYTES,
        )


class _EitherRedisStore(Generic[ClientT]):
    def __init__(
        self, client: ClientT, *, allow_eviction: Collection[str] = (), clock_shift_ms: int = 0
    ) -> None:
        self._policies = checked_policies(allow_eviction)
        self._clock_shift_ms = clock_shift_ms
        client = redis_client(client)
        self.client: Any = client
        if not isinstance(client, AnyFleet):
            self.job_client: JobClient = job_client_for(self, client)

    def placed(self, name: bytes) -> Self:
        """Return the store of a queue: on a fleet, that on the node of the queue's name."""
        client = placed(self.client, name)
        if client is self.client:
            return self
        shift = self._clock_shift_ms
        return type(self)(client, allow_eviction=self._policies, clock_shift_ms=shift)

    def bind(self, name: bytes, rotation: Rotation) -> RedisTimeShards:
        """Return the time shards of a queue; no round trip."""
        return RedisTimeShards(
            self.job_client, name, rotation, self._policies, self._clock_shift_ms
        )

    def inspect(self, steps: Steps[T], seconds: float) -> T:
        """Run steps on one-attempt connections, for so many seconds at most; see `Store`."""
        return inspect_steps(self.job_client, steps, seconds)


class RedisStore(_EitherRedisStore[BlockingClient], BlockingAsks, BlockingWaiting):
    """Keeps TimeShardQueues on a Redis server or cluster.

    Arguments:
        client: a redis.Redis or redis.RedisCluster (`AsyncRedisStore` takes an asyncio client).
        allow_eviction: ``allkeys-*`` policies that are accepted although they may evict messages.
        clock_shift_ms: for tests, how far the scripts' clock is ahead of the server's.

    Raises: ConfigurationError for anything else.
    """

    @property
    def asynchronous(self) -> Literal[False]:
        """Whether what `run` returns must be awaited."""
        return False

    def run(self, steps: Steps[T]) -> T:
        """Run steps on the client; see `Store`."""
        return self._run(steps)

    def ask(self, asking: Asking[T]) -> T:
        """Run steps that ask for leases; if that is interrupted, give them back."""
        return self._ask(asking)


class AsyncRedisStore(_EitherRedisStore[AsyncClient], AsynchronousAsks, AsynchronousWaiting):
    """Keeps TimeShardQueues on a redis.asyncio client; see `RedisStore`."""

    @property
    def asynchronous(self) -> Literal[True]:
        """Whether what `run` returns must be awaited."""
        return True

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs steps on the client; see `Store`."""
        return self._run(steps)

    def ask(self, asking: Asking[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that runs steps that ask for leases; see `RedisStore.ask`."""
        return self._ask(asking)


def _held(reply: list[Any]) -> tuple[bool, list[Held]]:
    """Read the reply of `take`: whether more messages are to be looked at, and the taken ones."""
    more, ends, *flat = reply
    found = [
        Held(_text(id_), message, int(due), attempts, _text(token), int(ends))
        for id_, message, due, attempts, token in _groups(flat, 5)
    ]
    return more == 1, found


def _buried(reply: list[Any]) -> tuple[int, list[Buried]]:
    """Read the reply of `dead`: how many were looked at, and the dead ones."""
    looked_at, flat = reply
    found = [
        Buried(_text(id_), message, int(due), attempts, int(float(since)), _text(consumer))
        for id_, since, message, due, attempts, consumer in _groups(flat, 6)
    ]
    return looked_at, sorted(found, key=itemgetter(4))


def _groups(flat: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [flat[start : start + size] for start in range(0, len(flat), size)]


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
