"""Law 6, killed for real: a writer or the job dies between any two of its commands (SIGKILL).

The process is forked from the test and talks to the server through a socket that kills it before
command k is passed on, or after it has been, for every k. Whatever it leaves behind, slices find.
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
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.slice import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes

DAY_MS = 86_400_000
NAMESPACE = "orphans"

pytestmark = pytest.mark.real

Writer = Callable[[VolatileHashes, str], Any]


def volatile(first: int, size: int = 3) -> dict[str, int]:
    """Fields that every writer gives a deadline."""
    return {f"volatile{i}": i for i in range(first, first + size)}


def pipeline_of_five(hashes: VolatileHashes, name: str, *, transaction: bool = True) -> None:
    with hashes.pipeline(transaction=transaction) as pipe:
        pipe.hsetex(name, mapping=volatile(10), ex=60)
        pipe.hset(name, "lasting", 1)
        pipe.hexpire(name, 60, "volatile0", "volatile1")
        pipe.hgetex(name, "volatile10", ex=50)
        pipe.hsetex(other(name), mapping=volatile(20), ex=60)
        pipe.execute()


def other(name: str) -> str:
    """A second name in the same hash slot."""
    return "{" + name + "}"


WRITERS: dict[str, Writer] = {
    "hsetex": lambda hashes, name: hashes.hsetex(name, mapping=volatile(10), ex=60),
    "hsetex, a deadline in the past": lambda hashes, name: hashes.hsetex(
        name, mapping=volatile(0), exat=1
    ),
    "hset": lambda hashes, name: hashes.hset(name, mapping={"lasting": 1, "more": 2}),
    "hgetex": lambda hashes, name: hashes.hgetex(name, "volatile0", ex=30),
    "hexpire": lambda hashes, name: hashes.hexpire(name, 30, "volatile0", "volatile1"),
    "hpersist": lambda hashes, name: hashes.hpersist(name, "lasting"),
    "hdel": lambda hashes, name: hashes.hdel(name, "volatile0", "volatile1"),
    "hgetdel": lambda hashes, name: hashes.hgetdel(name, "volatile0"),
    "hincrby": lambda hashes, name: hashes.hincrby(name, "volatile0", 5),
    "rename": lambda hashes, name: hashes.rename(name, other(name)),
    "copy": lambda hashes, name: hashes.copy(name, other(name)),
    "delete": lambda hashes, name: hashes.delete(name),
    "unlink": lambda hashes, name: hashes.unlink(name),
    "expire": lambda hashes, name: hashes.expire(name, 30),
    "expire, at once": lambda hashes, name: hashes.pexpire(name, 1),
    "persist": lambda hashes, name: hashes.persist(name),
    "pipeline of 5": pipeline_of_five,
    "pipeline of 5, no transaction": lambda hashes, name: pipeline_of_five(
        hashes, name, transaction=False
    ),
}


def hashes_on(client: Any, shift_ms: int = 0) -> VolatileHashes:
    made: VolatileHashes = VolatileHashes(
        client, namespace=NAMESPACE, backend="emulated", clock_shift_ms=shift_ms
    )
    return made


def collect_all(client: Any, *, limit: int = 100, slices: int = 600) -> int:
    """Let a new process's job collect until there is no backlog; return how many fields."""
    job = HashFieldExpiry(hashes_on(client, DAY_MS), limit=limit)
    collected = 0
    for _ in range(slices):
        done = job.perform(Slice(limit, 10.0))
        collected += done
        if not done and job.backlog().hashes == 0:
            return collected
    raise AssertionError(f"after {slices} slices there is still {job.backlog()}")


def garbage_on(client: redis.Redis) -> list[Any]:
    """Return everything on one node that no hash needs any more."""
    found: list[Any] = []
    for key in client.scan_iter(count=1000):
        if b":ttl:" in key:
            owner = key.partition(b":ttl:")[2]
            found.append((key, client.exists(owner), client.zrange(key, 0, -1, withscores=True)))
        elif key.endswith(b":due"):
            found.append((key, client.zrange(key, 0, -1, withscores=True)))
        elif client.type(key) == b"hash":
            found += [(key, field) for field in client.hkeys(key) if field.startswith(b"volatile")]
    return found


