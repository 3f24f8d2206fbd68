"""Where a namespace keeps what, and the mark that says so.

A namespace's layout is written down once, at its first use, and read by everybody after that: which
structure it holds, by which backend (so that an upgraded server does not bring what has expired
back), and over how many index shards its due index is spread.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError, EvictionPolicyError, LayoutError
from workstealing.store.keys import SLOT_TAGS, SLOTS
from workstealing.store.operations import Steps, as_layout_error
from workstealing.store.scripts import load

LAYOUT_SCRIPTS = "layout_"
EMULATED, MIGRATING, NATIVE = "emulated", "migrating", "native"
# On one server there is nothing to be spread for but the size of a sorted set and the collisions of
# recruits. Part of the layout: a change holds for new namespaces only.
INDEX_SHARDS_OF_A_SERVER = 16

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Structure:
    """What a namespace may hold.

    Fields: name: as the layout has it; called: as messages call it; version: of the layout that
    this release writes; backends: that a layout may name; evicted: what an ``allkeys-*`` policy may
    do to it, as messages say it; remedy: what else can be done, ending with a comma.
    """

    name: str
    called: str
    version: int
    backends: tuple[str, ...]
    evicted: str
    remedy: str = ""


@dataclass(frozen=True)
class Layout:
    """How the data of one namespace is laid out.

    Fields: namespace; backend: one of the structure's; index_shards: how many; version; writable:
    whether this version of the package may write it; missing: commands of a native server that it
    does not have.
    """

    namespace: str
    backend: str
    index_shards: int
    version: int
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
        """Whether the server itself keeps the deadlines, so that there is no due index."""
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
    """The names of the keys that every namespace has; see the catalogue in ``lua/README.md``.

    Arguments: namespace: 1 to 64 letters, digits, dots, dashes and underscores. Errors:
    ConfigurationError for anything else. A subclass says which structure the namespace holds.
    """

    structure: ClassVar[Structure]

    def __init__(self, namespace: str) -> None:
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise ConfigurationError(
                f"the namespace {namespace!r} is not usable: give 1 to 64 letters, digits, dots,"
                " dashes or underscores"
            )
        self.namespace = namespace
        self._middle = b"}:ws:" + namespace.encode()
        self._due_end = self._middle + b":due"
        self._mark_end = self._middle + b":mark"
        self.layout = f"ws:{namespace}:layout".encode()
        self.registry = f"ws:{namespace}:slots".encode()
        self._index_keys: dict[int, tuple[bytes, bytes]] = {}

    def due(self, shard: int) -> bytes:
        """Return the key of an index shard's due index."""
        return b"{" + SLOT_TAGS[shard] + self._due_end

    def mark(self, shard: int) -> bytes:
        """Return the key of an index shard's layout mark."""
        return b"{" + SLOT_TAGS[shard] + self._mark_end

    def index_keys(self, shard: int) -> tuple[bytes, bytes]:
        """Return the keys of an index shard's due index and mark, made once."""
        keys = self._index_keys.get(shard)
        if keys is None:
            keys = self._index_keys[shard] = (self.due(shard), self.mark(shard))
        return keys


def as_pairs(reply: Any) -> dict[str, str]:
    """Return a HGETALL reply of any client (mapping or flat list, bytes or text) as text."""
    if isinstance(reply, dict):
        items: Sequence[tuple[Any, Any]] = list(reply.items())
    else:
        items = list(zip(reply[::2], reply[1::2], strict=True))
    return {as_text(name): as_text(value) for name, value in items}


def as_text(value: Any) -> str:
    """Return a reply of any client as text."""
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


def ask_server(names: Names, commands: Sequence[str] = ()) -> Steps[tuple[str, frozenset[str]]]:
    """Return the server's eviction policy, and those of the commands that it knows."""
    reply = yield ("EVAL", load("server_facts").body, 1, names.layout, *commands)
    policy, *known = map(as_text, reply)
    return policy, frozenset(known)


def write_layout(names: Names, backend: str, index_shards: int) -> Steps[Layout]:
    """Write a namespace's layout down, unless somebody else has; return the one that holds.

    Errors: LayoutError for a foreign key in its place. One round trip.
    """
    script = load("layout_open")
    fields = _fields(names.structure, backend, index_shards)
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


def open_layout(names: Names, index_shards: int, allowed: Collection[str]) -> Steps[Layout]:
    """Read the layout of a structure with one backend, or write it down if this is its first use.

    Arguments: names: of the namespace; index_shards: of a new one; allowed: eviction policies that
    the user accepts by name. Errors: LayoutError for a foreign layout; EvictionPolicyError. Two or
    three round trips.
    """
    layout = yield from read_layout(names)
    policy, _ = yield from ask_server(names)
    require_policy(names.structure, policy, allowed)
    if layout is None:
        (backend,) = names.structure.backends
        layout = yield from write_layout(names, backend, index_shards)
    return layout


def checked_policies(allow_eviction: Collection[str]) -> frozenset[str]:
    """Return the eviction policies that the user accepts by name.

    Errors: ConfigurationError for a text, which would be taken for a list of letters.
    """
    if isinstance(allow_eviction, str):
        raise ConfigurationError(
            f"allow_eviction takes a list of policies: give [{allow_eviction!r}]"
        )
    return frozenset(allow_eviction)


def require_policy(structure: Structure, policy: str, allowed: Collection[str]) -> None:
    """Raise EvictionPolicyError if the server's policy harms a structure and is not allowed."""
    if policy.startswith("allkeys-") and policy not in allowed:
        raise EvictionPolicyError(
            f"the server's maxmemory-policy is {policy}, which may evict {structure.evicted}: use"
            f" noeviction or a volatile-* policy,{structure.remedy} or pass"
            f" allow_eviction=[{policy!r}]"
        )


def _fields(structure: Structure, backend: str, index_shards: int) -> tuple[str | int, ...]:
    return (
        *("structure", structure.name),
        *("version", structure.version, "readable_from", 1, "writable_from", 1),
        *("backend", backend, "index_shards", index_shards),
    )


def _foreign(names: Names) -> LayoutError:
    return LayoutError(
        f"the key {names.layout.decode()} does not hold the layout of {names.structure.called}:"
        " use another namespace, or remove the key if it is not needed"
    )


def _parse(names: Names, pairs: dict[str, str]) -> Layout:
    structure = names.structure
    try:
        if pairs["structure"] != structure.name or pairs["backend"] not in structure.backends:
            raise _foreign(names)
        version = int(pairs["version"])
        shards = int(pairs["index_shards"])
        readable, writable = int(pairs["readable_from"]), int(pairs["writable_from"])
    except (KeyError, ValueError) as error:
        raise _foreign(names) from error
    if readable > structure.version:
        raise LayoutError(
            f"the namespace {names.namespace!r} has layout version {version}, which this release"
            f" (version {structure.version}) cannot read: upgrade workstealing"
        )
    if not 1 <= shards <= SLOTS:
        raise _foreign(names)
    writable_now = writable <= structure.version
    return Layout(names.namespace, pairs["backend"], shards, version, writable_now)
