"""The README's Python blocks run as they stand, in order, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import ROOT, run_page
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_blocks_run_and_do_what_they_say(
    redis7: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    names = run_page("README.md")
    (ledger,) = names["recruiter"].hooks()
    request.addfinalizer(ledger.close)
    assert "'rate': 0.001" in capsys.readouterr().out

    web = names["app"].test_client()
    # buffered: as a server does, the client closes the response, and only then does it enlist.
    assert web.get("/item/17", buffered=True).headers["X-Cache"] == "miss"
    # A busy machine may take longer than the README's seconds.
    names["items"].hexpire("item:17", 600, "likes", "related")
    before = names["recruiter"].stats()["enlisted"]
    assert web.get("/item/17", buffered=True).headers["X-Cache"] == "hit"
    assert names["recruiter"].stats()["enlisted"] == before + 1

    names["client"].zadd("drafts:by-age", {"old": 1.0})
    from workstealing import Slice

    assert names["drop_stale_drafts"](Slice(100, 1.0)) == 1


ADDRESS = "<address of this repository>"


@pytest.mark.slow
def test_the_quickstarts_first_commands_run_in_an_empty_folder(tmp_path: Path) -> None:
    (block,) = re.findall(r"((?:^    .*\n)*^    git clone .*\n(?:    .*\n)*)", README, re.M)
    assert block.count(ADDRESS) == 1
    # A clone has what is committed alone. Its source is the one part that a reader puts in.
    commands = block.replace(ADDRESS, str(ROOT)).replace("python3 ", f"{sys.executable} ")
    # pip leaves what the pins name; PIP_CONSTRAINT is no part of what a user does.
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    script = f"set -e\n{commands}\nvenv/bin/workstealing --version\nvenv/bin/workstealing --help"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "workstealing 0." in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["venv", "workstealing"]


def test_every_command_names_what_the_quickstart_made() -> None:
    made = re.search(r"^Save this as `(\w+)\.py`", README, re.M)
    assert made is not None
    apps = set(re.findall(r"--app (\S+)", README))
    assert apps == {f"{made[1]}:recruiter"}
    assert f"gunicorn --workers 2 {made[1]}:app" in README


def test_the_first_lines_are_the_two_commands() -> None:
    lines = [line.strip() for line in README.splitlines() if line.strip()]
    assert lines[1].startswith("make demo")
    assert lines[2].startswith("make test")


@pytest.mark.parametrize("target", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_every_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_no_line_of_prose_has_more_than_a_hundred_characters() -> None:
    """Tables, pictures and code are as long as they must be."""
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "jobs").glob("*.md"),
        *(ROOT / "lua").glob("*.md"),
    ]
    found: list[str] = []
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        found += [
            f"{page.name}: {line}"
            for line in text.splitlines()
            if len(line) > 100 and not line.startswith(("|", "    ", "!["))
        ]
    assert len(pages) > 20
    assert not found


@pytest.mark.parametrize("target", ["demo", "survey-demo"])
def test_a_demo_is_set_up_without_what_the_tests_want(target: str) -> None:
    """As root, setup.sh dev installs PostgreSQL, Java and a browser."""
    command = ["make", "--dry-run", "--no-print-directory", "-C", ROOT, target]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[0] == "bash scripts/setup.sh demo"
    assert lines[1].startswith(f".venv/bin/workstealing {target}")
    assert len(lines) == 2
