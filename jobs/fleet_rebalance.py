"""The job that carries keys over to their new homes when the nodes of a fleet have changed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from workstealing.clock import SYSTEM_CLOCK, Clock, Duration
from workstealing.errors import ConfigurationError, OutOfTime, Skipped
from workstealing.recruiting.breakers import Servers
from workstealing.recruiting.checks import checked_limit
from workstealing.recruiting.job import (
    Backlog,
    DivisibleJob,
    PartJob,
    drawn,
    groups_of,
    refuse_dry_run,
)
from workstealing.recruiting.slice import Slice
from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.keys import key_slot
from workstealing.store.operations import Operation
from workstealing.structures.access import MOVING, ON_FLEETS, Access, JobAccess
from workstealing.structures.due_index import DueIndex
from workstealing.structures.layout import LAYOUT_SCRIPTS
from workstealing.structures.namespace import Layout, write_layout
from workstealing.structures.on_fleet import (
    OnFleet,
    carry_in,
    carry_out,
    drop,
    fence_raised,
    read_fence,
    require_alike,
)

__all__ = ["FleetRebalance"]

_SCANNED = 100
_WHAT, _MARKS = "keys at their former homes", "marks of a move that is over"


class _NodePlace(NamedTuple):
    """A place in a walk over some stretches of a node. Fields: number of the stretch; cursor."""

    number: int = 0
    cursor: bytes = b"0"


_START = _NodePlace()


class _WalkedPage(NamedTuple):
    """One page of a walk. Fields: handled; moving: found; after: the next place; is_end."""

    handled: int
    moving: int
    after: _NodePlace
    is_end: bool


class FleetRebalance(DivisibleJob):
    """Carries keys over from the former nodes of a fleet, while readers and writers go on.

    Arguments:
        structure: VolatileHashes or DurableKeys on a fleet with `previous`.
        match: a pattern of redis's SCAN for keys that no due index names: those without a deadline,
            and all keys of a native namespace (all strings, or hashes, that match it belong to the
            namespace); None only if every key has a deadline.
        limit: the most keys a slice carries.
        dry_run: count the keys that it would carry, and change nothing.
        name: by default ``fleet_rebalance.<namespace>``.
        random: returns a float in [0, 1), for the choice of the node.
        clock: for tests.

    Raises: ConfigurationError.

    A slice looks at one page of one former node, and carries the keys on it whose home is another
    node: one round trip to look, two to the former home, and one to each new one. The first slice
    of a process on a node also lets the fencing tokens of leases grow on at the new homes. A key is
    carried at its first use as well, so the job moves the keys that nobody uses. The move is done
    when `backlog` says exactly 0. On a fleet without `previous` it removes the marks of the move
    that is over. A key without a deadline that `match` does not find is neither carried nor
    counted.
    """

    access = JobAccess(
        ON_FLEETS,
        MOVING.plus(Access(keys=(), commands=frozenset({"SCAN", "HSCAN", "ZSCAN", "UNLINK"}))),
    )
    unit = "keys"

    def __init__(
        self,
        structure: Any,
        match: str | None,
        limit: int = 25,
        *,
        dry_run: bool = False,
        name: str | None = None,
        random: Callable[[], float] = random.random,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(structure, OnFleet):
            raise ConfigurationError(
                f"expected VolatileHashes or DurableKeys on a Fleet, not {structure!r}"
            )
        if any(each.job_client.is_cluster for each in structure.every_node.values()):
            raise ConfigurationError(
                f"{structure.name!r} lies on nodes that are clusters, and between those no keys are"
                " carried over: install no FleetRebalance for it"
            )
        self.structure = structure
        self.structures = tuple(structure.every_node.values())
        self.limit = checked_limit(limit)
        self.dry_run = dry_run
        self.name = f"fleet_rebalance.{structure.namespace}" if name is None else name
        self._match = match
        self._random = random
        self._indexes = {
            node: DueIndex(
                each.job_client, each.names, each.translator.clock_shift_ms, random, clock
            )
            for node, each in structure.every_node.items()
        }
        self.dependency: Hashable = Servers(each.job_client.identity for each in self.structures)
        self._former = list(structure.fleet.former_nodes)
        # By former node: the place of this process's walk.
        self._places: dict[str, _NodePlace] = {}
        self._fenced: set[tuple[str, str]] = set()

    def perform(self, slice: Slice) -> int:
        """Carry up to ``slice.limit`` keys of one former node.

        Returns: how many (would be, on a dry run). Raises: ConfigurationError if two nodes have
        different layouts, or for a native namespace without `match`; LayoutError; OutOfTime;
        connection faults.
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
        place = self._places.get(node, _START)
        step = self._step(node, layout, self._stretches(layout), place, slice)
        self._places[node] = step.after
        return step.handled

    def backlog(self, seconds: Duration = 5.0) -> Backlog:
        """Count the keys that wait at their former homes; their age is unknown.

        Keys without a deadline are counted by `match`, and not without it. A key that ended while
        it was carried counts until its token is removed. An index shard whose fencing tokens do not
        grow on at a new home yet counts as a key. Without former nodes, the marks of the move are
        counted. Nodes that cannot be reached are left out, and the count is not exact then, nor if
        there was not time for all.

        Arguments:
            seconds: the most time, in seconds or a timedelta.

        Raises: ConfigurationError for a native namespace without `match`; LayoutError. O(keys) on
        the former nodes, 100 a round trip; else one round trip to each node.
        """
        budget, found, is_exact = Budget.whole(seconds), set[bytes](), True
        for node in self._former or self._indexes:
            look = self._moving_from if self._former else self._marks_on
            try:
                found.update(look(node, budget))
            except (RedisError, OSError, OutOfTime):
                is_exact = False
        age = None if found or not is_exact else 0.0
        return Backlog(len(found), age, _WHAT if self._former else _MARKS, is_exact)

    def _marks_on(self, node: str, budget: Budget) -> Iterator[bytes]:
        layout = self._indexes[node].layout(budget)
        if layout is None:
            return
        structure = self.structure.every_node[node]
        sets = _marks_of(structure, layout)
        job_client = structure.job_client
        replies = job_client.call(
            job_client.nodes()[0], [("EXISTS", each) for each in sets], budget
        )
        for each, there in zip(sets, checked(replies), strict=True):
            if there:
                yield node.encode() + each

    def _moving_from(self, node: str, budget: Budget) -> Iterator[bytes]:
        layout, place = self._indexes[node].layout(budget), _START
        while layout is not None:
            names, place = self._page(node, layout, self._stretches(layout), place, budget)
            yield from self._of_others(node, names)
            if place == _START:
                yield from self._lagging_fences(node, layout, budget)
                return

    def parts(self, n: int) -> Sequence[Any]:
        """Divide the former nodes for a sweep; see `DivisibleJob.parts`. A dry run is refused.

        Raises: ConfigurationError for a native namespace without `match`. One round trip to each
        former node.
        """
        refuse_dry_run(self.name, dry_run=self.dry_run)
        stretches = []
        for node in self._former:
            layout = self._indexes[node].layout(Budget(10.0, timeout=1.0))
            if layout is not None:
                stretches += [(node, number) for number in self._stretches(layout)]
        return [tuple(stretches[i] for i in group) for group in groups_of(range(len(stretches)), n)]

    def for_part(self, part: Any) -> PartJob:
        """Return the job of one part; no round trip."""
        return _RebalancingPart(self, part)

    def carry_of(self, node: str, number: int, place: _NodePlace, slice: Slice) -> _WalkedPage:
        """Carry the keys of one page of one stretch of a node; for a sweep."""
        layout = self._indexes[node].layout(Budget(slice.remaining()))
        if layout is None:
            return _WalkedPage(0, 0, _START, is_end=True)
        return self._step(node, layout, (number,), place, slice)

    def warm_up(self) -> None:
        """Load the scripts from their files and make connection objects; no round trip."""
        for each in self.structures:
            each.job_client.warm_up("fleet/", LAYOUT_SCRIPTS)

    def _identity(self, node: str) -> Hashable:
        identity: Hashable = self.structure.every_node[node].job_client.identity
        return identity

    def _identity_of_home(self, name: bytes) -> Hashable:
        return self._identity(self.structure.fleet.home(name))

    def _stretches(self, layout: Layout) -> range:
        """Return the numbers of a node's stretches: see `_command`. Raises: ConfigurationError."""
        if layout.is_native and self._match is None:
            # A walk would find no key, and 0 exactly would be taken for the end of the move.
            raise ConfigurationError(
                f"{self.structure.namespace!r} is native, so only a pattern finds its keys: give"
                " match=, such as match='item:*'"
            )
        indexes = 1 if layout.is_native else 2
        return range(indexes * layout.index_shards + (self._match is not None))

    def _of_others(self, node: str, names: list[bytes]) -> list[bytes]:
        return [name for name in names if self.structure.fleet.former_home(name) == node]

    def _step(
        self, node: str, layout: Layout, stretches: Sequence[int], place: _NodePlace, slice: Slice
    ) -> _WalkedPage:
        """Carry the keys of one page, or count them on a dry run."""
        if not self.dry_run:
            self._raise_fences(node, layout, slice)
        budget = Budget(slice.remaining())
        names, after = self._page(node, layout, stretches, place, budget)
        moving = self._of_others(node, names)
        # The keys of a new home that is left alone stay, and hold up no others.
        free = [name for name in moving if self._identity_of_home(name) not in slice.held_back]
        some = free[: slice.limit]
        if self.dry_run:
            return _WalkedPage(len(some), len(moving), after, is_end=after == _START)
        carried = self._carry(node, layout, some, slice)
        if len(some) < len(free):
            # The next slice meets the rest of this page.
            return _WalkedPage(carried, len(moving), place, is_end=False)
        return _WalkedPage(carried, len(moving), after, is_end=after == _START)

    def _page(
        self,
        node: str,
        layout: Layout,
        stretches: Sequence[int],
        place: _NodePlace,
        budget: Budget,
    ) -> tuple[list[bytes], _NodePlace]:
        """Return some keys of the namespace on a node, and the place behind them."""
        if not stretches:
            return [], _START
        number, cursor = place
        if number >= len(stretches):
            # The namespace has become native meanwhile, and has fewer of them.
            number, cursor = _START
        structure = self.structure.every_node[node]
        command = self._command(structure, layout, stretches[number], cursor)
        with structure.names.asked():
            (reply,) = checked(
                structure.job_client.call(structure.job_client.nodes()[0], [command], budget)
            )
        # An index says a time or a token beside each name.
        names = list(reply[1] if command[0] == "SCAN" else reply[1][::2])
        if command[0] == "HSCAN":
            # A token in another shard's hash is not ours: no script would ever remove it there.
            names = [
                name
                for name in names
                if structure.names.leaving(layout.shard_of(key_slot(name))) == command[1]
            ]
        if reply[0] != b"0":
            return names, _NodePlace(number, reply[0])
        return names, _NodePlace(number + 1) if number + 1 < len(stretches) else _START

    def _command(
        self, structure: Any, layout: Layout, stretch: int, cursor: bytes
    ) -> tuple[Any, ...]:
        """Return the command that reads a page of a stretch.

        The stretches are the due index of each index shard, which a native layout lacks, the tokens
        of leaving keys in each, and the keys that `match` finds. A key that ended while it was
        carried is named by its token alone.
        """
        index, shard = divmod(stretch, layout.index_shards)
        if index == 0 and not layout.is_native:
            return "ZSCAN", structure.names.due(shard), cursor, "COUNT", _SCANNED
        if index <= 1 - layout.is_native:
            return "HSCAN", structure.names.leaving(shard), cursor, "COUNT", _SCANNED
        return "SCAN", cursor, "MATCH", self._match, "COUNT", _SCANNED, "TYPE", structure.holds

    def _carry(self, node: str, layout: Layout, names: list[bytes], slice: Slice) -> int:
        old = self.structure.every_node[node]
        carried = 0
        by_home: dict[str, list[bytes]] = {}
        for name in names:
            by_home.setdefault(self.structure.fleet.home(name), []).append(name)
        for home, some in by_home.items():
            new = self.structure.every_node[home]
            target = self._layout_of(home, layout, slice)
            require_alike(old, layout, target)
            found = self._call(old, [carry_out(old, name, layout) for name in some], slice)
            there = [(n, each) for n, each in zip(some, found, strict=True) if each]
            self._call(new, [carry_in(new, n, target, each) for n, each in there], slice)
            self._call(old, [drop(old, n, layout, each) for n, each in there], slice)
            # With those that had expired, which are gone.
            carried += len(some)
        return carried

    def _layout_of(self, home: str, layout: Layout, slice: Slice) -> Layout:
        index = self._indexes[home]
        found = index.layout(Budget(slice.remaining()))
        if found is not None:
            return found
        steps = write_layout(index.names, layout.backend, layout.index_shards)
        return index.drive(steps, Budget(slice.remaining()))

    def _homes_of(self, node: str) -> list[str]:
        """Return the nodes that are new homes of keys of a former node."""
        fleet = self.structure.fleet
        stays, former = node in fleet.nodes, fleet.former_nodes
        return [home for home in fleet.nodes if home != node and not (stays and home in former)]

    def _raise_fences(self, node: str, layout: Layout, slice: Slice) -> None:
        """Let tokens grow on at the new homes, also those of leases that nobody holds any more."""
        every = self.structure.every_node
        homes = [
            home
            for home in self._homes_of(node)
            if (node, home) not in self._fenced and self._identity(home) not in slice.held_back
        ]
        if not homes or every[node].holds != "string":
            return
        shards = range(layout.index_shards)
        tokens = self._call(every[node], [read_fence(every[node], each) for each in shards], slice)
        for home in homes:
            new = every[home]
            raised = [fence_raised(new, n, token) for n, token in enumerate(tokens) if token]
            self._call(new, raised, slice)
            self._fenced.add((node, home))

    def _lagging_fences(self, node: str, layout: Layout, budget: Budget) -> Iterator[bytes]:
        """Name the fences at new homes whose tokens would not grow on from a former node's."""
        every, shards = self.structure.every_node, range(layout.index_shards)
        if every[node].holds != "string":
            return

        def tokens_of(name: str) -> tuple[list[tuple[int, bytes]], tuple[int, bytes]]:
            """Return the tokens, and the one that the node's clock would make now."""
            structure = every[name]
            job_client, shift_ms = structure.job_client, structure.translator.clock_shift_ms
            commands = [read_fence(structure, shard).by_text() for shard in shards]
            *tokens, (seconds, micros) = checked(
                job_client.call(job_client.nodes()[0], [*commands, ("TIME",)], budget)
            )
            now = b"%d" % (int(seconds) * 1_000_000 + int(micros) + 1_000 * shift_ms)
            # As is_greater() of the scripts compares them.
            *found, clock = [(len(token), token) for token in (*(t or b"" for t in tokens), now)]
            return found, clock

        former, _ = tokens_of(node)
        stays = node in self.structure.fleet.nodes
        for home in self._homes_of(node) if any(size for size, _ in former) else ():
            if stays and (node, home) in self._fenced:
                # Later tokens are of keys that stay.
                continue
            found, clock = tokens_of(home)
            for shard, (old, new) in enumerate(zip(former, found, strict=True)):
                # Where a node stays nobody knows whose its last token is; that of a node that left
                # is raised in any case, because a clock may be set back.
                if old > (max(new, clock) if stays else new):
                    # The next slice raises it once more.
                    self._fenced.discard((node, home))
                    yield home.encode() + every[home].names.fence(shard)

    def _call(self, structure: Any, operations: list[Operation], slice: Slice) -> list[Any]:
        if not operations:
            return []
        slice.spend(len(operations))
        job_client = structure.job_client
        commands = [each.by_text() for each in operations]
        replies = checked(
            job_client.call(job_client.nodes()[0], commands, Budget(slice.remaining()))
        )
        return [each.read(reply) for each, reply in zip(operations, replies, strict=True)]

    def _forget_move(self, node: str, layout: Layout, slice: Slice) -> int:
        """Remove the marks of carried keys on a node; return how many keys of them there are."""
        structure = self.structure.every_node[node]
        sets = _marks_of(structure, layout)
        job_client = structure.job_client
        commands = [("EXISTS" if self.dry_run else "UNLINK", each) for each in sets]
        replies = job_client.call(job_client.nodes()[0], commands, Budget(slice.remaining()))
        return sum(int(each) for each in checked(replies))


