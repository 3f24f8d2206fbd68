"""Namespaces: the keys that structures of one kind share, and the layout that says how.

The first use of a namespace writes its layout down once, and every later process reads it. A layout
names the structure, the backend, and the number of index shards of the due index. Because the
backend is fixed, an upgrade of the server does not bring expired data back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Self

from workstealing.errors import ConfigurationError
from workstealing.store.job_client import ClientT, JobClient, job_client_for
from workstealing.store.keys import SLOT_TAGS, SLOTS, key_slot
from workstealing.store.operations import Steps, command
from workstealing.store.valkey_clients import redis_client
from workstealing.structures import layout as layouts
from workstealing.structures.layout import Kind, Versioned, only_readable
from workstealing.structures.stored import holding_ours
from workstealing.structures.structure import NOTE, OK, Check, Structure

EMULATED, MIGRATING, NATIVE = "emulated", "migrating", "native"
# The way back: the server still keeps the deadlines, but its commands are guarded; then each hash
# is handed back before its next use.
LEAVING, RETURNING = "leaving", "returning"
MARKED = (EMULATED, MIGRATING, NATIVE, LEAVING, RETURNING)
"""The backends that a mark of an index shard may name."""
# On one server, index shards only keep the sorted sets small and the recruits apart. The number is
# part of a layout: a change of it holds for new namespaces only.
INDEX_SHARDS_OF_A_SERVER = 16

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class NamespaceKind(Kind):
    """A kind of structure that lives in namespaces.

    Fields: as of `Kind`; backends: the backends that a layout may name.
    """

    place: str = "namespace"
    backends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """How the data of one namespace is laid out.

    Fields: namespace; backend: one of the structure's; index_shards: their number; version;
    writable: whether this release may write the layout; missing: optional commands that a native
    server lacks, or an older redis-py; quirks: commands that it takes in ways of its own.
    """

    namespace: str
    backend: str
    index_shards: int
    version: int
    writable: bool = True
    missing: frozenset[str] = frozenset()
    quirks: frozenset[str] = frozenset()

    @cached_property
    def is_emulated(self) -> bool:
        """Whether this package's own keys hold the deadlines."""
        return self.backend in (EMULATED, RETURNING)

    @cached_property
    def is_migrating(self) -> bool:
        """Whether each hash is handed over to the server before its next use."""
        return self.backend == MIGRATING

    @cached_property
    def is_native(self) -> bool:
        """Whether the server itself keeps the deadlines, so that there is no due index."""
        return self.backend in (NATIVE, LEAVING)

    @cached_property
    def is_guarded(self) -> bool:
        """Whether the server keeps the deadlines, but only scripts run its commands."""
        return self.backend == LEAVING

    @cached_property
    def is_moving(self) -> bool:
        """Whether the namespace is on its way from one backend to another."""
        return self.backend in (MIGRATING, LEAVING, RETURNING)

    @cached_property
    def rules(self) -> tuple[str, int, bool]:
        """The part that may change while a process goes by the layout, and that decides for it."""
        return self.backend, self.version, self.writable

    @cached_property
    def mark(self) -> str:
        """The marks that an index shard may bear when a script writes there.

        The first mark is for an index shard that has no mark; spaces separate the marks.
        """
        marks = {LEAVING: (NATIVE,), RETURNING: (EMULATED, RETURNING)}
        return self.marks_of(*marks.get(self.backend, (self.backend,)))

    def marks_of(self, *backends: str) -> str:
        """Return the marks of index shards with those backends, separated by spaces."""
        return " ".join(f"{self.version}:{backend}" for backend in backends)

    @cached_property
    def registers_shards(self) -> bool:
        """Whether there are so many index shards that a registry names the ones in use."""
        return self.index_shards > INDEX_SHARDS_OF_A_SERVER

    def require_writable(self) -> None:
        """Check that this release may write the layout.

        Raises: LayoutError if it may only read it.
        """
        if not self.writable:
            raise only_readable(f"the namespace {self.namespace!r}", self.version)

    def shard_of(self, slot: int) -> int:
        """Return the index shard of a hash slot: the slot itself on a cluster."""
        return slot % self.index_shards


