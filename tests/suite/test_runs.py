"""How the tests are run: on which servers, what is left out, and what is said of skipped ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import parts
from support.skips import unexpected

TESTS = Path(__file__).parents[1]
# All that scripts/test.sh needs, and neither Java nor Maven.
NO_JAVA = (
    *("bash", "cat", "chmod", "cut", "dirname", "grep", "mkdir", "mktemp", "rm", "setpriv"),
    *("setsid", "sleep"),
)
SERVERS = """
import pytest

@pytest.mark.contract
def test_a_contract(any_server): pass

def test_another(any_server): pass

@pytest.mark.slow
def test_a_slow_one(): pass

@pytest.mark.slow
@pytest.mark.smoke
def test_one_that_stands_for_others(): pass
"""
SKIPPED = """
import pytest

def test_one(): pytest.skip("fakeredis takes minutes")

@pytest.mark.skipif(True, reason="fakeredis takes minutes")
def test_two(): pass

@pytest.mark.xfail(strict=True)
def test_three(): assert False

def test_four(): {four}
"""


def run(folder: Path, source: str, *options: str, ci: bool = False) -> tuple[int, str]:
    """Run pytest on a file with that source; return its status and what it says."""
    (folder / "test_it.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *options, folder],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "CI": "true" if ci else "",
            # Loading all the plugins that happen to be installed takes longer than the tests.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        cwd=folder,
    )
    return done.returncode, done.stdout + done.stderr


def collected(said: str) -> list[str]:
    return [line.partition("::")[2] for line in said.splitlines() if "::" in line]


WORKER = ("-p", "xdist", "-n", "1")
BOTH = ["test_another[redis7]", "test_another[cluster]"]


class TestChoice:
    """The plugins support.any_server and support.parts."""

    COLLECT = ("-p", "support.parts", "-p", "support.any_server", "--collect-only", "-q")

    @pytest.mark.slow
    def test_a_contract_runs_on_every_server_and_others_on_two(self, tmp_path: Path) -> None:
        _, said = run(tmp_path, SERVERS, *self.COLLECT)
        assert collected(said) == [
            *(f"test_a_contract[{name}]" for name in ("fakeredis", "redis7", "redis8")),
            *(f"test_a_contract[{name}]" for name in ("valkey8", "redis62", "redis82")),
            *(f"test_a_contract[{name}]" for name in ("valkey9", "cluster")),
            *BOTH,
            "test_a_slow_one",
            "test_one_that_stands_for_others",
        ]

    @pytest.mark.slow
    def test_make_test_leaves_out_further_servers_and_what_is_slow(self, tmp_path: Path) -> None:
        _, said = run(tmp_path, SERVERS, *self.COLLECT, "--part", "quick")
        assert collected(said) == [
            "test_a_contract[redis7]",
            "test_a_contract[cluster]",
            *BOTH,
            "test_one_that_stands_for_others",
        ]

    @pytest.mark.slow
    @pytest.mark.parametrize("name", parts.SERVERS.values())
    def test_a_further_server_is_a_part(self, name: str, tmp_path: Path) -> None:
        _, said = run(tmp_path, SERVERS, *self.COLLECT, "--part", name)
        assert collected(said) == [f"test_a_contract[{name}]"]


class TestSkipped:
    """The plugin support.skips."""

    PLUGIN = ("-p", "support.skips")

    def test_they_are_listed_by_reason(self, tmp_path: Path) -> None:
        source = SKIPPED.format(four="pytest.skip('no such machine')")
        status, said = run(tmp_path, source, *self.PLUGIN)
        assert status == 0, said
        assert "= 3 skipped, by reason =" in said
        assert "    2 fakeredis takes minutes (test_it.py)\n" in said
        assert "    1 no such machine (test_it.py)\n" in said
        assert "not listed" not in said

    @pytest.mark.slow
    def test_workers_are_heard(self, tmp_path: Path) -> None:
        _, said = run(tmp_path, SKIPPED.format(four="pass"), *self.PLUGIN, *WORKER)
        assert said.count("    2 fakeredis takes minutes (test_it.py)\n") == 1

    def test_in_ci_a_reason_that_is_not_listed_fails_the_run(self, tmp_path: Path) -> None:
        source = SKIPPED.format(four="pytest.skip('no such machine')")
        status, said = run(tmp_path, source, *self.PLUGIN, ci=True)
        assert status == pytest.ExitCode.TESTS_FAILED, said
        assert "a test was skipped in CI for a reason that is not listed: no such machine;" in said
        assert said.count("not listed:") == 1

    def test_so_does_a_whole_file(self, tmp_path: Path) -> None:
        source = "import pytest\npytest.skip('no such machine', allow_module_level=True)\n"
        (tmp_path / "test_runs.py").write_text("def test_it(): pass\n")
        status, said = run(tmp_path, source, *self.PLUGIN, ci=True)
        assert status == pytest.ExitCode.TESTS_FAILED, said
        assert "not listed: no such machine;" in said

    def test_in_ci_a_listed_reason_is_fine(self, tmp_path: Path) -> None:
        status, said = run(tmp_path, SKIPPED.format(four="pass"), *self.PLUGIN, ci=True)
        assert status == 0, said
        assert "    2 fakeredis takes minutes (test_it.py)\n" in said

    def test_a_reason_is_listed_in_full(self) -> None:
        assert unexpected(["fakeredis takes minutes"]) == []
        assert unexpected(["fakeredis takes minutes, and then some"]) != []


@pytest.mark.parametrize(("ci", "expected"), [("true", 1), ("", 0)])
def test_cassandra_that_cannot_be_had_fails_in_ci(ci: str, expected: int, tmp_path: Path) -> None:
    shutil.copytree(TESTS.parent / "scripts", tmp_path / "scripts")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in NO_JAVA:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    done = subprocess.run(
        [tools / "bash", "scripts/test.sh", "cassandra", "1"],
        cwd=tmp_path,
        env={"PATH": str(tools), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "there is no java" in done.stderr
    assert "has run nothing: there is no Cassandra here" in done.stdout
    assert done.returncode == expected


@pytest.mark.slow
def test_costs_are_listed_with_those_of_children(tmp_path: Path) -> None:
    source = """
import subprocess, sys
def test_it():
    program = "import time\\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
"""
    for workers in ((), WORKER):
        _, said = run(tmp_path, source, "-p", "support.costs", "--costs", *workers)
        (line,) = [line for line in said.splitlines() if line.endswith("test_it.py::test_it")]
        assert float(line.split()[0]) >= 0.5


STOPPED = """
import os, signal, subprocess, sys, time
from support.patience import FairSeconds

with FairSeconds() as slept:
    time.sleep(0.3)
with FairSeconds() as stopped:
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
print(slept.seconds, stopped.seconds)
"""


@pytest.mark.slow
def test_fair_seconds_are_those_in_which_the_process_might_have_run() -> None:
    said = subprocess.run(
        [sys.executable, "-c", STOPPED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    ).stdout
    slept, stopped = map(float, said.split())
    # What is busy with something else while this runs may be taken off as well, and no more.
    assert slept > 0.1
    assert stopped < 0.5