def _marks_of(structure: Any, layout: Layout) -> list[bytes]:
    """Return the keys that a move may leave on a node."""
    names, shards = structure.names, range(layout.index_shards)
    return [*map(names.carried, shards), *map(names.leaving, shards)]


class _RebalancingPart(PartJob):
    """Carries the keys of some stretches of former nodes, one stretch after the other.

    Arguments:
        stretches: pairs of a former node and a number of its stretches.
    """

    def __init__(self, job: FleetRebalance, stretches: Sequence[tuple[str, int]]) -> None:
        self.name, self.limit, self.dependency = job.name, job.limit, job.dependency
        self.structures = job.structures
        self._job = job
        self._left = deque(stretches)
        self._place, self._moving = _START, 0

    @property
    def is_drained(self) -> bool:
        """Whether a walk over each stretch has found no key to carry."""
        return not self._left

    def perform(self, slice: Slice) -> int:
        """Carry up to ``slice.limit`` keys; returns and raises as `FleetRebalance.perform`."""
        handled = 0
        while self._left and not handled and not slice.expired:
            node, number = self._left[0]
            step = self._job.carry_of(node, number, self._place, slice)
            handled, self._place = step.handled, step.after
            self._moving += step.moving
            if step.is_end:
                # Keys that could not be carried now are met by a further walk.
                if not self._moving:
                    self._left.popleft()
                self._moving = 0
        return handled
