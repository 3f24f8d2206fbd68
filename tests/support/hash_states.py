"""Random states of a volatile hash and of all that stands beside it, most of them whole."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from workstealing.structures.namespace import EMULATED, Layout
from workstealing.structures.volatile_hashes.commands import HashNames

AT_MS = 1_764_000_000_000
HOUR_MS = 3_600_000
NAMES = HashNames("n")
LAYOUT = Layout("n", EMULATED, 16, 1)
FIELDS = ("f0", "f1", "f2", "f3", "f4")


class HashState(NamedTuple):
    """A state: the commands that make it, the deadlines in it, and what to expect of it.

    Fields: is_due_kept: whether the due index has the hash where it has deadlines.
    """

    commands: list[tuple[Any, ...]]
    deadlines: dict[str, int]
    is_due_kept: bool


def draw_hash(draw: random.Random, ms: int, name: bytes) -> HashState:
    """Draw a hash with all that may be beside it, at `AT_MS`.

    Arguments:
        ms: how long a call lets fields live; some deadlines are just beside that moment.
    """
    _, deadlines_key, due_key, mark_key = NAMES.for_writing(name, LAYOUT)
    commands: list[tuple[Any, ...]] = []
    fields = [each for each in FIELDS[:4] if draw.random() < 0.8]
    if draw.random() < 0.05:
        commands.append(("SET", name, "of another type"))
    elif fields and draw.random() < 0.9:
        commands.append(("HSET", name, *(w for each in fields for w in (each, f"old {each}"))))
        if draw.random() < 0.2:
            commands.append(("PEXPIRE", name, 9 * HOUR_MS))
    moments = [AT_MS + apart for apart in (-HOUR_MS, -1, 0, 1, ms - 1, ms, ms + 1, HOUR_MS)]
    # A clock that was set back leaves deadlines that are later than any that is set now.
    some = draw.choice([moments, moments[3:6], moments[4:], moments[6:]])
    deadlines = {each: draw.choice(some) for each in FIELDS}
    deadlines = {field: at for field, at in deadlines.items() if draw.random() < 0.7}
    is_due_kept = True
    if draw.random() < 0.05:
        commands.append(("RPUSH", deadlines_key, "foreign"))
        deadlines = {}
    elif deadlines:
        pairs = [word for field, at in deadlines.items() for word in (at, field)]
        commands.append(("ZADD", deadlines_key, *pairs))
        is_due_kept = draw.random() < 0.9
        if is_due_kept:
            due = min(deadlines.values()) - draw.choice([0, 1, HOUR_MS])
            commands.append(("ZADD", due_key, due, name))
        elif draw.random() < 0.5:
            commands.append(("RPUSH", due_key, "foreign"))
    elif draw.random() < 0.2:
        commands.append(("ZADD", due_key, AT_MS + draw.choice([-1, 5 * HOUR_MS]), name))
    mark = draw.choice([LAYOUT.mark] * 12 + ["1:native", "1:migrating", "2:emulated", None])
    if mark is not None:
        commands.append(("SET", mark_key, mark))
    elif draw.random() < 0.5:
        commands.append(("RPUSH", mark_key, "foreign"))
    return HashState(commands, deadlines, is_due_kept)
