"""The supported versions: one table, and everything else agrees with it; how the matrix judges."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
TABLE = tomllib.loads((ROOT / "scripts" / "matrix.toml").read_text(encoding="utf-8"))
PACKAGES: dict[str, dict[str, Any]] = TABLE["packages"]
OF_SPARK: dict[str, dict[str, Any]] = TABLE["spark"]
ALL = PACKAGES | OF_SPARK
# Goes with opentelemetry-api, and is no dependency of ours.
WITH = {"opentelemetry-sdk": "opentelemetry-api"}


@pytest.fixture(scope="module")
def matrix(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("matrix")


def requirements() -> list[tuple[str, str]]:
    """Return (package, range) of each requirement in pyproject.toml."""
    project = tomllib.loads(PROJECT)
    extras = project["project"]["optional-dependencies"]
    named = [
        *project["project"]["dependencies"],
        *(each for name, group in extras.items() if name != "all" for each in group),
        *project["dependency-groups"]["dev"],
    ]
    found = [re.fullmatch(r"([\w-]+)(?:\[\w+\])?(.*)", each) for each in named]
    return [(each[1], each[2]) for each in found if each is not None]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def test_the_lower_bounds_are_the_oldest_of_the_table() -> None:
    bounds = [(name, bound) for name, bound in requirements() if WITH.get(name, name) in ALL]
    assert {name for name, _ in bounds} >= set(ALL)
    for name, bound in bounds:
        assert bound.partition(",")[0] == f">={ALL[WITH.get(name, name)]['oldest']}", name


def test_every_dependency_of_a_user_is_in_the_table() -> None:
    project = tomllib.loads(PROJECT)["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(x for k, v in extras.items() if k != "all" for x in v)]
    assert {re.split(r"[\[<>=]", each)[0] for each in named} == set(ALL)


def test_each_plugin_of_pytest_is_installed_everywhere() -> None:
    """A test that bears a plugin's mark is no test where the plugin is missing."""
    plugins = {name for name, _ in requirements() if name.startswith("pytest")}
    assert plugins - set(TABLE["install"]["tools"]) == set()


def test_an_upper_bound_or_a_gap_has_a_comment_that_says_what_breaks() -> None:
    lines = PROJECT.splitlines()
    limited = [
        (before, line)
        for before, line in pairwise(lines)
        if re.search(r"\w>=[\d.]+,(<|!=)", line) and not line.lstrip().startswith("#")
    ]
    assert limited
    for before, line in limited:
        assert before.lstrip().startswith("#"), line


def test_the_pins_lie_inside_the_table() -> None:
    pins = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    for name, row in ALL.items():
        pinned, newest = numbers(pins[name]), numbers(row["newest"])
        assert numbers(row["oldest"]) <= pinned, name
        assert pinned[: len(newest)] <= newest, name


def rows(path: str) -> list[list[str]]:
    """Return the cells of the table of versions in a document."""
    text = (ROOT / path).read_text(encoding="utf-8")
    _, _, table = text.partition("| | oldest | newest |\n")
    assert table, f"{path} has no table of versions"
    lines = table.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


@pytest.mark.parametrize("path", ["README.md", "docs/versions.md"])
def test_the_tables_in_the_docs_are_this_one(path: str) -> None:
    shown = [each for each in ALL.values() if path != "README.md" or each.get("readme")]
    assert rows(path) == [
        ["Python", TABLE["python"]["oldest"], TABLE["python"]["newest"]],
        *([each["name"], each["oldest"], each["newest"]] for each in shown),
    ]


def test_the_table_of_support_has_the_same_versions() -> None:
    text = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    table = text.partition("## Support\n")[2].partition("\n\nFor Python")[0]
    found = [tuple(line.strip("| ").split(" | ")[:2]) for line in table.splitlines()[3:]]
    oldest, newest = (numbers(TABLE["python"][each])[1] for each in ("oldest", "newest"))
    pyspark = OF_SPARK["pyspark"]
    assert found == [
        *(("Python", f"3.{minor}") for minor in range(oldest, newest + 1)),
        ("redis-py", f"{PACKAGES['redis']['oldest']} and newer, but 8.0.0"),
        ("servers", "those of the table below"),
        ("Spark", f"{pyspark['oldest']} to {pyspark['newest']}"),
    ]


def test_pythons() -> None:
    oldest, newest = TABLE["python"]["oldest"], TABLE["python"]["newest"]
    assert tomllib.loads(PROJECT)["project"]["requires-python"] == f">={oldest}"
    by_name = {each["name"]: each for each in TABLE["environments"]}
    assert by_name["oldest"]["python"] == [oldest]
    assert by_name["newest"]["python"][0] == newest
    assert by_name["oldest"]["part"] == by_name["newest"]["part"]
    tested = {version for each in TABLE["environments"] for version in each["python"]}
    between = range(numbers(oldest)[1], numbers(newest)[1] + 1)
    assert {each for each in tested if not each.endswith("t")} == {f"3.{x}" for x in between}
    assert by_name["free-threaded"]["python"][0] == f"{newest}t"


