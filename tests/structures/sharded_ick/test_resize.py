"""Changing the number of ick shards: no member is lost or doubled, whoever works meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from support.recording import Recording
from support.servers import AnyServer, RedisServer
from support.steps import send
from workstealing.errors import ConfigurationError
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.store.scripts import load
from workstealing.structures import AsyncShardedIck, NoLease, ShardedIck
from workstealing.structures.sharded_ick.layout import shard_of
from workstealing.structures.sharded_ick.resizing import resize

MEMBERS = {f"member {i}": float(i) for i in range(300)}


def sharded_on(server: AnyServer, ick_shards: int | None = None, ahead_ms: int = 0) -> ShardedIck:
    made: ShardedIck = ShardedIck(server.client(), "orders", ick_shards, clock_shift_ms=ahead_ms)
    return made


def filled(server: AnyServer, ick_shards: int) -> ShardedIck:
    sharded = sharded_on(server, ick_shards)
    assert sharded.add(MEMBERS) == (300, 0)
    return sharded


def finish(sharded: ShardedIck, ick_shards: int, limit: int = 10_000) -> int:
    """Resize until it is done; return how many calls it took."""
    for calls in range(1, 1000):
        if sharded.resize(ick_shards, limit=limit).done:
            return calls
    raise AssertionError("a resize that does not end")


def placed(sharded: ShardedIck) -> dict[str, float]:
    """Return all members, each from the one set where it stands: that of its own ick shard."""
    client: Any = sharded.client
    found: dict[str, float] = {}
    layout = sharded.core.layout
    assert layout is not None
    for shard in range(10):
        names = sharded.core.names(shard)
        for key in (names.pset, names.cset):
            for member, score in client.zrange(key, 0, -1, withscores=True):
                assert shard_of(member, layout.ick_shards) == shard
                assert member.decode() not in found
                found[member.decode()] = score
        for key in (names.moving, names.moving_dead, names.moving_attempts):
            assert not client.exists(key)
    return found


@pytest.mark.parametrize(("before", "after"), [(1, 5), (4, 8), (5, 2), (3, 4), (7, 1)])
def test_all_members_are_where_they_belong(any_server: AnyServer, before: int, after: int) -> None:
    sharded = filled(any_server, before)
    heard, _ = ANNOUNCEMENTS.since(0)
    finish(sharded, after)
    _, told = ANNOUNCEMENTS.since(heard)
    assert {(each.kind, each.subject) for each in told} == {
        ("layout", f"the sharded ick {sharded.name!r}")
    }
    assert [each.text for each in told] == [
        f"a change from {before} to {after} ick shards began",
        f"all members are in {after} ick shards",
    ]
    assert placed(sharded) == MEMBERS
    stats = sharded.stats()
    assert (stats["ick_shards"], stats["total_size"], stats["moving_size"]) == (after, 300, 0)
    assert sharded_on(any_server, after).open() == after
    assert sharded.resize(after) == (True, 0, 0)


def test_steps_are_bounded_and_others_go_on_with_them(any_server: AnyServer) -> None:
    filled(any_server, 3)
    moved = calls = 0
    while True:
        # Each time another process.
        step = sharded_on(any_server).resize(5, limit=20)
        calls += 1
        assert step.moved <= 20
        moved += step.moved
        stats = sharded_on(any_server).stats()
        assert stats["total_size"] == 300
        if step.done:
            break
        assert stats["moving_size"] > 0
    assert calls >= 300 // 20
    assert 300 <= moved <= 600
    sharded = sharded_on(any_server)
    sharded.open()
    assert placed(sharded) == MEMBERS


def test_a_producer_that_knows_the_old_number(any_server: AnyServer) -> None:
    """What it writes is refused without effect, and goes where it belongs in the same call."""
    old = filled(any_server, 3)
    queued = old.pipeline()
    queued.add({"member 8": -8, "queued": 8}).stats()
    resizer = sharded_on(any_server)
    step = resizer.resize(5, limit=100)
    assert not step.done
    new = {f"new {i}": float(i) for i in range(100)}
    assert old.add({**new, "member 7": -7.0, "member 6": 600.0}).new >= 100
    assert old.open() == 5
    added, stats = queued.execute()
    assert added.new >= 1
    assert stats["ick_shards"] == 5
    finish(resizer, 5)
    expected = {**MEMBERS, **new, "member 7": -7.0, "member 8": -8.0, "queued": 8.0}
    assert placed(resizer) == expected
    # And after the end, one that has seen nothing of all that.
    sleeper = sharded_on(any_server)
    sleeper.open()
    finish(resizer, 2)
    assert sleeper.add({"last": 1}) == (1, 0)
    assert placed(sleeper) == {**expected, "last": 1.0}


async def test_an_asyncio_pipeline_that_knows_the_old_number(any_server: AnyServer) -> None:
    client = any_server.async_client()
    old: Any = AsyncShardedIck(client, "orders", 3)
    await old.open()
    finish(sharded_on(any_server), 5)
    async with old.pipeline() as pipe:
        pipe.add(MEMBERS).set("mine", 1)
        assert await pipe.execute() == [(300, 0), True]
    sharded = sharded_on(any_server)
    sharded.open()
    assert placed(sharded) == MEMBERS
    await client.aclose()


def test_a_consumer_at_work(any_server: AnyServer) -> None:
    """It may commit what it has, gets nothing new, and its ick shard waits for it."""
    sharded = filled(any_server, 2)
    worker = sharded_on(any_server)
    with worker.lease("worker", lease=600) as ick:
        batch = ick.reserve(20)
        step = sharded.resize(4)
        assert (step.done, step.leased) == (False, 1)
        with pytest.raises(NoLease, match=r"being moved to 4 ick shards.*resize\(4\)"):
            sharded.lease("other").__enter__()
        with pytest.raises(NoLease, match="being moved"):
            worker.lease("other").__enter__()
        # New members of an ick shard that is still to be moved, by one who knows and one who does
        # not: neither is given to this consumer.
        sharded.add({"early": -100})
        worker.add({"early too": -101})
        following = ick.exchange(20, *batch.members[:15])
        assert (following, following.acked) == ([], 15)
        assert ick.reserve(5) == []
        late = ick.ack(*batch.members[15:18])
        assert (late, late.ignored) == (3, 0)
        assert sharded.resize(4).leased == 1
    finish(sharded, 4)
    gone = [member.decode() for member in batch.members[:18]]
    expected = {**MEMBERS, "early": -100.0, "early too": -101.0}
    assert placed(sharded) == {m: score for m, score in expected.items() if m not in gone}
    with worker.lease("worker") as ick:
        assert ick.reserve(1)


def test_what_a_dead_consumer_had_reserved_is_moved(any_server: AnyServer) -> None:
    sharded = filled(any_server, 2)
    lease = sharded.lease("dead", lease=60)
    dead = lease.__enter__()
    batch = dead.reserve(50)
    sharded.add({batch.members[0]: -5, batch.members[1]: 500})
    assert sharded.resize(3).leased == 1
    # A minute later its lease has run out.
    finish(sharded_on(any_server, ahead_ms=61_000), 3)
    late = dead.ack(*batch.members)
    assert (late, late.ignored) == (0, 50)
    sharded.open()
    later = sharded_on(any_server)
    later.open()
    assert placed(later) == {**MEMBERS, batch.members[0].decode(): -5.0}


def test_a_late_commit_under_a_lease_that_still_runs(any_server: AnyServer) -> None:
    """Somebody's ick shard was moved as soon as its lease was given back."""
    sharded = filled(any_server, 1)
    with sharded.lease("w") as ick:
        batch = ick.reserve(10)
    finish(sharded, 2)
    late = ick.ack(*batch.members)
    assert (late, late.ignored) == (0, 10)
    assert placed(sharded) == MEMBERS


