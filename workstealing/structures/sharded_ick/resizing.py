"""Changing the number of ick shards, in bounded steps that any process may go on with.

The new number is written into the layout first. Then each old ick shard is leased, and the members
of this ick shard are set aside under other keys. From then on only processes that know the new
number add members to that ick shard. Each member is copied to its new ick shard, and then removed
from the members set aside. A crash in between leaves a member in two places; the next copy folds
the two into one. No consumer is given a lease meanwhile, so no two consumers work on one member.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from workstealing.errors import Aborted, ConfigurationError
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.store.operations import AS_BYTES, Operation, Steps
from workstealing.store.scripts import load
from workstealing.structures.sharded_ick.layout import Core, ShardedLayout, shard_of
from workstealing.structures.sharded_ick.leasing import AskedLeases, Holder, taking

MEMBERS_A_PAGE = 500
HOLDER = Holder("resize", 5000)


class Resized(NamedTuple):
    """How far a resize has come.

    Fields: done: whether all members are where they belong; moved: how many moves this call has
    made, also of members that stay in their ick shard; leased: ick shards that could not be moved
    yet, because a consumer holds them.
    """

    done: bool
    moved: int
    leased: int


def checked_limit(limit: object) -> int:
    """Return how many members to move at most. Raises: ConfigurationError unless 1 or more."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigurationError(f"limit={limit!r} moves nothing: give a number of members, 1 up")
    return int(limit)


def resize(
    core: Core, ick_shards: int, limit: int, asked: AskedLeases | None = None
) -> Steps[Resized]:
    """Begin to change the number of ick shards, or go on with it; see `ShardedIck.resize`.

    Arguments:
        asked: takes note of the leases that the call may hold.

    Raises: as `ShardedIck.resize`.
    """
    asked = AskedLeases() if asked is None else asked
    layout = yield from _begun(core, ick_shards)
    if not layout.moving_from:
        return Resized(True, 0, 0)
    moved = leased = 0
    done = yield [_progress(core, layout, shard) for shard in range(layout.moving_from)]
    for shard, is_done in enumerate(done):
        if is_done:
            continue
        if moved >= limit:
            return Resized(False, moved, leased)
        (token,) = yield from taking(core, layout, [shard], HOLDER, asked)
        if token is None:
            raise _overtaken(core)
        if not token:
            leased += 1
            continue
        moved += yield from _move(core, layout, (shard, token), limit - moved)
        asked.ick_shards.discard(shard)
    done = yield [_progress(core, layout, shard) for shard in range(layout.moving_from)]
    if not all(done):
        return Resized(False, moved, leased)
    yield from _relayout(core, layout, ick_shards, 0)
    _announce(core, f"all members are in {ick_shards} ick shards")
    return Resized(True, moved, 0)


def _announce(core: Core, change: str) -> None:
    ANNOUNCEMENTS.tell("layout", f"the sharded ick {core.text!r}", change)


def _begun(core: Core, ick_shards: int) -> Steps[ShardedLayout]:
    """Write the new number into the layout, unless the layout has it; return the layout."""
    layout = yield from core.read_layout()
    if layout is None:
        raise ConfigurationError(
            f"there is no ShardedIck {core.text!r} yet: nothing is there to be resized"
        )
    core.require_writable()
    if layout.moving_from and layout.ick_shards != ick_shards:
        raise ConfigurationError(
            f"{core.text!r} is being resized to {layout.ick_shards} ick shards: finish that first"
            f" with resize({layout.ick_shards})"
        )
    if layout.ick_shards == ick_shards:
        return layout
    before = layout.ick_shards
    layout = yield from _relayout(core, layout, ick_shards, before)
    if layout.ick_shards != ick_shards:
        raise _overtaken(core)
    _announce(core, f"a change from {before} to {ick_shards} ick shards began")
    return layout


