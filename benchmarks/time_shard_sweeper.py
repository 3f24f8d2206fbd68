"""The share of a sweeper's slices that traffic aborts: where nobody works, and where others do.

Producers, consumers and who acknowledges late work at once, with clocks 59 s behind, right, and
59 s ahead. Time goes on in steps between which all clocks stand still: so no clock is more than
that wrong on a busy machine. An abort is the traffic's where no other sweeper has changed the same
time shard meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from figures import Figure, Target, cost_figure, in_turn
from servers import RedisServer

# The tests' folder is on the path since servers was imported.
from support.time_shard_load import Load, Tally
from support.time_shards import Wall, queue_on
from workstealing import Slice
from workstealing.jobs import TimeShardSweeper

STEPS = 100
NONE = Target(most=0)
ROUNDS, CALLS, LIMIT = 20, 20, 25


def _role(role: str) -> Callable[[Any], int]:
    def where(queue: Any) -> int:
        return int(getattr(queue.rotation, role)(queue.now_ms()))

    return where


CASES: list[tuple[str, Target | None, dict[str, Any]]] = [
    ("untouched_of_6", NONE, {}),
    ("untouched_of_16", NONE, {"shards": 16}),
    ("untouched_of_6_by_4_sweepers", NONE, {"sweepers": 4}),
    ("untouched_of_16_by_4_sweepers", NONE, {"shards": 16, "sweepers": 4}),
    ("least_touched_of_5", None, {"shards": 5}),
    ("least_touched_of_4", None, {"shards": 4}),
    ("least_touched_of_5_clocks_9_s_off", NONE, {"shards": 5, "skews": (-9.0, 0.0, 9.0)}),
    ("producing_of_6", None, {"where": _role("producing")}),
    ("consuming_of_6", None, {"where": _role("consuming")}),
]


def measure(server: RedisServer) -> list[Figure]:
    """Count aborts by traffic, and time a slice beside the traffic that makes its work."""
    figures = []
    for name, target, options in CASES:
        server.wipe()
        tally = Load(server.client(), **options).run(STEPS)
        figures.append(_share(f"time_shard_aborts_{name}", tally, target))
    server.wipe()
    figures.append(_cost(server))
    return figures


def _share(name: str, tally: Tally, target: Target | None) -> Figure:
    # One that has found nothing to do sends no EXEC, which nobody could abort.
    made = [one for one in tally.attempts if one.items or one.aborted]
    share = len(tally.aborted_by_traffic) / len(made)
    details = {
        "slices_with_work": len(made),
        "aborted_by_traffic": len(tally.aborted_by_traffic),
        "aborted_by_sweepers": len(tally.aborted) - len(tally.aborted_by_traffic),
        "swept": sum(one.items for one in made),
        "taken": tally.taken,
    }
    value = round(share, 4)
    return Figure(name, value, value, value, 1, "all slices that had work", target, details)


def _cost(server: RedisServer) -> Figure:
    """Time slices that clear 25 messages each, beside the calls that have put, taken and acked."""
    wall = Wall()
    client, start = server.client(), wall.seconds
    queue = queue_on(client, wall)
    job = TimeShardSweeper(queue, LIMIT)

    def traffic() -> float:
        begun = time.perf_counter()
        wall.seconds = start
        for _ in range(CALLS * LIMIT):
            queue.put("x" * 100)
        wall.seconds = start + 2 * 60
        left = CALLS * LIMIT
        while left:
            taken = queue.take_many("consumer", LIMIT)
            left -= len(taken)
            for each in taken:
                queue.ack(each)
        return (time.perf_counter() - begun) / (CALLS * LIMIT)

    def sweeping() -> float:
        while job.backlog().count < CALLS * LIMIT:
            traffic()
        wall.seconds = start + 4 * 60
        costs = []
        for _ in range(CALLS):
            begun = time.perf_counter()
            swept = job.perform(Slice(LIMIT, 1.0))
            costs.append((time.perf_counter() - begun) / swept)
        return statistics.median(costs)

    costs: tuple[Sequence[float], Sequence[float]] = in_turn(sweeping, traffic, ROUNDS)
    return cost_figure(
        "time_shard_sweep_a_message", "a message's put, take (25 at once) and ack", costs
    )
