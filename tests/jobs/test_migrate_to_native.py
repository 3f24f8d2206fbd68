"""A namespace moves from emulated to native under traffic, and nothing changes for its readers."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.patience import left, patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import HashFieldExpiry, MigrateToNative
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.structures import AsyncVolatileHashes, VolatileHashes

HOUR = 3600


def hashes_on(client: Any, **options: Any) -> VolatileHashes:
    return VolatileHashes(client, namespace="m", **options)


def run_to_the_end(job: MigrateToNative, most: int = 1000) -> int:
    moved = 0
    for _ in range(most):
        moved += job.perform(Slice(job.limit, 5.0))
        if hashes_layout(job) == "native":
            return moved
    raise AssertionError(f"still {hashes_layout(job)} after {most} slices")


def hashes_layout(job: MigrateToNative) -> str:
    backend = job.hashes.client.hget("ws:m:layout", "backend")
    return backend.decode() if backend else ""


@pytest.fixture(params=["redis8", "cluster8"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    client = request.getfixturevalue(request.param).client()
    yield client
    client.flushall()


@pytest.mark.real
def test_deadlines_are_the_same_before_and_after(client: Any) -> None:
    hashes = hashes_on(client, backend="emulated")
    for i in range(200):
        hashes.hsetex(f"h:{i}", mapping={"a": i, "b": i}, ex=HOUR + i)
        hashes.hset(f"h:{i}", "for ever", 1)
    hashes = hashes_on(client)
    before = {i: hashes.hpexpiretime(f"h:{i}", "a", "b", "for ever") for i in range(200)}
    assert run_to_the_end(MigrateToNative(hashes, limit=25)) == 400
    # Nothing of ours is left but the layout, the registry and the marks.
    left = set(client.scan_iter("*ws:m:*"))
    assert not [key for key in left if key.endswith(b":due") or b":ttl:" in key]
    for name, times in before.items():
        assert client.hpexpiretime(f"h:{name}", "a", "b", "for ever") == times
        assert hashes.hpexpiretime(f"h:{name}", "a", "b", "for ever") == times
    assert hashes_on(client).open().is_native
    assert MigrateToNative(hashes).perform(Slice(25, 5.0)) == 0


@pytest.mark.real
def test_expired_fields_do_not_come_back(client: Any) -> None:
    hashes_on(client, backend="emulated").hsetex("h", mapping={"a": 1, "b": 2}, ex=HOUR)
    hashes_on(client).hsetex("h", "c", 3, ex=3 * HOUR)
    later = hashes_on(client, clock_shift_ms=2 * HOUR * 1000)
    assert later.hgetall("h") == {b"c": b"3"}
    run_to_the_end(MigrateToNative(later))
    assert client.hgetall("h") == {b"c": b"3"}


@pytest.mark.real
def test_processes_that_have_not_noticed_lose_and_see_nothing_wrong(client: Any) -> None:
    old = hashes_on(client)
    stale = hashes_on(client, backend="auto")
    hashes_on(client, backend="emulated").hsetex("h", mapping={"a": 1, "b": 2}, ex=HOUR)
    assert stale.hget("h", "a") == b"1"
    assert stale.open().is_emulated
    assert old.httl("h", "a") == [left(HOUR)]
    run_to_the_end(MigrateToNative(hashes_on(client)))
    # Both still believe in the emulated layout.
    assert stale.hget("h", "b") == b"2"
    assert old.httl("h", "a", "b") == [left(HOUR), left(HOUR)]
    assert stale.hsetex("h", "b", 3, ex=2 * HOUR) == 1
    assert stale.open().is_native
    assert client.httl("h", "a", "b") == [left(HOUR), left(2 * HOUR)]


@pytest.mark.real
def test_a_hash_is_handed_over_before_its_next_use(client: Any) -> None:
    emulated = hashes_on(client, backend="emulated")
    names = [f"h:{i}" for i in range(60)]
    for name in names:
        emulated.hsetex(name, mapping={"a": 1, "b": 2}, ex=HOUR)
    job = MigrateToNative(hashes_on(client), limit=1)
    assert job.perform(Slice(1, 5.0)) == 1
    hashes = hashes_on(client)
    assert hashes.open().is_migrating
    with hashes.pipeline() as p:
        for name in names:
            p.hpersist(name, "a")
            p.httl(name, "a", "b")
        replies = p.execute()
    assert replies == [[1], [-1, left(HOUR)]] * 60
    assert run_to_the_end(job) == 0


@pytest.mark.real
def test_renaming_hands_both_hashes_over(client: Any) -> None:
    emulated = hashes_on(client, backend="emulated")
    for name in ("{s}:a", "{s}:b", "other"):
        emulated.hsetex(name, name, 1, ex=HOUR)
    job = MigrateToNative(hashes_on(client), limit=1)
    job.perform(Slice(1, 5.0))
    assert hashes_on(client).rename("{s}:a", "{s}:b") is True
    run_to_the_end(job)
    assert client.hgetall("{s}:b") == {b"{s}:a": b"1"}
    assert client.httl("{s}:b", "{s}:a") == [left(HOUR)]


@pytest.mark.real
@pytest.mark.parametrize("transaction", [True, False])
def test_a_pipeline_that_has_not_noticed_goes_the_new_way(client: Any, transaction: bool) -> None:
    hashes_on(client, backend="emulated").hsetex("h", mapping={"a": 1, "b": 2}, ex=HOUR)
    stale = hashes_on(client)
    assert stale.open().is_emulated
    run_to_the_end(MigrateToNative(hashes_on(client)))
    transaction = transaction and not isinstance(client, redis.RedisCluster)
    with stale.pipeline(transaction=transaction) as p:
        p.hget("h", "b")
        p.hsetex("h", "b", 3, ex=2 * HOUR)
        p.hget("h", "b")
        p.incr("visits")
        p.hget("other", "b")
        p.httl("h", "a", "b")
        assert p.execute() == [b"2", 1, b"3", 1, None, [left(HOUR), left(2 * HOUR)]]
    assert stale.open().is_native
    assert client.httl("h", "a", "b") == [left(HOUR), left(2 * HOUR)]


@pytest.mark.real
async def test_an_asyncio_pipeline_that_has_not_noticed(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes_on(client, backend="emulated").hsetex("h", "a", 1, ex=HOUR)
    async with redis8.async_client() as other:
        stale = AsyncVolatileHashes(other, namespace="m")
        assert (await stale.open()).is_emulated
        run_to_the_end(MigrateToNative(hashes_on(client)))
        async with stale.pipeline() as p:
            p.hsetex("h", "b", 1, ex=HOUR)
            p.incr("visits")
            p.httl("h", "a", "b")
            assert await p.execute() == [1, 1, [left(HOUR), left(HOUR)]]


@pytest.mark.real
@pytest.mark.parametrize("replace", [lambda c: c.set("h", "x"), lambda c: c.delete("h")])
def test_deadlines_whose_hash_was_replaced_do_not_stop_it(client: Any, replace: Any) -> None:
    emulated = hashes_on(client, backend="emulated")
    for name in ("h", "g"):
        emulated.hsetex(name, "a", 1, ex=HOUR)
    replace(client)
    before = client.get("h")
    run_to_the_end(MigrateToNative(hashes_on(client)))
    assert client.get("h") == before
    assert client.httl("g", "a") == [left(HOUR)]
    assert not [key for key in client.scan_iter("*ws:m:*") if b":ttl:" in key]


@pytest.mark.real
async def test_asyncio_clients_take_part(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes_on(client, backend="emulated").hsetex("h", "a", 1, ex=HOUR)
    async with redis8.async_client() as other:
        hashes = AsyncVolatileHashes(other, namespace="m")
        assert await hashes.httl("h", "a") == [left(HOUR)]
        run_to_the_end(MigrateToNative(hashes_on(client)))
        assert await hashes.hsetex("h", "b", 1, ex=HOUR) == 1
        assert await hashes.httl("h", "a", "b") == [left(HOUR), left(HOUR)]
        assert (await hashes.open()).is_native


@pytest.mark.real
def test_under_traffic_every_field_keeps_its_last_deadline(client: Any) -> None:
    hashes_on(client, backend="emulated").open()
    names = [f"h:{i}" for i in range(40)]
    last: dict[int, dict[str, int]] = {}
    stop = threading.Event()

    def write(seed: int) -> None:
        rng, hashes = random.Random(seed), hashes_on(client)
        written = last[seed] = {}
        while not stop.is_set():
            name, hours = rng.choice(names), rng.randint(1, 9)
            hashes.hsetex(name, f"f{seed}", hours, ex=hours * HOUR)
            written[name] = hours

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for writer in writers:
        writer.start()
    job = MigrateToNative(hashes_on(client), limit=5)
    try:
        run_to_the_end(job, most=5000)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert sorted(last) == [0, 1, 2]
    for seed, written in last.items():
        for name, hours in written.items():
            assert client.hget(name, f"f{seed}") == str(hours).encode()
            (left,) = client.httl(name, f"f{seed}")
            assert hours * HOUR - 60 <= left <= hours * HOUR
    assert HashFieldExpiry(hashes_on(client)).perform(Slice(5, 5.0)) == 0


@pytest.mark.real
def test_a_server_without_the_commands_keeps_its_layout(redis7: RedisServer) -> None:
    client = redis7.client()
    hashes = hashes_on(client)
    hashes.hsetex("h", "a", 1, ex=HOUR)
    with pytest.raises(ConfigurationError, match="lacks HSETEX"):
        MigrateToNative(hashes).perform(Slice(25, 5.0))
    assert client.hget("ws:m:layout", "backend") == b"emulated"
    assert hashes.hget("h", "a") == b"1"


@pytest.mark.real
def test_emulated_by_name_is_refused_once_native(client: Any) -> None:
    hashes = hashes_on(client, backend="emulated")
    hashes.hsetex("h", "a", 1, ex=HOUR)
    run_to_the_end(MigrateToNative(hashes))
    with pytest.raises(LayoutError, match="laid out as native"):
        hashes_on(client, backend="emulated").hget("h", "a")


@pytest.mark.real
def test_a_layout_that_this_release_may_only_read_is_left_alone(redis8: RedisServer) -> None:
    client = redis8.client()
    hashes = hashes_on(client, backend="emulated")
    hashes.hsetex("h", "a", 1, ex=HOUR)
    client.hset("ws:m:layout", mapping={"version": 2, "writable_from": 2})
    before = {key: client.dump(key) for key in client.scan_iter()}
    with pytest.raises(LayoutError, match="may read but not write"):
        MigrateToNative(hashes_on(client)).perform(Slice(25, 5.0))
    assert {key: client.dump(key) for key in client.scan_iter()} == before


def test_an_unused_namespace_is_idle(fakeredis_server: Any) -> None:
    hashes = hashes_on(fakeredis_server.client())
    assert MigrateToNative(hashes).perform(Slice(25, 5.0)) == 0


@pytest.mark.slow
@pytest.mark.real
def test_a_dry_run_counts_what_would_be_handed_over(client: Any) -> None:
    hashes = hashes_on(client, backend="emulated")
    for i in range(30):
        hashes.hsetex(f"{{h}}:{i}", mapping={"a": i, "b": i}, ex=HOUR + i)
    hashes = hashes_on(client)
    job = MigrateToNative(hashes, limit=1000, dry_run=True)
    before = {key: client.dump(key) for key in client.scan_iter("*")}
    # A look takes at most sixteen hashes of an index shard.
    counted = max(job.perform(Slice(1000, 5.0)) for _ in range(200))
    assert counted == 32
    assert MigrateToNative(hashes, limit=3, dry_run=True).perform(Slice(3, 5.0)) in (0, 3)
    assert {key: client.dump(key) for key in client.scan_iter("*")} == before
    assert hashes_layout(job) == "emulated"
    with pytest.raises(ConfigurationError, match="is a dry run and would never come to an end"):
        job.parts(2)
    assert run_to_the_end(MigrateToNative(hashes)) == 60
    assert job.perform(Slice(1000, 5.0)) == 0


@pytest.mark.real
def test_its_backlog_is_the_fields_that_are_not_handed_over(client: Any) -> None:
    job = MigrateToNative(hashes_on(client), limit=7)
    nothing = Backlog(0, 0.0, "fields to hand over")
    assert job.backlog() == nothing
    hashes = hashes_on(client, backend="emulated")
    for i in range(40):
        hashes.hsetex(f"h:{i}", mapping={"a": i, "b": i}, ex=HOUR + i)
    job = MigrateToNative(hashes_on(client), limit=7)
    assert job.backlog() == Backlog(80, None, "fields to hand over")
    one = Slice(7, 5.0)
    while not (moved := job.perform(one)):
        one = Slice(7, 5.0)
    assert one.backlog
    assert job.backlog().count == 80 - moved
    run_to_the_end(job)
    assert job.backlog() == nothing
    one = Slice(7, 5.0)
    assert job.perform(one) == 0
    assert one.backlog == 0
    assert job.structures == (job.hashes,)


def test_a_dry_run_says_what_the_server_lacks(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7.client())
    hashes.hsetex("h", "f", 1, ex=HOUR)
    with pytest.raises(ConfigurationError, match="the server lacks HSETEX"):
        MigrateToNative(hashes, dry_run=True).perform(Slice(5, 5.0))
