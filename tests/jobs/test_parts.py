"""Jobs that divide: their parts together do the whole, each stays inside its own, and all end."""

from __future__ import annotations

import pickle
import random
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from support.hash_checks import check_index
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisCluster3, RedisServer
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.jobs import (
    AdoptHashes,
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    MigrateToEmulated,
    MigrateToNative,
)
from workstealing.recruiting import Slice
from workstealing.recruiting.job import DivisibleJob, PartJob
from workstealing.store.connection import SENT
from workstealing.store.keys import key_slot
from workstealing.structures import DurableKeys, Ick, ShardedIck, VolatileHashes
from workstealing.structures.volatile_hashes.commands import HashNames

HOUR_MS = 3_600_000
AHEAD_MS = 1_000 * HOUR_MS
NAMESPACE = "parts"


def hashes_on(server: AnyServer, ahead_ms: int = 0) -> VolatileHashes:
    hashes: VolatileHashes = VolatileHashes(
        server.client(), NAMESPACE, backend="emulated", clock_shift_ms=ahead_ms
    )
    return hashes


def keys_on(server: AnyServer, ahead_ms: int = 0) -> DurableKeys:
    keys: DurableKeys = DurableKeys(server.client(), NAMESPACE, clock_shift_ms=ahead_ms)
    return keys


def drain(part: PartJob, limit: int = 100) -> int:
    """Do slices until the part is drained; return how many items that were."""
    total = 0
    for _ in range(10_000):
        done = part.perform(Slice(limit, 10.0))
        assert done is not None
        assert 0 <= done <= limit
        total += done
        if part.is_drained:
            return total
    raise AssertionError("the part is never drained")


def drain_all(job: DivisibleJob, n: int, limit: int = 100) -> list[int]:
    """Do all parts, each as another process would: from its pickled description."""
    parts = [pickle.loads(pickle.dumps(part)) for part in job.parts(n)]
    assert len(parts) <= n
    return [drain(job.for_part(part), limit) for part in parts]


def fill(hashes: VolatileHashes, count: int, fields: int, ex: int = 60) -> list[str]:
    names = [f"{{u{i}}}:hash" for i in range(count)]
    with hashes.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hsetex(name, mapping={f"f{j}": "v" for j in range(fields)}, ex=ex)
        pipe.execute()
    return names


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 7, 500])
def test_all_parts_together_collect_every_expired_field(any_server: AnyServer, limit: int) -> None:
    hashes = hashes_on(any_server)
    names = fill(hashes, 40, 3)
    lasting = fill(hashes, 10, 2, ex=10_000 * 3_600)
    hashes.hset("{u3}:hash", "stays", "here")
    later = hashes_on(any_server, AHEAD_MS)
    done = drain_all(HashFieldExpiry(later), 5, limit)
    # The first ten hashes got one deadline more for two of their fields.
    assert sum(done) == 30 * 3 + 10
    assert later.client.hgetall("{u3}:hash") == {b"f0": b"v", b"f1": b"v", b"stays": b"here"}
    assert [later.client.exists(name) for name in names] == [1] * 10 + [0] * 30
    assert all(later.client.hlen(name) >= 2 for name in lasting)
    check_index(later)
    assert HashFieldExpiry(later).backlog().count == 0
    # Nothing is left for a second sweep.
    assert sum(drain_all(HashFieldExpiry(later), 5)) == 0


@pytest.mark.slow
def test_all_parts_together_delete_every_overdue_key(any_server: AnyServer) -> None:
    keys = keys_on(any_server)
    for i in range(60):
        keys.set(f"k{i}", "v", ex=60)
    keys.set("stays", "v", ex=10_000 * 3_600)
    keys.set("for good", "v")
    later = keys_on(any_server, AHEAD_MS)
    assert sum(drain_all(KeyExpiry(later), 4, limit=7)) == 60
    assert later.get("stays") == b"v"
    assert later.get("for good") == b"v"
    assert KeyExpiry(later).backlog().count == 0


