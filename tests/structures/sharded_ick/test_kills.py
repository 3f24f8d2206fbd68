"""A resize that dies between any two of its commands (SIGKILL), and one that is killed for ever.

Whatever a dead process leaves behind, the next resize takes over: every member is in one place at
the end, and was worked on after it was last added.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.children import ended_well, in_child
from support.deaths import died_of_the_switch, doors_of
from support.faulty_server import FaultyServer, KillSwitch
from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing.errors import Aborted, ConfigurationError
from workstealing.structures import LeaseLost, NoLease, ShardedIck
from workstealing.structures.sharded_ick import resizing
from workstealing.structures.sharded_ick.layout import shard_of

MINUTE_MS = 60_000
MOST_COMMANDS = 200
MEMBERS = {f"m{i}": float(i) for i in range(60)}
WAITING = {f"waits{i}": float(i) for i in range(20)}

pytestmark = [pytest.mark.real, pytest.mark.slow]


def sharded_on(client: Any, ick_shards: int | None = None, ahead_ms: int = 0) -> ShardedIck:
    made: ShardedIck = ShardedIck(client, "orders", ick_shards, clock_shift_ms=ahead_ms)
    return made


def prepare(client: Any, ick_shards: int) -> None:
    """Members that wait, are reserved by a dead consumer, have been returned, or are dead."""
    sharded = sharded_on(client, ick_shards)
    sharded.delete() if client.exists(sharded.core.layout_key) else sharded.open()
    assert sharded.add(MEMBERS) == (60, 0)
    with sharded.lease("died") as ick:
        reserved = ick.reserve(10)
    # Added again since: it is in both sets.
    sharded.add({reserved.members[0]: -1.0})
    for i in range(20):
        names = sharded.core.names(shard_of(b"m%d" % i, ick_shards))
        client.hset(names.attempts, f"m{i}", i + 1)
        names = sharded.core.names(shard_of(b"dead%d" % i, ick_shards))
        client.hset(names.dead, f"dead{i}", "history")
    assert sharded.add(WAITING, quiet=7200, at_most=7200) == (20, 0)


def finish(client: Any, ick_shards: int) -> ShardedIck:
    """Go on with a resize a minute later, when the dead one's lease has run out."""
    sharded = sharded_on(client, ahead_ms=MINUTE_MS)
    for _ in range(100):
        if sharded.resize(ick_shards).done:
            return sharded
    raise AssertionError("a resize that does not end")


def assert_all_is_there(sharded: ShardedIck, ick_shards: int, most: int) -> None:
    client: Any = sharded.client
    members: dict[str, float] = {}
    attempts: dict[str, int] = {}
    dead: set[str] = set()
    waiting: dict[str, float] = {}
    for shard in range(most):
        names = sharded.core.names(shard)
        assert not client.zcard(names.cset)
        assert not client.exists(names.moving)
        assert not client.exists(names.moving_dead)
        assert not client.exists(names.moving_attempts)
        assert not client.exists(names.moving_waiting, names.moving_terms)
        for raw in client.zrange(names.waiting, 0, -1):
            assert shard_of(raw, ick_shards) == shard
            assert raw.decode() not in waiting
            waiting[raw.decode()] = float(client.hget(names.terms, raw).split()[1])
        assert client.hlen(names.terms) == client.zcard(names.waiting)
        for raw, score in client.zrange(names.pset, 0, -1, withscores=True):
            assert shard_of(raw, ick_shards) == shard
            assert raw.decode() not in members
            members[raw.decode()] = score
        for raw, count in client.hgetall(names.attempts).items():
            assert shard_of(raw, ick_shards) == shard
            attempts[raw.decode()] = int(count)
        for raw in client.hkeys(names.dead):
            assert shard_of(raw, ick_shards) == shard
            assert raw.decode() not in dead
            dead.add(raw.decode())
    assert members.keys() == MEMBERS.keys()
    lowered = [member for member, score in members.items() if score != MEMBERS[member]]
    assert [members[member] for member in lowered] == [-1.0]
    assert attempts == {f"m{i}": i + 1 for i in range(20)}
    assert dead == {f"dead{i}" for i in range(20)}
    assert waiting == WAITING
    assert sharded.stats()["total_size"] == 60
    assert sharded.stats()["waiting_size"] == 20


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_resize_that_dies(redis7: RedisServer, before: int, after: int, is_late: bool) -> None:
    direct = redis7.client()
    with FaultyServer(redis7.port) as door:
        for at in range(1, MOST_COMMANDS):
            direct.flushall()
            direct.script_flush()
            prepare(direct, before)
            direct.script_flush()

            def work() -> None:
                sharded = sharded_on(redis.Redis(port=door.port, protocol=2))
                while not sharded.resize(after, limit=25).done:
                    pass

            killed = died_of_the_switch(KillSwitch(at, after=is_late), [door], work)
            # A producer that knows the old number, and one that knows none, come by.
            sharded_on(direct).add({"m3": 3.0, "m50": 51.0})
            assert_all_is_there(finish(direct, after), after, max(before, after))
            if not killed:
                assert at > 20
                return
    pytest.fail(f"still at work after {MOST_COMMANDS} commands")


