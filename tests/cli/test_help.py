"""The command line as a whole: help without extras, completion, wrong use, a reader who goes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from support.completions import assert_completed, offered_by_bash
from workstealing.cli.arguments import COMMANDS, build
from workstealing.cli.queue import VERBS

EXTRAS = [
    "celery",
    "django",
    "fakeredis",
    "fastapi",
    "flask",
    "gunicorn",
    "hiredis",
    "jinja2",
    "numpy",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "psycopg",
    "pyarrow",
    "pyspark",
    "rich",
    "rq",
    "shtab",
    "sqlalchemy",
    "starlette",
    "statsd",
    "werkzeug",
]


def every_parser() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, and of each verb of a command, with its options."""
    _, parsers = build()
    found: dict[str, argparse.ArgumentParser] = {}
    for name, parser in parsers.items():
        parser.complete()
        found[name] = parser
        for action in parser._actions:
            if isinstance(action.choices, dict):
                found |= {f"{name} {verb}": each for verb, each in action.choices.items()}
    assert {f"queue {verb}" for verb in VERBS} <= set(found)
    return found


# Stands for an environment with nothing but the package and redis-py.
BARE = """
    import sys

    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {extras!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Hidden())
    from workstealing.cli import main
    sys.exit(main(sys.argv[1:]))
"""


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `workstealing` where no extra is installed."""
    program = textwrap.dedent(BARE.format(extras=EXTRAS))
    return subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def test_the_help_needs_no_extra_and_names_every_command() -> None:
    said = bare("--help")
    assert said.returncode == 0, said.stderr
    for name, command in COMMANDS.items():
        assert name in said.stdout
        assert " ".join(command.summary.split()[:3]) in said.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMMANDS, *(f"queue {verb}" for verb in VERBS)])
def test_a_commands_help_needs_no_extra(name: str) -> None:
    said = bare(*name.split(), "--help")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith(f"usage: workstealing {name}")
    assert "--json" in said.stdout


def test_a_command_is_imported_when_it_is_used() -> None:
    program = """
        import sys
        from workstealing.cli import main
        main(["--help"])
        heavy = {"redis", "argparse", "workstealing.cli.plan"}
        print(sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "['argparse']"


@pytest.mark.slow
def test_what_needs_no_extra_works_without() -> None:
    said = bare("plan", "--traffic", "800", "--garbage", "120", "--json")
    assert json.loads(said.stdout)["rate"] == 0.0075
    doctor = bare("doctor", "--json")
    assert doctor.returncode in (0, 1), doctor.stderr
    assert json.loads(doctor.stdout)["checks"]


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("completion", "bash"), "cli"),
        (("demo",), "demo"),
        (("dashboard", "--url", "redis://127.0.0.1:1/0"), "dashboard"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else each,
)
def test_a_missing_extra_is_named(arguments: tuple[str, ...], extra: str) -> None:
    said = bare(*arguments)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.count("\n") == 1, said.stderr
    assert f"pip install 'workstealing[{extra}]'" in said.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_completed(command: Any, shell: str) -> None:
    script = command("completion", shell)
    assert_completed(script, {name.split()[-1]: each for name, each in every_parser().items()})
    assert command.json("completion", shell)["script"] == script.removesuffix("\n")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("workstealing", "dra"), {"drain"}),
        (("workstealing", "drain", "--sec"), {"--seconds"}),
        (("workstealing", "completion", "z"), {"zsh"}),
        (("workstealing", "queue", "pro"), {"produce"}),
        (("workstealing", "queue", "consume", "--until"), {"--until-empty"}),
    ],
)
def test_bash_completes(
    command: Any, tmp_path: Path, typed: tuple[str, ...], offered: set[str]
) -> None:
    assert offered_by_bash(command("completion", "bash"), typed, tmp_path) == offered


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("completion",), "SHELL"),
        (("completion", "tcsh"), "invalid choice: 'tcsh'"),
        (("stat",), "invalid choice: 'stat'"),
        (("queue",), "the following arguments are required: VERB"),
        (("queue", "mails"), "invalid choice: 'mails' (choose from"),
        (("queue", "consume", "q", "--no"), "queue consume: unrecognized arguments: --no; see"),
        (("jobs", "--no"), "unrecognized arguments: --no; see workstealing jobs --help"),
    ],
)
def test_wrong_use(command: Any, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in command.refused(*arguments)


@pytest.mark.parametrize("arguments", [("--help",), ("plan", "--traffic=8", "--garbage=1")])
def test_a_reader_who_goes_is_no_mistake(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "workstealing", *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            cwd=tmp_path,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_one_word_means_one_thing_in_every_command() -> None:
    """--url, --app, --json and durations read and parse alike, wherever they stand."""
    urls, apps, jsons, durations = set(), set(), set(), 0
    for parser in every_parser().values():
        for action in parser._actions:
            said = (action.help or "").partition(" (default: ")[0]
            if "--url" in action.option_strings:
                urls.add((action.metavar, said))
            elif "--app" in action.option_strings:
                apps.add((action.metavar, action.help))
            elif "--json" in action.option_strings:
                jsons.add(action.help)
            elif action.metavar == "S":
                durations += 1
                assert callable(action.type)
                assert [action.type(text) for text in ("1500ms", "2", "3s", "1m")] == [
                    1.5,
                    2,
                    3,
                    60,
                ]
        assert "--redis" not in parser.format_help()
    assert urls == {("URL", "the Redis: redis://host:port/database and the like")}
    assert len(apps) == len(jsons) == 1
    assert durations >= 6
