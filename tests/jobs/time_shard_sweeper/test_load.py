"""Under full load no traffic aborts a sweeper of 6 time shards; what it does elsewhere is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.time_shard_load import Load
from support.time_shards import Wall, only_layout_is_left, queue_on
from workstealing.jobs import TimeShardSweeper
from workstealing.jobs.time_shard_sweeper import Swept, sweeping_of
from workstealing.recruiting import Slice
from workstealing.structures.time_shard_queue import TimeShardQueue
from workstealing.structures.time_shard_queue.rotation import Rotation

STEPS = 60


def nothing_is_lost(load: Load) -> None:
    """Each message was acknowledged, or is there to be taken; and then nothing is left of any."""
    tally = load.tally
    found = load.finish()
    assert found == tally.put - set(tally.acked)
    assert tally.again_after_ack == []
    only_layout_is_left([load.client], load.shards)


@pytest.mark.slow
@pytest.mark.real
class TestFullLoad:
    """Producers and consumers whose clocks are 59 s off, late acks, releases and deletes."""

    @pytest.mark.parametrize("shards", [6, 7])
    def test_a_sweeper_is_never_aborted(self, redis7: RedisServer, shards: int) -> None:
        load = Load(redis7.client(), shards=shards)
        tally = load.run(STEPS)
        assert tally.aborted == []
        # And it was a test: it has swept, and late ones came where it was sweeping.
        assert len(tally.attempts) > STEPS
        assert sum(one.items for one in tally.attempts) > STEPS
        assert tally.late > STEPS / 2
        assert tally.taken > 5 * STEPS
        nothing_is_lost(load)

    def test_sweepers_abort_each_other_and_traffic_aborts_none(self, redis7: RedisServer) -> None:
        load = Load(redis7.client(), sweepers=4)
        tally = load.run(STEPS)
        assert tally.aborted_by_traffic == []
        assert sum(one.items for one in tally.attempts) > STEPS
        nothing_is_lost(load)

    @pytest.mark.parametrize("role", ["producing", "consuming"])
    def test_where_others_work_it_would_be_aborted(self, redis7: RedisServer, role: str) -> None:
        """So the tests above can fail; and even then nothing is lost."""

        def where(queue: Any) -> int:
            moment = queue.now_ms()
            return int(getattr(queue.rotation, role)(moment))

        load = Load(redis7.client(), skews=(0.0, 0.0, 0.0), where=where)
        tally = load.run(STEPS)
        assert len(tally.aborted_by_traffic) > 10
        nothing_is_lost(load)

    @pytest.mark.parametrize("shards", [4, 5])
    def test_with_4_or_5_it_is_careful(self, redis7: RedisServer, shards: int) -> None:
        """There is no untouched one with clocks that wrong; WATCH keeps what comes between safe."""
        load = Load(redis7.client(), shards=shards)
        tally = load.run(STEPS)
        assert sum(one.items for one in tally.attempts) > STEPS
        nothing_is_lost(load)

    def test_with_5_and_clocks_that_are_right_nothing_aborts_it(self, redis7: RedisServer) -> None:
        """Right to less than half a period, of which a slice's length takes its part."""
        load = Load(redis7.client(), shards=5, skews=(-27.0, 0.0, 27.0))
        tally = load.run(STEPS)
        assert tally.aborted == []
        assert sum(one.items for one in tally.attempts) > STEPS
        nothing_is_lost(load)


class _Told:
    """Time shards that only say where they were told to sweep."""

    identity = "told"
    asynchronous = False

    def __init__(self) -> None:
        self.swept: list[int] = []

    def bind(self, name: bytes, rotation: Rotation) -> Any:
        return self

    def look(self, time_shards: Any, *_: Any) -> Any:
        return time_shards, time_shards

    def sweep(self, time_shard: int, **_: Any) -> Swept:
        self.swept.append(time_shard)
        return Swept(1, 0, 0)


@sweeping_of.register
def _(told: _Told) -> Any:
    return told


# Ends of a period, an hour, a day, a leap day and years, and any other moment.
DAY_MS = 86_400_000
ENDS_MS = [0, 3_600_000, DAY_MS, 19_782 * DAY_MS, 20_454 * DAY_MS, 20_819 * DAY_MS]
moments = st.one_of(
    st.integers(0, 4_000_000_000_000),
    st.builds(
        lambda end, off: max(0, end + off), st.sampled_from(ENDS_MS), st.integers(-60_000, 60_000)
    ),
)


class TestWhere:
    """The time shard of a slice, at every moment, with every skew."""

    @staticmethod
    def chosen(shards: int, now_ms: int, seconds: float, chance: float) -> int | None:
        told = _Told()
        clock = Wall(now_ms / 1000).skewed()
        queue = TimeShardQueue(told, "queue", shards=shards, period=60, clock=clock)  # type: ignore[call-overload]
        TimeShardSweeper(queue, random=lambda: chance).perform(Slice(5, seconds))
        return told.swept[0] if told.swept else None

    @given(
        shards=st.sampled_from([6, 7, 16]),
        now_ms=moments,
        # A slice of five seconds or more would be lengthened: see `patient`.
        seconds=st.sampled_from([0.01, 0.5, 4.9]),
        passed=st.floats(0, 1),
        skew_ms=st.integers(-59_990, 59_990),
    )
    def test_nobody_else_works_there_until_the_slice_has_ended(
        self, shards: int, now_ms: int, seconds: float, passed: float, skew_ms: int
    ) -> None:
        time_shard = self.chosen(shards, now_ms, seconds, passed * 0.999)
        if time_shard is None:
            assert shards == 6
            assert 60_000 - now_ms % 60_000 <= seconds * 1000 + 51
            return
        # It may be held for a time-out longer than it is long.
        then = max(0, now_ms + math.floor(passed * (seconds * 1000 + 49)) + skew_ms)
        period = then // 60_000
        assert time_shard not in (period % shards, (period - 2) % shards)

    @given(now_ms=moments, passed=st.floats(0, 1), skew_ms=st.integers(-29_400, 29_400))
    def test_with_5_nobody_whose_clock_is_half_a_period_off(
        self, now_ms: int, passed: float, skew_ms: int
    ) -> None:
        time_shard = self.chosen(5, now_ms, 0.5, 0.5)
        period = max(0, now_ms + math.floor(passed * 549) + skew_ms) // 60_000
        assert time_shard not in (None, period % 5, (period - 2) % 5)

    def test_with_4_it_keeps_off_the_ends_of_periods(self) -> None:
        start = 17_000 * DAY_MS
        assert self.chosen(4, start + 59_800, 0.5, 0.5) is None
        assert self.chosen(4, start, 0.5, 0.5) is None
        chosen = {self.chosen(4, start + 30_000, 0.5, chance) for chance in (0.1, 0.9)}
        assert chosen == {1, 3}

    @given(chance=st.floats(0, 0.999))
    def test_any_of_the_untouched_ones(self, chance: float) -> None:
        seen = {self.chosen(16, 17_000 * DAY_MS, 0.5, number / 11) for number in range(11)}
        assert len(seen) == 11
        assert self.chosen(16, 17_000 * DAY_MS, 0.5, chance) in seen


def test_the_queue_of_a_test_has_a_clock_that_stands_still(fakeredis_server: Any) -> None:
    queue = queue_on(fakeredis_server.client(), Wall(1e9), skew=-59.0)
    assert queue.now_ms() == 1e12 - 59_000
