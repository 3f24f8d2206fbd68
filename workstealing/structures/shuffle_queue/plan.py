"""The plan of a group's turns, as the last full read has left it in the queue."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is served next, as the queue has it written down: streams by their numbers, as texts.

    Fields: name: of the plan, by which the queue tells whether it is the one at hand; after: stream
    -> the one that is served after it; end: the one with which the next plan begins, None where
    this one goes round.
    """

    name: str
    after: dict[str, str]
    end: str | None

    @classmethod
    def of(cls, text: str) -> Plan | None:
        """Return the plan of a text: its name, who was served before it, and its streams."""
        if not text:
            return None
        name, *turns = text.split()
        end = None if turns[-1] in turns[1:-1] else turns[-1]
        if end is not None:
            turns.pop()
        return cls(name, dict(pairwise(turns)), end)

    def following(self, last: str, most: int) -> tuple[str, ...]:
        """Return at most so many that are served by this plan after a stream, each once."""
        found: list[str] = []
        number = self.after.get(last)
        while number is not None and len(found) < most and number not in found[:1]:
            found.append(number)
            number = self.after.get(number)
        return tuple(found)
