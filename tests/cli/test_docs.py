"""docs/command_line.md and docs/forecast.md say what is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from support.pages import ROOT, blocks_of, text_of
from workstealing.cli.arguments import COMMANDS, build

DOCS = ROOT / "docs"
COMMAND_LINE = text_of("docs/command_line.md")
FORECAST = text_of("docs/forecast.md")


def test_every_command_is_in_the_table() -> None:
    named = re.findall(r"^\| `workstealing ([\w-]+)", COMMAND_LINE, re.MULTILINE)
    assert set(COMMANDS) <= set(named)


def test_every_option_that_is_named_exists() -> None:
    _, parsers = build()
    known = {"--help", "--json"}
    for parser in parsers.values():
        parser.complete()
        inner = [each.choices for each in parser._actions if isinstance(each.choices, dict)]
        for one in (parser, *(nested for each in inner for nested in each.values())):
            known |= {option for action in one._actions for option in action.option_strings}
    assert set(re.findall(r"--[a-z][a-z-]*", COMMAND_LINE + FORECAST)) <= known


def test_the_crontab_line_is_a_command_line() -> None:
    (line,) = re.findall(r"^\* .*&& workstealing (.*?) >>", COMMAND_LINE, re.MULTILINE)
    _, parsers = build()
    name, *arguments = shlex.split(line)
    options = parsers[name].parse_args(arguments)
    assert (options.app, options.seconds, options.json) == ("shop.tasks:recruiter", 50.0, True)


def test_the_forecasts_example_is_what_is_printed(command: Any) -> None:
    (block,) = blocks_of("docs/forecast.md", ("console",))
    asked, _, answer = block.code.removeprefix("$ workstealing ").partition("\n")
    assert command(*shlex.split(asked)) == answer


def test_the_forecasts_picture_is_the_one_that_is_drawn(command: Any, tmp_path: Path) -> None:
    (asked,) = re.findall(r"\$ workstealing (plan [^\n]*)\n", FORECAST)
    command(*shlex.split(asked), "--svg", str(tmp_path / "picture.svg"))
    assert (tmp_path / "picture.svg").read_text() == (DOCS / "forecast.svg").read_text()
