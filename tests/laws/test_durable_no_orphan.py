"""Law 6 for durable keys: killed at each of its commands, a writer or job leaves what slices find.

What each test asserts of a death holds for a whole run too: `every_death` ends with one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from support.deaths import died_of_the_switch, every_death
from support.faulty_server import FaultyServer, KillSwitch
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.jobs import KeyExpiry
from workstealing.recruiting import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import DurableKeys

DAY_MS = 86_400_000
NAMESPACE = "orphans"

pytestmark = pytest.mark.real

Writer = Callable[[DurableKeys, str], Any]


def pipeline_of_four(keys: DurableKeys, name: str, *, transaction: bool = True) -> None:
    with keys.pipeline(transaction=transaction) as pipe:
        pipe.set(name, 1, ex=60)
        pipe.expire(name, 30)
        pipe.set("{" + name + "}", 2, ex=60)
        pipe.getex(name, ex=20)
        pipe.execute()


def hold(keys: DurableKeys, name: str) -> None:
    with keys.lock("{" + name + "}lease", 60) as lease:
        lease.extend()


# All that they leave at the keys of a name has a deadline within the day.
WRITERS: dict[str, Writer] = {
    "set": lambda keys, name: keys.set(name, 1, ex=60),
    "set, keepttl": lambda keys, name: keys.set(name, 1, keepttl=True),
    "set, a deadline in the past": lambda keys, name: keys.set(name, 1, pxat=1),
    "expire": lambda keys, name: keys.expire(name, 30),
    "expire, at once": lambda keys, name: keys.pexpire(name, -1),
    "getex": lambda keys, name: keys.getex(name, ex=30),
    "getdel": lambda keys, name: keys.getdel(name),
    "delete": lambda keys, name: keys.delete(name),
    "unlink": lambda keys, name: keys.unlink(name),
    "acquire": lambda keys, name: keys.acquire("{" + name + "}lease", 60),
    "lock": hold,
    "pipeline of 4": pipeline_of_four,
    "pipeline of 4, no transaction": lambda keys, name: pipeline_of_four(
        keys, name, transaction=False
    ),
}


def keys_on(client: Any, shift_ms: int = 0) -> DurableKeys:
    made: DurableKeys = DurableKeys(client, NAMESPACE, clock_shift_ms=shift_ms)
    return made


def collect_all(client: Any, *, limit: int = 100, slices: int = 600) -> None:
    """Let a new process's job collect until there is no backlog."""
    job = KeyExpiry(keys_on(client, DAY_MS), limit=limit)
    for _ in range(slices):
        if not job.perform(Slice(limit, 10.0)) and job.backlog().keys == 0:
            return
    raise AssertionError(f"after {slices} slices there is still {job.backlog()}")


def left_on(client: redis.Redis) -> list[bytes]:
    """Return all keys on one node but those that a namespace has for good."""
    for_good = (b":mark", b":fence", b":layout", b":slots")
    return [key for key in client.scan_iter(count=1000) if not key.endswith(for_good)]


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as server:
        yield server


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("first", [False, True], ids=["a namespace in use", "the first writer"])
def test_a_writer_that_dies(
    redis7: RedisServer, door: FaultyServer, name: str, first: bool
) -> None:
    writer, direct = WRITERS[name], redis7.client()

    def prepare() -> None:
        direct.flushall()
        if not first:
            keys_on(direct).set("k", 1, ex=60)
        direct.script_flush()

    def work() -> None:
        writer(keys_on(redis.Redis(port=door.port, protocol=2)), "k")

    for death in every_death([door], work, prepare):
        if first and name == "set, keepttl":
            # A whole run leaves a key without a deadline, as it was told to.
            direct.delete("k")
        collect_all(direct)
        assert left_on(direct) == [], death
        # And the namespace is usable for whoever comes next.
        assert keys_on(direct).set("k2", 1, ex=60), death


@pytest.mark.parametrize("state", ["past their deadline", "their keys deleted", "other types"])
def test_the_job_that_dies(redis7: RedisServer, door: FaultyServer, state: str) -> None:
    direct = redis7.client()
    names = [f"k{i}" for i in range(12)]

    def prepare() -> None:
        direct.flushall()
        for name in names:
            keys_on(direct).set(name, 1, ex=60)
        keys_on(direct).set("lasting", 1)
        if state != "past their deadline":
            direct.delete(*names)
        if state == "other types":
            for name in names:
                direct.rpush(name, 1)

    for death in every_death([door], lambda: slice_through(door), prepare):
        collect_all(direct)
        if state == "other types":
            assert direct.delete(*names) == len(names), death
        assert left_on(direct) == [b"lasting"], death


def test_the_job_that_dies_above_maxmemory(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    direct = server.client()

    def prepare() -> None:
        direct.config_set("maxmemory", 0)
        direct.flushall()
        for i in range(12):
            keys_on(direct).set(f"k{i}", 1, ex=60)
        direct.config_set("maxmemory", 1)

    with FaultyServer(server.port) as door:
        for death in every_death([door], lambda: slice_through(door), prepare):
            collect_all(direct)
            assert left_on(direct) == [], death


def slice_through(door: FaultyServer) -> None:
    keys = keys_on(redis.Redis(port=door.port, protocol=2), DAY_MS)
    # Chance made certain: every run sends the same commands.
    KeyExpiry(keys, random=lambda: 0.0).perform(Slice(5, 10.0))


@pytest.mark.cluster
def test_a_cluster_with_a_thousand_untagged_names(cluster: RedisCluster3) -> None:
    """Writers and jobs die one after the other on three masters; a job finds all that they left."""
    names = [f"name:{i}" for i in range(1000)]
    assert len({key_slot(name.encode()) for name in names}) >= 500
    direct = cluster.client()
    keys_on(direct).open()
    writers = list(WRITERS.values())
    with contextlib.ExitStack() as stack:
        doors = [stack.enter_context(FaultyServer(node.port)) for node in cluster.nodes]
        ports = {node.port: door.port for node, door in zip(cluster.nodes, doors, strict=True)}

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return (address[0], ports.get(address[1], address[1]))

        # Made once: a child that is forked opens connections of its own.
        client = stack.enter_context(cluster.client(address_remap=remap, protocol=2))
        todo = iter(names)
        deaths = 0
        for at in range(1, 31):
            for after in (False, True):
                # About as many names as the child will come to before it dies.
                mine = [name for name, _ in zip(todo, range(1 + at // 3), strict=False)]
                deaths += died_of_the_switch(
                    KillSwitch(at, after=after), doors, lambda mine=mine: write(client, mine)
                )
        assert deaths > 50
        # The others are written by a process that lives on, with every command in turn.
        keys = keys_on(direct)
        for position, name in enumerate(names):
            keys.set(name, 1, ex=60)
            writers[position % len(writers)](keys, name)
        assert KeyExpiry(keys_on(direct, DAY_MS)).backlog().keys > 600
        deaths = 0
        for at in range(1, 21):
            for after in (False, True):
                deaths += died_of_the_switch(
                    KillSwitch(at, after=after), doors, lambda: collect_some(client)
                )
        assert deaths > 20
    collect_all(direct)
    for node in cluster.nodes:
        assert left_on(node.client()) == []


def write(client: Any, names: list[str]) -> None:
    keys = keys_on(client)
    for position, name in enumerate(names):
        keys.set(name, 1, ex=60)
        list(WRITERS.values())[position % len(WRITERS)](keys, name)


def collect_some(client: Any) -> None:
    job = KeyExpiry(keys_on(client, DAY_MS))
    for _ in range(6):
        job.perform(Slice(5, 10.0))
