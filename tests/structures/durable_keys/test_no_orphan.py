"""Law 6 for durable keys: killed at each of its commands, a writer or job leaves what slices find.

What each test asserts of a death holds for a whole run too: `every_death` ends with one.
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
from workstealing.jobs import KeyExpiry
from workstealing.structures import DurableKeys

pytestmark = [pytest.mark.real, pytest.mark.slow]


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
    "a release by nonce": lambda keys, name: keys.release("{" + name + "}lease", nonce="n"),
    "pipeline of 4": pipeline_of_four,
    "pipeline of 4, no transaction": lambda keys, name: pipeline_of_four(
        keys, name, transaction=False
    ),
}


class KeyProof(Proof):
    """Everything goes but what a namespace has for good."""

    def on(self, client: Any, shift_ms: int = 0) -> DurableKeys:
        made: DurableKeys = DurableKeys(client, NAMESPACE, clock_shift_ms=shift_ms)
        return made

    def seed(self, structure: DurableKeys, name: str) -> Any:
        return structure.set(name, 1, ex=60)

    def job(self, structure: DurableKeys, **options: Any) -> KeyExpiry:
        return KeyExpiry(structure, **options)

    def waiting(self, job: KeyExpiry) -> int:
        return job.backlog().count

    def left_on(self, client: redis.Redis) -> list[bytes]:
        for_good = (b":mark", b":fence", b":layout", b":slots")
        return [key for key in client.scan_iter(count=1000) if not key.endswith(for_good)]


proof = KeyProof(WRITERS.values())


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("first", [False, True], ids=["a namespace in use", "the first writer"])
def test_a_writer_that_dies(
    redis7: RedisServer, door: FaultyServer, name: str, first: bool
) -> None:
    writer, direct = WRITERS[name], redis7.client()

    def prepare() -> None:
        direct.flushall()
        if not first:
            proof.on(direct).set("k", 1, ex=60)
        direct.script_flush()

    def work() -> None:
        writer(proof.on(redis.Redis(port=door.port, protocol=2)), "k")

    for death in every_death([door], work, prepare):
        if first and name == "set, keepttl":
            # A whole run leaves a key without a deadline, as it was told to.
            direct.delete("k")
        proof.collect_all(direct)
        assert proof.left_on(direct) == [], death
        # And the namespace is usable for whoever comes next.
        assert proof.on(direct).set("k2", 1, ex=60), death


@pytest.mark.parametrize("state", ["past their deadline", "their keys deleted", "other types"])
def test_the_job_that_dies(redis7: RedisServer, door: FaultyServer, state: str) -> None:
    direct = redis7.client()
    names = [f"k{i}" for i in range(6)]

    def prepare() -> None:
        direct.flushall()
        for name in names:
            proof.on(direct).set(name, 1, ex=60)
        proof.on(direct).set("lasting", 1)
        if state != "past their deadline":
            direct.delete(*names)
        if state == "other types":
            for name in names:
                direct.rpush(name, 1)

    for death in every_death([door], lambda: proof.slice_through(door), prepare):
        proof.collect_all(direct)
        if state == "other types":
            assert direct.delete(*names) == len(names), death
        assert proof.left_on(direct) == [b"lasting"], death


def test_the_job_that_dies_above_maxmemory(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    proof.prove_above_maxmemory(server, [f"k{i}" for i in range(6)])


@pytest.mark.cluster
def test_a_cluster_with_a_thousand_untagged_names(cluster: RedisCluster3) -> None:
    """Writers and jobs die one after the other on three masters; a job finds all that they left."""
    proof.prove_on_cluster(cluster, writing=15, collecting=10, slices=10)
