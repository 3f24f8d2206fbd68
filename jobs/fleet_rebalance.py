"""The job that carries keys over to their new homes when the nodes of a fleet have changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import ConfigurationError, Skipped
from workstealing.recruiting.breaker import Servers
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import Job, drawn
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.operations import Operation
from workstealing.structures.carrying import carry_in, carry_out, drop, raise_fence, require_alike
from workstealing.structures.due_index import DueIndex
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.namespace import Layout, write_layout
from workstealing.structures.on_fleet import OnFleet

__all__ = ["FleetRebalance"]

_SCANNED = 100


class FleetRebalance(Job):
    """Carries keys over from the former nodes of a fleet, while readers and writers go on.

    Arguments: structure: VolatileHashes or DurableKeys on a fleet with `previous`; match: a pattern
    of redis's SCAN for keys without a deadline, which no due index names (all strings, or hashes,
    that match it belong to the namespace); limit: the most keys a slice carries; name: by default
    ``fleet_rebalance.<namespace>``; random: returns a float in [0, 1), for the choice of the node.

    A slice looks at one page of one former node, and carries the keys on it whose home is another
    node: one round trip to look, two to the former home, and one to each new one. A key is carried
    at its first use as well, so the job moves the keys that nobody uses. It is done when
    `left_over` says 0. On a fleet without `previous` it removes the marks of the move that is over.
    """

    def __init__(
        self,
        structure: Any,
        match: str | None = None,
        limit: int = 25,
        *,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(structure, OnFleet):
            raise ConfigurationError(
                f"expected VolatileHashes or DurableKeys on a Fleet, not {structure!r}"
            )
        if any(each.twin.is_cluster for each in structure.every_node.values()):
            raise ConfigurationError(
                f"{structure.name!r} lies on nodes that are clusters, and between those no keys are"
                " carried over: install no FleetRebalance for it"
            )
        self.structure = structure
        self.structures = tuple(structure.every_node.values())
        self.limit = checked_limit(limit)
        self.name = f"fleet_rebalance.{structure.namespace}" if name is None else name
        self._match = match
        self._random = random
        self._indexes = {
            node: DueIndex(each.twin, each.names, each.translator.clock_shift_ms, random, clock)
            for node, each in structure.every_node.items()
        }
        self.dependency: Hashable = Servers(each.twin.identity for each in self.structures)
        self._former = list(structure.fleet.former_nodes)
        # By former node: the place of this process's walk, a number of a part and a cursor.
        self._places: dict[str, tuple[int, bytes]] = {}
        self._fenced: set[tuple[str, str]] = set()

    def perform(self, slice: Slice) -> int:
        """Carry up to ``slice.limit`` keys of one former node.

        Returns: how many. Raises: ConfigurationError if two nodes have different layouts;
        LayoutError; OutOfTime; connection faults.
        """
        nodes = self._former or list(self._indexes)
        free = [node for node in nodes if self._identity(node) not in slice.held_back]
        if not free:
            raise Skipped("all former nodes are left alone after faults")
        node = free[drawn(len(free), self._random)]
        slice.served = self._identity(node)
        layout = self._indexes[node].layout(Budget(slice.remaining()))
        if layout is None:
            return 0
        if not self._former:
            return self._forget_move(node, layout, slice)
        place = self._places.get(node, (0, b"0"))
        names, after = self._page(node, layout, place, Budget(slice.remaining()))
        moving = [name for name in names if self.structure.fleet.former_home(name) == node]
        some = moving[: slice.limit]
        carried = self._carry(node, layout, some, slice)
        if len(some) == len(moving):
            # Else the next slice meets the rest of this page.
            self._places[node] = after
        return carried

    def left_over(self, seconds: float = 5.0) -> int:
        """Return how many keys wait at their former homes; changes nothing.

        Keys without a deadline are counted by `match`. Arguments: seconds: the most time. Raises:
        as `perform`. O(keys) on the former nodes.
        """
        budget = Budget(seconds, timeout=1.0)
        found: set[bytes] = set()
        for node in self._former:
            layout = self._indexes[node].layout(budget)
            place = (0, b"0")
            while layout is not None:
                names, place = self._page(node, layout, place, budget)
                found.update(n for n in names if self.structure.fleet.former_home(n) == node)
                if place == (0, b"0"):
                    break
        return len(found)

    def warm_up(self) -> None:
        """Load the scripts and prepare connections; no round trip."""
        for each in self.structures:
            each.twin.warm_up("fleet/", LAYOUT_SCRIPTS)

    def _identity(self, node: str) -> Hashable:
        identity: Hashable = self.structure.every_node[node].twin.identity
        return identity

    def _page(
        self, node: str, layout: Layout, place: tuple[int, bytes], budget: Budget
    ) -> tuple[list[bytes], tuple[int, bytes]]:
        """Return some keys of the namespace on a node, and the place behind them."""
        part, cursor = place
        structure = self.structure.every_node[node]
        parts = 0 if layout.is_native else layout.index_shards
        command: tuple[Any, ...]
        if part < parts:
            command = ("ZSCAN", structure.names.due(part), cursor, "COUNT", _SCANNED)
        elif self._match is not None:
            kind = structure.holds
            command = ("SCAN", cursor, "MATCH", self._match, "COUNT", _SCANNED, "TYPE", kind)
        else:
            return [], (0, b"0")
        (reply,) = checked(structure.twin.call(structure.twin.nodes()[0], [command], budget))
        names = list(reply[1][::2] if part < parts else reply[1])
        if reply[0] != b"0":
            return names, (part, reply[0])
        last = parts if self._match is not None else parts - 1
        return names, (part + 1, b"0") if part < last else (0, b"0")

    def _carry(self, node: str, layout: Layout, names: list[bytes], slice: Slice) -> int:
        old = self.structure.every_node[node]
        carried = 0
        by_home: dict[str, list[bytes]] = {}
        for name in names:
            by_home.setdefault(self.structure.fleet.home(name), []).append(name)
        for home, some in by_home.items():
            if self._identity(home) in slice.held_back:
                continue
            new = self.structure.every_node[home]
            target = self._layout_of(home, layout, slice)
            require_alike(old, layout, target)
            if old.holds == "string" and (node, home) not in self._fenced:
                self._raise_fences(node, home, layout, slice)
            found = self._call(old, [carry_out(old, name, layout) for name in some], slice)
            there = [(n, each) for n, each in zip(some, found, strict=True) if each]
            self._call(new, [carry_in(new, n, target, each) for n, each in there], slice)
            # Also those that had expired.
            self._call(old, [drop(old, name, layout) for name in some], slice)
            carried += len(some)
        return carried

    def _layout_of(self, home: str, layout: Layout, slice: Slice) -> Layout:
        index = self._indexes[home]
        found = index.layout(Budget(slice.remaining()))
        if found is not None:
            return found
        steps = write_layout(index.names, layout.backend, layout.index_shards)
        return index.drive(steps, Budget(slice.remaining()))

    def _raise_fences(self, node: str, home: str, layout: Layout, slice: Slice) -> None:
        every = self.structure.every_node
        old, new = every[node], every[home]
        for shard in range(layout.index_shards):
            steps = raise_fence(old, new, shard)
            reply: Any = None
            try:
                while True:
                    structure, operation = steps.send(reply)
                    (reply,) = self._call(structure, [operation], slice)
            except StopIteration:
                pass
        self._fenced.add((node, home))

    def _call(self, structure: Any, operations: list[Operation], slice: Slice) -> list[Any]:
        if not operations:
            return []
        slice.spend(len(operations))
        twin = structure.twin
        commands = [each.by_text() for each in operations]
        replies = checked(twin.call(twin.nodes()[0], commands, Budget(slice.remaining())))
        return [each.read(reply) for each, reply in zip(operations, replies, strict=True)]

    def _forget_move(self, node: str, layout: Layout, slice: Slice) -> int:
        """Remove the marks of carried keys on a node; return how many sets there were."""
        structure = self.structure.every_node[node]
        sets = [structure.names.carried(shard) for shard in range(layout.index_shards)]
        twin = structure.twin
        commands = [("UNLINK", each) for each in sets]
        replies = twin.call(twin.nodes()[0], commands, Budget(slice.remaining()))
        return sum(int(each) for each in checked(replies))
