"""Tracked sets: one contract over every server, in every form; the layout; drift."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.table_source import TableSource
from workstealing.errors import ConfigurationError, EvictionPolicyError, LayoutError
from workstealing.jobs import TrackQueued, UntrackDone
from workstealing.recruiting.slice import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncTrackedSet, TrackedSet
from workstealing.structures.tracked_set.sets import wilson

pytestmark = pytest.mark.contract

ODD = ["", "a}b", "{}x", "x{y", "\u00fc{\u2603}", b"\xff\x00{", "0", " "]


def test_what_is_tracked_is_tracked_until_it_is_untracked(any_server: AnyServer) -> None:
    tracked = TrackedSet(any_server.client(), "queued")
    assert tracked.is_tracked("17") is False
    assert tracked.count() == 0
    assert tracked.track(17) == 1
    assert tracked.track(["17", b"18", 19, 19]) == 2
    assert tracked.are_tracked([17, "18", b"19", "20", 17]) == [True, True, True, False, True]
    assert tracked.count() == 3
    assert tracked.untrack([17, 99]) == 1
    assert tracked.is_tracked(17) is False
    assert tracked.untrack("18") == 1
    assert (tracked.count(), tracked.track([]), tracked.are_tracked([])) == (1, 0, [])


def test_odd_ids_and_odd_names(any_server: AnyServer) -> None:
    client = any_server.client()
    for name in ODD[1:]:
        tracked = TrackedSet(client, name, sub_sets=8)
        assert tracked.track(ODD) == len(ODD)
        assert tracked.are_tracked(ODD) == [True] * len(ODD)
        assert tracked.untrack(ODD) == len(ODD)


def test_text_and_numbers_of_clients_that_decode(any_server: AnyServer) -> None:
    tracked = TrackedSet(any_server.client(decode_responses=True), "queued")
    assert tracked.track(range(10)) == 10
    assert tracked.are_tracked(["3", "x"]) == [True, False]
    assert tracked.is_tracked("3") is True
    assert tracked.count() == 10


def test_a_lost_state_does_not_bring_an_old_generation_back(any_server: AnyServer) -> None:
    client = any_server.client()
    tracked = TrackedSet(client, "lost", sub_sets=1)
    _, state = tracked.names.keys(0)
    seen = []
    for _ in range(3):
        tracked.track("17")
        tracked.track("17")
        seen.append(client.hget(state, "generation"))
        client.delete(state)
    # Who has read one before the loss must not take the next one for the same.
    assert len(set(seen)) == 3


def test_100_000_ids_in_one_call(redis7: RedisServer) -> None:
    tracked = TrackedSet(redis7.client(), "queued", sub_sets=4)
    assert tracked.track(range(100_000)) == 100_000
    assert tracked.count() == 100_000
    assert all(tracked.are_tracked(range(0, 100_000, 7)))
    assert tracked.untrack(range(100_000)) == 100_000


async def test_awaited(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        tracked = AsyncTrackedSet(client, "queued")
        assert isinstance(tracked, AsyncTrackedSet)
        assert await tracked.is_tracked(1) is False
        assert await tracked.track([1, 2, 3]) == 3
        assert await tracked.are_tracked([1, 9]) == [True, False]
        assert await tracked.untrack(1) == 1
        assert await tracked.count() == 2
        async with tracked.pipeline(transaction=False) as pipeline:
            pipeline.track([4, 5]).is_tracked(4).set("other", "x").count()
            assert await pipeline.execute() == [2, True, True, 4]


def test_queued_with_the_users_own_commands(any_server: AnyServer) -> None:
    tracked = TrackedSet(any_server.client(), "queued")
    with tracked.pipeline(transaction=False) as pipeline:
        pipeline.track([1, 2]).set("other", "x").are_tracked([1, 3]).untrack(2).count()
        assert pipeline.execute() == [2, True, [True, False], 1, 1]
        assert pipeline.execute() == []


def test_is_tracked_is_one_sismember(redis7: RedisServer) -> None:
    client = redis7.client()
    tracked = TrackedSet(client, "queued")
    tracked.track(1)
    client.config_resetstat()
    assert tracked.is_tracked(1)
    stats = client.info("commandstats")
    assert {name: each["calls"] for name, each in stats.items() if "config" not in name} == {
        "cmdstat_sismember": 1
    }


def test_sub_sets_lie_in_slots_all_over_the_cluster() -> None:
    names = TrackedSet(redis.Redis(), "queued").names
    slots = set()
    for each in range(names.sub_sets):
        ids, state = names.keys(each)
        assert key_slot(ids) == key_slot(state) == names.slot(each)
        slots.add(key_slot(ids))
    assert len(slots) == names.sub_sets
    assert max(slots) - min(slots) > 16_000


def test_the_layout_never_moves() -> None:
    names = TrackedSet(redis.Redis(), "queued").names
    assert names.sub_set_of(b"17") == 66
    assert names.keys(66) == GOLDEN


GOLDEN = (b"{8io}:ws:tracked:ids:66:queued", b"{8io}:ws:tracked:state:66:queued")


def test_another_number_of_sub_sets_is_refused(any_server: AnyServer) -> None:
    client = any_server.client()
    TrackedSet(client, "queued", sub_sets=8).track(range(100))
    other = TrackedSet(client, "queued", sub_sets=16)
    with pytest.raises(LayoutError, match="laid out over 8 sub-sets"):
        other.track(2)
    # Past the door, each sub-set's own mark refuses.
    other.is_open = True
    with pytest.raises(LayoutError, match="nothing was changed"):
        other.track(range(100))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c, names: c.set(names.layout, "x"),
        lambda c, names: c.hset(names.layout, mapping={"structure": "other"}),
        lambda c, names: c.hset(
            names.layout, mapping={"structure": "tracked_set", "version": 2, "sub_sets": 1}
        ),
        lambda c, names: c.set(names.keys(0)[0], "x"),
        lambda c, names: c.set(names.keys(0)[1], "x"),
        lambda c, names: c.hset(names.keys(0)[1], "mark", "9:1"),
        lambda c, names: c.hset(
            names.keys(0)[1], mapping={"mark": names.mark, "generation": "many"}
        ),
    ],
    ids=["layout-type", "structure", "version", "ids-type", "state-type", "mark", "generation"],
)
def test_foreign_data_is_refused_and_nothing_changes(any_server: AnyServer, spoil: Any) -> None:
    client = any_server.client()
    tracked = TrackedSet(client, "queued", sub_sets=1)
    spoil(client, tracked.names)
    keys = (tracked.names.layout, tracked.names.cursor, *tracked.names.keys(0))
    before = [client.dump(key) for key in keys]
    for change in (tracked.track, tracked.untrack):
        with pytest.raises(LayoutError):
            change("a")
    after = [client.dump(key) for key in keys]
    # Only a layout that was missing may have been written down.
    assert after[1:] == before[1:]
    assert before[0] is None or after[0] == before[0]


def test_what_a_newer_release_wrote_is_read_but_not_written(any_server: AnyServer) -> None:
    client = any_server.client()
    tracked = TrackedSet(client, "queued", sub_sets=1)
    ids, state = tracked.names.keys(0)
    newer = {
        "structure": "tracked_set",
        "version": 2,
        "sub_sets": 1,
        "readable_from": 1,
        "writable_from": 2,
    }
    client.hset(tracked.names.layout, mapping=newer)
    client.hset(state, "mark", "2:1")
    client.sadd(ids, "a")
    assert tracked.is_tracked("a") is True
    source = TableSource(["b"])
    calls: list[Callable[[TrackedSet], Any]] = [
        lambda tracked: tracked.track("b"),
        lambda tracked: tracked.untrack("a"),
        lambda tracked: TrackQueued(tracked).perform(Slice(5, 5.0)),
        lambda tracked: UntrackDone(tracked).perform(Slice(5, 5.0)),
    ]
    for call in calls:
        with pytest.raises(LayoutError, match="may read but not write: upgrade workstealing"):
            call(TrackedSet(client, "queued", source, sub_sets=1))
    client.hset(tracked.names.layout, "readable_from", 2)
    with pytest.raises(LayoutError, match="upgrade workstealing"):
        TrackedSet(client, "queued", sub_sets=1).is_tracked("a")
    assert set(client.smembers(ids)) == {b"a"}


def test_a_newer_layout_that_may_be_written_is_used(any_server: AnyServer) -> None:
    client = any_server.client()
    tracked = TrackedSet(client, "queued", sub_sets=1)
    tracked.track("a")
    client.hset(tracked.names.layout, "version", 2)
    client.hset(tracked.names.keys(0)[1], "mark", "2:1")
    tracked = TrackedSet(client, "queued", TableSource(["b"]), sub_sets=1)
    assert tracked.track("c") == 1
    assert tracked.untrack("c") == 1
    assert TrackQueued(tracked).perform(Slice(5, 5.0)) == 1
    assert UntrackDone(tracked).perform(Slice(5, 5.0)) == 1
    assert set(client.smembers(tracked.names.keys(0)[0])) == {b"b"}
    assert client.hget(tracked.names.keys(0)[1], "mark") == b"2:1"


def test_a_wrong_type_is_refused_to_readers(any_server: AnyServer) -> None:
    client = any_server.client()
    tracked = TrackedSet(client, "queued", sub_sets=1)
    client.set(tracked.names.keys(0)[0], "x")
    with pytest.raises(LayoutError, match="holds another type"):
        tracked.is_tracked("a")


def test_a_server_that_may_evict_a_sub_set_is_refused(start_redis: Any) -> None:
    server = start_redis(7, maxmemory="20mb", maxmemory_policy="allkeys-lru")
    with pytest.raises(EvictionPolicyError, match="allkeys-lru"):
        TrackedSet(server.client(), "queued").track(1)
    allowed = TrackedSet(server.client(), "queued", allow_eviction=["allkeys-lru"])
    assert allowed.track(1) == 1


def test_a_full_server_still_untracks(start_redis: Any) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    client = server.client()
    tracked = TrackedSet(client, "queued", sub_sets=4)
    tracked.track(range(100))
    client.config_set("maxmemory", "1mb")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        tracked.track("new")
    assert tracked.untrack(range(50)) == 50


@pytest.mark.parametrize("bad", [1.5, True, None])
def test_bad_ids_are_refused(bad: Any) -> None:
    tracked = TrackedSet(redis.Redis(), "queued")
    with pytest.raises(ConfigurationError, match="not usable"):
        tracked.is_tracked(bad)
    with pytest.raises(ConfigurationError, match="not usable"):
        tracked.track([1, bad])


@pytest.mark.parametrize("bad", [1.5, None, uuid.UUID(int=7)])
@pytest.mark.parametrize("call", ["track", "untrack", "are_tracked"])
def test_a_bad_id_alone_is_refused(call: str, bad: Any) -> None:
    tracked = TrackedSet(redis.Redis(), "queued")
    with pytest.raises(ConfigurationError, match="neither an id nor several"):
        getattr(tracked, call)(bad)


def test_bad_arguments_are_refused() -> None:
    client = redis.Redis()
    for bad in ({"sub_sets": 0}, {"sub_sets": True}, {"sub_sets": "8"}, {"allow_eviction": "x"}):
        with pytest.raises(ConfigurationError):
            TrackedSet(client, "queued", **bad)
    for key in ("", b"", None):
        with pytest.raises(ConfigurationError):
            TrackedSet(client, key)
    with pytest.raises(ConfigurationError, match="as a list"):
        TrackedSet(client, "queued").are_tracked("abc")
    with pytest.raises(ConfigurationError, match="no source"):
        TrackedSet(client, "queued").drift()


class Drawable(TableSource):
    def random_ids(self, n: int, seconds: float) -> list[str]:
        return random.Random(1).choices(sorted(self.work), k=n) if self.work else []


def test_drift_says_how_far_both_are_apart(any_server: AnyServer) -> None:
    source = Drawable(str(i) for i in range(1000))
    tracked = TrackedSet(any_server.client(), "queued", source)
    tracked.track(range(200, 1000))
    tracked.track(f"done{i}" for i in range(200))
    drift = tracked.drift(600, confidence=0.9999)
    assert drift.stale.low <= 0.2 <= drift.stale.high
    assert drift.missing.low <= 0.2 <= drift.missing.high
    assert drift.stale.high - drift.stale.low < 0.15
    assert (drift.stale.sampled, drift.missing.sampled) == (600, 600)


def test_drift_of_nothing_and_of_what_agrees(redis7: RedisServer) -> None:
    source = Drawable()
    tracked = TrackedSet(redis7.client(), "queued", source)
    nothing = tracked.drift(10)
    assert (nothing.stale.sampled, nothing.stale.low, nothing.stale.high) == (0, 0.0, 1.0)
    assert nothing.stale.share == 0.0
    source.work = {str(i) for i in range(50)}
    tracked.track(range(50))
    agreeing = tracked.drift(100)
    assert (agreeing.stale.share, agreeing.missing.share) == (0.0, 0.0)
    assert agreeing.stale.low == 0.0
    assert 0.0 < agreeing.stale.high < 0.05


async def test_drift_is_awaited(redis7: RedisServer) -> None:
    async with redis7.async_client() as client:
        tracked = AsyncTrackedSet(client, "queued", Drawable(["1", "2"]))
        await tracked.track(["1", "x"])
        drift = await tracked.drift(200, confidence=0.9999999)
        assert drift.stale.low < 0.5 < drift.stale.high
        assert drift.missing.low < 0.5 < drift.missing.high


def test_drift_refuses_bad_arguments(redis7: RedisServer) -> None:
    tracked = TrackedSet(redis7.client(), "queued", Drawable())
    for bad in ({"sample": 0}, {"confidence": 1.0}):
        with pytest.raises(ConfigurationError):
            tracked.drift(**bad)
    with pytest.raises(ConfigurationError, match="random_ids"):
        TrackedSet(redis7.client(), "queued", TableSource()).drift()


def test_the_interval_is_wilsons() -> None:
    # Known values: 8 of 10 at 95 %.
    share = wilson(8, 10, 0.95)
    assert (round(share.low, 4), round(share.high, 4)) == (0.4902, 0.9433)
    assert wilson(10, 10, 0.95).high == 1.0
