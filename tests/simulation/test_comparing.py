"""The simulation itself: what it counts, what it compares, and that seeds repeat it."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from random import Random
from typing import Any

import pytest
from simulate import main

from simulation import Scenario, compare, picture, run, summaries
from simulation.garbage import Garbage, Steps
from simulation.others import run_redisson
from simulation.records import Record, back_under
from workstealing.errors import ConfigurationError
from workstealing.recruiting.forecast import forecast

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHORT = Scenario(processes=2, garbage=(40.0, 400.0), step=300, seconds=900, ceiling=0.2)
Capture = pytest.CaptureFixture[str]


def test_steps_change_at_their_seconds() -> None:
    steps = Steps(2.0, [(10, 5.0), (20, 1.0)])
    assert [steps(0.0), steps(9.9), steps(10.0), steps(25.0)] == [2.0, 2.0, 5.0, 1.0]


def test_garbage_arrives_at_its_pace_and_each_item_waits_until_it_is_taken() -> None:
    garbage = Garbage(Steps(50.0), 5, Random(1))
    garbage.arrive(1_000.0)
    assert garbage.waiting == pytest.approx(50_000, rel=0.05)
    assert len(garbage.ages) == 1_000
    before = garbage.waiting
    found = garbage.take(1_000.0, 25)
    assert (found.items, garbage.waiting) == (25, before - 25)
    assert found.oldest_seconds > 990
    # A look at 3 index shards; an attempt on 5 hashes, which come from one of them or two.
    assert found.operations in (5 + 3 + 5 + 5 + 1 + 1, 5 + 3 + 5 + 5 + 1 + 2)
    assert garbage.waited == pytest.approx(25 * 1_000, rel=0.05)


def test_a_slice_finds_the_last_item_and_then_nothing() -> None:
    garbage = Garbage(Steps(10.0, [(10, 0.0)]), 5, Random(2))
    garbage.arrive(20.0)
    left = garbage.waiting
    assert left
    assert garbage.take(20.0, left + 1).items == left
    idle = garbage.take(21.0, 25)
    assert (idle.items, idle.oldest_seconds, idle.operations) == (0, 0.0, 20)


@pytest.mark.parametrize(
    ("fields", "limit", "counted"),
    [(1, 5, 4.0), (1, 25, 2.5), (1, 100, 2.6), (5, 5, 2.4)],
)
def test_the_commands_are_those_that_a_server_counts(
    fields: int, limit: int, counted: float
) -> None:
    """The figures are those of docs/jobs/hash_field_expiry.md, over a thousand hashes."""
    assert f"{counted:.1f}" in (DOCS / "jobs" / "hash_field_expiry.md").read_text(encoding="utf-8")
    garbage = Garbage(Steps(1000.0 * fields, [(1, 0.0)]), fields, Random(3))
    garbage.arrive(2.0)
    items = operations = 0
    while items < 0.7 * 1000 * fields:
        found = garbage.take(3.0, limit)
        items, operations = items + found.items, operations + found.operations
    assert operations / items == pytest.approx(counted, rel=0.1)


def test_windows_of_slices_and_the_way_back() -> None:
    record = Record()
    for number in range(2_000):
        record.add(number / 10 if number < 1_000 else 100 + (number - 1_000) / 20, 1, 3)
    assert record.pace(0, 100) == pytest.approx(10)
    assert record.swing(0, 100) == pytest.approx(0.0, abs=1e-9)
    assert record.swing(0, 200) > 0.3
    assert record.operations == 6_000
    assert record.operations_by_time(20.0) == [30.0, 30.0]
    assert back_under([1, 70, 65, 3, 1], 60, 1) == 3.0
    assert back_under([1, 2, 3], 60, 1) == 0.0
    assert back_under([1, 2, 70], 60, 1) is None


@pytest.mark.slow
def test_a_fixed_rate_does_what_the_forecast_says() -> None:
    scenario = Scenario(processes=4, garbage=(100.0, 100.0), step=1, seconds=4_000, fields=1)
    found = run("fixed", scenario, 0.0075)
    expected = forecast(800.0, 100.0, 25, 0.0075)
    slices = len(found.record.slices) / scenario.seconds
    assert slices == pytest.approx(expected.slices, rel=0.05)
    assert found.waited / found.record.items == pytest.approx(expected.mean_lag, rel=0.1)


@pytest.mark.slow
def test_redissons_delay_grows_on_nothing_and_shrinks_only_on_three_equal_counts() -> None:
    record = Record()
    run_redisson(3_600.0, Garbage(Steps(0.0), 5, Random(1)), Random(1), record)
    gaps = [b - a for a, b in zip(record.slices, record.slices[1:], strict=False)]
    assert gaps[0] == 5.0
    assert gaps == sorted(gaps)
    assert gaps[-1] > 500
    record = Record()
    run_redisson(3_600.0, Garbage(Steps(1_000.0), 5, Random(1)), Random(1), record)
    assert len(record.slices) == 719


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    first, again = run("a", SHORT).summary(), run("a", SHORT).summary()
    other = run("a", Scenario(**{**vars_of(SHORT), "seed": 2})).summary()
    assert first == again
    assert first != other


def vars_of(scenario: Scenario) -> dict[str, Any]:
    return {name: getattr(scenario, name) for name in Scenario.__slots__}


@pytest.mark.slow
def test_everything_is_compared_on_one_table_and_one_picture(tmp_path: Path) -> None:
    runs = compare(SHORT)
    answer = summaries(runs)
    by_name = {each["name"]: each for each in answer["means"]}
    assert len(by_name) == 7
    adaptive, native = by_name["adaptive rate"], by_name["Redis 8's own field expiry"]
    late = next(each for name, each in by_name.items() if name.endswith("for before"))
    assert late["back_under_lag_after"] is None
    assert adaptive["worst_lag"] < late["worst_lag"]
    assert native["worst_lag"] <= 0.1 + 1e-6
    assert by_name["Redisson's rule"]["garbage_seconds"] > adaptive["garbage_seconds"]
    root = ET.fromstring(picture(runs))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {each.name for each in runs} <= set(texts)
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 2 * len(runs)
    for line in lines:
        for point in line.attrib["points"].split():
            assert all(math.isfinite(float(part)) for part in point.split(","))


@pytest.mark.slow
def test_the_program(capsys: Capture, tmp_path: Path) -> None:
    asked = ["--processes", "2", "--traffic", "400/s", "--garbage", "40/s"]
    asked += ["--time", "5m", "--seed", "3"]
    svg = tmp_path / "picture.svg"
    assert main([*asked, "--json", "--svg", str(svg)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["scenario"]["garbage"] == [40.0, 400.0]
    assert (said["scenario"]["step"], said["scenario"]["seconds"]) == (100, 300)
    assert len(said["means"]) == 7
    ET.fromstring(svg.read_text(encoding="utf-8"))
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 processes, 400 enlists/s; garbage 40 items/s, 400 from")
    for each in said["means"]:
        assert each["name"] in text


@pytest.mark.parametrize(
    "wrong",
    [
        ["--processes", "0"],
        ["--traffic", "0"],
        ["--grows", "-1"],
        ["--floor", "0.5"],
        ["--time", "1ms"],
        ["--svg", "/nonexistent/x.svg", "--time", "3s"],
    ],
)
def test_wrong_use_is_one_sentence(capsys: Capture, wrong: list[str]) -> None:
    assert main(wrong) == 2
    error = capsys.readouterr().err
    assert error.startswith("simulate: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "wrong",
    [{"processes": 0}, {"traffic": 0.0}, {"garbage": (-1.0, 1.0)}, {"step": 900, "seconds": 900}],
)
def test_a_scenario_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="a simulation"):
        Scenario(**wrong)
