"""Where a namespace of volatile hashes keeps what, and the mark that says so.

A namespace's layout is written down once, at its first use, and read by everybody after that: which
backend it uses (so that an upgraded server does not bring expired fields back) and over how many
index shards its due index is spread.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, EvictionPolicyError, LayoutError
from workstealing.store.keys import SLOTS, key_slot, slot_tags
from workstealing.store.operations import Steps, as_layout_error
from workstealing.store.scripts import load

VERSION = 1
EMULATED, MIGRATING, NATIVE = "emulated", "migrating", "native"
# On one server there is nothing to be spread for but the size of a sorted set and the collisions of
# recruits. Part of the layout: a change holds for new namespaces only.
INDEX_SHARDS_OF_A_SERVER = 16
NATIVE_COMMANDS = ("HSETEX", "HGETEX", "HPEXPIREAT", "HPEXPIRETIME", "HPERSIST")
OPTIONAL_NATIVE_COMMANDS = ("HGETDEL",)

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Layout:
    """How the data of one namespace is laid out.

    Fields: namespace; backend: "emulated", "migrating" or "native"; index_shards: how many;
    version; writable: whether this version of the package may write it; missing: commands of a
    native server that it does not have.
    """

    namespace: str
    backend: str
    index_shards: int
    version: int = VERSION
    writable: bool = True
    missing: frozenset[str] = frozenset()

    @cached_property
    def is_emulated(self) -> bool:
        """Whether the deadlines stand in keys of our own."""
        return self.backend == EMULATED

    @cached_property
    def is_migrating(self) -> bool:
        """Whether each hash is handed over to the server before its next use."""
        return self.backend == MIGRATING

    @cached_property
    def is_native(self) -> bool:
        """Whether the server itself expires the fields."""
        return self.backend == NATIVE

    @cached_property
    def mark(self) -> str:
        """What every index shard's mark must say before a script writes there."""
        return self.mark_of(self.backend)

    def mark_of(self, backend: str) -> str:
        """Return the mark of an index shard with that backend."""
        return f"{self.version}:{backend}"

    @cached_property
    def registers_shards(self) -> bool:
        """Whether index shards are so many that those in use are written down in a registry."""
        return self.index_shards > INDEX_SHARDS_OF_A_SERVER

    def require_writable(self) -> None:
        """Raise a LayoutError if this release may only read the layout."""
        if not self.writable:
            raise LayoutError(
                f"the namespace {self.namespace!r} has layout version {self.version}, which this"
                " release may read but not write: upgrade workstealing"
            )

    def shard_of(self, slot: int) -> int:
        """Return the index shard of a hash slot: the slot itself on a cluster."""
        return slot % self.index_shards


class Names:
    """The names of all keys of one namespace; see the catalogue in ``lua/README.md``.

    Arguments: namespace: 1 to 64 letters, digits, dots, dashes and underscores. Errors:
    ConfigurationError for anything else.
    """

    def __init__(self, namespace: str) -> None:
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise ConfigurationError(
                f"the namespace {namespace!r} is not usable: give 1 to 64 letters, digits, dots,"
                " dashes or underscores"
            )
        self.namespace = namespace
        prefix = b":ws:" + namespace.encode()
        self._deadlines_middle = b"}" + prefix + b":ttl:"
        self._due_end = b"}" + prefix + b":due"
        self._mark_end = b"}" + prefix + b":mark"
        self.layout = f"ws:{namespace}:layout".encode()
        self.registry = f"ws:{namespace}:slots".encode()
        self._index_keys: dict[int, tuple[bytes, bytes]] = {}

    def deadlines(self, key: bytes) -> bytes:
        """Return the key of a hash's deadlines, in the hash's own slot."""
        return b"{" + slot_tags()[key_slot(key)] + self._deadlines_middle + key

    def due(self, shard: int) -> bytes:
        """Return the key of an index shard's due index."""
        return b"{" + slot_tags()[shard] + self._due_end

    def mark(self, shard: int) -> bytes:
        """Return the key of an index shard's layout mark."""
        return b"{" + slot_tags()[shard] + self._mark_end

    def for_reading(self, key: bytes) -> tuple[bytes, ...]:
        """Return the keys of a reading script: the hash and its deadlines."""
        return (key, b"{" + slot_tags()[key_slot(key)] + self._deadlines_middle + key)

    def for_writing(self, key: bytes, layout: Layout) -> tuple[bytes, ...]:
        """Return the keys of a writing script: the hash, its deadlines, due index and mark."""
        slot = key_slot(key)
        shard = slot % layout.index_shards
        index = self._index_keys.get(shard)
        if index is None:
            index = self._index_keys[shard] = (self.due(shard), self.mark(shard))
        return (key, b"{" + slot_tags()[slot] + self._deadlines_middle + key, *index)


def as_pairs(reply: Any) -> dict[str, str]:
    """Return a HGETALL reply of any client (mapping or flat list, bytes or text) as text."""
    if isinstance(reply, dict):
        items: Sequence[tuple[Any, Any]] = list(reply.items())
    else:
        items = list(zip(reply[::2], reply[1::2], strict=True))
    return {_text(name): _text(value) for name, value in items}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def read_layout(names: Names) -> Steps[Layout | None]:
    """Read a namespace's layout; None if it has none yet.

    Errors: LayoutError for a foreign or unreadable one. One round trip.
    """
    try:
        reply = yield ("HGETALL", names.layout)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise _foreign(names) from error
    pairs = as_pairs(reply)
    return _parse(names, pairs) if pairs else None


