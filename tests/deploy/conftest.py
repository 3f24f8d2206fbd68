"""The programs around Prometheus, each on PATH or as scripts/ has put it into the cache."""

from __future__ import annotations

import pytest

from support.alerts import find_program


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus' promtool."""
    return find_program("promtool", "fetch_promtool.sh")


@pytest.fixture(scope="session")
def prometheus() -> str:
    """Prometheus itself."""
    return find_program("prometheus", "fetch_promtool.sh")


@pytest.fixture(scope="session")
def statsd_exporter() -> str:
    """The exporter that turns StatsD's metrics into Prometheus'."""
    return find_program("statsd_exporter", "fetch_statsd_exporter.sh", must_be=False)
