"""A pytest plugin: `--costs` ends a run with the CPU seconds of each test file, children included.

`--costs-to FOLDER` keeps those of each test there, too, for `make test-durations`.

On a machine that does other things too, the time on the clock says little about a test, and the
processor's time nearly all. A server that tests share counts for the test that it works for.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.parts import kind_of

_TICKS = os.sysconf("SC_CLK_TCK")
_KEY = "costs"
LINES = 60
"""How many files, and how many tests, are listed."""


def spent() -> tuple[float, float]:
    """Return this process's CPU seconds with those of all its descendants, and the clock's."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + _of_the_living(), time.monotonic()


def _of_the_living() -> float:
    """Return the CPU seconds of the descendants that still run, and of their ended children."""
    ticks = 0
    todo = list(_children(os.getpid()))
    while todo:
        child = todo.pop()
        with suppress(OSError):
            # From field 14 on: user, system, and the same two of the children that were waited for.
            said = Path("/proc", str(child), "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, said[11:15]))
            todo += _children(child)
    return ticks / _TICKS


def _children(process: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path("/proc", str(process), "task").iterdir():
            yield from map(int, (task / "children").read_text().split())


class Meter:
    """Measures each test, and gives the figures to its last report, which xdist passes on."""

    def __init__(self) -> None:
        self._before = spent()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._before = spent()
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> pytest.TestReport | None:
        if call.when == "teardown":
            figures = [now - then for now, then in zip(spent(), self._before, strict=True)]
            item.user_properties.append((_KEY, (kind_of(item), *figures)))
        return None


class Costs:
    """Adds the figures up, and lists them."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._of: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._kinds: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, figures in report.user_properties:
            if key == _KEY and report.when == "teardown":
                assert isinstance(figures, (tuple, list))
                self._kinds[report.nodeid], *numbers = figures
                for name in {report.nodeid, report.nodeid.partition("::")[0]}:
                    for place, figure in enumerate(numbers):
                        self._of[name][place] += figure

    def pytest_sessionfinish(self) -> None:
        if self._folder:
            said = {name: (kind, *self._of[name]) for name, kind in self._kinds.items()}
            Path(self._folder, f"{os.getpid()}.json").write_text(json.dumps(said), "utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        dearest = sorted(self._of.items(), key=lambda each: -each[1][0])
        files = [each for each in dearest if "::" not in each[0]]
        tests = [each for each in dearest if "::" in each[0]]
        total = sum(cpu for _, (cpu, _) in files)
        terminalreporter.section(f"{total:.0f} s of CPU time: CPU seconds, seconds of the clock")
        for name, (cpu, clock) in files[:LINES] + tests[:LINES]:
            terminalreporter.write_line(f"{cpu:8.1f} {clock:8.1f}  {name}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--costs", action="store_true", help="say which tests cost most CPU time")
    parser.addoption("--costs-to", metavar="FOLDER", help="write down what each test costs")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each worker, and add up where the results arrive."""
    folder = config.getoption("--costs-to")
    if folder or config.getoption("--costs"):
        config.pluginmanager.register(Meter(), "workstealing-meter")
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Costs(folder), "workstealing-costs")
