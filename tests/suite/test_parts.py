"""The parts of the long tests: how they are cut, whose turn it is, and that there is no gap."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import again, parts
from support.parts import Cost, cut

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (".ci", "scripts", "tests/support", "lua/layout")
LISTS = """
import json, os
import pytest
from support import parts

class Asked:
    def __init__(self, config, name):
        self.option, self.hook, self._name = config.option, config.hook, name

    def getoption(self, option):
        return self._name if option == "--part" else None

@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    every = list(items)
    yield
    said = {"": [each.nodeid for each in every]}
    for name in ("quick", *(part.name for part in parts.parts())):
        some = list(every)
        parts.pytest_collection_modifyitems(Asked(config, name), some)
        said[name] = [each.nodeid for each in some]
    with open(os.environ["LISTS"], "w") as file:
        json.dump(said, file)
    items.clear()
"""


@pytest.fixture(scope="module")
def turn(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("parts")


@pytest.fixture
def names(turn: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    chosen = ["a", "b", "c"]
    monkeypatch.setattr(turn, "names", lambda: chosen)
    return chosen


class TestCut:
    """Files are cut into pieces by what they cost."""

    def test_the_pieces_are_whole_ordered_and_even(self) -> None:
        rng = random.Random(7)
        for count in (1, 2, 5, 40):
            costs = {f"tests/{number:03}.py": rng.uniform(0, 30) for number in range(count)}
            pieces = cut("slow", costs, most=100.0)
            total = sum(costs.values())
            assert len(pieces) == max(1, -(-total // 100))
            assert pieces[0].first == ""
            for piece, following in pairwise(pieces):
                assert piece.end == following.first
            held = [[file for file in costs if piece.first <= file < piece.end] for piece in pieces]
            assert sorted(chain(*held)) == sorted(costs)
            for files in held:
                assert sum(costs[file] for file in files) <= total / len(pieces) + 30

    def test_one_piece_bears_the_name_of_its_kind(self) -> None:
        (piece,) = cut("redis8", {"tests/a.py": 3.0})
        assert piece.name == "redis8"
        assert [each.name for each in cut("spark", {})] == ["spark"]

    def test_what_was_measured_is_written_and_read(self, tmp_path: Path) -> None:
        measured = {
            "tests/a.py::one": ("slow", 2.04, 3.0),
            "tests/a.py::two": ("slow", 1.0, 1.0),
            "tests/a.py::three": ("quick", 0.1, 0.1),
        }
        path = tmp_path / "durations.json"
        path.write_text(parts.written(measured))
        found = parts.durations(path)
        assert found["slow"] == {"tests/a.py": Cost(3.0, 4.0, "tests/a.py::two", 1.0)}
        assert found["quick"]["tests/a.py"].cpu == 0.1
        assert found["cassandra"] == {}


class TestNoGap:
    """Each test runs in make test or in one part, and each part has its turn."""

    @pytest.mark.slow
    def test_quick_tests_and_parts_are_the_whole_collection(self, tmp_path: Path) -> None:
        (tmp_path / "lists_them.py").write_text(LISTS)
        path = tmp_path / "lists.json"
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "pytest", "--collect-only", "-q"),
                *("-p", "lists_them", "-p", "no:cacheprovider", "tests"),
            ],
            cwd=ROOT,
            env=environment(PYTHONPATH=str(tmp_path), LISTS=str(path)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert path.exists(), done.stdout[-3000:] + done.stderr
        said: dict[str, list[str]] = json.loads(path.read_text())
        whole = said.pop("")
        assert len(whole) > 13_000
        assert len(set(whole)) == len(whole)
        assert all(said.values()), [name for name, tests in said.items() if not tests]
        assert sorted(chain(*said.values())) == sorted(whole)

    def test_a_test_that_no_part_runs_ends_the_run(self) -> None:
        class Item:
            nodeid = "tests/spark/test_it.py::test_it"

            def get_closest_marker(self, name: str) -> bool:
                return name == "cassandra"

        with pytest.raises(pytest.UsageError, match="would never run"):
            parts.check(Item())  # type: ignore[arg-type]

    def test_a_part_that_is_none_is_refused(self) -> None:
        assert parts.known("quick") == ["quick"]
        with pytest.raises(pytest.UsageError, match="there is no part 'slw-1': name quick or one"):
            parts.known("slw-1")

    def test_each_environment_and_neighbour_has_a_part(self, turn: ModuleType) -> None:
        table = tomllib.loads((ROOT / "scripts" / "matrix.toml").read_text())
        rows = [*table["environments"], *table["beside"]]
        held = chain(*turn.versions().values())
        assert sorted(held) == sorted(row.get("name") or row["package"] for row in rows)
        assert set(turn.versions()) <= set(turn.names())

    def test_the_file_has_a_record_for_each_part(self, turn: ModuleType) -> None:
        text = turn.RECORDS.read_text()
        said = turn.Records.read(text)
        assert list(said.part) == turn.names(), "run make test-durations, or scripts/parts.py list"
        assert said.written() == text

    def test_each_part_has_a_smoke_and_folders_of_its_own(self, turn: ModuleType) -> None:
        for part in parts.parts():
            assert part.smoke()
        for name in turn.names():
            assert turn.own(name)
            assert all((ROOT / path).exists() for path in turn.own(name)), turn.own(name)
        assert all((ROOT / path).exists() for path in turn.SHARED)


class TestTurn:
    """Whose turn it is, by the file alone."""

    def test_the_oldest_record_comes_first(self, turn: ModuleType, names: list[str]) -> None:
        record = turn.Record
        records = turn.Records(9, {}, {"a": record(5, "x", "2026-01-02"), "b": record(4, "x", "1")})
        # One that never ran.
        assert records.complete().next() == "c"
        records.part["c"] = record(5, "x", "2026-01-01")
        assert records.next() == "b"
        records.part["b"] = record(9, "x", "2026-01-03")
        assert records.next() == "c"

    def test_each_part_has_its_turn(self, turn: ModuleType, names: list[str]) -> None:
        records = turn.Records().complete()
        ran = []
        for number in range(1, 10):
            records.number = number
            ran.append(records.next())
            records.part[ran[-1]] = turn.Record(number, "x", "2026-01-01")
        assert ran == names * 3
        assert records.overdue() == []

    def test_a_record_that_is_too_old_fails(
        self, turn: ModuleType, names: list[str], files: Callable[..., Any], capsys: Any
    ) -> None:
        records = turn.Records(8, {}, {each: turn.Record(8, "x", "d") for each in names})
        records.part["b"] = turn.Record(2, "x", "d")
        files(records)
        assert turn.do_check() == 0
        files(replace(records, number=9))
        assert turn.do_check() == 1
        said = capsys.readouterr().out
        assert "FAILED  b has not been green since landing 2; this is landing 9: run make" in said

    def test_a_part_that_never_ran_is_not_young_for_ever(
        self, turn: ModuleType, names: list[str]
    ) -> None:
        records = turn.Records.read("number = 7").complete()
        assert turn.Records.read(replace(records, number=13).written()).overdue() == []
        assert turn.Records.read(replace(records, number=14).written()).overdue() == names

    def test_a_change_runs_the_smoke_of_its_part(
        self, turn: ModuleType, names: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(turn, "own", lambda name: [f"tests/{name}"])
        before = {"tests/a": "1", "tests/b": "1", "tests/c": "1", "workstealing/store": "1"}
        records = turn.Records(1, before)
        assert turn.changed(records, before) == []
        assert turn.changed(records, before | {"tests/b": "2"}) == ["b"]
        assert turn.changed(records, {**before, "tests/a": "2", "tests/c": "2"}) == ["a", "c"]
        assert turn.changed(records, before | {"workstealing/store": "2"}) == names
        # A folder that has come or gone has changed.
        assert turn.changed(records, {**before, "lua/shared": "1"}) == names
        del before["tests/b"]
        assert turn.changed(records, {"tests/b": "1", **before}) == ["b"]

    def test_a_number_or_a_name_names_a_part(self, turn: ModuleType, names: list[str]) -> None:
        assert turn.named("2") == turn.named("b") == "b"
        for word in ("0", "4", "d", ""):
            with pytest.raises(turn.Failed, match=r"PART is a number from 1 to 3, or one of a, b"):
                turn.named(word)


@pytest.fixture
def files(
    turn: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], None]:
    """Put records into a file of the test's own, and let nothing be repeated."""
    monkeypatch.setattr(turn, "RECORDS", tmp_path / "parts.toml")
    monkeypatch.setattr(again, "PATH", tmp_path / "again.txt")

    def write(records: Any) -> None:
        turn.RECORDS.write_text(records.written())

    return write


