"""Jobs on a real cluster: slots that move, masters that die, and a map that nobody refreshes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from support.faulty_server import FaultyServer
from support.jumping_clock import JumpingClock
from support.migrations import Migration
from support.patience import (
    GUARD_SECONDS,
    FairSeconds,
    patient,  # noqa: F401 - an autouse fixture
)
from support.servers import RedisCluster3, find_server
from workstealing.errors import Moved, Unmapped
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Outcome
from workstealing.recruiting.slice import Slice
from workstealing.store import attempt
from workstealing.store.budget import Budget
from workstealing.store.job_client import JobClient, is_async, job_client_of
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.testing import RecordingHooks, always

HOUR_MS = 3_600_000
NAMESPACE = "moving"

pytestmark = [pytest.mark.real, pytest.mark.cluster]


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[RedisCluster3]:
    """A cluster whose slots and masters these tests may move and kill."""
    with RedisCluster3(
        find_server("redis", 7),
        7,
        name="own cluster",
        # The other masters go on without the dead one's slots.
        cluster_require_full_coverage="no",
    ) as made:
        yield made


@pytest.fixture
def migration(own_cluster: RedisCluster3) -> Iterator[Migration]:
    made = Migration(own_cluster, key_slot(b"h"))
    yield made
    made.close()
    own_cluster.wipe()


def topology_reads(cluster: RedisCluster3) -> int:
    """Return how often all nodes together have been asked for the cluster's map."""
    total = 0
    for node in cluster.nodes:
        if node.process.poll() is not None:
            continue
        with node.probe(5.0) as admin:
            stats = admin.info("commandstats")
        total += sum(
            stats.get(f"cmdstat_cluster|{name}", {}).get("calls", 0)
            for name in ("slots", "shards", "nodes")
        )
    return total


def job_on(client: Any, limit: int = 5) -> HashFieldExpiry:
    kind: Any = AsyncVolatileHashes if is_async(client) else VolatileHashes
    hashes = kind(client, namespace=NAMESPACE, backend="emulated", clock_shift_ms=HOUR_MS)
    return HashFieldExpiry(hashes, limit=limit)


def fill(client: Any, names: list[str]) -> None:
    hashes = VolatileHashes(client, namespace=NAMESPACE, backend="emulated")
    until = time.monotonic() + GUARD_SECONDS
    for name in names:
        while True:
            try:
                hashes.hsetex(name, mapping={"a": 1, "b": 2}, ex=60)
                break
            except redis.exceptions.ClusterError:
                # Nodes that do not agree yet send redis-py to each other, until it gives up.
                assert time.monotonic() < until


def enlist(job: HashFieldExpiry) -> tuple[Outcome, BaseException | None]:
    recruiter = always(seconds=10.0)
    hooks = RecordingHooks()
    recruiter.add_hook(hooks)
    recruiter.install(job, rate=1.0)
    return recruiter.enlist(), hooks.outcomes[0].error


def test_moved_ends_the_slice_and_the_next_one_asks_the_new_node(
    own_cluster: RedisCluster3, migration: Migration
) -> None:
    client = own_cluster.client()
    fill(client, ["h"])
    job = job_on(client)
    job.hashes.open()
    migration.begin()
    assert migration.move_keys() >= 3
    migration.end()
    before = topology_reads(own_cluster)
    # The application has not touched the slot since, so its map and ours are old.
    outcome, error = enlist(job)
    # The move came first, as another writer may: no error is logged and no breaker opened.
    assert (outcome, error) == (Outcome.ABORTED, None)
    # There are as many aborts as the slice sends commands to that slot, and no more.
    outcomes = [enlist(job)[0] for _ in range(3)]
    assert Outcome.WORKED in outcomes
    assert topology_reads(own_cluster) == before
    assert own_cluster.client().exists("h") == 0
    migration.undo()


def test_an_attempt_is_ended_by_moved_and_the_next_one_finds_the_key(
    own_cluster: RedisCluster3, migration: Migration
) -> None:
    client = own_cluster.client()
    client.set("h", "v")
    migration.begin()
    migration.move_keys()
    migration.end()
    with pytest.raises(Moved, match=r"MOVED|\d+ 127.0.0.1"), attempt(client, "h") as current:
        current.read(("GET", "h"))
    with attempt(client, "h") as current:
        assert current.read(("GET", "h")) == [b"v"]
    # The client itself has learned of the move, so its map counts when the slot moves again.
    assert client.get("h") == b"v"
    migration.undo()
    with pytest.raises(Moved), attempt(client, "h") as current:
        current.read(("GET", "h"))
    assert client.get("h") == b"v"
    with attempt(client, "h") as current:
        assert current.read(("GET", "h")) == [b"v"]


