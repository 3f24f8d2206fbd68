"""An append by the short path does what one by the full path would do, in any state of a log."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from support.proof import seed, tried
from support.twins import EVERYWHERE, Twins
from workstealing.store.operations import Operation
from workstealing.structures import Log
from workstealing.structures.log.base import Known, LogNames

AT_MS = 1_764_000_000_000
KEYS = LogNames("l")
GROUPS = ("g", "h")
JUNK = (b"", b"x", b"-1", b"007", b"1e3", b"1.5", b"0", b"5", b"9" * 16, b"9" * 400, b" 1", b"+1")
JUNK += (b"9007199254740991", b"99999999999999", b"inf", b"nan")


class FullLog(Log):
    """A log that takes no short path."""

    def _short(self, batch: list[bytes]) -> Operation | None:
        return None


def state(chance: random.Random, block: int, tail: int) -> list[tuple[Any, ...]]:
    """Return the commands that make a log, mostly a whole one."""
    first = chance.choice((0, 0, chance.randrange(tail + 1)))
    kept = chance.choice((0, first // block))
    joined = chance.choice((b"0", b"1", b"3"))
    facts = {"mark": 1, "block": block, "next": tail, "first": first, "kept": kept}
    facts |= {"epoch": "1763000000000000", "joined": joined}
    facts |= {f"group:{each}": 1 for each in GROUPS if chance.random() < 0.9}
    found: list[tuple[Any, ...]] = [("HSET", KEYS.meta, *sum(facts.items(), ()))]
    for number in range(kept, (tail + block - 1) // block):
        size = min(block, tail - number * block)
        found.append(("RPUSH", KEYS.block(number), *[b"entry"] * size))
        came = AT_MS + chance.choice((-5000, -1, 0, 0, 3000))
        found.append(("ZADD", KEYS.times, came, number))
        if size == block:
            found.append(("ZADD", KEYS.full, came, number))
    if tail:
        news = sorted({chance.randrange(1, tail + 1) for _ in range(chance.randrange(5))} | {tail})
        found += [("XADD", KEYS.news, f"{each}-0", "n", 1) for each in news]
    for each in GROUPS:
        if joined != b"0" and chance.random() < 0.3:
            until = AT_MS + chance.choice((-1, 0, 1, 5000, 86_400_000, 86_400_001))
            found.append(("ZADD", KEYS.waiting, until, each))
        group = KEYS.group(each.encode())
        if chance.random() < 0.7:
            offset = chance.randrange(tail + 1)
            found.append(
                ("HSET", group.state, "mark", 1, "offset", offset, "turn", 2, "delivery", 1)
            )
        if chance.random() < 0.5:
            found.append(("ZADD", group.line, AT_MS + chance.choice((-1, 5000)), "w"))
        if chance.random() < 0.2:
            found += [("RPUSH", group.turns, 2), ("ZADD", group.granted, AT_MS - 10, 2)]
    return found


def damage(chance: random.Random, block: int, tail: int) -> list[tuple[Any, ...]]:
    """Return commands that change a log as no call of ours would."""
    group = KEYS.group(chance.choice(GROUPS).encode())
    keys = [KEYS.meta, KEYS.news, KEYS.full, KEYS.raw, KEYS.times, KEYS.waiting]
    keys += [KEYS.block(each) for each in (tail // block, tail // block + 1)]
    key = chance.choice([*keys, group.state, group.line, group.turns, group.granted])
    field = chance.choice(("mark", "block", "next", "first", "kept", "joined", "epoch"))
    number = chance.choice((tail - 1, tail + 1, tail + block, 10**14, 10**14 - 2))
    kinds: list[list[tuple[Any, ...]]] = [
        [("HSET", KEYS.meta, field, chance.choice(JUNK))],
        [("HSET", KEYS.meta, field, number)],
        [("HDEL", KEYS.meta, field)],
        [
            (
                "HSET",
                KEYS.meta,
                "mark",
                2,
                "readable_from",
                1,
                "writable_from",
                chance.choice((1, 2)),
            )
        ],
        [("DEL", key)],
        [("DEL", key), ("SET", key, "foreign")],
        [("DEL", key), ("RPUSH", key, "foreign")],
        [("DEL", key), ("ZADD", key, chance.choice((1, AT_MS, "inf")), "foreign")],
        [("DEL", key), ("HSET", key, "foreign", "x")],
        [("DEL", key), ("XADD", key, f"{chance.choice((1, tail, tail + 50))}-3", "n", 1)],
        [("EXPIRE", key, 600)],
        [("RPUSH", KEYS.block(tail // block), "more")],
        [("RPOP", KEYS.block(tail // block))],
        [("ZADD", KEYS.waiting, AT_MS + 5000, "foreign")],
        [("ZADD", KEYS.times, chance.choice((0, AT_MS, "1.5", "inf", "-inf")), tail // block)],
    ]
    return chance.choice(kinds)


@pytest.mark.parametrize(
    ("twins", "states"),
    [
        ("redis7", 60),
        ("fakeredis_server", 20),
        *[pytest.param(each, 10_000, marks=pytest.mark.slow) for each in EVERYWHERE[:-1]],
        pytest.param("fakeredis_server", 2_000, marks=pytest.mark.slow),
    ],
    indirect=["twins"],
)
def test_short_and_full_appends_are_the_same(twins: Twins, states: int) -> None:
    short = refused = 0
    for number in range(states):
        about = f"state {number} of seed {seed()}"
        chance = random.Random(f"{seed()} {number}")
        block = chance.choice((4, 10, 100))
        tail = chance.randrange(3 * block)
        commands = state(chance, block, tail)
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            commands += damage(chance, block, tail)
        twins.prepare(commands, 1000 * AT_MS + chance.randrange(1000))
        guess = max(0, tail + chance.choice((0, 0, 0, -1, -2, 1, -block)))
        groups = tuple(each.encode() for each in GROUPS if chance.random() < 0.1)
        known = Known(chance.choice((block, block, block, block + 1)), guess, 0, groups)
        log, full = Log(twins.short, "l"), FullLog(twins.full, "l")
        log.known = full.known = known
        is_full = chance.random() < 0.04
        with twins.full_memory(is_full):
            for _ in range(chance.choice((1, 1, 2))):
                batch = [b"new"] * chance.choice((1, 1, 1, 2, 3, 70))
                expected = not log._resting and log._short(batch) is not None
                said = twins.check(partial(log.append, *batch), partial(full.append, *batch), about)
                refused += not isinstance(said, int)
                short += expected and isinstance(said, int) and not log._resting
    tried("short and full appends in one state", states)
    # Neither kind of states is rare.
    assert short > states / 5
    assert refused > states / 20
