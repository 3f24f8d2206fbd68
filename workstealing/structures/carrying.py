"""Carrying keys over to their new homes, while a fleet has more nodes than before, or others.

From the moment that a fleet is given its former nodes, nobody writes a moving key at its former
home: each user carries it first. So its copy there is frozen, and every dump of it is the same. The
new home writes a dump once: a set of carried keys, which is kept until the move is over, refuses
every later one, however late its carrier comes. Only then is the frozen copy removed.

The former home gives a copy a token at the first look at the copy, and removes the token with the
copy. The mark of a carried key is of its token. So a key that a process of before the move, or of
an earlier fleet, has written there again is another copy: it is carried, too, unless the new home
has the key.
"""

from __future__ import annotations

from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.operations import AS_BYTES, Operation, Steps
from workstealing.store.scripts import load
from workstealing.structures.namespace import Layout


def carry(old: Any, new: Any, key: Any, layouts: tuple[Layout, Layout]) -> Steps[bool]:
    """Carry a key from one structure to another; return whether it was still there.

    Each step is a structure, and an operation for its client.

    Arguments:
        old: the structure at the key's former home.
        new: the structure at the key's new home.
        layouts: the layouts of the two structures.

    Raises: ConfigurationError if the layouts differ. One round trip if the key is gone, otherwise
    three.
    """
    require_alike(old, *layouts)
    name = to_bytes(key)
    out = carry_out(old, name, layouts[0])
    found = yield old, out
    if not found:
        return False
    yield new, carry_in(new, name, layouts[1], found)
    yield old, drop(old, name, layouts[0], found)
    return True


def carry_out(structure: Any, name: bytes, layout: Layout) -> Operation:
    """Return the operation that reads a key at its former home; the reply ends with its token."""
    shift_ms = structure.translator.clock_shift_ms
    keys = _leaving(structure, name, layout)
    return Operation(load("fleet/carry_out", shift_ms), keys, (structure.holds,), options=AS_BYTES)


def carry_in(structure: Any, name: bytes, layout: Layout, found: Any) -> Operation:
    """Return the operation that writes a key at its new home, unless that has been done."""
    shard = layout.shard_of(key_slot(name))
    names = structure.names
    _, due, *deadlines = _beside(structure, name, layout)
    keys = (name, names.carried(shard), names.mark(shard), due, *deadlines)
    mark = "" if layout.is_native else layout.mark
    return Operation(load("fleet/carry_in"), keys, (mark, *found), int)


def drop(structure: Any, name: bytes, layout: Layout, found: Any) -> Operation:
    """Return the operation that removes a carried key from its former home.

    Arguments:
        structure: there.
        name: there.
        layout: there.
        found: the reply of `carry_out`.

    A key that has been written again since stays.
    """
    token = found[-1]
    return Operation(
        load("fleet/drop"), _leaving(structure, name, layout), (structure.holds, token)
    )


def raise_fence(old: Any, new: Any, shard: int) -> Steps[bool]:
    """Let the fencing tokens of an index shard grow on from those of the former home.

    Each step is a structure, and an operation for its client.
    """
    token = yield old, read_fence(old, shard)
    if not token:
        return False
    yield new, fence_raised(new, shard, token)
    return True


def read_fence(structure: Any, shard: int) -> Operation:
    """Return the operation whose reply is an index shard's last fencing token, or None."""
    script = load("fleet/read_fence")
    return Operation(script, (structure.names.fence(shard),), (), options=AS_BYTES)


def fence_raised(structure: Any, shard: int, token: bytes) -> Operation:
    """Return the operation that lets the tokens of an index shard grow on from a former one."""
    return Operation(load("fleet/raise_fence"), (structure.names.fence(shard),), (token,))


def require_alike(structure: Any, old: Layout, new: Layout) -> None:
    """Check that keys can be carried from one layout to another.

    Raises: ConfigurationError if the keys cannot be carried.
    """
    # In any move: the walk that hands fields back may have passed a key's place at the new home.
    if old.is_moving or (old.backend, old.index_shards) != (new.backend, new.index_shards):
        raise ConfigurationError(
            f"{structure.name!r} is {old.backend} with {old.index_shards} index shards, and its new"
            f" home is {new.backend} with {new.index_shards}: keys are carried between like servers"
            " only, and not during a migration"
        )


def _leaving(structure: Any, name: bytes, layout: Layout) -> tuple[bytes, ...]:
    """Return a key, the tokens of leaving keys, and what is beside it, a hash's leases, too."""
    name, due, *deadlines = _beside(structure, name, layout)
    leaving = structure.names.leaving(layout.shard_of(key_slot(name)))
    leases = (structure.names.computing(name),) if structure.holds == "hash" else ()
    return (name, leaving, due, *leases, *deadlines)


def _beside(structure: Any, name: bytes, layout: Layout) -> tuple[bytes, ...]:
    """Return a key, its due index and, where they are kept, its deadlines."""
    due = structure.names.due(layout.shard_of(key_slot(name)))
    if structure.holds == "hash" and not layout.is_native:
        return (name, due, structure.names.deadlines(name))
    return (name, due)