class TestRun:
    """A run of a part says how it went, and is recorded where it was green."""

    @pytest.fixture
    def ran(
        self,
        turn: ModuleType,
        names: list[str],
        files: Callable[[Any], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> Callable[..., int]:
        records = turn.Records(3, {}, {each: turn.Record(2, "seen", "d") for each in names})
        files(records)
        monkeypatch.setattr(turn, "record", lambda name: f"recorded {name}")
        monkeypatch.delenv("WORKSTEALING_RECORDS", raising=False)

        def run(status: int, passed: int, *more: str) -> int:
            monkeypatch.setattr(turn, "run_part", lambda *_: (status, passed))
            return turn.do_run("2", *more)

        return run

    def test_green(self, ran: Callable[..., int], capsys: Any) -> None:
        assert ran(0, 12) == 0
        said = capsys.readouterr().out
        assert "ok      part 2, b: 12 passed, 0 s\n" in said
        assert "recorded b" in said

    def test_some_of_its_tests_are_no_record(self, ran: Callable[..., int], capsys: Any) -> None:
        assert ran(0, 12, "-k", "one") == 0
        assert "recorded" not in capsys.readouterr().out

    def test_ci_writes_nothing(
        self, ran: Callable[..., int], capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORKSTEALING_RECORDS", "no")
        assert ran(0, 12) == 0
        assert "recorded" not in capsys.readouterr().out

    def test_nothing_ran(self, ran: Callable[..., int], capsys: Any) -> None:
        assert ran(0, 0) == 1
        assert "FAILED  part 2, b: it ran no test\n" in capsys.readouterr().out

    def test_red_says_how_to_trace_it(self, ran: Callable[..., int], capsys: Any) -> None:
        assert ran(1, 12) == 1
        said = capsys.readouterr().out
        assert "FAILED  part 2, b: 12 passed, 0 s\n" in said
        assert "git worktree add FOLDER seen" in said

    def test_passed_tests_are_counted(self, turn: ModuleType, capfd: Any) -> None:
        lines = ["=== 12 passed, 1 skipped in 3.21s ===", "== 1 failed, 7 passed in 2s =="]
        lines += ["    3 passed, 2 warnings in 1s", "test_it: 900 passed by", "4 passed, 0 failed"]
        script = f"print('''{chr(10).join(lines)}'''); raise SystemExit(3)"
        assert turn.run([sys.executable, "-c", script]) == (3, 12 + 7 + 3 + 4)


class TestClone:
    """In clones of this repository, CI's shallow one among them."""

    @pytest.fixture
    def clone(self, tmp_path: Path) -> Callable[..., Path]:
        if not (ROOT / ".git").exists():
            pytest.skip("this is no clone")

        def make(*options: str) -> Path:
            folder = tmp_path / f"clone{len(list(tmp_path.iterdir()))}"
            git(tmp_path, "clone", "--quiet", *options, f"file://{ROOT}", str(folder))
            # As they are here, committed or not.
            for source in SOURCES:
                subprocess.run(["cp", "-r", "-T", ROOT / source, folder / source], check=True)
            commit(folder)
            return folder

        return make

    def said(self, folder: Path, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "scripts/parts.py", *words],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def changes(self, folder: Path) -> str:
        program = "import parts; print(parts.changed(parts.read(), parts.trees()))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=environment(PYTHONPATH="scripts"),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    @pytest.mark.slow
    def test_a_shallow_one_will_do(self, clone: Callable[..., Path], turn: ModuleType) -> None:
        folder = clone("--depth", "1")
        assert self.said(folder, "next").strip() in turn.names()
        assert "ok" in self.said(folder, "check")
        assert self.changes(folder).startswith("[")

    @pytest.mark.slow
    def test_landings_are_counted_once_and_changes_are_those_since(
        self, clone: Callable[..., Path], turn: ModuleType
    ) -> None:
        folder = clone()
        before = turn.Records.read((folder / ".ci" / "parts.toml").read_text()).number
        for _ in range(2):
            assert f"this is landing {before + 1}" in self.said(folder, "landed")
        commit(folder)
        (folder / "lua" / "layout" / "new.lua").write_text("--")
        assert "no landing was counted" not in self.said(folder, "landed")
        git(folder, "checkout", "--quiet", ".ci/parts.toml")
        commit(folder)
        assert f"this is landing {before + 2}" in self.said(folder, "landed")
        commit(folder)
        # All share the layouts.
        assert self.changes(folder) == str(turn.names())
        assert f"this is landing {before + 3}" in self.said(folder, "landed")
        commit(folder)
        assert self.changes(folder) == "[]"

    @pytest.mark.slow
    def test_what_is_not_committed_is_no_record(
        self, clone: Callable[..., Path], turn: ModuleType
    ) -> None:
        folder = clone()
        with (folder / "README.md").open("a") as file:
            file.write("more")
        assert "README.md is not committed" in self.said(folder, "landed")


class TestAgain:
    """A test that failed at first is written down once."""

    SOURCE = """
import pathlib
def test_it():
    path = pathlib.Path(__file__).with_name("been")
    if not path.exists():
        path.touch()
        raise ValueError("the first time")
"""
    PROGRAM = """
import sys, pathlib, pytest
from support import again
again.ROOT = pathlib.Path(sys.argv[1])
again.PATH = again.ROOT / "again.txt"
again.line = lambda name, why: f"2026-01-01 landing 4 {name}: {why}\\n"
sys.exit(pytest.main(["-q", "-p", "support.again", "-p", "pytest_rerunfailures", "-p",
    "no:cacheprovider", "--reruns", "1", "--rootdir", sys.argv[1], sys.argv[1]]))
"""

    def run(self, folder: Path) -> int:
        (folder / "test_it.py").write_text(self.SOURCE)
        (folder / "been").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", self.PROGRAM, str(folder)],
            cwd=folder,
            env=environment(PYTHONPATH=str(ROOT / "tests"), PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert re.search(r"\b1 passed.*\b1 rerun\b", done.stdout), done.stdout + done.stderr
        return done.returncode

    @pytest.mark.slow
    def test_the_second_time_fails(self, tmp_path: Path) -> None:
        expected = "2026-01-01 landing 4 test_it.py::test_it: ValueError: the first time\n"
        for status in (0, 1):
            assert self.run(tmp_path) == status
            assert (tmp_path / "again.txt").read_text() == expected

    def test_none_stands_there_twice_or_for_long(self) -> None:
        text = again.line("tests/a.py::test[x y]", "E  it: failed")
        assert again.entries(text)[0][2:] == ("tests/a.py::test[x y]", "E  it: failed")
        here = again.entries(text)[0][1]
        assert again.wrong(here + 3, text) == []
        assert "lists tests/a.py::test[x y] twice" in again.wrong(here, text * 2)[0]
        assert "since landing" in again.wrong(here + 4, text)[0]
        with pytest.raises(ValueError, match="not a date, a landing"):
            again.entries("tests/a.py failed")

    def test_the_file_here_can_be_read(self) -> None:
        assert again.PATH.exists()
        again.entries()


def environment(**more: str) -> dict[str, str]:
    """Return the variables of this process without those of its run, and more."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "WORKSTEALING_"))
    }
    return {**kept, **more}


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    """Commit all there is in a clone, if anything has changed."""
    git(folder, "add", "--all")
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    git(folder, *who, "commit", "--quiet", "--allow-empty", "--message", "test")
