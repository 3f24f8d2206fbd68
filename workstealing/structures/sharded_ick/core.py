"""The layout of one ShardedIck as this process knows it, and what is done to all its ick shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.operations import Operation, Steps
from workstealing.store.scripts import load
from workstealing.structures.ick.ick import description
from workstealing.structures.ick.members import Added, Pairs, adding, in_chunks
from workstealing.structures.sharded_ick.layout import (
    Layout,
    ShardNames,
    checked_ick_shards,
    checked_name,
    new_fields,
    parse,
    shard_of,
)


class Core:
    """What a ShardedIck, its pipelines and its leases share; every method is a generator of steps.

    Arguments: name; ick_shards: the number that was asked for, None for that of the layout;
    clock_shift_ms: for tests, how far this object's clock is ahead of the server's.
    """

    def __init__(self, name: Any, ick_shards: int | None, clock_shift_ms: int) -> None:
        self.name = checked_name(name)
        self.text = self.name.decode(errors="backslashreplace")
        self.asked = None if ick_shards is None else checked_ick_shards(ick_shards)
        self.clock_shift_ms = clock_shift_ms
        self.layout_key = b"ws:sharded_ick:layout:" + self.name
        self.layout: Layout | None = None
        self._names: dict[int, ShardNames] = {}

    def names(self, shard: int) -> ShardNames:
        """Return the keys of an ick shard."""
        names = self._names.get(shard)
        if names is None:
            names = self._names[shard] = ShardNames(self.name, shard)
        return names

    def script(self, name: str) -> Any:
        """Return a script, with this object's clock."""
        return load(name, self.clock_shift_ms)

    def read_layout(self, fields: tuple[str | int, ...] = ()) -> Steps[Layout | None]:
        """Read the layout, or write these fields of a new one down if there is none."""
        key = self.layout_key
        (layout,) = yield [
            Operation(load("sharded_ick_open"), (key,), fields, lambda reply: parse(key, reply))
        ]
        self.layout = layout
        return layout  # type: ignore[no-any-return]

    def open(self) -> Steps[Layout]:
        """Return the layout as this process knows it; one round trip the first time."""
        if self.layout is not None:
            return self.layout
        layout = yield from self.read_layout(() if self.asked is None else new_fields(self.asked))
        if layout is None:
            raise ConfigurationError(
                f"there is no ShardedIck {self.text!r} yet: say how many ick_shards it is to have"
            )
        if self.asked not in (None, layout.ick_shards, layout.moving_from or None):
            self.layout = None
            raise ConfigurationError(
                f"the ShardedIck {self.text!r} has {layout.ick_shards} ick shards, not"
                f" {self.asked}: leave ick_shards out, or change their number with"
                f" resize({self.asked})"
            )
        return layout

    def reopen(self, outdated: Layout) -> Steps[Layout]:
        """Read the layout again, after an ick shard has refused what was out of date."""
        layout = self.layout
        # Somebody else with this object may have done it already.
        if layout is None or layout == outdated:
            layout = yield from self.read_layout()
        if layout is None or int(layout.generation) <= int(outdated.generation):
            raise LayoutError(
                f"an ick shard of {self.text!r} has a newer layout than the key"
                f" {self.layout_key.decode(errors='backslashreplace')} says: the key was lost or"
                " overwritten, put it back; nothing was changed"
            )
        return layout

    def add(self, pairs: Pairs) -> Steps[Added]:
        """Add pairs of a member and a score (None: the server's time), each to its ick shard."""
        new = changed = 0
        layout = yield from self.open()
        # Nothing to add makes, or checks, every ick shard.
        chunks = list(_chunks(pairs, layout))
        if not pairs:
            chunks = [(shard, []) for shard in range(layout.ick_shards)]
        while chunks:
            replies = yield [self._add(layout, *chunk) for chunk in chunks]
            refused = [chunk for chunk, reply in zip(chunks, replies, strict=True) if reply is None]
            for reply in replies:
                if reply is not None:
                    new, changed = new + reply[0], changed + reply[1]
            if not refused:
                break
            layout = yield from self.reopen(layout)
            if pairs:
                chunks = list(_chunks([pair for _, chunk in refused for pair in chunk], layout))
            else:
                chunks = [(shard, []) for shard in range(layout.ick_shards)]
        return Added(new, changed)

    def _add(self, layout: Layout, shard: int, chunk: Pairs) -> Operation:
        names = self.names(shard)
        script, args = adding(chunk)
        return Operation(
            load(f"sharded_{script}"),
            (*names.sets, names.mark),
            (layout.mark, *args),
            lambda reply: reply,
        )

    def need(self, shard: int) -> Operation:
        """Return the operation that asks who waits in an ick shard, and who has its lease."""
        names = self.names(shard)
        keys = (*names.sets, names.lease, names.moving, names.moving_dead)
        return Operation(self.script("sharded_ick_need"), keys, (), lambda reply: reply)

    def stats(self) -> Steps[dict[str, Any]]:
        """Describe all ick shards, and sum them up; two operations for each, one round trip."""
        layout = yield from self.open()
        shards = range(layout.all_shards)
        replies = yield [
            *(description(self.names(shard)) for shard in shards),
            *(self.need(shard) for shard in shards),
        ]
        each = []
        half = len(shards)
        for (found, _), need in zip(replies[:half], replies[half:], strict=True):
            _, _, left, _, consumer, _, moving, moving_dead, *_ = need
            if isinstance(consumer, bytes):
                consumer = consumer.decode(errors="backslashreplace")
            each.append(
                {
                    **(found or {}),
                    "dead_size": (found or {}).get("dead_size", 0) + moving_dead,
                    "moving_size": moving,
                    "consumer": consumer if left else None,
                    "lease_ms": left,
                }
            )
        return {**_summed(each), "ick_shards": layout.ick_shards, "shards": each}

    def delete(self) -> Steps[int]:
        """Delete all members; one operation for each ick shard, one round trip."""
        layout = yield from self.open()
        deleted = 0
        todo = list(range(layout.all_shards))
        while todo:
            replies = yield [self._delete(layout, shard) for shard in todo]
            deleted += sum(reply or 0 for reply in replies)
            if None not in replies:
                break
            layout = yield from self.reopen(layout)
            todo = list(range(layout.all_shards))
        return deleted

    def _delete(self, layout: Layout, shard: int) -> Operation:
        names = self.names(shard)
        beside = (*names.all[3:], names.moving, names.moving_dead, names.moving_attempts)
        keys = (*names.sets, names.mark, *beside)
        return Operation(load("sharded_ick_delete"), keys, (layout.mark,), lambda reply: reply)


def _chunks(pairs: Pairs, layout: Layout) -> Iterable[tuple[int, Pairs]]:
    """Split pairs by ick shard, into chunks for one script each."""
    groups: dict[int, Pairs] = {}
    for pair in pairs:
        groups.setdefault(shard_of(pair[0], layout.ick_shards), []).append(pair)
    for shard, group in groups.items():
        for chunk in in_chunks(group):
            yield shard, chunk


def _summed(each: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {
        name: sum(stats.get(name, 0) for stats in each)
        for name in ("pset_size", "cset_size", "total_size", "dead_size", "moving_size")
    }
    total["total_size"] += total["moving_size"]
    for kind in ("pset", "cset", "total"):
        for end, pick in (("min", min), ("max", max)):
            known = [stats[f"{kind}_{end}"] for stats in each if f"{kind}_{end}" in stats]
            if known:
                total[f"{kind}_{end}"] = pick(known)
    total["mixed_units"] = any(stats.get("mixed_units", False) for stats in each)
    return total