def _relayout(
    core: Core, layout: ShardedLayout, ick_shards: int, moving_from: int
) -> Steps[ShardedLayout]:
    args = (layout.generation, ick_shards, moving_from)
    yield Operation(load("sharded_ick/relayout"), (core.layout_key,), args, int)
    found = yield from core.read_layout()
    if found is None:
        raise _overtaken(core)
    return found


def _progress(core: Core, layout: ShardedLayout, shard: int) -> Operation:
    names = core.names(shard)
    keys = (names.moving, names.moving_dead, names.begun, names.moving_waiting)
    return Operation(load("sharded_ick/progress"), keys, (layout.generation,), bool)


def _move(core: Core, layout: ShardedLayout, holder: tuple[int, str], limit: int) -> Steps[int]:
    """Move at most so many members of an ick shard whose lease is held; return how many."""
    shard, token = holder
    names = core.names(shard)
    script = core.script("sharded_ick/begin")
    marked = (*names.reserved, names.lease, names.mark)
    beside = (names.dead, names.moving, names.moving_dead, names.begun, names.moving_attempts)
    resting = (names.moving_waiting, names.moving_terms)
    keys = (*marked, *beside, *names.resting, *resting)
    args = (layout.mark, token, layout.generation)
    left = -1
    while left == -1:
        left = yield Operation(script, keys, args)
    moved = 0
    while left and moved < limit:
        page = min(MEMBERS_A_PAGE, limit - moved)
        # As bytes, for every client: the bytes decide where a member belongs.
        rows, graves, waits = yield Operation(
            load("sharded_ick/page"),
            (names.moving, names.moving_dead, names.moving_attempts, *resting),
            (page,),
            options=AS_BYTES,
        )
        if not rows and not graves and not waits:
            break
        members = [tuple(rows[i : i + 3]) for i in range(0, len(rows), 3)]
        dead = [tuple(graves[i : i + 2]) for i in range(0, len(graves), 2)]
        waiting = [tuple(waits[i : i + 3]) for i in range(0, len(waits), 3)]
        copied = yield _copies(core, layout, members, dead, waiting)
        if None in copied:
            raise _overtaken(core)
        dropped = yield _drop(core, holder, members, dead, waiting)
        if dropped is None:
            # The lease ran out: another process goes on with the rest.
            return moved
        # None is left if redis-py has sent it twice.
        moved += dropped or len(members) + len(dead) + len(waiting)
    lease = (names.lease,)
    yield Operation(core.script("sharded_ick/release"), lease, (token,), int)
    return moved


def _copies(core: Core, layout: ShardedLayout, *kinds: list[tuple[Any, ...]]) -> list[Operation]:
    groups: dict[int, tuple[list[Any], list[Any], list[Any]]] = {}
    for position, rows in enumerate(kinds):
        for row in rows:
            target = shard_of(row[0], layout.ick_shards)
            groups.setdefault(target, ([], [], []))[position].extend(row)
    operations = []
    for target, (flat, graves, waiting) in groups.items():
        names = core.names(target)
        keys = (*names.sets, names.mark, names.attempts, names.dead, *names.resting)
        args = (layout.mark, len(flat) // 3, len(graves) // 2, *flat, *graves, *waiting)
        operations.append(Operation(load("sharded_ick/copy"), keys, args))
    return operations


def _drop(
    core: Core,
    holder: tuple[int, str],
    members: list[tuple[Any, ...]],
    dead: list[tuple[Any, ...]],
    waiting: list[tuple[Any, ...]],
) -> Operation:
    shard, token = holder
    names = core.names(shard)
    flat = [part for member, score, _ in members for part in (member, score)]
    others = [part for row in (*dead, *waiting) for part in row]
    moving = (names.moving, names.moving_dead, names.moving_attempts)
    return Operation(
        core.script("sharded_ick/drop"),
        (names.lease, *moving, names.moving_waiting, names.moving_terms),
        (token, HOLDER.lease_ms, len(members), len(dead), *flat, *others),
    )


def _overtaken(core: Core) -> Aborted:
    return Aborted(f"another process has changed the layout of {core.text!r}: call resize again")
