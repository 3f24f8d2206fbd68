"""Messages past their deadline go, with their tracking ids, though nobody reads."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from support.patience import (
    ROUNDING_SECONDS,
    patient,  # noqa: F401 - an autouse fixture
)
from support.reapers import reaper_after
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.store.connection import Budget
from workstealing.structures.shuffle_queue import (
    AsyncShuffleQueue,
    OverdueMessage,
    ShuffleQueue,
)

PAST, AHEAD = 1000.0, time.time() + 100_000


@pytest.fixture
def queue(any_server: AnyServer) -> ShuffleQueue:
    return ShuffleQueue(any_server.client(), "q", streams=8, streams_per_tenant=2)


def reaper(
    queue: Any, limit: int = 25, *, max_attempts: int = 5, **options: Any
) -> ShuffleQueueReaper:
    return reaper_after(max_attempts, queue, limit, random=random.Random(7).random, **options)


def reap(queue: Any, slices: int = 40, limit: int = 25) -> list[int]:
    """Perform so many slices; return what each has handled."""
    job = reaper(queue, limit)
    return [job.perform(Slice(limit, 10.0)) for _ in range(slices)]


def keys_left(queue: ShuffleQueue) -> tuple[int, int, int]:
    """Return how many messages, tracking ids and deadlines there are."""
    client, keys = queue.client, queue.keys
    return queue.length(), client.hlen(keys.tracking), client.zcard(keys.deadlines)


@pytest.mark.parametrize("groups", [(), ("g",), ("g", "h")])
def test_a_queue_that_nobody_reads_keeps_no_overdue_message(
    queue: ShuffleQueue, groups: tuple[str, ...]
) -> None:
    """They stayed, and their tracking ids, until somebody read."""
    for group in groups:
        assert queue.read(group, "c") is None
    for n in range(40):
        queue.write(f"t{n % 5}", {"n": n}, deadline=PAST, tracking_id=f"late {n}")
    kept = queue.write("t", {"n": 1}, deadline=AHEAD, tracking_id="in time")
    plain = queue.write("t", {"n": 2})
    assert keys_left(queue) == (42, 41, 41)
    assert queue.overdue().total == 40
    assert reaper(queue).backlog().count == 40
    handled = reap(queue)
    assert (sum(handled), max(handled)) == (40, 25)
    assert keys_left(queue) == (2, 1, 1)
    assert (queue.overdue(), reaper(queue).backlog().count) == ([], 0)
    for group in groups:
        assert queue.stats(group)["overdue"] == 40
        assert {m.id for m in queue.read_many(group, "c", 10)} == {kept, plain}
    if not groups:
        assert {m.id for m in queue.read_many("later", "c", 10)} == {kept, plain}
    assert queue.cancel("in time")


def test_what_a_consumer_has_in_hand_is_left_to_it(queue: ShuffleQueue) -> None:
    queue.write("t", {"n": 1}, deadline=AHEAD, tracking_id="held")
    message = queue.read("g", "c")
    assert message is not None
    # It ends while it is worked on.
    queue.client.zadd(queue.keys.deadlines, {queue.client.zrange(queue.keys.deadlines, 0, 0)[0]: 1})
    assert [each.tracking_id for each in queue.overdue()] == ["held"]
    assert sum(reap(queue)) == 0
    assert queue.ack(message) == 1
    assert keys_left(queue) == (0, 0, 0)


def test_one_that_was_given_back_is_dropped(queue: ShuffleQueue) -> None:
    queue.write("t", {"n": 1}, deadline=AHEAD, tracking_id="back")
    queue.write("t", {"n": 2}, deadline=AHEAD, tracking_id="delayed")
    first, second = queue.read_many("g", "c", 2)
    assert (queue.nack(first), queue.nack(second, delay=1000)) == (1, 1)
    for member in queue.client.zrange(queue.keys.deadlines, 0, -1):
        queue.client.zadd(queue.keys.deadlines, {member: 1})
    assert sum(reap(queue)) == 2
    assert keys_left(queue) == (0, 0, 0)
    names = queue.keys.group("g")
    for key in (names.returned, names.delayed):
        assert queue.client.exists(key) == 0
    stats = queue.stats("g", most_messages=0)
    assert (stats["overdue"], stats["pending"], stats["returned"]) == (2, 0, 0)
    assert queue.read("g", "c") is None


def test_what_one_group_has_done_is_counted_for_the_other_alone(queue: ShuffleQueue) -> None:
    assert queue.read("g", "c") is queue.read("h", "c") is None
    queue.write("t", {"n": 1}, deadline=AHEAD)
    message = queue.read("g", "c")
    assert message is not None
    assert queue.ack(message) == 1
    (member,) = queue.client.zrange(queue.keys.deadlines, 0, -1)
    queue.client.zadd(queue.keys.deadlines, {member: 1})
    assert sum(reap(queue)) == 1
    assert (queue.stats("g")["overdue"], queue.stats("h")["overdue"]) == (0, 1)
    assert keys_left(queue) == (0, 0, 0)


@pytest.mark.parametrize("way", ["ack", "read", "cancel", "foreign", "set aside"])
def test_however_a_message_goes_the_index_forgets_it(queue: ShuffleQueue, way: str) -> None:
    assert queue.read("g", "c") is None
    deadline = PAST if way in ("read", "foreign") else AHEAD
    queue.write("t", {"n": 1}, deadline=deadline, tracking_id="one")
    queue.write("t", {"n": 2}, deadline=deadline)
    if way == "ack":
        assert queue.ack(*queue.read_many("g", "c", 2)) == 2
    elif way == "read":
        assert queue.read("g", "c") is None
    elif way == "cancel":
        assert queue.cancel("one")
        assert queue.client.zcard(queue.keys.deadlines) == 1
        queue.ack(*queue.read_many("g", "c", 2))
    elif way == "foreign":
        queue.client.delete(*(queue.keys.stream(n) for n in range(8)))
        assert sum(reap(queue)) >= 2
    else:
        assert len(queue.read_many("g", "c", 2)) == 2
        time.sleep(0.005)
        job = reaper(queue, lease=0.001, max_attempts=1)
        while len(queue.dead("g")) < 2:
            job.perform(Slice(25, 10.0))
        assert keys_left(queue) == (0, 0, 0)
        assert queue.revive("g", *[each.id for each in queue.dead("g")]) == 2
        assert keys_left(queue) == (2, 1, 2)
        assert queue.ack(*queue.read_many("g", "c", 2)) == 2
    assert keys_left(queue) == (0, 0, 0)


def test_the_pages_of_what_is_overdue(queue: ShuffleQueue) -> None:
    assert (queue.overdue(), queue.overdue().total, queue.overdue().more) == ([], 0, 0)
    ids = [queue.write("t", {}, deadline=PAST + n, tracking_id=f"a:{n}") for n in range(5)]
    queue.write("t", {"n": 1}, deadline=AHEAD, tracking_id="in time")
    untracked = queue.write("t", {"n": 1}, deadline=PAST + 9)
    first = queue.overdue(2)
    assert first == [OverdueMessage(ids[n], f"a:{n}", PAST + n) for n in range(2)]
    assert (first.total, first.more) == (6, 4)
    last = queue.overdue(10, start=4)
    assert last == [
        OverdueMessage(ids[4], "a:4", PAST + 4),
        OverdueMessage(untracked, None, PAST + 9),
    ]
    assert (last.total, last.more) == (6, 0)
    beyond = queue.overdue(10, start=60)
    assert (beyond, beyond.total, beyond.more) == ([], 6, 0)


@pytest.mark.parametrize("n", [0, -1, True, 1.5, 1001, None])
def test_a_number_that_is_none(queue: ShuffleQueue, n: Any) -> None:
    with pytest.raises(ConfigurationError, match="to list overdue messages"):
        queue.overdue(n)
    with pytest.raises(ConfigurationError, match="start="):
        queue.overdue(1, start=-1)


def test_an_index_that_was_lost_is_made_anew(queue: ShuffleQueue) -> None:
    """As after an older release has written, or after a loss of the key alone."""
    assert queue.read("g", "c") is None
    for n in range(70):
        queue.write(f"t{n % 5}", {"n": n}, deadline=PAST, tracking_id=f"late {n}")
    queue.client.delete(queue.keys.deadlines)
    job = reaper(queue)
    for _ in range(300):
        job.perform(Slice(25, 10.0))
        if keys_left(queue) == (0, 0, 0):
            break
    assert keys_left(queue) == (0, 0, 0)


def test_a_sweep_finds_all_of_them(queue: ShuffleQueue) -> None:
    for n in range(90):
        queue.write(f"t{n % 5}", {"n": n}, deadline=PAST, tracking_id=f"late {n}")
    job = reaper(queue, 10)
    parts = [job.for_part(part) for part in job.parts(3)]
    for part in parts:
        while not part.is_drained:
            part.perform(Slice(10, 10.0))
    assert keys_left(queue) == (0, 0, 0)


def test_many_in_hand_hide_none_that_lie_behind_them(queue: ShuffleQueue) -> None:
    """The first in the index are all held: a slice that looked at those alone would find none."""
    assert queue.read("g", "c") is None
    for n in range(150):
        queue.write(f"t{n % 5}", {"n": n}, deadline=AHEAD)
    assert len(queue.read_many("g", "c", 150)) == 150
    for member in queue.client.zrange(queue.keys.deadlines, 0, -1):
        queue.client.zadd(queue.keys.deadlines, {member: 1})
    for n in range(30):
        queue.write(f"t{n % 5}", {"n": n}, deadline=PAST)
    job = reaper(queue)
    for _ in range(400):
        job.perform(Slice(25, 10.0))
        if queue.length() == 150:
            break
    assert queue.length() == 150


def test_a_dry_run_counts_them(queue: ShuffleQueue) -> None:
    for n in range(4):
        queue.write("t", {"n": n}, deadline=PAST)
    assert reaper(queue, dry_run=True).perform(Slice(25, 10.0)) == 4
    assert reaper(queue, 3, dry_run=True).perform(Slice(3, 10.0)) == 3
    assert keys_left(queue) == (4, 0, 4)


def test_what_is_seen_is_told_to_the_slice(queue: ShuffleQueue) -> None:
    for n in range(4):
        queue.write("t", {"n": n}, deadline=PAST)
    seen = Slice(1, 10.0)
    assert reaper(queue, 1).perform(seen) == 1
    assert seen.backlog == 4
    # It became garbage when it was written, decades after its deadline.
    assert seen.oldest_seconds is not None
    assert 0.0 <= seen.oldest_seconds < 1000.0


def test_the_age_counts_from_the_deadline(queue: ShuffleQueue) -> None:
    queue.write("t", {"n": 1}, deadline=time.time() + 0.01)
    time.sleep(0.06)
    seen = Slice(1, 10.0)
    assert reaper(queue, 1).perform(seen) == 1
    assert seen.oldest_seconds is not None
    assert 0.05 - ROUNDING_SECONDS <= seen.oldest_seconds < 1000.0


def test_what_is_in_hand_is_no_garbage(queue: ShuffleQueue) -> None:
    """A consumer that works for an hour on an overdue message is not an hour of backlog."""
    assert queue.read("g", "c") is None
    queue.write("t", {"n": 1}, deadline=time.time() + 1000)
    message = queue.read("g", "c")
    assert message is not None
    queue.client.zadd(queue.keys.deadlines, {queue.client.zrange(queue.keys.deadlines, 0, 0)[0]: 1})
    job = reaper(queue)
    for _ in range(20):
        seen = Slice(25, 10.0)
        assert job.perform(seen) == 0
        assert (seen.oldest_seconds, seen.backlog) == (0.0, 0)
    assert queue.ack(message) == 1


def test_a_group_newer_than_the_look_keeps_what_it_has_in_hand(queue: ShuffleQueue) -> None:
    assert queue.read("g", "c") is None
    queue.write("t", {"n": 1}, deadline=AHEAD, tracking_id="held")
    job = reaper(queue)
    facts = job.reaper.read_facts(Budget(10.0))
    assert facts is not None
    message = queue.read("new", "c")
    assert message is not None
    queue.client.zadd(queue.keys.deadlines, {queue.client.zrange(queue.keys.deadlines, 0, 0)[0]: 1})
    assert job.reaper.drop_overdue(facts, None, Slice(25, 10.0), 25) == 0
    assert queue.length() == 1
    assert queue.ack(message) == 1
    assert job.reaper.drop_overdue(facts, None, Slice(25, 10.0), 25) == 1


def test_a_foreign_index_changes_nothing_of_what_is_settled(queue: ShuffleQueue) -> None:
    queue.write("t", {"n": 1}, deadline=AHEAD, tracking_id="one")
    queue.write("t", {"n": 2}, deadline=AHEAD, tracking_id="two")
    message = queue.read("g", "c")
    assert message is not None
    queue.client.set(queue.keys.deadlines, "mine")
    for call in (lambda: queue.ack(message), lambda: queue.cancel("two")):
        with pytest.raises(LayoutError, match="deadlines"):
            call()
    assert (queue.length(), queue.client.hlen(queue.keys.tracking)) == (2, 2)
    assert queue.stats("g")["pending"] == 1


def test_a_foreign_index_is_refused_and_left(queue: ShuffleQueue) -> None:
    queue.write("t", {"n": 1})
    queue.client.set(queue.keys.deadlines, "mine")
    for call in (
        lambda: queue.write("t", {"n": 2}, deadline=AHEAD),
        lambda: queue.read("g", "c"),
        queue.overdue,
        lambda: reap(queue, 1),
        reaper(queue).backlog,
    ):
        with pytest.raises(LayoutError, match="deadlines"):
            call()
    assert queue.client.get(queue.keys.deadlines) == b"mine"
    assert queue.length() == 1


def test_a_deleted_queue_leaves_no_index(queue: ShuffleQueue) -> None:
    queue.write("t", {"n": 1}, deadline=AHEAD)
    queue.delete()
    assert queue.client.exists(queue.keys.deadlines) == 0


@pytest.mark.real
async def test_on_asyncio(redis7: RedisServer) -> None:
    async with redis7.async_client() as client:
        queue = AsyncShuffleQueue(client, "q", streams=8)
        written = await queue.write("t", {"n": 1}, deadline=PAST, tracking_id="late")
        assert await queue.overdue() == [OverdueMessage(written, "late", PAST)]
        job = reaper(queue)
        assert job.perform(Slice(25, 10.0)) == 1
        assert (await queue.overdue()).total == 0