def open_layout(
    names: Names, backend: str, index_shards: int, allowed_policies: Collection[str]
) -> Steps[Layout]:
    """Read a namespace's layout, or write it down if this is its first use.

    Arguments: backend: "auto", "emulated" or "native"; index_shards: of a new namespace;
    allowed_policies: eviction policies that the user accepts by name. Errors: LayoutError for a
    foreign layout or another backend than the one asked for; EvictionPolicyError;
    ConfigurationError if the server lacks the native commands. Two or three round trips, once.
    """
    layout = yield from read_layout(names)
    facts = load("server_facts")
    wanted = (*NATIVE_COMMANDS, *OPTIONAL_NATIVE_COMMANDS)
    reply = yield ("EVAL", facts.body, 1, names.layout, *wanted)
    policy, *known = map(_text, reply)
    has_native = set(NATIVE_COMMANDS) <= set(known)
    if layout is None:
        if backend == NATIVE and not has_native:
            raise ConfigurationError(
                f'backend="native" needs a server with {", ".join(NATIVE_COMMANDS)} (Redis 8,'
                ' Valkey 9), and this one lacks them: use backend="auto"'
            )
        chosen = backend if backend != "auto" else NATIVE if has_native else EMULATED
        if chosen == EMULATED:
            _require_policy(policy, allowed_policies)
        layout = yield from write_layout(names, chosen, index_shards)
    if backend not in ("auto", layout.backend) and (backend, layout.backend) != (NATIVE, MIGRATING):
        raise LayoutError(
            f"the namespace {names.namespace!r} was laid out as {layout.backend}, not {backend}:"
            ' use backend="auto", or move it over with the MigrateToNative job'
        )
    if not layout.is_emulated:
        if not has_native:
            raise LayoutError(
                f"the namespace {names.namespace!r} was laid out for a server that expires fields"
                " itself, and this server cannot: go back to Redis 8 or Valkey 9, or use another"
                " namespace"
            )
        missing = frozenset(OPTIONAL_NATIVE_COMMANDS) - set(known)
        return replace(layout, missing=missing)
    _require_policy(policy, allowed_policies)
    return layout


def write_layout(names: Names, backend: str, index_shards: int) -> Steps[Layout]:
    """Write a namespace's layout down, unless somebody else has; return the one that holds.

    Errors: LayoutError for a foreign key in its place. One round trip.
    """
    script = load("layout_open")
    fields = _fields(backend, index_shards)
    try:
        reply = yield ("EVAL", script.body, 1, names.layout, *fields)
    except ResponseError as error:
        raise as_layout_error(error) or error from error
    return _parse(names, as_pairs(reply))


def register_shards(names: Names, shards: Collection[int]) -> Steps[None]:
    """Write down that index shards are in use, before their first use. One round trip."""
    fields: list[Any] = []
    for shard in shards:
        fields += ("SET", "u1", shard, 1)
    yield ("BITFIELD", names.registry, *fields)


def read_registry(names: Names) -> Steps[list[int]]:
    """Return the index shards that were ever in use. One round trip; a reply of at most 2 KiB."""
    reply = yield ("GET", names.registry)
    if not reply:
        return []
    bits: bytes = reply if isinstance(reply, bytes) else reply.encode("utf-8", "surrogateescape")
    return [
        8 * index + bit
        for index, byte in enumerate(bits[: SLOTS // 8])
        if byte
        for bit in range(8)
        if byte & (0x80 >> bit)
    ]


def _fields(backend: str, index_shards: int) -> tuple[str | int, ...]:
    return (
        *("structure", "volatile_hashes"),
        *("version", VERSION, "readable_from", 1, "writable_from", 1),
        *("backend", backend, "index_shards", index_shards),
    )


def _foreign(names: Names) -> LayoutError:
    return LayoutError(
        f"the key {names.layout.decode()} does not hold the layout of volatile hashes: use another"
        " namespace, or remove the key if it is not needed"
    )


def _parse(names: Names, pairs: dict[str, str]) -> Layout:
    try:
        if pairs["structure"] != "volatile_hashes" or pairs["backend"] not in (
            EMULATED,
            MIGRATING,
            NATIVE,
        ):
            raise _foreign(names)
        version = int(pairs["version"])
        shards = int(pairs["index_shards"])
        readable, writable = int(pairs["readable_from"]), int(pairs["writable_from"])
    except (KeyError, ValueError) as error:
        raise _foreign(names) from error
    if readable > VERSION:
        raise LayoutError(
            f"the namespace {names.namespace!r} has layout version {version}, which this release"
            f" (version {VERSION}) cannot read: upgrade workstealing"
        )
    if not 1 <= shards <= SLOTS:
        raise _foreign(names)
    return Layout(names.namespace, pairs["backend"], shards, version, writable <= VERSION)


def _require_policy(policy: str, allowed: Collection[str]) -> None:
    if policy.startswith("allkeys-") and policy not in allowed:
        raise EvictionPolicyError(
            f"the server's maxmemory-policy is {policy}, which may evict a hash's deadlines without"
            " the hash: use noeviction or a volatile-* policy, a server that expires fields itself,"
            f" or pass allow_eviction=[{policy!r}]"
        )
