"""Consumers of a shuffle queue that are killed 1,000 times: no message is lost.

Processes between any two of their commands and at any moment (SIGKILL), and clients that are cut
off before or after any of their commands, of which there can be more. What they had in hand comes
to others by the reaper, and every message is worked on for each group in the end.
"""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from typing import Any

import pytest
import redis

from support.children import in_child
from support.deaths import died_of_the_switch
from support.faulty_server import FaultyServer, KillSwitch
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, wait_until
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures.shuffle_queue import NewMessage, ShuffleQueue

pytestmark = pytest.mark.slow

GROUPS = ("g", "h")
PROCESSES, AT_ONCE, CLIENTS = 60, 40, 900
assert PROCESSES + AT_ONCE + CLIENTS == 1000
IDLE_S = 0.02


def queue_on(client: Any) -> ShuffleQueue:
    # No message is set aside here: each one must be worked on.
    made: ShuffleQueue = ShuffleQueue(
        client, "q", streams=16, streams_per_tenant=3, max_attempts=10**6
    )
    return made


def consume(client: Any, seed: int) -> None:
    """Read, work and acknowledge for a while, as one consumer; some fail, and some are slow."""
    chance = random.Random(seed)
    queue = queue_on(client)
    group, consumer = chance.choice(GROUPS), f"c{seed}"
    for _ in range(20):
        messages = queue.read_many(group, consumer, chance.randrange(1, 4))
        for message in messages:
            if chance.random() < 0.1:
                queue.nack(message, delay=chance.choice([0, 0.005]))
                continue
            if chance.random() < 0.1:
                queue.extend(message)
            client.sadd(f"done:{group}", message.id)
            if chance.random() < 0.3:
                others = queue.exchange(message, group=group, consumer=consumer).messages
                queue.nack(*others)
            else:
                queue.ack(message)


class World:
    """What was written, and a reaper; all by a client that nobody kills."""

    def __init__(self, port: int) -> None:
        self.client = redis.Redis(port=port)
        self.queue = queue_on(self.client)
        self.chance = random.Random(17)
        self.written: set[bytes] = set()
        self.recovered = 0
        self.reaper = ShuffleQueueReaper(self.queue, lease=IDLE_S, consumer_idle=0.5, limit=20)
        for group in GROUPS:
            assert self.queue.read(group, "first") is None

    def write(self, messages: int) -> None:
        for _ in range(messages):
            tenant = f"tenant{self.chance.randrange(10)}"
            self.written.add(self.queue.write(tenant, {"a": 1}).encode())

    def reap(self) -> int:
        handled = self.reaper.perform(Slice(20, 5.0))
        self.recovered += handled
        return handled

    def finish(self) -> None:
        """Let one who is not killed do the rest, and see that nothing is left."""
        deadline = time.monotonic() + 120
        while self.queue.length():
            assert time.monotonic() < deadline, self.queue.stats("g")
            self.reap()
            for group in GROUPS:
                while (message := self.queue.read(group, "last")) is not None:
                    self.client.sadd(f"done:{group}", message.id)
                    assert self.queue.ack(message) == 1
        for group in GROUPS:
            done = self.client.smembers(f"done:{group}")
            assert self.written <= done, (group, self.written - done)
            assert self.queue.dead(group) == []

    def consumers_left(self) -> int:
        """Say how many consumers are left, after the reaper has had its time."""
        deadline = time.monotonic() + 120
        while (left := self._consumers()) > 1 and time.monotonic() < deadline:
            self.reap()
        return left

    def _consumers(self) -> int:
        names = set()
        for number in range(16):
            key = self.queue.keys.stream(number)
            for group in GROUPS if self.client.exists(key) else ():
                found = self.client.xinfo_consumers(key, group)
                names |= {consumer["name"] for consumer in found}
        return len(names - {b"workstealing:returned", b"first", b"last"})


@pytest.mark.smoke
def test_processes_between_any_two_commands(redis7: RedisServer) -> None:
    world = World(redis7.port)
    kills = attempts = 0
    with FaultyServer(redis7.port) as door:
        client = redis.Redis(port=door.port, protocol=2)
        while kills < PROCESSES:
            attempts += 1
            assert attempts < 2 * PROCESSES
            world.write(world.chance.randrange(0, 3))
            # A fresh consumer reads at its 5th command or so; then it works.
            switch = KillSwitch(world.chance.randrange(3, 16), after=world.chance.random() < 0.5)
            kills += died_of_the_switch(switch, [door], partial(consume, client, attempts))
            world.reap()
    assert kills == PROCESSES
    assert len(world.written) > PROCESSES / 2
    world.finish()
    assert world.consumers_left() <= 1


