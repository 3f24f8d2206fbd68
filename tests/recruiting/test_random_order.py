"""The lag of jobs that choose at random, against a queue that does."""

from __future__ import annotations

import math
import random

import pytest

from workstealing.recruiting.forecast import (
    HEAVY_TRAFFIC,
    HIGHEST_UTILISATION,
    choose_rate,
    choose_rate_at_random,
    forecast,
    p99_lag,
)


def queue_p99(slices: float, garbage: float, limit: int) -> float:
    """Return the p99 lag of a queue of single items of which slices take any."""
    chance = random.Random(11)
    waiting: list[float] = []
    lags: list[float] = []
    now, done = 0.0, 0
    while done < 60_000:
        now += chance.expovariate(garbage + slices)
        if chance.random() < garbage / (garbage + slices):
            waiting.append(now)
            continue
        done += 1
        chance.shuffle(waiting)
        lags += [now - waiting.pop() for _ in range(min(limit, len(waiting)))]
    lags.sort()
    return lags[int(0.99 * len(lags))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slices", "garbage", "limit"),
    [(4.0, 30.0, 25), (3.0, 60.0, 25), (6.667, 20.0, 5), (1.0, 0.8, 1), (1.0, 30.0, 50)],
)
def test_it_agrees_with_a_queue_within_ten_per_cent(
    slices: float, garbage: float, limit: int
) -> None:
    said = forecast(100 * slices, garbage, limit, 0.01)
    assert p99_lag(said) == pytest.approx(queue_p99(slices, garbage, limit), rel=0.1)
    assert p99_lag(said) >= said.p99_lag * 0.999


def test_it_lies_between_the_light_and_the_heavy_end() -> None:
    light = forecast(100.0, 0.0001, 25, 0.01)
    assert p99_lag(light) == pytest.approx(light.p99_lag, rel=0.01)
    for used in (0.5, 0.8, 0.9, 0.97, 0.999):
        heavy = forecast(100.0, 25 * used, 25, 0.01)
        assert heavy.p99_lag * 0.999 <= p99_lag(heavy) <= HEAVY_TRAFFIC * heavy.mean_lag


def test_large_slices_are_counted_in_lots() -> None:
    one, other = forecast(100.0, 20.0, 25, 0.01), forecast(100.0, 20e6, 25_000_000, 0.01)
    # A fluid waits a little shorter than items do.
    ratio = p99_lag(other) / other.mean_lag / (p99_lag(one) / one.mean_lag)
    assert ratio == pytest.approx(1.0, rel=0.05)


def test_what_never_goes_has_no_p99() -> None:
    assert p99_lag(forecast(100.0, 50.0, 25, 0.01)) == math.inf
    assert p99_lag(forecast(100.0, 0.0, 25, 0.01)) == pytest.approx(math.log(100), rel=1e-6)


@pytest.mark.parametrize("lag", [0.2, 3.0, 60.0])
@pytest.mark.parametrize(("traffic", "limit", "garbage"), [(800.0, 5, 20.0), (800.0, 25, 1.0)])
def test_the_chosen_rate_is_the_lowest_that_does_it(
    traffic: float, limit: int, garbage: float, lag: float
) -> None:
    rate = choose_rate_at_random(traffic, garbage, limit, lag)
    said = forecast(traffic, garbage, limit, rate)
    assert p99_lag(said) <= lag * 1.00001
    assert said.utilisation <= HIGHEST_UTILISATION + 1e-9
    assert rate >= choose_rate(traffic, garbage, limit, lag)
    if said.utilisation < HIGHEST_UTILISATION - 1e-6:
        assert p99_lag(forecast(traffic, garbage, limit, rate * 0.99)) > lag


def test_too_little_traffic_asks_for_a_rate_above_one() -> None:
    assert choose_rate_at_random(10.0, 1.0, 25, 0.1) == pytest.approx(4.605, rel=0.01)
