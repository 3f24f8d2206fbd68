"""What the keys of an Ick are called."""

from __future__ import annotations

from typing import Any

from workstealing.store.keys import to_bytes
from workstealing.store.operations import Plan
from workstealing.structures.names import beside
from workstealing.structures.steps import Steps

Member = str | bytes


class IckNames:
    """The keys of one Ick, redis-ick's own three first; see the catalogue in ``lua/README.md``."""

    def __init__(self, key: Member) -> None:
        self.version = to_bytes(key)
        prefix = beside(self.version, b"ick")
        self.pset, self.cset = prefix + b"pset", prefix + b"cset"
        self.held, self.attempts = prefix + b"held", prefix + b"attempts"
        self.seen, self.dead = prefix + b"seen", prefix + b"dead"
        self.sets = (self.version, self.pset, self.cset)
        self.all = (*self.sets, self.held, self.attempts, self.seen, self.dead)


class NamedCommands:
    """What groups of an Ick's commands stand on: its names, and a way to perform a plan.

    The blocking form performs at once, the asyncio form returns what is awaited, and a pipeline
    queues and returns itself.
    """

    names: IckNames

    def _perform(self, plan: Plan) -> Any:
        raise NotImplementedError

    def _perform_steps(self, steps: Steps[Any]) -> Any:
        raise NotImplementedError


def as_text(value: Any) -> str:
    """Return a reply as text, whether or not the client decodes."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
