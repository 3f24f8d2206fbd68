"""A pytest plugin: which tests `make test` runs, and how all the others are cut into parts.

CI runs the quick tests each time, and one part of the others by turns (scripts/parts.py keeps the
turn). A part is one further kind of server, Cassandra, or a piece of the slow tests: whole files in
the order of their paths, so that a part has folders of its own. The pieces follow from the CPU time
that `make test-durations` has measured.

`--part NAME` runs one part, or `quick`; `--smoke NAME,...` the cheapest tests of several.
"""

from __future__ import annotations

import functools
import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from support import any_server

ROOT = Path(__file__).resolve().parents[2]
SPARK_TESTS = ROOT / "tests" / "spark"
DURATIONS = ROOT / ".ci" / "durations.json"
QUICK = "quick"
CASSANDRA = "cassandra"
SLOW = "slow"
SPARK = "spark"
SERVERS = {
    fixture: name for name, (fixture, _) in any_server.SERVERS.items() if name not in any_server.TWO
}
"""The further kinds of servers, on which contracts alone run: fixture -> name."""
KINDS = (SLOW, SPARK, *SERVERS.values(), CASSANDRA)
PART_SECONDS = 200.0
"""How much metered CPU a part may have: about six minutes of two cores, as 350 s took ten."""
SMOKE_SECONDS = 10.0
"""How much of it a part's smoke may have."""


@dataclass(frozen=True)
class Cost:
    """What the tests of one kind in one file cost.

    In seconds: `cpu` and `clock` of all of them, `least` of the cheapest, which `smoke` names, by
    `seconds`.
    """

    cpu: float
    clock: float
    smoke: str
    least: float


@dataclass(frozen=True)
class Part:
    """A piece of one kind of tests: the files from `first` up to `end`, the first of the next."""

    name: str
    kind: str
    first: str = ""
    end: str = "\U0010ffff"

    def files(self) -> dict[str, Cost]:
        """Return its measured files."""
        return {
            file: cost
            for file, cost in durations().get(self.kind, {}).items()
            if self.first <= file < self.end
        }

    def smoke(self) -> list[str]:
        """Return its cheapest tests, one of a file at most, up to SMOKE_SECONDS of CPU.

        A dear file may owe its cost to a fixture that its cheapest test takes, too: it comes last.
        """

        def order(cost: Cost) -> tuple[bool, float]:
            return seconds(self.kind, cost.cpu, cost.clock) > 2 * SMOKE_SECONDS, cost.least

        chosen, spent = [], 0.0
        for cost in sorted(self.files().values(), key=order):
            if chosen and order(cost)[0]:
                break
            spent += cost.least
            if chosen and spent > SMOKE_SECONDS:
                break
            chosen.append(cost.smoke)
        return chosen


@functools.cache
def durations(path: Path = DURATIONS) -> dict[str, dict[str, Cost]]:
    """Return what was measured: kind -> file -> cost."""
    said = json.loads(path.read_text("utf-8"))
    return {
        kind: {file: Cost(*cost) for file, cost in sorted(files.items())}
        for kind, files in said.items()
    }


@functools.cache
def parts() -> tuple[Part, ...]:
    """Return all parts in the order of their numbers, which begin with 1."""
    return tuple(
        part
        for kind in KINDS
        for part in cut(
            kind,
            {
                file: seconds(kind, cost.cpu, cost.clock)
                for file, cost in durations().get(kind, {}).items()
            },
        )
    )


def cut(kind: str, costs: Mapping[str, float], most: float = PART_SECONDS) -> list[Part]:
    """Cut the files of a kind into as few pieces as `most` seconds allow, of about equal cost."""
    total = sum(costs.values())
    count = max(1, math.ceil(total / most))
    if count == 1:
        return [Part(kind, kind)]
    firsts, before = [""], 0.0
    for file in sorted(costs):
        # A file belongs to the piece in which its middle lies.
        if before + costs[file] / 2 > total * len(firsts) / count:
            firsts.append(file)
        before += costs[file]
    ends = [*firsts, "\U0010ffff"]
    return [
        Part(f"{kind}-{number}", kind, first, end)
        for number, (first, end) in enumerate(pairwise(ends), 1)
    ]


def kind_of(item: pytest.Item) -> str:
    """Return `quick`, or the kind of parts to which a test belongs."""
    if item.get_closest_marker("cassandra"):
        return CASSANDRA
    if item.get_closest_marker("smoke"):
        return QUICK
    if item.get_closest_marker("matrix"):
        return next((SERVERS[each] for each in _parameters(item) if each in SERVERS), SLOW)
    if item.get_closest_marker("slow"):
        return SPARK if item.nodeid.startswith("tests/spark/") else SLOW
    return QUICK


