"""The job that returns ended leases and clears away consumed messages, where nobody works now.

The job chooses the time shards; a `Sweeping` of the queue's store sweeps them. Redis's is here.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple, Protocol

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.recruiting.checks import checked_attempts, checked_limit
from workstealing.recruiting.job import Backlog, Job
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import TIMEOUT_SECONDS, Budget
from workstealing.store.connection import Command, checked
from workstealing.store.keys import require_one_slot
from workstealing.store.operations import as_layout_error
from workstealing.store.scripts import load
from workstealing.store.twin import Node
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.time_shard_queue import AsyncTimeShardQueue, TimeShardQueue
from workstealing.structures.time_shard_queue.redis_store import (
    SCRIPTS,
    RedisTimeShards,
    TimeShardNames,
)
from workstealing.structures.time_shard_queue.rotation import FEWEST_WITH_A_QUIET_ONE

__all__ = ["TimeShardSweeper"]

WINDOW = 4
"""A slice looks at this many messages of each kind for each one that it may handle."""
_AT_ONCE = 64
"""One round trip counts this many time shards."""
_LOOKED_AT = 8
"""A slice looks at this many time shards before it chooses one."""


class Swept(NamedTuple):
    """The work of a slice of sweeping, or, in a dry run, the work that it would have done.

    Fields: returned: messages whose lease had ended, waiting again; buried: set aside, because
    their lease had ended too often; cleared: consumed messages removed for good.
    """

    returned: int
    buried: int
    cleared: int

    @property
    def items(self) -> int:
        """All of them together."""
        return self.returned + self.buried + self.cleared


class Unswept(NamedTuple):
    """The messages that wait for a sweeper in one time shard.

    Fields: ended: leases that have ended, consumed messages' included; consumed; oldest_seconds:
    how long ago the first of these leases ended, 0.0 without one.
    """

    ended: int
    consumed: int
    oldest_seconds: float


class Sweeping(Protocol):
    """Sweeps the time shards of one queue. It blocks, and keeps to the slice's time."""

    @property
    def identity(self) -> Hashable:
        """A value that jobs on one database share, and with it a breaker."""
        ...

    def warm_up(self) -> None:
        """Prepare for a first slice without a connection; see `Job.warm_up`."""
        ...

    def sweep(
        self,
        time_shard: int,
        *,
        limit: int,
        max_attempts: int,
        slice: Slice,
        random: Callable[[], float],
        dry_run: bool = False,
    ) -> Swept:
        """Handle at most `limit` messages of a time shard, in one attempt.

        A message whose lease has ended, and which is not consumed, waits again, at the due time of
        its release if there is one. If its attempts have reached max_attempts and it was not
        released, it is set aside. A consumed message is removed with its history.
        Raises: Aborted if another writer came first; then nothing was changed.
        """
        ...

    def unswept(
        self, time_shards: Sequence[int], slice: Slice | None = None, seconds: float | None = None
    ) -> list[Unswept]:
        """Count the messages that wait for a sweeper in each of these time shards.

        Arguments: slice, or seconds: how long it may take.
        """
        ...

    def look(
        self, time_shards: Sequence[int], slice: Slice, random: Callable[[], float]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Look at some of these time shards, a random few, for less than a slice costs.

        Returns: the time shards that it looked at, and those among them with work for a sweeper.
        """
        ...


@singledispatch
def sweeping_of(time_shards: Any) -> Sweeping:
    """Return the `Sweeping` of the time shards that a store has bound.

    A writer of a store registers the sweeping of its time shards:
    ``sweeping_of.register(MyTimeShards, MySweeping)``. Raises: ConfigurationError if no sweeping is
    registered for these time shards. No round trip.
    """
    raise ConfigurationError(
        f"there is no sweeper for {type(time_shards).__name__}: register one with sweeping_of"
    )


class TimeShardSweeper(Job):
    """Sweeps the time shards that neither producers nor consumers touch.

    Arguments: queue: the TimeShardQueue, whose clock also chooses the time shard; limit: the most
    messages a slice handles; max_attempts: how often a message may be taken without a release, by
    default the queue's own; when the last of these leases ends, the message goes to the dead set,
    and nothing is ever dropped; dry_run: count the work, and change nothing; name: of the job, by
    default ``time_shard_sweeper.<queue>``; random: returns a float in [0, 1).

    A message whose lease has ended waits again, its attempts counted. An acknowledged or cancelled
    message is removed with its history. With 6 or more time shards, a slice works in one that no
    producer or consumer touches before the slice must have ended, as long as no clock is a period
    or more from this process's own. Acknowledgements, releases and cancellations write no WATCHed
    key, so only another sweeper, or a consumer with ``drain_all``, can abort the slice. With 6
    there may be no such time shard near the end of a period: then the slice does nothing. With 4 or
    5 there never is one: see `careful`.

    Of several such time shards it takes, at random, one where this process knows of work: a slice
    has left some there, or a count or a look has seen some. If it knows of none, it looks at up to
    8 of them in one round trip (on a cluster, at those of one node).

    One slice: two round trips, in one attempt, and one more if it has to look first. If the look
    finds no work, that one is all.
    """

    def __init__(
        self,
        queue: TimeShardQueue | AsyncTimeShardQueue,
        limit: int = 25,
        *,
        max_attempts: int | None = None,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        if not isinstance(queue, TimeShardQueue | AsyncTimeShardQueue):
            raise ConfigurationError(f"{queue!r} cannot be swept: give a TimeShardQueue")
        self.queue = queue
        self.structures = (queue,)
        self.sweeping = sweeping_of(queue.time_shards)
        self.limit = checked_limit(limit)
        self.max_attempts = (
            queue.max_attempts if max_attempts is None else checked_attempts(max_attempts)
        )
        self.dry_run = dry_run
        self.name = f"time_shard_sweeper.{queue.name}" if name is None else name
        self.dependency: Hashable = self.sweeping.identity
        self._random = random
        self._dirty: set[int] = set()

    @property
    def careful(self) -> bool:
        """Whether there are too few time shards for one that is certainly untouched: 4 or 5.

        Then a slice takes the time shard whose visitors' clocks would have to be the most wrong. If
        a visitor does come, the slice is aborted, and nothing is changed. If clocks differ by less
        than half a period, 5 always have an untouched time shard, and 4 have one only in the middle
        of a period.
        """
        return self.queue.rotation.time_shards < FEWEST_WITH_A_QUIET_ONE

    def perform(self, slice: Slice) -> int:
        """Handle up to ``slice.limit`` messages of one time shard, in one attempt.

        Returns: how many it returned, set aside and cleared (would, on a dry run); 0 where no time
        shard may be touched now. Raises: Aborted if a sweeper or a consumer came first;
        LayoutError; connection faults.
        """
        time_shard = self._choose(slice)
        if time_shard is None:
            return 0
        # Even if the slice is aborted: then another sweeper is at work there.
        self._dirty.discard(time_shard)
        swept = self.sweeping.sweep(
            time_shard,
            limit=slice.limit,
            max_attempts=self.max_attempts,
            slice=slice,
            random=self._random,
            dry_run=bool(self.dry_run),
        )
        if swept.items >= slice.limit:
            self._dirty.add(time_shard)
        return int(swept.items)

    def backlog(self, seconds: float = 5.0) -> Backlog:
        """Count the messages that wait for sweepers in all time shards.

        Arguments: seconds: how long it may take. A message that was acknowledged after its lease
        had ended counts twice. Raises: as `perform`. Two round trips to each node, one more for
        every 64 of its time shards.
        """
        return self._count(range(self.queue.rotation.time_shards), seconds)

    def within_reach(self, seconds: float = 1.0) -> Backlog:
        """Count the messages in the time shards in which a slice may work now.

        Those in the other time shards have to wait until nobody works there. Arguments: seconds:
        how long a slice lasts. Round trips as of `backlog`.
        """
        return self._count(self._workable(seconds), None)

    def _count(self, time_shards: Sequence[int], seconds: float | None) -> Backlog:
        found = self.sweeping.unswept(time_shards, seconds=seconds)
        for time_shard, one in zip(time_shards, found, strict=True):
            self._note(time_shard, is_dirty=bool(one.ended or one.consumed))
        count = sum(one.ended + one.consumed for one in found)
        # Nothing records how long a consumed message has waited.
        age_known = not count or any(one.ended for one in found)
        oldest = max((one.oldest_seconds for one in found), default=0.0)
        return Backlog(count, oldest if age_known else None, "messages to sweep")

    def warm_up(self) -> None:
        """Load the structure's scripts and prepare connections; no round trip."""
        self.sweeping.warm_up()

    def _choose(self, slice: Slice) -> int | None:
        """Return the time shard for this slice, or None if there is none now."""
        found = self._workable(slice.remaining())
        if len(found) < 2:
            return found[0] if found else None
        dirty: Sequence[int] = [time_shard for time_shard in found if time_shard in self._dirty]
        if not dirty:
            seen, dirty = self.sweeping.look(found, slice, self._random)
            for time_shard in seen:
                self._note(time_shard, is_dirty=time_shard in dirty)
            if not dirty:
                slice.observe(oldest_seconds=0.0, backlog=0)
                return None
        # A random one: every other sweeper would choose the safest too.
        return dirty[int(self._random() * len(dirty))]

    def _note(self, time_shard: int, *, is_dirty: bool) -> None:
        (self._dirty.add if is_dirty else self._dirty.discard)(time_shard)

    def _workable(self, seconds: float) -> tuple[int, ...]:
        """Return the time shards in which a slice may work that begins now and lasts so long."""
        rotation, now_ms = self.queue.rotation, math.floor(self.queue.clock.time() * 1000)
        # A slice's EXEC may come late by as much as a time-out.
        lasting_ms = math.ceil((max(0.0, seconds) + TIMEOUT_SECONDS) * 1000)
        choose = rotation.least_touched if self.careful else rotation.untouched
        return choose(now_ms, lasting_ms)


@dataclass(frozen=True, slots=True)
class _Look:
    """The part of a time shard that an attempt has read.

    Fields: now: the server's time in ms; ended: ids and ends in ms of leases that have ended, the
    earliest first; consumed: some ids; released: some entries; consumed_size: how many there are.
    """

    now: int
    ended: list[tuple[bytes, float]]
    consumed: list[bytes]
    released: list[bytes]
    consumed_size: int


@sweeping_of.register(RedisTimeShards)
class RedisSweeping:
    """Sweeps the time shards of one queue on Redis through its twin's one-attempt connections.

    Arguments: time_shards.
    """

    def __init__(self, time_shards: RedisTimeShards) -> None:
        self._time_shards = time_shards
        self._twin = time_shards.twin
        self._names_of = time_shards.names

    @property
    def identity(self) -> Hashable:
        """A value that jobs on one server or cluster share, and with it a breaker."""
        return self._twin.identity

    def warm_up(self) -> None:
        """Load the scripts and prepare connections; no round trip."""
        self._twin.warm_up(SCRIPTS, LAYOUT_SCRIPTS)

    def sweep(
        self,
        time_shard: int,
        *,
        limit: int,
        max_attempts: int,
        slice: Slice,
        random: Callable[[], float] = random.random,
        dry_run: bool = False,
    ) -> Swept:
        """Handle at most `limit` messages of a time shard, in one attempt; see `Sweeping.sweep`.

        Raises: Aborted; LayoutError; connection faults. Two round trips, one where there is nothing
        to do: WATCH and reads of at most `WINDOW` times `limit` entries of each kind; MULTI, the
        script that looks at each once more, EXEC. A server that is out of memory refuses a MULTI:
        then the script runs once without it, which deletes before it writes.
        """
        names = self._names_of(time_shard)
        if not dry_run:
            self._time_shards.require_writable()
        try:
            with attempt(self._twin, *names.watched, slice=slice) as current:
                look = self._read(current.read(*_look_commands(names, WINDOW * limit)))
                _observe(slice, look)
                chosen = _choose(look, limit, random)
                if not chosen:
                    return Swept(0, 0, 0)
                command = self._command(names, max_attempts, chosen, dry_run=dry_run)
                if dry_run:
                    (done,) = current.read(command)
                else:
                    (done,) = current.commit(command)
        except OutOfMemoryError:
            (done,) = self._call(names, [command], Budget(slice.remaining()))
        except ResponseError as error:
            raise _layout_error(error, names) or error from None
        return Swept(*map(int, done))

    def unswept(
        self, time_shards: Sequence[int], slice: Slice | None = None, seconds: float | None = None
    ) -> list[Unswept]:
        """Count the messages that wait in each of these time shards; see `Sweeping.unswept`.

        Raises: connection faults. A round trip to each node for its clock, and one for every 64 of
        its time shards.
        """
        budget = Budget(seconds if slice is None else slice.remaining(), timeout=1.0)
        by_node: defaultdict[Node, list[int]] = defaultdict(list)
        for time_shard in time_shards:
            by_node[self._node_of(time_shard)].append(time_shard)
        found: dict[int, Unswept] = {}
        for node, mine in by_node.items():
            (clock,) = checked(self._twin.call(node, [("TIME",)], budget))
            for first in range(0, len(mine), _AT_ONCE):
                group = mine[first : first + _AT_ONCE]
                found.update(self._count(node, group, self._now(clock), budget))
        return [found[time_shard] for time_shard in time_shards]

    def look(
        self, time_shards: Sequence[int], slice: Slice, random: Callable[[], float] = random.random
    ) -> tuple[list[int], list[int]]:
        """Look at up to 8 of these time shards, of one node; see `Sweeping.look`.

        Raises: connection faults; `sweep` reports a wrong key. One round trip.
        """
        first = int(random() * len(time_shards))
        node = self._node_of(time_shards[first])
        seen = [
            each
            for each in (*time_shards[first:], *time_shards[:first])
            if self._node_of(each) == node
        ][:_LOOKED_AT]
        commands: list[Command] = [("TIME",)]
        for time_shard in seen:
            names = self._names_of(time_shard)
            commands += [
                ("ZRANGE", names.leased, 0, 0, "WITHSCORES"),
                ("EXISTS", names.consumed, names.released),
            ]
        slice.spend(len(commands))
        clock, *replies = self._twin.call(node, commands, Budget(slice.remaining()))
        now = self._now(checked([clock])[0])
        # A server that is still loading sends no ResponseError.
        checked([each for each in replies if not isinstance(each, ResponseError)])
        dirty = []
        for number, time_shard in enumerate(seen):
            leased, litter = replies[2 * number : 2 * number + 2]
            foreign = isinstance(leased, ResponseError) or isinstance(litter, ResponseError)
            if foreign or litter or (leased and float(leased[1]) <= now):
                dirty.append(time_shard)
        return seen, dirty

    def _node_of(self, time_shard: int) -> Node:
        return self._twin.node_of(require_one_slot(self._names_of(time_shard).all))

    def _count(
        self, node: Node, time_shards: list[int], now: int, budget: Budget
    ) -> dict[int, Unswept]:
        commands: list[Command] = []
        for time_shard in time_shards:
            names = self._names_of(time_shard)
            commands += [
                ("ZCOUNT", names.leased, "-inf", now),
                ("ZRANGE", names.leased, 0, 0, "WITHSCORES"),
                ("SCARD", names.consumed),
            ]
        replies = self._twin.call(node, commands, budget)
        for number, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                names = self._names_of(time_shards[number // 3])
                raise _layout_error(reply, names) or reply from None
        checked(replies)
        counted = {}
        for number, time_shard in enumerate(time_shards):
            ended, first, consumed = replies[3 * number : 3 * number + 3]
            oldest = max(0.0, now - float(first[1])) / 1000 if first else 0.0
            counted[time_shard] = Unswept(ended, consumed, oldest)
        return counted

    def _command(
        self, names: TimeShardNames, max_attempts: int, chosen: list[bytes], *, dry_run: bool
    ) -> Command:
        script, keys = load(f"{SCRIPTS}sweep", self._time_shards.clock_shift_ms), names.all
        body = (script.body, len(keys), *keys)
        return ("EVAL", *body, self._time_shards.mark, max_attempts, int(dry_run), *chosen)

    def _read(self, replies: list[Any]) -> _Look:
        clock, leased, consumed, released, size = replies
        now = self._now(clock)
        ends = zip(leased[::2], map(float, leased[1::2]), strict=True)
        ended = [(message_id, end) for message_id, end in ends if end <= now]
        return _Look(now, ended, list(consumed), released, size)

    def _now(self, clock: Sequence[Any]) -> int:
        return int(clock[0]) * 1000 + int(clock[1]) // 1000 + self._time_shards.clock_shift_ms

    def _call(self, names: TimeShardNames, commands: list[Command], budget: Budget) -> list[Any]:
        try:
            return checked(self._twin.call_keys(names.all, commands, budget))
        except ResponseError as error:
            raise as_layout_error(error) or error from None


def _layout_error(error: ResponseError, names: TimeShardNames) -> LayoutError | None:
    """Return the LayoutError that an error reply stands for, or None for any other."""
    if str(error).startswith("WRONGTYPE"):
        key = names.leased.decode(errors="backslashreplace")
        return LayoutError(
            f"the key {key}, or another one of the same time shard, does not hold a part of a time"
            " shard: use another name for the queue, or remove the key; nothing was changed"
        )
    return as_layout_error(error)


def _look_commands(names: TimeShardNames, window: int) -> list[Command]:
    return [
        # This connection gives the clock of the server that holds the keys.
        ("TIME",),
        ("ZRANGE", names.leased, 0, window - 1, "WITHSCORES"),
        ("SRANDMEMBER", names.consumed, window),
        ("ZRANGE", names.released, 0, window - 1),
        ("SCARD", names.consumed),
    ]


def _observe(slice: Slice, look: _Look) -> None:
    oldest = (look.now - look.ended[0][1]) / 1000 if look.ended else 0.0
    slice.observe(oldest_seconds=oldest, backlog=len(look.ended) + look.consumed_size)


def _choose(look: _Look, limit: int, random: Callable[[], float]) -> list[bytes]:
    """Choose at most so many ids and entries, at random, so that two sweepers differ."""
    ended = [b"i" + id_ for id_, _ in look.ended]
    known = set(ended)
    released = [b"r" + e for e in look.released if b"i" + e.partition(b" ")[2] not in known]
    consumed = [b"i" + id_ for id_ in look.consumed]
    chosen: dict[bytes, None] = {}
    # Messages that consumers wait for come first; those that only take room come last.
    for kind in (ended, released, consumed):
        chosen.update(dict.fromkeys(sorted(kind, key=lambda _: random())))
    return list(chosen)[:limit]
