"""How long messages wait for sixteen readers of a shuffle queue, and whether a reader slept then.

100,000 messages of two writers at random; see tests/support/pickups.py for the evidence, and
tests/structures/shuffle_queue/test_wakeups.py for a shorter run of the same.
"""

from __future__ import annotations

import statistics
from typing import Any

from figures import Figure, Target
from servers import RedisServer

from support.pickups import traffic
from workstealing.structures import ShuffleQueue

MESSAGES = 100_000
PAUSE_SECONDS = 0.008


def measure(server: RedisServer) -> list[Figure]:
    """Count the messages that waited while a reader slept, which must be none."""
    evidence = traffic(server.port, _queue, messages=MESSAGES, pause_s=PAUSE_SECONDS)
    if sorted(wait.who for wait in evidence.messages) != sorted(evidence.written):
        raise AssertionError("not every message was delivered exactly once")
    slept = float(len(evidence.slept_through()))
    delays = evidence.delays()
    percentiles = statistics.quantiles(delays, n=1_000)
    details = {
        "messages": float(len(delays)),
        "sleeps": float(len(evidence.sleeps)),
        "sleeps_over_3_ms": float(sum(sleep.end - sleep.start > 3 for sleep in evidence.sleeps)),
        "delay_p50_ms": percentiles[499],
        "delay_p99_ms": percentiles[989],
        "delay_p999_ms": percentiles[998],
        "delay_longest_ms": delays[-1],
        "seconds": round(evidence.seconds, 1),
    }
    return [
        Figure(
            "shuffle_queue_slept_through", slept, slept, slept, 1, "messages, counted",
            Target(most=0.0), details,
        )
    ]  # fmt: skip


def _queue(client: Any) -> Any:
    return ShuffleQueue(client, "pickup", 64)
