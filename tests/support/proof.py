"""A pytest plugin: tests that attack say what they tried, and `make prove` adds it up over runs.

`tried("killed between two commands")` counts a try of the running test; what was lost, held or
wrong can be given with it, and a test that fails counts as one wrong. Which structure and which
servers it was about follow from the test's path and fixtures. `--proof-to FILE` appends the sums of
a run to a file. The tests' chance is `seed()`: the same in every run, unless `make prove` sets it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

TRIED, LOST, HELD, WRONG = range(4)
_SERVERS = ("redis7", "redis62", "redis8", "redis82", "valkey8", "valkey9", "cluster", "cluster8")
_SERVERS += tuple(
    f"cluster_{each}" for each in ("redis62", "redis7", "redis8", "redis82", "valkey8", "valkey9")
)
_RENAMED = {"fakeredis_server": "fakeredis", "quick_redis8": "redis8", "door": "redis7"}
_RENAMED["quick_cluster8"] = "cluster_redis8"
_now: dict[tuple[str, str], list[int]] = {}


def tried(
    attack: str, count: int = 1, *, lost: int = 0, held: int = 0, wrong: int = 0, on: str = ""
) -> None:
    """Count tries of an attack by the running test, and what came of them.

    Arguments:
        on: the structure, if the test's path is of none.
    """
    sums = _now.setdefault((attack, on), [0, 0, 0, 0])
    for place, number in ((TRIED, count), (LOST, lost), (HELD, held), (WRONG, wrong)):
        sums[place] += number


def seed(usual: int = 1) -> int:
    """Return the seed of this run's chance: `usual`, or the one that `make prove` has drawn."""
    return int(os.environ.get("PROVE_SEED") or usual)


def about(item: pytest.Item) -> tuple[str, str]:
    """Return the structure, or part of the package, and the servers that a test is about."""
    folders = Path(item.nodeid.partition("::")[0]).parent.parts[1:]
    part = folders[-1] if folders[:1] == ("structures",) else "/".join(folders)
    called = getattr(item, "callspec", None)
    names = [*getattr(item, "fixturenames", ()), *(called.params.values() if called else ())]
    known = [_RENAMED.get(each, each) for each in names if isinstance(each, str)]
    servers = sorted({each for each in known if each in (*_SERVERS, "fakeredis")})
    return part.replace("_", " "), ", ".join(servers)


class Proof:
    """Sums up what the tests of a process have tried."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Begin a test."""
        _now.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that failed as one wrong."""
        if report.failed:
            for attack, on in _now:
                tried(attack, 0, wrong=1, on=on)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Add a test's tries to the sums when it is over."""
        result = yield
        for (attack, on), numbers in _now.items():
            part, servers = about(item)
            sums = self._sums[(attack, on or part, servers)]
            for place, number in enumerate(numbers):
                sums[place] += number
        _now.clear()
        return result

    def pytest_sessionfinish(self) -> None:
        """Append the sums, a line for each attack, structure and server."""
        if self._path and self._sums:
            with Path(self._path).open("a", encoding="utf-8") as file:
                for key, sums in sorted(self._sums.items()):
                    file.write(json.dumps([*key, *sums]) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--proof-to", metavar="FILE", help="append what the tests have tried")


def pytest_configure(config: pytest.Config) -> None:
    """Count in the process that runs the tests."""
    config.pluginmanager.register(Proof(config.getoption("--proof-to")), "workstealing-proof")
