"""The environment of `make docs`, for the tests that build the site or read its reference."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".cache" / "docs" / "bin" / "python"


def need_docs_environment() -> Path:
    """Return its Python; make it if it is not there, or skip the test if it cannot be made."""
    made = run("group_venv.sh", "docs")
    if made.returncode:
        said = (made.stderr.strip().splitlines() or ["no word"])[-1]
        pytest.skip(f"the packages of make docs cannot be installed: {said}")
    return PYTHON


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script of the folder scripts."""
    command = ["bash", ROOT / "scripts" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
