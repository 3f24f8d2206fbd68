"""Whose turn each time shard is: pure arithmetic, tried out exhaustively."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from workstealing.errors import ConfigurationError
from workstealing.structures.time_shard_queue.rotation import Rotation, rotation_of

MINUTE_MS = 60_000
NUMBERS = [4, 6, 7, 16]
# Hour, day, month and year ends, a leap day, and both ends of a day on which clocks are put back.
ENDS = [
    datetime(2026, 11, 21, 10, 0, tzinfo=UTC),
    datetime(2026, 11, 22, 0, 0, tzinfo=UTC),
    datetime(2026, 12, 1, 0, 0, tzinfo=UTC),
    datetime(2027, 1, 1, 0, 0, tzinfo=UTC),
    datetime(2028, 2, 29, 0, 0, tzinfo=UTC),
    datetime(2028, 3, 1, 0, 0, tzinfo=UTC),
    datetime(2029, 1, 1, 0, 0, tzinfo=UTC),
    datetime(2026, 10, 25, 1, 0, tzinfo=UTC),
    datetime(2000, 1, 1, 0, 0, tzinfo=UTC),
]


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def jumps(producing: Callable[[datetime], int], time_shards: int) -> list[datetime]:
    """Return the minutes, around all ends, at which the time shard is not the next one."""
    found = []
    for end in ENDS:
        for minute in range(-3 * time_shards, 3 * time_shards):
            now = end + timedelta(minutes=minute)
            following = producing(now + timedelta(minutes=1))
            if following != (producing(now) + 1) % time_shards:
                found.append(now)
    return found


@pytest.mark.parametrize("time_shards", NUMBERS)
def test_no_hour_no_day_and_no_year_makes_it_jump(time_shards: int) -> None:
    rotation = Rotation(time_shards, MINUTE_MS)
    assert jumps(lambda now: rotation.producing(ms(now)), time_shards) == []
    for now in ENDS:
        for minute in range(-3 * time_shards, 3 * time_shards):
            moment = ms(now) + minute * MINUTE_MS
            behind = (rotation.producing(moment) - rotation.consuming(moment)) % time_shards
            assert behind == 2
            # It is the time shard that producers wrote two minutes ago.
            assert rotation.consuming(moment) == rotation.producing(moment - 2 * MINUTE_MS)


@pytest.mark.parametrize("time_shards", NUMBERS)
def test_the_published_arithmetic_fails_that_test(time_shards: int) -> None:
    """Decimal date and minute, as cassandra-ruby-queue has it: right only where N divides 40."""
    found = jumps(lambda now: int(now.strftime("%Y%j%H%M")) % time_shards, time_shards)
    assert bool(found) == (40 % time_shards != 0)


@pytest.mark.parametrize("time_shards", [*NUMBERS, 5])
def test_clocks_that_are_59_s_apart_never_meet(time_shards: int) -> None:
    rotation = Rotation(time_shards, MINUTE_MS)
    for second in range(2 * time_shards * 60):
        producing = rotation.producing(second * 1000)
        for apart in range(-59, 60):
            assert rotation.consuming((second + apart) * 1000) != producing
    for boundary in range(1, 3 * time_shards):
        for beside in (-1, 0, 1):
            now = boundary * MINUTE_MS + beside
            for apart in (-MINUTE_MS, 1 - MINUTE_MS, -1, 0, 1, MINUTE_MS - 1, MINUTE_MS):
                assert rotation.consuming(now + apart) != rotation.producing(now)


@pytest.mark.parametrize("time_shards", NUMBERS)
def test_clocks_that_are_two_periods_apart_do_meet(time_shards: int) -> None:
    """So that the test before could fail."""
    rotation = Rotation(time_shards, MINUTE_MS)
    assert rotation.consuming(10 * MINUTE_MS + 2 * MINUTE_MS) == rotation.producing(10 * MINUTE_MS)


def test_with_three_they_would_meet_within_a_period() -> None:
    rotation = Rotation(3, MINUTE_MS)
    assert rotation.consuming(10 * MINUTE_MS - 1) == rotation.producing(10 * MINUTE_MS)


@pytest.mark.parametrize("time_shards", range(4, 10))
@pytest.mark.parametrize("skew_ms", [None, 1, 4, 10, 13])
def test_the_untouched_are_those_that_no_clock_leads_to(
    time_shards: int, skew_ms: int | None
) -> None:
    """Against the definition, for every millisecond of two rounds of periods of 10 ms.

    Moments that are less than 10 ms apart are up to 10 apart once both are cut to milliseconds.
    """
    rotation = Rotation(time_shards, 10)
    wrong_by = 10 if skew_ms is None else skew_ms
    for now in range(100, 100 + 2 * 10 * time_shards):
        for lasting in (0, 1, 3, 10, 25):
            moments = range(now - wrong_by, now + lasting + wrong_by + 1)
            touched = {rotation.producing(moment) for moment in moments}
            touched |= {rotation.consuming(moment) for moment in moments}
            found = rotation.untouched(now, lasting, skew_ms)
            assert set(found) == set(range(time_shards)) - touched, (now, lasting)
            assert len(set(found)) == len(found)
            best = rotation.least_touched(now, lasting)
            assert set(found[:1]) <= set(best)


@pytest.mark.parametrize("time_shards", [4, 5])
def test_of_four_or_five_each_is_the_least_touched_at_times(time_shards: int) -> None:
    rotation = Rotation(time_shards, 100)
    seen: set[int] = set()
    for now in range(5_000, 5_000 + 100 * time_shards):
        best = rotation.least_touched(now)
        margins = [rotation.margin_ms(number, now) for number in range(time_shards)]
        assert best == tuple(i for i in range(time_shards) if 0 < margins[i] == max(margins))
        if now % 100 == 50:
            seen |= set(best)
    assert seen == set(range(time_shards))
    # Clocks that are right have each of four at the end of a period.
    assert (rotation.least_touched(5_099, 2) == ()) is (time_shards == 4)


@pytest.mark.parametrize("time_shards", range(4, 20))
def test_with_six_or_more_there_is_always_one_but_near_a_periods_end(time_shards: int) -> None:
    rotation = Rotation(time_shards, MINUTE_MS)
    for now in range(0, time_shards * MINUTE_MS, 997):
        assert len(rotation.untouched(now)) >= max(0, time_shards - 5)
        crosses = now // MINUTE_MS != (now + 100) // MINUTE_MS
        count = len(rotation.untouched(now, 100))
        assert count >= max(0, time_shards - 5 - crosses)
        assert time_shards > 5 or count == 0


def test_the_next_turn_is_the_first_moment_at_which_consumers_read_it() -> None:
    rotation = Rotation(7, 10)
    for now in range(500, 700):
        for time_shard in range(7):
            expected = next(
                moment
                for moment in range(now, now + 80)
                if rotation.consuming(moment) == time_shard
            )
            assert rotation.next_turn_ms(time_shard, now) == expected


def test_roles() -> None:
    rotation = Rotation(6, MINUTE_MS)
    now = 6 * MINUTE_MS
    roles = [rotation.role(time_shard, now) for time_shard in range(6)]
    assert roles == ["producing", "quiet", "quiet", "quiet", "consuming", "quiet"]


@pytest.mark.parametrize("shards", [3, 1, 0, -4])
def test_fewer_than_four_are_refused_with_the_reason(shards: int) -> None:
    with pytest.raises(ConfigurationError, match="too few: give 4 or more"):
        rotation_of(shards, 60)


@pytest.mark.parametrize("shards", [True, 4.0, "4", None, 1025])
def test_what_is_no_number_of_time_shards(shards: object) -> None:
    with pytest.raises(ConfigurationError, match="time shards"):
        rotation_of(shards, 60)


@pytest.mark.parametrize(
    "period", [0, -1, True, "60", None, float("nan"), float("inf"), 0.0005, 1.00005]
)
def test_what_is_no_period(period: object) -> None:
    with pytest.raises(ConfigurationError, match="period="):
        rotation_of(4, period)


def test_periods_of_whole_milliseconds() -> None:
    assert [rotation_of(4, period).period_ms for period in (60, 0.1, 0.3, 1.001, 3600.0)] == [
        *(60_000, 100, 300, 1001, 3_600_000),
    ]
