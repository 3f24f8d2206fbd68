"""The course of a tool: its frequency, its ends, its line on the terminal, and its dice.

Chance and time are arguments, so a test makes both certain.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from workstealing.cli.arguments import at_least, duration, number
from workstealing.cli.live import StopWish
from workstealing.cli.output import figure, say
from workstealing.clock import SYSTEM_CLOCK, Clock

MOST_A_SECOND = 1e6
# After a pause of the database a tool catches up with a second's worth, and not with all.
_CATCH_UP_SECONDS = 1.0
_DRAWN_SECONDS = 0.2

COUNT, TIME_OVER, SIGNAL = "count", "seconds", "signal"
"""Ends of a course, as JSON has them; a verb has further ones."""


class Course:
    """Leads a loop: says when the next act may begin, and when the loop ends, and by what.

    Arguments:
        wish: that it ends.
        per_second: how often an act may begin; None: as often as it can.
        count: after how many acts it ends; None: after no number.
        seconds: after how long it ends; None: after no time.
        clock: measures.

    Attributes: wish; acts: how many there were; ended_by: None as long as it goes on.
    """

    def __init__(
        self,
        wish: StopWish,
        *,
        per_second: float | None,
        count: int | None,
        seconds: float | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.wish = wish
        self.acts = 0
        self.ended_by: str | None = None
        self._gap = 0.0 if per_second is None else 1 / per_second
        self._count = math.inf if count is None else count
        self._clock = clock
        self._begun = self._next = clock.monotonic()
        self._end = math.inf if seconds is None else self._begun + seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock.monotonic() - self._begun

    def goes_on(self) -> bool:
        """Say whether it goes on now."""
        if self.ended_by is None:
            if self.acts >= self._count:
                self.end(COUNT)
            elif self.wish.is_set():
                self.end(SIGNAL)
            elif self._clock.monotonic() >= self._end:
                self.end(TIME_OVER)
        return self.ended_by is None

    def end(self, by: str) -> None:
        """End it, unless it has ended."""
        self.ended_by = self.ended_by or by

    def next(self) -> bool:
        """Wait for the turn of the next act; say whether there is one."""
        while self.goes_on():
            left = self._next - self._clock.monotonic()
            if left <= 0:
                return True
            self.pause(left)
        return False

    def note_act(self) -> None:
        """Note that an act was done, so that the next one waits for its own turn."""
        self.acts += 1
        earliest = self._clock.monotonic() - _CATCH_UP_SECONDS
        self._next = max(self._next, earliest) + self._gap

    def pause(self, seconds: float) -> None:
        """Wait, and no longer than it goes on."""
        self.wish.wait(max(0.0, min(seconds, self._end - self._clock.monotonic())))

    def frequency(self) -> str:
        """Return how often acts were done, for people."""
        return f"{figure(self.acts / self.elapsed if self.elapsed else 0.0)} a second"


class LiveLine:
    """A line on a terminal that is written over again and again; elsewhere there is none.

    Arguments:
        is_quiet: there is none either.
        clock: so that it is written five times a second at most.
    """

    def __init__(self, *, is_quiet: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self._is_live = sys.stdout.isatty() and not is_quiet
        self._clock = clock
        self._drawn = -math.inf

    def show(self, text: Callable[[], str]) -> None:
        """Write it over, unless that was just done."""
        if self._is_live and self._clock.monotonic() - self._drawn >= _DRAWN_SECONDS:
            self._drawn = self._clock.monotonic()
            # A line that the terminal wraps cannot be written over.
            width = shutil.get_terminal_size().columns - 1
            say(f"\r\x1b[K{text()[:width]}", end="")

    def print(self, text: str) -> None:
        """Print a line that stays, in place of it."""
        say(f"\r\x1b[K{text}" if self._is_live else text)
        self._drawn = -math.inf


class Spread(NamedTuple):
    """Seconds between two bounds, of which each is as likely. Fields: least; most."""

    least: float
    most: float

    def draw(self, chance: random.Random) -> float:
        """Return some seconds within the bounds."""
        return self.least if self.least == self.most else chance.uniform(*self)


class Weighted(NamedTuple):
    """A name, and how often it comes in relation to others. Fields: name; weight."""

    name: Any
    weight: float


def drawn(shares: Sequence[Weighted], chance: random.Random) -> Any:
    """Return the name of one of some shares, each as often as its weight says."""
    if len(shares) == 1:
        return shares[0].name
    (name,) = chance.choices([each.name for each in shares], [each.weight for each in shares])
    return name


def per_second(text: str) -> float | None:
    """Return how often a second: above 0, or None for `max`. Raises: ArgumentTypeError."""
    if text == "max":
        return None
    value = number(text)
    if not 0 < value <= MOST_A_SECOND:
        raise argparse.ArgumentTypeError(
            f"{text} is no frequency: expected a number above 0, up to {MOST_A_SECOND:,.0f}, or max"
        )
    return value


def spread(text: str) -> Spread:
    """Return a time from 0 on, or two bounds: `30`, `500ms`, `0..60`, `10s..5m`.

    Raises: ArgumentTypeError.
    """
    least, dots, most = text.partition("..")
    bounds = Spread(_time(least), _time(most if dots else least))
    if bounds.least > bounds.most:
        raise argparse.ArgumentTypeError(
            f"{text!r} has its bounds in the wrong order: give the lower one first"
        )
    return bounds


def _time(text: str) -> float:
    try:
        is_zero = float(text) == 0
    except ValueError:
        is_zero = False
    return 0.0 if is_zero else duration(text)


def share(text: str) -> Weighted:
    """Return a name with its share: `loud=9`, or `quiet`, which is 1. Raises: ArgumentTypeError."""
    name, equals, weight = text.rpartition("=")
    if not equals:
        name, weight = text, "1"
    value = number(weight)
    if not name or not 0 < value <= MOST_A_SECOND:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no share: expected a name, or a name and a number above 0, as loud=9"
        )
    return Weighted(name, value)


def portion(text: str) -> float:
    """Return a portion of messages, 0 to 1. Raises: ArgumentTypeError."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no portion: expected 0 to 1")
    return value


def add_course_options(parser: argparse.ArgumentParser, frequency: str, acts: str) -> None:
    """Add --per-second, --count, --seconds and --seed to a verb's options.

    Arguments:
        frequency: the default, for people.
        acts: the noun for what is counted.
    """
    parser.add_argument(
        "--per-second",
        type=per_second,
        default=argparse.SUPPRESS,
        metavar="N",
        help=f"how many {acts} a second, 0.5 for instance; max: as many as go (default:"
        f" {frequency})",
    )
    parser.add_argument(
        "--count", type=at_least(1, acts), metavar="N", help=f"end after so many {acts}"
    )
    parser.add_argument(
        "--seconds", type=duration, metavar="S", help="end after so long: 30s, 5m or 2h"
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="make the same random choices again, as another run with this number",
    )
