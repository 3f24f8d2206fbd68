"""Reapers of shuffle queues whose messages fail after another number of attempts."""

from __future__ import annotations

from typing import Any

from workstealing.jobs import ShuffleQueueReaper


def reaper_after(max_attempts: int, queue: Any, *args: Any, **options: Any) -> ShuffleQueueReaper:
    """Return a reaper of a queue, as a process has it that says so many attempts.

    Arguments:
        max_attempts: of that process's queue; those of the given one stay.
        queue: a `ShuffleQueue` or `AsyncShuffleQueue`.
        args: as of a `ShuffleQueueReaper`.
        options: the same.
    """
    other = type(queue)(
        queue.client,
        queue.keys.name,
        queue.streams,
        queue.streams_per_tenant,
        max_attempts=max_attempts,
        namespace=queue.namespace,
        clock_shift_ms=queue.clock_shift_ms,
    )
    return ShuffleQueueReaper(other, *args, **options)
