"""What comes between two steps of a call on a log, and what stands at the ends of its range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.compacted_logs import made
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer
from workstealing.store.scripts import Script
from workstealing.structures import Log


def before_script(log: Any, name: str, do: Callable[[], object]) -> None:
    """Let something happen once, right before a log runs a script of that name."""
    todo, script = [do], log.script

    def delayed(asked: str) -> Script:
        while asked == name and todo:
            todo.pop()()
        found: Script = script(asked)
        return found

    log.script = delayed


def test_a_group_that_takes_the_place_of_another_during_a_deletion_is_no_orphan(
    any_server: AnyServer,
) -> None:
    log = made(any_server.client(), 5)
    log.group("a").read()

    def swap() -> None:
        other = Log(any_server.client(), "l")
        other.group("a").delete()
        other.group("b").read()

    before_script(log, "delete", swap)
    assert log.delete()
    assert log.client.keys() == []
