"""What takes a short path does what the full path would do, in any state of a log."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache, partial
from typing import Any

import pytest

from support.proof import seed, tried
from support.twins import EVERYWHERE, Twins
from workstealing.store.grants import Receipts
from workstealing.store.operations import Operation, drive
from workstealing.store.scripts import Script
from workstealing.structures import Log
from workstealing.structures.log.base import Known, LogNames
from workstealing.structures.log.blocks import seal
from workstealing.structures.log.group_reading import GroupEntry, NoEntries

AT_MS = 1_764_000_000_000
EPOCH = "1763000000000000"
KEYS = LogNames("l")
GROUPS = ("g", "h")
JUNK = (b"", b"x", b"-1", b"007", b"1e3", b"1.5", b"0", b"5", b"9" * 16, b"9" * 400, b" 1", b"+1")
JUNK += (b"9007199254740991", b"99999999999999", b"inf", b"nan")


class FullLog(Log):
    """A log that takes no short path."""

    def _short(self, batch: list[bytes]) -> Operation | None:
        return None

    def script(self, name: str) -> Script:
        return _full(super().script(name))


@cache
def _full(script: Script) -> Script:
    full = copy(script)
    for usual in ("local answer = read_short()", "local histories = open_short("):
        variable = usual.partition(" = ")[0]
        full.body = full.body.replace(usual, f"{variable} = false and {usual.split(' = ')[1]}")
    if script.name in ("log/group_read", "log/group_ack"):
        assert full.body != script.body
    full.sha = hashlib.sha1(full.body.encode(), usedforsecurity=False).hexdigest()
    return full


def state(chance: random.Random, block: int, tail: int) -> list[tuple[Any, ...]]:
    """Return the commands that make a log, mostly a whole one."""
    first = chance.choice((0, 0, chance.randrange(tail + 1)))
    kept = chance.choice((0, first // block))
    joined = chance.choice((b"0", b"1", b"3"))
    facts = {"mark": 1, "block": block, "next": tail, "first": first, "kept": kept}
    facts |= {"epoch": EPOCH, "joined": joined}
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


STATES_EACH = pytest.mark.parametrize(
    ("twins", "states"),
    [
        ("redis7", 60),
        ("fakeredis_server", 20),
        *[pytest.param(each, 10_000, marks=pytest.mark.slow) for each in EVERYWHERE[:-1]],
        pytest.param("fakeredis_server", 2_000, marks=pytest.mark.slow),
    ],
    indirect=["twins"],
)


@STATES_EACH
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


def group_state(chance: random.Random, block: int, tail: int, kind: str) -> list[tuple[Any, ...]]:
    """Return the commands that make the group `g` of a log, mostly a whole one of that kind."""
    keys = KEYS.group(b"g")
    if chance.random() < 0.05:
        kind = chance.choice(("plain", "acknowledged:60000:5", "acknowledged:1000:5"))
    offset = chance.randrange(tail + 1)
    facts = {"mark": "1", "kind": kind, "epoch": EPOCH, "offset": offset}
    facts |= {"turn": 2, "delivery": offset, "lost": 0}
    found: list[tuple[Any, ...]] = [
        ("DEL", keys.line, keys.turns, keys.granted, keys.state),
        ("HSET", KEYS.meta, "group:g", 1, "joined", 1),
        ("HSET", keys.state, *sum(facts.items(), ())),
    ]
    # A clock that was set back makes moments to come; and a seek back leaves entries that are held.
    seeks, ages = chance.random() < 0.2, [0, 10, 59_000, -5000]
    if chance.random() < 0.3:
        ages.append(61_000)
    for each in range((tail if seeks else offset) if kind != "plain" else 0):
        if chance.random() < 0.4:
            handed = AT_MS - chance.choice(ages)
            found.append(("ZADD", keys.pending, handed, f"{each:016d}"))
            found.append(("HSET", keys.attempts, each, f"{chance.randrange(1, 3)} {each + 1} m"))
    if chance.random() < 0.1:
        found.append(("HSET", keys.dead, 0, "1 1 5:1 1 mgone"))
    if chance.random() < 0.1:
        found.append(("HSET", keys.revived, chance.choice((0, tail // 2)), "entry"))
    if chance.random() < 0.1:
        found.append(("ZADD", keys.line, AT_MS + chance.choice((-1, 5000)), "w"))
    if chance.random() < 0.1:
        given = AT_MS - chance.choice((10, 2000))
        found += [("RPUSH", keys.turns, 2), ("ZADD", keys.granted, given, 2)]
    for number in range(tail // block):
        if chance.random() < 0.3:
            sealed = seal([b"entry"] * block, chance.choice(("raw", "zlib")))
            found += [("DEL", KEYS.block(number)), ("SET", KEYS.block(number), sealed)]
    return found


def group_damage(chance: random.Random, tail: int) -> list[tuple[Any, ...]]:
    """Return commands that change a group as no call of ours would."""
    keys = KEYS.group(b"g")
    key = chance.choice(keys.all)
    junk = chance.choice(JUNK)
    history = chance.choice((junk, "007 3 m", "999999999 3 m"))
    kinds: list[list[tuple[Any, ...]]] = [
        [("HSET", keys.state, chance.choice(("mark", "kind", "epoch", "offset", "turn")), junk)],
        [("HSET", keys.state, chance.choice(("delivery", "lost")), junk)],
        [("HSET", keys.state, "offset", chance.choice((tail, tail + 1, 10**15)))],
        [("HDEL", keys.state, chance.choice(("mark", "kind", "epoch", "offset", "delivery")))],
        [("HDEL", KEYS.meta, "group:g")],
        [("DEL", key)],
        [("DEL", key), ("SET", key, "foreign")],
        [("DEL", key), ("RPUSH", key, "foreign")],
        [("DEL", key), ("ZADD", key, chance.choice((1, AT_MS, "inf")), "foreign")],
        [("DEL", key), ("HSET", key, "foreign", "x")],
        [("EXPIRE", key, 600)],
        [("HSET", keys.state, "delivery", 10 ** chance.choice((13, 14, 15)) - 1)],
        [("ZADD", keys.pending, chance.choice((AT_MS + 10**9, -1, "1.5")), f"{tail:016d}")],
        [("XADD", KEYS.news, f"{tail + 1}-0", "n", 1)],
        [("DEL", keys.pending)],
        [("DEL", keys.attempts)],
        [("HSET", keys.attempts, chance.randrange(tail + 1), history)],
        [
            (
                "SET",
                KEYS.receipt(b"nonce"),
                chance.choice(("0", "1 0 1 1 1763000000000000", "9", "x")),
            )
        ],
        [("HSET", KEYS.receipt(b"nonce"), "a", "b")],
    ]
    return chance.choice(kinds)


def is_by_short_path(twins: Twins, call: Callable[[], Any], taken: list[bool]) -> Any:
    """Call, and note whether no call of a script has looked at the turns, as the full path does."""

    def looks() -> int:
        return int(twins.short.info("commandstats").get("cmdstat_llen", {}).get("calls", 0))

    before = looks() if twins.is_real else 0
    try:
        return call()
    finally:
        taken.append(twins.is_real and looks() == before)


def look(group: Any, asked: tuple[Any, ...]) -> Any:
    """Look for entries as a call of `read` does once."""
    return drive(group.client, group.look_steps(*asked))


@STATES_EACH
def test_short_and_full_reads_of_a_group_are_the_same(twins: Twins, states: int) -> None:
    good = refused = 0
    by_short: dict[str, list[bool]] = {"read": [], "ack": []}

    def check(name: str, calls: Sequence[Callable[[], Any]]) -> Any:
        short = partial(is_by_short_path, twins, calls[0], by_short[name])
        return twins.check(short, calls[1], about)

    for number in range(states):
        about = f"state {number} of seed {seed()}"
        chance = random.Random(f"{seed()} group {number}")
        block = chance.choice((4, 10, 100))
        tail = chance.randrange(3 * block)
        acks = chance.random() < 0.8
        kind = "acknowledged:60000:5" if acks else "plain"
        commands = state(chance, block, tail) + group_state(chance, block, tail, kind)
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            is_group = chance.random() < 0.7
            commands += group_damage(chance, tail) if is_group else damage(chance, block, tail)
        twins.prepare(commands, 1000 * AT_MS + chance.randrange(1000))
        guess = chance.choice((0, 0, tail // 2, tail))
        groups: list[Any] = []
        for log in (Log(twins.short, "l"), FullLog(twins.full, "l")):
            log.known = Known(block, tail, 0, (), EPOCH.encode())
            log.receipts = Receipts(lambda _: KEYS.receipt(b"nonce"))
            groups.append(log.group("g", ack=acks, lease=60))
            groups[-1]._next = guess
        is_full = chance.random() < 0.04
        with twins.full_memory(is_full):
            for _ in range(chance.choice((1, 2))):
                count, member = chance.choice((1, 1, 3, 50)), chance.choice((b"m", b""))
                waiter = chance.choice(("", "", "w"))
                turn = chance.choice((b"", b"2")) if waiter else b""
                asked = (count, member, waiter, bool(waiter) and chance.random() < 0.8, turn)
                said = check("read", [partial(look, each, asked) for each in groups])
                is_read = isinstance(said, list) and bool(said)
                good += is_read
                refused += not isinstance(said, list | NoEntries)
                if acks and chance.random() < 0.8:
                    held = [GroupEntry(each, b"", 1, each + 1) for each in range(tail + 1)]
                    if is_read:
                        held = said
                    some = chance.sample(held, chance.randint(1, len(held)))
                    if chance.random() < 0.5:
                        some.sort(key=lambda each: each.offset)
                    done = [*some, *(each.offset for each in some[:1]), *range(chance.randrange(3))]
                    check("ack", [partial(each.ack, *done) for each in groups])
    tried("short and full reads of a group in one state", states)
    # No kind of states is rare.
    assert good > states / 5
    assert refused > states / 20
    if twins.is_real:
        for taken in by_short.values():
            assert len(taken) / 6 < sum(taken) < len(taken) * 5 / 6, (len(taken), sum(taken))


G = KEYS.group(b"g")
OLD_EPOCH = "1700000000000000"


def odd_group_states() -> dict[str, list[tuple[Any, ...]]]:
    """Return what makes a usual group one for the full path, by one thing alone."""
    found: dict[str, list[tuple[Any, ...]]] = {
        f"{field} is {junk!r}": [("HSET", G.state, field, junk)]
        for field in ("offset", "turn", "delivery", "lost")
        for junk in ("02", "-1", "9" * 16)
    }
    for junk in ("1" * 15, "1" * 21, "1" * 15 + "x", ""):
        found[f"the epoch is {junk!r}"] = [
            ("HSET", key, "epoch", junk) for key in (KEYS.meta, G.state)
        ]
    for field, values in {
        "block": (0, 100_001, "04"),
        "first": (7, "00"),
        "next": (5, "06"),
        "mark": (3, ""),
    }.items():
        for value in values:
            found[f"the log's {field} is {value!r}"] = [("HSET", KEYS.meta, field, value)]
    for key in (KEYS.meta, KEYS.news, KEYS.waiting, *G.all):
        for foreign in (("SET", key, "foreign"), ("ZADD", key, 1, "a")):
            found[f"{foreign[0]} {key!r}"] = [("DEL", key), foreign]
        found[f"no {key!r}"] = [("DEL", key)]
    for score in (AT_MS - 60_000, AT_MS - 59_999, AT_MS + 86_400_000, AT_MS + 86_400_001, "inf"):
        found[f"the last one was handed out at {score}"] = [("ZADD", G.pending, score, f"{1:016d}")]
    for score in (AT_MS - 9.5, AT_MS - 70_000.5, -AT_MS):
        found[f"the only one was handed out at {score}"] = [
            ("DEL", G.pending),
            ("ZADD", G.pending, repr(score), f"{1:016d}"),
        ]
    for number in ("0", "1", "2", "9" * 16, "x"):
        text = f"{number} 2 1 3 {EPOCH}"
        found[f"the receipt is {text!r}"] = [("SET", KEYS.receipt(b"nonce"), text)]
    for history in ("1 2 m", "100000000 2 m", "100000001 2 m", "01 2 m", "0 2 m", "1 02 m", "x"):
        found[f"the history is {history!r}"] = [("HSET", G.attempts, 1, history)]
    found |= {
        "another log's group": [("HSET", G.state, "epoch", OLD_EPOCH)],
        "the log knows no such group": [("HDEL", KEYS.meta, "group:g")],
        "another kind": [("HSET", G.state, "kind", "acknowledged:60000:6")],
        "a version to come": [("HSET", G.state, "mark", 2)],
        "other news": [("XADD", KEYS.news, "7-0", "n", 1)],
        "somebody waits": [("ZADD", G.line, AT_MS + 5000, "w")],
        "a turn is given": [("RPUSH", G.turns, 2), ("ZADD", G.granted, AT_MS - 10, 2)],
        "a turn that nobody was given": [("RPUSH", G.turns, 2)],
        "an entry is revived": [("HSET", G.revived, 1, "entry")],
        "an entry is dead": [("HSET", G.dead, 0, "1 1 5:1 1 mgone")],
        "another group waits": [("ZADD", KEYS.waiting, AT_MS + 5000, "h")],
        "evicted": [("HSET", KEYS.meta, "first", 3)],
        "one was handed out before": [("HSET", G.attempts, 2, "1 1 m")],
        "the next block is shorter": [("RPOP", KEYS.block(0))],
        "the next block is foreign": [("DEL", KEYS.block(0)), ("SET", KEYS.block(0), "foreign")],
        "nothing is left": [("HSET", G.state, "offset", 6)],
        "behind the end": [("HSET", G.state, "offset", 7)],
    }
    return found


def odd_append_states() -> dict[str, list[tuple[Any, ...]]]:
    """Return what makes the middle of a block one for the full path, by one thing alone."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for field, values in {
        "mark": (3, ""),
        "block": (5, 0, "04"),
        "next": (4, 5, 7, 8, "06", ""),
        "first": (7, "00", "x"),
        "kept": (2, "00", "x"),
        "joined": ("x", "01", "9" * 19),
    }.items():
        for value in values:
            found[f"the log's {field} is {value!r}"] = [("HSET", KEYS.meta, field, value)]
        found[f"the log has no {field}"] = [("HDEL", KEYS.meta, field)]
    for key in (KEYS.meta, KEYS.block(1), KEYS.times, KEYS.news, KEYS.waiting):
        found[f"foreign {key!r}"] = [("DEL", key), ("SET", key, "foreign")]
        found[f"no {key!r}"] = [("DEL", key)]
    # From here on Lua's own texts of numbers are not whole ones.
    far = 10**14
    found |= {
        f"the end is {end}": [
            ("HSET", KEYS.meta, "next", end, "first", end, "kept", end // 4),
            ("RENAME", KEYS.block(1), KEYS.block(end // 4)),
            ("DEL", KEYS.news),
        ]
        for end in (far - 2, far + 2)
    }
    found |= {
        "kept blocks of evicted entries": [("HSET", KEYS.meta, "first", 5)],
        "more in the block": [("RPUSH", KEYS.block(1), "more")],
        "less in the block": [("RPOP", KEYS.block(1))],
        "news to come": [("XADD", KEYS.news, "7-1", "n", 1)],
        "an older moment": [("ZADD", KEYS.times, AT_MS - 5, 1)],
        "a later moment": [("ZADD", KEYS.times, AT_MS + 5, 1)],
    }
    for name in ("g", "x"):
        for until in (AT_MS, AT_MS + 1, AT_MS + 86_400_000, AT_MS + 86_400_001):
            found[f"{name} waits until {until}"] = [("ZADD", KEYS.waiting, until, name)]
    return found


@pytest.mark.parametrize(
    "twins",
    ["redis7", *[pytest.param(each, marks=pytest.mark.slow) for each in EVERYWHERE[1:]]],
    indirect=True,
)
def test_each_odd_state_of_a_block_is_one_for_the_full_path(twins: Twins) -> None:
    facts = {"mark": 1, "block": 4, "next": 6, "first": 0, "kept": 0, "epoch": EPOCH}
    usual: list[tuple[Any, ...]] = [
        ("HSET", KEYS.meta, *sum(facts.items(), ()), "joined", 1, "group:g", 1),
        ("RPUSH", KEYS.block(0), *[b"entry"] * 4),
        ("RPUSH", KEYS.block(1), *[b"entry"] * 2),
        ("ZADD", KEYS.times, AT_MS - 100, 0, AT_MS, 1),
        ("ZADD", KEYS.full, AT_MS, 0),
        ("XADD", KEYS.news, "6-0", "n", 1),
    ]
    for name, commands in {"usual": [], **odd_append_states()}.items():
        ahead = int(name.split()[-1]) - 6 if name.startswith("the end is") else 0
        for block, place, count in ((4, 6, 1), (4, 5, 1), (4, 5, 2), (4, 9, 1), (5, 6, 1)):
            guess = ahead + place
            twins.prepare([*usual, *commands], 1000 * AT_MS)
            log, full = Log(twins.short, "l"), FullLog(twins.full, "l")
            log.known = full.known = Known(block, guess)
            calls = [partial(each.append, *[b"new"] * count) for each in (log, full)]
            assert log._short([b"new"] * count) is not None
            twins.check(*calls, f"{count} behind {guess} in blocks of {block} where {name}")
            if name == "usual" and (block, count) == (4, 1) and guess < 8:
                # Nothing was in vain.
                assert not log._resting
    # So many that the server can trim some.
    for news in (121, 126, 127, 128):
        for count in (1, 6):
            commands = [("HSET", KEYS.meta, "block", 200, "next", news), ("DEL", KEYS.block(0))]
            commands += [("RPUSH", KEYS.block(0), *[b"entry"] * news), ("DEL", KEYS.news)]
            commands += [("XADD", KEYS.news, f"{each}-0", "n", 1) for each in range(1, news + 1)]
            twins.prepare([*usual, *commands], 1000 * AT_MS)
            log, full = Log(twins.short, "l"), FullLog(twins.full, "l")
            log.known = full.known = Known(200, news)
            calls = [partial(each.append, *[b"new"] * count) for each in (log, full)]
            twins.check(*calls, f"{count} behind {news}")
            assert not log._resting


@pytest.mark.parametrize("kind", ["plain", "acknowledged:60000:5"])
@pytest.mark.parametrize(
    "twins",
    ["redis7", *[pytest.param(each, marks=pytest.mark.slow) for each in EVERYWHERE[1:]]],
    indirect=True,
)
def test_each_odd_state_of_a_group_is_one_for_the_full_path(twins: Twins, kind: str) -> None:
    facts = {"mark": 1, "block": 4, "next": 6, "first": 0, "kept": 0, "epoch": EPOCH}
    own = {"mark": 1, "kind": kind, "epoch": EPOCH, "offset": 2, "turn": 1, "delivery": 2}
    usual: list[tuple[Any, ...]] = [
        ("HSET", KEYS.meta, *sum(facts.items(), ()), "joined", 1, "group:g", 1, "group:h", 1),
        ("HSET", G.state, *sum(own.items(), ()), "lost", 0),
        ("RPUSH", KEYS.block(0), *[b"entry"] * 4),
        ("RPUSH", KEYS.block(1), *[b"entry"] * 2),
        ("XADD", KEYS.news, "6-0", "n", 1),
    ]
    if kind != "plain":
        usual.append(("ZADD", G.pending, AT_MS - 70, f"{0:016d}", AT_MS - 10, f"{1:016d}"))
        usual.append(("HSET", G.attempts, 0, "1 1 m", 1, "1 2 m"))
    held = [GroupEntry(offset, b"", 1, offset + 1) for offset in (0, 1)]
    for name, commands in {"usual": [], **odd_group_states()}.items():
        for what in ("read", "ack", "ack offsets"):
            if kind == "plain" and what != "read":
                continue
            twins.prepare([*usual, *commands], 1000 * AT_MS)
            calls: list[Callable[[], Any]] = []
            for log in (Log(twins.short, "l"), FullLog(twins.full, "l")):
                log.known = Known(4, 6, 0, (), EPOCH.encode())
                log.receipts = Receipts(lambda _: KEYS.receipt(b"nonce"))
                group = log.group("g", ack=kind != "plain", lease=60)
                asked = {"read": (3, b"m", "", False, b""), "ack": held, "ack offsets": (0, 1)}
                call = partial(look, group) if what == "read" else partial(_acked, group)
                calls.append(partial(call, asked[what]))
            taken: list[bool] = []
            calls[0] = partial(is_by_short_path, twins, calls[0], taken)
            twins.check(*calls, f"{what} where {name}")
            assert name != "usual" or taken == [twins.is_real], what


def _acked(group: Any, entries: Sequence[Any]) -> int:
    done: int = group.ack(*entries)
    return done