@pytest.mark.smoke
def test_poison_is_set_aside_once_wherever_a_nack_is_killed(redis7: RedisServer) -> None:
    """Each message is dead for the group in the end, once, and nothing speaks of it elsewhere."""
    client = redis.Redis(port=redis7.port)
    queue = ShuffleQueue(client, "q", streams=4, streams_per_tenant=2, max_attempts=2)
    reaper = ShuffleQueueReaper(queue, lease=IDLE_S)
    written = [queue.write(f"t{n}", {"n": n}, 4e9, f"x{n}") for n in range(12)]

    def poisoned(port: int, number: int) -> None:
        mine = ShuffleQueue(
            redis.Redis(port=port, protocol=2), "q", streams=4, streams_per_tenant=2, max_attempts=2
        )
        for _ in range(4):
            mine.nack(*mine.read_many("g", f"c{number}", 3))

    kills = 0
    with FaultyServer(redis7.port) as door:
        for number in range(24):
            switch = KillSwitch(5 + number % 8, after=number % 2 == 0)
            work = partial(poisoned, door.port, number)
            kills += died_of_the_switch(switch, [door], work)
    assert kills > 8

    def all_dead() -> bool:
        queue.nack(*queue.read_many("g", "last", 100))
        reaper.perform(Slice(25, 5.0))
        return len(queue.dead("g")) == len(written)

    wait_until(all_dead, "all messages to be set aside")
    assert sorted(each.id for each in queue.dead("g")) == sorted(written)
    assert min(each.attempts for each in queue.dead("g")) >= 2
    assert queue.length() == 0
    names = queue.keys.group("g")
    beside = (queue.keys.tracking, queue.keys.deadlines, names.returned, names.delayed)
    assert client.exists(*beside) == 0


@pytest.mark.smoke
def test_a_killed_producer_has_written_whole_scripts(redis7: RedisServer) -> None:
    queue = queue_on(redis.Redis(port=redis7.port))

    def produce(port: int, name: str) -> None:
        new = [NewMessage(f"t{n % 5}", {"of": name, "n": n}) for n in range(250)]
        queue_on(redis.Redis(port=port, protocol=2)).write_many(new)

    kills, names = 0, [f"p{number}" for number in range(12)]
    with FaultyServer(redis7.port) as door:
        for number, name in enumerate(names):
            switch = KillSwitch(3 + number % 6, after=number % 2 == 0)
            kills += died_of_the_switch(switch, [door], partial(produce, door.port, name))
    assert kills > 6
    found: dict[str, list[int]] = {name: [] for name in names}
    while some := queue.read_many("g", "c", 1000):
        for each in some:
            found[each.fields[b"of"].decode()].append(int(each.fields[b"n"]))
        queue.ack(*some)
    for numbers in found.values():
        assert sorted(numbers) == list(range(len(numbers)))
        assert len(numbers) in {0, 100, 200, 250}
    assert {len(numbers) for numbers in found.values()} & {100, 200}


class Cut(BaseException):
    """The end of a client: nobody catches it."""


class MortalClient(redis.Redis):
    """A client that ends before or after one of its commands, whose reply nobody gets then."""

    commands_left = 0
    is_late = False

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.commands_left -= 1
        if self.commands_left == 0 and not self.is_late:
            raise Cut
        reply = super().execute_command(*args, **options)
        if self.commands_left == 0:
            raise Cut
        return reply


def test_clients_between_any_two_commands(redis7: RedisServer) -> None:
    world = World(redis7.port)
    kills = attempts = 0
    client = MortalClient(port=redis7.port)
    while kills < CLIENTS:
        attempts += 1
        assert attempts < 2 * CLIENTS
        world.write(world.chance.randrange(0, 3))
        client.commands_left = world.chance.randrange(3, 16)
        client.is_late = world.chance.random() < 0.5
        try:
            consume(client, attempts)
        except Cut:
            kills += 1
        world.reap()
    assert len(world.written) > CLIENTS / 2
    # Most of the messages were in somebody's hand when he died.
    assert world.recovered > CLIENTS / 4
    world.finish()
    assert world.consumers_left() <= 1


def test_processes_at_any_moment(redis7: RedisServer) -> None:
    """Several consumers at once, and a reaper beside them that is killed as well."""
    world = World(redis7.port)
    port = redis7.port

    def work() -> None:
        client = redis.Redis(port=port)
        while True:
            consume(client, random.SystemRandom().randrange(10**9))

    def reap() -> None:
        queue = queue_on(redis.Redis(port=port))
        job = ShuffleQueueReaper(queue, lease=IDLE_S, limit=20)
        while True:
            job.perform(Slice(20, 5.0))

    running = [(in_child(job), job) for job in (work, work, work, reap)]
    try:
        for _ in range(AT_ONCE):
            done = world.client.scard("done:g")
            deadline = time.monotonic() + 120
            while world.client.scard("done:g") < done + 5:
                assert time.monotonic() < deadline, "nobody works"
                world.write(5)
            child, job = running.pop(world.chance.randrange(len(running)))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status)
            running.append((in_child(job), job))
    finally:
        for child, _ in running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    world.finish()