def _parameters(item: pytest.Item) -> list[str]:
    called = getattr(item, "callspec", None)
    said = [each for each in called.params.values() if isinstance(each, str)] if called else []
    # Of a backend of its own: "native-valkey9".
    return [each.rpartition("-")[2] for each in said]


def part_of(item: pytest.Item) -> str:
    """Return `quick`, or the name of the one part that runs a test; a new file belongs to one."""
    kind = kind_of(item)
    mine = [part for part in parts() if part.kind == kind]
    if not mine:
        return kind
    file = item.nodeid.partition("::")[0]
    return mine[bisect_right([part.first for part in mine], file) - 1].name


def check(item: pytest.Item) -> None:
    """See that scripts/test.sh runs a test. Raises: UsageError if no part of it does.

    The parts of Spark's slow tests run the tests of that folder, and the others all but those.
    """
    kind = kind_of(item)
    if kind not in (QUICK, *KINDS):
        raise pytest.UsageError(f"{item.nodeid} belongs to no part of the tests: {kind!r} is none")
    if item.nodeid.startswith("tests/spark/") and kind not in (QUICK, SPARK):
        raise pytest.UsageError(
            f"{item.nodeid} would never run: the part {kind!r} leaves out the folder tests/spark"
        )


def known(names: str) -> list[str]:
    """Return the names of parts in a list with commas. Raises: UsageError for another one."""
    all_of_them = [part.name for part in parts()]
    for name in names.split(","):
        if name not in (QUICK, *all_of_them):
            raise pytest.UsageError(
                f"there is no part {name!r}: name {QUICK} or one of {', '.join(all_of_them)}"
            )
    return names.split(",")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--part", metavar="NAME", help="run one part of the tests, or quick")
    parser.addoption("--smoke", metavar="NAME,...", help="run the cheapest tests of these parts")


def in_this_half(path: Path) -> bool:
    """Say whether this process runs a file: those of Spark have a process of their own."""
    half = os.environ.get("WORKSTEALING_TEST_HALF")
    return half is None or (SPARK_TESTS in path.parents) == (half == "spark")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests that were asked for; without a wish, all but those on Cassandra."""
    for item in items:
        check(item)
    # pytest imports a file that its command line names, whatever pytest_ignore_collect says.
    _keep(config, items, [each for each in items if in_this_half(each.path)])
    if names := config.getoption("--part"):
        (name,) = known(names)
        _keep(config, items, [each for each in items if part_of(each) == name])
    elif names := config.getoption("--smoke"):
        wanted = {test for part in parts() if part.name in known(names) for test in part.smoke()}
        _keep(config, items, [each for each in items if each.nodeid in wanted])
    elif "cassandra" not in config.option.markexpr:
        _keep(config, items, [each for each in items if kind_of(each) != CASSANDRA])


def _keep(config: pytest.Config, items: list[pytest.Item], wanted: Iterable[pytest.Item]) -> None:
    kept = list(wanted)
    chosen = set(kept)
    config.hook.pytest_deselected(items=[each for each in items if each not in chosen])
    items[:] = kept


def written(
    measured: Mapping[str, tuple[str, float, float]],
    before: Mapping[str, Mapping[str, Cost]] | None = None,
) -> str:
    """Return the text of durations.json, a line for each file.

    Arguments:
        measured: a test's name -> its kind, its CPU seconds and those of the clock.
        before: what stands there, of which the kinds stay that were not measured.
    """
    tests: dict[str, dict[str, list[tuple[float, float, str]]]] = {}
    for test, (kind, cpu, clock) in measured.items():
        file = test.partition("::")[0]
        tests.setdefault(kind, {}).setdefault(file, []).append((cpu, clock, test))
    costs = dict(before or {}) | {
        kind: {file: _cost(kind, each) for file, each in files.items()}
        for kind, files in tests.items()
    }
    kinds = []
    for kind in (QUICK, *KINDS):
        lines = [
            f"  {json.dumps(file)}: {json.dumps(astuple(cost))}"
            for file, cost in sorted(costs.get(kind, {}).items())
        ]
        kinds.append(f" {json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def seconds(kind: str, cpu: float, clock: float) -> float:
    """Return what counts of a test's costs: a killed driver of Spark takes its CPU time with it."""
    return max(cpu, clock / 2) if kind == SPARK else cpu


def _cost(kind: str, tests: Sequence[tuple[float, float, str]]) -> Cost:
    least, smoke = min((seconds(kind, cpu, clock), test) for cpu, clock, test in tests)
    cpu, clock = (round(sum(each[place] for each in tests), 1) for place in (0, 1))
    return Cost(cpu, clock, smoke, round(least, 1))
