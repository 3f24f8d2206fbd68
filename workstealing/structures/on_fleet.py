"""Structures that a fleet spreads by their keys: one whole structure on each node.

Each node has its own layout, due index and deadlines, so a dead node harms its own keys only. The
key alone decides which node does a command.

Keys are carried over to their new homes while a fleet has more nodes than before, or others.
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

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from redis.exceptions import RedisError

from workstealing.errors import ConfigurationError
from workstealing.store.fleet import AnyFleet
from workstealing.store.job_client import wrong_form
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.operations import (
    AS_BYTES,
    Operation,
    Steps,
    drive,
    drive_async,
    send_step,
    send_step_async,
)
from workstealing.store.pipeline import checked_results
from workstealing.store.scripts import load
from workstealing.structures.namespace import INDEX_SHARDS_OF_A_SERVER, Layout

# A node that cannot be reached raises one of these.
_FAULTS = (RedisError, OSError)
# A process remembers so many moving names; then it asks their former homes again.
_MOST_DONE = 100_000


def form_for(kind: type[Any], client: Any) -> type[Any]:
    """Return the class of the structure that `kind` makes on a client: its fleet form, or `kind`.

    Raises: ConfigurationError for the other kind of fleet, and for a user's subclass, which has no
    form for fleets.
    """
    if not isinstance(client, AnyFleet) or issubclass(kind, OnFleet):
        return kind
    # redis-py's own name for it.
    if client._is_async_client is not kind._is_async_client:  # noqa: SLF001
        raise wrong_form(object.__new__(kind), "fleet")
    form: type[Any] = kind.fleet_form
    if not issubclass(form, kind):
        raise ConfigurationError(
            f"{kind.__name__} is a subclass without a form for fleets: give it the client of a node"
        )
    return form


def set_up(structure: Any, fleet: Any, namespace: str, **settings: Any) -> None:
    """Construct a structure on a fleet, and the structure of each node.

    Arguments:
        namespace: of the structure on each node.
        settings: of the structure on each node.

    Raises: as the structure's own constructor.
    """
    kind = structure.single_form
    everyone = {**fleet.former_nodes, **fleet.nodes}
    every = {name: kind(client, namespace, **settings) for name, client in everyone.items()}
    for name, each in every.items():
        each.name = f"{each.name} on {name}"
        each.fleet = fleet
    structure.begin(fleet, namespace, every)


class OnFleet:
    """The part that structures on a fleet share.

    Attributes: fleet; on_nodes: the structure on each node, by the node's name.
    """

    fleet: Any
    client: Any
    namespace: str
    name: str
    _on_nodes: Mapping[str, Any]
    _every: Mapping[str, Any]
    _done: set[Any]

    def begin(self, fleet: Any, namespace: str, every: Mapping[str, Any]) -> None:
        """Take the fleet and the structures on its present and former nodes; no round trip."""
        self.fleet = self.client = fleet
        self.namespace = self.name = namespace
        self._every = MappingProxyType(dict(every))
        self._on_nodes = MappingProxyType({name: every[name] for name in fleet.nodes})
        # The moving names that this process has seen at their new homes, and the fences raised.
        self._done = set()

    @property
    def every_node(self) -> Mapping[str, Any]:
        """The structure on each present and each former node, by the node's name."""
        return self._every

    def _moving(self, names: Sequence[Any], *, leases: bool = False) -> Iterator[Any]:
        """Yield the former and the new structure of names that may be at their former home.

        The third item makes the steps, given both layouts.
        """
        for name in names:
            former = self.fleet.former_home(name)
            if former is None:
                continue
            raw = to_bytes(name)
            old, new = self._every[former], self._on_nodes[self.fleet.home(name)]
            if raw not in self._done:
                yield old, new, partial(carry, old, new, raw)
                self._note_done(raw)
            if not (leases and old.holds == "string"):
                continue
            grant = old.names.grant(raw)
            if grant not in self._done:
                yield old, new, partial(carry, old, new, grant)
                self._note_done(grant)
            shard = key_slot(raw) % INDEX_SHARDS_OF_A_SERVER
            if (old.name, new.name, shard) not in self._done:
                yield old, new, partial(_raised, old, new, shard)
                self._note_done((old.name, new.name, shard))

    def _note_done(self, what: Any) -> None:
        if len(self._done) >= _MOST_DONE:
            self._done = set()
        self._done.add(what)

    def ready(self, names: Sequence[Any], *, leases: bool = False) -> None:
        """Carry names over that are still at their former home; on an `AsyncFleet` await `aready`.

        Every command does it by itself. One round trip for the first use of a moving name in this
        process, or three; none when no keys move. Raises: ConfigurationError.
        """
        if self.fleet.former_nodes:
            for old, new, steps in self._moving(names, leases=leases):
                layouts = (old.layout or old.open(), new.layout or new.open())
                drive(None, steps(layouts), _send_there)

    async def aready(self, names: Sequence[Any], *, leases: bool = False) -> None:
        """Carry names over that are still at their former home; see `ready`."""
        if not self.fleet.former_nodes:
            return
        for old, new, steps in self._moving(names, leases=leases):
            layouts = (old.layout or await old.open(), new.layout or await new.open())
            await drive_async(None, steps(layouts), _send_there_async)

    @property
    def on_nodes(self) -> Mapping[str, Any]:
        """The structure on each node, by the node's name."""
        return self._on_nodes

    if TYPE_CHECKING:
        job_client: Any
        translator: Any
        layout: Any
    else:

        @property
        def job_client(self) -> Any:
            """No job client: each node has its own. Raises: ConfigurationError."""
            raise self._divided()

        @property
        def translator(self) -> Any:
            """No translator: each node has its own. Raises: ConfigurationError."""
            raise self._divided()

        @property
        def layout(self) -> Any:
            """No layout: each node has its own. Raises: ConfigurationError."""
            raise self._divided()

    def layout_steps(self, **_: Any) -> Any:
        """Refuse, because each node has its own layout. Raises: ConfigurationError."""
        raise self._divided()

    def forget(self) -> None:
        """Let the next command on each node read its layout again; no round trip."""
        for each in self._on_nodes.values():
            each.forget()

    def _divided(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.name!r} on a fleet is a structure of its own on each node: take one of its"
            f" on_nodes ({', '.join(self._on_nodes)})"
        )

    def _node_of(self, names: Sequence[Any]) -> Any:
        return self._on_nodes[self.fleet.common_home(names)]

    def _split(self, names: Sequence[Any]) -> dict[str, list[Any]] | None:
        """Return the names of a command's keys by node; None if one node can do it."""
        split: dict[str, list[Any]] = {}
        for name in names:
            split.setdefault(self.fleet.home(name), []).append(name)
        return split if len(split) > 1 else None

    @contextmanager
    def _noting(self, found: dict[str, Any], node: str) -> Iterator[None]:
        """Note a node's error as its answer, so that the other nodes are asked too."""
        try:
            yield
        except _FAULTS as error:
            found[node] = error

    def _combined(self, args: Sequence[Any], found: Mapping[str, Any]) -> Any:
        """Return a command's result from those of the nodes. Raises: the first of their errors."""
        for each in found.values():
            if isinstance(each, Exception):
                raise each
        if args[0] != "MGET":
            return sum(found.values())
        values = {node: iter(each) for node, each in found.items()}
        return [next(values[self.fleet.home(name)]) for name in args[1:]]

    def open(self) -> Any:
        """Open the structure on each node; return the layouts by node, to be awaited or at once.

        Raises: the first error, when all nodes have been tried. Two or three round trips a node.
        """
        if self.fleet._is_async_client:  # noqa: SLF001 - redis-py's own name for it
            return self._open_async()
        found: dict[str, Any] = {}
        for node, each in self._on_nodes.items():
            with self._noting(found, node):
                found[node] = each.open()
        return _all_of(found)

    async def _open_async(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for node, each in self._on_nodes.items():
            with self._noting(found, node):
                found[node] = await each.open()
        return _all_of(found)


def _send_there(_: None, step: tuple[Any, Any]) -> Any:
    structure, operation = step
    return send_step(structure.client, operation)


def _send_there_async(_: None, step: tuple[Any, Any]) -> Awaitable[Any]:
    structure, operation = step
    return send_step_async(structure.client, operation)


def _raised(old: Any, new: Any, shard: int, _: Any) -> Any:
    return raise_fence(old, new, shard)


def _all_of(found: dict[str, Any]) -> dict[str, Any]:
    for each in found.values():
        if isinstance(each, Exception):
            raise each
    return found


def led(method: str) -> Any:
    """Return a method that leads to the same method on the node of the key, its first argument."""

    def call(self: OnFleet, name: Any, *args: Any, **options: Any) -> Any:
        if self.fleet._is_async_client:  # noqa: SLF001 - redis-py's own name for it
            return awaited(self, name, *args, **options)
        self.ready((name,), leases=True)
        return getattr(self._node_of((name,)), method)(name, *args, **options)

    async def awaited(self: OnFleet, name: Any, *args: Any, **options: Any) -> Any:
        await self.aready((name,), leases=True)
        return await getattr(self._node_of((name,)), method)(name, *args, **options)

    call.__name__ = method
    return call


class FleetPipeline:
    """Commands on a fleet, which `execute` sends to each node in one round trip a node.

    There is no transaction across nodes: the commands of each node are one MULTI/EXEC of their own.
    The user's own commands have no place on it. A command with several names needs them on one
    node: see `Fleet.common_home`.
    """

    _is_async_client: Literal[False] = False
    _names_in: Callable[[Sequence[Any]], Sequence[Any]]

    def __init__(self, structure: Any, transaction: bool) -> None:
        self._structure = structure
        self._fleet = structure.fleet
        self._on_nodes = structure.on_nodes
        self._transaction = transaction
        self._queue: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __len__(self) -> int:
        """Return how many commands are queued."""
        return len(self._queue)

    def __bool__(self) -> bool:
        """Return True: a pipeline is a thing, however little is queued on it."""
        return True

    def reset(self) -> None:
        """Forget what is queued."""
        self._queue = []

    def execute_command(self, *args: Any, **options: Any) -> Self:
        """Queue one command for the node of its key. Raises: CrossSlotError; as on one node."""
        names = type(self)._names_in(args)  # noqa: SLF001 - its own
        self._queue.append((self._fleet.common_home(names), args, options))
        return self

    def _names(self) -> list[Any]:
        """Return the names of the keys in all queued commands."""
        names_in = type(self)._names_in  # noqa: SLF001 - its own
        return [name for _, args, _ in self._queue for name in names_in(args)]

    def _taken(self) -> tuple[int, dict[str, tuple[list[int], Any]]]:
        """Return how many commands are queued; and by node their places, and its own pipeline."""
        queue, self._queue = self._queue, []
        by_node: dict[str, tuple[list[int], Any]] = {}
        for place, (node, args, options) in enumerate(queue):
            if node not in by_node:
                by_node[node] = ([], self._on_nodes[node].pipeline(self._transaction))
            places, pipeline = by_node[node]
            pipeline.execute_command(*args, **options)
            places.append(place)
        return len(queue), by_node


class BlockingFleetPipeline(FleetPipeline):
    """A `FleetPipeline` on a `Fleet`."""

    def __enter__(self) -> Self:
        """Return the pipeline."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued; return the results in order.

        Arguments:
            raise_on_error: whether the first error is raised, when all nodes have been served, or
                returned in its place.

        For a node that cannot be reached, each of its commands has the error as its result. One
        round trip a node, one after the other.
        """
        self._structure.ready(self._names(), leases=True)
        size, by_node = self._taken()
        results: list[Any] = [None] * size
        for places, pipeline in by_node.values():
            try:
                replies = pipeline.execute(raise_on_error=False)
            except _FAULTS as error:
                replies = [error] * len(places)
            for place, reply in zip(places, replies, strict=True):
                results[place] = reply
        return checked_results(results, raise_on_error)


class AsyncFleetPipeline(FleetPipeline):
    """A `FleetPipeline` on an `AsyncFleet`."""

    async def __aenter__(self) -> Self:
        """Return the pipeline."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued to all nodes at once; see `BlockingFleetPipeline.execute`."""
        await self._structure.aready(self._names(), leases=True)
        size, by_node = self._taken()
        results: list[Any] = [None] * size

        async def send(places: list[int], pipeline: Any) -> None:
            try:
                replies = await pipeline.execute(raise_on_error=False)
            except _FAULTS as error:
                replies = [error] * len(places)
            for place, reply in zip(places, replies, strict=True):
                results[place] = reply

        await asyncio.gather(*(send(*each) for each in by_node.values()))
        return checked_results(results, raise_on_error)


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
