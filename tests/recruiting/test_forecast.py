"""The forecast's formulas against a queue of single items, and against each other."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest

from workstealing.errors import ConfigurationError
from workstealing.recruiting.forecast import (
    HIGHEST_UTILISATION,
    choose_rate,
    forecast,
    utilisation,
)

# Callers a second, rate, items of a slice, garbage a second: idle, usual, tight, one by one, huge.
CASES = [
    (800.0, 0.0003, 25, 1.0),
    (800.0, 0.0075, 25, 120.0),
    (100.0, 0.01, 5, 4.25),
    (1000.0, 0.01, 1, 6.0),
    (50.0, 0.02, 40, 24.0),
]


class Run:
    """Items and callers come at random; each caller is recruited by chance; oldest items first."""

    def __init__(self, traffic: float, rate: float, limit: int, garbage: float) -> None:
        chance = random.Random(5)
        self.lags: list[float] = []
        self.slices = self.idle = self.full = 0
        waiting: deque[float] = deque()
        now = 0.0
        # One event of either kind. Dismissed callers change nothing and are left out.
        per_second = garbage + traffic * rate
        while self.slices < 100_000:
            now += chance.expovariate(per_second)
            if chance.random() < garbage / per_second:
                waiting.append(now)
                continue
            self.slices += 1
            self.idle += not waiting
            self.full += len(waiting) >= limit
            for _ in range(min(limit, len(waiting))):
                self.lags.append(now - waiting.popleft())
        self.seconds = now
        self.lags.sort()

    def lag(self, share: float) -> float:
        return self.lags[int(share * len(self.lags))]


@pytest.mark.slow
@pytest.mark.parametrize(("traffic", "rate", "limit", "garbage"), CASES)
def test_the_formulas_agree_with_a_queue_within_ten_per_cent(
    traffic: float, rate: float, limit: int, garbage: float
) -> None:
    said, seen = forecast(traffic, garbage, limit, rate), Run(traffic, rate, limit, garbage)
    assert said.keeps_up
    assert said.slices == pytest.approx(seen.slices / seen.seconds, rel=0.1)
    assert said.mean_lag == pytest.approx(sum(seen.lags) / len(seen.lags), rel=0.1)
    assert said.p99_lag == pytest.approx(seen.lag(0.99), rel=0.1)
    assert said.lag(0.5) == pytest.approx(seen.lag(0.5), rel=0.1)
    assert said.idle_share == pytest.approx(seen.idle / seen.slices, rel=0.1)
    assert said.full_share == pytest.approx(seen.full / seen.slices, rel=0.1, abs=0.01)
    # What a process can count by itself leads back to the utilisation.
    estimated = utilisation(seen.full / seen.slices, limit)
    assert estimated == pytest.approx(said.utilisation, rel=0.1, abs=0.05)


def test_a_backlog_drains_in_the_forecast_time() -> None:
    said = forecast(800.0, 120.0, 25, 0.01)
    chance, seconds = random.Random(7), []
    for _ in range(200):
        waiting, now = 5000, 0.0
        while waiting > 0:
            now += chance.expovariate(said.garbage + said.slices)
            is_slice = chance.random() * (said.garbage + said.slices) >= said.garbage
            waiting += -min(said.limit, waiting) if is_slice else 1
        seconds.append(now)
    assert said.drain_seconds(5000) == pytest.approx(sum(seconds) / len(seconds), rel=0.1)
    assert said.drain_seconds(0) == 0.0
    assert said.drain_seconds(1) >= 1 / said.slices


@pytest.mark.parametrize("lag", [0.5, 5.0, 60.0, 3600.0])
@pytest.mark.parametrize(("traffic", "limit", "garbage"), [(800.0, 25, 120.0), (50.0, 5, 0.01)])
def test_the_chosen_rate_is_the_lowest_that_does_it(
    traffic: float, limit: int, garbage: float, lag: float
) -> None:
    rate = choose_rate(traffic, garbage, limit, lag, highest_utilisation=1.0)
    assert forecast(traffic, garbage, limit, rate).p99_lag == pytest.approx(lag, rel=1e-6)
    careful = choose_rate(traffic, garbage, limit, lag)
    done = forecast(traffic, garbage, limit, careful)
    assert done.p99_lag <= lag * (1 + 1e-6)
    assert done.utilisation <= HIGHEST_UTILISATION + 1e-9
    assert careful == pytest.approx(max(rate, garbage / (traffic * limit * HIGHEST_UTILISATION)))


def test_a_mean_or_any_other_share_can_be_asked_for() -> None:
    rate = choose_rate(800.0, 0.1, 25, 60.0, share=1 - math.exp(-1))
    assert forecast(800.0, 0.1, 25, rate).mean_lag == pytest.approx(60.0)


def test_without_garbage_a_slice_comes_often_enough_for_the_first_item() -> None:
    rate = choose_rate(800.0, 0.0, 25, 60.0)
    quiet = forecast(800.0, 0.0, 25, rate)
    assert quiet.p99_lag == pytest.approx(60.0)
    assert (quiet.idle_share, quiet.full_share, quiet.mean_backlog) == (1.0, 0.0, 0.0)
    assert quiet.operations == pytest.approx(quiet.slices * quiet.commands_per_slice)


def test_when_it_cannot_keep_up_the_lag_has_no_bound() -> None:
    lost = forecast(100.0, 120.0, 25, 0.02)
    assert not lost.keeps_up
    assert lost.utilisation == pytest.approx(2.4)
    assert lost.growth == pytest.approx(70.0)
    assert {lost.mean_lag, lost.p99_lag, lost.mean_backlog, lost.drain_seconds(10)} == {math.inf}
    assert (lost.full_share, lost.idle_share) == (1.0, 0.0)
    assert lost.operations == pytest.approx(
        2 * (lost.commands_per_slice + lost.commands_per_attempt) + 50 * lost.commands_per_item
    )
    assert not forecast(100.0, 50.0, 25, 0.02).keeps_up


def test_too_little_traffic_asks_for_a_rate_above_one() -> None:
    assert choose_rate(1.0, 120.0, 25, 60.0) == pytest.approx(6.0)


def test_just_below_saturation_the_lag_is_still_finite() -> None:
    tight = forecast(100.0, 24.999999, 25, 0.01)
    assert tight.keeps_up
    assert 1e5 < tight.mean_lag < 1e9


def test_the_utilisation_is_read_off_the_share_of_full_slices() -> None:
    assert utilisation(0.0, 25) == 0.0
    assert utilisation(1.0, 25) == 1.0
    assert utilisation(0.6, 1) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.0, 1.0, 25, 0.1), "traffic"),
        ((math.inf, 1.0, 25, 0.1), "traffic"),
        ((1.0, -1.0, 25, 0.1), "garbage"),
        ((1.0, math.nan, 25, 0.1), "garbage"),
        ((1.0, 1.0, 0, 0.1), "slice"),
        ((1.0, 1.0, 25, 0.0), "rate"),
        ((1.0, 1.0, 25, 1.1), "rate"),
        ((1e-300, 1.0, 25, 0.1), "traffic"),
        ((1.0, 1e300, 25, 0.1), "garbage"),
        ((1.0, 1.0, 10**300, 0.1), "slice"),
        ((1.0, 1.0, 25, 1e-300), "rate"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: tuple[float, float, int, float], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        forecast(*arguments)


@pytest.mark.parametrize(
    ("lag", "share"), [(0.0, 0.99), (math.inf, 0.99), (1e-300, 0.99), (1.0, 1.0), (1.0, 0.0)]
)
def test_a_target_that_cannot_be_is_refused(lag: float, share: float) -> None:
    with pytest.raises(ConfigurationError):
        choose_rate(1.0, 1.0, 25, lag, share=share)


@pytest.mark.parametrize("traffic", [1e-9, 1.0, 1e12])
@pytest.mark.parametrize("garbage", [0.0, 1e-9, 1.0, 1e12])
@pytest.mark.parametrize("limit", [1, 10**9])
@pytest.mark.parametrize("lag", [1e-9, 1.0, 1e12])
def test_no_figure_within_the_bounds_overflows(
    traffic: float, garbage: float, limit: int, lag: float
) -> None:
    rate = choose_rate(traffic, garbage, limit, lag)
    assert 0.0 < rate < math.inf
    said = forecast(traffic, garbage, limit, max(1e-12, min(1.0, rate)))
    assert said.mean_lag > 0.0
    assert 0.0 <= said.idle_share <= 1.0
    assert 0.0 <= said.full_share <= 1.0
    assert said.operations >= 0.0
    if rate <= 1.0:
        assert said.keeps_up
