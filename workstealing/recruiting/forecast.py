"""The forecast: the lag that a rate will achieve, before anybody tries it. Arithmetic, no I/O.

Garbage comes at random, `garbage` items a second. Slices come at random too, `traffic * rate` a
second, because the draw recruits each caller independently. A slice takes up to `limit` items, the
oldest first. The lag of an item in this queue has an exponential distribution, so one number, its
decay, says everything. docs/forecast.md derives it step by step.

HashFieldExpiry and KeyExpiry choose at random among the waiting items. Items of these two jobs
have the same mean lag, but the last of a hundred items waits longer: see `p99_lag`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workstealing.clock import Duration, seconds_of
from workstealing.errors import ConfigurationError

HIGHEST_UTILISATION = 0.8
"""The highest utilisation of `choose_rate`. The rest is for hours above the average."""

COMMANDS_PER_SLICE = 20.0
COMMANDS_PER_ATTEMPT = 7.0
COMMANDS_PER_ITEM = 2.4
"""The commands of HashFieldExpiry on a single server, with one expired field a hash.

An attempt serves up to 25 hashes. docs/volatile_hashes.md tells what other hashes take.
"""

# No figure overflows within these bounds, and no real figure is outside.
_LEAST, _MOST = 1e-9, 1e12
_LEAST_RATE = 1e-12
_MOST_ITEMS = 1_000_000_000
_STEPS = 120


@dataclass(frozen=True, slots=True)
class Forecast:
    """The effect of a rate.

    Fields: traffic: enlists a second; rate; limit: items of a slice; garbage: items a second;
    slices: slices a second; capacity: items a second at most; utilisation: garbage / capacity;
    decay: of the lag's exponential distribution, per second, 0.0 if the job does not keep up;
    commands_per_slice: Redis commands of a slice that finds nothing; commands_per_attempt: of a
    slice that finds something, on top; commands_per_item: of each item, on top.
    """

    traffic: float
    rate: float
    limit: int
    garbage: float
    slices: float
    capacity: float
    utilisation: float
    decay: float
    commands_per_slice: float = COMMANDS_PER_SLICE
    commands_per_attempt: float = COMMANDS_PER_ATTEMPT
    commands_per_item: float = COMMANDS_PER_ITEM

    @property
    def keeps_up(self) -> bool:
        """Whether slices remove garbage faster than it comes."""
        return self.decay > 0.0

    @property
    def mean_lag(self) -> float:
        """Mean seconds between an item's end of life and its removal; inf: the lag only grows."""
        return 1.0 / self.decay if self.decay else math.inf

    @property
    def p99_lag(self) -> float:
        """Seconds within which slices remove 99 of 100 items; inf: the lag only grows."""
        return self.lag(0.99)

    def lag(self, share: float) -> float:
        """Return the seconds within which slices remove this share, 0 to 1, of all items."""
        return -math.log1p(-share) / self.decay if self.decay else math.inf

    @property
    def mean_backlog(self) -> float:
        """Mean number of items that wait; inf: the backlog only grows."""
        return self.garbage * self.mean_lag if self.garbage else 0.0

    @property
    def growth(self) -> float:
        """Items a second by which the backlog grows; 0.0 if it keeps up."""
        return 0.0 if self.keeps_up else max(0.0, self.garbage - self.capacity)

    @property
    def full_share(self) -> float:
        """The share of slices that find at least `limit` items, 0 to 1."""
        return _all_waiting(self.garbage, self.decay, self.limit) if self.keeps_up else 1.0

    @property
    def idle_share(self) -> float:
        """The share of slices that find nothing, 0 to 1."""
        if not self.keeps_up:
            return 0.0
        return self.decay / (self.garbage + self.decay)

    @property
    def operations(self) -> float:
        """Redis commands a second of all slices of all processes."""
        removed = min(self.garbage, self.capacity)
        each = self.commands_per_slice + (1.0 - self.idle_share) * self.commands_per_attempt
        return self.slices * each + removed * self.commands_per_item

    def drain_seconds(self, backlog: float) -> float:
        """Return the mean seconds until a backlog is gone although garbage comes; inf: never.

        Arguments:
            backlog: items, 0 or more.
        """
        if backlog <= 0:
            return 0.0
        if not self.keeps_up:
            return math.inf
        # The last slice is not full: on average it has room for nearly half of its items.
        spare = (self.limit - 1) / 2
        return max(1.0 / self.slices, (backlog + spare) / (self.capacity - self.garbage))


