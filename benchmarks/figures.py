"""A figure of the benchmarks: a cost of ours beside its reference, measured in turn in one run.

Absolute times do not carry from one machine to another, nor from one minute to the next on a busy
one. So every figure is a ratio: a short batch of ours, a short batch of the reference, again and
again, and the median of the rounds' ratios with its quartiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Target:
    """What a figure must reach: at least `least`, at most `most`; None is no bound."""

    least: float | None = None
    most: float | None = None

    def is_met(self, value: float) -> bool:
        """Say whether the value lies within the bounds."""
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.least is None:
            return f"<= {self.most}"
        return f">= {self.least}" if self.most is None else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Fields: name; value: the median; low, high: the quartiles of its rounds (both the value itself
    where it is counted and not timed); rounds; reference: what it is a ratio to; target; details:
    the medians that the ratio was made from, with their units in their names.
    """

    name: str
    value: float
    low: float
    high: float
    rounds: int
    reference: str
    target: Target | None = None
    details: dict[str, float] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.is_met(self.value)

    def as_json(self) -> dict[str, Any]:
        """Return the figure as plain data."""
        return {**asdict(self), "target": self.target and str(self.target), "met": self.met}


Batch = Callable[[], float]
"""Does a batch of work and returns what one unit of it cost."""


def in_turn(ours: Batch, reference: Batch, rounds: int) -> tuple[list[float], list[float]]:
    """Run the two batches in turn, each first in every other round; return their costs."""
    mine: list[float] = []
    theirs: list[float] = []
    ours()
    reference()  # The first of each pays for connections, caches and scripts: it does not count.
    for number in range(rounds):
        if number % 2:
            mine.append(ours())
            theirs.append(reference())
        else:
            theirs.append(reference())
            mine.append(ours())
    return mine, theirs


def cost_figure(
    name: str,
    reference: str,
    costs: tuple[Sequence[float], Sequence[float]],
    target: Target | None = None,
    unit: str = "us",
) -> Figure:
    """Return ours / reference of `in_turn`'s costs in seconds: lower is better."""
    return _figure(name, reference, costs, target, unit, speed=False)


def speed_figure(
    name: str,
    reference: str,
    costs: tuple[Sequence[float], Sequence[float]],
    target: Target | None = None,
    unit: str = "per_second",
) -> Figure:
    """Return how many times as fast ours is as the reference: higher is better."""
    return _figure(name, reference, costs, target, unit, speed=True)


def _figure(
    name: str,
    reference: str,
    costs: tuple[Sequence[float], Sequence[float]],
    target: Target | None,
    unit: str,
    *,
    speed: bool,
) -> Figure:
    pairs = list(zip(*costs, strict=True))
    ratios = [theirs / mine if speed else mine / theirs for mine, theirs in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    details = {}
    for who, values in zip(("ours", "reference"), costs, strict=True):
        cost = statistics.median(values)
        details[f"{who}_{unit}"] = round(1 / cost) if speed else round(cost * 1e6, 3)
    return Figure(
        name, round(middle, 3), round(low, 3), round(high, 3), len(ratios), reference, target,
        details,
    )  # fmt: skip


def counted(name: str, value: float, reference: str, **details: float) -> Figure:
    """Return a figure that was counted and not timed."""
    return Figure(name, value, value, value, 1, reference, None, dict(details))


def show(figures: Sequence[Figure]) -> None:
    """Print the figures as a table."""
    table = Table(title="each figure: ours to its reference, median of the rounds")
    for heading in ("figure", "ratio", "quartiles", "target", "met", "reference", "medians"):
        table.add_column(heading, justify="left" if heading in ("figure", "reference") else "right")
    for figure in figures:
        met = {None: "", True: "yes", False: "[bold red]NO[/]"}[figure.met]
        spread = f"{figure.low} - {figure.high}" if figure.rounds > 1 else ""
        table.add_row(
            figure.name,
            str(figure.value),
            spread,
            str(figure.target or ""),
            met,
            figure.reference,
            ", ".join(f"{name} {value}" for name, value in figure.details.items()),
        )
    # Wide enough for a file; a terminal folds it.
    Console(width=None if Console().is_terminal else 180).print(table)
