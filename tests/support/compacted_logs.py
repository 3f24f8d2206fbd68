"""What tests of a compactor share: logs with full blocks, and whether a log is sound and whole."""

from __future__ import annotations

import json
import random
from typing import Any

from workstealing.jobs import LogCompactor
from workstealing.recruiting import Slice
from workstealing.structures.log import Log
from workstealing.structures.log.blocks import entries_of, head_of

BLOCK = 10
COLD_S = 60.0
LATER_MS = 1_000_000
"""How far ahead the clock of a compactor is that finds everything cold."""


def entry(number: int) -> bytes:
    """Return the entry that belongs at an offset."""
    return b"entry %d " % number + b"x" * (number % 7 * 5)


def entries(stop: int, start: int = 0) -> list[bytes]:
    """Return the entries that belong at these offsets."""
    return [entry(number) for number in range(start, stop)]


def json_entry(number: int, random: random.Random) -> bytes:
    """Return a line of a web shop's activity of about 100 bytes, as JSON."""
    return json.dumps(
        {
            "id": number,
            "user": f"u{random.randrange(10**6)}",
            "action": random.choice(["open", "close", "buy", "search"]),
            "price": random.randrange(10**4) / 100,
            "at": 1700000000 + number,
            "url": f"/item/{random.randrange(10**4)}",
        }
    ).encode()


def made(client: Any, count: int = 35, name: str = "l") -> Log:
    """Return a log of so many entries in blocks of ten."""
    log = Log(client, name, BLOCK)
    log.append(*entries(count))
    return log


def compactor(client: Any, *, later: bool = False, name: str = "l", **options: Any) -> LogCompactor:
    """Return a compactor, on request one for which all blocks are cold."""
    log = Log(client, name, BLOCK, clock_shift_ms=LATER_MS if later else 0)
    return LogCompactor(log, **{"cold": COLD_S, "limit": 100, **options})


def compact(client: Any, limit: int = 100, **options: Any) -> int:
    """Do one slice."""
    return compactor(client, **options).perform(Slice(limit, 10.0)) or 0


def forms(client: Any, log: Log) -> str:
    """Return a letter for each block from the lowest kept on: L list, R raw, Z zlib, S zstd.

    And a point for each that is missing.
    """
    found = ""
    kept, stop = (int(each or 0) for each in client.hmget(log.keys.meta, "kept", "next"))
    for number in range(kept, -(-stop // BLOCK)):
        key = log.keys.block(number)
        kind = client.type(key)
        if kind == b"string":
            found += {"raw": "R", "zlib": "Z", "zstd": "S"}[head_of(client.get(key)).codec]
        else:
            found += {b"list": "L", b"none": "."}[kind]
    return found


def assert_sound(client: Any, log: Log, incompressible: tuple[int, ...] = ()) -> None:
    """Each block is there once, in one form, in the set where it belongs, and nothing else is."""
    keys = log.keys
    kept, stop = (int(each or 0) for each in client.hmget(keys.meta, "kept", "next"))
    full = {int(each) for each in client.zrange(keys.full, 0, -1)}
    raw = {int(each) for each in client.zrange(keys.raw, 0, -1)}
    blocks = range(kept, -(-stop // BLOCK))
    shown = forms(client, log)
    assert "." not in shown
    assert full == {
        number
        for number, form in zip(blocks, shown, strict=True)
        if form == "L" and (number + 1) * BLOCK <= stop
    }
    assert raw == {
        number
        for number, form in zip(blocks, shown, strict=True)
        if form == "R" and number not in incompressible
    }
    expected = {keys.block(number) for number in blocks}
    expected |= {keys.meta, keys.news, keys.full, keys.raw, keys.times}
    assert set(client.scan_iter(keys.base.replace(b"[", b"\\[") + b"*")) <= expected
    for number, form in zip(blocks, shown, strict=True):
        key = keys.block(number)
        held = client.lrange(key, 0, -1) if form == "L" else entries_of(client.get(key))
        assert held == entries(min((number + 1) * BLOCK, stop), number * BLOCK)


def assert_whole(client: Any, count: int, name: str = "l") -> None:
    """Every entry is where it was, for whoever reads for the first time."""
    log = Log(client, name, BLOCK)
    assert log.read(0, count + BLOCK) == entries(count)
    assert log.length() == count
    for offset, number in ((0, 1), (count // 2, 3), (count - 1, 1), (BLOCK - 1, 2)):
        assert (
            Log(client, name).read(offset, number)
            == entries(offset + number, offset)[: max(0, count - offset)]
        )
