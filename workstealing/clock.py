"""The local clock, and durations: as arguments, and as texts for people.

The clock is an argument: what this process measures with and what tests set by hand. Nothing that
is shared is ever judged by it: expiry, leases and staleness go by the TIME of the server that holds
the keys. The choice of a time shard is the one exception.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from typing import Protocol

from workstealing.errors import ConfigurationError

UNKNOWN = "\N{EN DASH}"
"""Stands in a text for a figure that nobody knows."""

_LENGTHS = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0))


class Clock(Protocol):
    """A clock that measures durations in this process."""

    def monotonic(self) -> float:
        """Return seconds since some fixed moment, never going back."""
        ...


class WallClock(Protocol):
    """A clock that chooses a time shard: only here, on purpose, a client's time of day counts."""

    def time(self) -> float:
        """Return seconds since the Unix epoch."""
        ...


class SystemClock:
    """The operating system's clocks."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def __repr__(self) -> str:
        # Signatures show it as the default of an argument.
        return "SYSTEM_CLOCK"


SYSTEM_CLOCK = SystemClock()

Duration = float | dt.timedelta
"""A length of time: a number of seconds, or a timedelta."""

LONGEST_SECONDS = 100 * 365 * 86400.0
"""A hundred years: longer than anything here lasts, and a number that every server takes."""


def seconds_of(
    duration: object, name: str, least: float = 0.0, most: float = LONGEST_SECONDS
) -> float:
    """Return a length of time in seconds.

    Arguments:
        duration: a number of seconds, or a timedelta.
        name: of the argument, for the error.
        least: its bounds, in seconds.
        most: its bounds, in seconds.

    Raises: ConfigurationError for anything else.
    """
    seconds = duration.total_seconds() if isinstance(duration, dt.timedelta) else duration
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # NaN is in no range.
    if not is_number or not least <= seconds <= most:  # type: ignore[operator]
        raise ConfigurationError(
            f"{name}={duration!r} is no such time: give a number of seconds, {least:g} to"
            f" {most:g}, or a timedelta"
        )
    return float(seconds)  # type: ignore[arg-type]


def milliseconds_of(duration: object, name: str, most: float = LONGEST_SECONDS) -> int:
    """Return a length of time in whole milliseconds, 1 or more.

    Arguments as of `seconds_of`; the least is a millisecond. Raises: as `seconds_of`.
    """
    return round(1000 * seconds_of(duration, name, 0.001, most))


def spell(seconds: float | None, *, whole: bool = False) -> str:
    """Return a duration for people, by default with three significant digits.

    Arguments:
        seconds: a negative one is none.
        whole: in whole units, of a second at least.
    """
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    smallest = ("ms", 0.001) if 0.0 < seconds < 1.0 and not whole else ("s", 1.0)
    unit, length = next((each for each in _LENGTHS if seconds >= 2.0 * each[1]), smallest)
    count = max(0.0, seconds / length)
    return f"{count:,.0f} {unit}" if whole or count >= 100.0 else f"{count:.3g} {unit}"


def roughly(seconds: float) -> str:
    """Return a duration for sentences: as `spell`, in whole units."""
    return spell(seconds, whole=True)
