"""Consumers of a fair queue that are killed, stopped, or cut off at every command.

Nothing is lost; no slot stays taken after the lease, without a job; and no cap is exceeded, as
histories show that the server itself has put in order.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from support.children import ended_well, in_child
from support.deaths import died_of_the_switch, every_death
from support.fair_queues import drained, got, leftovers, queue_on, reap
from support.faulty_server import FaultyServer, KillSwitch
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, wait_until
from workstealing.structures.fair_queue import NewMessage

pytestmark = pytest.mark.slow

ACCOUNTS = ("a", "b", "capped", "limited")
KILLS = 60


def consume(client: Any, seed: int, rounds: int = 20) -> None:
    """Read, work and acknowledge for a while, as one consumer; some fail, and some are slow."""
    chance = random.Random(seed)
    queue = queue_on(client, max_attempts=10**6)
    name = f"c{seed}"
    held: list[Any] = []
    for _ in range(rounds):
        what = chance.random()
        if what < 0.3:
            note_done(client, held)
            held = queue.exchange(*held, consumer=name, n=chance.randrange(1, 4)).messages
        elif what < 0.6:
            held += queue.read_many(name, 2, same_account=chance.random() < 0.5)
        elif what < 0.7:
            queue.extend(*held)
        elif what < 0.8:
            queue.nack(*held, delay=chance.choice([0, 0.01]))
            held = []
        else:
            note_done(client, held)
            queue.ack(*held)
            held = []
    queue.nack(*held)


def note_done(client: Any, held: list[Any]) -> None:
    if held:
        client.sadd("done", *[each.id for each in held])


class World:
    """What was written, by a client that nobody kills."""

    def __init__(self, server: RedisServer) -> None:
        self.client = server.client()
        self.queue = queue_on(self.client, max_attempts=10**6)
        self.queue.set_rule("capped", max_in_flight=2)
        self.queue.set_rule("limited", rate=1000, burst=3)
        self.chance = random.Random(17)
        self.written: set[bytes] = set()

    def write(self, messages: int) -> None:
        new = [
            NewMessage(
                *(self.chance.choice(ACCOUNTS), {"n": 1}),
                delay=self.chance.choice([0, 0, 0.01]),
                tracking_id=str(self.chance.random()),
            )
            for _ in range(messages)
        ]
        self.written |= {each.encode() for each in self.queue.write_many(new)}

    def check(self) -> None:
        """The counts of the accounts are those of the leases, at any moment."""
        leases = self.client.zrange(self.queue.keys.of("leases"), 0, -1)
        held = self.client.hmget(self.queue.keys.of("held"), leases) if leases else []
        assert all(held), "a lease of no delivery"
        states = self.queue.accounts()
        assert sum(each.in_flight for each in states) == len(leases)
        assert all(each.in_flight <= 2 for each in states if each.account == "capped")

    def finish(self, most_attempts: int = 10**6) -> None:
        """Reads alone serve all again, once the leases have lapsed."""
        soon = queue_on(self.client, 62_000, max_attempts=most_attempts)
        deadline = time.monotonic() + 60
        while soon.length():
            assert time.monotonic() < deadline, soon.stats()
            for message in drained(soon, "last"):
                self.client.sadd("done", message.id)
                assert soon.ack(message) == 1
        assert self.written <= self.client.smembers("done")
        assert soon.stats()["pending"] == 0
        assert all(each.in_flight == 0 for each in soon.accounts())
        while sum(reap(soon)[:4]):
            pass
        assert leftovers(soon) == {}


@pytest.mark.smoke
def test_processes_between_any_two_commands(redis7: RedisServer) -> None:
    world = World(redis7)
    kills = attempts = 0
    with FaultyServer(redis7.port) as door:
        client = redis.Redis(port=door.port, protocol=2)
        while kills < KILLS:
            attempts += 1
            assert attempts < 3 * KILLS
            world.write(world.chance.randrange(0, 5))
            switch = KillSwitch(world.chance.randrange(3, 20), after=world.chance.random() < 0.5)
            kills += died_of_the_switch(switch, [door], partial(consume, client, attempts))
            world.check()
    world.finish()


def test_at_every_command_of_one_call_the_slot_comes_back_by_reads_alone(
    redis7: RedisServer,
) -> None:
    """A capped account of dead consumers is served again after its lease, without a recruit."""

    def prepare() -> None:
        redis7.wipe()
        queue = queue_on(redis7.client())
        queue.set_rule("a", max_in_flight=1)
        for n in range(3):
            queue.write("a", {"n": n}, tracking_id=str(n), ttl=3600)

    with FaultyServer(redis7.port) as door:
        client = redis.Redis(port=door.port, protocol=2)

        def work() -> None:
            queue = queue_on(client)
            message = got(queue.read("c"))
            queue.extend(message)
            queue.nack(message, delay=1)
            message = got(queue.read("c"))
            result = queue.exchange(message, consumer="c")
            queue.ack(*result.messages)
            queue.set_rule("b", weight=2)
            queue.cancel("0")

        for where in every_death([door], work, prepare):
            soon = queue_on(redis7.client(), 61_001)
            left, served = soon.length(), 0
            while (message := soon.read("d")) is not None:
                assert soon.stats()["pending"] == 1, where
                assert soon.ack(message) == 1
                served += 1
            assert served == left, where
            assert {each.in_flight for each in soon.accounts()} == {0}, where


def test_many_killed_at_any_moment(redis7: RedisServer) -> None:
    world = World(redis7)
    port = redis7.port

    def work() -> None:
        client = redis.Redis(port=port)
        while True:
            consume(client, random.SystemRandom().randrange(10**9))

    running = [in_child(work) for _ in range(3)]
    try:
        for _ in range(20):
            done = world.client.scard("done")
            deadline = time.monotonic() + 60
            while world.client.scard("done") < done + 5:
                assert time.monotonic() < deadline, "nobody works"
                world.write(5)
            child = running.pop(world.chance.randrange(len(running)))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            running.append(in_child(work))
    finally:
        for child in running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    world.check()
    world.finish()


def test_no_cap_is_exceeded_by_racing_processes(redis7: RedisServer) -> None:
    """Each process notes when it has a message and when it is about to give it away.

    The notes are put in order by the server, and a note comes after the grant and before the end,
    so that what they show at once was in hand at once.
    """
    admin = queue_on(redis7.client())
    admin.set_rule("a", max_in_flight=2)
    admin.set_rule("b", max_in_flight=3)
    admin.write_many([NewMessage("ab"[n % 2], {"n": n}) for n in range(300)])

    def work(seed: int) -> None:
        client = redis.Redis(port=redis7.port)
        queue, chance = queue_on(client, lease=600.0), random.Random(seed)
        held: list[Any] = []
        while True:
            found = queue.read_many(f"c{seed}", chance.randrange(1, 4))
            for each in found:
                client.rpush("history", f"+{each.account} {each.id}")
            held += found
            if not held and not queue.length():
                return
            chance.shuffle(held)
            leaving = held[: chance.randrange(1, 3)]
            del held[: len(leaving)]
            for each in leaving:
                client.rpush("history", f"-{each.account} {each.id}")
            (queue.nack if chance.random() < 0.2 else queue.ack)(*leaving)

    children = [in_child(partial(work, seed)) for seed in range(4)]
    for child in children:
        ended_well(child)
    in_hand: Counter[str] = Counter()
    most: Counter[str] = Counter()
    ended: set[str] = set()
    holds: set[str] = set()
    for note in redis7.client().lrange("history", 0, -1):
        sign, account, message = note[:1], note[1:2].decode(), note[3:].decode()
        if sign == b"+":
            assert message not in holds, "it was in two hands"
            holds.add(message)
            in_hand[account] += 1
        else:
            holds.discard(message)
            ended.add(message)
            in_hand[account] -= 1
        most |= in_hand
    assert most == {"a": 2, "b": 3}
    assert len(ended) == 300
    assert admin.length() == 0
    assert all(each.in_flight == 0 for each in admin.accounts())


def test_a_worker_that_was_stopped_past_its_lease_breaks_no_cap(redis7: RedisServer) -> None:
    admin, client = queue_on(redis7.client()), redis7.client()
    admin.set_rule("a", max_in_flight=1)
    for n in range(3):
        admin.write("a", {"n": n})

    def work() -> None:
        own = redis.Redis(port=redis7.port)
        queue = queue_on(own)
        message = got(queue.read("stopped"))
        own.rpush("held", message.id)
        own.blpop(["go"], timeout=60)
        own.rpush("late", queue.extend(message), queue.nack(message), queue.ack(message))
        result = queue.exchange(message, consumer="stopped")
        own.rpush("late", result.done, len(result.messages))

    child = in_child(work)
    wait_until(lambda: client.llen("held") == 1, "the worker to hold a message")
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    later = queue_on(redis7.client(), 61_000)
    second = got(later.read("other"))
    assert second.id == client.lindex("held", 0).decode()
    client.rpush("go", "on")
    os.kill(child, signal.SIGCONT)
    ended_well(child)
    # Nothing of what it did counted, and it was given nothing, because the slot is taken.
    assert client.lrange("late", 0, -1) == [b"0"] * 5
    assert later.stats()["pending"] == 1
    assert later.ack(second) == 1
    assert [int(each.fields[b"n"]) for each in drained(later)] == [1]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "ack": lambda queue, message: queue.ack(message),
    "nack": lambda queue, message: queue.nack(message),
    "nack later": lambda queue, message: queue.nack(message, delay=60),
    "extend": lambda queue, message: queue.extend(message),
    "exchange": lambda queue, message: queue.exchange(message, consumer="c"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_was_killed_is_whole_or_has_not_been(redis7: RedisServer, call: str) -> None:
    held: list[Any] = []

    def prepare() -> None:
        redis7.wipe()
        queue = queue_on(redis7.client())
        queue.set_rule("a", max_in_flight=1)
        queue.write("a", {"n": 0}, tracking_id="t", dedupe=("k", 600))
        queue.write("a", {"n": 1})
        held[:] = [got(queue.read("c"))]

    with FaultyServer(redis7.port) as door:
        client = redis.Redis(port=door.port, protocol=2)
        for where in every_death([door], lambda: CALLS[call](queue_on(client), held[0]), prepare):
            queue = queue_on(redis7.client())
            (state,) = queue.accounts()
            leases = redis7.client().zcard(queue.keys.of("leases"))
            assert state.in_flight == leases <= 1, where
            assert state.waiting + state.in_flight + state.delayed == queue.length(), where
            soon = queue_on(redis7.client(), 130_000)
            serve_all(soon)
            reap(soon)
            assert leftovers(soon) == {}, where


def serve_all(queue: Any) -> None:
    """Ack one after the other, because the cap is one."""
    while (message := queue.read("d")) is not None:
        assert queue.ack(message) == 1
