"""The example of leases does what its README says, by its one command."""

from __future__ import annotations

import re

import pytest

from support.examples import EXAMPLES, run_by_readme
from support.servers import RedisServer

FOLDER = EXAMPLES / "leases"


def run_example(**environment: str) -> dict[str, int]:
    """Run the example; return what it counted."""
    said = run_by_readme(FOLDER, **environment)
    return {what: int(count) for count, what in re.findall(r"^ *(\d+)  (.+): \S.+$", said, re.M)}


def check(counts: dict[str, int]) -> None:
    assert counts["stored"] == 1
    assert counts["refused, too late"] == 1
    assert counts["died"] == 5
    assert counts["held by another"] >= 100
    assert counts["leases of the dead left in Redis"] == 0


def test_by_its_command() -> None:
    check(run_example())


@pytest.mark.real
def test_on_a_server_of_the_users_own(redis7: RedisServer) -> None:
    check(run_example(REDIS_URL=redis7.url))
    assert not redis7.client().keys("report:*")
