"""The picture of `workstealing plan`: lag and operations by rate, as one SVG without script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from workstealing.recruiting.forecast import Forecast

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 70, 50, 50
POINTS = 200
_STYLE = """\
text{font:12px sans-serif;fill:#333}.title{font-size:14px;font-weight:bold}
.grid{stroke:#ddd}.frame{stroke:#888;fill:none}path,.key{fill:none;stroke-width:2}
.mean{stroke:#1b7837}.p99{stroke:#762a83}.ops{stroke:#b35806;stroke-dasharray:2 3}
.target{stroke:#c00;stroke-dasharray:6 4}.chosen{stroke:#333}.lost{fill:#c00;opacity:.09}
@media(prefers-color-scheme:dark){svg{background:#1b1b1b}text{fill:#ddd}.grid{stroke:#333}
.mean{stroke:#7fbf7b}.p99{stroke:#c2a5cf}.ops{stroke:#fdb863}.chosen{stroke:#eee}}"""


class _Scale:
    """A logarithmic scale. Arguments: low, high: of the values; start, end: of the pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, max(high, low * 10)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        """Return the pixel of a value, kept inside the frame."""
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> Iterator[float]:
        """Yield round values: powers of ten, and 2 and 5 times those on a short scale."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if self.high < 100 * self.low else (1,)
        for power in range(first, last + 1):
            for step in steps:
                value = step * 10.0**power
                if self.low <= value <= self.high:
                    yield value


def picture(at: Callable[[float], Forecast], said: Forecast, target: float | None) -> str:
    """Return the picture.

    Arguments: at: returns the forecast at a rate; said: the forecast to be marked; target: the lag
    in seconds to be marked, or None.
    """
    saturated = said.garbage / (said.traffic * said.limit)
    low = min(said.rate, saturated or said.rate) / 5
    high = min(1.0, max(said.rate, saturated) * 20)
    low = min(low, high / 10)
    rates = [low * (high / low) ** (step / POINTS) for step in range(POINTS + 1)]
    all_of_them = [at(rate) for rate in rates]
    kept = [each for each in all_of_them if each.keeps_up]
    lags = [lag for each in kept for lag in (each.mean_lag, each.p99_lag)] + [target or 1.0]
    spread = max(lags) if max(lags) < 1e4 * min(lags) else 1e4 * min(lags)
    x = _Scale(low, high, LEFT, WIDTH - RIGHT)
    y = _Scale(min(lags) / 2, max(spread, target or 0.0) * 2, HEIGHT - BOTTOM, TOP)
    costs = [each.operations for each in all_of_them if each.operations > 0] or [1.0]
    cost = _Scale(min(costs) / 2, max(costs) * 2, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<style>{_STYLE}</style>",
        _text(LEFT, 22, _title(said), "title"),
        *_grid(x, y, cost),
    ]
    if saturated > low:
        width = x(saturated) - LEFT
        parts.append(
            f'<rect class="lost" x="{LEFT}" y="{TOP}" width="{width:.1f}"'
            f' height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        parts.append(_text(LEFT + 4, HEIGHT - BOTTOM - 6, "cannot keep up"))
    parts += [
        _curve("mean", [(x(each.rate), y(each.mean_lag)) for each in kept]),
        _curve("p99", [(x(each.rate), y(each.p99_lag)) for each in kept]),
        _curve("ops", [(x(e.rate), cost(e.operations)) for e in all_of_them if e.operations > 0]),
    ]
    if target is not None:
        parts.append(_line("target", LEFT, y(target), WIDTH - RIGHT, y(target)))
    parts.append(_line("chosen", x(said.rate), TOP, x(said.rate), HEIGHT - BOTTOM))
    parts += [*_key(said, target), "</svg>"]
    return "\n".join(part for part in parts if part) + "\n"


def _title(said: Forecast) -> str:
    return (
        f"traffic {said.traffic:g}/s, garbage {said.garbage:g} items/s, slices of {said.limit}:"
        f" rate {said.rate:g}"
    )


def _grid(x: _Scale, y: _Scale, cost: _Scale) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for rate in x.ticks():
        yield _line("grid", x(rate), TOP, x(rate), bottom)
        yield _text(x(rate), bottom + 16, f"{rate:g}", anchor="middle")
    for lag in y.ticks():
        yield _line("grid", LEFT, y(lag), right, y(lag))
        yield _text(LEFT - 6, y(lag) + 4, f"{lag:g} s", anchor="end")
    for operations in cost.ticks():
        yield _text(right + 6, cost(operations) + 4, f"{operations:,.7g}/s")
    yield (
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'
    )
    yield _text((LEFT + right) / 2, HEIGHT - 12, "rate", anchor="middle")


def _key(said: Forecast, target: float | None) -> Iterator[str]:
    entries = [("mean", "mean lag"), ("p99", "p99, oldest first"), ("ops", "commands/s (right)")]
    if target is not None:
        entries.append(("target", f"wanted: {target:g} s"))
    entries.append(("chosen", f"rate {said.rate:g}"))
    left = float(LEFT)
    for kind, text in entries:
        yield f'<path class="{kind} key" d="M{left:.0f} 38h18"/>'
        yield _text(left + 23, 42, text)
        left += 40 + 7 * len(text)


def _curve(kind: str, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    return f'<path class="{kind}" d="M' + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + '"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named} text-anchor="{anchor}">{text}</text>'
