"""Structures on a fleet: each key has one node, and a dead node harms its own keys only."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import AsyncFleet, Fleet, Outcome, structures
from workstealing.dashboard.watched import watch_all
from workstealing.errors import ConfigurationError, CrossSlotError
from workstealing.jobs import (
    AdoptHashes,
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    MigrateToEmulated,
    MigrateToNative,
)
from workstealing.metrics.ledger import Ledger, processes, read
from workstealing.metrics.shared_settings import SharedSettings
from workstealing.recruiting.job import dry_run_of
from workstealing.recruiting.slice import Slice
from workstealing.structures import (
    AsyncDurableKeys,
    AsyncRedisStore,
    AsyncVolatileHashes,
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.structures.structure import Structure
from workstealing.testing import always

pytestmark = pytest.mark.real

NODES = ("a", "b", "c")


class Three:
    """Three servers that know nothing of each other."""

    def __init__(self, binary: Path) -> None:
        self.servers = {name: RedisServer(binary, name=f"node {name}") for name in NODES}

    def fleet(self, *names: str) -> Fleet:
        return Fleet({name: self.servers[name].client(retry=None) for name in names or NODES})

    def async_fleet(self) -> AsyncFleet:
        return AsyncFleet({name: each.async_client() for name, each in self.servers.items()})


@pytest.fixture(scope="module")
def shared_three(shared_redis7: RedisServer) -> Iterator[Three]:
    three = Three(shared_redis7.binary)
    yield three
    for each in three.servers.values():
        each.stop()


@pytest.fixture
def three(shared_three: Three) -> Three:
    for each in shared_three.servers.values():
        each.wipe()
    return shared_three


def names(fleet: Fleet, node: str, count: int) -> list[str]:
    """Return names whose home is that node."""
    every = (f"item:{number}" for number in range(100_000))
    return list(islice((name for name in every if fleet.home(name) == node), count))


class TestHomes:
    def test_a_further_node_takes_its_share_and_moves_no_other_key(self) -> None:
        urls = {f"n{number}": f"redis://host{number}" for number in range(11)}
        before = Fleet({name: url for name, url in urls.items() if name != "n10"})
        after = Fleet(urls)
        keys = [f"item:{number}" for number in range(20_000)]
        moved = [key for key in keys if before.home(key) != after.home(key)]
        assert {after.home(key) for key in moved} == {"n10"}
        # 16,384 slots: the standard deviation of the share is 0.23 %; this is five of them.
        assert abs(len(moved) / len(keys) - 1 / 11) < 0.0125
        for node in before.nodes:
            share = sum(before.home(key) == node for key in keys) / len(keys)
            assert abs(share - 1 / 10) < 0.0125

    def test_homes_are_part_of_the_layout_of_a_fleet_and_never_change(self) -> None:
        fleet = Fleet(dict.fromkeys(NODES, "redis://host"))
        assert [fleet.home(f"item:{number}") for number in range(12)] == list(EXPECTED)

    def test_the_order_of_the_nodes_the_host_and_the_password_move_no_key(self) -> None:
        one = Fleet({name: f"redis://{name}" for name in NODES})
        other = Fleet({name: f"redis://:secret@new-{name}:7000" for name in reversed(NODES)})
        keys = [f"item:{number}" for number in range(1_000)]
        assert [one.home(key) for key in keys] == [other.home(key) for key in keys]

    def test_a_list_of_urls_is_named_by_addresses_without_credentials(self) -> None:
        fleet = Fleet(["redis://me:secret@one", "rediss://two:7000/3?socket_timeout=1"])
        assert list(fleet.nodes) == ["one:6379/0", "two:7000/3"]
        assert "secret" not in repr(fleet)

    def test_keys_with_a_common_tag_have_a_common_home(self) -> None:
        fleet = Fleet(dict.fromkeys(NODES, "redis://host"))
        assert len({fleet.home(f"{{user}}:{number}") for number in range(50)}) == 1
        assert fleet.home("item:1") == fleet.home(b"item:1")

    @pytest.mark.parametrize(
        ("nodes", "said"),
        [
            ([], "no node"),
            ("redis://one", "several nodes"),
            (["redis://one", "redis://me@one:6379/0"], "twice"),
            ({"": "redis://one"}, "name ''"),
            ([redis.Redis()], "has no name"),
            ({"a": redis.asyncio.Redis()}, "AsyncFleet"),
            ({"a": "http://one"}, "http://"),
        ],
    )
    def test_a_wrong_fleet_is_refused_by_one_sentence(self, nodes: Any, said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            Fleet(nodes)


EXPECTED = "bbbbbbbacacc"


class TestHashes:
    def test_each_hash_lives_on_its_own_node_and_nowhere_else(self, three: Three) -> None:
        fleet = three.fleet()
        hashes = VolatileHashes(fleet, "items", backend="emulated")
        for number in range(60):
            hashes.hsetex(f"item:{number}", mapping={"likes": number}, ex=300)
        for number in range(60):
            name = f"item:{number}"
            assert hashes.hgetex(name, "likes") == [str(number).encode()]
            holders = [n for n, each in three.servers.items() if each.client().exists(name)]
            assert holders == [fleet.home(name)]
        assert hashes.exists(*(f"item:{number}" for number in range(70))) == 60
        assert hashes.delete(*(f"item:{number}" for number in range(70))) == 60
        assert {fleet.home(f"item:{number}") for number in range(60)} == set(NODES)

    def test_two_names_must_share_a_node(self, three: Three) -> None:
        fleet = three.fleet()
        hashes = VolatileHashes(fleet, "items", backend="emulated")
        (here, beside), (there,) = names(fleet, "a", 2), names(fleet, "b", 1)
        hashes.hset(here, "f", "1")
        with pytest.raises(CrossSlotError, match="two nodes of the fleet"):
            hashes.rename(here, there)
        assert hashes.hget(here, "f") == b"1"
        assert hashes.rename(here, beside)
        assert hashes.hget(beside, "f") == b"1"

    def test_a_pipeline_goes_to_each_node_once_and_answers_in_order(self, three: Three) -> None:
        hashes = VolatileHashes(three.fleet(), "items", backend="emulated")
        with hashes.pipeline() as pipe:
            for number in range(30):
                pipe.hset(f"item:{number}", "f", number)
            for number in range(30):
                pipe.hget(f"item:{number}", "f")
            assert len(pipe) == 60
            results = pipe.execute()
        assert results == [1] * 30 + [str(number).encode() for number in range(30)]
        assert hashes.pipeline().execute() == []

    def test_asyncio(self, three: Three) -> None:
        async def used() -> None:
            fleet = three.async_fleet()
            hashes = AsyncVolatileHashes(fleet, "items", backend="emulated")
            keys = AsyncDurableKeys(fleet, "keys")
            try:
                assert set(await hashes.open()) == set(NODES)
                pipe: Any = hashes.pipeline()
                for number in range(20):
                    await hashes.hset(f"item:{number}", "f", number)
                    await keys.set(f"key:{number}", number, ex=60)
                    pipe.hget(f"item:{number}", "f")
                every = [str(number).encode() for number in range(20)]
                assert await pipe.execute() == every
                assert await keys.mget([f"key:{number}" for number in range(20)]) == every
                token = await keys.acquire("lock", lease=30)
                assert token is not None
                assert await keys.release("lock", token)
                assert await keys.delete(*(f"key:{number}" for number in range(25))) == 20
            finally:
                for each in fleet.nodes.values():
                    await each.aclose()

        asyncio.run(used())

    def test_the_other_kind_of_fleet_is_refused(self, three: Three) -> None:
        with pytest.raises(ConfigurationError, match="AsyncVolatileHashes"):
            VolatileHashes(three.async_fleet(), "items")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="to DurableKeys"):
            AsyncDurableKeys(three.fleet(), "items")  # type: ignore[arg-type]

    def test_a_job_for_one_server_names_the_way_out(self, three: Three) -> None:
        hashes = VolatileHashes(three.fleet(), "items", backend="emulated")
        with pytest.raises(ConfigurationError, match="on_nodes"):
            MigrateToNative(hashes)
        with pytest.raises(ConfigurationError, match="on_nodes"):
            MigrateToEmulated(hashes, "h:*")
        with pytest.raises(ConfigurationError, match="on_nodes"):
            AdoptHashes(hashes, "h:*", ttl=5)
        one = hashes.on_nodes["a"]
        assert MigrateToNative(one).name == "migrate_to_native.items"
        assert MigrateToEmulated(one, "h:*").name == "migrate_to_emulated.items"
        assert AdoptHashes(one, "h:*", ttl=5).name == "adopt_hashes.items"


class TestKeys:
    def test_commands_on_several_names_are_put_together(self, three: Three) -> None:
        keys = DurableKeys(three.fleet(), "keys")
        for number in range(40):
            keys.set(f"key:{number}", number, ex=60)
        order = [f"key:{number}" for number in (7, 3, 39, 7, 100, 0)]
        assert keys.mget(order) == [b"7", b"3", b"39", b"7", None, b"0"]
        assert keys.mget([]) == []
        assert keys.exists(*order) == 5
        assert keys.delete(*order) == 4
        with keys.pipeline() as pipe:
            pipe.get("key:1").set("key:2", "x").get("key:2")
            assert pipe.execute() == [b"1", True, b"x"]
            with pytest.raises(CrossSlotError, match="one command for each"):
                pipe.mget([f"key:{number}" for number in range(40)])

    def test_leases(self, three: Three) -> None:
        keys = DurableKeys(three.fleet(), "keys")
        for number in range(12):
            token = keys.acquire(f"lock:{number}", lease=30)
            assert token is not None
            assert keys.acquire(f"lock:{number}", lease=30) is None
            assert keys.extend(f"lock:{number}", token, lease=60)
            assert keys.release(f"lock:{number}", token)
            with keys.lock(f"lock:{number}", lease=30) as held:
                assert held.token > token


class TestOtherStructures:
    def test_each_lives_as_a_whole_on_the_node_of_its_name(self, three: Three) -> None:
        fleet = three.fleet()
        for number in range(6):
            name = f"s{number}"
            made = [
                Ick(fleet, name),
                ShardedIck(fleet, name, 2),
                TrackedSet(fleet, name),
                Log(fleet, name),
                ShuffleQueue(fleet, name),
                FairQueue(fleet, name),
                TimeShardQueue(RedisStore(fleet), name),
            ]
            assert all(each.client is fleet.client_of(name) for each in made)
        ick = Ick(fleet, "dirty")
        ick.add({"member": 5})
        holders = [node for node, each in three.servers.items() if each.size()]
        assert holders == [fleet.home("dirty")]
        assert IckReaper(ick, lease=30).dependency == ick.job_client.identity


Say = Callable[[Any], Awaitable[Any]]
# One life of each structure: written by one process, seen and ended by another. `say` gives the
# answer of a blocking and of an awaited method.


async def life_of_hashes(one: Any, other: Any, name: str, say: Say) -> None:
    assert await say(one.hsetex(name, mapping={"f": "1"}, ex=300)) == 1
    assert await say(other.hget(name, "f")) == b"1"
    assert 200 < (await say(other.httl(name, "f")))[0] <= 300
    assert await say(other.hdel(name, "f")) == 1
    assert await say(one.exists(name)) == 0


async def life_of_keys(one: Any, other: Any, name: str, say: Say) -> None:
    token = await say(one.acquire(name, lease=300))
    assert token is not None
    assert await say(other.acquire(name, lease=300)) is None
    assert await say(other.extend(name, token, lease=300))
    assert await say(other.release(name, token))
    assert await say(one.acquire(name, lease=300)) > token


async def life_of_ick(one: Any, other: Any, _: str, say: Say) -> None:
    await say(one.add({"member": 5}))
    batch = await say(other.reserve(10))
    assert batch == [(b"member", 5.0)]
    await say(one.ack(b"member", token=batch.token))
    assert await say(other.reserve(10)) == []


async def life_of_sharded_ick(one: Any, other: Any, _: str, say: Say) -> None:
    await say(one.add({f"member {n}": n for n in range(20)}))
    assert (await say(other.stats()))["total_size"] == 20
    await say(one.delete())


async def life_of_tracked_set(one: Any, other: Any, _: str, say: Say) -> None:
    assert await say(one.track(range(100))) == 100
    assert await say(other.is_tracked(7))
    assert await say(other.count()) == 100
    assert await say(other.untrack(range(100))) == 100
    assert not await say(one.is_tracked(7))


async def life_of_log(one: Any, other: Any, _: str, say: Say) -> None:
    assert await say(one.append(b"first", b"second")) == 0
    assert await say(other.read(1)) == [b"second"]
    assert await say(other.delete())


async def life_of_shuffle_queue(one: Any, other: Any, _: str, say: Say) -> None:
    await say(one.write("tenant", {"number": 1}))
    message = await say(other.read("workers", "worker"))
    assert message.fields == {b"number": b"1"}
    assert await say(one.ack(message)) == 1
    assert await say(other.read("workers", "worker")) is None


async def life_of_fair_queue(one: Any, other: Any, _: str, say: Say) -> None:
    await say(one.write("tenant", {"number": 1}))
    message = await say(other.read("worker"))
    assert message.fields == {b"number": b"1"}
    assert await say(one.ack(message)) == 1
    assert await say(other.read("worker")) is None
    assert await say(one.delete()) > 0


async def life_of_time_shard_queue(one: Any, other: Any, _: str, say: Say) -> None:
    await say(one.put("message"))
    taken = await say(other.take("reader", drain_all=True))
    assert taken.message == b"message"
    assert await say(one.ack(taken)) == 1
    assert await say(other.take("reader", drain_all=True)) is None


LIVES: dict[str, Callable[..., Any]] = {
    "VolatileHashes": life_of_hashes,
    "DurableKeys": life_of_keys,
    "Ick": life_of_ick,
    "ShardedIck": life_of_sharded_ick,
    "TrackedSet": life_of_tracked_set,
    "Log": life_of_log,
    "ShuffleQueue": life_of_shuffle_queue,
    "FairQueue": life_of_fair_queue,
    "TimeShardQueue": life_of_time_shard_queue,
}
SPREAD = ("VolatileHashes", "DurableKeys")
PUBLIC = sorted(
    name
    for name in structures.__all__
    if inspect.isclass(getattr(structures, name))
    and issubclass(getattr(structures, name), Structure)
)


class TestEveryStructure:
    @pytest.mark.slow
    @pytest.mark.parametrize("public", PUBLIC)
    async def test_its_life_goes_on_at_the_home_of_its_name(
        self, three: Three, public: str
    ) -> None:
        kind, is_async = getattr(structures, public), public.startswith("Async")
        bare = public.removeprefix("Async")
        # Two processes: each has a fleet of its own.
        fleets = [three.async_fleet() if is_async else three.fleet() for _ in range(2)]
        homes = set()
        for number in range(8):
            name = f"{bare}:{number}"
            # All of a spread structure's keys are one namespace; any other is one of that name.
            called = bare if bare in SPREAD else name
            if bare == "TimeShardQueue":
                store = AsyncRedisStore if is_async else RedisStore
                pair = [kind(store(fleet), called) for fleet in fleets]
            else:
                shards = (2,) if bare == "ShardedIck" else ()
                pair = [kind(fleet, called, *shards) for fleet in fleets]
            before = {node: each.size() for node, each in three.servers.items()}
            grown: set[str] = set()

            async def say(given: Any, before: Any = before, grown: Any = grown) -> Any:
                said = await given if inspect.isawaitable(given) else given
                grown |= {n for n, each in three.servers.items() if each.size() > before[n]}
                return said

            await LIVES[bare](*pair, name, say)
            assert grown == {fleets[0].home(name)}
            homes.add(fleets[0].home(name))
        assert len(homes) > 1
        if is_async:
            for each in (client for fleet in fleets for client in fleet.nodes.values()):
                await each.aclose()

    @pytest.mark.parametrize("public", PUBLIC)
    def test_the_other_kind_of_fleet_is_refused_by_one_sentence(
        self, three: Three, public: str
    ) -> None:
        is_async, bare = public.startswith("Async"), public.removeprefix("Async")
        fleet: Any = three.fleet() if is_async else three.async_fleet()
        right = bare if is_async else f"Async{bare}"
        if bare == "TimeShardQueue":
            right = "RedisStore" if is_async else "AsyncRedisStore"
            fleet = (AsyncRedisStore if is_async else RedisStore)(fleet)
        with pytest.raises(ConfigurationError, match=f"give it to {right}$"):
            getattr(structures, public)(fleet, "s")

    def test_a_ledger_lives_on_one_server(self, three: Three) -> None:
        fleet: Any = three.fleet()
        for make in (Ledger, SharedSettings, read, processes):
            with pytest.raises(ConfigurationError, match=r"one node, such as fleet.nodes\['a'\]$"):
                make(fleet)
        with pytest.raises(ConfigurationError, match="lives on one server"):
            Ledger(three.async_fleet())


def full(fleet: Fleet) -> tuple[VolatileHashes, DurableKeys]:
    """Return hashes and keys with ten expired ones on each node."""
    hashes = VolatileHashes(fleet, "items", backend="emulated")
    keys = DurableKeys(fleet, "keys")
    for node in fleet.nodes:
        for name in names(fleet, node, 10):
            hashes.hsetex(name, mapping={"f": 1}, px=1)
            keys.set(f"{{{name}}}:key", 1, px=1)
    return hashes, keys


class TestJobs:
    def test_slices_go_to_all_nodes_one_at_a_time(self, three: Three) -> None:
        hashes, keys = full(three.fleet())
        for job in (HashFieldExpiry(hashes, 5), KeyExpiry(keys, 5)):
            assert [each.name.split(" on ")[1] for each in job.structures] == list(NODES)
            assert job.backlog().count == 30
            assert dry_run_of(job).dry_run
            removed, served = 0, set()
            for _ in range(200):
                slice = Slice(5, 5.0)
                # A busy machine may be slower than a job waits.
                with suppress(redis.TimeoutError):
                    removed += job.perform(slice) or 0
                served.add(slice.served)
            assert removed == 30
            assert len(served) == 3
            assert job.backlog().count == 0

    def test_a_sweep_has_parts_on_every_node(self, three: Three) -> None:
        hashes, _ = full(three.fleet())
        job = HashFieldExpiry(hashes, 100)
        parts = job.parts(6)
        assert len(parts) == 6
        removed = 0
        for part in pickle.loads(pickle.dumps(parts)):
            walk = job.for_part(part)
            while not walk.is_drained:
                removed += walk.perform(Slice(100, 5.0)) or 0
        assert removed == 30


class TestADeadNode:
    def test_it_harms_its_own_keys_only(self, three: Three) -> None:
        fleet = three.fleet()
        hashes, keys = VolatileHashes(fleet, "h", backend="emulated"), DurableKeys(fleet, "k")
        mine = {node: names(fleet, node, 5) for node in NODES}
        every = list(chain(*mine.values()))
        for name in every:
            hashes.hset(name, "f", "1")
            keys.set(f"{{{name}}}:key", "1")
        three.servers["b"].kill()
        # A process that starts now has read no layout yet.
        for fresh in (fleet, three.fleet()):
            hashes = VolatileHashes(fresh, "h", backend="emulated")
            keys = DurableKeys(fresh, "k")
            for node, some in mine.items():
                for name in some:
                    if node == "b":
                        with pytest.raises((redis.ConnectionError, OSError)):
                            hashes.hget(name, "f")
                        with pytest.raises((redis.ConnectionError, OSError)):
                            keys.set(f"{{{name}}}:key", "2")
                    else:
                        assert hashes.hset(name, f"g{id(fresh)}", "2") == 1
                        assert hashes.hget(name, "f") == b"1"
                        assert keys.set(f"{{{name}}}:key", "2")
        with hashes.pipeline() as pipe:
            for name in every:
                pipe.hget(name, "f")
            results = pipe.execute(raise_on_error=False)
            assert results[:5] == results[10:] == [b"1"] * 5
            assert all(isinstance(each, redis.ConnectionError) for each in results[5:10])
            for name in every:
                pipe.hset(name, "last", "1")
            with pytest.raises(redis.ConnectionError):
                pipe.execute()
        assert hashes.hget(mine["c"][0], "last") == b"1"
        # The others' keys are deleted although one node has failed.
        with pytest.raises(redis.ConnectionError):
            keys.delete(*(f"{{{name}}}:key" for name in every))
        assert not keys.exists(*(f"{{{name}}}:key" for name in mine["a"] + mine["c"]))

    def test_its_breaker_opens_and_the_other_nodes_are_served(self, three: Three) -> None:
        hashes, _ = full(three.fleet())
        three.servers["b"].kill()
        job = HashFieldExpiry(hashes, 5)
        recruiter = always(breaker=1000.0)
        recruiter.install(job, rate=1.0, seconds=5.0)
        asked: list[Slice] = []
        collector = job._collectors["b"]
        collect = collector.collect

        def counted(slice: Slice) -> int:
            asked.append(slice)
            return collect(slice)

        collector.collect = counted  # type: ignore[method-assign]
        outcomes = [recruiter.enlist() for _ in range(120)]
        # One attempt on the dead node: no more in the breaker's period, and good slices elsewhere
        # do not close it.
        assert len(asked) == 1
        assert Outcome.WORKED in outcomes
        assert Outcome.SKIPPED not in outcomes
        assert not recruiter.stats()["jobs"][job.name]["breaker_open"]
        assert not job.backlog().exact
        (said,) = [each for each in recruiter.explain(job).reasons if "breaker" in each]
        assert said.startswith("a breaker of it is open: one of its 3 servers has not been reached")
        # What is shown has a row for each node, and only the dead one's is unknown.
        sizes: dict[str, bool] = {}
        for each in watch_all([], [job]):
            assert each.size is not None
            assert each.due is not None
            try:
                sizes[each.name] = each.size() is not None and each.due() is not None
            except redis.ConnectionError:
                sizes[each.name] = False
        assert sizes == {"items on a": True, "items on b": False, "items on c": True}

    def test_when_all_are_dead_slices_are_skipped(self, three: Three) -> None:
        hashes, _ = full(three.fleet())
        for each in three.servers.values():
            each.kill()
        job = HashFieldExpiry(hashes, 5)
        recruiter = always(breaker=1000.0)
        recruiter.install(job, rate=1.0, seconds=5.0)
        outcomes = [recruiter.enlist() for _ in range(30)]
        assert outcomes == [Outcome.FAILED] * 3 + [Outcome.SKIPPED] * 27
        assert recruiter.stats()["jobs"][job.name]["breaker_open"]
        with pytest.raises(redis.ConnectionError):
            job.backlog()