@pytest.mark.cluster
def test_a_resize_that_dies_on_a_cluster(cluster: RedisCluster3) -> None:
    direct = cluster.client()
    with doors_of(cluster) as (doors, client):

        def work() -> None:
            sharded = sharded_on(client)
            while not sharded.resize(4, limit=25).done:
                pass

        deaths = 0
        for at in range(2, 60, 3):
            for node in cluster.nodes:
                node.client().flushall()
            prepare(direct, 2)
            deaths += died_of_the_switch(KillSwitch(at, after=at % 2 == 0), doors, work)
            assert_all_is_there(finish(direct, 4), 4, 4)
        assert deaths > 10


class World:
    """Documents with a version; workers note which version they saw, and say who was at it."""

    def __init__(self, port: int, documents: int) -> None:
        self.port = port
        self.documents = documents

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port)

    def dirty(self, seed: int) -> None:
        """Change documents and add them, until told to stop; a process of its own."""
        chance, client = random.Random(seed), self.client()
        sharded = sharded_on(client)
        while not client.exists("stop"):
            chosen = [str(chance.randrange(self.documents)) for _ in range(3)]
            with client.pipeline() as pipe:
                for document in chosen:
                    pipe.hincrby("version", document, 1)
                pipe.execute()
            sharded.add(chosen)
            client.incr("added", 3)

    def work(self, name: str, ttl: float, seed: int) -> None:
        """Consume until told to stop and nothing is left; a process of its own."""
        chance, client = random.Random(seed), self.client()
        sharded = sharded_on(client)
        while True:
            stopping = client.exists("stop")
            try:
                with sharded.lease(name, lease=ttl) as ick:
                    batch = ick.reserve(chance.randrange(1, 20))
                    while batch:
                        self._index(client, batch.members, name)
                        batch = ick.exchange(chance.randrange(0, 20), *batch.members)
                    idle = True
            except LeaseLost:
                continue
            except NoLease:
                idle = False
                time.sleep(0.002)
            if stopping and idle and not sharded.stats()["total_size"]:
                return

    def _index(self, client: redis.Redis, members: list[bytes], name: str) -> None:
        for member in members:
            if not client.hsetnx("busy", member, name):
                client.rpush("two at once", member)
            seen = client.hget("version", member)
            # What was read first must not overwrite what was read later.
            client.eval(
                "if tonumber(ARGV[2]) > tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) then"
                " redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end",
                1,
                "done",
                member,
                seen or 0,
            )
            client.hdel("busy", member)

    def assert_nothing_forgotten(self) -> None:
        client = self.client()
        assert client.hgetall("done") == client.hgetall("version")
        assert int(client.get("added") or 0) > 300

    def resize_for_ever(self, seed: int) -> None:
        """Change the number again and again until told to stop; a process of its own."""
        chance, client = random.Random(seed), self.client()
        while not client.exists("stop"):
            sharded = sharded_on(client)
            sharded.open()
            layout = sharded.core.layout
            assert layout is not None
            number = layout.ick_shards if layout.moving_from else chance.randrange(1, 8)
            for _ in range(5):
                # Another number may have been begun since: that one is to be finished first.
                with contextlib.suppress(Aborted, ConfigurationError):
                    if sharded.resize(number, limit=chance.randrange(5, 60)).done:
                        client.incr("resized")
                        # Consumers have their turn.
                        time.sleep(0.020)
                        break


