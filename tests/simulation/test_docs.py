"""docs/adaptive.md shows the figures of the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulate import main

from support.pages import ROOT, blocks_of, text_of
from workstealing import Adaptive

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
TEXT = text_of("docs/adaptive.md")


def test_the_table_and_the_picture_are_those_of_the_program(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (block,) = blocks_of("docs/adaptive.md", ("console",))
    command, _, shown = block.code.removeprefix("$ python benchmarks/simulate.py ").partition("\n")
    svg = tmp_path / "adaptive.svg"
    assert main([*command.split(), "--svg", str(svg)]) == 0
    assert capsys.readouterr().out == shown
    assert svg.read_text(encoding="utf-8") == (DOCS / "adaptive.svg").read_text(encoding="utf-8")


def test_every_argument_is_in_the_docs() -> None:
    for name in Adaptive.__dataclass_fields__:
        assert f"| `{name}` |" in TEXT
