"""Where a sweeper works that has many time shards to choose from: where something waits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.time_shards import START, Wall, end_leases, held, names_of, queue_on
from workstealing.errors import LayoutError
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice

SHARDS = 64
MOST_AT_ONCE = 8
NAMES = names_of(SHARDS)


class Place:
    """A queue of many time shards, of which all but five are untouched now."""

    def __init__(self, server: Any) -> None:
        self.client = server.client()
        self.wall = Wall(START + 30)
        self.queue = queue_on(self.client, self.wall, shards=SHARDS)
        self.now = self.queue.rotation.producing(self.queue.now_ms())

    def at(self, ahead: int) -> int:
        """Return the time shard whose turn comes after so many periods."""
        return (self.now + ahead) % SHARDS

    def leave(self, ahead: int, messages: int = 1, how: str = "consumed") -> int:
        """Leave something to be swept in a time shard; return its number."""
        self.wall.seconds += 60 * ahead
        ids = [self.queue.put(str(number), 1.0) for number in range(messages)]
        self.wall.seconds += 120
        taken = self.queue.take_many("c", messages, 600.0)
        if how == "consumed":
            self.queue.ack(*taken)
        elif how == "released":
            assert all(self.queue.release(each) for each in taken)
        elif how == "ended":
            assert end_leases(self.client, NAMES[self.at(ahead)]) == messages
        assert len(taken) == len(ids)
        self.wall.seconds -= 60 * ahead + 120
        return self.at(ahead)

    def sweeper(self, seed: int = 1, **options: Any) -> TimeShardSweeper:
        return TimeShardSweeper(self.queue, random=random.Random(seed).random, **options)


@pytest.fixture
def place(any_server: AnyServer) -> Place:
    return Place(any_server)


@pytest.fixture
def real(redis7: RedisServer) -> Place:
    return Place(redis7)


def perform(job: TimeShardSweeper, limit: int = 5) -> int:
    return job.perform(Slice(limit, 5.0))


def test_the_one_of_59_where_something_waits_is_found_at_once_after_a_count(place: Place) -> None:
    """As `workstealing drain` does; blind slices miss it 60 times in a row with 36 %."""
    dirty = place.leave(20)
    for seed in range(10):
        job = place.sweeper(seed, dry_run=True)
        assert job.within_reach().count == 1
        assert perform(job) == 1
    assert held(place.client, NAMES[dirty])["consumed"]


@pytest.mark.parametrize("how", ["consumed", "ended", "released"])
def test_without_a_count_it_is_found_within_a_few_slices(real: Place, how: str) -> None:
    """A slice looks at several time shards at once: of 59 it takes 8 slices or so, not 59."""
    real.leave(20, how=how)
    needed = []
    for seed in range(20):
        job = real.sweeper(seed, dry_run=True)
        needed.append(next(n for n in range(1, 200) if perform(job)))
    assert sum(needed) / len(needed) < 20


def test_what_a_look_costs(real: Place) -> None:
    """One round trip of a few commands, whatever the number of time shards; none where it knows."""
    real.leave(20, messages=12)
    job = real.sweeper()
    slice = Slice(5, 5.0)
    real.client.delete(NAMES[real.at(20)].consumed)
    assert job.perform(slice) == 0
    assert 0 < slice.operations <= 1 + 2 * MOST_AT_ONCE
    assert (slice.backlog, slice.oldest_seconds) == (0, 0.0)
    real.client.config_resetstat()
    real.leave(21, messages=12)
    job.within_reach()
    real.client.config_resetstat()
    # It goes on where it has left something, and looks again when that is done.
    assert [perform(job) for _ in range(3)] == [5, 5, 2]
    assert "cmdstat_exists" not in real.client.info("commandstats")
    assert perform(job) == 0
    assert real.client.info("commandstats")["cmdstat_exists"]["calls"] == MOST_AT_ONCE


def test_where_several_are_known_it_takes_any_of_them(real: Place) -> None:
    """Others know the same ones: not all are to meet in the first."""
    dirty = {real.leave(ahead) for ahead in (10, 20, 30, 40)}
    swept = set()
    for seed in range(40):
        job = real.sweeper(seed)
        job.within_reach()
        before = {number for number in dirty if held(real.client, NAMES[number])["consumed"]}
        assert perform(job) == 1
        (number,) = before - {n for n in dirty if held(real.client, NAMES[n])["consumed"]}
        swept.add(number)
        real.client.sadd(NAMES[number].consumed, "0-of-nothing")
    assert swept == dirty


def test_one_that_was_remembered_is_forgotten_once_it_is_clean(real: Place) -> None:
    number = real.leave(20)
    job = real.sweeper()
    job.within_reach()
    assert perform(real.sweeper(2, limit=5)) in (0, 1)
    real.client.delete(NAMES[number].consumed)
    real.client.config_resetstat()
    assert [perform(job) for _ in range(3)] == [0, 0, 0]
    assert real.client.info("commandstats")["cmdstat_watch"]["calls"] == 1


def test_one_that_others_work_in_now_is_left_alone_however_dirty(real: Place) -> None:
    real.leave(0)
    job = real.sweeper()
    assert job.backlog().count == 1
    assert [perform(job) for _ in range(30)] == [0] * 30


def test_a_foreign_key_in_one_is_said_and_does_not_keep_others_from_being_swept(
    real: Place,
) -> None:
    real.client.set(NAMES[real.at(21)].leased, "somebody else's")
    real.leave(20)
    job = real.sweeper()
    faults: list[str] = []
    swept = 0
    for _ in range(200):
        try:
            swept += perform(job)
        except LayoutError as error:
            faults.append(str(error))
    assert swept == 1
    assert faults
    assert all("nothing was changed" in each for each in faults)


def test_on_a_cluster_all_of_them_are_found(cluster: Any) -> None:
    place = Place(cluster)
    for ahead in range(4, SHARDS - 6):
        place.leave(ahead)
    job = place.sweeper()
    assert sum(perform(job) for _ in range(2000 // 10)) == SHARDS - 10
    assert job.within_reach().count == 0
