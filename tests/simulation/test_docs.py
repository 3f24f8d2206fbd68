"""docs/adaptive.md shows the figures of the simulation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulate import main

from workstealing import Adaptive

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "adaptive.md").read_text(encoding="utf-8")


def test_the_table_and_the_picture_are_those_of_the_program(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (console,) = re.findall(
        r"```console\n\$ python benchmarks/simulate.py (.*)\n((?:.*\n)*?)```", TEXT
    )
    command, shown = console
    svg = tmp_path / "adaptive.svg"
    assert main([*command.split(), "--svg", str(svg)]) == 0
    assert capsys.readouterr().out == shown
    assert svg.read_text(encoding="utf-8") == (DOCS / "adaptive.svg").read_text(encoding="utf-8")


def test_every_argument_is_in_the_docs() -> None:
    for name in Adaptive.__dataclass_fields__:
        assert f"| `{name}` |" in TEXT
