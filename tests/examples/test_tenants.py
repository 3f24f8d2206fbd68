"""The example of the tenants does what its README says, by its one command."""

from __future__ import annotations

import re

import pytest

from support.examples import EXAMPLES, refusal_of, run_by_readme
from support.processes import free_port
from support.servers import RedisServer

FOLDER = EXAMPLES / "tenants"
MESSAGES = 1150


def run_example(**environment: str) -> dict[str, tuple[int, ...]]:
    """Run the command of the README; return the figures of each row, the rows' headings joined."""
    printed = run_by_readme(FOLDER, **environment)
    figures = {}
    above: dict[int, str] = {}
    for line in printed.splitlines():
        title, numbers = re.fullmatch(r"(.*?)((?:  +\d+)*)", line).groups()
        depth = len(title) - len(title.lstrip())
        above = {each: text for each, text in above.items() if each < depth}
        above[depth] = title.strip()
        figures[" / ".join(above.values())] = tuple(map(int, numbers.split()))
    return figures


def check(figures: dict[str, tuple[int, ...]]) -> None:
    """Check what holds at any speed."""
    assert figures["messages written"] == (MESSAGES, MESSAGES)
    assert figures["messages written / lost"] == (0, 0)
    assert figures["messages written / left in the queue"] == (0, 0)
    # Each death left a message, which somebody else has finished.
    assert min(figures["workers that died at work"]) > 0
    again = figures["workers that died at work / messages delivered again"]
    assert all(map(int.__ge__, again, figures["workers that died at work"]))
    assert min(figures["enlisted / recruited to reap / worked"]) > 0
    reaped = figures["enlisted / recruited to reap / items"]
    cut = [figures[f"enlisted / recruited to reap / {each}"] for each in ("failed", "out of time")]
    # On a busy machine a slice's last reply may come too late to be counted; its work was done.
    assert all(more >= n or any(late) for more, n, *late in zip(reaped, again, *cut, strict=True))
    # The idle queue was there, and has gone.
    deleted = {
        each: sum(figures[f"enlisted / recruited to delete idle queues / {each}"])
        for each in ("items", "failed", "out of time")
    }
    assert any(deleted.values())
    assert figures["keys of idle queues left"] == (0,)
    # Who trickles waits for a few turns, not for all that was submitted before.
    for tenant in ("the realtime tenant", "the libraries"):
        one_stream, own_streams = figures[f"pickup delay of {tenant}, ms / median"]
        assert own_streams < one_stream / 2


def test_by_its_command() -> None:
    check(run_example())


@pytest.mark.slow
@pytest.mark.real
def test_on_a_server_of_the_users_own(redis7: RedisServer) -> None:
    check(run_example(REDIS_URL=redis7.url))
    client = redis7.client()
    left = client.keys("*")
    assert left
    # A read's receipt ends by its own time to live.
    assert not [key for key in left if key.startswith(b"example:") and client.pttl(key) == -1]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}/0", "nonsense"])
def test_a_redis_that_cannot_be_used_is_said_in_a_sentence(url: str) -> None:
    said = refusal_of(FOLDER / "tenants.py", "--url", url.format(free_port()))
    assert re.fullmatch(r"tenants: the Redis cannot be used: .+\n", said)
