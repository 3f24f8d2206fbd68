"""What attacks have tried is summed up over runs, and the page says what was summed up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
import pytest
from support.proof import seed, tried

@pytest.fixture
def redis7(): pass

def test_one(redis7):
    tried("an attack", 3)
    tried("an attack", held=1)
    tried("another", seed())

def test_two(redis7):
    tried("an attack")
    assert False

def test_three(): pass
"""


@pytest.fixture(scope="module")
def prove(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("prove")


def test_the_tries_of_a_run_are_summed_up(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "structures" / "durable_keys"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(SOURCE)
    path = tmp_path / "proof.jsonl"
    for _ in range(2):
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "pytest", "-q", "-p", "support.proof"),
                *("-p", "no:cacheprovider", f"--proof-to={path}", f"--rootdir={tmp_path}", folder),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "tests"),
                "PROVE_SEED": "7",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[:2] == rows[2:]
    assert rows[:2] == [
        ["an attack", "durable keys", "redis7", 5, 0, 1, 1],
        ["another", "durable keys", "redis7", 7, 0, 0, 0],
    ]


def test_sums_add_up_over_runs(prove: ModuleType) -> None:
    line = json.dumps(["a process killed", "log", "redis7", 3, 1, 0, 0])
    sums = prove.add({}, [line])
    sums = prove.add(
        sums, [line, json.dumps(["a process killed", "log", "cluster", 1000, 0, 0, 0])]
    )
    assert sums[("a process killed", "log", "redis7")] == [6, 2, 0, 0]
    assert "| a process killed | log | cluster | 1,000 | 0 | 0 | 0 |" in prove.table(sums)
    row = "| a process killed | log | cluster, redis7 | 1,006 | 2 | 0 | 0 | `--only kills` |"
    assert row in prove.summary(sums)
    assert prove.summary(sums).endswith("| **all** |  |  | 1,006 | 2 | 0 | 0 |  |")


def test_the_page_says_what_was_summed_up(prove: ModuleType) -> None:
    page = prove.PAGE.read_text("utf-8")
    assert prove.summary(prove.load()) in page
    assert prove.table(prove.load()) in page


def test_the_page_explains_each_attack_and_names_its_tests(prove: ModuleType) -> None:
    lines = prove.PAGE.read_text("utf-8").splitlines()
    for attack in prove.ATTACKS:
        (line,) = [line for line in lines if line.startswith(f"| `{attack.name}` |")]
        for path in attack.tests:
            assert path in line or str(Path(path).parent) in line


def test_a_run_is_kept_with_its_seed(
    prove: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "proof.md"
    page.write_text(f"before {prove.BEGIN}{prove.END} after", "utf-8")
    monkeypatch.setattr(prove, "SUMS", tmp_path / "proof.json")
    monkeypatch.setattr(prove, "PAGE", page)
    sums = prove.add({}, [json.dumps(["a random program", "log", "redis7", 3, 0, 0, 0])])
    for seed in (7, 8):
        prove.write(sums, "parity", seed)
    assert prove.load() == sums
    assert json.loads(prove.SUMS.read_text())["seeds"] == {"parity": [7, 8]}
    assert page.read_text().endswith(" after")


def test_each_attack_finds_its_tests(prove: ModuleType) -> None:
    for attack in prove.ATTACKS:
        assert all((ROOT / each).exists() for each in attack.tests)


def test_a_run_that_tried_nothing_fails(
    prove: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "run", lambda *_: 0)
    monkeypatch.setattr(sys, "argv", ["prove", "--only", "parity"])
    assert prove.main() == 1
    assert "parity has tried nothing" in capsys.readouterr().out


@pytest.fixture
def one_try(prove: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let each run try a thousand and lose one; return the seeds of the runs."""
    seeds: list[int] = []

    def run(attack: Any, seed: int, path: Path) -> int:
        seeds.append(seed)
        path.write_text(json.dumps(["a random program", "log", "redis7", 1000, 1, 0, 0]) + "\n")
        return 0

    page = tmp_path / "proof.md"
    page.write_text(f"{prove.BEGIN}{prove.END}", "utf-8")
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "SUMS", tmp_path / "proof.json")
    monkeypatch.setattr(prove, "PAGE", page)
    monkeypatch.setattr(prove, "run", run)
    return seeds


def test_a_run_says_what_it_has_tried(
    prove: ModuleType, one_try: list[int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["prove", "--only", "parity", "--minutes", "0"])
    assert prove.main() == 0
    assert "parity: 1,000 tried, 1 lost, 0 held, 0 wrong" in capsys.readouterr().out
    assert prove.load() == {("a random program", "log", "redis7"): [1000, 1, 0, 0]}


def test_a_run_that_is_repeated_is_not_counted_twice(
    prove: ModuleType, one_try: list[int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["prove", "--only", "parity", "--seed", "7"])
    assert prove.main() == 0
    assert one_try == [7]
    assert "1,000 tried, 1 lost" in capsys.readouterr().out
    assert not prove.SUMS.exists()
