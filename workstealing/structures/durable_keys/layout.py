"""Where a namespace of durable keys keeps what: the values at the user's own keys, and a due index.

The due index is the only place where a deadline stands. It is no index of something else that
could differ from it, so nothing but the two must change together, and they share a script.
"""

from __future__ import annotations

from workstealing.store.keys import SLOT_TAGS, key_slot
from workstealing.structures.namespace import Layout, Names, NamespaceKind

DURABLE = "durable"
DURABLE_KEYS = NamespaceKind(
    name="durable_keys",
    called="durable keys",
    version=1,
    backends=(DURABLE,),
    evicted="a durable key before its deadline",
)


class KeyNames(Names):
    """The names of the keys beside the user's own; see the catalogue in ``lua/README.md``."""

    kind = DURABLE_KEYS

    def for_reading(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a reading script: the user's own and its due index."""
        return (key, self.index_keys(layout.shard_of(key_slot(key)))[0])

    def for_writing(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a writing script: the user's own, its due index and its mark."""
        return (key, *self.index_keys(layout.shard_of(key_slot(key))))

    def fence(self, shard: int) -> bytes:
        """Return the key of the last fencing token of an index shard."""
        return b"{" + SLOT_TAGS[shard] + self._middle + b":fence"
