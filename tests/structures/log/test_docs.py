"""The Python blocks of docs/log.md run in order, and its tables name every method."""

from __future__ import annotations

import re

import pytest

from support.pages import run_page, text_of
from support.servers import RedisServer
from workstealing.structures.log import Log, LogRange, LogStats
from workstealing.structures.log.group import GroupEntry, GroupStats, LogGroup

PAGE = text_of("docs/log.md")


def test_the_blocks(redis7: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("docs/log.md", replace={"redis://localhost:6379/0": redis7.url})
    assert capsys.readouterr().out.splitlines() == [
        "0 /",
        "1 /item/17",
        "2 /search",
        "3 /item/4",
    ]
    assert set(names["recruiter"].stats()["jobs"]) == {
        "log_compactor.activity",
        "log_compactor.changes",
        "log_trimmer.activity",
    }


def section(title: str) -> str:
    return PAGE.split(f"## {title}", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize(("structure", "title"), [(Log, "Methods"), (LogGroup, "Groups")])
def test_every_method_is_named(structure: type, title: str) -> None:
    for name in dir(structure):
        method = getattr(structure, name)
        is_here = getattr(method, "__module__", "") == structure.__module__
        # The other functions of other modules are steps, or every structure's.
        if not name.startswith("_") and (is_here or hasattr(method, "steps")):
            assert name in OF_THE_HOUSE or f"`{name}(" in section(title), name


OF_THE_HOUSE = {"check_steps", "dead_steps", "size_steps"}
"""What other parts of this package call."""


def test_every_field_is_named() -> None:
    for name in (*LogStats._fields, *GroupEntry.__dataclass_fields__, *GroupStats._fields):
        assert re.search(rf"\b{name}\b", section("Methods") + section("Groups")), name
    for name in LogRange._fields:
        assert f"there.{name}" in PAGE
