"""Sizes from samples: how many bytes a family has, and how sure that is.

Each key of a small family is measured. The k-th key of a large one is measured with the probability
K / k, where K grows as long as the interval is too wide: few samples suffice where all keys are
alike, and a heavy tail gets as many as it needs. A total is Hájek's: the number of keys, which SCAN
counts, times the weighted mean; its variance is that of Poisson sampling (Särndal, Swensson,
Wretman: Model Assisted Survey Sampling, Springer 1992, sections 3.2 and 5.7). A key with many
elements is measured by some of these, which is a second stage of sampling: the variance of each
such key is added with its weight (the same, section 4.3). So an interval covers both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

ALWAYS = 1_000
"""A family's first keys, which are all measured."""

TARGET = 0.03
"""The half width of an interval, relative to its middle, above which more is measured."""

MOST = 1 << 20
_FIRST, _CHECK_EVERY = 4_000, 500
NORMAL = 1.96
"""The half width of an interval of 95 %, in standard deviations."""
# A share of which no case was met in n lies below 3 / n, with 95 % (Hanley, Lippman-Hand: If
# Nothing Goes Wrong, Is Everything All Right?, JAMA 1983).
_RULE_OF_THREE = 3.0
_ROUNDING = 1e-10


class Estimate(NamedTuple):
    """A figure with its interval of 95 %. Fields: value; low; high."""

    value: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether nothing was estimated."""
        return self.low == self.high


NOTHING = Estimate(0.0, 0.0, 0.0)


def total_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the sum of independent estimates."""
    value = math.fsum(each.value for each in estimates)
    below = math.sqrt(math.fsum((each.value - each.low) ** 2 for each in estimates))
    above = math.sqrt(math.fsum((each.high - each.value) ** 2 for each in estimates))
    return Estimate(value, max(0.0, value - below), value + above)