def test_attempts_and_the_dead_travel_along(any_server: AnyServer) -> None:
    sharded = filled(any_server, 2)
    client: Any = sharded.client
    attempts = {f"member {i}": f"{i % 4 + 1} 1700000000{i:03}" for i in range(0, 300, 3)}
    graves = {f"dead {i}": f'{{"score": "{i}", "n": "\u00fc"}}' for i in range(120)}
    for member, count in attempts.items():
        client.hset(sharded.core.names(shard_of(member.encode(), 2)).attempts, member, count)
    for member, history in graves.items():
        client.hset(sharded.core.names(shard_of(member.encode(), 2)).dead, member, history)
    client.hset(sharded.core.names(0).attempts, "long gone", 3)
    resizer = sharded_on(any_server)
    resizer.resize(5, limit=350)
    assert resizer.stats()["dead_size"] == 120
    finish(resizer, 5, limit=50)
    assert placed(resizer) == MEMBERS
    found_attempts: dict[str, str] = {}
    found_graves: dict[str, str] = {}
    for shard in range(5):
        names = resizer.core.names(shard)
        for key, found in ((names.attempts, found_attempts), (names.dead, found_graves)):
            for member, value in client.hgetall(key).items():
                assert shard_of(member, 5) == shard
                found[member.decode()] = value.decode()
    assert found_attempts == attempts
    assert found_graves == graves
    assert resizer.stats()["dead_size"] == 120


def test_another_number_meanwhile_is_refused(any_server: AnyServer) -> None:
    sharded = filled(any_server, 3)
    sharded.resize(5, limit=10)
    with pytest.raises(ConfigurationError, match=r"being resized to 5.*resize\(5\)"):
        sharded_on(any_server).resize(4)
    # Processes of both configurations start meanwhile.
    assert sharded_on(any_server, 3).add("a") == (1, 0)
    assert sharded_on(any_server, 5).add("b") == (1, 0)
    assert len(sharded_on(any_server, 5).icks) == 5
    shrinking = sharded_on(any_server)
    finish(shrinking, 5)
    shrinking.resize(2, limit=10)
    assert len(shrinking.icks) == 5
    finish(shrinking, 2)
    assert len(shrinking.icks) == 2


