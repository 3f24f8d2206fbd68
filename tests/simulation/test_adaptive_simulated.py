"""What adaptive rates promise, in simulations of fixed seeds: the same figures in every run."""

from __future__ import annotations

from random import Random

import pytest

from simulation import Scenario, run
from simulation.fleet import Fleet, run_fleet
from simulation.garbage import Garbage, Steps
from simulation.records import Record
from workstealing.recruiting import Adaptive

pytestmark = pytest.mark.slow

RATE = Adaptive(floor=0.00001, ceiling=0.1, lag=60.0)


def worked_off(
    processes: int, traffic: Steps, inflow: Steps, seconds: float, seed: int = 1
) -> tuple[Garbage, Record]:
    random = Random(seed)
    garbage, record = Garbage(inflow, 5, random), Record()
    fleet = Fleet(processes, traffic, RATE, 25)
    run_fleet(fleet, seconds, garbage, random, record)
    garbage.arrive(seconds)
    return garbage, record


@pytest.mark.parametrize(
    ("processes", "step", "back", "settled"),
    [(1, 600, 300, 600), (8, 600, 300, 600), (1_000, 1_800, 1_500, 1_800)],
)
def test_tenfold_garbage_is_back_under_the_lag_target_and_then_stays_calm(
    processes: int, step: int, back: float, settled: int
) -> None:
    scenario = Scenario(processes=processes, step=step, seconds=step + settled + 1_200, seed=2)
    found = run("adaptive", scenario)
    after = found.summary()["back_under_lag_after"]
    assert after is not None
    assert after <= back
    # As many slices as before would be a tenth of what is needed, unless they have grown.
    assert found.record.swing(step + settled, scenario.seconds) <= 0.20
    late = found.ages[step + settled :]
    assert max(late) < scenario.lag
    # It keeps up without spending more than it needs: nothing is left over, and little is idle.
    assert found.record.items > 0.99 * (120 * step + 1_200 * (settled + 1_200)) - 1_200 * 60


@pytest.mark.parametrize("processes", [1, 1_000])
def test_one_process_and_a_thousand_settle_from_the_start(processes: int) -> None:
    garbage, record = worked_off(processes, Steps(800.0), Steps(120.0), 2_400)
    late = garbage.ages[1_200:]
    assert sum(late) / len(late) < 60.0
    assert max(late) < 120.0
    assert record.swing(1_200, 2_400) <= 0.20
    each = record.pace(1_200, 2_400) / processes
    # Each of a thousand is recruited once in minutes.
    assert (each < 1 / 120) == (processes == 1_000)


@pytest.mark.parametrize("processes", [1, 8, 1_000])
def test_a_tenfold_traffic_spike_leaves_the_slices_per_second(processes: int) -> None:
    traffic = Steps(800.0, [(1_800, 8_000.0), (2_400, 800.0)])
    _, record = worked_off(processes, traffic, Steps(120.0), 2_400)
    before, during = record.pace(1_200, 1_800), record.pace(1_800, 2_400)
    assert 1 / 1.5 < during / before < 1.5
    # Already in its first two minutes.
    assert record.pace(1_800, 1_920) / before < 1.5


def test_without_garbage_maintenance_costs_next_to_nothing() -> None:
    seconds, traffic = 6 * 3_600, 800.0
    _, record = worked_off(8, Steps(traffic), Steps(0.0), seconds)
    assert 0 < record.operations < 0.0005 * traffic * seconds


def test_a_thousand_processes_learn_within_a_few_looks_that_there_is_nothing() -> None:
    _, record = worked_off(1_000, Steps(800.0), Steps(0.0), 4 * 3_600)
    assert len(record.slices) < 5 * 1_000
    assert record.pace(3 * 3_600, 4 * 3_600) < record.pace(0, 3_600) / 5


def test_old_garbage_of_an_outage_is_drained_at_the_ceiling() -> None:
    # 200,000 items within 100 seconds, before which and after which there is next to nothing.
    garbage, record = worked_off(8, Steps(800.0), Steps(1.0, [(600, 2_000.0), (700, 1.0)]), 2_400)
    assert max(garbage.ages[1_800:]) < 120.0
    assert garbage.waiting < 1_000
    assert record.items > 190_000
