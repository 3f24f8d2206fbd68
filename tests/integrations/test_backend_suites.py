"""Django's and Flask-Caching's own tests of cache backends, on ours.

They are in the source distributions alone, which pip fetches into `.cache/suites`, in the versions
that are installed here. `backend_suites.toml` lists the tests that fail, with why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from support.processes import spawn
from support.servers import RedisServer

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "suites"
LISTED = tomllib.loads(Path(__file__).with_name("backend_suites.toml").read_text())
SECONDS = 600


def suite_of(package: str) -> Path:
    """Return the folder `tests` of a package's source distribution; skip where there is none."""
    wanted = f"{package}-{version(package)}"
    home = CACHE / wanted
    found = sorted(home.glob("*/tests"))
    if found:
        return found[0]
    home.mkdir(parents=True, exist_ok=True)
    command = ["pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", home]
    fetched = subprocess.run(
        [sys.executable, "-m", *command, f"{package}=={version(package)}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    archives = sorted(home.glob("*.tar.gz"))
    if fetched.returncode or not archives:
        pytest.skip(f"the source distribution of {wanted} cannot be fetched from a registry")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(home, filter="data")
    archives[0].unlink()
    return sorted(home.glob("*/tests"))[0]


def judge(name: str, found: dict[str, str]) -> None:
    """Compare the failing tests with the list."""
    failed = {test: said for test, said in found.items() if said.startswith("failed")}
    surprises = {test: said for test, said in failed.items() if test not in LISTED[name]}
    assert not surprises, json.dumps(surprises, indent=1)
    assert sorted(LISTED[name].keys() - failed.keys()) == [], "listed tests that do not fail"


def run(command: list[Any], folder: Path, **variables: str) -> tuple[int | None, str]:
    """Run a command to its end; return its status, and what it printed."""
    process = spawn(
        [sys.executable, "-P", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said, errors = process.communicate(timeout=SECONDS)
    return process.returncode, said if process.returncode == 0 else said + errors


def test_djangos_own_suite(redis7: RedisServer) -> None:
    folder = suite_of("django")
    url = f"redis://127.0.0.1:{redis7.port}"
    status, said = run([ROOT / "tests" / "support" / "django_suite.py", folder, url], folder)
    assert status == 0, said
    found = json.loads(said)
    assert sum(outcome == "passed" for outcome in found.values()) > 90
    judge("django", found)


def test_flask_cachings_own_suite(redis7: RedisServer, tmp_path: Path) -> None:
    folder = suite_of("flask-caching")
    results = tmp_path / "results.json"
    plugins = ["support.flask_caching_suite", "no:cacheprovider", "no:asyncio", "no:xdist"]
    # Their own configuration makes errors of warnings.
    command: list[Any] = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", folder]
    for plugin in plugins:
        command += ["-p", plugin]
    # That file goes through the names of their own classes.
    files = sorted(set(folder.glob("test_*.py")) - {folder / "test_init.py"})
    status, said = run(
        [*command, *files],
        folder,
        SUITE_URL=f"redis://127.0.0.1:{redis7.port}",
        SUITE_RESULTS=str(results),
    )
    assert status in (0, 1), said
    found = json.loads(results.read_text())
    assert sum(outcome == "passed" for outcome in found.values()) > 150
    judge("flask-caching", found)
