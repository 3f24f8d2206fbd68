"""The example of the queue's tools does what its README says, by its one command."""

from __future__ import annotations

import re
import shlex

import pytest

from support.cassandra import KEYSPACE, CassandraServer
from support.examples import EXAMPLES, run_by_readme
from support.servers import RedisServer
from workstealing.cli.arguments import build

FOLDER = EXAMPLES / "due_queue"


def run_example(*arguments: str) -> tuple[list[str], dict[str, float]]:
    """Run the command of the README; return the observer's lines, and the figures."""
    looks, _, report = run_by_readme(FOLDER, *arguments, "--seconds", "2").partition("\n\n")
    figures, above = {}, ""
    for indent, what, value in re.findall(r"^( *)(\S.*?) +(-?[\d.]+)(?: s)?$", report, re.M):
        above = above if indent else what
        figures[f"{above} / {what}" if indent else what] = float(value)
    return looks.splitlines(), figures


def check(looks: list[str], figures: dict[str, float]) -> None:
    """Check what holds at any speed."""
    assert figures["lost"] == 0
    assert figures["messages put"] == figures["done by all"] + figures["set aside"] > 0
    taken = [f"taken by {each}" for each in ("steady", "clumsy")]
    ends = ("done", "given back", "lapsed", "late")
    for each in taken:
        assert figures[each] == sum(figures[f"{each} / {end}"] for end in ends)
    assert figures[f"{taken[0]} / given back"] <= 1, "only the one that it had at the end"
    heading, *rows = looks
    assert re.findall(r"shard (\d)", heading) == list("012345")
    for row in rows:
        assert len(re.findall(r"\d+/\d+", row)) == 6
        assert row.count("P") == row.count("C") == 1
    assert re.search(r" 0 +\d+ +0$", rows[-1])


@pytest.mark.slow
@pytest.mark.real
def test_on_a_server_of_the_users_own(redis7: RedisServer) -> None:
    check(*run_example("--url", redis7.url))
    client = redis7.client()
    left = [key for key in client.keys("*") if client.ttl(key) < 0]
    assert left == [], "it has dropped its queue; receipts of takes go by themselves"


@pytest.mark.slow
def test_by_its_command() -> None:
    check(*run_example())


@pytest.mark.cassandra
def test_on_cassandra(cassandra: CassandraServer) -> None:
    check(*run_example("--cassandra", f"cassandra://127.0.0.1:{cassandra.node.cql}/{KEYSPACE}"))


@pytest.mark.parametrize(
    "page", ["README.md", "../../docs/command_line.md", "../../docs/cassandra.md"]
)
def test_the_command_lines_of_the_pages_can_be_parsed(page: str) -> None:
    text = (FOLDER / page).read_text("utf-8").replace("$C", "cassandra://127.0.0.1/shop")
    lines = re.findall(r"^\$ workstealing (queue .+)$", text, re.M)
    assert len(lines) >= 3
    for line in lines:
        parser, _ = build()
        options = parser.parse_args(shlex.split(line, comments=True))
        assert options.name