@pytest.mark.parametrize("n", [1, 2, 3, 8, 100])
def test_every_index_shard_is_in_one_part(any_server: AnyServer, n: int) -> None:
    hashes = hashes_on(any_server)
    fill(hashes, 1, 1)
    layout = hashes.layout
    assert layout is not None
    parts = HashFieldExpiry(hashes).parts(n)
    shards = [shard for part in parts for shard in part.shards]
    assert sorted(shards) == list(range(layout.index_shards))
    assert len(parts) == min(n, layout.index_shards)
    sizes = [len(part.shards) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_neighbouring_parts_lie_on_different_nodes(cluster: RedisCluster3) -> None:
    hashes = hashes_on(cluster)
    fill(hashes, 1, 1)
    parts = HashFieldExpiry(hashes).parts(6)
    nodes = [cluster.node_of(part.shards[len(part.shards) // 2]).port for part in parts]
    assert all(one != other for one, other in pairwise(nodes))


def test_a_namespace_that_nobody_uses_has_no_parts(any_server: AnyServer) -> None:
    assert HashFieldExpiry(hashes_on(any_server)).parts(4) == []
    assert KeyExpiry(keys_on(any_server)).parts(4) == []


def test_a_native_namespace_has_no_parts(redis8: RedisServer) -> None:
    native: VolatileHashes = VolatileHashes(redis8.client(), NAMESPACE, backend="native")
    native.hsetex("h", mapping={"f": "v"}, ex=60)
    assert HashFieldExpiry(native).parts(4) == []


def test_what_becomes_due_after_the_division_is_left_to_the_jobs(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)
    fill(hashes, 20, 1)
    job = HashFieldExpiry(hashes_on(redis7, AHEAD_MS))
    parts = job.parts(2)
    # An hour later the same parts are done, beside garbage that is younger than they are.
    with hashes_on(redis7).pipeline(transaction=False) as pipe:
        for i in range(20):
            pipe.hsetex(f"young{i}", mapping={"f": "v"}, px=AHEAD_MS + 60_000)
        pipe.execute()
    much_later = HashFieldExpiry(hashes_on(redis7, AHEAD_MS + HOUR_MS))
    assert sum(drain(much_later.for_part(part)) for part in parts) == 20
    assert much_later.backlog().count == 20


@pytest.mark.slow
def test_a_lost_registry_is_found_again_in_all_slots(cluster: RedisCluster3) -> None:
    hashes = hashes_on(cluster)
    names = fill(hashes, 50, 2)
    client = cluster.client()
    registry = HashNames(NAMESPACE).registry
    client.delete(registry)
    later = hashes_on(cluster, AHEAD_MS)
    before = SENT.round_trips
    assert sum(drain_all(HashFieldExpiry(later), 4, limit=1_000)) == 100
    # Twice around 16,384 index shards, and the rest: that is why they are asked in pipelines.
    assert SENT.round_trips - before < 1_000
    assert all(client.getbit(registry, key_slot(name.encode())) for name in names)


@pytest.mark.slow
def test_a_slice_of_a_part_sends_no_more_than_its_limit_calls_for(cluster: RedisCluster3) -> None:
    hashes = hashes_on(cluster)
    fill(hashes, 100, 1)
    job = HashFieldExpiry(hashes_on(cluster, AHEAD_MS))
    (part,) = job.parts(1)
    working = job.for_part(part)
    while not working.is_drained:
        before = SENT.commands
        working.perform(Slice(20, 10.0))
        # Looks with a TIME each, scripts, the layout and the registry.
        assert SENT.commands - before <= 64 + 64 + 20 + 4


def test_a_hash_given_more_time_is_set_right_and_left(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)
    names = fill(hashes, 5, 1)
    for name in names:
        hashes.hpersist(name, "f0")
    assert sum(drain_all(HashFieldExpiry(hashes_on(redis7, AHEAD_MS)), 2)) == 0
    assert HashFieldExpiry(hashes_on(redis7, AHEAD_MS)).backlog().count == 0
    assert all(redis7.client().hlen(name) == 1 for name in names)


def test_a_script_that_the_server_lost_is_sent_again(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)
    fill(hashes, 300, 1)
    job = HashFieldExpiry(hashes_on(redis7, AHEAD_MS))
    (part,) = job.parts(1)
    working = job.for_part(part)
    total = working.perform(Slice(70, 10.0)) or 0
    redis7.client().script_flush()
    while not working.is_drained:
        try:
            total += working.perform(Slice(70, 10.0)) or 0
        except Aborted:
            continue
    assert total == 300


def test_a_script_collects_many_hashes_of_an_index_shard(any_server: AnyServer) -> None:
    hashes = hashes_on(any_server)
    # All lie in one slot: one script on a cluster as well.
    names = [f"{{one}}:{i}" for i in range(300)]
    with hashes.pipeline(transaction=False) as pipe:
        for i, name in enumerate(names):
            pipe.hsetex(name, mapping={f"f{j}": "v" for j in range(1 + i % 20)}, ex=60)
        pipe.execute()
    later = hashes_on(any_server, AHEAD_MS)
    job, layout = HashFieldExpiry(later), hashes.layout
    assert layout is not None
    shard = layout.shard_of(key_slot(b"{one}"))
    working = job.for_part(replace(job.parts(1)[0], shards=(shard,)))
    before = SENT.commands
    assert drain(working, 1_000) == sum(1 + i % 20 for i in range(300))
    assert SENT.commands - before < 60


STATES = (
    *("all", "lasting", "later", "persisted", "ending"),
    *("deleted", "overwritten", "emptied", "foreign"),
)


@pytest.mark.slow
def test_one_script_meets_hashes_in_every_state(any_server: AnyServer) -> None:
    hashes = hashes_on(any_server)
    client = any_server.client()
    names = {each: f"{{one}}:{each}" for each in STATES}
    for name in names.values():
        hashes.hsetex(name, mapping={f"f{j}": "v" for j in range(3)}, ex=60)
    hashes.hset(names["lasting"], "stays", "v")
    hashes.hexpire(names["later"], 20_000 * 3_600, "f1")
    hashes.hpersist(names["persisted"], "f0", "f1", "f2")
    hashes.hsetex(names["ending"], mapping={"f0": "v"}, ex=20_000 * 3_600)
    client.expire(names["ending"], 3_600)
    client.delete(names["deleted"])
    client.set(names["overwritten"], "a string")
    client.hdel(names["emptied"], "f0", "f1")
    deadlines = hashes.names.deadlines(names["foreign"].encode())
    client.delete(deadlines)
    client.set(deadlines, "foreign")
    later = hashes_on(any_server, AHEAD_MS)
    job = HashFieldExpiry(later)
    (part,) = job.parts(1)
    with pytest.raises(LayoutError, match="deadlines"):
        drain(job.for_part(part), 1_000)
    assert {each: client.hgetall(names[each]) for each in STATES[1:5]} == {
        "lasting": {b"stays": b"v"},
        "later": {b"f1": b"v"},
        "persisted": {b"f0": b"v", b"f1": b"v", b"f2": b"v"},
        "ending": {b"f0": b"v"},
    }
    assert client.get(names["overwritten"]) == b"a string"
    assert client.get(deadlines) == b"foreign"
    assert not client.exists(names["all"], names["emptied"], names["deleted"])
    assert {
        each for each, name in names.items() if client.exists(later.names.deadlines(name.encode()))
    } == {"later", "ending", "foreign"}
    layout = hashes.layout
    assert layout is not None
    index = later.names.due(layout.shard_of(key_slot(b"{one}")))
    due = dict(client.zrange(index, 0, -1, withscores=True))
    assert set(due) == {names[each].encode() for each in ("later", "ending", "foreign")}
    # It ends as a whole before its next deadline.
    assert due[names["ending"].encode()] < due[names["later"].encode()]


def test_one_script_removes_a_bounded_number_of_fields(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)
    hashes.hsetex("large", mapping={f"f{j}": "v" for j in range(2_500)}, ex=60)
    later = hashes_on(redis7, AHEAD_MS)
    job = HashFieldExpiry(later)
    (part,) = job.parts(1)
    working = job.for_part(part)
    client = redis7.client()
    client.config_resetstat()
    assert working.perform(Slice(100_000, 10.0)) == 2_500
    assert client.info("commandstats")["cmdstat_hdel"]["calls"] == 3
    assert drain(working) == 0


def test_something_foreign_is_said_when_all_else_is_done(redis7: RedisServer) -> None:
    hashes = hashes_on(redis7)
    fill(hashes, 30, 1)
    client = redis7.client()
    names = HashNames(NAMESPACE)
    client.delete(names.deadlines(b"{u0}:hash"))
    client.set(names.deadlines(b"{u0}:hash"), "foreign")
    job = HashFieldExpiry(hashes_on(redis7, AHEAD_MS))
    (part,) = job.parts(1)
    working = job.for_part(part)
    assert working.perform(Slice(29, 10.0)) == 29
    with pytest.raises(LayoutError, match="deadlines"):
        drain(working)
    assert not working.is_drained
    assert client.get(names.deadlines(b"{u0}:hash")) == b"foreign"


def test_a_fault_in_the_middle_leaves_the_part_undrained(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = hashes_on(redis7)
    fill(hashes, 100, 1)
    later = hashes_on(redis7, AHEAD_MS)
    job = HashFieldExpiry(later)
    (part,) = job.parts(1)
    working = job.for_part(part)
    chance = random.Random(7)

    def at_times_failing(real: Any) -> Any:
        def failing(*args: Any) -> Any:
            if chance.random() < 0.5:
                raise ConnectionResetError("cut")
            return real(*args)

        return failing

    for name in ("call", "call_each"):
        monkeypatch.setattr(
            later.job_client, name, at_times_failing(getattr(later.job_client, name))
        )
    total, faults = 0, 0
    while not working.is_drained:
        try:
            total += working.perform(Slice(10, 10.0)) or 0
        except ConnectionResetError:
            faults += 1
    assert faults
    assert total == 100


@pytest.mark.slow
def test_two_workers_on_the_same_part_remove_each_field_once(any_server: AnyServer) -> None:
    fill(hashes_on(any_server), 30, 4)
    jobs = [HashFieldExpiry(hashes_on(any_server, AHEAD_MS)) for _ in range(2)]
    (part,) = jobs[0].parts(1)
    working = [job.for_part(part) for job in jobs]
    total = 0
    while not all(each.is_drained for each in working):
        for each in working:
            total += each.perform(Slice(9, 10.0)) or 0
    assert total == 120


def test_dry_runs_are_refused(redis7: RedisServer) -> None:
    for job in (
        HashFieldExpiry(hashes_on(redis7), dry_run=True),
        KeyExpiry(keys_on(redis7), dry_run=True),
        IckReaper(Ick(redis7.client(), "k"), 60, dry_run=True),
        MigrateToNative(hashes_on(redis7), dry_run=True),
        MigrateToEmulated(hashes_on(redis7), "h:*", dry_run=True),
        AdoptHashes(hashes_on(redis7), "h:*", ttl=5, dry_run=True),
    ):
        with pytest.raises(ConfigurationError, match="dry run"):
            job.parts(2)


@pytest.mark.parametrize("n", [0, -1, True, 1.5, "2"])
def test_a_wrong_number_of_parts_is_refused(redis7: RedisServer, n: Any) -> None:
    hashes = hashes_on(redis7)
    fill(hashes, 1, 1)
    for job in (
        HashFieldExpiry(hashes),
        MigrateToNative(hashes),
        AdoptHashes(hashes, "h:*", ttl=5),
        IckReaper(Ick(redis7.client(), "k"), 60),
    ):
        with pytest.raises(ConfigurationError, match="number of parts"):
            job.parts(n)


def test_a_namespace_is_migrated_part_by_part_and_closed(redis8: RedisServer) -> None:
    hashes = hashes_on(redis8)
    fill(hashes, 50, 3, ex=3_600)
    mover: VolatileHashes = VolatileHashes(redis8.client(), NAMESPACE)
    job = MigrateToNative(mover)
    assert sum(drain_all(job, 4, limit=20)) == 150
    reader: VolatileHashes = VolatileHashes(redis8.client(), NAMESPACE)
    assert 3_500 < reader.httl("{u7}:hash", "f1")[0] <= 3_600
    assert reader.layout is not None
    assert reader.layout.is_native
    assert job.parts(4) == []


def test_the_icks_of_a_sharded_ick_are_reaped_in_parts(any_server: AnyServer) -> None:
    client = any_server.client()
    sharded: ShardedIck = ShardedIck(client, "dirty", ick_shards=5)
    sharded.add({f"m{i}": float(i) for i in range(60)})
    taken = sum(len(ick.reserve(100)) for ick in sharded.icks)
    assert taken == 60
    job = IckReaper(sharded, 0.001)
    parts = job.parts(3)
    assert sorted(number for part in parts for number in part) == [0, 1, 2, 3, 4]
    time.sleep(0.002)  # The reservations must have an age on the server's clock.
    assert sum(drain_all(job, 3, limit=4)) >= 60
    assert sum(len(ick.reserve(100)) for ick in sharded.icks) == 60