def forecast(
    traffic: float,
    garbage: float,
    limit: int,
    rate: float,
    *,
    commands_per_slice: float = COMMANDS_PER_SLICE,
    commands_per_attempt: float = COMMANDS_PER_ATTEMPT,
    commands_per_item: float = COMMANDS_PER_ITEM,
) -> Forecast:
    """Return the effect of a rate.

    Arguments:
        traffic: enlists a second of all processes.
        garbage: items a second.
        limit: items of a slice.
        rate: 0 < rate <= 1.
        commands_per_slice: as of Forecast.
        commands_per_attempt: as of Forecast.
        commands_per_item: as of Forecast.

    Raises: ConfigurationError for an impossible traffic, garbage, limit or rate.
    """
    _check(traffic, garbage, limit)
    if not _LEAST_RATE <= rate <= 1.0:
        raise ConfigurationError(
            f"a rate of {rate:g} is out of bounds: expected 0 < rate <= 1, at least {_LEAST_RATE:g}"
        )
    slices = traffic * rate
    capacity = slices * limit
    return Forecast(
        traffic=traffic,
        rate=rate,
        limit=limit,
        garbage=garbage,
        slices=slices,
        capacity=capacity,
        utilisation=garbage / capacity,
        decay=_decay(garbage, slices, limit),
        commands_per_slice=commands_per_slice,
        commands_per_attempt=commands_per_attempt,
        commands_per_item=commands_per_item,
    )


def choose_rate(
    traffic: float,
    garbage: float,
    limit: int,
    lag: Duration,
    *,
    share: float = 0.99,
    highest_utilisation: float = HIGHEST_UTILISATION,
) -> float:
    """Return the lowest rate at which slices remove a share of all items within a lag.

    The rate also leaves a reserve: slices are used to `highest_utilisation` at most. It is not
    rounded. The rate is above 1 if the traffic is too small.

    Arguments:
        traffic: as of `forecast`.
        garbage: as of `forecast`.
        limit: as of `forecast`.
        lag: in seconds or a timedelta.
        share: of the items, 0 to 1.
        highest_utilisation: 0 to 1.

    Raises: ConfigurationError for an impossible argument.
    """
    _check(traffic, garbage, limit)
    lag = seconds_of(lag, "lag", _LEAST, _MOST)
    if not 0.0 < share < 1.0:
        raise ConfigurationError(f"a share of {share!r} is out of bounds: expected 0 < share < 1")
    decay = -math.log1p(-share) / lag
    slices = decay / -math.expm1(-limit * math.log1p(decay / garbage)) if garbage else decay
    return max(slices, garbage / (limit * highest_utilisation)) / traffic


def utilisation(full_share: float, limit: int) -> float:
    """Return an estimate of garbage / capacity by the share of full slices.

    Arguments:
        full_share: of the slices of a job that keeps up, 0 to 1.
        limit: items of a slice.

    Returns: 0 to 1. The true figure may be above 1.0 if all slices are full.
    """
    if full_share <= 0.0:
        return 0.0
    if full_share >= 1.0:
        return 1.0
    # z is the probability that one more item waits. Then full_share = z ** limit, and the balance
    # of inflow and removal gives the rest.
    log_z = math.log(full_share) / limit
    return (1.0 - full_share) / (limit * math.expm1(-log_z))


def _decay(garbage: float, slices: float, limit: int) -> float:
    """Return the lag's decay: the root above 0 of slices * (1 - z ** limit) = decay.

    There z = garbage / (garbage + decay). The left side is smaller right of the root, and certainly
    at decay = slices, so halving finds the root.
    """
    if garbage >= slices * limit:
        return 0.0
    if not garbage:
        return slices
    low, high = 0.0, slices
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if slices * (1.0 - _all_waiting(garbage, middle, limit)) > middle:
            low = middle
        else:
            high = middle
    return high