class Total:
    """The total of a value over all keys of a family, from the keys that were measured.

    A total is the sum of the totals of the family's parts, so families can be merged.
    """

    __slots__ = ("_a", "_ay", "_ayy", "_inner", "_largest", "_w", "_wy", "measured")

    def __init__(self) -> None:
        self.measured = 0
        # Sums of weights and weighted values; and of w(w - 1), the terms of the variance.
        self._w = self._wy = self._a = self._ay = self._ayy = 0.0
        # The variance that the measuring of each key has by itself.
        self._inner = 0.0
        # The most that one more key, such as the largest of those seen, would add.
        self._largest = 0.0

    def note(
        self, value: float, weight: float, variance: float = 0.0, *, times: float = 1.0
    ) -> None:
        """Note a measured key, or several parts of a key that were measured together.

        Arguments:
            value: of each.
            weight: 1 / its probability to be measured.
            variance: of the value itself, if it was estimated, 0.0: it is exact.
            times: how many parts there are.
        """
        self.measured += 1
        spread = weight * (weight - 1.0) * times * times
        self._w += weight * times
        self._wy += weight * times * value
        self._a += spread
        self._ay += spread * value
        self._ayy += spread * value * value
        self._largest = max(self._largest, (weight - 1.0) * value * times)
        self._inner += weight * times * variance

    def merge(self, other: Total) -> None:
        """Add the measured keys of another family."""
        self.measured += other.measured
        for name in ("_w", "_wy", "_a", "_ay", "_ayy", "_inner"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._largest = max(self._largest, other._largest)

    @property
    def mean(self) -> float:
        """The mean value of a key; 0.0 if none was measured."""
        return self._wy / self._w if self._w else 0.0

    def of(self, keys: float) -> Estimate:
        """Return the total over so many keys."""
        if not self._w or not keys:
            return NOTHING
        value = self._wy if self._w == keys else keys * self.mean
        half = self._half(keys)
        if not half:
            return Estimate(value, value, value)
        # Half of one more large key: a sample of a heavy tail looks too even.
        return Estimate(value, max(0.0, value - half), value + half + self._largest / 2)

    def of_share(self, keys: float) -> Estimate:
        """Return the total over so many keys of a value that is 0 or 1.

        A sample of which all values are the same does not prove that of the rest.
        """
        found = self.of(keys)
        if self.measured >= keys or not self.measured or not found.is_exact:
            return found
        rest = min(1.0, _RULE_OF_THREE / self.measured) * (keys - self.measured)
        if self.mean:
            return Estimate(found.value, found.value - rest, found.value)
        return Estimate(0.0, 0.0, rest)

    def relative(self, keys: float) -> float:
        """Return the half width of the interval, relative to the total."""
        value = keys * self.mean
        return self._half(keys) / value if value > 0 else 0.0

    def _half(self, keys: float) -> float:
        mean = self.mean
        variance = self._ayy - 2 * mean * self._ay + mean * mean * self._a
        # Rounding leaves a little where all values are alike.
        if variance <= _ROUNDING * self._ayy:
            variance = 0.0
        return NORMAL * math.sqrt(variance + self._inner) * keys / self._w

    def state(self) -> list[float]:
        """Return it as plain data."""
        sums = [self._w, self._wy, self._a, self._ay, self._ayy, self._largest, self._inner]
        return [self.measured, *sums]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Total:
        """Return it from plain data."""
        made = cls()
        made.measured = int(state[0])
        sums = map(float, state[1:])
        made._w, made._wy, made._a, made._ay, made._ayy, made._largest, made._inner = sums
        return made


class Finding:
    """The garbage that one rule has found in one family.

    Attributes: key: of the rule, in `Judges.asked`; items: how much garbage, in the rule's unit;
    found: how often; size: of the garbage that was measured; unknown: how many items have a layout
    that the rule does not know, and why; is_exact: whether all items were judged and counted.
    """

    __slots__ = (
        "_bounds",
        "_variance",
        "found",
        "is_exact",
        "items",
        "key",
        "size",
        "unknown",
        "why",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.items = self.found = 0.0
        # Of the number of items: that of the sample, and what bounds leave open below and above.
        self._variance = 0.0
        self._bounds = (0.0, 0.0)
        self.size = Total()
        self.unknown, self.why = 0.0, ""
        self.is_exact = True

    def note(self, weight: float, number: float, low: float, high: float) -> None:
        """Note an item that is garbage.

        Arguments:
            weight: 1 / its probability to be judged.
            number: of its parts, and low and high: the bounds within which that lies.
        """
        self.items += weight * number
        self._variance += weight * (weight - 1.0) * number * number
        below, above = self._bounds
        self._bounds = (below + weight * (number - low), above + weight * (high - number))
        self.is_exact = self.is_exact and weight == 1.0 and low == high

    @property
    def estimate(self) -> Estimate:
        """The number of items with its interval.

        The interval is Horvitz and Thompson's, of 95 %, and wider by the bounds of the numbers that
        were estimated for single keys.
        """
        if self.is_exact:
            return Estimate(self.items, self.items, self.items)
        half = NORMAL * math.sqrt(self._variance)
        below, above = self._bounds
        low = max(0.0, self.items - half - below)
        return Estimate(self.items, low, self.items + half + above)

    def merge(self, other: Finding) -> None:
        """Add what the rule has found in another family."""
        self.items += other.items
        self.found += other.found
        self._variance += other._variance
        self._bounds = (self._bounds[0] + other._bounds[0], self._bounds[1] + other._bounds[1])
        self.size.merge(other.size)
        self.unknown += other.unknown
        self.why = self.why or other.why
        self.is_exact = self.is_exact and other.is_exact

    def state(self) -> list[Any]:
        """Return it as plain data."""
        more = [self.unknown, self.why, self.is_exact, self._variance, *self._bounds]
        return [self.key, self.items, self.found, self.size.state(), *more]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Finding:
        """Return it from plain data."""
        made = cls(state[0])
        made.items, made.found = state[1], state[2]
        made.size = Total.from_state(state[3])
        made.unknown, made.why, made.is_exact, made._variance, *bounds = state[4:]
        made._bounds = (bounds[0], bounds[1])
        return made


class Choice:
    """Which keys of a family are measured.

    Arguments:
        share: of the keys after the first ones, None: as many as the interval takes.
    """

    __slots__ = ("_asked", "_room", "_share")

    def __init__(self, share: float | None = None, room: int = _FIRST) -> None:
        self._share, self._room, self._asked = share, room, 0

    def weight(self, number: int, random: Callable[[], float]) -> float:
        """Return the weight of a family's next key; 0.0: it is not measured.

        Arguments:
            number: of the key in its family, from 1 on.
            random: returns a float in [0, 1).
        """
        if number <= ALWAYS:
            return 1.0
        probability = self._room / number if self._share is None else self._share
        if probability >= 1.0:
            return 1.0
        return 1.0 / probability if random() < probability else 0.0

    def look(self, total: Total, keys: int) -> None:
        """Measure more from now on if the interval of the total is too wide."""
        self._asked += 1
        if self._share is None and self._asked % _CHECK_EVERY == 0:
            # A sample that is still short says little of its own spread.
            wide = total.relative(keys) > TARGET
            if wide and self._room < MOST:
                self._room *= 2

    def merge(self, other: Choice) -> None:
        """Let this choice cover the keys of another family, too."""
        self._room = max(self._room, other._room)

    @property
    def room(self) -> int:
        """About half of the keys that are measured of a very large family."""
        return self._room
