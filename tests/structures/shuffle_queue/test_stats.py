"""What a ShuffleQueue says of itself is what is there, counted by hand, on every kind of server."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.patience import (
    GUARD_SECONDS,
    patient,  # noqa: F401 - an autouse fixture
)
from support.reapers import reaper_after
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.recruiting.slice import Slice
from workstealing.structures import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue import stats as module
from workstealing.structures.shuffle_queue.names import RETURNED
from workstealing.structures.shuffle_queue.stats import percentile

NOTHING = {"waiting": 0, "pending": 0, "returned": 0, "delayed": 0}


def counts(**some: int) -> dict[str, int]:
    return {**NOTHING, **some}


def ahead(queue: Any, ms: int) -> Any:
    """Return the same queue with a clock that is so far ahead."""
    return ShuffleQueue(queue.client, queue.keys.name, clock_shift_ms=ms)


def test_a_queue_that_is_not_there(any_server: AnyServer) -> None:
    stats: Any = ShuffleQueue(any_server.client(), "q").stats("workers")
    assert stats.pop("group") == "workers"
    assert stats.pop("exact") is True
    assert stats.pop("oldest_waiting_seconds") is None
    assert stats.pop("legacy") is None
    for name in ("pickup_delay_ms", "consumers", "tenants", "streams"):
        assert stats.pop(name) == {}
    assert set(stats.values()) == {0}


def test_a_group_that_has_not_read_yet_sees_everything_waiting(any_server: AnyServer) -> None:
    client = any_server.client()
    queue: Any = ShuffleQueue(client, "q", 16, 2)
    for i in range(30):
        queue.write(f"tenant {i % 3}", {"i": i})
    client.xadd("q", {"old": 1})
    stats = queue.stats("workers")
    assert stats["length"] == stats["waiting"] == queue.length() == 31
    assert stats["tenants"] == {
        None: counts(waiting=1),
        **{f"tenant {i}": counts(waiting=10) for i in range(3)},
    }
    assert stats["legacy"] == {"length": 1, **counts(waiting=1)}
    assert sum(stream["waiting"] for stream in stats["streams"].values()) == 30
    assert set(stats["streams"]) <= {n for i in range(3) for n in queue.streams_of(f"tenant {i}")}
    assert stats["exact"] is True
    # To ask is not to join: no writer has to serve a group that nobody reads.
    assert queue.groups() == []


def test_each_message_is_counted_as_what_it_is(any_server: AnyServer) -> None:
    client = any_server.client()
    queue: Any = ShuffleQueue(client, "q", 4, 1)
    for i in range(12):
        queue.write(f"t{i % 2}", {"i": i}, tracking_id=f"id {i}")
    client.xadd("q", {"old": 1, "ws:tenant": "t0"})
    read = [queue.read("workers", f"consumer {i % 2}") for i in range(9)]
    standing: dict[str, Counter[str]] = {"t0": Counter(), "t1": Counter()}
    for tenant, total in (("t0", 7), ("t1", 6)):
        taken = sum(message.tenant == tenant for message in read)
        standing[tenant].update(pending=taken, waiting=total - taken)

    def moved(message: Any, to: str | None) -> None:
        standing[message.tenant]["pending"] -= 1
        if to:
            standing[message.tenant][to] += 1

    assert queue.ack(*read[:2]) == 2
    assert queue.nack(read[2]) == 1
    assert queue.nack(*read[3:5], delay=100) == 2
    for message, to in zip(read[:5], (None, None, "returned", "delayed", "delayed"), strict=True):
        moved(message, to)
    stats = queue.stats("workers")
    assert stats["tenants"] == {tenant: counts(**each) for tenant, each in standing.items()}
    assert {name: stats[name] for name in NOTHING} == {
        name: sum(each[name] for each in standing.values()) for name in NOTHING
    }
    assert stats["length"] == queue.length() == 11
    assert stats["delivered"] == 9
    assert stats["redelivered"] == 0
    places = [*stats["streams"].values(), *([stats["legacy"]] if stats["legacy"] else [])]
    for name in ("length", *NOTHING):
        assert sum(each[name] for each in places) == stats[name]
    held = Counter(message.consumer for message in read[5:])
    assert {name: about["pending"] for name, about in stats["consumers"].items()} == held
    assert RETURNED not in stats["consumers"]
    assert all(0 <= about["seen_seconds"] < 60 for about in stats["consumers"].values())
    assert stats["known_consumers"] == 2
    assert stats["exact"] is True


def test_what_was_served_again_is_counted_apart(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 4, 1)
    queue.write("t", {"a": 1})
    for _ in range(3):
        queue.nack(queue.read("workers", "one"))
    stats = queue.stats("workers")
    assert (stats["delivered"], stats["redelivered"]) == (1, 2)
    assert sum(stats["pickup_delay_ms"].values()) == 1


def test_a_cancelled_and_an_overdue_message_do_not_wait(any_server: AnyServer) -> None:
    client = any_server.client()
    queue: Any = ShuffleQueue(client, "q", 4, 1)
    queue.write("t", {"a": 1}, tracking_id="gone")
    assert queue.cancel("gone")
    queue.write("t", {"a": 2}, deadline=1.0)
    assert queue.stats("workers")["waiting"] == 1
    assert queue.read("workers", "one") is None
    stats = queue.stats("workers")
    assert (stats["waiting"], stats["overdue"], stats["length"]) == (0, 1, 0)
    assert stats["cancelled"] == 1
    queue.cancel("gone")
    queue.cancel("never")
    assert queue.read("others", "one") is None
    assert queue.stats("others")["cancelled"] == 1


def test_nothing_is_known_of_a_group_that_has_never_read(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 4, 1)
    queue.write("t", {"a": 1})
    # Nobody has read the queue yet, so every group will find all of it.
    assert queue.stats("nobody")["waiting"] == 1
    assert queue.read("workers", "one") is not None
    said = r"'nobody' has never read this queue, so nothing is known of it: .* \('workers'\)"
    with pytest.raises(ConfigurationError, match=said):
        queue.stats("nobody")
    assert queue.stats("workers")["pending"] == 1


def test_each_group_has_figures_of_its_own(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 4, 1)
    assert queue.read("one", "c") is None
    assert queue.read("two", "c") is None
    for i in range(10):
        queue.write("t", {"i": i})
    queue.ack(*queue.read_many("one", "c", 4))
    for most in (0, 10_000):
        two = queue.stats("two", most)
        assert (two["waiting"], two["pending"], two["length"]) == (10, 0, 10)
    one = queue.stats("one")
    # They are kept for the other group, and that is not seen without looking.
    assert (one["waiting"], one["pending"], one["length"], one["exact"]) == (6, 0, 10, True)
    assert one["tenants"] == {"t": counts(waiting=6)}
    hasty = queue.stats("one", 0)
    assert (hasty["waiting"], hasty["exact"], hasty["tenants"]) == (10, False, {})


def test_without_other_groups_waiting_is_exact_even_without_a_look(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 16, 4)
    for i in range(50):
        queue.write(f"t{i % 7}", {"i": i})
    messages = [queue.read("workers", "c") for _ in range(20)]
    queue.ack(*messages[:8])
    queue.nack(*messages[8:12])
    stats = queue.stats("workers", 0)
    assert (stats["waiting"], stats["pending"], stats["returned"]) == (30, 8, 4)
    assert stats["exact"] is False


def test_what_is_for_one_group_alone_waits_for_no_other(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 4, 1)
    queue.write("t", {"a": 1})
    for group in ("one", "two"):
        message = queue.read(group, "c")
        if group == "two":
            queue.ack(message)
    reaper = reaper_after(1, queue, lease=0.001, random=lambda: 0.0)
    for _ in range(100):
        reaper.perform(Slice(25, 10.0))
        if queue.stats("one")["dead"]:
            break
    assert queue.revive("one", queue.dead("one")[0].id) == 1
    assert queue.stats("one")["tenants"] == {"t": counts(waiting=1)}
    assert queue.stats("one")["dead"] == 0
    two = queue.stats("two")
    assert (two["waiting"], two["length"], two["tenants"]) == (0, 1, {})


def test_the_oldest_waiting_is_told_by_the_servers_clock(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 4, 1)
    for tenant in ("a", "b", "a", "b"):
        queue.write(tenant, {"a": 1})
    stats = ahead(queue, 60_000).stats("workers")
    assert 60 <= stats["oldest_waiting_seconds"] < 60 + GUARD_SECONDS
    first = queue.read("workers", "c")
    taken = [queue.read("workers", "c") for _ in range(3)]
    assert ahead(queue, 60_000).stats("workers")["oldest_waiting_seconds"] is None
    # A returned one waits again, from when it was written.
    queue.nack(first)
    stats = ahead(queue, 600_000).stats("workers")
    assert 600 <= stats["oldest_waiting_seconds"] < 600 + GUARD_SECONDS
    queue.nack(taken[0], delay=1000)
    assert queue.ack(queue.read("workers", "c")) == 1
    stats = queue.stats("workers")
    assert stats["delayed"] == 1
    assert stats["oldest_waiting_seconds"] is None


def test_the_pickup_delays_stand_in_their_buckets(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 4, 1)
    # Clocks ahead: the message is read a minute, an hour and a day after it was written.
    for ms in (60_000, 3_600_000, 86_400_000):
        queue.write("t", {"a": 1})
        queue.ack(ahead(queue, ms).read("workers", "c"))
    histogram = queue.stats("workers")["pickup_delay_ms"]
    assert list(histogram.items()) == [(2**16, 1), (2**22, 1), (2**27, 1)]
    assert percentile(histogram, 0.5) == 2**22
    assert percentile(histogram, 0.99) == 2**27


@given(st.lists(st.integers(0, 2**40), min_size=1), st.floats(0.001, 1))
def test_a_percentile_is_less_than_twice_the_true_one(delays: list[int], share: float) -> None:
    histogram: Counter[int] = Counter()
    for delay in delays:
        histogram[1 << max(0, delay - 1).bit_length()] += 1
    found = percentile(histogram, share)
    # The least value that so large a share does not exceed.
    true = next(
        delay
        for delay in sorted(delays)
        if sum(other <= delay for other in delays) >= share * len(delays)
    )
    assert found is not None
    assert found >= true
    assert found <= max(1, 2 * true)


def test_a_percentile_of_nothing() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({8: 0}, 0.5) is None


@pytest.mark.parametrize("share", [0, -0.1, 1.1, True, "half", None])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no share: give more than 0 and at most 1"):
        percentile({1: 1}, share)


@pytest.mark.parametrize("most", [0, 1, 7, 63, 64, 65, 500, 999])
def test_no_more_messages_are_looked_at_than_was_said(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    queue: Any = ShuffleQueue(redis7.client(), "q", 100, 4)
    fill(queue, 1000)
    shares: list[int] = []
    real = ShuffleQueue._step

    def spy(self: Any, name: str, keys: Any, *args: Any) -> Any:
        if name == "stats_streams":
            own = [int(each) for each in args[4::4]]
            assert len(own) == len(keys) - 3 <= module.STREAMS_A_SCRIPT
            assert sum(own) <= module.ENTRIES_A_SCRIPT
            shares.extend(own)
        return real(self, name, keys, *args)

    monkeypatch.setattr(ShuffleQueue, "_step", spy)
    stats = queue.stats("workers", most)
    assert sum(each["waiting"] for each in stats["tenants"].values()) <= most
    # All that was asked for was not more either, but for the ends of streams.
    assert sum(shares) <= most + len(shares)
    assert stats["exact"] is False
    assert stats["waiting"] == stats["length"] == 1000


def fill(queue: Any, messages: int) -> None:
    pipeline = queue.client.pipeline()
    for i in range(messages):
        pipeline.xadd(queue.keys.stream(i % 100), {"i": i, "ws:tenant": f"t{i % 10}"})
    pipeline.hset(queue.keys.meta, mapping={"mark": "1", "span": 100})
    pipeline.execute()


def test_as_many_as_there_are_is_enough_to_see_all(redis7: RedisServer) -> None:
    queue: Any = ShuffleQueue(redis7.client(), "q", 100, 4)
    fill(queue, 2000)
    for i in range(700):
        queue.client.xadd(queue.keys.stream(5), {"i": i, "ws:tenant": "long"})
    assert queue.stats("workers", 2699)["exact"] is False
    stats = queue.stats("workers", 2700)
    assert stats["exact"] is True
    assert stats["tenants"] == {
        "long": counts(waiting=700),
        **{f"t{i}": counts(waiting=200) for i in range(10)},
    }


def test_a_thousand_streams_are_asked_in_a_few_scripts(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: Any = ShuffleQueue(redis7.client(), "q", 1024, 4)
    for i in range(500):
        queue.write(f"t{i}", {"i": i})
    names: list[str] = []
    real = ShuffleQueue._step

    def spy(self: Any, name: str, keys: Any, *args: Any) -> Any:
        names.append(name)
        return real(self, name, keys, *args)

    monkeypatch.setattr(ShuffleQueue, "_step", spy)
    assert queue.stats("workers")["exact"] is True
    assert len(names) < 45


def test_streams_beyond_the_own_number_count(any_server: AnyServer) -> None:
    client = any_server.client()
    wide: Any = ShuffleQueue(client, "q", 300, 4)
    for i in range(40):
        wide.write(f"t{i}", {"i": i})
    narrow: Any = ShuffleQueue(client, "q", 2, 1)
    narrow.write("t", {"i": 40})
    stats = narrow.stats("workers")
    assert stats["waiting"] == stats["length"] == narrow.length() == 41
    assert max(stats["streams"]) > 2


def test_random_lives_are_counted_as_the_server_has_them(any_server: AnyServer) -> None:
    """After whatever has happened, the figures are those of a look at every single entry."""
    rng = random.Random(6)
    client = any_server.client()
    queue: Any = ShuffleQueue(client, "q", 8, 2)
    groups = ("one", "two")
    held: list[Any] = []
    written = 0
    for _ in range(250):
        act = rng.choice(["write"] * 4 + ["read"] * 3 + ["ack", "nack", "delay", "cancel"])
        if act == "write":
            queue.write(f"t{rng.randrange(5)}", {"a": 1}, tracking_id=f"id {written}")
            written += 1
        elif act == "read":
            message = queue.read(rng.choice(groups), f"c{rng.randrange(3)}")
            held += [message] if message else []
        elif act == "cancel":
            queue.cancel(f"id {rng.randrange(written + 1)}")
        elif held:
            message = held.pop(rng.randrange(len(held)))
            if act == "ack":
                queue.ack(message)
            else:
                queue.nack(message, delay=100 if act == "delay" else 0)
    for group in groups:
        stats = queue.stats(group)
        assert stats["tenants"] == by_hand(queue, group)
        assert stats["exact"] is True
        assert stats["length"] == queue.length()
        seen = Counter[str]()
        for each in stats["tenants"].values():
            seen.update(each)
        assert stats["waiting"] == seen["waiting"]
        # Cancelled ones that somebody has in hand are pending still, and of no tenant.
        assert stats["pending"] >= seen["pending"]


def by_hand(queue: Any, group: str) -> dict[str | None, dict[str, int]]:
    client = queue.client
    names = queue.keys.group(group)
    found: dict[str | None, Counter[str]] = {}
    for number in range(8):
        stream = queue.keys.stream(number)
        if not client.exists(stream):
            continue
        (about,) = [g for g in client.xinfo_groups(stream) if g["name"] == group.encode()] or [None]
        last = as_pair(about["last-delivered-id"]) if about else (0, 0)
        pending = {
            entry["message_id"]: entry["consumer"]
            for entry in (client.xpending_range(stream, group, "-", "+", 1000) if about else [])
        }
        for entry_id, fields in client.xrange(stream):
            if as_pair(entry_id) > last:
                standing = "waiting"
            elif entry_id not in pending:
                continue
            elif pending[entry_id] != RETURNED.encode():
                standing = "pending"
            else:
                delayed = client.zscore(names.delayed, b"%d:%s" % (number, entry_id)) is not None
                standing = "delayed" if delayed else "returned"
            found.setdefault(fields[b"ws:tenant"].decode(), Counter())[standing] += 1
    return {tenant: counts(**each) for tenant, each in found.items()}


def as_pair(entry_id: bytes) -> tuple[int, int]:
    ms, sequence = entry_id.split(b"-")
    return int(ms), int(sequence)


async def test_the_asyncio_form_says_the_same(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 8, 2)
    for i in range(9):
        queue.write(f"t{i % 2}", {"i": i})
    queue.nack(queue.read("workers", "c"))
    async with any_server.async_client() as client:
        awaited: Any = AsyncShuffleQueue(client, "q", 8, 2)
        said = await awaited.stats("workers")
    expected = queue.stats("workers")
    for stats in (said, expected):
        assert stats.pop("oldest_waiting_seconds") >= 0
        assert [about.pop("seen_seconds") >= 0 for about in stats["consumers"].values()] == [True]
    assert said == expected


async def test_a_client_that_decodes_is_told_the_same(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(decode_responses=True), "q", 8, 2)
    queue.client.xadd("q", {"old": 1})
    for i in range(9):
        queue.write(f"t{i % 2}", {"i": i})
    queue.nack(queue.read("workers", "c"))
    stats = queue.stats("workers")
    assert stats["tenants"].keys() == {None, "t0", "t1"}
    assert stats["returned"] == 1


@pytest.mark.parametrize("most", [-1, 1.5, True, None, "all"])
def test_a_number_of_messages_that_is_none_is_refused(redis7: RedisServer, most: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"most_messages=.* is no number of messages"):
        ShuffleQueue(redis7.client(), "q").stats("workers", most)


@pytest.mark.parametrize("group", ["", None, 7])
def test_a_group_without_a_name_is_refused(redis7: RedisServer, group: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the group .* is not usable"):
        ShuffleQueue(redis7.client(), "q").stats(group)


def test_a_newer_layout_is_refused(any_server: AnyServer) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q")
    queue.write("t", {"a": 1})
    queue.client.hset(queue.keys.meta, "mark", "2")
    with pytest.raises(LayoutError, match="says 2 where 1 was expected"):
        queue.stats("workers")


@pytest.mark.parametrize("part", ["state", "returned", "delayed", "consumers", "dead", "stream"])
def test_a_key_of_another_kind_is_refused(any_server: AnyServer, part: str) -> None:
    queue: Any = ShuffleQueue(any_server.client(), "q", 4, 4)
    for i in range(4):
        queue.write("t", {"i": i})
    names = queue.keys.group("workers")
    key = queue.keys.stream(2) if part == "stream" else getattr(names, part)
    queue.client.delete(key)
    queue.client.set(key, "foreign")
    with pytest.raises(LayoutError, match="does not hold"):
        queue.stats("workers")
    assert queue.client.get(key) == b"foreign"
