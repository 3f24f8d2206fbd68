"""The lag of jobs that choose at random among what waits, as HashFieldExpiry and KeyExpiry do.

The mean is the same as with the oldest first; the last of a hundred waits longer. Pure arithmetic.
"""

from __future__ import annotations

import math

from workstealing.recruiting.forecast import HIGHEST_UTILISATION, Forecast, choose_rate, forecast

HEAVY_TRAFFIC = 8.32
"""p99 / mean where nearly all slices are full: the solution of u K1(u) = 0.01, as u * u / 4."""

_SHARE = 0.99
# Larger slices, and proportionally more garbage, behave alike: items are counted in lots then.
_LARGEST_SLICE = 25
_MOST_STEPS = 1_000_000
_HALVINGS = 20
_TINY = 1e-6


def p99_lag(said: Forecast) -> float:
    """Return the seconds within which 99 of 100 items are removed, chosen at random; inf: never.

    Arguments: said: what the rate will achieve. Takes at most about a fifth of a second.
    """
    if not said.keeps_up:
        return math.inf
    lots = max(1.0, said.limit / _LARGEST_SLICE)
    limit = round(said.limit / lots)
    garbage = said.garbage * limit / said.limit
    like = forecast(said.traffic, garbage, limit, said.rate)
    waits = like.garbage / (like.garbage + like.decay)
    if waits <= _TINY:
        return said.p99_lag
    if waits >= 1.0:
        return HEAVY_TRAFFIC * said.mean_lag
    states = int(math.log(_TINY) / math.log(waits)) + 2 * limit
    events = (like.garbage + like.slices) * HEAVY_TRAFFIC * like.mean_lag
    if states * events > _MOST_STEPS:
        # The light and the heavy end are known; between them there is nothing to jump over.
        return max(said.p99_lag, HEAVY_TRAFFIC * said.mean_lag * said.utilisation)
    left = _left_after(like, waits, states, math.ceil(2 * events) + 50)
    return _quantile(left, like.garbage + like.slices, HEAVY_TRAFFIC * like.mean_lag)


def choose_rate_at_random(
    traffic: float,
    garbage: float,
    limit: int,
    lag: float,
    *,
    highest_utilisation: float = HIGHEST_UTILISATION,
) -> float:
    """Return the lowest rate at which 99 of 100 items are removed within a lag.

    As `choose_rate`, for a job that chooses at random. Errors: ConfigurationError, likewise.
    """
    low = choose_rate(traffic, garbage, limit, lag, highest_utilisation=highest_utilisation)
    # A rate above 1 is no rate, but says how much traffic is missing: judged at more traffic.
    scale = max(1.0, 4 * low)

    def is_enough(rate: float) -> bool:
        said = forecast(traffic * scale, garbage, limit, rate / scale)
        return p99_lag(said) <= lag * (1 + _TINY)

    if not garbage or is_enough(low):
        return low
    high = 2 * low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _left_after(said: Forecast, waits: float, states: int, most: int) -> list[float]:
    """Return the probability that an item is still there after 0, 1, 2, ... events.

    An event is an arrival or a slice. Whatever happened before, the next one is an arrival with the
    same probability; so the chain needs no clock.
    """
    arrival = said.garbage / (said.garbage + said.slices)
    slice_ = 1.0 - arrival
    limit = said.limit
    # By how many others wait beside it; they are as many as anybody finds.
    others = [(1.0 - waits) * waits**n for n in range(states)]
    stays = [1.0 - limit / (n + 1) for n in range(limit, states)]
    left = [1.0]
    while left[-1] > _TINY and len(left) < most:
        sliced = [p * q for p, q in zip(others[limit:], stays, strict=True)]
        sliced += [0.0] * limit
        others = [
            arrival * before + slice_ * after
            for before, after in zip([0.0, *others[:-1]], sliced, strict=True)
        ]
        left.append(math.fsum(others))
    return left


def _quantile(left: list[float], events: float, guess: float) -> float:
    """Return when all but one of a hundred are gone; events come at random, so many a second."""
    low, high = 0.0, 2 * guess
    for _ in range(50):
        middle = (low + high) / 2
        mean = events * middle
        log_mean, still = math.log(mean), 0.0
        for number, share in enumerate(left):
            still += share * math.exp(number * log_mean - mean - math.lgamma(number + 1))
        low, high = (middle, high) if still > 1.0 - _SHARE else (low, middle)
    return high