def _all_waiting(garbage: float, decay: float, limit: int) -> float:
    """Return z ** limit, the probability that at least a whole slice of items waits."""
    if not garbage:
        return 0.0
    return math.exp(-limit * math.log1p(decay / garbage))


def _check(traffic: float, garbage: float, limit: int) -> None:
    if not _LEAST <= traffic <= _MOST:
        raise ConfigurationError(
            f"a traffic of {traffic:g} a second is out of bounds: expected {_LEAST:g} to {_MOST:g}"
        )
    if garbage and not _LEAST <= garbage <= _MOST:
        raise ConfigurationError(
            f"garbage of {garbage:g} items a second is out of bounds: expected 0, or {_LEAST:g} to"
            f" {_MOST:g}"
        )
    if not 1 <= limit <= _MOST_ITEMS:
        raise ConfigurationError(
            f"a slice of {limit} items is out of bounds: expected 1 to {_MOST_ITEMS:,}"
        )


HEAVY_TRAFFIC = 8.32
"""p99 / mean if nearly all slices are full: the solution of u K1(u) = 0.01, as u * u / 4."""

_SHARE = 0.99
# Larger slices with proportionally more garbage behave alike, so items are counted in lots.
_LARGEST_SLICE = 25
_MOST_STEPS = 1_000_000
_HALVINGS = 20
_TINY = 1e-6


def p99_lag(said: Forecast) -> float:
    """Return the seconds within which slices picking at random remove 99 of 100 items; inf: never.

    Arguments:
        said: the forecast of the rate.

    Takes a fifth of a second at most.
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
        # Light and heavy traffic are known, and the lag grows evenly between them.
        return max(said.p99_lag, HEAVY_TRAFFIC * said.mean_lag * said.utilisation)
    left = _left_after(like, waits, states, math.ceil(2 * events) + 50)
    return _quantile(left, like.garbage + like.slices, HEAVY_TRAFFIC * like.mean_lag)


def choose_rate_at_random(
    traffic: float,
    garbage: float,
    limit: int,
    lag: Duration,
    *,
    highest_utilisation: float = HIGHEST_UTILISATION,
) -> float:
    """Return the lowest rate at which slices picking at random remove 99 of 100 items within a lag.

    Arguments and errors: as of `choose_rate`.
    """
    low = choose_rate(traffic, garbage, limit, lag, highest_utilisation=highest_utilisation)
    within = seconds_of(lag, "lag", _LEAST, _MOST) * (1 + _TINY)
    # A rate above 1 says how much traffic is missing, so it is judged at more traffic.
    scale = max(1.0, 4 * low)

    def is_enough(rate: float) -> bool:
        said = forecast(traffic * scale, garbage, limit, rate / scale)
        return p99_lag(said) <= within

    if not garbage or is_enough(low):
        return low
    high = 2 * low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def round_up(rate: float) -> float:
    """Return a rate with three significant digits that is no lower."""
    if rate <= 0.0:
        return rate
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    # A rate that is round already must not go up by one because of its last bit.
    return float(f"{math.ceil(rate / unit * (1 - 1e-12)) * unit:.3g}")


def _left_after(said: Forecast, waits: float, states: int, most: int) -> list[float]:
    """Return the probability that an item is still there after 0, 1, 2, ... events.

    An event is an arrival or a slice. The next event is an arrival with the same probability after
    any past, so the chain needs no clock.
    """
    arrival = said.garbage / (said.garbage + said.slices)
    slice_ = 1.0 - arrival
    limit = said.limit
    # The probabilities of 0, 1, 2, ... other items beside it, as any arrival finds them.
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
    """Return the time until 99 of 100 items are gone, by random events of that number a second."""
    low, high = 0.0, 2 * guess
    for _ in range(50):
        middle = (low + high) / 2
        mean = events * middle
        log_mean, still = math.log(mean), 0.0
        for number, share in enumerate(left):
            still += share * math.exp(number * log_mean - mean - math.lgamma(number + 1))
        low, high = (middle, high) if still > 1.0 - _SHARE else (low, middle)
    return high
