"""The forecast agrees with the simulation of a fleet, which finds garbage as the jobs do."""

from __future__ import annotations

from random import Random

import pytest

from simulation.fleet import Fleet, run_fleet
from simulation.garbage import Garbage, Steps
from simulation.records import Record
from workstealing.recruiting.forecast import forecast


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "asked", "slices"),
    [
        (1, (800.0, 1.0, 25, 0.0003), 6000),
        (8, (800.0, 120.0, 25, 0.0075), 40_000),
        (1, (800.0, 120.0, 25, 0.0075), 40_000),
        (4, (400.0, 40.0, 5, 0.0333), 40_000),
        (1, (200.0, 120.0, 100, 0.02), 8000),
    ],
)
def test_it_agrees_within_ten_per_cent(
    processes: int, asked: tuple[float, float, int, float], slices: int
) -> None:
    traffic, garbage, limit, rate = asked
    said = forecast(traffic, garbage, limit, rate)
    random, record = Random(3), Record()
    waiting = Garbage(Steps(garbage), 1, random)
    seconds = slices / said.slices
    run_fleet(Fleet(processes, Steps(traffic), rate, limit), seconds, waiting, random, record)
    assert said.slices == pytest.approx(record.pace(0.0, seconds), rel=0.1)
    assert said.garbage == pytest.approx(record.items / seconds, rel=0.1)
    assert said.mean_lag == pytest.approx(waiting.waited / record.items, rel=0.1)
    assert said.operations == pytest.approx(record.operations / seconds, rel=0.1)


@pytest.mark.slow
def test_what_cannot_keep_up_grows_as_forecast() -> None:
    said = forecast(800.0, 120.0, 25, 0.003)
    random, record = Random(3), Record()
    waiting = Garbage(Steps(120.0), 1, random)
    run_fleet(Fleet(4, Steps(800.0), 0.003, 25), 2000.0, waiting, random, record)
    assert not said.keeps_up
    assert said.growth == pytest.approx(waiting.waiting / 2000.0, rel=0.1)
    assert said.capacity == pytest.approx(record.items / 2000.0, rel=0.1)
