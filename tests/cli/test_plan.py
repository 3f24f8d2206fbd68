"""`workstealing plan`: text, JSON, a picture, and what it refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from workstealing.cli import main
from workstealing.cli.output import figure
from workstealing.clock import spell
from workstealing.recruiting.forecast import forecast, p99_lag, round_up

Capture = pytest.CaptureFixture[str]
ASKED = ("--traffic", "800/s", "--garbage", "120/s", "--slice", "25", "--lag", "60s")


def planned(capsys: Capture, *arguments: str, status: int = 0) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == status
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.slow
def test_the_example_of_the_help(capsys: Capture) -> None:
    said = planned(capsys, *ASKED, "--backlog", "100000")
    right = forecast(800.0, 120.0, 25, 0.0075)
    assert (said["rate"], said["decided_by"], said["keeps_up"], said["meets_lag"]) == (
        0.0075,
        "reserve",
        True,
        True,
    )
    assert said["utilisation"] == pytest.approx(0.8)
    assert said["lag_mean_s"] == pytest.approx(right.mean_lag)
    assert said["lag_p99_oldest_first_s"] == pytest.approx(right.p99_lag)
    assert said["lag_p99_s"] == pytest.approx(p99_lag(right))
    assert said["operations_per_s"] == pytest.approx(right.operations)
    assert said["drain_s"] == pytest.approx(right.drain_seconds(100_000))
    assert said["least_traffic_per_s"] == pytest.approx(640.0)


def test_little_garbage_lets_the_lag_decide(capsys: Capture) -> None:
    said = planned(capsys, "--traffic", "800/s", "--garbage", "6/min", "--lag", "1m")
    assert said["decided_by"] == "lag"
    assert 59.0 < said["lag_p99_s"] <= 60.0


def test_a_given_rate_is_forecast(capsys: Capture) -> None:
    said = planned(capsys, *ASKED[:6], "--rate", "0.01")
    assert (said["rate"], said["decided_by"]) == (0.01, "given")
    assert (said["lag_target_s"], said["meets_lag"]) == (None, None)


@pytest.mark.slow
def test_a_given_rate_that_misses_the_lag(capsys: Capture) -> None:
    said = planned(capsys, *ASKED[:6], "--rate", "0.0075", "--lag", "1s", status=1)
    assert (said["keeps_up"], said["meets_lag"]) == (True, False)


def test_what_cannot_keep_up_says_so(capsys: Capture) -> None:
    said = planned(capsys, *ASKED[:6], "--rate", "0.002", "--backlog", "10", status=1)
    assert said["keeps_up"] is False
    assert said["growth_per_s"] == pytest.approx(80.0)
    assert said["lag_mean_s"] is said["lag_p99_s"] is said["drain_s"] is None
    assert main(["plan", *ASKED[:6], "--rate", "0.002", "--backlog", "10"]) == 1
    text = capsys.readouterr().out
    assert "NO: the backlog grows by 80 items/s" in text
    assert "10 items never" in text


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--traffic", "1/s", "--garbage", "120/s"), "slices of 150 items or more"),
        (("--traffic", "10/s", "--garbage", "1/s", "--lag", "100ms"), "a traffic of 46.1/s"),
    ],
)
def test_too_little_traffic_gets_advice(
    capsys: Capture, arguments: tuple[str, ...], advice: str
) -> None:
    assert main(["plan", *arguments]) == 1
    text = capsys.readouterr().out
    assert advice in text
    assert "every caller" in text


def test_the_text_has_the_figures(capsys: Capture) -> None:
    assert main(["plan", *ASKED, "--backlog", "100000"]) == 0
    text = capsys.readouterr().out
    for part in ("0.0075: one in 133", "used to 80%", "464 ms mean, 3.41 s p99", "55.6 min"):
        assert part in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ASKED,
        (*ASKED[:6], "--rate", "0.002"),
        ("--traffic", "10/s", "--garbage", "0/s"),
        ("--traffic", "1/s", "--garbage", "120/s"),
        ("--traffic", "5M/d", "--garbage", "1/d", "--lag", "7d"),
        ("--traffic", "1", "--garbage", "1e9", "--slice", "1"),
    ],
)
def test_the_picture_is_svg_whatever_is_asked(
    capsys: Capture, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    file = tmp_path / "plan.svg"
    assert main(["plan", *arguments, "--svg", str(file), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["rate"]
    root = ET.fromstring(file.read_text())
    assert root.tag.endswith("}svg")
    assert "nan" not in file.read_text()
    curves = [each for each in root.iter() if each.get("class") == "ops"]
    assert curves
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        for pair in (path.get("d") or "").removeprefix("M").split("L"):
            if "h" not in pair:
                x, y = map(float, pair.split())
                assert 0 <= x <= 720
                assert 0 <= y <= 420


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--traffic, --garbage"),
        (("--traffic", "fast", "--garbage", "1"), "'fast' is no frequency"),
        (("--traffic", "-5", "--garbage", "1"), "'-5' is no frequency"),
        (("--traffic", "0", "--garbage", "1"), "--traffic is 0"),
        (("--traffic", "1", "--garbage", "1/w"), "'1/w' is no frequency"),
        (("--traffic", "1", "--garbage", "1", "--lag", "soon"), "'soon' is no duration"),
        (("--traffic", "1", "--garbage", "1", "--lag", "0s"), "0s is too short"),
        (("--traffic", "1", "--garbage", "1", "--slice", "0"), "0 is too few items: at least 1"),
        (("--traffic", "1", "--garbage", "1", "--slice", "1.5"), "'1.5' is no whole number"),
        (("--traffic", "1", "--garbage", "1", "--backlog", "-1"), "-1 is too few items"),
        (("--traffic", "1", "--garbage", "1", "--rate", "2"), "2 is no rate"),
        (("--traffic", "1.2.3", "--garbage", "1"), "'1.2.3' is no number"),
        (("--traffic", "1", "--garbage", "1", "--commands-per-item=-1"), "-1 is below 0"),
        (
            ("--traffic", "1e-300", "--garbage", "1"),
            "a traffic of 1e-300 a second is out of bounds",
        ),
        (("--traffic", "1", "--garbage", "1", "--lag", "1e99"), "argument --lag: 1e99 is too long"),
        (("--traffic", "1", "--garbage", "1", "--slice", "9" * 12), "is out of bounds"),
        (("--traffic", "1", "--garbage", "1", "--backlog", "9" * 400), "too many items"),
        (("--traffic", "1", "--garbage", "1", "--svg", "/"), "--svg cannot be written"),
    ],
)
def test_wrong_use_is_one_sentence(
    capsys: Capture, arguments: tuple[str, ...], expected: str
) -> None:
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert expected in said.err


@pytest.mark.parametrize(
    ("rate", "rounded"),
    [(0.0075, 0.0075), (0.00750001, 0.00751), (0.1, 0.1), (1.0, 1.0), (0.0999, 0.0999), (6, 6)],
)
def test_a_rate_is_rounded_up(rate: float, rounded: float) -> None:
    assert round_up(rate) == rounded


def test_figures_for_people() -> None:
    assert [figure(value) for value in (0, 0.00012345, 1.5, 133.33, 1234567.8, float("inf"))] == [
        "0",
        "0.000123",
        "1.5",
        "133",
        "1,234,568",
        "no bound",
    ]
    assert [spell(value) for value in (0.0123, 1.5, 119, 120, 7200, 2 * 86400)] == [
        "12.3 ms",
        "1.5 s",
        "119 s",
        "2 min",
        "2 h",
        "2 d",
    ]
