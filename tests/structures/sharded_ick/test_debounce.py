"""A ShardedIck's members that wait for their rest: in its ick shards, and while it is resized."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.resting import let_pass, waits
from support.servers import AnyServer, RedisServer
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import ShardedIck
from workstealing.structures.sharded_ick.layout import shard_of

REST = {"quiet": 600, "at_most": 1800}
MEMBERS = {f"m{i}": float(i) for i in range(40)}


def sharded_on(client: Any, ick_shards: int | None = None, ahead_ms: int = 0) -> ShardedIck:
    made: ShardedIck = ShardedIck(client, "pages", ick_shards, clock_shift_ms=ahead_ms)
    return made


def waiting(sharded: ShardedIck) -> dict[str, float]:
    """Return what waits, each member in the one ick shard where it belongs, with its score."""
    layout = sharded.core.layout
    assert layout is not None
    found: dict[str, float] = {}
    for shard in range(8):
        names = sharded.core.names(shard)
        for member, score in waits(sharded.client, names).items():
            assert shard_of(member, layout.ick_shards) == shard
            assert member.decode() not in found
            found[member.decode()] = score
        assert not sharded.client.exists(names.moving_waiting)
        assert not sharded.client.exists(names.moving_terms)
    return found


def age(sharded: ShardedIck, seconds: float) -> None:
    for ick in sharded.icks:
        let_pass(ick.client, ick.names, seconds)


def served(sharded: ShardedIck) -> list[str]:
    found = []
    for _ in range(12):
        with sharded.lease("reader") as ick:
            batch = ick.reserve(100)
            found += [member.decode() for member in batch.members]
            ick.ack(*batch.members)
    return sorted(found)


@pytest.mark.contract
def test_they_wait_and_are_served_once(any_server: AnyServer) -> None:
    sharded: Any = sharded_on(any_server.client(), 3)
    assert sharded.add(MEMBERS, **REST) == (40, 0)
    sharded.add({"m0": 50.0})
    stats = sharded.stats()
    assert (stats["waiting_size"], stats["total_size"]) == (40, 1)
    assert served(sharded) == ["m0"]
    age(sharded, 601)
    assert served(sharded) == sorted(set(MEMBERS) - {"m0"})
    assert sharded.stats()["waiting_size"] == 0
    with sharded.pipeline() as pipe:
        assert pipe.add({"a": 1}, **REST).execute() == [(1, 0)]
    assert sharded.delete() > 0
    assert waiting(sharded) == {}


@pytest.mark.contract
def test_ripe_members_make_an_ick_shard_needy(any_server: AnyServer) -> None:
    sharded: Any = sharded_on(any_server.client(), 2)
    first = next(m for m in MEMBERS if shard_of(m.encode(), 2) == 0)
    other = next(m for m in MEMBERS if shard_of(m.encode(), 2) == 1)
    sharded._random = lambda: 0.99
    sharded.add({first: 5.0})
    sharded.add({other: 1.0}, **REST)
    with sharded.lease("x") as ick:
        assert ick.ick_shard == 0
    age(sharded, 601)
    with sharded.lease("x") as ick:
        assert ick.ick_shard == 1


@pytest.mark.contract
@pytest.mark.parametrize(("before", "after"), [(1, 5), (5, 2)])
def test_a_resize_takes_them_along(any_server: AnyServer, before: int, after: int) -> None:
    sharded: Any = sharded_on(any_server.client(), before)
    old: Any = sharded_on(any_server.client())
    sharded.add(MEMBERS, **REST)
    old.add({"m0": 1.0}, **REST)
    while not sharded.resize(after, limit=7).done:
        # A producer that knows the old number puts it off, where it belongs now.
        old.add({"m1": -1.0}, **REST)
    sharded.open()
    assert waiting(sharded) == {**MEMBERS, "m1": -1.0}
    age(sharded, 601)
    for number in range(max(before, after)):
        IckReaper(sharded, 600, limit=200).reap(number, Slice(200, 60.0))
    assert sharded.stats()["waiting_size"] == 0
    assert served(sharded) == sorted(MEMBERS)


@pytest.mark.slow
@pytest.mark.real
def test_a_resize_that_dies_at_each_command(redis7: RedisServer) -> None:
    direct = redis7.client()
    died = 0
    with FaultyServer(redis7.port) as door:

        def work() -> None:
            sharded = sharded_on(redis.Redis(port=door.port, protocol=2))
            while not sharded.resize(3, limit=9).done:
                pass

        def prepare() -> None:
            direct.flushall()
            sharded: Any = sharded_on(direct, 2)
            sharded.add(MEMBERS, **REST)
            sharded.add({"ready": 1.0})

        for where in every_death([door], work, prepare):
            died += 1
            sharded: Any = sharded_on(direct, None, 60_000)
            sharded.add({"m3": 9.0, "late": 2.0}, **REST)
            while not sharded.resize(3).done:
                pass
            assert waiting(sharded) == {**MEMBERS, "late": 2.0}, where
            assert sharded.stats()["total_size"] == 1, where
    assert died > 20
