"""The alerts of deploy/prometheus that a fleet's own metrics would fire, as a person reads them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.statsd import Sample, series

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "workstealing.rules.yml"
MINUTES = 40
# They tell for how long something lasts, so they grow while it does.
_LASTING = ("running_seconds", "unreached_seconds", "unsent_seconds")
_FIRED = re.compile(r"Labels:\{(.*?)\}\s*Annotations:\{(.*?)\}", re.S)


def find_program(name: str, script: str, *, must_be: bool = True) -> str:
    """Return a program on PATH or in the cache; the test is skipped, or fails in CI, without it."""
    fetched = ROOT / ".cache" / "servers" / name
    found = shutil.which(name) or (str(fetched) if fetched.exists() else None)
    if found is None:
        missing = f"no {name} is on PATH or in .cache/servers; run scripts/{script}"
        if must_be and os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def samples_of(metrics: str) -> dict[Sample, float]:
    """Return the samples of an exposition, without the times at which series began."""
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(metrics)
        for each in family.samples
        if each.name.startswith("workstealing_") and not each.name.endswith("_created")
    }


def alerts_of(promtool: str, folder: Path, before: str, after: str) -> list[str]:
    """Return the alerts that fire if a fleet goes on like that for 40 minutes, as text.

    Arguments:
        folder: for a file.
        before: its metrics at two moments.
        after: its metrics at two moments.

    What has grown between them grows as much in each minute. Returns: each alert's labels and
    annotations.
    """
    then, now = samples_of(before), samples_of(after)
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    tests = {
        "interval": "1m",
        "input_series": [
            {
                "series": series(sample, job="shop", instance="web"),
                "values": f"{value:.9g}+{_step(sample, then, value):.9g}x{MINUTES}",
            }
            for sample, value in now.items()
            # A gauge of several processes that nobody knows any more.
            if abs(value) != float("inf")
        ],
        # Nothing is expected, so promtool names all that fires.
        "alert_rule_test": [
            {"eval_time": f"{MINUTES}m", "alertname": rule["alert"], "exp_alerts": []}
            for rule in rules
        ],
    }
    path = folder / "alerts.yml"
    written = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [tests]}
    path.write_text(yaml.safe_dump(written, width=1_000_000))
    done = subprocess.run(
        [promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    found = list(_fired(done.stdout + done.stderr))
    assert found or done.returncode == 0, done.stdout + done.stderr
    return found


def _step(sample: Sample, then: Mapping[Sample, float], now: float) -> float:
    """Return by how much a sample grows in a minute."""
    (name, _), before = sample, then.get(sample, 0.0)
    if name.endswith(_LASTING):
        # What a killed process has left behind grows no more.
        return 60.0 if now > before > 0.0 else 0.0
    is_counter = name.endswith(("_total", "_count", "_sum", "_bucket"))
    return max(0.0, now - before) if is_counter else 0.0


def _fired(said: str) -> Iterator[str]:
    for labels, words in _FIRED.findall(said):
        yield f"{labels} {words}"
