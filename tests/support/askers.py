"""One who asks for a grant of each structure, and says whether all is free: for attacks at random.

As a program (`python -m support.askers PORT STRUCTURE SEED COUNT`) it kills greenlets that ask, at
random moments, and prints how many it has killed and how often something stayed held.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

import redis

from support.computing import leased_fields
from workstealing.errors import Aborted
from workstealing.store.operations import drive
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    VolatileHashes,
)
from workstealing.structures.sharded_ick.leasing import look

MESSAGES = 4
_FOR_GOOD = (b":mark", b":fence", b":layout", b":slots", b":due")
# For how long a grant may take to come back: a client's own time-out, and a busy machine.
_PATIENCE_SECONDS = 30.0


class Asker(NamedTuple):
    """One who asks.

    Fields: ask: asks once, and gives back as a program does; is_free: says whether the server holds
    nothing but what came to the caller, and gives that back.
    """

    ask: Callable[[], object]
    is_free: Callable[[], bool]


def of_durable_keys(client: Any, direct: Any) -> Asker:
    keys: DurableKeys = DurableKeys(client, "grants")
    keys.open()

    def ask() -> None:
        with keys.lock("lease", 600):
            pass

    def is_free() -> bool:
        left = [each for each in direct.scan_iter(count=1000) if not each.endswith(_FOR_GOOD)]
        return all(b":withdrawn:" in each for each in left)

    return Asker(ask, is_free)


def of_sharded_ick(client: Any, direct: Any) -> Asker:
    ShardedIck(direct, "orders", 3).add({f"m{i}": float(i) for i in range(20)})
    sharded, kept = ShardedIck(client, "orders"), ShardedIck(direct, "orders")
    sharded.open()

    def ask() -> None:
        with sharded.lease("worker", 600):
            pass

    def is_free() -> bool:
        _, looks = drive(direct, look(kept.core))
        return all(not each.left_ms for each in looks)

    return Asker(ask, is_free)


def of_shuffle_queue(client: Any, direct: Any) -> Asker:
    queue, kept = (ShuffleQueue(each, "q", 2, 2) for each in (client, direct))
    assert kept.read("g", "first") is None
    had: list[Any] = []

    def pending() -> set[str]:
        # A stream that was never read has no such group.
        return {
            f"{number}-{row['message_id'].decode()}"
            for number, stream in enumerate(kept.keys.streams(2))
            for row in direct.xpending_range(stream, "g", "-", "+", 100, "c")
        }

    def write_anew() -> None:
        for number in range(MESSAGES):
            kept.write("tenant", {"n": number})

    def ask() -> None:
        # One read by a full look, one as planned; and one more of several.
        had.append(queue.read("g", "c"))
        had.append(queue.read("g", "c"))
        had.extend(queue.read_many("g", "c", 2))

    def is_free() -> bool:
        mine = [each for each in had if each is not None]
        if pending() != {each.id for each in mine}:
            return False
        others = kept.read_many("g", "another", 2 * MESSAGES)
        is_right = len(others) + len(mine) == MESSAGES
        is_right &= {each.attempts for each in (*others, *mine)} == {1}
        had.clear()
        kept.ack(*others, *mine)
        write_anew()
        return is_right

    write_anew()
    return Asker(ask, is_free)


def of_fair_queue(client: Any, direct: Any) -> Asker:
    queue, kept = (FairQueue(each, "f", lease=600) for each in (client, direct))
    assert kept.read("first") is None
    had: list[Any] = []

    def write_anew() -> None:
        for number in range(MESSAGES):
            kept.write(f"tenant {number % 2}", {"n": number})

    def ask() -> None:
        had.append(queue.read("c"))
        had.extend(queue.read_many("c", 2))
        had.extend(queue.exchange(consumer="c").messages)

    def is_free() -> bool:
        mine = [each for each in had if each is not None]
        if kept.stats()["pending"] != len(mine):
            return False
        others = kept.read_many("another", 2 * MESSAGES)
        is_right = len(others) + len(mine) == MESSAGES
        is_right &= {each.attempts for each in (*others, *mine)} == {1}
        had.clear()
        is_right &= kept.ack(*others, *mine) == MESSAGES
        is_right &= {each.in_flight for each in kept.accounts()} == {0}
        write_anew()
        return is_right

    write_anew()
    return Asker(ask, is_free)


def of_time_shard_queue(client: Any, direct: Any) -> Asker:
    class Clock:
        seconds = time.time()

        def time(self) -> float:
            return self.seconds

    clock: Any = Clock()
    queue, kept = (
        TimeShardQueue(RedisStore(each), "letters", 6, 60, max_attempts=100, clock=clock)
        for each in (client, direct)
    )
    for number in range(MESSAGES):
        kept.put(f"letter {number}")
    clock.seconds += 120.0
    queue.open()
    had: list[Any] = []

    def ask() -> None:
        had.append(queue.take("reader", lease=600))
        had.extend(queue.take_many("reader", 2, lease=600))

    def is_free() -> bool:
        mine = [each for each in had if each is not None]
        others = kept.take_many("another", 2 * MESSAGES, lease=600)
        is_right = len({each.id for each in (*mine, *others)}) == MESSAGES
        is_right &= {each.attempts for each in (*mine, *others)} == {1}
        for each in (*mine, *others):
            is_right &= kept.release(each)
        if is_right:
            had.clear()
        return is_right

    return Asker(ask, is_free)


def of_volatile_hashes(client: Any, direct: Any) -> Asker:
    hashes = VolatileHashes(client, namespace="pages", backend="emulated")
    kept = VolatileHashes(direct, namespace="pages", backend="emulated")
    page = hashes.cached(ttl=600, key="page", field="text", lease=600, recruiter=None)(
        lambda: "made"
    )

    def ask() -> None:
        page()

    def is_free() -> bool:
        is_right = not leased_fields(kept, "page")
        if is_right:
            direct.delete("page")
        return is_right

    return Asker(ask, is_free)


ASKERS: dict[str, Callable[[Any, Any], Asker]] = {
    "durable keys": of_durable_keys,
    "fair queue": of_fair_queue,
    "sharded ick": of_sharded_ick,
    "shuffle queue": of_shuffle_queue,
    "time shard queue": of_time_shard_queue,
    "volatile hashes": of_volatile_hashes,
}


def seconds_of(asker: Asker) -> float:
    """Return how long it takes to ask, when nothing comes between."""
    asker.ask()
    assert asker.is_free()
    spent = 0.0
    for _ in range(20):
        began = time.monotonic()
        asker.ask()
        spent += time.monotonic() - began
        assert asker.is_free()
    return spent / 20


def in_time(is_free: Callable[[], bool]) -> bool:
    """Say whether all is free in the end; what is given back may still be on its way."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not is_free():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Killed(NamedTuple):
    """Fields: tried: how many greenlets were killed; held: how often something stayed held."""

    tried: int
    held: int


def kill_greenlets(port: int, structure: str, seed: int, count: int) -> Killed:
    """Kill greenlets that ask for a grant in a process of its own; return what came of it."""
    words = [sys.executable, "-P", "-m", "support.askers", str(port), structure]
    done = subprocess.run(
        [*words, str(seed), str(count)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Killed(*json.loads(done.stdout))


def _killing(port: int, structure: str, seed: int, count: int) -> Killed:
    import gevent

    chance = random.Random(seed)
    with redis.Redis(port=port) as client, redis.Redis(port=port) as direct:
        asker = ASKERS[structure](client, direct)
        longest = seconds_of(asker)
        killed = held = 0
        while killed < count:
            asking = gevent.spawn(asker.ask)
            gevent.sleep(chance.uniform(0, longest))
            killed += not asking.dead
            asking.kill(block=True)
            assert asking.successful() or isinstance(asking.exception, Aborted), asking.exception
            if not in_time(asker.is_free):
                held += 1
                break
    return Killed(killed, held)


if __name__ == "__main__":
    json.dump(
        _killing(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), sys.stdout
    )