def test_each_minor_release_of_spark_has_an_environment() -> None:
    oldest, newest = (OF_SPARK["pyspark"][each] for each in ("oldest", "newest"))
    pins = {
        each["name"]: each["pins"]
        for each in TABLE["environments"]
        if each["name"].startswith("spark-")
    }
    releases = [oldest, *(f"4.{minor}" for minor in range(numbers(newest)[1] + 1))]
    assert pins == {f"spark-{each}": [f"pyspark=={each}.*"] for each in releases}
    # Where its next one begins is the upper bound.
    (bound,) = {bound for name, bound in requirements() if name == "pyspark" and "<" in bound}
    assert bound == f">={oldest},<4.{numbers(newest)[1] + 1}"


def test_every_neighbour_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    for each in TABLE["beside"]:
        assert f"| `{each['package']}` |" in text


def test_every_folder_of_tests_exists() -> None:
    for selections in TABLE["tests"].values():
        for selection in selections:
            paths = [each for each in selection if each.startswith("tests/")]
            assert paths
            assert [each for each in paths if not (ROOT / each).exists()] == []


def test_the_oldest_environment_pins_each_package(matrix: ModuleType) -> None:
    (oldest,) = [each for each in TABLE["environments"] if each["name"] == "oldest"]
    lines = matrix.constraints(oldest)
    assert {f"{name}=={row['oldest']}" for name, row in PACKAGES.items()} <= set(lines)
    assert set(oldest["pins"]) <= set(lines)
    assert len({matrix.canonical(line) for line in lines}) == len(lines)
    (newest,) = [each for each in TABLE["environments"] if each["name"] == "newest"]
    assert matrix.constraints(newest) == []


def test_a_version_that_is_not_the_tables_fails(matrix: ModuleType) -> None:
    oldest = {name: row["oldest"] for name, row in PACKAGES.items()}
    newest = {name: f"{row['newest']}.7" for name, row in PACKAGES.items()}
    old = {"name": "oldest", "versions": "oldest", "is_newest": False}
    new = {"name": "newest", "versions": "newest", "is_newest": True}
    assert matrix.compared(old, oldest) == []
    assert matrix.compared(new, newest) == []
    with pytest.raises(matrix.FailedError, match=r"rq is 2\.0\.1, not 2\.0"):
        matrix.compared(old, oldest | {"rq": "2.0.1"})
    with pytest.raises(matrix.FailedError, match=r"rq is 2\.99, older than"):
        matrix.compared(new, newest | {"rq": "2.99"})
    (line,) = matrix.compared(new, newest | {"rq": "99.0"})
    assert "rq 99.0 is newer than" in line


def test_what_is_missing_fails_in_a_part_of_ci_alone(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot(*_: object) -> None:
        raise matrix.MissingError("python 3.11: there is none")

    def breaks(*_: object) -> None:
        raise matrix.FailedError("its tests do not pass")

    monkeypatch.setattr(matrix, "run_environment", cannot)
    monkeypatch.setattr(sys, "argv", ["matrix", "--only", "oldest"])
    assert matrix.main() == 0
    said = capsys.readouterr().out
    assert re.search(r"^missing +oldest .*python 3.11: there is none$", said, re.M)
    monkeypatch.setattr(sys, "argv", ["matrix", "--part", "1"])
    assert matrix.main() == 1
    assert "0 passed, 2 failed" in capsys.readouterr().out
    monkeypatch.setattr(matrix, "run_environment", breaks)
    monkeypatch.setattr(sys, "argv", ["matrix", "--only", "oldest"])
    assert matrix.main() == 1
    assert re.search(r"^FAILED +oldest .*its tests do not pass$", capsys.readouterr().out, re.M)


def test_a_python_that_nobody_has_is_named(matrix: ModuleType) -> None:
    with pytest.raises(matrix.MissingError, match=r"^python 3\.99: .*on PATH$"):
        matrix.find_python("3.99")
    version = ".".join(map(str, sys.version_info[:2]))
    assert matrix.about(matrix.find_python(version))[0] == version


@pytest.mark.slow
def test_pip_tells_the_unreachable_from_a_conflict(matrix: ModuleType, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    nowhere = ("--no-index", "--find-links", tmp_path)
    with pytest.raises(matrix.MissingError, match="rq"):
        matrix.pip(home, "install", *nowhere, "rq==99.9")
    with pytest.raises(matrix.FailedError, match=r"^pip install: "):
        matrix.pip(home, "install", *nowhere, tmp_path / "no-such.whl")
