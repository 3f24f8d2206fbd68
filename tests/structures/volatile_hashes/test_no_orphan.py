"""Law 6, killed for real: a writer or the job dies between any two of its commands (SIGKILL).

The process is forked from the test and talks to the server through a socket that kills it before
command k is passed on, or after it has been, for every k. Whatever it leaves behind, slices find.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.orphans import NAMESPACE, Proof, Writer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

pytestmark = [pytest.mark.real, pytest.mark.slow]


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


class HashProof(Proof):
    """Everything goes that no hash needs any more."""

    def on(self, client: Any, shift_ms: int = 0) -> VolatileHashes:
        made: VolatileHashes = VolatileHashes(
            client, namespace=NAMESPACE, backend="emulated", clock_shift_ms=shift_ms
        )
        return made

    def seed(self, structure: VolatileHashes, name: str) -> Any:
        return structure.hsetex(name, mapping=volatile(0, 8), ex=60)

    def job(self, structure: VolatileHashes, **options: Any) -> HashFieldExpiry:
        return HashFieldExpiry(structure, **options)

    def waiting(self, job: HashFieldExpiry) -> int:
        return job.backlog(most_hashes=5000).count

    def left_on(self, client: redis.Redis) -> list[Any]:
        found: list[Any] = []
        for key in client.scan_iter(count=1000):
            if b":ttl:" in key:
                owner = key.partition(b":ttl:")[2]
                found.append((key, client.exists(owner), _scored(client, key)))
            elif key.endswith(b":due"):
                found.append((key, _scored(client, key)))
            elif client.type(key) == b"hash":
                names = client.hkeys(key)
                found += [(key, name) for name in names if name.startswith(b"volatile")]
        return found


def _scored(client: redis.Redis, key: bytes) -> Any:
    return client.zrange(key, 0, -1, withscores=True)


proof = HashProof(WRITERS.values())


class TestOneServer:
    @pytest.mark.parametrize("name", WRITERS)
    def test_a_writer_that_dies(self, redis7: RedisServer, door: FaultyServer, name: str) -> None:
        writer, direct = WRITERS[name], redis7.client()

        def prepare() -> None:
            direct.flushall()
            direct.script_flush()
            proof.on(direct).hsetex("h", mapping=volatile(0), ex=60)
            proof.on(direct).hset("h", "lasting", 1)
            direct.script_flush()

        def work() -> None:
            writer(proof.on(redis.Redis(port=door.port, protocol=2)), "h")

        for death in every_death([door], work, prepare):
            proof.collect_all(direct)
            assert proof.left_on(direct) == [], death

    @pytest.mark.smoke
    @pytest.mark.parametrize("name", ["hsetex", "pipeline of 5", "pipeline of 5, no transaction"])
    def test_the_first_writer_of_a_namespace_that_dies(
        self, redis7: RedisServer, door: FaultyServer, name: str
    ) -> None:
        writer, direct = WRITERS[name], redis7.client()

        def prepare() -> None:
            direct.flushall()
            direct.script_flush()

        def work() -> None:
            writer(proof.on(redis.Redis(port=door.port, protocol=2)), "h")

        for death in every_death([door], work, prepare):
            proof.collect_all(direct)
            assert proof.left_on(direct) == [], death
            # And the namespace is usable for whoever comes next.
            assert proof.on(direct).hsetex("h2", mapping=volatile(0), ex=60) == 1

    @pytest.mark.parametrize("state", ["expired fields", "expired as a whole", "all its fields"])
    def test_the_job_that_dies(self, redis7: RedisServer, door: FaultyServer, state: str) -> None:
        direct = redis7.client()

        def prepare() -> None:
            direct.flushall()
            hashes = proof.on(direct)
            for name in ("h", "i"):
                hashes.hsetex(name, mapping=volatile(0, 8), ex=60)
                if state != "all its fields":
                    hashes.hset(name, "lasting", 1)
                if state == "expired as a whole":
                    direct.delete(name)

        for death in every_death([door], lambda: proof.slice_through(door), prepare):
            proof.collect_all(direct)
            assert proof.left_on(direct) == [], death
            assert direct.exists("h") == (1 if state == "expired fields" else 0), death

    def test_the_job_that_dies_above_maxmemory(
        self, start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis(7, maxmemory_policy="noeviction")
        proof.prove_above_maxmemory(server, ["h", "i"])


@pytest.mark.cluster
def test_a_cluster_with_a_thousand_untagged_names(cluster: RedisCluster3) -> None:
    """Writers and jobs die one after the other on three masters; a job finds all that they left."""
    proof.prove_on_cluster(cluster, writing=20, collecting=20, slices=3)
