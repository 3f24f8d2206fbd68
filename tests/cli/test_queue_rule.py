"""`workstealing queue rule`: a FairQueue's rules are shown and changed, a wait explained."""

from __future__ import annotations

from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.structures import FairQueue


@pytest.fixture
def queue(redis7: RedisServer) -> FairQueue:
    made = FairQueue(redis7.client(), "jobs")
    made.write("bulk 1", {"n": 1}, account="bulk")
    return made


def test_rules_are_set_shown_and_removed(
    command: Any, redis7: RedisServer, queue: FairQueue
) -> None:
    here = ("--url", redis7.url)
    assert "no rules" in command("queue", "rule", "jobs", *here)
    said = command("queue", "rule", "jobs", "bulk*", "--max-in-flight", "2", *here)
    assert "bulk*" in said
    # A setting that is not given stays.
    command("queue", "rule", "jobs", "bulk*", "--weight", "0.5", "--estimate", "2s", *here)
    rule = queue.rules()["bulk*"]
    assert (rule.max_in_flight, rule.weight, rule.estimate) == (2, 0.5, 2.0)
    shown = command.json("queue", "rule", "jobs", *here)
    assert shown["rules"] == {"bulk*": {"max_in_flight": 2, "weight": 0.5, "estimate": 2.0}}
    assert "removed" in command("queue", "rule", "jobs", "bulk*", "--remove", *here)
    assert queue.rules() == {}
    assert "no such rule" in command("queue", "rule", "jobs", "bulk*", "--remove", *here)


def test_a_pause_and_its_end(command: Any, redis7: RedisServer, queue: FairQueue) -> None:
    here = ("--url", redis7.url)
    command("queue", "rule", "jobs", "bulk", "--pause", *here)
    assert queue.read("worker") is None
    assert "is paused" in command("queue", "rule", "jobs", "bulk", *here)
    command("queue", "rule", "jobs", "bulk", "--resume", *here)
    assert queue.rules() == {}
    assert "has the next turn" in command("queue", "rule", "jobs", "bulk", *here)
    seen = command.json("queue", "rule", "jobs", "bulk", *here)
    assert seen["state"]["waiting"] == 1
    assert queue.read("worker") is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("jobs", "bulk", "--weight", "0"), "weight=0.0 is out of range"),
        (("jobs", "--weight", "2"), "give one after NAME, '*' for all accounts"),
        (("jobs", "--pause"), "give one after NAME, '*' for all accounts"),
        (("jobs", "bulk", "--weight", "2", "--remove"), "give no setting"),
        (("others",), "no FairQueue 'others'"),
    ],
)
def test_bad_input_changes_nothing(
    command: Any, redis7: RedisServer, queue: FairQueue, arguments: tuple[str, ...], said: str
) -> None:
    command("queue", "rule", *arguments, "--url", redis7.url, status=2)
    assert said in command.err
    assert queue.rules() == {}


def test_a_look_shows_the_accounts(command: Any, redis7: RedisServer, queue: FairQueue) -> None:
    queue.set_rule("bulk", max_in_flight=3)
    text = command("queue", "observe", "jobs", "--once", "--url", redis7.url)
    assert "FairQueue jobs: 1 message; 1 waiting" in text
    assert "bulk" in text
    seen = command.json("queue", "observe", "jobs", "--once", "--url", redis7.url)
    assert (seen["kind"], seen["accounts"][0]["max_in_flight"]) == ("fair", 3)
