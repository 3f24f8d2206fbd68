"""Applications for the commands to find."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing.cli import main

_NUMBERS = itertools.count()

MakeApp = Callable[[str], str]


@pytest.fixture
def app_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeApp]:
    """Return a function that writes a module into the current folder and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WORKSTEALING_APP", raising=False)
    made = []

    def write(source: str) -> str:
        name = f"app_of_a_test_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


class Command:
    """Runs `workstealing` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """Return what it prints on stdout, once it has ended with that status."""
        ended = main(arguments)
        said = self._capsys.readouterr()
        self.err = said.err
        assert ended == status, (ended, said.out, said.err)
        return said.out

    def json(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        """Return the one JSON object that it prints."""
        answer = json.loads(self(*arguments, "--json", status=status))
        assert isinstance(answer, dict)
        return answer

    def well(self, app: str) -> tuple[dict[tuple[str, str], Any], dict[str, int]]:
        """Ask for the `status` of an application that must be well.

        Returns: of each structure, by kind and name, its size, how much of it is due, and how much
        is dead; and the backlog of each job.
        """
        said = self.json("status", "--app", app)
        assert (said["is_well"], said["troubles"]) == (True, [])
        structures = {
            (each["kind"], each["name"]): (each["size"], each["due"]["count"], each["dead"])
            for each in said["structures"]
        }
        return structures, {each["name"]: each["backlog"] for each in said["jobs"]}

    def checks(self, app: str, status: int = 0) -> dict[str, tuple[str, str]]:
        """Ask the `doctor`; return the level of each check, and what was said."""
        said = self.json("doctor", "--app", app, status=status)
        return {each["what"]: (each["level"], each["said"]) for each in said["checks"]}

    def refused(self, *arguments: str) -> str:
        """Return the sentence that it says to wrong use."""
        assert self(*arguments, status=2) == ""
        assert self.err.startswith("workstealing")
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line."""
    return Command(capsys)
