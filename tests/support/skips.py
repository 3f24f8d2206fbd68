"""A pytest plugin: the run's end lists the skipped tests by reason; in CI an unlisted one fails it.

A test that is skipped proves nothing, and nobody looks for it. So a reason is either known, and
stands in EXPECTED_IN_CI, or the run fails until somebody has looked.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

EXPECTED_IN_CI = (
    # Long runs are asked for.
    r"WORKSTEALING_MOVES asks for no more moves",
    # fakeredis is a model of a server, and these are about what it does not model.
    r"fakeredis takes minutes",
    r"fakeredis checks numbers in its own way",
    r"fakeredis shares no server between loops and threads",
    r"fakeredis does not say what memory is used",
    # A parameter that has no such case.
    r"the sends of one connection are counted",
    r"this server has no field commands to hand over to",
    # What came with a later redis-py than the one of this environment.
    r"redis-py [567]\.[\d.]+ has no .+",
    # What came with a later Spark than the one of this environment.
    r"PySpark [34]\.[\d.]+ has no .+",
    # It is built by Go; a stand-in reads the same mapping everywhere.
    r"no statsd_exporter is on PATH .*",
    # They are of the dependency group `release`, which make setup leaves out.
    r"the tools of a release are not installed: make release installs them",
    # The same of the group `docs`; make docs installs them, where a registry can be reached.
    r"the packages of make docs cannot be installed: .*",
    # CI's clone may be a shallow one.
    r"the release before is not in this clone, which is a shallow one",
    # The suites of Django and Flask-Caching are in their source distributions alone.
    r"the source distribution of \S+ cannot be fetched from a registry",
    r"lupa, fakeredis's Lua, has no free-threaded build",
    # The Ruby gem is no package of this project: its comparison runs where somebody has it.
    r"the gem redis-ick is not installed: .*",
    r"no Ruby here: .*",
    r"redis-ick is not installed as a gem, and \w+ names no checkout",
    # A real log lies beside the maintainers' checkout, and in no other.
    r"the real access log is not at hand",
    r".*apache_access\.log\.gz is not (here|on this machine)",
)


def unexpected(reasons: Iterable[str]) -> list[str]:
    """Return the reasons that EXPECTED_IN_CI does not list."""
    return [
        reason
        for reason in reasons
        if not any(re.fullmatch(known, reason) for known in EXPECTED_IN_CI)
    ]


class Skips:
    """What was skipped, by reason. Under xdist the controller hears of every worker's tests."""

    def __init__(self) -> None:
        self._places: dict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skipped test."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a skipped file."""
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # An expected failure is reported as skipped, but has run.
        if report.skipped and not hasattr(report, "wasxfail"):
            assert isinstance(report.longrepr, tuple)
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self._places[reason][report.nodeid.partition("::")[0]] += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail a run in CI that skipped something for a reason that is not listed."""
        if IN_CI and exitstatus == pytest.ExitCode.OK and unexpected(self._places):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List them, a line for each reason."""
        if not self._places:
            return
        number = sum(places.total() for places in self._places.values())
        terminalreporter.section(f"{number} skipped, by reason")
        for reason, places in sorted(self._places.items()):
            files = ", ".join(sorted(places))
            terminalreporter.write_line(f"{places.total():5} {reason} ({files})")
        if IN_CI:
            for reason in unexpected(self._places):
                terminalreporter.write_line(
                    f"FAILED: a test was skipped in CI for a reason that is not listed: {reason};"
                    " make it run, or list the reason in tests/support/skips.py",
                    red=True,
                )


def pytest_configure(config: pytest.Config) -> None:
    """Listen where the results arrive, not in xdist's workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(), "workstealing-skips")
