"""`workstealing queue`: what its options take, and one sentence for every wrong use."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.completions import assert_completed, offered_by_bash
from workstealing.cli.arguments import build
from workstealing.cli.queue import ACTIONS
from workstealing.cli.values import share, waiting, when

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", timedelta(minutes=5)),
        ("500ms", timedelta(milliseconds=500)),
        ("30", timedelta(seconds=30)),
        ("@1795348800", 1_795_348_800.0),
        ("@1795348800.25", 1_795_348_800.25),
        ("2026-11-22T12:00:00Z", NOON),
        ("2026-11-22 13:00+01:00", NOON),
    ],
)
def test_a_moment(text: str, expected: Any) -> None:
    assert when(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("later", "'later' is no moment: expected 5m (from now)"),
        ("2026-11-22T12:00:00", "names no time zone: add Z, or +01:00"),
        ("2026-11-22", "names no time zone"),
        ("2026-13-22T12:00:00Z", "is no moment"),
        ("@noon", "'noon' is no number"),
        ("@nan", "'nan' is not finite"),
        ("@", "'' is no number"),
        ("0s", "too short"),
        ("-5m", "is no moment"),
        ("9e99d", "too long"),
        ("", "'' is no moment"),
    ],
)
def test_no_moment(text: str, expected: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        when(text)
    assert expected in str(caught.value)


def test_shares_and_waits() -> None:
    assert (share("0"), share("0.25"), share("1")) == (0.0, 0.25, 1.0)
    assert (waiting("0"), waiting("0s"), waiting("2m")) == (0.0, 0.0, 120.0)


@pytest.fixture
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REDIS_URL", "WORKSTEALING_REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("_no_environment")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "the following arguments are required: ACTION"),
        (("drop", "q"), "invalid choice: 'drop'"),
        (("produce",), "the following arguments are required: NAME;"),
        (("consume", "q", "r"), "unrecognized arguments: r"),
        (("observe", "q", "--gro", "g"), "unrecognized arguments: --gro"),
        (("produce", "q", "--kind", "ick", "m"), "invalid choice: 'ick'"),
        (("produce", "q", "m", "--count", "0"), "0 is too few messages"),
        (("produce", "q", "m", "--every", "0"), "too short"),
        (("produce", "q", "m", "--due", "tomorrow"), "'tomorrow' is no moment"),
        (("consume", "q", "--fail", "1.5"), "1.5 is no share: expected 0 to 1"),
        (("consume", "q", "--block", "-1"), "'-1' is no duration"),
        (("consume", "q", "--lease", "0"), "too short"),
        (("observe", "q", "--once", "--times", "2"), "not allowed with argument --once"),
        (
            ("observe", "q", "--once"),
            "no Redis was named: give --url, or set WORKSTEALING",
        ),
    ],
)
def test_wrong_use(command: Any, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in command.refused("queue", *arguments)


@pytest.mark.parametrize(
    ("arguments", "option", "queue"),
    [
        (("produce", "q", "m", "--kind", "time", "--tenant", "t"), "--tenant", "a ShuffleQueue"),
        (("produce", "q", "m", "--kind", "time", "--deadline", "5m"), "--deadline", "a Shuf"),
        (("produce", "q", "--kind", "time", "--fields"), "--fields", "a ShuffleQueue"),
        (("produce", "q", "m", "--kind", "time", "--streams", "4"), "--streams", "a Shuffle"),
        (("produce", "q", "m", "--kind", "shuffle", "--due", "5m"), "--due", "a TimeShardQueue"),
        (("consume", "q", "--kind", "time", "--group", "g"), "--group", "a ShuffleQueue"),
        (("consume", "q", "--kind", "shuffle", "--drain-all"), "--drain-all", "a TimeShardQ"),
        (("observe", "q", "--kind", "shuffle", "--period", "9"), "--period", "a TimeShardQ"),
    ],
)
def test_an_option_of_the_other_kind(
    command: Any, arguments: tuple[str, ...], option: str, queue: str
) -> None:
    # Before any Redis is asked: none is named.
    said = command.refused("queue", *arguments)
    assert f"{option} is for {queue}" in said
    assert "leave it out" in said


def actions() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each action."""
    _, parsers = build()
    parsers["queue"].complete()
    (nested,) = [
        each for each in parsers["queue"]._actions if each.choices and each.dest == "action"
    ]
    assert isinstance(nested.choices, dict)
    return nested.choices


@pytest.mark.parametrize("name", ACTIONS)
def test_an_actions_help(command: Any, name: str) -> None:
    said = command("queue", name, "--help")
    assert said.startswith(f"usage: workstealing queue {name}")
    for option in ("--kind", "--url", "--json", "--namespace", "--time-shards"):
        assert option in said
    assert f"{name}  " in command("queue", "--help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_action_and_option_is_completed(command: Any, shell: str) -> None:
    script = command("completion", shell)
    assert set(actions()) == set(ACTIONS)
    assert_completed(script, actions())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("workstealing", "queue", "pro"), {"produce"}),
        (("workstealing", "queue", "consume", "--drain"), {"--drain-all"}),
        (("workstealing", "queue", "observe", "--kind", "t"), {"time"}),
    ],
)
def test_bash_completes(
    command: Any, tmp_path: Path, typed: tuple[str, ...], offered: set[str]
) -> None:
    assert offered_by_bash(command("completion", "bash"), typed, tmp_path) == offered


def test_messages_may_stand_anywhere() -> None:
    parser = actions()["produce"]
    for arguments in (
        ["q", "a", "b", "--tenant", "t"],
        ["q", "--tenant", "t", "a", "b"],
        ["--tenant", "t", "q", "a", "b"],
        ["q", "a", "--tenant", "t", "b"],
    ):
        options = parser.parse_args(arguments)
        assert (options.name, options.messages, options.tenant) == ("q", ["a", "b"], ["t"])
    assert parser.parse_args(["q", "--", "--tenant", "-1"]).messages == ["--tenant", "-1"]
