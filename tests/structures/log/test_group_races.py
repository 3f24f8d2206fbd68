"""Groups of a log under many members at once, and under members that are killed."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from support.at_once import at_once
from support.patience import GUARD_SECONDS
from support.processes import end, spawn
from support.servers import RedisCluster3, RedisServer
from workstealing.structures.log.group import LogGroup
from workstealing.structures.log.log import Log

AnyReal = RedisServer | RedisCluster3
BLOCK, SOON_S = 600, GUARD_SECONDS


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyReal]:
    found: AnyReal = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def log_of(server: Any) -> Log:
    return Log(server.client(), "l", 10)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("block", [0, BLOCK])
def test_each_entry_goes_to_exactly_one_of_many_members(server: AnyReal, block: int) -> None:
    writers, members, batches = 3, 6, 40
    stops = [f"stop {each}".encode() for each in range(members)]
    found: list[tuple[int, bytes]] = []

    def write(writer: int) -> None:
        log, rng = log_of(server), random.Random(writer)
        for batch in range(batches):
            entries = [f"{writer} {batch} {each}" for each in range(rng.randint(1, 25))]
            log.append(*entries)

    def read(member: int) -> None:
        group, rng = log_of(server).group("mail"), random.Random(member)
        while True:
            for offset, entry in group.read(1 if block else rng.randint(1, 40), block):
                found.append((offset, entry))
                if entry in stops:
                    return

    # A member that has found a stop reads no more, and there is one for each: all of them end.
    def write_all() -> None:
        try:
            at_once([partial(write, each) for each in range(writers)])
        finally:
            # Also after an error of a writer's: members that wait for their stop would hide it.
            for stop in stops:
                log_of(server).append(stop)

    if block:
        at_once([write_all, *[partial(read, each) for each in range(members)]])
    else:
        write_all()
        at_once([partial(_drain, server, found) for _ in range(members)])
    length = log_of(server).length()
    everything = log_of(server).read(0, length)
    assert sorted(found) == list(enumerate(everything))


def _drain(server: AnyReal, found: list[tuple[int, bytes]]) -> None:
    group = log_of(server).group("mail")
    while entries := group.read(17):
        found += [(offset, entry) for offset, entry in entries]


@pytest.mark.slow
@pytest.mark.real
def test_seeks_evictions_and_acknowledgements_leave_nothing_undone(redis7: RedisServer) -> None:
    """Whatever is available is acknowledged in the end, whoever moves the group meanwhile."""
    log = log_of(redis7)
    done = threading.Event()

    def group() -> LogGroup:
        return log_of(redis7).group("mail", ack=True, lease=0.02, max_attempts=1000)

    def move() -> None:
        mine, rng = group(), random.Random(7)
        for _ in range(60):
            mine.seek(rng.randint(-20, -1))
            log_of(redis7).evict(keep=200)
        done.set()

    def write() -> None:
        mine = log_of(redis7)
        for number in range(150):
            mine.append(*[b"%d" % number] * 3)

    acknowledged: Counter[int] = Counter()

    def read(member: int) -> None:
        mine, rng = group(), random.Random(member)
        while True:
            entries = mine.read(5, block=0.1)
            assert len({entry.offset for entry in entries}) == len(entries)
            for entry in entries:
                if rng.random() < 0.8 and mine.ack(entry):
                    acknowledged[entry.offset] += 1
            if not entries and done.is_set() and not mine.stats().lag and not mine.stats().pending:
                return

    at_once([move, write, *[partial(read, each) for each in range(4)]])
    group().seek("first")
    remaining = []
    while entries := group().read(50):
        remaining += [entry.offset for entry in entries if entry.attempts == 1]
        assert group().ack(*entries) == len(entries)
    # A seek back hands out again what was acknowledged; what is available is there, all of it.
    assert remaining == list(range(log.first(), log.last() + 1))
    assert log.client.exists(group().keys.pending, group().keys.attempts) == 0


MEMBER = """
import sys, redis
from workstealing.structures.log.log import Log
port, number = int(sys.argv[1]), sys.argv[2]
client = redis.Redis(port=port)
group = Log(client, "l", 10).group("mail", ack=True, lease=0.15, max_attempts=10_000)
while True:
    for entry in group.read(5, block=60, member=number):
        client.hincrby("done", entry.offset, 1)
        group.ack(entry)
"""


@pytest.mark.slow
@pytest.mark.real
def test_an_acknowledged_group_loses_nothing_to_kills(redis7: RedisServer) -> None:
    entries, batch = 600, 20
    client = redis7.client()
    rng = random.Random(5)

    def start(number: int) -> Any:
        return spawn((sys.executable, "-P", "-c", MEMBER, str(redis7.port), f"m{number}"))

    members = [start(each) for each in range(3)]
    killed = 0
    try:
        log = log_of(redis7)
        deadline = time.monotonic() + SOON_S
        written = 0
        while client.hlen("done") < entries or log_group(redis7).stats().pending:
            assert time.monotonic() < deadline
            if written < entries and client.hlen("done") >= written - 2 * batch:
                log.append(*[b"%d" % each for each in range(written, written + batch)])
                written += batch
            if killed < 8 and client.hlen("done") > killed * 60:
                victim = rng.randrange(len(members))
                # Wherever it is: reading, working, acknowledging, or asleep.
                members[victim].kill()
                end(members[victim])
                members[victim] = start(100 + killed)
                killed += 1
            time.sleep(0.002)
    finally:
        for each in members:
            each.kill()
            end(each)
    done = {int(offset): int(times) for offset, times in client.hgetall("done").items()}
    assert sorted(done) == list(range(entries))
    assert killed == 8
    assert log_group(redis7).stats()[:3] == (entries, 0, 0)
    assert log_group(redis7).dead() == []


def log_group(server: Any) -> LogGroup:
    return log_of(server).group("mail", ack=True, lease=0.15, max_attempts=10_000)


@pytest.mark.real
@pytest.mark.parametrize("others", [1, 30, 900])
def test_a_read_finds_what_is_there_however_fast_others_go_on(
    redis7: RedisServer, others: int
) -> None:
    log, other = (Log(redis7.client(), "l", 1) for _ in range(2))
    for _ in range(12):
        other.append(*[b"x"] * 999)
    group, theirs = log.group("g"), other.group("g")
    script, tries = log.script, []

    def delayed(name: str) -> Any:
        # Always one more read of others than the last reply has told of.
        tries.append(name)
        theirs.seek(min(theirs.offset() + others, 11_000))
        return script(name)

    log.script = delayed  # type: ignore[method-assign]
    for _ in range(3):
        assert len(group.read(2)) == 2
    assert len(tries) < 40
