"""What users would pick instead, as simple models; docs/adaptive.md says what each one assumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from simulation.garbage import Garbage
from simulation.records import Record

_MINUTE = 60.0
# A look at all index shards brings so many hashes; each hash is one script call.
_LOOK_COMMANDS, _HASHES_A_LOOK = 17, 256
# A task through the broker: sent, fetched, noted as taken, acknowledged, its result stored.
_BROKER_COMMANDS = 8
_QUEUE_SECONDS = 1.0
_REDISSON_SHORTEST, _REDISSON_LONGEST, _REDISSON_KEYS = 5.0, 1_800.0, 100
_NATIVE_INTERVAL, _NATIVE_A_SECOND = 0.1, 150_000


def run_cron(
    seconds: float,
    garbage: Garbage,
    random: Random,  # noqa: ARG001 - as the others
    record: Record,
) -> None:
    """Sweep everything at each whole minute, in one process that runs for nothing else."""
    _sweep_each_minute(seconds, garbage, record, lambda: 0.0, 0)


def run_celery_beat(seconds: float, garbage: Garbage, random: Random, record: Record) -> None:
    """Sweep everything in a task that is sent each minute and waits among other tasks."""
    _sweep_each_minute(
        seconds,
        garbage,
        record,
        lambda: random.expovariate(1.0 / _QUEUE_SECONDS),
        _BROKER_COMMANDS,
    )


def _sweep_each_minute(
    seconds: float, garbage: Garbage, record: Record, wait: Callable[[], float], commands: int
) -> None:
    minute = _MINUTE
    while minute < seconds:
        now = min(minute + wait(), seconds)
        garbage.arrive(now)
        items, hashes = garbage.sweep(now, garbage.waiting)
        looks = 1 + hashes // _HASHES_A_LOOK
        record.add(now, items, commands + looks * _LOOK_COMMANDS + hashes)
        minute += _MINUTE


def run_redisson(
    seconds: float,
    garbage: Garbage,
    random: Random,  # noqa: ARG001 - as the others
    record: Record,
) -> None:
    """Remove up to 100 items a run; the delay between runs follows the last three counts.

    It grows by half when they fall, or all are zero, and shrinks to a quarter only when all three
    are equal and full.
    """
    now = delay = _REDISSON_SHORTEST
    counts: deque[int] = deque(maxlen=3)
    while now < seconds:
        garbage.arrive(now)
        items, _ = garbage.sweep(now, _REDISSON_KEYS)
        record.add(now, items, 1)
        counts.append(items)
        if len(counts) == counts.maxlen:
            first, second, third = counts
            if first > second > third or not any(counts):
                delay = min(_REDISSON_LONGEST, delay * 1.5)
            elif first == second == third == _REDISSON_KEYS:
                delay = max(_REDISSON_SHORTEST, delay / 4)
        now += delay


def run_native(
    seconds: float,
    garbage: Garbage,
    random: Random,  # noqa: ARG001 - as the others
    record: Record,
) -> None:
    """Let the server expire fields itself, ten times a second, as Redis 8 was measured to do."""
    most = int(_NATIVE_A_SECOND * _NATIVE_INTERVAL)
    step = 1
    while step * _NATIVE_INTERVAL < seconds:
        now = step * _NATIVE_INTERVAL
        garbage.arrive(now)
        items, _ = garbage.sweep(now, most)
        record.add(now, items, 0)
        step += 1