def test_ask_ends_the_slice_and_is_not_remembered(
    own_cluster: RedisCluster3, migration: Migration
) -> None:
    client = own_cluster.client()
    fill(client, ["h"])
    job = job_on(client)
    job.hashes.open()
    migration.begin()
    migration.move_keys()
    before = topology_reads(own_cluster)
    for _ in range(2):
        assert enlist(job) == (Outcome.ABORTED, None)
    assert job_client_of(client).node_of(migration.slot) == ("127.0.0.1", migration.source.port)
    assert topology_reads(own_cluster) == before
    migration.end()
    assert Outcome.WORKED in [enlist(job)[0] for _ in range(3)]
    migration.undo()


def test_a_slot_that_migrates_under_traffic_leaves_nothing_behind(
    own_cluster: RedisCluster3, migration: Migration
) -> None:
    names = [f"{{h}}{i}" for i in range(150)]
    client, stop = own_cluster.client(), threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        writer = VolatileHashes(own_cluster.client(), namespace=NAMESPACE, backend="emulated")
        i = 0
        while not stop.is_set():
            name = names[i % len(names)]
            i += 1
            try:
                writer.hsetex(name, mapping={"a": i, "b": i}, ex=60)
                writer.hget(name, "a")
            except (redis.exceptions.TryAgainError, redis.exceptions.ClusterError):
                # redis-py gives a command up after 16 redirections, as any application's client.
                continue
            except Exception as error:  # noqa: BLE001 - told to the test's own thread
                errors.append(error)
                return

    recruiter = always(seconds=0.050, clock=JumpingClock())
    job = job_on(client)
    fill(client, names)
    recruiter.install(job, rate=1.0)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        migration.begin()
        for step in range(40):
            recruiter.enlist()
            if step % 10 == 5:
                migration.move_keys()
        migration.end()
        for _ in range(40):
            recruiter.enlist()
    finally:
        stop.set()
        thread.join()
    assert errors == []
    figures = recruiter.stats()["jobs"][job.name]
    assert figures["worked"] > 0
    quiet = job_on(client, limit=100)
    for _ in range(50):
        try:
            if not quiet.perform(Slice(100, 2.0)):
                break
        except Moved:
            continue
    assert leftovers(own_cluster, names) == []
    migration.undo()


