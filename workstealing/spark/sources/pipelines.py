"""Many commands in few round trips: pipelines of a bounded number of commands and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from workstealing.errors import Moved
from workstealing.store.budget import Budget
from workstealing.store.connection import Command, Commands, Packed, is_elsewhere
from workstealing.store.job_client import Node, job_client_of
from workstealing.store.keys import key_slot

FIELDS_A_COMMAND = 500
COMMANDS_A_CALL, BYTES_A_CALL = 256, 4 * 1024 * 1024
# Of entries, of which it is not known at first how large they are.
FIRST_PAGE, MOST_OF_A_PAGE = 100, 5_000

T = TypeVar("T")


def of_one_command(items: Iterable[tuple[bytes, ...]]) -> Iterator[tuple[list[bytes], int]]:
    """Divide items into the arguments of commands: up to 500 items, or 4 MB, in each.

    Arguments:
        items: the arguments that stay together, for instance a field and its value.

    Yields: the arguments of one command in a row, and how many bytes they are; nothing without any
    item.
    """
    some: list[bytes] = []
    count = size = 0
    for item in items:
        more = sum(map(len, item))
        # A server stands still for a large command, and refuses one of a gigabyte.
        if count == FIELDS_A_COMMAND or (count and size + more > BYTES_A_CALL):
            yield some, size
            some, count, size = [], 0, 0
        some += item
        count += 1
        size += more
    if some:
        yield some, size


def next_page(sizes: Sequence[int]) -> int:
    """Return how many entries the page after this one has: 4 MB of them, 5,000 at most.

    Arguments:
        sizes: of the entries of this page, in bytes; one or more.
    """
    return max(1, min(MOST_OF_A_PAGE, BYTES_A_CALL // (sum(sizes) // len(sizes) + 1)))


class Bounded(Generic[T]):
    """Collects items and sends them together, as soon as they are 256 commands or 4 MB.

    Arguments:
        send: takes the items that go out in one call.
    """

    def __init__(self, send: Callable[[list[T]], None]) -> None:
        self._send = send
        self._items: list[T] = []
        self._size = self._commands = 0

    def add(self, item: T, size: int, commands: int = 1) -> None:
        """Add an item.

        Arguments:
            size: in bytes.
            commands: how many it has.

        Raises: what `send` raises. A call of `send` if it completes one.
        """
        if self._size and self._size + size > BYTES_A_CALL:
            self.flush()
        self._items.append(item)
        self._size += size
        self._commands += commands
        if self._commands >= COMMANDS_A_CALL:
            self.flush()

    def flush(self) -> None:
        """Send what is left."""
        items, self._items = self._items, []
        self._size = self._commands = 0
        if items:
            self._send(items)


# A task waits for a busy server, unlike a slice.
TIMEOUT_SECONDS = 30.0
# A slot that moves is asked for anew after so many seconds.
_PAUSES = (0.0, 0.05, 0.2, 1.0)

# A key, and the commands on it that stay together. Of one call all are packed, or none.
Group = tuple[bytes, Commands]


class KeyCalls:
    """Sends commands on keys to the nodes that hold them, each once, in a pipeline for each node.

    Arguments:
        client: one of redis-py.
        sleep: waits for a slot that moves, for tests.

    The connections make one attempt: a command that was sent is never sent again, but for one that
    the cluster has turned away with MOVED, ASK or TRYAGAIN, which did nothing.
    """

    def __init__(self, client: Any, sleep: Callable[[float], None] = time.sleep) -> None:
        self.job_client = job_client_of(client)
        self._sleep = sleep

    def on_node(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        """Send commands to one node; return the replies. One round trip.

        Raises: connection faults. Error replies stand in their places.
        """
        return self.job_client.call(node, commands, Budget(None, TIMEOUT_SECONDS))

    def on_keys(self, groups: Sequence[Group]) -> list[list[Any]]:
        """Send each group to its key's node; return the replies of each group, in this order.

        Raises: Moved if a slot is still moving after a second; Unmapped; connection faults. Error
        replies stand in their places. One round trip for each node; more while slots move.
        """
        results: list[list[Any]] = [[] for _ in groups]
        waiting: Sequence[int] = range(len(groups))
        moved: Moved | None = None
        for pause in (*_PAUSES, None):
            waiting, moved = self._once(groups, waiting, results)
            if moved is None:
                return results
            if pause is not None:
                self._sleep(pause)
        assert moved is not None
        raise moved

    def in_transactions(self, groups: Sequence[Group]) -> list[list[Any]]:
        """Send each group as `on_keys` does, but so that all of it is done, or nothing.

        A single server has one transaction for all groups, and a cluster one for each. Returns: the
        replies of each group, or the error for which its transaction was given up.
        """
        if self.job_client.is_cluster:
            whole = [(key, _in_transaction(commands)) for key, commands in groups]
            return [_done(replies) for replies in self.on_keys(whole)]
        if not groups:
            return []
        together = _in_transaction(_together([commands for _, commands in groups]))
        replies = iter(_done(self.on_keys([(groups[0][0], together)])[0]))
        return [list(islice(replies, len(commands))) for _, commands in groups]

    def _once(
        self, groups: Sequence[Group], waiting: Sequence[int], results: list[list[Any]]
    ) -> tuple[list[int], Moved | None]:
        by_node: dict[Node, list[int]] = {}
        if self.job_client.is_cluster:
            for position in waiting:
                node = self.job_client.node_of(key_slot(groups[position][0]))
                by_node.setdefault(node, []).append(position)
        elif waiting:
            by_node[self.job_client.nodes()[0]] = list(waiting)
        again: list[int] = []
        last: Moved | None = None
        for node, positions in by_node.items():
            commands = _together([groups[position][1] for position in positions])
            budget = Budget(None, TIMEOUT_SECONDS)
            replies, moved = self.job_client.call_each(node, commands, budget)
            last = moved or last
            at = 0
            for position in positions:
                end = at + len(groups[position][1])
                its = replies[at:end]
                # Of a transaction, one command that was turned away aborts all others.
                if moved is not None and any(is_elsewhere(reply) for reply in its):
                    again.append(position)
                else:
                    results[position] = its
                at = end
        return again, last if again else None


def _together(parts: Sequence[Commands]) -> Commands:
    packed = [part for part in parts if isinstance(part, Packed)]
    return Packed.joined(packed) if packed else list(chain.from_iterable(parts))  # type: ignore[arg-type]


def _in_transaction(commands: Commands) -> Commands:
    if isinstance(commands, Packed):
        return commands.in_transaction()
    return [("MULTI",), *commands, ("EXEC",)]


def _done(replies: list[Any]) -> list[Any]:
    """Return the replies of the commands of a transaction.

    Where it was given up there is the error of the command that was refused, or that of EXEC in the
    place of each.
    """
    *queued, last = replies
    if not isinstance(last, Exception):
        done: list[Any] = last
        return done
    refused = [each if isinstance(each, Exception) else None for each in queued[1:]]
    return refused if any(refused) else [last] * len(refused)