class Names:
    """The names of the keys that every namespace has; see the catalogue in ``lua/README.md``.

    Arguments:
        namespace: 1 to 64 letters, digits, dots, dashes and underscores.

    Raises: ConfigurationError for anything else. A subclass names the structure that the namespace
    holds.
    """

    kind: ClassVar[NamespaceKind]

    def __init__(self, namespace: str) -> None:
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise ConfigurationError(
                f"the namespace {namespace!r} is not usable: give 1 to 64 letters, digits, dots,"
                " dashes or underscores"
            )
        self.namespace = namespace
        self.called = f"the namespace {namespace!r}"
        self._middle = b"}:ws:" + namespace.encode()
        self._due_end = self._middle + b":due"
        self._mark_end = self._middle + b":mark"
        self.layout = f"ws:{namespace}:layout".encode()
        self.registry = f"ws:{namespace}:slots".encode()
        self._index_keys: dict[int, tuple[bytes, bytes]] = {}

    def asked(self) -> AbstractContextManager[None]:
        """Ask the due indexes. Raises: LayoutError if one of the keys holds something else."""
        return holding_ours(b"{...}:ws:" + self.namespace.encode() + b":due")

    def due(self, shard: int) -> bytes:
        """Return the key of an index shard's due index."""
        return b"{" + SLOT_TAGS[shard] + self._due_end

    def mark(self, shard: int) -> bytes:
        """Return the key of an index shard's layout mark."""
        return b"{" + SLOT_TAGS[shard] + self._mark_end

    def on_each_primary(self, job_client: JobClient) -> list[bytes]:
        """Return one key in a slot of each primary; the layout's key for the primary that has it.

        A cluster's client must have read its map. Raises: Unmapped if it has not. No round trip.
        """
        if not job_client.is_cluster:
            return [self.layout]
        own = job_client.node_of(key_slot(self.layout))
        places = job_client.a_slot_of_each()
        return [self.layout, *(self.mark(slot) for node, slot in places.items() if node != own)]

    def carried(self, shard: int) -> bytes:
        """Return the key of the set of an index shard's keys that came from other nodes."""
        return b"{" + SLOT_TAGS[shard] + self._middle + b":carried"

    def leaving(self, shard: int) -> bytes:
        """Return the key of the tokens of an index shard's keys that go to other nodes."""
        return b"{" + SLOT_TAGS[shard] + self._middle + b":leaving"

    def index_keys(self, shard: int) -> tuple[bytes, bytes]:
        """Return the keys of an index shard's due index and mark, made once."""
        keys = self._index_keys.get(shard)
        if keys is None:
            keys = self._index_keys[shard] = (self.due(shard), self.mark(shard))
        return keys


def read_layout(names: Names) -> Steps[Layout | None]:
    """Read a namespace's layout; None if it has none yet.

    Raises: LayoutError for a foreign or unreadable one. One round trip.
    """
    found = yield from layouts.read_layout(names.kind, names.layout, names.called, _own(names))
    return None if found is None else _layout(names, found)


