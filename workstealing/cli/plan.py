"""`workstealing plan`: the rate to choose, its lag and its cost, also as a picture."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workstealing.cli.arguments import at_least, duration, frequency, number, rate
from workstealing.cli.output import add_json_option, figure, note, print_json, say
from workstealing.clock import spell
from workstealing.errors import ConfigurationError
from workstealing.recruiting.forecast import (
    COMMANDS_PER_ATTEMPT,
    COMMANDS_PER_ITEM,
    COMMANDS_PER_SLICE,
    HIGHEST_UTILISATION,
    Forecast,
    choose_rate_at_random,
    forecast,
    p99_lag,
    round_up,
)

DEFAULT_LAG = 60.0
CANNOT_KEEP_UP = 1

DESCRIPTION = """\
Forecast a job: the rate to choose for a lag, and the lag, the operations and the time to drain a
backlog at that rate. It is arithmetic only, without any connection. docs/forecast.md has the
formulas.
"""
EPILOG = """\
exit status: 0, or 1 if that traffic cannot keep up with that garbage or misses the lag, or 2 for
bad input. Example: workstealing plan --traffic 800/s --garbage 120/s --slice 25 --lag 60s
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument(
        "--traffic",
        type=frequency,
        required=True,
        metavar="N/s",
        help="callers who enlist, of all processes together: 800/s, 5k/s, 30/min or 2M/d",
    )
    parser.add_argument(
        "--garbage",
        type=frequency,
        required=True,
        metavar="N/s",
        help="items that become garbage: 120/s, 5k/min or 2M/d",
    )
    parser.add_argument(
        "--slice",
        type=at_least(1, "items"),
        default=25,
        metavar="ITEMS",
        help="the most items of a slice, the job's limit (default: 25)",
    )
    parser.add_argument(
        "--lag",
        type=duration,
        metavar="S",
        help="how long until 99 of 100 items are removed: 60s, 500ms, 5m or 2h (default:"
        f" {DEFAULT_LAG:g}s, or none if a rate is given)",
    )
    parser.add_argument(
        "--rate", type=rate, metavar="R", help="forecast this rate instead of choosing one"
    )
    parser.add_argument(
        "--backlog",
        type=at_least(0, "items"),
        metavar="ITEMS",
        help="say how long a backlog of so many items takes to drain",
    )
    parser.add_argument(
        "--commands-per-slice",
        type=_not_negative,
        default=COMMANDS_PER_SLICE,
        metavar="N",
        help="commands of a slice that finds nothing (default: %(default)g)",
    )
    parser.add_argument(
        "--commands-per-attempt",
        type=_not_negative,
        default=COMMANDS_PER_ATTEMPT,
        metavar="N",
        help="additional commands of a slice that finds something (default: %(default)g)",
    )
    parser.add_argument(
        "--commands-per-item",
        type=_not_negative,
        default=COMMANDS_PER_ITEM,
        metavar="N",
        help="additional commands for each item (default: %(default)g)",
    )
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw lag and operations by rate into this file"
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the forecast.

    Returns: 0 if the job keeps up, and within the lag, otherwise 1. Raises: ConfigurationError.
    """
    if not options.traffic:
        raise ConfigurationError("--traffic is 0: expected callers who enlist")
    target = DEFAULT_LAG if options.lag is None and options.rate is None else options.lag
    plan = Plan(options, target)
    if options.svg is not None:
        try:
            options.svg.write_text(picture(plan.at, plan.said, target), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--svg cannot be written: {error}") from None
        note(f"drawn into {options.svg}")
    if options.json:
        print_json(plan.as_dict())
    else:
        say(plan.as_text())
    return 0 if plan.is_good else CANNOT_KEEP_UP


class Plan:
    """A forecast, and the figures that it was asked for.

    Arguments:
        options: of the command.
        target: the lag in seconds within which 99 of 100 items are to be removed, or None.
    """

    def __init__(self, options: argparse.Namespace, target: float | None) -> None:
        self._options = options
        self.target = target
        self.for_lag = self.wanted = options.rate
        if target is not None:
            asked = (options.traffic, options.garbage, options.slice, target)
            # The rate that the lag alone would need, without the reserve.
            self.for_lag = choose_rate_at_random(*asked, highest_utilisation=1.0)
            if options.rate is None:
                self.wanted = round_up(choose_rate_at_random(*asked))
        self.said = self.at(min(1.0, self.wanted))
        self.p99_lag = p99_lag(self.said)
        self.is_good = self.said.keeps_up and (
            target is None or self.p99_lag <= target * (1 + 1e-6)
        )

    def at(self, rate: float) -> Forecast:
        """Return the forecast at a rate."""
        return forecast(
            self._options.traffic,
            self._options.garbage,
            self._options.slice,
            rate,
            commands_per_slice=self._options.commands_per_slice,
            commands_per_attempt=self._options.commands_per_attempt,
            commands_per_item=self._options.commands_per_item,
        )

    @property
    def decided_by(self) -> str:
        """The reason for the rate: "given", "lag" or "reserve"."""
        if self._options.rate is not None:
            return "given"
        return "lag" if self.wanted <= round_up(self.for_lag) else "reserve"

    def as_dict(self) -> dict[str, Any]:
        """Return every figure; seconds end in _s, frequencies in _per_s, None stands for never."""
        said = self.said
        backlog = self._options.backlog
        return {
            "traffic_per_s": said.traffic,
            "garbage_per_s": said.garbage,
            "slice": said.limit,
            "lag_target_s": self.target,
            "rate": said.rate,
            "rate_wanted": self.wanted,
            "decided_by": self.decided_by,
            "keeps_up": said.keeps_up,
            "meets_lag": None if self.target is None else self.is_good,
            "slices_per_s": said.slices,
            "capacity_per_s": said.capacity,
            "utilisation": said.utilisation,
            "lag_mean_s": said.mean_lag,
            "lag_p99_s": self.p99_lag,
            "lag_p99_oldest_first_s": said.p99_lag,
            "backlog_mean": said.mean_backlog,
            "growth_per_s": said.growth,
            "idle_share": said.idle_share,
            "full_share": said.full_share,
            "operations_per_s": said.operations,
            "least_traffic_per_s": said.garbage / (said.rate * said.limit),
            "backlog": backlog,
            "drain_s": None if backlog is None else said.drain_seconds(backlog),
        }

    def as_text(self) -> str:
        """Return the forecast for people."""
        said = self.said
        lines = [
            f"traffic {figure(said.traffic)}/s, garbage {figure(said.garbage)} items/s, slices of"
            f" {said.limit}" + (f", 99 of 100 within {spell(self.target)}" if self.target else ""),
            "",
            self._chosen(),
            (
                f"slices       {figure(said.slices)}/s, {said.idle_share:.0%} of them idle,"
                f" {said.full_share:.0%} full"
            ),
            f"capacity     {figure(said.capacity)} items/s, used to {said.utilisation:.0%}",
        ]
        if said.keeps_up:
            least = figure(said.garbage / (said.rate * said.limit))
            lines += [
                (
                    f"keeps up     yes, as long as more than {least}/s enlist and garbage stays"
                    f" below {figure(said.capacity)} items/s"
                ),
                f"lag          {spell(said.mean_lag)} mean, {spell(self.p99_lag)} p99"
                + ("" if self.is_good else f": more than the {spell(self.target or 0.0)} wanted"),
                f"waiting      {figure(said.mean_backlog)} items on average",
            ]
        else:
            lines.append(f"keeps up     NO: the backlog grows by {figure(said.growth)} items/s")
        lines.append(f"operations   {figure(said.operations)} commands/s")
        if self._options.backlog is not None:
            seconds = said.drain_seconds(self._options.backlog)
            when = f"in {spell(seconds)}" if said.keeps_up else "never"
            lines.append(f"drain        {self._options.backlog:,} items {when}")
        if self.wanted > 1.0:
            lines += ["", self._advice()]
        return "\n".join(lines)

    def _chosen(self) -> str:
        rate = self.said.rate
        if self.wanted > 1.0:
            return f"rate         1: every caller, and {figure(self.wanted)} would be needed"
        line = f"rate         {figure(rate)}: one in {figure(1 / rate)} callers"
        if self.decided_by == "reserve":
            used = f"{HIGHEST_UTILISATION:.0%}"
            line += f" (for a use of {used}; the lag alone needs {figure(self.for_lag)})"
        return line

    def _advice(self) -> str:
        said = self.said
        if said.garbage <= HIGHEST_UTILISATION * said.traffic * said.limit:
            return f"So short a lag needs a traffic of {figure(said.traffic * self.wanted)}/s."
        items = math.ceil(said.garbage / (HIGHEST_UTILISATION * said.traffic))
        return f"So much garbage needs slices of {items} items or more at this traffic."


def _not_negative(text: str) -> float:
    value = number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


# The picture: lag and operations by rate, as one SVG without script.
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
    """A logarithmic scale.

    Arguments:
        low: of the values.
        high: of the values.
        start: of the pixels.
        end: of the pixels.
    """

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

    Arguments:
        at: returns the forecast at a rate.
        said: the forecast to be marked.
        target: the lag in seconds to be marked, or None.
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
        _svg_text(LEFT, 22, _title(said), "title"),
        *_grid(x, y, cost),
    ]
    if saturated > low:
        width = x(saturated) - LEFT
        parts.append(
            f'<rect class="lost" x="{LEFT}" y="{TOP}" width="{width:.1f}"'
            f' height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        parts.append(_svg_text(LEFT + 4, HEIGHT - BOTTOM - 6, "cannot keep up"))
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
    for value in x.ticks():
        yield _line("grid", x(value), TOP, x(value), bottom)
        yield _svg_text(x(value), bottom + 16, f"{value:g}", anchor="middle")
    for lag in y.ticks():
        yield _line("grid", LEFT, y(lag), right, y(lag))
        yield _svg_text(LEFT - 6, y(lag) + 4, f"{lag:g} s", anchor="end")
    for operations in cost.ticks():
        yield _svg_text(right + 6, cost(operations) + 4, f"{operations:,.7g}/s")
    yield (
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/>'
    )
    yield _svg_text((LEFT + right) / 2, HEIGHT - 12, "rate", anchor="middle")


def _key(said: Forecast, target: float | None) -> Iterator[str]:
    entries = [("mean", "mean lag"), ("p99", "p99, oldest first"), ("ops", "commands/s (right)")]
    if target is not None:
        entries.append(("target", f"wanted: {target:g} s"))
    entries.append(("chosen", f"rate {said.rate:g}"))
    left = float(LEFT)
    for kind, text in entries:
        yield f'<path class="{kind} key" d="M{left:.0f} 38h18"/>'
        yield _svg_text(left + 23, 42, text)
        left += 40 + 7 * len(text)


def _curve(kind: str, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    return f'<path class="{kind}" d="M' + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + '"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _svg_text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named} text-anchor="{anchor}">{text}</text>'
