"""The due index of a namespace names its keys with garbage, so that no scan is needed.

One round trip asks a few index shards of one node, and a second one asks many more if the first
found too little: on a cluster, nearly all of them may be empty. Recruits choose at random among the
index shards and among the keys found there. A recruit chooses from many more keys than a slice
needs, so recruits rarely meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.clock import Clock
from workstealing.errors import LayoutError, Moved, is_connection_fault
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked, is_elsewhere
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import SLOTS, require_one_slot, to_bytes
from workstealing.store.operations import Operation, Steps, drive
from workstealing.structures.layout import scored
from workstealing.structures.namespace import (
    Layout,
    Names,
    read_layout,
    read_registry,
    register_shards,
    write_layout,
)

# The number of index shards of a first look, and of a second look if the first found too little. An
# empty index shard costs the server less than a microsecond, so the second look is a wide one: if
# one index shard in a hundred has garbage, nine second looks in ten find some.
FIRST_LOOK, SECOND_LOOK = 3, 252
# The most keys of each index shard, and of a whole look.
KEYS_A_SHARD = 16
KEYS_A_LOOK = 1024
# Each choice includes some index shards that the registry does not name, so that the keys of a lost
# registry are found again.
UNREGISTERED_A_LOOK = 4
REGISTRY_SECONDS = 10.0
# For so long a node that did not answer is avoided. This is well above a breaker's period, or every
# other trial would go to that node again.
AVOID_SECONDS = 60.0
AVOIDING_DRAWS = 64
# The most index shards to ask for their node in the search for some on one node, however large the
# registry and the cluster are.
MOST_DRAWS = 1024

T = TypeVar("T")


class DueKey(NamedTuple):
    """A key that the due index names, its index shard, and its due time in ms."""

    key: bytes
    shard: int
    due_ms: float


@dataclass(frozen=True, slots=True)
class DueLook:
    """The result of one look at index shards.

    Fields: found: the keys; now_ms: the server's time; looked: how many of the index shards have
    answered; full: those of them that may have more keys than the look took; foreign: the error
    reply of a due index that holds something foreign, or None; moved: the error of index shards
    that another node has, or None; waiting: about how many keys of these index shards qualify, also
    beyond the keys found; None until the server's time is known.
    """

    found: list[DueKey]
    now_ms: int
    looked: int
    full: list[int]
    foreign: ResponseError | None
    moved: Moved | None
    waiting: int | None


class DueIndex:
    """Looks into the due index of one namespace, through a job client's one-attempt connections.

    Arguments:
        job_client: of the namespace.
        names: of the namespace.
        clock_shift_ms: for tests.
        random: returns a float in [0, 1).
        clock: measures the age of this process's copy of the registry.
        on_loss: called when the layout was lost or has changed.
    """

    def __init__(
        self,
        job_client: JobClient,
        names: Names,
        clock_shift_ms: int,
        random: Callable[[], float],
        clock: Clock,
        *,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        self.job_client = job_client
        self.names = names
        self._shift_ms = clock_shift_ms
        self._random = random
        self._clock = clock
        self._on_loss = on_loss
        self._layout: Layout | None = None
        self._layout_read = 0.0
        self._registry: list[int] = []
        self._known: frozenset[int] = frozenset()
        self._registry_read: float | None = None
        self._avoided: dict[Node, float] = {}
        # The seconds by which the server's clock is ahead of this process's monotonic clock.
        self._ahead: float | None = None

    def layout(self, budget: Budget) -> Layout | None:
        """Return the layout; None if nobody has used the namespace yet.

        If the layout has gone since this process read it, for instance by a FLUSHALL, it is written
        down again, so that all processes keep the same layout. One round trip until there is a
        layout, and one every 10 seconds after that.
        """
        now = self._clock.monotonic()
        before = self._layout
        is_old = before is None or now - self._layout_read >= REGISTRY_SECONDS
        if is_old and not (before and self._is_avoided(self._node_of_key(self.names.layout))):
            found = self.drive(read_layout(self.names), budget)
            if before is not None and found != before:
                self._announce(before, found)
                found = found or self._restored(before, budget)
                self._registry_read = None
                self._on_loss()
            self._layout = found
            self._layout_read = now
        return self._layout

    def _announce(self, before: Layout, found: Layout | None) -> None:
        after = "gone" if found is None else f"{found.backend}, version {found.version}"
        change = f"{before.backend}, version {before.version} -> {after}"
        whose = f"the layout of the {self.names.kind.called} {self.names.namespace!r}"
        ANNOUNCEMENTS.tell("layout", whose, change)

    def _restored(self, layout: Layout, budget: Budget) -> Layout:
        try:
            return self.drive(write_layout(self.names, layout.backend, layout.index_shards), budget)
        except OutOfMemoryError:
            # On a full server, collecting garbage comes first.
            return layout

    def forget_layout(self) -> None:
        """Read the layout anew when it is needed next."""
        self._layout = None

    def look(
        self,
        layout: Layout,
        node: Node,
        shards: Sequence[int],
        budget: Budget,
        *,
        overdue: bool = True,
        until_ms: int | None = None,
        keys_a_shard: int = KEYS_A_SHARD,
    ) -> DueLook:
        """Look at index shards of one node.

        Arguments:
            overdue: only keys whose time has come.
            until_ms: only keys that were due by then.
            keys_a_shard: the most keys of each index shard, the longest due first.

        Raises: connection faults; the error of a server that refuses a command. One round trip,
        with one command for each index shard and two more; a second round trip if the registry
        lacks an index shard.
        """
        window = ("-inf", "+inf" if until_ms is None else until_ms)
        limit = ("BYSCORE", "LIMIT", 0, keys_a_shard, "WITHSCORES")
        commands = [("ZRANGE", self.names.due(shard), *window, *limit) for shard in shards]
        # One index shard is counted. If more keys wait than a look takes, the others that have more
        # are assumed to be like it.
        until = until_ms if overdue and until_ms is not None else self._about_now(overdue=overdue)
        counted = () if until is None else (("ZCOUNT", self.names.due(shards[0]), "-inf", until),)
        with self._avoiding(node):
            replies, moved = self.job_client.call_each(
                node, [("TIME",), *commands, *counted], budget
            )
        clock, *replies = replies
        size = replies.pop() if counted else None
        now = self.time_ms(clock)
        self._ahead = now / 1000 - self._clock.monotonic()
        foreign: ResponseError | None = None
        found: list[DueKey] = []
        lost: list[int] = []
        full: list[int] = []
        looked = 0
        for shard, reply in zip(shards, replies, strict=True):
            if is_elsewhere(reply):
                continue
            looked += 1
            if isinstance(reply, ResponseError):
                if "WRONGTYPE" not in str(reply):
                    # For instance, the user may not send the command: nothing foreign is there.
                    raise reply
                foreign = reply
                continue
            if reply and layout.registers_shards and shard not in self._known:
                lost.append(shard)
            some = [
                DueKey(key, shard, due) for key, due in scored(reply) if not overdue or due <= now
            ]
            if len(some) == keys_a_shard:
                full.append(shard)
            found += some
        if lost:
            self.drive(register_shards(self.names, lost), budget)
            self._registry_read = None
        waiting: int | None = len(found)
        if full:
            like_it = len(full) if shards[0] in full else looked
            waiting = max(len(found), size * like_it) if isinstance(size, int) else None
        return DueLook(found, now, looked, full, foreign, moved, waiting)

    def _about_now(self, *, overdue: bool) -> int | str | None:
        """Return about the server's time in ms, projected from its last reply."""
        if not overdue:
            return "+inf"
        return None if self._ahead is None else int((self._ahead + self._clock.monotonic()) * 1000)

    def share_of(self, layout: Layout, shards: int) -> float:
        """Return the share that so many index shards are of the ones in use, as far as known."""
        used = len(self._registry) if layout.registers_shards else layout.index_shards
        return min(1.0, shards / max(1, used))

    def foreign(self, problem: ResponseError) -> LayoutError:
        """Return the error for a foreign due index."""
        error = LayoutError(
            f"a due index of the namespace {self.names.namespace!r} holds something foreign: use"
            f" another namespace, or remove the key if it is not needed; nothing was changed"
            f" ({problem})"
        )
        error.__cause__ = problem
        return error

    def server_ms(self, budget: Budget) -> int:
        """Return the time of the server that holds the layout, in ms. One round trip."""
        (clock,) = self._call(self._node_of_key(self.names.layout), [("TIME",)], budget)
        return self.time_ms(clock)

    def refresh_registry(self, budget: Budget) -> None:
        """Read the registry of index shards, unless it was read in the last 10 seconds."""
        self._refreshed_registry(budget)

    def shards_by_node(self, layout: Layout, budget: Budget) -> dict[Node, list[int]]:
        """Read the registry again; return all index shards in use, by node."""
        if not layout.registers_shards:
            return {self.job_client.nodes()[0]: list(range(layout.index_shards))}
        self._registry_read = None
        shards: dict[Node, list[int]] = {}
        for shard in self._refreshed_registry(budget):
            shards.setdefault(self.job_client.node_of(shard), []).append(shard)
        return shards

    def drive(self, steps: Steps[T], budget: Budget) -> T:
        """Run a generator of commands and operations through the job client; return its result.

        Arguments:
            steps: plain commands on one key, and operations, whose scripts are sent as text.
            budget: the time for all of them.

        Raises: LayoutError if a script refuses foreign data; the job client's errors, unless the
        generator handles them.
        """
        return drive(budget, steps, self._send)

    def _send(self, budget: Budget, step: Any) -> Any:
        if isinstance(step, Operation):
            command, key = step.by_text(), step.keys[0]
        else:
            # The text of a script is no key.
            command, key = step, step[3 if step[0] == "EVAL" else 1]
        (reply,) = checked(self._call(self._node_of_key(key), [command], budget))
        return step.read(reply) if isinstance(step, Operation) else reply

    def time_ms(self, clock: Any) -> int:
        """Return a reply of TIME as milliseconds since the epoch. Raises: the reply of an error."""
        if isinstance(clock, Exception):
            raise clock
        return int(clock[0]) * 1000 + int(clock[1]) // 1000 + self._shift_ms

    def _call(self, node: Node, commands: Sequence[Command], budget: Budget) -> list[Any]:
        with self._avoiding(node):
            return self.job_client.call(node, commands, budget)

    @contextmanager
    def _avoiding(self, node: Node) -> Iterator[None]:
        """Avoid a node of a cluster for a while if it does not answer."""
        try:
            yield
        except Exception as error:
            if self.job_client.is_cluster and is_connection_fault(error):
                self._avoided[node] = self._clock.monotonic() + AVOID_SECONDS
            raise

    def _node_of_key(self, key: bytes) -> Node:
        return self.job_client.node_of(require_one_slot((to_bytes(key),)))

    def _is_avoided(self, node: Node) -> bool:
        until = self._avoided.get(node)
        if until is not None and self._clock.monotonic() >= until:
            self._avoided.pop(node, None)
            return False
        return until is not None

    def choose_node(self, layout: Layout, budget: Budget) -> tuple[Node, list[int]]:
        """Return a random node and, shuffled, index shards on it that may hold keys.

        One round trip every 10 seconds if index shards are registered, else none.
        """
        if not layout.registers_shards:
            every = list(range(layout.index_shards))
            self.shuffle(every)
            return self.job_client.nodes()[0], every
        registered = self._refreshed_registry(budget)
        node, shards = self._draw(registered)
        if not shards:
            # If no index shard is registered, an unregistered one may still hold keys.
            node = self.job_client.node_of(self._below(SLOTS))
        for _ in range(UNREGISTERED_A_LOOK):
            shard = self._below(layout.index_shards)
            is_new = shard not in self._known and shard not in shards
            if is_new and self.job_client.node_of(shard) == node:
                shards.append(shard)
        self.shuffle(shards)
        return node, shards

    def _draw(self, registered: list[int]) -> tuple[Node, list[int]]:
        """Draw an index shard at random; return its node, and index shards around it on that node.

        The node is not an avoided one, if others turn up soon. Neighbours mostly share a node, so
        the search goes from the first one to one side as long as they do, then to the other side,
        and then further to both. Which side is first is drawn, or the ends of a node's range would
        rarely have their turn.
        """
        size = len(registered)
        if not size:
            return None, []
        for _ in range(AVOIDING_DRAWS):
            begin = self._below(size)
            node = self.job_client.node_of(registered[begin])
            if not (self._avoided and self._is_avoided(node)):
                break
        shards = [registered[begin]]
        step = 1 if self._random() < 0.5 else -1
        # For each side: its direction, and the number of steps so far.
        sides = deque([(step, 0), (-step, 0)])
        for _ in range(min(size, MOST_DRAWS) - 1):
            if len(shards) == FIRST_LOOK + SECOND_LOOK:
                break
            way, steps = sides[0]
            sides[0] = (way, steps + 1)
            shard = registered[(begin + way * (steps + 1)) % size]
            if self.job_client.node_of(shard) == node:
                shards.append(shard)
            else:
                sides.rotate()
        return node, shards

    def _refreshed_registry(self, budget: Budget) -> list[int]:
        now = self._clock.monotonic()
        is_old = self._registry_read is None or now - self._registry_read >= REGISTRY_SECONDS
        if is_old and not (
            self._registry and self._is_avoided(self._node_of_key(self.names.registry))
        ):
            self._registry = self.drive(read_registry(self.names), budget)
            self._known = frozenset(self._registry)
            self._registry_read = now
        return self._registry

    def _below(self, bound: int) -> int:
        return min(int(self._random() * bound), bound - 1)

    def shuffle(self, items: list[Any]) -> None:
        """Put items in a random order."""
        draw = self._random
        items.sort(key=lambda _: draw())
