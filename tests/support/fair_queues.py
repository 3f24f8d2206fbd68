"""What tests of fair queues share: a queue, times that are said, what its keys hold."""

from __future__ import annotations

import dataclasses
from typing import Any

from workstealing.jobs.fair_queue_reaper import PARTS
from workstealing.structures.fair_queue import FairMessage, FairQueue


def queue_on(client: Any, ahead_ms: int = 0, **options: Any) -> FairQueue:
    """Return a queue whose scripts see a clock that is so many ms ahead."""
    return FairQueue(client, options.pop("name", "q"), clock_shift_ms=ahead_ms, **options)


def got(message: FairMessage | None) -> FairMessage:
    """Return the message that must be there."""
    assert message is not None
    return message


def drained(queue: FairQueue, consumer: str = "c", most: int = 10_000) -> list[FairMessage]:
    """Read until there is nothing."""
    found: list[FairMessage] = []
    while (message := queue.read(consumer)) is not None:
        found.append(message)
        assert len(found) <= most, "it spins"
    return found


class Took:
    """In place of a message's batch: says how long the work has taken."""

    def __init__(self, us: int) -> None:
        self.us = us

    def spent_us(self, _: int) -> int:
        """Return the time, in us."""
        return self.us


def after(message: FairMessage, seconds: float) -> FairMessage:
    """Return the message as one whose work has taken some time."""
    return dataclasses.replace(message, batch=Took(round(seconds * 1e6)))  # type: ignore[arg-type]


def ask(queue: FairQueue, name: str, *args: Any) -> Any:
    """Run a script of the queue that no public call runs alone."""
    keys = queue.all_keys()
    script = queue._script(name)
    return queue.client.execute_command("EVAL", script.body, len(keys), *keys, *args)


def reap(queue: FairQueue, most: int = 100) -> list[int]:
    """Reap one slice, as the job does."""
    return [int(each) for each in ask(queue, "reap", most, queue.max_attempts, 10**9, 1, 0)]


def mend(queue: FairQueue) -> int:
    """Look at all parts as a whole, once; return how many were put right."""
    mended = 0
    for part in PARTS:
        cursor, looks = b"0", 0
        while looks == 0 or cursor != b"0":
            found, some = ask(queue, "mend", part, cursor, 50, 1, 0)
            cursor = found if isinstance(found, bytes) else str(found).encode()
            mended += int(some)
            looks += 1
            assert looks < 1000, f"the walk over {part} does not end"
    return mended


def leftovers(queue: FairQueue) -> dict[str, int]:
    """Return how much each key holds that belongs to messages or accounts; nothing is left out."""
    client, found = queue.client, {}
    for part in ("accounts", "ready", "messages", "leases", "held", "back", "parked", "limited"):
        found[part] = _size(client, queue.keys.of(part))
    for part in ("idle", "dead", "tracking", "dedupe", "deadlines"):
        found[part] = _size(client, queue.keys.of(part))
    return {part: size for part, size in found.items() if size}


def _size(client: Any, key: bytes) -> int:
    kind = client.type(key)
    if kind in (b"none", "none"):
        return 0
    return int(client.hlen(key) if kind in (b"hash", "hash") else client.zcard(key))
