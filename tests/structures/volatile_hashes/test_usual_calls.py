"""The short ways of HSETEX, HGETEX and HMGET have the effect of the full ones, in every state."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from support.hash_states import AT_MS, FIELDS, LAYOUT, NAMES, HashState, draw_hash
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.proof import seed, tried
from support.twins import EVERYWHERE, Twins
from workstealing.store.scripts import load

HASH = b"h"
KEYS = NAMES.for_writing(HASH, LAYOUT)
DEADLINES, DUE, MARK = KEYS[1:]


def script(client: Any, name: str, args: tuple[Any, ...]) -> Callable[[], Any]:
    return partial(client.eval, load(f"volatile_hashes/{name}").body, len(KEYS), *KEYS, *args)


def drive(twins: Twins, word: str, draw: random.Random, about: object) -> None:
    """Run both ways of one call in one state, and compare the replies and the keys."""
    unit = draw.choice(["EX", "PX"])
    amount = draw.choice([1, 30, 999_999_999])
    ms = amount * (1000 if unit == "EX" else 1)
    state = draw_hash(draw, ms, HASH)
    fields = draw.choices([*FIELDS, "new"], k=draw.choice([1, 1, 1, 2, 3]))
    values = [*fields]
    if word == "HSETEX":
        values = [each for field in fields for each in (field, f"new {field}")]
    # A server's short way reads capital letters alone: the words of any call may be small.
    plain = (LAYOUT.mark, unit.lower(), amount, "FIELDS", len(fields), *values)
    about = f"{word} {plain} on {state.commands}: {about}"
    but = undetermined(state, fields, ms)
    if but is None:
        return
    twins.prepare(state.commands, 1000 * AT_MS)
    short = script(twins.short, word.lower(), (ms, LAYOUT.mark, *values))
    full = script(twins.full, word.lower(), plain)
    with twins.full_memory(draw.random() < 0.05):
        twins.check(short, full, about, but)
    left = twins.contents()[0]
    if state.is_due_kept and b"zset" in left.get(DEADLINES, ()):
        first, due = (float(left[key][2][1]) for key in (DEADLINES, DUE))
        assert due <= first, about


def undetermined(state: HashState, fields: list[str], ms: int) -> tuple[bytes, ...] | None:
    """Return the keys of which nothing is promised; None if nothing is promised at all.

    That is about a due index that somebody has removed: see timed.lua.
    """
    is_raise = len(fields) == 1 and state.deadlines.get(fields[0], AT_MS + ms) < AT_MS + ms
    if state.is_due_kept or not is_raise:
        return ()
    return None if ("RPUSH", DUE, "foreign") in state.commands else (DUE,)


@pytest.mark.parametrize(
    ("twins", "states"),
    [
        ("redis7", 300),
        ("fakeredis_server", 300),
        *[pytest.param(each, 10_000, marks=pytest.mark.slow) for each in EVERYWHERE],
    ],
    indirect=["twins"],
)
def test_both_ways_have_one_effect(twins: Twins, states: int) -> None:
    for number in range(states):
        about = f"state {number} of seed {seed()}"
        word = "HSETEX" if number % 2 else "HGETEX"
        drive(twins, word, random.Random(f"{seed()} {number}"), about)
    tried("short and full calls in one state", states)
