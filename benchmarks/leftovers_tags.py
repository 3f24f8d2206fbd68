"""Dead members of one large tag set: for how long a slice holds the server, and at what cost.

A slice of TagSetLeftovers sends several short commands. The server's own CPU time of a slice
counts; beside it stand the time in its commands alone, by INFO commandstats, and the SLOWLOG of its
longest single command. The quietest of nine rounds counts: others on the machine make a slice
longer and never shorter. The slices that walk past other keys to the set are a figure of their own.
The reference removes as cacheops' own reaper does: SSCAN, MGET and SREM, 1,000 members at a time.
Alone: ``nice python benchmarks/leftovers_tags.py --members 20000000`` (2 GB of memory).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

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
# More slices than any walk past the live members' keys takes.
MOST_WALKED = 1_000_000
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
    walked = list(_walk(client, job))
    ours: list[list[_Cost]] = []
    longest: list[float] = []
    for _ in range(ROUNDS):
        client.slowlog_reset()
        ours.append(list(itertools.islice(_slices(client, job), slices // ROUNDS)))
        found = [each["duration"] for each in client.slowlog_get(100_000)]
        longest.append(max(found, default=SLOW_US) / 1000)
    every = [each.cpu_ms for some in ours for each in some]
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
    in_commands = sorted(each.commands_ms for some in ours for each in some)
    slice_ms = [max(each.cpu_ms for each in some) for some in ours]
    commands_ms = [max(each.commands_ms for each in some) for some in ours]
    return [
        *_walked_figures(walked),
        _figure("tag_set_longest_slice", slice_ms, "ms of the server's CPU", details),
        _figure(
            "tag_set_longest_slice_in_commands",
            commands_ms,
            "ms in commands, by INFO commandstats",
            {
                "median_ms": round(statistics.median(in_commands), 3),
                "p99_ms": round(in_commands[int(0.99 * len(in_commands))], 3),
            },
        ),
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


class _Cost(NamedTuple):
    """What a slice has cost. Fields: cpu_ms: of the server's thread; commands_ms: in commands."""

    cpu_ms: float
    commands_ms: float


def _slices(client: Any, job: TagSetLeftovers) -> Iterator[_Cost]:
    """Yield the server's time of each slice."""
    while True:
        spent, began = _commands_ms(client), _cpu_ms(client)
        # On a busy machine a reply may be late: the next slice goes on.
        with contextlib.suppress(Aborted, OutOfTime, redis.TimeoutError):
            job.perform(Slice(job.limit, 10.0))
        cpu_ms = _cpu_ms(client) - began
        yield _Cost(cpu_ms, _commands_ms(client) - spent)


def _walk(client: Any, job: TagSetLeftovers) -> Iterator[_Cost]:
    """Do the slices that lead past other keys to the set; yield their costs."""
    place = job.place_key(job.rules[0], None, dry_run=False)
    before = client.scard(KEY)
    for cost in itertools.islice(_slices(client, job), MOST_WALKED):
        if client.scard(KEY) < before or client.hget(place, "inside"):
            return
        yield cost


def _walked_figures(walked: list[_Cost]) -> list[Figure]:
    """Return the figure of the walk; none if the set was on the first pages."""
    if not walked:
        return []
    middle = round(statistics.median(each.commands_ms for each in walked), 3)
    details = {
        "slices": float(len(walked)),
        "longest_ms": round(max(each.commands_ms for each in walked), 3),
        "longest_cpu_ms": round(max(each.cpu_ms for each in walked), 3),
    }
    unit = "ms in commands, by INFO commandstats"
    return [Figure("tag_set_walk_past_keys", *(middle,) * 3, 1, unit, None, details)]


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


def _commands_ms(client: Any) -> float:
    """Return the time in all commands but INFO, which asks for it.

    EXEC's time is that of the commands in it, which count themselves. Those in scripts count twice,
    so it is an upper bound.
    """
    found = client.info("commandstats")
    left_out = ("cmdstat_info", "cmdstat_exec")
    return sum(told["usec"] for name, told in found.items() if name not in left_out) / 1000


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