def leftovers(cluster: RedisCluster3, names: list[str]) -> list[Any]:
    """Return all remaining keys, except for the marks, the layout and the registry."""
    return [
        key
        for key in cluster.client().scan_iter(count=1000, target_nodes="primaries")
        if not key.endswith((b":mark", b":layout", b":slots"))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("holding", [b"ws:moving:layout", b"ws:moving:slots"])
def test_a_dead_master_leaves_the_other_nodes_garbage_collected(
    own_cluster: RedisCluster3, holding: bytes
) -> None:
    """The node may even be the one that holds the layout or the registry of the index shards."""
    names = [f"name{i}" for i in range(60)]
    client = own_cluster.client()
    fill(client, names)
    clock = JumpingClock()
    hashes = VolatileHashes(client, namespace=NAMESPACE, backend="emulated", clock_shift_ms=HOUR_MS)
    job = HashFieldExpiry(hashes, limit=25, clock=clock)
    recruiter = always(seconds=0.5, clock=clock)
    recruiter.install(job, rate=1.0)
    assert recruiter.enlist() is Outcome.WORKED
    victim = own_cluster.node_of(key_slot(holding))
    victim.kill()
    try:
        before = topology_reads(own_cluster)
        left = {
            name for name in names if own_cluster.node_of(key_slot(name.encode())) is not victim
        }
        outcomes: list[Outcome] = []
        for _ in range(60):
            with FairSeconds() as held:
                outcomes.append(recruiter.enlist())
            assert held.seconds < 0.5 + 0.5
            if outcomes[-1] is Outcome.FAILED:
                assert recruiter.enlist() is Outcome.SKIPPED
            # The breaker's period is over, and the layout and the registry are read anew.
            clock.jump(16.0)
        assert outcomes.count(Outcome.WORKED) > 0
        assert Outcome.FAILED in outcomes
        alive = [node for node in own_cluster.nodes if node is not victim]
        still = [
            name
            for name in left
            for node in alive
            if own_cluster.node_of(key_slot(name.encode())) is node and node.client().exists(name)
        ]
        assert still == []
        assert topology_reads(own_cluster) == before
    finally:
        own_cluster.wipe()


@pytest.mark.slow
def test_a_slice_of_a_dead_master_does_not_keep_others_waiting(
    own_cluster: RedisCluster3,
) -> None:
    """Once a node has failed, the next trials go to the others first."""
    names = [f"name{i}" for i in range(60)]
    client = own_cluster.client()
    fill(client, names)
    clock = JumpingClock()
    job = job_on(client, limit=1)
    recruiter = always(seconds=5.0, clock=clock)
    recruiter.install(job, rate=1.0)
    assert recruiter.enlist() is Outcome.WORKED
    own_cluster.nodes[1].kill()
    try:
        outcomes = []
        for _ in range(40):
            outcomes.append(recruiter.enlist())
            if outcomes[-1] is Outcome.FAILED:
                clock.jump(16.0)
        # At random it would be one in three.
        assert outcomes.count(Outcome.FAILED) <= 2
    finally:
        own_cluster.wipe()


def test_a_slice_looks_at_a_bounded_number_of_slots(
    cluster: RedisCluster3, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = cluster.client()
    fill(client, ["h"])
    client.bitfield(b"ws:moving:slots").set("u1", 16383, 1).execute()
    client.setrange("ws:moving:slots", 0, b"\xff" * 2048)
    job, asked = job_on(client), []
    node_of = JobClient.node_of

    def counting(self: JobClient, slot: int) -> Any:
        asked.append(slot)
        return node_of(self, slot)

    monkeypatch.setattr(JobClient, "node_of", counting)
    for _ in range(20):
        asked.clear()
        job.perform(Slice(5, 2.0))
        assert len(asked) < 1_200
    # Each slot still has its turn: 20 slices have looked at many different ones.
    assert len(set(asked)) > 60


class TestJobClients:
    def test_a_cluster_with_remapped_addresses(self, cluster: RedisCluster3) -> None:
        with contextlib.ExitStack() as stack:
            doors = {
                node.port: stack.enter_context(FaultyServer(node.port)).port
                for node in cluster.nodes
            }

            def remap(address: tuple[str, int]) -> tuple[str, int]:
                return (address[0], doors.get(address[1], address[1]))

            client = stack.enter_context(cluster.client(address_remap=remap, protocol=2))
            job_client = job_client_of(client)
            assert {port for _, port in map(_pair, job_client.nodes())} == set(doors.values())
            slot = key_slot(b"h")
            right = cluster.node_of(slot)
            wrong = next(node for node in cluster.nodes if node is not right)
            with pytest.raises(Moved):
                job_client.call(("127.0.0.1", doors[wrong.port]), [("GET", "h")], Budget())
            # The cluster's addresses are remapped as the client itself would do.
            assert job_client.node_of(slot) == ("127.0.0.1", doors[right.port])

    def test_all_settings_are_taken_over(self, cluster: RedisCluster3) -> None:
        for node in cluster.nodes:
            node.client().execute_command("ACL SETUSER worker on >secret ~* &* +@all")
        try:
            client = cluster.client(
                username="worker", password="secret", decode_responses=True, protocol=3
            )
            job_client = job_client_of(client)
            for node in job_client.nodes():
                assert job_client.call(node, [("ACL", "WHOAMI")], Budget()) == [b"worker"]
            fill(client, ["x", "y", "z"])
            job = job_on(client)
            assert sum(job.perform(Slice(5, 2.0)) for _ in range(30)) == 6
        finally:
            for node in cluster.nodes:
                node.client().execute_command("ACL DELUSER worker")

    async def test_an_asyncio_cluster(self, cluster: RedisCluster3) -> None:
        fill(cluster.client(), ["x", "y", "z"])
        client = cluster.async_client()
        job = job_on(client)
        # It is not initialised: it knows no slot yet, and nothing is asked.
        before = topology_reads(cluster)
        with pytest.raises(Unmapped, match="does not know yet which node"):
            job.perform(Slice(5, 2.0))
        assert topology_reads(cluster) == before
        async with client:
            await client.ping(target_nodes="random")
            assert sum(job.perform(Slice(5, 2.0)) for _ in range(30)) == 6

    def test_a_map_that_is_being_read_anew(self, cluster: RedisCluster3) -> None:
        client = cluster.client()
        client.nodes_manager.default_node = None
        job_client = job_client_of(client)
        assert job_client.call_keys((b"h",), [("SET", "h", 1)], Budget()) == [b"OK"]

    def test_many_threads_on_all_nodes(self, cluster: RedisCluster3) -> None:
        client = cluster.client()
        done: list[int] = []

        def add(name: str) -> None:
            for _ in range(30):
                with attempt(client, name) as current:
                    (value,) = current.read(("GET", name))
                    current.commit(("SET", name, int(value or 0) + 1))
            done.append(int(client.get(name)))

        threads = [threading.Thread(target=add, args=(f"n{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [30] * 6


def _pair(node: Any) -> tuple[str, int]:
    assert node is not None
    return (node[0], node[1])
