"""Consumers of Icks are killed a thousand times (SIGKILL), and no change of a document is lost.

Producers give each document a new version, and then add it; consumers read the version, work, note
what they have done, and commit. In the end the last version of each document has been worked on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.children import in_child
from support.patience import PATIENT_SECONDS, set_timeout
from support.servers import RedisServer
from workstealing.errors import Aborted
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import Ick

pytestmark = [pytest.mark.real, pytest.mark.slow]

KILLS = 1_000
ICKS = 2
CONSUMERS = 4
PRODUCERS = 2
RECENT = 24
"""How many documents of a producer are dirtied by turns at a time."""
CHANGES = 4
"""How often a document is dirtied, on average."""
STALE_SECONDS = 0.02
"""So short that consumers which are merely slow are reaped too, and commit too late."""


class Shared:
    """Counters that forked processes share: four for each consumer's place, and whether to end."""

    HOLDS, IGNORED, REAPED, COMMITTED = range(4)

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, CONSUMERS * 4 * 8 + 1)

    @property
    def ending(self) -> bool:
        """Whether producers are to end."""
        return self._memory[-1] == 1

    def end(self) -> None:
        self._memory[-1] = 1

    def get(self, place: int, which: int) -> int:
        (value,) = struct.unpack_from("q", self._memory, (place * 4 + which) * 8)
        return int(value)

    def set(self, place: int, which: int, value: int) -> None:
        struct.pack_into("q", self._memory, (place * 4 + which) * 8, value)

    def add(self, place: int, which: int, more: int) -> None:
        self.set(place, which, self.get(place, which) + more)

    def total(self, which: int) -> int:
        return sum(self.get(place, which) for place in range(CONSUMERS))


def icks_on(client: redis.Redis) -> list[Ick]:
    return [Ick(client, f"queue:{number}") for number in range(ICKS)]


def produce(port: int, number: int, shared: Shared, rest: dict[str, float]) -> None:
    """Dirty documents until told to end: each a few times in a short while, and then never again.

    So each change that is lost shows in the end; had they been dirtied all the time, a later change
    would have hidden it.
    """
    rng = random.Random(number)
    with redis.Redis(port=port) as client:
        icks = icks_on(client)
        first = 0
        while not shared.ending:
            document = first + rng.randrange(RECENT)
            first += rng.random() < 1 / CHANGES
            ick = icks[document % ICKS]
            # A change of the document comes before it is said to be dirty, as with a table's row.
            client.hincrby("versions", f"{number}:{document}", 1)
            ick.add(f"{number}:{document}", **rest)
            if client.zcard(ick.names.pset) + client.zcard(ick.names.waiting) > RECENT:
                # Nothing is dirtied while it is worked on if consumers are far behind.
                time.sleep(0.004)


def consume(port: int, place: int, seed: int, shared: Shared) -> None:
    """Work on one Ick's batches, and reap in between, until killed."""
    rng = random.Random(seed)
    with redis.Redis(port=port) as client:
        ick = icks_on(client)[place % ICKS]
        reaper = IckReaper(ick, STALE_SECONDS, limit=5, max_attempts=10**9)
        while True:
            batch = ick.reserve(rng.randrange(1, 12))
            shared.set(place, Shared.HOLDS, len(batch))
            work_on(client, batch.members, rng.uniform(0.0, 0.012))
            committed = ick.ack(*batch.members)
            shared.set(place, Shared.HOLDS, 0)
            shared.add(place, Shared.IGNORED, committed.ignored)
            shared.add(place, Shared.COMMITTED, committed)
            with contextlib.suppress(Aborted):
                shared.add(place, Shared.REAPED, reaper.perform(Slice(5, 10.0)))


def work_on(client: redis.Redis, documents: list[bytes], seconds: float = 0.0) -> None:
    if documents:
        versions = client.hmget("versions", documents)
        time.sleep(seconds)
        done = dict(zip(documents, map(int, versions), strict=True))
        client.zadd("done", done, gt=True)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    # It was alive: no consumer has failed by itself.
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.fixture
def running() -> Iterator[dict[int, int]]:
    """Consumers by their place, and producers from 100 on; they end with the test."""
    children: dict[int, int] = {}
    yield children
    for child in children.values():
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize("rest", [{}, {"quiet": 0.005, "at_most": 0.03}], ids=["plain", "rested"])
def test_a_thousand_kills_lose_nothing(
    redis7: RedisServer,
    running: dict[int, int],
    monkeypatch: pytest.MonkeyPatch,
    rest: dict[str, float],
) -> None:
    set_timeout(monkeypatch, PATIENT_SECONDS)
    rng = random.Random(20_151_021)
    port, shared = redis7.port, Shared()
    client = redis7.client()

    def consumer(place: int) -> int:
        seed = rng.random()
        return in_child(lambda: consume(port, place, hash(seed), shared))

    for number in range(PRODUCERS):
        running[100 + number] = in_child(lambda number=number: produce(port, number, shared, rest))
    for place in range(CONSUMERS):
        running[place] = consumer(place)
    died_holding = 0
    for _ in range(KILLS):
        # Deaths come at any moment of a consumer's work.
        time.sleep(rng.uniform(0.0, 0.012))
        place = rng.randrange(CONSUMERS)
        kill(running.pop(place))
        died_holding += shared.get(place, Shared.HOLDS) > 0
        shared.set(place, Shared.HOLDS, 0)
        running[place] = consumer(place)
    shared.end()
    for number in range(PRODUCERS):
        _, status = os.waitpid(running.pop(100 + number), 0)
        assert os.waitstatus_to_exitcode(status) == 0
    for place in range(CONSUMERS):
        kill(running.pop(place))

    # The last consumers have died too. Reapers return what they held, and one more works it off.
    last(client)
    versions = {name: int(version) for name, version in client.hgetall("versions").items()}
    done = {name: int(version) for name, version in client.zrange("done", 0, -1, withscores=True)}
    assert {name: version for name, version in versions.items() if done.get(name) != version} == {}
    # And it was a test: all of this has happened, not once.
    assert died_holding > KILLS // 10
    assert shared.total(Shared.IGNORED) > 10
    assert shared.total(Shared.REAPED) > 10
    assert shared.total(Shared.COMMITTED) > KILLS
    assert len(versions) > KILLS


def last(client: Any) -> None:
    """Return and work off whatever is left, by reapers and consumers that live."""
    for ick in icks_on(client):
        reaper = IckReaper(ick, 0.001, max_attempts=10**9)
        while client.exists(ick.names.cset, ick.names.waiting):
            reaper.perform(Slice(50, 10.0))
        assert client.exists(ick.names.pset) or client.exists(ick.names.cset) == 0
        while batch := ick.reserve(100):
            work_on(client, batch.members)
            assert ick.ack(*batch.members) == len(batch)
        assert ick.stats()["total_size"] == 0
