"""Values of options: numbers, rates, durations and frequencies.

Each function is for argparse's `type=`: it takes the text of an option, and raises
ArgumentTypeError with one sentence for a wrong one.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

HIGHEST = 10**15
SHUFFLE, TIME = "shuffle", "time"
"""The kinds of queues, as --kind and JSON have them."""

LONGEST_DAYS = 36500
"""A hundred years: no system clock can sleep for much longer."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MULTIPLES = {"": 1.0, "k": 1e3, "M": 1e6}
_DURATION = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(ms|s|min|m|h|d)?")
_FREQUENCY = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kM]?)\s*(?:/\s*(s|min|m|h|d))?")


def number(text: str) -> float:
    """Return a finite number. Raises: ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not finite")
    return value


def rate(text: str) -> float:
    """Return a job's rate, 0 < rate <= 1. Raises: ArgumentTypeError."""
    value = number(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no rate: expected 0 < rate <= 1")
    return value


def whole(text: str) -> int:
    """Return a whole number. Raises: ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def at_least(lowest: int, what: str) -> Callable[[str], int]:
    """Return a function for whole numbers from `lowest` on.

    Arguments:
        what: their plural noun.
    """

    def parsed(text: str) -> int:
        value = whole(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{text} is too few {what}: at least {lowest}")
        if value > HIGHEST:
            raise argparse.ArgumentTypeError(f"that is too many {what}: at most {HIGHEST:,}")
        return value

    return parsed


def duration(text: str) -> float:
    """Return seconds above 0, up to a hundred years: `60`, `60s`, `500ms`, `5m`, `2h`, `1d`.

    Raises: ArgumentTypeError.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: expected 60s, 500ms, 5m or 2h")
    seconds = number(found[1]) * _SECONDS[found[2] or "s"]
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text} is too short: expected a duration above 0")
    if seconds > LONGEST_DAYS * _SECONDS["d"]:
        raise argparse.ArgumentTypeError(f"{text} is too long: at most {LONGEST_DAYS}d")
    return seconds


def frequency(text: str) -> float:
    """Return how often a second, 0 or more: `800/s`, `800`, `5k/s`, `30/min`, `2M/d`.

    Raises: ArgumentTypeError.
    """
    found = _FREQUENCY.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no frequency: expected 800/s, 5k/s, 30/min or 2M/d"
        )
    return number(found[1]) * _MULTIPLES[found[2]] / _SECONDS[found[3] or "s"]
