"""The example of due times does what its README says, by its one command."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.examples import EXAMPLES, refusal_of, run_by_readme
from support.processes import free_port
from support.servers import RedisServer

FOLDER = EXAMPLES / "due_times"
ROUND = 8 * 0.5
"""How long all time shards' turns take together."""


def run_example(*arguments: str) -> tuple[list[str], dict[str, float]]:
    """Run the command of the README; return the observer's lines, and the figures."""
    printed = run_by_readme(FOLDER, *arguments)
    observed, _, report = printed.partition("\n\n")
    figures, above = {}, ""
    for indent, what, value in re.findall(r"^( *)(\S.*?) +(-|[\d.]+)(?: s)?$", report, re.M):
        above = above if indent else what
        figures[f"{above} / {what}" if indent else what] = float(value.replace("-", "nan"))
    return observed.splitlines(), figures


def check(lines: list[str], figures: dict[str, float]) -> None:
    """Check what holds at any speed."""
    assert figures["articles put"] == figures["published"] == 300
    assert figures["lost"] == 0
    assert figures["published too early"] == 0
    assert 1 <= figures["in the dead publisher's hands"] <= 5
    # After its lease, which lasts for a second.
    assert figures["in the dead publisher's hands / published later, at worst"] > 0.5
    assert figures["enlisted"] > figures["recruited to sweep"] > 0
    assert figures["recruited to sweep / worked"] > 0
    assert figures["leases returned, articles cleared"] > 0
    assert figures["articles left in the queue"] == 0
    heading, *rows = lines
    assert re.findall(r"shard (\d)", heading) == list("01234567")
    for row in rows:
        assert len(re.findall(r"\d+/\d+", row)) == 8
        assert row.count("P") == row.count("C") == 1
    assert re.search(r" 0 +0$", rows[-1])


@pytest.mark.slow
@pytest.mark.real
def test_by_its_command_and_on_a_server_of_the_users_own(redis7: RedisServer) -> None:
    """Both at once: they wait for turns for most of their time."""
    with ThreadPoolExecutor(2) as pool:
        alone = pool.submit(run_example)
        own = pool.submit(run_example, "--url", redis7.url, "--drain-all")
    lines, figures = alone.result()
    check(lines, figures)
    by_turns = figures
    # An article waits for the turn of its time shard, and how long at worst is in the docs. Where
    # the machine is so busy that turns pass without anybody working, it waits for rounds more.
    assert figures["late, in the median / at worst by the docs"] == 3.5
    assert 1 < figures["late, in the median / at worst"] < 3.5 + 5 * ROUND
    # Publishers have moved on from there, so that hardly anything else clears it away.
    assert figures["leases returned, articles cleared"] > 200

    lines, figures = own.result()
    check(lines, figures)
    # What is looked at in every time shard waits for no turn.
    assert figures["late, in the median"] < by_turns["late, in the median"]
    assert redis7.client().keys("*") == [], "it has dropped its queue"


@pytest.mark.slow
@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}/0", "nonsense"])
def test_a_redis_that_cannot_be_used_is_said_in_a_sentence(url: str) -> None:
    said = refusal_of(FOLDER / "due_times.py", "--url", url.format(free_port()))
    assert re.fullmatch(r"due_times: the Redis cannot be used: .+\n", said)
