"""Where a namespace of durable keys keeps what: the values at the user's own keys, and a due index.

The due index is the only place where a deadline stands. It is no index of something else that
could differ from it, so nothing but the two must change together, and they share a script.
"""

from __future__ import annotations

from collections.abc import Collection

from workstealing.store.keys import key_slot, slot_tags
from workstealing.store.operations import Steps
from workstealing.structures.namespaces.layout import (
    Layout,
    Names,
    Structure,
    ask_server,
    read_layout,
    require_policy,
    write_layout,
)

DURABLE = "durable"
DURABLE_KEYS = Structure(
    name="durable_keys",
    called="durable keys",
    version=1,
    backends=(DURABLE,),
    evicted="a durable key before its deadline",
)


class KeyNames(Names):
    """The names of the keys beside the user's own; see the catalogue in ``lua/README.md``."""

    structure = DURABLE_KEYS

    def for_reading(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a reading script: the user's own and its due index."""
        return (key, self.index_keys(layout.shard_of(key_slot(key)))[0])

    def for_writing(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a writing script: the user's own, its due index and its mark."""
        return (key, *self.index_keys(layout.shard_of(key_slot(key))))

    def fence(self, shard: int) -> bytes:
        """Return the key of the last fencing token of an index shard."""
        return b"{" + slot_tags()[shard] + self._middle + b":fence"


def open_layout(names: KeyNames, index_shards: int, allowed: Collection[str]) -> Steps[Layout]:
    """Read a namespace's layout, or write it down if this is its first use.

    Arguments: index_shards: of a new namespace; allowed: eviction policies that the user accepts by
    name. Errors: LayoutError for a foreign layout; EvictionPolicyError. Two or three round trips.
    """
    layout = yield from read_layout(names)
    policy, _ = yield from ask_server(names)
    require_policy(names.structure, policy, allowed)
    if layout is None:
        layout = yield from write_layout(names, DURABLE, index_shards)
    return layout
