"""The turns of a group's streams, as far as a process knows them: a plan, and a view of the ring.

The module `reading` says how turns and rings are used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from workstealing.structures.shuffle_queue.base import PickupDelays
from workstealing.structures.shuffle_queue.names import GroupNames

LEAST_WINDOW = 2
"""So many of the streams that come next are passed at least."""
# A plan's name, the stream served before it, and two of its streams at least, all below 4,096.
_STREAM = r" (?:[0-3]?[0-9]{1,3}|40[0-8][0-9]|409[0-5])"
_TURNS = re.compile(rf"\S+ -1(?:{_STREAM})+|\S+(?:{_STREAM}){{2,}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Turns:
    """A plan of a group's turns, as the last full read left it: numbers of streams, as texts.

    Fields: name: of the plan, by which the queue knows its current plan; after: stream -> the
    stream served after it; end: the stream with which the next plan begins, None if this one goes
    round.
    """

    name: str
    after: dict[str, str]
    end: str | None

    @classmethod
    def of(cls, text: str) -> Turns | None:
        """Return the turns of a text: its name, the stream served before it, and its streams.

        None for any other text: then a full look makes a plan anew.
        """
        if not _TURNS.fullmatch(text):
            return None
        name, *turns = text.split()
        end = None if turns[-1] in turns[1:-1] else turns[-1]
        if end is not None:
            turns.pop()
        return cls(name, dict(pairwise(turns)), end)

    def following(self, last: str, most: int) -> tuple[str, ...]:
        """Return at most so many streams that this plan serves after a stream, each once."""
        found: list[str] = []
        number = self.after.get(last)
        while number is not None and len(found) < most and number not in found[:1]:
            found.append(number)
            number = self.after.get(number)
        return tuple(found)


@dataclass(slots=True)
class View:
    """The knowledge of this process about one group: a guess that only saves round trips.

    Fields: names: of the group's keys; fixed: the keys that every read passes; text: the group's
    name; heads: numbers of the streams that are expected next; window: how many of them are passed;
    plan: of the next turns, if there is one; last: the number of the stream that was served last,
    as a text; span: how many streams there are; delays: pickup delays to be counted; hits: reads
    since the window was changed; fresh: whether the last reply gave the heads; is_short: whether
    the ring was shorter than the window; announced: consumer -> when it was last announced, by this
    process's clock.
    """

    names: GroupNames
    fixed: tuple[bytes, ...]
    text: str
    heads: tuple[int, ...]
    span: int
    delays: PickupDelays
    plan: Turns | None = None
    last: str = ""
    window: int = LEAST_WINDOW
    hits: int = 0
    fresh: bool = False
    is_short: bool = True
    announced: dict[str | bytes, float] = field(default_factory=dict)
