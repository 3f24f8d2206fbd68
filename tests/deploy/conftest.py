"""The programs around Prometheus, each on PATH or as scripts/ has put it into the cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _program(name: str, script: str, *, must_be: bool = True) -> str:
    fetched = ROOT / ".cache" / "servers" / name
    found = shutil.which(name) or (str(fetched) if fetched.exists() else None)
    if found is None:
        missing = f"no {name} is on PATH or in .cache/servers; run scripts/{script}"
        if must_be and os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus' promtool."""
    return _program("promtool", "fetch_promtool.sh")


@pytest.fixture(scope="session")
def prometheus() -> str:
    """Prometheus itself."""
    return _program("prometheus", "fetch_promtool.sh")


@pytest.fixture(scope="session")
def statsd_exporter() -> str:
    """The exporter that turns StatsD's metrics into Prometheus'."""
    return _program("statsd_exporter", "fetch_statsd_exporter.sh", must_be=False)