class TestOneServer:
    @pytest.fixture
    def door(self, redis7: RedisServer) -> Iterator[FaultyServer]:
        with FaultyServer(redis7.port) as server:
            yield server

    @pytest.mark.parametrize("name", WRITERS)
    def test_a_writer_that_dies(self, redis7: RedisServer, door: FaultyServer, name: str) -> None:
        writer, direct = WRITERS[name], redis7.client()

        def prepare() -> None:
            direct.flushall()
            direct.script_flush()
            hashes_on(direct).hsetex("h", mapping=volatile(0), ex=60)
            hashes_on(direct).hset("h", "lasting", 1)
            direct.script_flush()

        def work() -> None:
            writer(hashes_on(redis.Redis(port=door.port, protocol=2)), "h")

        for death in every_death([door], work, prepare):
            collect_all(direct)
            assert garbage_on(direct) == [], death

    @pytest.mark.parametrize("name", ["hsetex", "pipeline of 5", "pipeline of 5, no transaction"])
    def test_the_first_writer_of_a_namespace_that_dies(
        self, redis7: RedisServer, door: FaultyServer, name: str
    ) -> None:
        writer, direct = WRITERS[name], redis7.client()

        def prepare() -> None:
            direct.flushall()
            direct.script_flush()

        def work() -> None:
            writer(hashes_on(redis.Redis(port=door.port, protocol=2)), "h")

        for death in every_death([door], work, prepare):
            collect_all(direct)
            assert garbage_on(direct) == [], death
            # And the namespace is usable for whoever comes next.
            assert hashes_on(direct).hsetex("h2", mapping=volatile(0), ex=60) == 1

    @pytest.mark.parametrize("state", ["expired fields", "expired as a whole", "all its fields"])
    def test_the_job_that_dies(self, redis7: RedisServer, door: FaultyServer, state: str) -> None:
        direct = redis7.client()

        def prepare() -> None:
            direct.flushall()
            hashes = hashes_on(direct)
            for name in ("h", "i"):
                hashes.hsetex(name, mapping=volatile(0, 8), ex=60)
                if state != "all its fields":
                    hashes.hset(name, "lasting", 1)
                if state == "expired as a whole":
                    direct.delete(name)

        for death in every_death([door], lambda: slice_through(door), prepare):
            collect_all(direct)
            assert garbage_on(direct) == [], death
            assert direct.exists("h") == (1 if state == "expired fields" else 0), death

    def test_the_job_that_dies_above_maxmemory(
        self, start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis(7, maxmemory_policy="noeviction")
        direct = server.client()

        def prepare() -> None:
            direct.config_set("maxmemory", 0)
            direct.flushall()
            for name in ("h", "i"):
                hashes_on(direct).hsetex(name, mapping=volatile(0, 8), ex=60)
            direct.config_set("maxmemory", 1)

        with FaultyServer(server.port) as door:
            for death in every_death([door], lambda: slice_through(door), prepare):
                collect_all(direct)
                assert garbage_on(direct) == [], death


def slice_through(door: FaultyServer) -> None:
    hashes = hashes_on(redis.Redis(port=door.port, protocol=2), DAY_MS)
    # Chance made certain: every run sends the same commands.
    HashFieldExpiry(hashes, limit=5, random=lambda: 0.0).perform(Slice(5, 10.0))


@pytest.mark.cluster
def test_a_cluster_with_a_thousand_untagged_names(cluster: RedisCluster3) -> None:
    """Writers and jobs die one after the other on three masters; a job finds all that they left."""
    names = [f"name:{i}" for i in range(1000)]
    slots = {key_slot(name.encode()) for name in names}
    assert len(slots) >= 500
    direct = cluster.client()
    hashes_on(direct).open()
    with contextlib.ExitStack() as stack:
        doors = [stack.enter_context(FaultyServer(node.port)) for node in cluster.nodes]
        ports = {node.port: door.port for node, door in zip(cluster.nodes, doors, strict=True)}

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return (address[0], ports.get(address[1], address[1]))

        # Made once: a child that is forked opens connections of its own.
        client = stack.enter_context(cluster.client(address_remap=remap, protocol=2))
        writers = list(WRITERS.values())
        todo = iter(names)
        deaths = 0
        for at in range(1, 41):
            for after in (False, True):
                # About as many names as the child will come to before it dies.
                mine = [name for name, _ in zip(todo, range(1 + at // 3), strict=False)]
                deaths += died_of_the_switch(
                    KillSwitch(at, after=after), doors, lambda mine=mine: write(client, mine)
                )
        assert deaths > 70
        # The others are written by processes that live on, with every command in turn.
        hashes = hashes_on(direct)
        for position, name in enumerate(names):
            hashes.hsetex(name, mapping=volatile(0), ex=60)
            writers[position % len(writers)](hashes, name)
        assert HashFieldExpiry(hashes_on(direct, DAY_MS)).backlog(most_hashes=5000).hashes > 800
        deaths = 0
        for at in range(1, 41):
            for after in (False, True):
                deaths += died_of_the_switch(
                    KillSwitch(at, after=after), doors, lambda: collect_five(client)
                )
        assert deaths > 60
        for server in doors:
            assert server.switch is None
    collect_all(direct)
    for node in cluster.nodes:
        assert garbage_on(node.client()) == []


def write(client: Any, names: list[str]) -> None:
    hashes = hashes_on(client)
    for position, name in enumerate(names):
        hashes.hsetex(name, mapping=volatile(0), ex=60)
        list(WRITERS.values())[position % len(WRITERS)](hashes, name)


def collect_five(client: Any) -> None:
    job = HashFieldExpiry(hashes_on(client, DAY_MS), limit=5)
    for _ in range(3):
        job.perform(Slice(5, 10.0))
