"""The picture of a comparison, as SVG: the age of the oldest garbage, and the operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from simulation.running import Run

_COLOURS = ("#0b6e4f", "#c1121f", "#e07a1f", "#3a5fcd", "#7d3ac1", "#8a5a2b", "#5c6670")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 640, 220, 64, 34, 62
_POINTS = 240
_LEGEND_LINE = 18


def picture(runs: Sequence[Run]) -> str:
    """Return an SVG of runs of one scenario: ages above, operations below, a legend at the end.

    Arguments:
        runs: at least one.

    Both vertical axes are logarithmic.
    """
    scenario = runs[0].scenario
    seconds, lag = float(scenario.seconds), scenario.lag
    height = _TOP + 2 * (_HEIGHT + _GAP) + _LEGEND_LINE * ((len(runs) + 1) // 2) + 10
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}"'
            ' font-family="sans-serif" font-size="12" role="img">'
        ),
        f"<title>{_title(runs)}</title>",
        f'<rect width="{_LEFT + _WIDTH + 20}" height="{height}" fill="#fff"/>',
    ]
    ages = [_thinned(run.ages, max) for run in runs]
    costs = [_thinned(run.record.operations_by_time(seconds), _mean) for run in runs]
    first = _Panel(_TOP, "age of the oldest garbage, seconds", -1, 4, seconds)
    second = _Panel(_TOP + _HEIGHT + _GAP, "operations per second", 0, 4, seconds)
    parts += first.frame(scenario.step)
    parts.append(
        f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{first.y(lag):.1f}" y2="{first.y(lag):.1f}"'
        ' stroke="#000" stroke-dasharray="5 4"/>'
        f'<text x="{_LEFT + 6}" y="{first.y(lag) - 5:.1f}">lag target</text>'
    )
    parts += second.frame(scenario.step)
    for panel, lines in ((first, ages), (second, costs)):
        parts += [
            panel.line(values, _COLOURS[number % len(_COLOURS)])
            for number, values in enumerate(lines)
        ]
    bottom = _TOP + 2 * (_HEIGHT + _GAP)
    for number, run in enumerate(runs):
        x, y = _LEFT + (number % 2) * 320, bottom + _LEGEND_LINE * (number // 2)
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}"'
            f' stroke-width="3"/><text x="{x + 28}" y="{y}">{escape(run.name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _title(runs: Sequence[Run]) -> str:
    before, after = runs[0].scenario.garbage
    return escape(f"What becomes of {before:g} and then {after:g} items of garbage a second")


class _Panel:
    """One diagram, with a logarithmic axis from 10 ** low to 10 ** high, and time from left."""

    def __init__(self, top: int, title: str, low: int, high: int, seconds: float) -> None:
        self._top = top
        self._title = title
        self._low = low
        self._high = high
        self._seconds = seconds

    def y(self, value: float) -> float:
        """Return where a value lies; what is below the axis lies on it."""
        power = math.log10(value) if value > 0.0 else float(self._low)
        share = (min(max(power, self._low), self._high) - self._low) / (self._high - self._low)
        return self._top + _HEIGHT * (1.0 - share)

    def frame(self, step: float) -> list[str]:
        """Return title, axes and the moment at which the inflow changes."""
        parts = [
            (
                f'<text x="{_LEFT}" y="{self._top - 10}" font-weight="bold">'
                f"{escape(self._title)}</text>"
            )
        ]
        for power in range(self._low, self._high + 1):
            y = self.y(10.0**power)
            parts.append(
                f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"'
                f' stroke="#ddd"/><text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
                f"{10.0**power:,g}</text>"
            )
        bottom = self._top + _HEIGHT
        for tick in range(5):
            x = _LEFT + _WIDTH * tick / 4
            minutes = self._seconds * tick / 240
            parts.append(
                f'<text x="{x:.0f}" y="{bottom + 17}" text-anchor="middle">{minutes:g} min</text>'
            )
        x = _LEFT + _WIDTH * step / self._seconds
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self._top}" y2="{bottom}" stroke="#999"/>'
        )
        return parts

    def line(self, values: Sequence[float], colour: str) -> str:
        """Return a line through values that are evenly spread over the time."""
        points = " ".join(
            f"{_LEFT + _WIDTH * (number + 0.5) / len(values):.1f},{self.y(value):.1f}"
            for number, value in enumerate(values)
        )
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _thinned(values: Sequence[float], summed: Callable[[Sequence[float]], float]) -> list[float]:
    """Return at most so many values as a picture can show, each of one stretch."""
    if len(values) <= _POINTS:
        return list(values)
    size = len(values) / _POINTS
    return [
        summed(values[int(number * size) : max(int(number * size) + 1, int((number + 1) * size))])
        for number in range(_POINTS)
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
