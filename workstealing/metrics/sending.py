"""Hash commands by a twin's one-attempt connections, whatever the namespace's backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workstealing.store.budget import Budget
from workstealing.store.connection import Command, checked
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.operations import Operation
from workstealing.store.twin import Node, Twin
from workstealing.structures.namespaces.layout import Layout


class HashCommands:
    """Hash commands as they are sent, whatever the namespace's backend."""

    def __init__(self, hashes: Any, layout: Layout) -> None:
        self._translator = hashes.translator
        self._layout = layout
        self._sent: set[str] = set()
        self._last: list[int] = []
        self.commands: list[Command] = []

    def add(self, args: Command) -> None:
        """Add one hash command."""
        if self._layout.is_emulated:
            self._operate(self._translator.translate(self._layout, args, {}))
        else:
            if self._layout.is_migrating:
                for operation in self._translator.moves(self._layout, args):
                    self._operate(operation)
            self.commands.append(args)
        self._last.append(len(self.commands) - 1)

    def _operate(self, operation: Operation) -> None:
        # The first use of a script carries its text, so that the server knows it for the rest.
        known = operation.sha in self._sent
        self._sent.add(operation.sha)
        self.commands.append(operation.by_digest() if known else operation.by_text())

    def results(self, replies: Sequence[Any]) -> list[Any]:
        """Return the reply of each hash command out of those of all that was sent for them."""
        return [replies[position] for position in self._last]


class OneAttemptClient:
    """As much of a client as reading a layout needs, by a twin's one-attempt connections."""

    def __init__(self, twin: Twin, budget: Budget) -> None:
        self._twin = twin
        self._budget = budget

    def execute_command(self, *args: Any, **_: Any) -> Any:
        """Run one command on the node of its first key."""
        key = args[3] if args[0] in ("EVAL", "EVALSHA") else args[1]
        node: Node = self._twin.node_of(key_slot(to_bytes(key)))
        return checked(self._twin.call(node, [args], self._budget))[0]
