"""scripts/code_lines.py: lines that are neither blank, nor comment, nor docstring."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = '''"""A module.

With a docstring of three lines.
"""

# A comment.
from typing import Any  # 1

LIMIT = 3  # 2
"""The text below a name describes it."""


class Thing:  # 3
    """A class."""

    name: str = """a string that is
    no docstring"""  # 4, 5

    def call(self, value: Any) -> Any:  # 6
        """Return a value."""
        told = f"""
        {value}"""  # 7, 8
        return (  # 9
            value  # 10

            if value else lambda: "no docstring"  # 11
        ), told  # 12


__all__ = ["LIMIT", "Thing"]  # 13
'''
LUA = """-- A header
--   of two lines.
--[[ a long
comment ]]
--[==[ another ]] one
]==]

local a = 'it is -- no comment' -- 1
local b = "nor --[[ this ]] one" -- 2
local c = [[ text
-- inside it
]] -- 3 to 5
return a .. b .. c --[[ 6 ]]
"""


@pytest.fixture
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    """The script."""
    return load_script("code_lines")


def test_lines_of_python(script: ModuleType) -> None:
    assert script.python_lines(PYTHON) == 13
    assert script.python_lines("") == 0
    assert script.public_names(PYTHON) == 2


def test_lines_of_lua(script: ModuleType) -> None:
    assert script.lua_lines(LUA) == 6


def test_totals_of_a_tree(script: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "workstealing/a.py": PYTHON,
        "workstealing/store/b.py": "x = 1\n",
        "jobs/c.py": "y = 2\nz = 3\n",
        "lua/log/d.lua": LUA,
        "lua/README.md": "no code\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert script.totals(list(script.files(tmp_path))) == {
        "code lines of Python": 16,
        "code lines of Lua": 6,
        "modules": 3,
        "scripts": 1,
        "public names": 2,
        "modules with public names": 1,
        "parts": {"workstealing": 13, "lua": 6, "jobs": 2, "workstealing/store": 1},
    }


@pytest.mark.slow
def test_it_counts_what_ships() -> None:
    command = [sys.executable, "-P", ROOT / "scripts" / "code_lines.py", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    lines = found["code lines of Python"] + found["code lines of Lua"]
    assert sum(found["parts"].values()) == lines > 10_000
    modules = [
        path for each in ("workstealing", "jobs", "lua") for path in (ROOT / each).rglob("*.py")
    ]
    assert found["modules"] == len(modules)
