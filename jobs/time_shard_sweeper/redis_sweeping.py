"""Sweeps time shards on Redis: one attempt, by WATCH and a script within MULTI."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.errors import LayoutError
from workstealing.jobs.time_shard_sweeper.job import Swept, Unswept, sweeping_of
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.job_client import Node
from workstealing.store.keys import require_one_slot
from workstealing.store.scripts import load
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.stored import stored_number
from workstealing.structures.time_shard_queue.redis_store import (
    SCRIPTS,
    RedisTimeShards,
    TimeShardNames,
)

WINDOW = 4
"""A slice looks at this many messages of each kind for each one that it may handle."""
_AT_ONCE = 64
"""One round trip counts this many time shards."""
_LOOKED_AT = 8
"""A slice looks at this many time shards before it chooses one."""


@dataclass(frozen=True, slots=True)
class _TimeShardPart:
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
    """Sweeps one queue's time shards on Redis through its job client's one-attempt connections."""

    def __init__(self, time_shards: RedisTimeShards) -> None:
        self._time_shards = time_shards
        self._job_client = time_shards.job_client
        self._names_of = time_shards.names

    @property
    def identity(self) -> Hashable:
        """A value that jobs on one server or cluster share, and with it a breaker."""
        return self._job_client.identity

    def warm_up(self) -> None:
        """Load the scripts from their files and make a connection object; no round trip."""
        self._job_client.warm_up(SCRIPTS, LAYOUT_SCRIPTS)

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
            with attempt(self._job_client, *names.watched, slice=slice) as current:
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
        lasting = seconds if slice is None else slice.remaining()
        budget = Budget(lasting, timeout=1.0 if seconds is None else seconds)
        by_node: defaultdict[Node, list[int]] = defaultdict(list)
        for time_shard in time_shards:
            by_node[self._node_of(time_shard)].append(time_shard)
        found: dict[int, Unswept] = {}
        for node, mine in by_node.items():
            (clock,) = checked(self._job_client.call(node, [("TIME",)], budget))
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
        clock, *replies = self._job_client.call(node, commands, Budget(slice.remaining()))
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
        return self._job_client.node_of(require_one_slot(self._names_of(time_shard).all))

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
        replies = self._job_client.call(node, commands, budget)
        for number, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                names = self._names_of(time_shards[number // 3])
                raise _layout_error(reply, names) or reply from None
        checked(replies)
        counted = {}
        for number, time_shard in enumerate(time_shards):
            ended, first, consumed = replies[3 * number : 3 * number + 3]
            oldest = 0.0
            if first:
                key = self._names_of(time_shard).leased
                oldest = max(0, now - stored_number(key, "the end of a lease", first[1])) / 1000
            counted[time_shard] = Unswept(ended, consumed, oldest)
        return counted

    def _command(
        self, names: TimeShardNames, max_attempts: int, chosen: list[bytes], *, dry_run: bool
    ) -> Command:
        script, keys = load(f"{SCRIPTS}sweep", self._time_shards.clock_shift_ms), names.all
        body = (script.body, len(keys), *keys)
        return ("EVAL", *body, self._time_shards.mark, max_attempts, int(dry_run), *chosen)

    def _read(self, replies: list[Any]) -> _TimeShardPart:
        clock, leased, consumed, released, size = replies
        now = self._now(clock)
        ends = zip(leased[::2], map(float, leased[1::2]), strict=True)
        ended = [(message_id, end) for message_id, end in ends if end <= now]
        return _TimeShardPart(now, ended, list(consumed), released, size)

    def _now(self, clock: Sequence[Any]) -> int:
        return int(clock[0]) * 1000 + int(clock[1]) // 1000 + self._time_shards.clock_shift_ms

    def _call(self, names: TimeShardNames, commands: list[Command], budget: Budget) -> list[Any]:
        return checked(self._job_client.call_keys(names.all, commands, budget))


def _layout_error(error: ResponseError, names: TimeShardNames) -> LayoutError | None:
    """Return the LayoutError that the server's WRONGTYPE stands for, or None for another error."""
    if not str(error).startswith("WRONGTYPE"):
        return None
    key = names.leased.decode(errors="backslashreplace")
    return LayoutError(
        f"the key {key}, or another one of the same time shard, does not hold a part of a time"
        " shard: use another name for the queue, or remove the key; nothing was changed"
    )


def _look_commands(names: TimeShardNames, window: int) -> list[Command]:
    return [
        # This connection gives the clock of the server that holds the keys.
        ("TIME",),
        ("ZRANGE", names.leased, 0, window - 1, "WITHSCORES"),
        ("SRANDMEMBER", names.consumed, window),
        ("ZRANGE", names.released, 0, window - 1),
        ("SCARD", names.consumed),
    ]


def _observe(slice: Slice, look: _TimeShardPart) -> None:
    # The script says it if the end of a lease cannot be believed.
    oldest = (look.now - max(0.0, look.ended[0][1])) / 1000 if look.ended else 0.0
    slice.observe(oldest_seconds=oldest, backlog=len(look.ended) + look.consumed_size)


def _choose(look: _TimeShardPart, limit: int, random: Callable[[], float]) -> list[bytes]:
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
