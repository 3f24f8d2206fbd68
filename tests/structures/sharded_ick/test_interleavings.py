"""A process that stalls between two commands, while others do everything that can be done.

What a stalled process does when it wakes must not bring back what was worked off, nor take away
what was added since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.errors import Aborted
from workstealing.store.operations import Steps, run
from workstealing.structures import ShardedIck
from workstealing.structures.sharded_ick.layout import shard_of
from workstealing.structures.sharded_ick.leasing import Holder, take_any
from workstealing.structures.sharded_ick.resizing import resize
from workstealing.structures.sharded_ick.sharded import _adding

MINUTE_MS = 60_000
MOST_STEPS = 100
pytestmark = pytest.mark.real

MEMBERS = {f"m{i}": float(i) for i in range(24)}


def sharded_on(server: RedisServer, ick_shards: int | None = None, ahead_ms: int = 0) -> ShardedIck:
    made: ShardedIck = ShardedIck(server.client(), "orders", ick_shards, clock_shift_ms=ahead_ms)
    return made


def one_step(client: Any, steps: Steps[Any], reply: Any) -> Any:
    """Send a generator its last reply; return that to what it yields. Raises StopIteration."""
    step = steps.send(reply)
    return [run(client, each) for each in step] if isinstance(step, list) else run(client, step)


def finish(server: RedisServer, ick_shards: int, ahead_ms: int = 0) -> None:
    sharded = sharded_on(server, ahead_ms=ahead_ms)
    for _ in range(50):
        if sharded.resize(ick_shards, limit=7).done:
            return
    raise AssertionError("a resize that does not end")


def drain(server: RedisServer, ahead_ms: int) -> dict[str, float]:
    sharded = sharded_on(server, ahead_ms=ahead_ms)
    found: dict[str, float] = {}
    for _ in range(20):
        if not sharded.stats()["total_size"]:
            return found
        with sharded.lease("drainer") as ick:
            batch = ick.reserve(100)
            for member, score in batch:
                assert member.decode() not in found
                found[member.decode()] = score
            ick.ack(*batch.members)
    raise AssertionError("what is there cannot be reserved")


def everywhere(sharded: ShardedIck, most: int) -> list[tuple[int, bytes]]:
    client: Any = sharded.client
    return [
        (shard, member)
        for shard in range(most)
        for key in (
            sharded.core.names(shard).pset,
            sharded.core.names(shard).cset,
            sharded.core.names(shard).moving,
        )
        for member in client.zrange(key, 0, -1)
    ]


def at_every_step(
    server: RedisServer,
    prepare: Callable[[], Steps[Any]],
    meanwhile: Callable[[], Any],
    check: Callable[[int, Any], None],
) -> int:
    """Stall the steps after each of their commands in turn; return how many commands there are."""
    for stop_after in range(MOST_STEPS):
        server.wipe()
        steps, client = prepare(), server.client()
        reply = None
        ended = False
        try:
            for _ in range(stop_after):
                reply = one_step(client, steps, reply)
        except StopIteration:
            ended = True
        result = meanwhile()
        try:
            while not ended:
                reply = one_step(client, steps, reply)
        except (StopIteration, Aborted):
            pass
        check(stop_after, result)
        if ended:
            return stop_after
    raise AssertionError(f"still at work after {MOST_STEPS} commands")


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_a_resizer_that_stalls(redis7: RedisServer, before: int, after: int) -> None:
    """Another one finishes, the queue is worked off, some is added again, then it wakes."""

    def prepare() -> Steps[Any]:
        sharded_on(redis7, before).add(MEMBERS)
        return resize(sharded_on(redis7).core, after, 1000)

    def meanwhile() -> None:
        finish(redis7, after, MINUTE_MS)
        assert drain(redis7, 2 * MINUTE_MS) == MEMBERS
        sharded_on(redis7).add({"m1": 100.0, "m2": 0.5})

    def check(stopped: int, _: Any) -> None:
        assert drain(redis7, 3 * MINUTE_MS) == {"m1": 100.0, "m2": 0.5}, stopped

    assert at_every_step(redis7, prepare, meanwhile, check) > 8


@pytest.mark.slow
def test_a_resizer_that_stalls_until_the_number_is_another(redis7: RedisServer) -> None:
    def prepare() -> Steps[Any]:
        sharded_on(redis7, 2).add(MEMBERS)
        return resize(sharded_on(redis7).core, 3, 1000)

    def meanwhile() -> None:
        finish(redis7, 3, MINUTE_MS)
        finish(redis7, 5, 2 * MINUTE_MS)

    def check(stopped: int, _: Any) -> None:
        sharded = sharded_on(redis7)
        number = sharded.open()
        # One that had not read the layout yet has begun to make three of the five.
        assert number == (5 if stopped else 3)
        finish(redis7, number, 3 * MINUTE_MS)
        found = everywhere(sharded, 6)
        assert sorted(member.decode() for _, member in found) == sorted(MEMBERS), stopped
        assert all(shard == shard_of(member, number) for shard, member in found)

    assert at_every_step(redis7, prepare, meanwhile, check) > 8


@pytest.mark.parametrize("resizes", [1, 2], ids=["resized", "resized twice"])
def test_a_producer_that_stalls(redis7: RedisServer, resizes: int) -> None:
    more = {**{f"n{i}": float(i) for i in range(20)}, "m3": -3.0}

    def prepare() -> Steps[Any]:
        sharded_on(redis7, 2).add(MEMBERS)
        producer = sharded_on(redis7)
        pairs: list[tuple[bytes, Any]] = [(m.encode(), score) for m, score in more.items()]
        return _adding(producer.core, pairs, None)

    def meanwhile() -> None:
        for number in (5, 3)[:resizes]:
            finish(redis7, number)

    def check(stopped: int, _: Any) -> None:
        sharded = sharded_on(redis7)
        number = sharded.open()
        found = everywhere(sharded, 6)
        assert sorted(m.decode() for _, m in found) == sorted({**MEMBERS, **more}), stopped
        assert all(shard == shard_of(member, number) for shard, member in found)
        assert drain(redis7, 0)["m3"] == -3.0

    assert at_every_step(redis7, prepare, meanwhile, check) == 3


def test_a_resizer_that_stalls_while_producers_lower_scores(redis7: RedisServer) -> None:
    """What is added between its copy and its removal is folded, not lost."""

    def prepare() -> Steps[Any]:
        sharded_on(redis7, 2).add(MEMBERS)
        return resize(sharded_on(redis7).core, 3, 1000)

    def meanwhile() -> None:
        sharded_on(redis7).add({member: score - 50 for member, score in MEMBERS.items()})

    def check(stopped: int, _: Any) -> None:
        finish(redis7, 3)
        lowered = {member: score - 50 for member, score in MEMBERS.items()}
        assert drain(redis7, 0) == lowered, stopped

    assert at_every_step(redis7, prepare, meanwhile, check) > 8


def test_one_who_takes_a_lease_and_stalls(redis7: RedisServer) -> None:
    """He chose by what he had read; what he gets is fenced by what holds then."""

    def prepare() -> Steps[Any]:
        sharded_on(redis7, 2).add(MEMBERS)
        return take_any(sharded_on(redis7).core, Holder("stalls", 60_000), lambda: 0.9)

    def meanwhile() -> bool:
        """Resize, unless he holds an ick shard; say whether it was done."""
        for _ in range(20):
            step = sharded_on(redis7).resize(4)
            if step.done or step.leased:
                return step.done
        raise AssertionError("a resize that does not end")

    def check(stopped: int, was_resized: bool) -> None:
        stats = sharded_on(redis7).stats()
        held = [shard["consumer"] for shard in stats["shards"]].count("stalls")
        assert held == 1
        assert was_resized == (stopped < 3)
        finish(redis7, 4, MINUTE_MS + 1)
        assert drain(redis7, 2 * MINUTE_MS + 2) == MEMBERS

    assert at_every_step(redis7, prepare, meanwhile, check) == 4
