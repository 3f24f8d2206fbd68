"""A pytest plugin: a test that fails at first and passes again is written into tests/again.txt.

CI runs a test that fails once more, because a machine that others use can stop for seconds. But a
race that shows once in a thousand runs is a fault to mend. So the test is written down, with the
date, the landing and the reason, and the second time it fails the run. `scripts/parts.py check`
fails where one stands there for longer than an issue takes.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "tests" / "again.txt"
MOST_LANDINGS = 3
"""How many landings an issue takes at most."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\d) landing (\d+) (\S+::.+?): (.+)")
_REASON_LETTERS = 200


class Again:
    """The tests of a run that have failed at first."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}
        self._passed: dict[str, str] = {}
        self._twice: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that runs again, and one that has passed then."""
        if report.outcome == "rerun":  # type: ignore[comparison-overlap]
            self._failed[report.nodeid] = report.longreprtext
        elif report.when == "call" and report.passed and report.nodeid in self._failed:
            self._passed[report.nodeid] = reason(self._failed[report.nodeid])

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write them down; fail the run for one that stands there already."""
        if session.config.rootpath != ROOT:
            return
        before = {name for _, _, name, _ in entries()}
        self._twice = [name for name in self._passed if name in before]
        with PATH.open("a", encoding="utf-8") as file:
            for name, why in self._passed.items():
                if name not in before:
                    file.write(line(name, why))
        if self._twice and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show why each has failed."""
        for name, why in self._failed.items():
            terminalreporter.section(f"failed at first: {name}")
            terminalreporter.write_line(why[-4_000:])
        for name in self._twice:
            terminalreporter.write_line(
                f"FAILED: {name} failed at first, and stands in tests/again.txt already: mend it",
                red=True,
            )


def reason(said: str) -> str:
    """Return the line of a traceback that says why."""
    lines = [each.strip() for each in said.splitlines() if each.strip()]
    errors = [each[1:].strip() for each in lines if each.startswith("E ")]
    return ((errors or lines or ["pytest said nothing"])[0])[:_REASON_LETTERS]


def line(name: str, why: str) -> str:
    """Return the line of a test."""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    landing = tomllib.loads((ROOT / ".ci" / "parts.toml").read_text("utf-8"))["number"]
    return f"{today} landing {landing} {name}: {why}\n"


def entries(text: str | None = None) -> list[tuple[str, int, str, str]]:
    """Return the lines: date, landing, test and reason. Raises: ValueError for another one."""
    if text is None:
        text = PATH.read_text("utf-8") if PATH.exists() else ""
    found = []
    for each in text.splitlines():
        if each.startswith("#") or not each.strip():
            continue
        match = _LINE.fullmatch(each)
        if match is None:
            raise ValueError(f"tests/again.txt: not a date, a landing, a test and a reason: {each}")
        found.append((match[1], int(match[2]), match[3], match[4]))
    return found


def wrong(landing: int, text: str | None = None) -> list[str]:
    """Return a sentence for each test that stands there twice, or for too long."""
    found = entries(text)
    counts = Counter(name for _, _, name, _ in found)
    twice = [f"tests/again.txt lists {name} twice: mend it" for name in counts if counts[name] > 1]
    return twice + [
        f"tests/again.txt lists {name} since landing {since}, and this is {landing}: mend it"
        for _, since, name, _ in found
        if landing - since > MOST_LANDINGS
    ]


def pytest_configure(config: pytest.Config) -> None:
    """Listen where the results arrive, not in xdist's workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Again(), "workstealing-again")
