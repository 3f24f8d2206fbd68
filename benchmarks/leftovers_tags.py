"""Dead members of one large tag set: for how long a slice holds the server, and at what cost.

A slice of TagSetLeftovers sends several short commands. The server's own CPU time of all commands
of a slice counts, and beside it the SLOWLOG of its longest single command. The quietest of nine
rounds counts: others on the machine make a slice longer and never shorter.
The reference removes as cacheops' own reaper does: SSCAN, MGET and SREM, 1,000 members at a time.
Alone: ``nice python benchmarks/leftovers_tags.py --members 20000000`` (2 GB of memory).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import redis
from figures import Figure, Target, show
from servers import RedisServer, newest_redis

from workstealing.errors import Aborted, OutOfTime
from workstealing.jobs import TagSetLeftovers
from workstealing.recruiting import Slice

MEMBERS, SLICES, ROUNDS = 200_000, 900, 9
MOST_MS = 1.0
# Every so many members have a key.
LIVE_EVERY = 20
CHUNK = 1_000
SLOW_US = 100
KEY = "conj:shop_row:"


def measure(server: RedisServer, members: int = MEMBERS, slices: int = SLICES) -> list[Figure]:
    """Measure slices over a large set, and the reference's chunks after them."""
    client = server.client()
    kept = client.config_get("slowlog-*")
    client.config_set("slowlog-log-slower-than", SLOW_US)
    client.config_set("slowlog-max-len", 100_000)
    client.config_set("save", "")
    _fill(client, members)
    job = TagSetLeftovers(client, dry_run=False)
    before = client.scard(KEY)
    ours: list[list[float]] = []
    longest: list[float] = []
    for _ in range(ROUNDS):
        client.slowlog_reset()
        ours.append(list(itertools.islice(_slices(client, job), slices // ROUNDS)))
        found = [each["duration"] for each in client.slowlog_get(100_000)]
        longest.append(max(found, default=SLOW_US) / 1000)
    every = [each for some in ours for each in some]
    removed = before - client.scard(KEY)
    before = client.scard(KEY)
    theirs = list(itertools.islice(_chunks(client), max(1, removed // CHUNK)))
    reaped = before - client.scard(KEY)
    live = sum(client.exists(f"q:{number:012d}") for number in range(0, members, LIVE_EVERY * 50))
    assert live == len(range(0, members, LIVE_EVERY * 50))
    assert client.sismember(KEY, f"q:{0:012d}")
    for name, value in kept.items():
        client.config_set(name, value)
    server.wipe()
    ours_each, theirs_each = sum(every) / max(1, removed), sum(theirs) / max(1, reaped)
    details = {
        "members": float(members),
        "median_ms": round(statistics.median(every), 3),
        "slices_over_1_ms": float(sum(each > MOST_MS for each in every)),
        "slices": float(len(every)),
        "removed_a_slice": removed / len(every),
    }
    slice_ms = [max(each) for each in ours]
    return [
        _figure("tag_set_longest_slice", slice_ms, "ms of the server's CPU", details),
        _figure("tag_set_longest_command", longest, "ms, by the server's SLOWLOG", {}),
        Figure(
            "tag_set_cost_a_member",
            *(round(ours_each / theirs_each, 2),) * 3,
            1,
            "SSCAN, MGET, SREM without WATCH",
            None,
            {"ours_us": 1000 * ours_each, "reference_us": 1000 * theirs_each},
        ),
    ]


def _figure(name: str, found: list[float], unit: str, details: dict[str, float]) -> Figure:
    low, *_, high = ordered = sorted(round(each, 3) for each in found)
    middle = ordered[len(ordered) // 2]
    target, more = Target(most=MOST_MS), {"worst_round_ms": high}
    return Figure(name, low, low, middle, len(found), unit, target, {**details, **more})


def _slices(client: Any, job: TagSetLeftovers) -> Iterator[float]:
    """Yield the server's CPU time in ms of each slice."""
    while True:
        began = _cpu_ms(client)
        # On a busy machine a reply may be late: the next slice goes on.
        with contextlib.suppress(Aborted, OutOfTime, redis.TimeoutError):
            job.perform(Slice(job.limit, 10.0))
        yield _cpu_ms(client) - began


def _chunks(client: Any) -> Iterator[float]:
    """Yield the server's CPU time in ms of each chunk of the reference."""
    cursor = 0
    while True:
        began = _cpu_ms(client)
        cursor, found = client.sscan(KEY, cursor, count=CHUNK)
        values = client.mget(found)
        dead = [each for each, value in zip(found, values, strict=True) if value is None]
        if dead:
            client.srem(KEY, *dead)
        yield _cpu_ms(client) - began


def _cpu_ms(client: Any) -> float:
    found = client.info("cpu")
    return 1000.0 * (found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"])


def _fill(client: Any, members: int) -> None:
    for first in range(0, members, 50_000):
        names = [f"q:{number:012d}" for number in range(first, min(members, first + 50_000))]
        with client.pipeline(transaction=False) as block:
            for at in range(0, len(names), 5_000):
                block.sadd(KEY, *names[at : at + 5_000])
            live = [each for each in names if int(each[2:]) % LIVE_EVERY == 0]
            block.mset(dict.fromkeys(live, 1))
            block.execute()


def main() -> None:
    """Measure with another number of members."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--slices", type=int, default=SLICES)
    options = parser.parse_args()
    with newest_redis() as server:
        show(measure(server, options.members, options.slices))


if __name__ == "__main__":
    main()
