"""The short ways of HSETEX and HGETEX have the effect of the full ones, in every state."""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.two_ways import TwoWays, frozen
from workstealing.structures.namespace import EMULATED, Layout
from workstealing.structures.volatile_hashes.commands import HashNames

SERVERS = ("fakeredis_server", "redis62", "redis7", "redis82", "valkey9")
FEW, MANY = 250, 10_000
AT = int(time.time() * 1000)
NAMES = HashNames("n")
LAYOUT = Layout("n", EMULATED, 16, 1)
HASH = b"h"
KEYS = NAMES.for_writing(HASH, LAYOUT)
DEADLINES, DUE, MARK = KEYS[1:]
HOUR_MS = 3_600_000


class State(NamedTuple):
    """What a call meets: the commands that make it, and what a call may expect of it."""

    commands: list[tuple[Any, ...]]
    deadlines: dict[str, int]
    is_due_kept: bool


def draw_state(draw: random.Random, ms: int) -> State:
    """Draw a hash with all that may be beside it.

    Arguments:
        ms: how long the call lets fields live; some deadlines are just beside that moment.
    """
    commands: list[tuple[Any, ...]] = []
    fields = [each for each in ("f0", "f1", "f2", "f3") if draw.random() < 0.8]
    if draw.random() < 0.05:
        commands.append(("SET", HASH, "of another type"))
    elif fields and draw.random() < 0.9:
        commands.append(
            ("HSET", HASH, *(word for each in fields for word in (each, f"old {each}")))
        )
        if draw.random() < 0.2:
            commands.append(("PEXPIRE", HASH, 9 * HOUR_MS))
    moments = [AT - HOUR_MS, AT - 1, AT, AT + 1, AT + ms - 1, AT + ms, AT + ms + 1, AT + HOUR_MS]
    # A clock that was set back leaves deadlines that are later than any that is set now.
    some = draw.choice([moments, moments[3:6], moments[4:], moments[6:]])
    deadlines = {each: draw.choice(some) for each in ("f0", "f1", "f2", "f3", "f4")}
    deadlines = {field: at for field, at in deadlines.items() if draw.random() < 0.7}
    is_due_kept = True
    if draw.random() < 0.05:
        commands.append(("RPUSH", DEADLINES, "foreign"))
        deadlines = {}
    elif deadlines:
        commands.append(("ZADD", DEADLINES, *(w for f, at in deadlines.items() for w in (at, f))))
        due = min(deadlines.values()) - draw.choice([0, 1, HOUR_MS])
        is_due_kept = draw.random() < 0.9
        if is_due_kept:
            commands.append(("ZADD", DUE, due, HASH))
        elif draw.random() < 0.5:
            commands.append(("RPUSH", DUE, "foreign"))
    elif draw.random() < 0.2:
        commands.append(("ZADD", DUE, AT + draw.choice([-1, 5 * HOUR_MS]), HASH))
    mark = draw.choice([LAYOUT.mark] * 12 + ["1:native", "1:migrating", "2:emulated", None])
    if mark is not None:
        commands.append(("SET", MARK, mark))
    elif draw.random() < 0.5:
        commands.append(("RPUSH", MARK, "foreign"))
    return State(commands, deadlines, is_due_kept)


def drive(ways: TwoWays, word: str, draw: random.Random) -> None:
    """Run both ways of one call in one state, and compare the replies and the keys."""
    unit = draw.choice(["EX", "PX"])
    amount = draw.choice([1, 30, 999_999_999])
    ms = amount * (1000 if unit == "EX" else 1)
    state = draw_state(draw, ms)
    fields = draw.choices(["f0", "f1", "f2", "f3", "f4", "new"], k=draw.choice([1, 1, 1, 2, 3]))
    values = [
        w for each in fields for w in ((each, f"new {each}") if word == "HSETEX" else (each,))
    ]
    # A server's short way reads capital letters alone: the words of any call may be small.
    plain = (LAYOUT.mark, unit.lower(), amount, "FIELDS", len(fields), *values)
    script = frozen(f"volatile_hashes/{word.lower()}", AT)
    ways.prepare(state.commands)
    with ways.full_memory(draw.random() < 0.05):
        replies = ways.run(KEYS, (script, (ms, LAYOUT.mark, *values)), (script, plain))
    by_short, by_full = ways.left()
    told = f"{word} {plain} on {state.commands}"
    if (
        not state.is_due_kept
        and len(fields) == 1
        and state.deadlines.get(fields[0], AT + ms) < AT + ms
    ):
        # Nobody promises anything about a due index that somebody has removed: see timed.lua.
        by_short.pop(DUE, None)
        by_full.pop(DUE, None)
        if isinstance(replies[1], tuple):
            return
    assert replies[0] == replies[1], told
    assert by_short == by_full, told
    if state.is_due_kept and b"zset" in by_short.get(DEADLINES, ()):
        assert by_short[DUE][1][0][1] <= by_short[DEADLINES][1][0][1], told


def drive_all(server: Any, word: str, times: int) -> None:
    ways = TwoWays(server)
    for seed in range(times):
        drive(ways, word, random.Random(f"{word} {seed}"))


@pytest.mark.parametrize("word", ["HSETEX", "HGETEX"])
@pytest.mark.parametrize("server", ["fakeredis_server", "redis7"])
def test_both_ways_have_one_effect(server: str, word: str, request: pytest.FixtureRequest) -> None:
    drive_all(request.getfixturevalue(server), word, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["HSETEX", "HGETEX"])
@pytest.mark.parametrize("server", SERVERS)
def test_both_ways_have_one_effect_in_ten_thousand_states(
    server: str, word: str, request: pytest.FixtureRequest
) -> None:
    drive_all(request.getfixturevalue(server), word, MANY)
