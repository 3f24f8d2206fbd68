"""Returning ended leases and clearing away what was consumed, on Redis, an attempt at a time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.errors import LayoutError
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.keys import require_one_slot
from workstealing.store.operations import as_layout_error
from workstealing.store.scripts import load
from workstealing.store.twin import Node, Twin
from workstealing.structures.time_shard_queue.names import TimeShardNames
from workstealing.structures.time_shard_queue.store import Swept, Unswept

WINDOW = 4
"""How many messages of each kind are looked at for each that a slice may handle."""
_AT_ONCE = 64
"""How many time shards are counted in one round trip."""
_LOOKED_AT = 8
"""At how many time shards a slice looks before it chooses one."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What an attempt has read of a time shard.

    Fields: now: the server's time in ms; ended: ids and ends in ms of leases that have ended, those
    that ended first; consumed: some ids; released: some entries; consumed_size: how many there are.
    """

    now: int
    ended: list[tuple[bytes, float]]
    consumed: list[bytes]
    released: list[bytes]
    consumed_size: int


class RedisSweeping:
    """Sweeps the time shards of one queue through a twin's one-attempt connections.

    Arguments: twin; names_of: the keys of a time shard by its number; mark: what the marks of its
    time shards say; clock_shift_ms: for tests, how far the server's clock is taken to be ahead.
    """

    def __init__(
        self,
        twin: Twin,
        names_of: Callable[[int], TimeShardNames],
        mark: str,
        clock_shift_ms: int = 0,
    ) -> None:
        self._twin = twin
        self._names_of = names_of
        self._mark = mark
        self._clock_shift_ms = clock_shift_ms

    @property
    def identity(self) -> Hashable:
        """What jobs on one server or cluster have in common, so that they share a breaker."""
        return self._twin.identity

    def warm_up(self) -> None:
        """Load the scripts and prepare connections; no round trip."""
        self._twin.warm_up("time_shard_", "layout_")

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

        Errors: Aborted; LayoutError; connection faults. Two round trips, one where there is nothing
        to do: WATCH and reads of at most `WINDOW` times `limit` entries of each kind; MULTI, the
        script that looks at each once more, EXEC. A server that is out of memory refuses a MULTI:
        then the script runs once without it, which deletes before it writes.
        """
        names = self._names_of(time_shard)
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

    def unswept(self, time_shards: Sequence[int], slice: Slice | None = None) -> list[Unswept]:
        """Return what waits for a sweeper in each of these time shards; see `Sweeping.unswept`.

        Errors: connection faults. A round trip to each node for its clock, and one for every 64 of
        its time shards.
        """
        budget = Budget(None if slice is None else slice.remaining(), timeout=1.0)
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

        Errors: connection faults; what is wrong with a key is for `sweep` to say. One round trip.
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
        # A server that is still loading says no ResponseError.
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
        script, keys = load("time_shard_sweep", self._clock_shift_ms), names.all
        body = (script.body, len(keys), *keys)
        return ("EVAL", *body, self._mark, max_attempts, int(dry_run), *chosen)

    def _read(self, replies: list[Any]) -> _Look:
        clock, leased, consumed, released, size = replies
        now = self._now(clock)
        ends = zip(leased[::2], map(float, leased[1::2]), strict=True)
        ended = [(message_id, end) for message_id, end in ends if end <= now]
        return _Look(now, ended, list(consumed), released, size)

    def _now(self, clock: Sequence[Any]) -> int:
        return int(clock[0]) * 1000 + int(clock[1]) // 1000 + self._clock_shift_ms

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
        # Asked on this connection, it is the clock of the server that holds the keys.
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
    """Choose at most so many ids and entries, at random: two sweepers at once should differ."""
    ended = [b"i" + id_ for id_, _ in look.ended]
    known = set(ended)
    released = [b"r" + e for e in look.released if b"i" + e.partition(b" ")[2] not in known]
    consumed = [b"i" + id_ for id_ in look.consumed]
    chosen: dict[bytes, None] = {}
    # What somebody waits for comes first; what only takes room comes last.
    for kind in (ended, released, consumed):
        chosen.update(dict.fromkeys(sorted(kind, key=lambda _: random())))
    return list(chosen)[:limit]