def write_layout(names: Names, backend: str, index_shards: int) -> Steps[Layout]:
    """Write a namespace's layout down, unless it has one; return the layout that holds.

    Raises: LayoutError for a foreign key in the layout's place. One round trip.
    """
    fields = names.kind.fields("backend", backend, "index_shards", index_shards)
    reply = yield layouts.opening(names.layout, fields)
    found = layouts.read_pairs(names.kind, names.layout, names.called, reply, _own(names))
    assert found is not None, "it has just been written"
    return _layout(names, found)


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

    Arguments:
        names: of the namespace.
        index_shards: of a new one.
        allowed: eviction policies that the user accepts by name.

    Raises: LayoutError for a foreign layout; EvictionPolicyError. Two or three round trips.
    """
    found = yield from read_layout(names)
    policy = yield from layouts.ask_policy(names.layout)
    layouts.require_policy(names.kind, policy, allowed)
    if found is None:
        (backend,) = names.kind.backends
        found = yield from write_layout(names, backend, index_shards)
    return found


def _own(names: Names) -> Callable[[Mapping[str, str]], tuple[str, int]]:
    def read(pairs: Mapping[str, str]) -> tuple[str, int]:
        backend, shards = pairs["backend"], int(pairs["index_shards"])
        if backend not in names.kind.backends or not 1 <= shards <= SLOTS:
            raise ValueError(backend, shards)
        return backend, shards

    return read


def _layout(names: Names, found: Versioned[tuple[str, int]]) -> Layout:
    backend, shards = found.own
    return Layout(names.namespace, backend, shards, found.version, found.writable)


class Namespaced(Generic[ClientT]):
    """A client, a namespace on it, and the namespace's layout as this process knows it.

    Arguments:
        client: any client of redis-py.
        allow_eviction: names of ``allkeys-*`` policies to accept.

    Raises: ConfigurationError, also for a blocking client where an asyncio client belongs, or the
    reverse. Makes no connection.
    """

    def __init__(self, client: ClientT, namespace: str, allow_eviction: Collection[str]) -> None:
        self._policies = layouts.checked_policies(allow_eviction)
        # Checks the client; makes no connection.
        self.job_client: JobClient = job_client_for(self, client)
        self.client: Any = redis_client(client)
        self.namespace = namespace
        self.name = namespace
        self._layout: Layout | None = None
        self._registered: set[int] = set()

    def __repr__(self) -> str:
        # Without the client: redis-py's repr of a client fills a page.
        return f"<{type(self).__name__} {self.namespace!r}>"

    @property
    def layout(self) -> Layout | None:
        """The namespace's layout as this process has read it; None before the first command."""
        return self._layout

    def forget(self) -> None:
        """Let the next command read the layout and register index shards again; no round trip.

        The structure's job calls it when it sees that the server has lost its data.
        """
        self._layout = None
        self._registered = set()


class NamespaceStructure(Namespaced[ClientT], Structure):
    """A structure that is a whole namespace, with the size and the checks of its due index."""

    names: Names
    holds: ClassVar[str]
    """The type of the users' keys, as the server names it."""
    fleet_form: ClassVar[type[Any]]
    """The form of the class for fleets, whose keys lie on several nodes."""
    single_form: ClassVar[type[Any]]
    """Of a form for fleets: the class of the structure on each node."""

    @property
    def on_nodes(self) -> Mapping[str, Self]:
        """The structure by its one client; on a fleet, that of each node by the node's name."""
        return {"": self}

    def size_steps(self) -> Steps[int | None]:
        """Return the number of keys in the due index; None if the server keeps the deadlines.

        Two round trips, and one more on a cluster.
        """
        found = yield from read_layout(self.names)
        if found is None:
            return 0
        if found.is_native:
            return None
        shards: Collection[int] = range(found.index_shards)
        if found.registers_shards:
            shards = yield from read_registry(self.names)
        with self.names.asked():
            sizes: list[int] = yield [command("ZCARD", self.names.due(shard)) for shard in shards]
        return sum(sizes)

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Check that the namespace has a layout that this release can write."""
        checks, _ = yield from self._layout_checks()
        return checks

    def _layout_checks(self) -> Steps[tuple[list[Check], Layout | None]]:
        # On a fleet the name has the node's, and the namespace is that of all nodes.
        named = f"namespace {self.name}"
        found = yield from read_layout(self.names)
        if found is None:
            return [Check("", NOTE, f"{named}: nothing has been written yet")], None
        found.require_writable()
        said = f"{named}: {found.backend}, layout version {found.version}"
        return [Check("", OK, said)], found
