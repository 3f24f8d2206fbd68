"""Beside types-redis, whose stubs hide redis-py's own types, operations stay known to mypy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workstealing.structures import (
    AsyncDurableKeys,
    AsyncVolatileHashes,
    DurableKeys,
    VolatileHashes,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Kept for the next run, as the environments of the matrix are.
HOME = ROOT / ".cache" / "matrix" / "types-redis"
STUBS = "types-redis==4.6.0.20241004"
# Those that take their types from redis-py.
FORMS = (VolatileHashes, AsyncVolatileHashes, DurableKeys, AsyncDurableKeys)
USES = """
from __future__ import annotations
from typing import Any, assert_type
from workstealing.structures import *

def blocking(hashes: VolatileHashes, keys: DurableKeys) -> None:
    hashes.hsetex("item", mapping={"likes": 1}, ex=5)
    found = hashes.hgetex("item", "likes", "related")
    assert_type(hashes.expire("item", 5), bool)
    assert_type(hashes.pipeline().expire("item", 5), bool)
    assert_type(keys.set("lock", 1, ex=5), bool | None)
    value: bytes | None = keys.get("lock")

async def awaited(hashes: AsyncVolatileHashes, keys: AsyncDurableKeys) -> None:
    await hashes.hsetex("item", mapping={"likes": 1}, ex=5)
    found = await hashes.hgetex("item", "likes", "related")
    assert_type(await hashes.expire("item", 5), bool)
    assert_type(await keys.set("lock", 1, ex=5), bool | None)
    value: bytes | None = await keys.get("lock")
"""


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a command that must succeed; return what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, mypy and types-redis."""
    found = HOME / "bin" / "python"
    pip = (found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
    if not (HOME / "made").exists():
        run(sys.executable, "-m", "venv", "--clear", HOME)
        run(*pip, "--constraint", ROOT / "constraints.txt", "mypy", "redis", STUBS)
        (HOME / "made").touch()
    folder = tmp_path_factory.mktemp("wheel")
    run("bash", ROOT / "scripts" / "build_wheel.sh", folder)
    run(*pip, "--no-deps", "--force-reinstall", *folder.glob("*.whl"))
    return found


def test_the_stubs_hide_redis_pys_own_types(python: Path, tmp_path: Path) -> None:
    """Otherwise the other test would prove nothing."""
    program = tmp_path / "program.py"
    program.write_text("import redis\nredis.Redis().hsetex('item', 'likes', 1)\n")
    done = subprocess.run(
        [python, "-P", "-m", "mypy", "--cache-dir", os.devnull, program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert re.search(r'"Redis\[.*\]" has no attribute "hsetex"', done.stdout), done.stdout


def test_no_operation_vanishes(python: Path, tmp_path: Path) -> None:
    lines = [USES]
    for form in FORMS:
        lines.append(f"def all_of_{form.__name__}(it: {form.__name__}) -> None:")
        # HIMPORT came with redis-py 8.1, and volatile hashes have nothing to do with it.
        names = [each for each in dir(form) if not each.startswith(("_", "himport"))]
        assert len(names) > 20
        lines += [f"    print(it.{each})" for each in names]
    program = tmp_path / "program.py"
    program.write_text("\n".join(lines))
    # Away from the checkout: mypy checks what is installed.
    options = ("--cache-dir", os.devnull)
    said = run(python, "-P", "-m", "mypy", *options, program, folder=tmp_path)
    assert "no issues found" in said
