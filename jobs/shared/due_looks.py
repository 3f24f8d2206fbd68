"""Looks at a due index: the keys that a slice serves, by sampling, and the garbage that waits.

A slice of a job samples: it looks at a few index shards of one node, chosen at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import Moved
from workstealing.recruiting.job import (
    Backlog,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.job_client import Node
from workstealing.structures.due_index import (
    FIRST_LOOK,
    KEYS_A_LOOK,
    KEYS_A_SHARD,
    SECOND_LOOK,
    DueIndex,
    DueKey,
    DueLook,
)
from workstealing.structures.layout import scored

# The most index shards of which a slice takes more keys than a wide look did.
MOST_DEEPER = KEYS_A_LOOK // KEYS_A_SHARD


def looks(index: DueIndex, slice: Slice, *, overdue: bool = True) -> Iterator[DueLook]:
    """Yield what at most three looks at one node's index shards have found.

    The first look takes a few index shards; the second takes many more, but few keys of each; the
    third takes more keys where these few were not all. The keys of an index shard come together, in
    a random order; on a cluster the index shard with the key that has been due longest comes first.
    The slice observes about how many keys wait in the namespace, and the age of the oldest overdue
    key found.

    Arguments:
        slice: bounds the time.
        overdue: only keys whose time has come.

    Raises: LayoutError for a foreign due index, and Moved for index shards that have left the node,
    if nothing else was found; connection faults. One round trip a look, with at most 5, 254 and 66
    commands.
    """
    budget = Budget(slice.remaining())
    layout = index.layout(budget)
    if layout is None or layout.is_native:
        slice.observe(oldest_seconds=0.0 if overdue else None, backlog=0)
        return
    node, shards = index.choose_node(layout, budget)
    foreign: ResponseError | None = None
    moved: Moved | None = None
    now: int | None = None
    full: list[int] = []
    seen: set[bytes] = set()
    looked, waiting, shallow = 0, 0, 0
    for number in range(3):
        wide = shards[FIRST_LOOK : FIRST_LOOK + SECOND_LOOK]
        some = (shards[:FIRST_LOOK], wide, full[:MOST_DEEPER])[number]
        if not some:
            continue
        most = min(KEYS_A_SHARD, KEYS_A_LOOK // len(some))
        budget = Budget(slice.remaining())
        slice.spend(2 + len(some))
        look = index.look(
            layout, node, some, budget, overdue=overdue, until_ms=now, keys_a_shard=most
        )
        foreign, moved = look.foreign or foreign, look.moved or moved
        count = len(look.found) if look.waiting is None else look.waiting
        if some is wide:
            full = look.full if most < KEYS_A_SHARD else []
            shallow = waiting + sum(1 for each in look.found if each.shard not in full)
        if number < 2:
            looked += look.looked
            waiting += count
        else:
            waiting = shallow + round(count * len(full) / len(some))
        if not looked:
            continue
        slice.observe(backlog=round(waiting / index.share_of(layout, looked)))
        if overdue:
            # The next look can leave out keys that are not due yet.
            now = look.now_ms
            oldest = min((each.due_ms for each in look.found), default=look.now_ms)
            slice.observe(oldest_seconds=(look.now_ms - oldest) / 1000)
        # A key that the wide look has found already has been handled, or cannot be.
        fresh = [each for each in look.found if each.key not in seen]
        seen.update(each.key for each in fresh)
        if fresh:
            yield replace(look, found=_in_order(index, fresh, oldest_first=layout.registers_shards))
    if foreign is not None and not seen:
        raise index.foreign(foreign)
    if moved is not None and not seen:
        raise moved


def observe_items(slice: Slice, items: int, keys: int) -> None:
    """Turn the backlog that a slice has observed, of keys, into items. No command.

    Arguments:
        items: that some keys had.
        keys: how many; they show how many items each has.
    """
    if keys and slice.backlog:
        slice.observe(backlog=round(slice.backlog * max(1.0, items / keys)))


def _in_order(index: DueIndex, found: list[DueKey], *, oldest_first: bool) -> list[DueKey]:
    """Put the keys of each index shard together, in a random order.

    Arguments:
        oldest_first: whether the index shard with the oldest key comes first.

    The many index shards of a cluster were drawn at random already; of the few of a single server
    any may be first, so that recruits rarely meet.
    """
    by_shard: dict[int, list[DueKey]] = {}
    for due in found:
        by_shard.setdefault(due.shard, []).append(due)
    groups = list(by_shard.values())
    if oldest_first:
        groups.sort(key=lambda group: min(due.due_ms for due in group))
    else:
        index.shuffle(groups)
    for group in groups:
        index.shuffle(group)
    return [due for group in groups for due in group]


def due_backlog(index: DueIndex, seconds: float, what: str, *, overdue: bool = True) -> Backlog:
    """Count the keys that a due index names.

    Arguments:
        seconds: the most time.
        what: the name of the keys.
        overdue: only keys whose time has come.

    Returns: the number of keys, and for how many seconds the first has been due (None if keys that
    are not due count too). Raises: LayoutError for a foreign due index; connection faults. Two
    round trips to each node.
    """
    budget = Budget.whole(seconds)
    layout = index.layout(budget)
    if layout is None or layout.is_native:
        return Backlog(0, 0.0, what)
    keys, oldest_ms = 0, 0.0
    for node, shards in index.shards_by_node(layout, budget).items():
        (clock,) = index.job_client.call(node, [("TIME",)], budget)
        now = index.time_ms(clock)
        commands: list[tuple[Any, ...]] = []
        for shard in shards:
            due = index.names.due(shard)
            commands.append(("ZCOUNT", due, "-inf", now if overdue else "+inf"))
            commands.append(("ZRANGE", due, 0, 0, "WITHSCORES"))
        replies = index.job_client.call(node, commands, budget)
        for count, first in zip(replies[::2], replies[1::2], strict=True):
            for reply in (count, first):
                if isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply):
                    raise index.foreign(reply)
                if isinstance(reply, Exception):
                    raise reply
            keys += int(count)
            # The two commands are no transaction, so a recruit may have come between them.
            if count and first:
                oldest_ms = max(oldest_ms, now - scored(first)[0][1])
    return Backlog(keys, oldest_ms / 1000 if overdue or not keys else None, what)


def items_backlog(
    index: DueIndex,
    seconds: float,
    what: str,
    count: Callable[[Node, Sequence[bytes]], int],
    most: int,
    *,
    overdue: bool = True,
) -> Backlog:
    """Count the items of the keys that a due index names, where a key may have many.

    Arguments as of `due_backlog`; count: returns how many items some keys on a node have; most:
    the keys that are looked at; with more of them, these stand for the others, and the count is not
    exact. Returns and raises: as `due_backlog`. One round trip more to each node, and those of
    `count`.
    """
    keys = due_backlog(index, seconds, what, overdue=overdue)
    budget = Budget.whole(seconds)
    layout = index.layout(budget) if keys.count else None
    if layout is None:
        return keys
    items = looked = 0
    for node, shards in index.shards_by_node(layout, budget).items():
        (clock,) = checked(index.job_client.call(node, [("TIME",)], budget))
        until = index.time_ms(clock) if overdue else "+inf"
        share = max(1, most // len(shards))
        asked = [
            ("ZRANGEBYSCORE", index.names.due(each), "-inf", until, "LIMIT", 0, share)
            for each in shards
        ]
        for found in checked(index.job_client.call(node, asked, budget)):
            if found:
                items += count(node, found)
                looked += len(found)
    if looked >= keys.count:
        return replace(keys, count=items)
    return replace(keys, count=round(items * keys.count / max(1, looked)), exact=False)