def test_two_resizers_share_the_work(any_server: AnyServer) -> None:
    filled(any_server, 4)
    one, two = sharded_on(any_server), sharded_on(any_server)
    while not (one.resize(7, limit=15).done | two.resize(7, limit=25).done):
        pass
    assert one.resize(7).done
    assert two.resize(7).done
    assert placed(one) == placed(two) == MEMBERS


def test_back_and_forth(any_server: AnyServer) -> None:
    sharded = filled(any_server, 2)
    stale = sharded_on(any_server)
    stale.open()
    for number in (6, 2, 9, 3):
        finish(sharded, number, limit=130)
    assert stale.add({"x": 1}) == (1, 0)
    assert placed(sharded) == {**MEMBERS, "x": 1.0}


def test_members_of_any_bytes_whatever_the_client_decodes(redis7: RedisServer) -> None:
    raw = sharded_on(redis7, 2)
    odd = {bytes([i, 255 - i]): float(i) for i in range(256)}
    raw.add(odd)
    decoding: ShardedIck = ShardedIck(
        redis7.client(decode_responses=True, encoding="latin-1"), "orders"
    )
    finish(decoding, 5)
    found: dict[bytes, float] = {}
    for shard in range(5):
        for member, score in redis7.client().zrange(
            raw.core.names(shard).pset, 0, -1, withscores=True
        ):
            assert shard_of(member, 5) == shard
            found[member] = score
    assert found == odd


def test_delete_meanwhile(any_server: AnyServer) -> None:
    sharded = filled(any_server, 4)
    stale = sharded_on(any_server)
    stale.open()
    sharded.resize(2, limit=10)
    assert stale.delete() > 0
    assert sharded.stats()["total_size"] == 0
    finish(sharded, 2)
    assert sharded.add(MEMBERS) == (300, 0)
    assert placed(sharded) == MEMBERS


@pytest.mark.parametrize(("number", "limit"), [(0, 1), (True, 1), (3, 0), (3, True), (3, 1.5)])
def test_bad_arguments(redis7: RedisServer, number: Any, limit: Any) -> None:
    filled(redis7, 2)
    with pytest.raises(ConfigurationError):
        sharded_on(redis7).resize(number, limit=limit)


def test_nothing_to_resize(redis7: RedisServer) -> None:
    with pytest.raises(ConfigurationError, match="no ShardedIck 'orders' yet"):
        sharded_on(redis7, 4).resize(5)
    assert redis7.client().dbsize() == 0


def test_more_was_reserved_than_one_script_sets_aside(redis7: RedisServer) -> None:
    sharded = sharded_on(redis7, 1)
    members = {f"m{i:04}": float(i) for i in range(3_500)}
    sharded.add(members)
    with sharded.lease("worker") as ick:
        batch = ick.reserve(3_200)
        sharded.add({"m0000": -1.0})
    # Killed after the first call of the script: whoever comes next goes on.
    seen = Recording(redis7.client())
    steps = resize(ShardedIck(seen, "orders", clock_shift_ms=0).core, 3, 10_000)
    step: Any = next(steps)
    while isinstance(step, list) or step.script.name != "sharded_ick/begin":
        step = steps.send(send(seen, step))
    step = steps.send(send(seen, step))
    assert step.script.name == "sharded_ick/begin"
    steps.close()
    finish(sharded_on(redis7, None, ahead_ms=10_000), 3)
    sharded.add({})
    assert placed(sharded) == members | {"m0000": -1.0}
    assert len(batch) == 3_200


@pytest.mark.parametrize("command", ["hmget", "zcard", "get", "getrange"])
def test_a_refused_command_is_no_foreign_key(redis7: RedisServer, command: str) -> None:
    """A user without the right to a command is told so, and not to look for a foreign key."""
    sharded = filled(redis7, 2)
    sharded.resize(3, limit=1)
    names = sharded.core.names(0)
    page = load("sharded_ick/page")
    resting = (names.moving_waiting, names.moving_terms)
    keys = (names.moving, names.moving_dead, names.moving_attempts, *resting)
    redis7.client().zadd(names.moving, {"left": 1})
    rights = {"keys": ["*"], "commands": ["+@all", f"-{command}"]}
    redis7.client().acl_setuser("mover", enabled=True, passwords=["+secret"], **rights)
    try:
        user = redis7.client(username="mover", password="secret")
        mover = ShardedIck(user, "orders", clock_shift_ms=60_000)
        calls: dict[str, Any] = {
            "hmget": lambda: user.eval(page.body, len(keys), *keys, 5),
            "zcard": lambda: mover.add("a"),
            "get": lambda: mover.add("a"),
            "getrange": lambda: mover.resize(3),
        }
        with pytest.raises(redis.ResponseError, match="can't run this command"):
            calls[command]()
    finally:
        redis7.client().acl_deluser("mover")
