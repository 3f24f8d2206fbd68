"""A queue by due time, played with by the command line's three tools.

A producer puts messages with due times. A consumer takes one and dies with it in hand. Two others
come, of which one is clumsy: it gives messages back, and leaves some to lapse. Both enlist when
there is nothing to take, and bring back what was left. An observer looks until the queue is empty.
Then the tools' own counts must add up: each message was done once.

Run it from the checkout: `.venv/bin/python examples/due_queue/due_queue.py`
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from workstealing import connect
from workstealing.cli.clients import cassandra_at
from workstealing.store.embedded import EmbeddedServer, die_with_parent
from workstealing.structures import RedisStore, TimeShardQueue

NAME = "example:due_queue"
TIME_SHARDS = 6
PERIOD = 0.5  # seconds; a minute or an hour in earnest
LEASE = "2s"
PATIENCE = 90.0
PRODUCER = [
    *("--time-shards", str(TIME_SHARDS), "--period", str(PERIOD)),
    *("--per-second", "50", "--due-in", "0..2"),
]
DOOMED = ["--consumer", "doomed", "--lease", LEASE, "--work-seconds", "10m"]
CAREFUL = ["--lease", LEASE, "--enlist", "0.5", "--poll", "50ms", "--work-seconds", "0..0.05"]
STEADY = ["--consumer", "steady", *CAREFUL]
CLUMSY = ["--consumer", "clumsy", "--fail", "0.2", "--lapse", "0.1", *CAREFUL]
SIGNS = {"producing": "P", "consuming": "C", "quiet": " "}


class Tools:
    """Starts the tools on one queue, each as a process of its own; all of them end with it.

    Arguments:
        place: the option that names the database, and its value.
    """

    def __init__(self, place: list[str]) -> None:
        self._place = place
        self._running: list[subprocess.Popen[str]] = []

    def start(self, verb: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a tool that says its counts at its end."""
        tool = subprocess.Popen(  # noqa: S603 - our own command line
            [*die_with_parent("TERM"), *self._command(verb), *arguments],
            stdout=subprocess.PIPE,
            # Its note that the work of the doomed one outlasts its lease.
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._running.append(tool)
        return tool

    def look(self) -> dict[str, Any]:
        """Let the observer look once."""
        command = [*self._command("observe"), "--once"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    def end(self) -> None:
        """End every tool by SIGTERM, and wait until each has given back its message."""
        for tool in self._running:
            tool.terminate()
        for tool in self._running:
            tool.wait()

    def _command(self, verb: str) -> list[str]:
        tool = [sys.executable, "-P", "-m", "workstealing", "queue", verb, NAME]
        return [*tool, *self._place, "--json"]


def counts_of(tool: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a tool says at its end."""
    said, _ = tool.communicate()
    counts: dict[str, Any] = json.loads(said)
    return counts


def play(tools: Tools, seconds: float, more: list[str]) -> int:
    """Let the tools work until the queue is empty; print what they say.

    Returns: how many messages are lost.
    """
    start = time.monotonic()
    print(
        "   s ",
        *(f"{f'shard {number}':>10}" for number in range(TIME_SHARDS)),
        "  left consumed dead",
    )
    producer = tools.start("produce", *PRODUCER, *more, "--seconds", f"{seconds:g}")
    look_until(tools, start, "total")
    doomed = tools.start("consume", *DOOMED)
    look_until(tools, start, "leased")
    doomed.kill()
    consumers = [tools.start("consume", *each) for each in (STEADY, CLUMSY)]
    put = counts_of(producer)
    left = look_until(tools, start)
    tools.end()
    return report(put, [counts_of(each) for each in consumers], left["dead"])


def look_until(tools: Tools, start: float, count: str | None = None) -> dict[str, Any]:
    """Look until something is counted, or for None until nothing is left; return the last look."""
    while True:
        try:
            seen = tools.look()
        except subprocess.CalledProcessError:
            # The producer has not begun the queue yet.
            seen = {}
        if seen:
            shards = seen["time_shards"]
            cells = [
                f"{SIGNS[each['role']]}{each['waiting']:>5}/{each['due']:<3}" for each in shards
            ]
            row = " ".join(f"{cell:>10}" for cell in cells)
            counts = f"{seen['total']:6} {seen['consumed']:8} {seen['dead']:4}"
            print(f"{time.monotonic() - start:4.1f}  {row} {counts}")
            if seen[count] if count else not seen["total"]:
                return seen
        if time.monotonic() - start > PATIENCE:
            raise TimeoutError("the queue is not as expected after so long")
        time.sleep(PERIOD)


def report(put: dict[str, Any], consumers: list[dict[str, Any]], dead: int) -> int:
    """Print the counts of all tools; return how many messages are lost."""
    done = sum(each["done"] for each in consumers)
    lost = put["put"] - done - dead
    rows: list[tuple[str, object]] = [("messages put", put["put"]), ("of a consumer that died", 1)]
    for each in consumers:
        rows.append((f"taken by {each['consumer']}", each["taken"]))
        ends = ("done", "given_back", "lapsed", "late")
        rows += [(f"  {end.replace('_', ' ')}", each[end]) for end in ends]
        rows.append(("  late by, at worst", f"{each['late_by_seconds']['worst']:.1f} s"))
        rows.append(("  as a recruit, returned or cleared", each["brought_back_or_cleared"]))
    rows += [("done by all", done), ("set aside", dead), ("lost", lost)]
    print()
    for what, value in rows:
        print(f"{what:38}{value:>8}")
    return lost


def main() -> int:
    """Run it on a throw-away Redis, unless an option names another database.

    Returns: the exit status, 1 if a message is lost.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="a Redis of yours")
    where.add_argument("--cassandra", help="a Cassandra of yours: cassandra://host:port/keyspace")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long messages are put")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.cassandra:
            place, more = ["--cassandra", options.cassandra], ["--create-table"]
            store: Any = stack.enter_context(cassandra_at(options.cassandra))
        else:
            url = options.url or stack.enter_context(EmbeddedServer()).url
            place, more = ["--url", url], ["--kind", "time"]
            store = RedisStore(connect(url))
        queue: TimeShardQueue = TimeShardQueue(store, NAME, TIME_SHARDS, PERIOD)
        # Nothing stays there. Called last, when no tool uses it any more.
        stack.callback(queue.delete)
        tools = Tools(place)
        stack.callback(tools.end)
        return 1 if play(tools, options.seconds, more) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
