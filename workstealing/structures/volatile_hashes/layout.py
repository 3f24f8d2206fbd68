"""The keys of a namespace of volatile hashes, and its backend.

The first use of a namespace writes its backend down, and every later process reads it. So an
upgrade of the server does not bring expired fields back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.keys import SLOT_TAGS, key_slot
from workstealing.store.operations import Steps
from workstealing.store.redis_versions import MISREAD_COMMANDS
from workstealing.structures.layout import ask_server, require_policy
from workstealing.structures.namespace import (
    EMULATED,
    LEAVING,
    MIGRATING,
    NATIVE,
    RETURNING,
    Layout,
    Names,
    NamespaceKind,
    read_layout,
    write_layout,
)

NATIVE_COMMANDS = ("HSETEX", "HGETEX", "HPEXPIREAT", "HPEXPIRETIME", "HPERSIST")
OPTIONAL_NATIVE_COMMANDS = ("HGETDEL",)
COUNT_EXISTING = "HINCRBYFXX"
"""A command of this package's own, HINCRBY of a field that exists: hash, field, amount, FXX.

The reply is the sum, or None: there is no such field.
"""
VOLATILE_HASHES = NamespaceKind(
    name="volatile_hashes",
    called="volatile hashes",
    version=1,
    backends=(EMULATED, MIGRATING, NATIVE, LEAVING, RETURNING),
    evicted="a hash's deadlines without the hash",
    remedy=" a server that expires fields itself,",
)


class HashNames(Names):
    """The names of the keys beside the user's own; see the catalogue in ``lua/README.md``."""

    kind = VOLATILE_HASHES

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self._deadlines_middle = self._middle + b":ttl:"

    def deadlines(self, key: bytes) -> bytes:
        """Return the key of a hash's deadlines, in the hash's own slot."""
        return b"{" + SLOT_TAGS[key_slot(key)] + self._deadlines_middle + key

    def adoption(self, which: str, node: object) -> bytes:
        """Return the key of an adoption's place on one node: a cursor and counters."""
        where = "server" if node is None else ":".join(map(str, node))  # type: ignore[call-overload]
        return f"ws:{self.namespace}:adopt:{which}:{where}".encode()

    def for_reading(self, key: bytes) -> tuple[bytes, ...]:
        """Return the keys of a reading script: the hash and its deadlines."""
        return (key, b"{" + SLOT_TAGS[key_slot(key)] + self._deadlines_middle + key)

    def for_writing(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a writing script: the hash, its deadlines, due index and mark."""
        slot = key_slot(key)
        shard = slot % layout.index_shards
        # Without a call of index_keys(): every write runs this line.
        index = self._index_keys.get(shard) or self.index_keys(shard)
        return (key, b"{" + SLOT_TAGS[slot] + self._deadlines_middle + key, *index)


def open_layout(
    names: HashNames, backend: str, index_shards: int, allowed_policies: Collection[str]
) -> Steps[Layout]:
    """Read a namespace's layout, or write it down if this is its first use.

    Arguments: backend: "auto", "emulated" or "native"; index_shards: of a new namespace;
    allowed_policies: eviction policies that the user accepts by name. Raises: LayoutError for a
    foreign layout, or for a backend other than the requested one; EvictionPolicyError;
    ConfigurationError if the server lacks the native commands. Two or three round trips, once.
    """
    layout = yield from read_layout(names)
    wanted = (*NATIVE_COMMANDS, *OPTIONAL_NATIVE_COMMANDS)
    policy, known = yield from ask_server(names.layout, wanted)
    has_native = known.issuperset(NATIVE_COMMANDS)
    if layout is None:
        if backend == NATIVE and not has_native:
            raise ConfigurationError(
                f'backend="native" needs a server with {", ".join(NATIVE_COMMANDS)} (Redis 8,'
                ' Valkey 9), and this one lacks them: use backend="auto"'
            )
        chosen = backend if backend != "auto" else NATIVE if has_native else EMULATED
        if chosen == EMULATED:
            require_policy(names.kind, policy, allowed_policies)
        layout = yield from write_layout(names, chosen, index_shards)
    is_between = layout.backend in (LEAVING, RETURNING) or (backend, layout.backend) == (
        NATIVE,
        MIGRATING,
    )
    if backend not in ("auto", layout.backend) and not is_between:
        raise LayoutError(
            f"the namespace {names.namespace!r} was laid out as {layout.backend}, not {backend}:"
            ' use backend="auto", or move it over with MigrateToNative or MigrateToEmulated'
        )
    if layout.backend != EMULATED:
        if not has_native:
            raise LayoutError(
                f"the namespace {names.namespace!r} was laid out for a server that expires fields"
                " itself, and this server cannot: go back to Redis 8 or Valkey 9, or use another"
                " namespace"
            )
        missing = frozenset(OPTIONAL_NATIVE_COMMANDS) - known
        return replace(layout, missing=missing | MISREAD_COMMANDS | {COUNT_EXISTING})
    require_policy(names.kind, policy, allowed_policies)
    return layout