@contextlib.contextmanager
def processes() -> Iterator[Callable[[Callable[[], Any]], int]]:
    """Start children that are killed at the end, if they have not ended by then."""
    children: list[int] = []

    def start(work: Callable[[], Any]) -> int:
        children.append(in_child(work))
        return children[-1]

    try:
        yield start
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)


def test_nobody_works_on_what_another_has_in_hand(redis7: RedisServer) -> None:
    """Producers, consumers and resizes at once, on a server that says who was where."""
    world, client = World(redis7.port, 150), redis7.client()
    sharded_on(client, 3).open()
    with processes() as start:
        producers = [start(lambda seed=seed: world.dirty(seed)) for seed in range(2)]
        consumers = [
            start(lambda seed=seed: world.work(f"w{seed}", 60.0, seed)) for seed in range(3)
        ]
        resizer = start(lambda: world.resize_for_ever(7))
        wait_until(lambda: int(client.get("resized") or 0) >= 40, "40 resizes", seconds=60)
        client.set("stop", 1)
        for child in (*producers, resizer):
            ended_well(child)
        sharded = sharded_on(client)
        sharded.open()
        layout = sharded.core.layout
        assert layout is not None
        while layout.moving_from and not sharded.resize(layout.ick_shards).done:
            pass
        for child in consumers:
            ended_well(child)
    assert client.lrange("two at once", 0, -1) == []
    world.assert_nothing_forgotten()


def test_nothing_is_forgotten_whoever_is_killed(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers and resizers die by SIGKILL at random moments, and others come in their place."""
    monkeypatch.setattr(resizing, "HOLDER", resizing.HOLDER._replace(lease_ms=200))
    world, client = World(redis7.port, 150), redis7.client()
    sharded_on(client, 3).open()
    chance = random.Random(11)
    numbers = iter(range(1000))

    def consume() -> None:
        number = next(numbers)
        world.work(f"w{number}", 0.2, number)

    def resize() -> None:
        world.resize_for_ever(os.getpid())

    with processes() as start:
        producers = [start(lambda seed=seed: world.dirty(seed)) for seed in range(2)]
        jobs: list[Callable[[], None]] = [consume, consume, consume, resize, resize]
        running = [(start(job), job) for job in jobs]
        for _ in range(60):
            goal = int(client.get("added") or 0) + chance.randrange(1, 60)
            wait_until(lambda goal=goal: int(client.get("added") or 0) >= goal, "producers")
            child, job = running.pop(chance.randrange(len(running)))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            next(numbers)
            running.append((start(job), job))
        client.set("stop", 1)
        for child in (*producers, *(child for child, job in running if job is resize)):
            ended_well(child)
        sharded = sharded_on(client)
        sharded.open()
        layout = sharded.core.layout
        assert layout is not None
        while layout.moving_from and not sharded.resize(layout.ick_shards).done:
            pass
        for child in (child for child, job in running if job is consume):
            ended_well(child)
    assert int(client.get("resized") or 0) >= 1
    world.assert_nothing_forgotten()
