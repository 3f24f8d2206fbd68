"""Running simulations, and comparing what becomes of the same garbage by different means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from simulation.fleet import Fleet, run_fleet
from simulation.garbage import Garbage, Steps
from simulation.others import run_celery_beat, run_cron, run_native, run_redisson
from simulation.records import Record, back_under
from workstealing.errors import ConfigurationError
from workstealing.recruiting.adaptive import Adaptive
from workstealing.recruiting.forecast import choose_rate

Means = Callable[[float, Garbage, Random, Record], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated.

    Fields: processes; traffic, enlists a second of them all; garbage, items a second, before and
    after the step; step and seconds: when the inflow changes, and when all ends; limit, items of a
    slice; lag, seconds within which garbage should be removed; floor and ceiling of the adaptive
    rate; fields, how many items become garbage at once; seed of all that is random.
    """

    processes: int = 8
    traffic: float = 800.0
    garbage: tuple[float, float] = (120.0, 1_200.0)
    step: int = 1_200
    seconds: int = 3_600
    limit: int = 25
    lag: float = 60.0
    floor: float = 0.00001
    ceiling: float = 0.1
    fields: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        if self.processes < 1 or self.limit < 1 or self.fields < 1:
            raise ConfigurationError("a simulation needs at least 1 process, and slices of 1 item")
        if not self.traffic > 0.0 or min(self.garbage) < 0.0:
            raise ConfigurationError(
                "a simulation needs traffic above 0, and garbage of at least 0"
            )
        if not 0 <= self.step < self.seconds:
            raise ConfigurationError("a simulation's step lies between its beginning and its end")

    @property
    def adaptive(self) -> Adaptive:
        """The adaptive rate of this scenario."""
        return Adaptive(floor=self.floor, ceiling=self.ceiling, lag=self.lag)


@dataclass(frozen=True, slots=True)
class Run:
    """What one means has made of the garbage.

    Fields: name of the means; scenario; record of its slices; ages of the oldest garbage, of each
    second; worst, the seconds that the unluckiest item waited; waited, items x seconds of waiting
    in all.
    """

    name: str
    scenario: Scenario
    record: Record
    ages: Sequence[float]
    worst: float
    waited: float

    def summary(self) -> dict[str, Any]:
        """Return the figures by which means are compared, as plain data."""
        scenario = self.scenario
        return {
            "name": self.name,
            "garbage_seconds": self.waited,
            "mean_garbage": self.waited / scenario.seconds,
            "worst_lag": self.worst,
            "operations": self.record.operations,
            "operations_per_second": self.record.operations / scenario.seconds,
            "share_of_traffic": self.record.operations / (scenario.traffic * scenario.seconds),
            "back_under_lag_after": back_under(self.ages, scenario.lag, scenario.step),
        }


def run(name: str, scenario: Scenario, means: Means | Adaptive | float | None = None) -> Run:
    """Run one simulation.

    Arguments:
        name: what to call it.
        means: a function of others.py, or the rate of a fleet; None: the scenario's adaptive one.

    The same seed gives the same run.
    """
    random = Random(scenario.seed)
    inflow = Steps(scenario.garbage[0], [(scenario.step, scenario.garbage[1])])
    garbage = Garbage(inflow, scenario.fields, random)
    record = Record()
    if means is None or isinstance(means, Adaptive | float):
        rate = scenario.adaptive if means is None else means
        fleet = Fleet(scenario.processes, Steps(scenario.traffic), rate, scenario.limit)
        run_fleet(fleet, scenario.seconds, garbage, random, record)
    else:
        means(scenario.seconds, garbage, random, record)
    garbage.arrive(scenario.seconds)
    ages = list(garbage.ages)
    garbage.settle(scenario.seconds)
    return Run(name, scenario, record, ages, garbage.worst, garbage.waited)


def compare(scenario: Scenario, *, progress: Callable[[str], None] | None = None) -> list[Run]:
    """Run every means on the same garbage: adaptive, fixed, and what users would pick instead.

    Arguments:
        progress: called with the name of each means before it is run.
    """
    usual, most = (_planned(scenario, inflow) for inflow in scenario.garbage)
    means: list[tuple[str, Means | Adaptive | float | None]] = [
        ("adaptive rate", None),
        (f"fixed rate {usual:.2g}, planned for before", usual),
        (f"fixed rate {most:.2g}, planned for after", most),
        ("cron sweep each minute", run_cron),
        ("Celery beat each minute", run_celery_beat),
        ("Redisson's rule", run_redisson),
        ("Redis 8's own field expiry", run_native),
    ]
    runs = []
    for name, each in means:
        if progress is not None:
            progress(name)
        runs.append(run(name, scenario, each))
    return runs


def _planned(scenario: Scenario, inflow: float) -> float:
    return min(1.0, choose_rate(scenario.traffic, inflow, scenario.limit, scenario.lag))


def summaries(runs: Sequence[Run]) -> dict[str, Any]:
    """Return a comparison as plain data: the scenario, and each means' figures."""
    return {
        "scenario": asdict(runs[0].scenario),
        "means": [each.summary() for each in runs],
    }
