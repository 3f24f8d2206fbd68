"""`workstealing queue observe NAME`: look at a queue of any kind, once or live.

A look has the queue's state as plain data, for JSON, and draws its tables.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import Any

from workstealing.cli.clients import said
from workstealing.cli.live import add_interval_option, add_times_option, draw, repeat
from workstealing.cli.output import add_json_option, print_json, say
from workstealing.cli.queue.kind import OpenQueue
from workstealing.cli.queue.opening import add_queue_options, opened

FAILED = 1
DESCRIPTION = """\
Look at a queue of any kind: how many messages wait, are pending and are dead in each stream,
account or time shard, how long the oldest has waited, and how long messages waited until a consumer
took them. The command changes nothing. A TimeShardQueue may be on Cassandra.
"""
EPILOG = """\
Ctrl-C ends it. A live look on a terminal needs pip install 'workstealing[cli]'. Where stdout is no
terminal, each look is printed below the last. With --json it prints one look as one object; with
--times too, one object with all looks. Exit status: 0, or 1 if the database failed at the last
look, or 2 for bad input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_queue_options(parser)
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="look once and end")
    add_times_option(often)
    add_interval_option(parser)
    add_json_option(parser)
    parser.add_argument(
        "--group",
        action="append",
        metavar="GROUP",
        help="look at this group of a ShuffleQueue; may be repeated (default: all groups)",
    )


def run(options: argparse.Namespace) -> int:
    """Look, once or again and again.

    Returns: 0, or 1 if the database failed at the last look.

    Raises: WorkStealingError for bad input.
    """
    with ExitStack() as connections:
        watching = Watching(opened(options, connections))
        times = 1 if options.once else options.times
        if options.json:
            repeat(watching.look, options.interval, times or 1, watching.keep)
            looks = watching.looks
            print_json(looks[-1] if options.times is None else {"looks": looks})
        elif sys.stdout.isatty() and not options.once:
            draw(watching.look, options.interval, times, watching.drawn)
        else:
            repeat(watching.look, options.interval, times, lambda seen: say(watching.text(seen)))
    return FAILED if watching.trouble and times is not None else 0


class Watching:
    """Looks at a queue, and goes on where the database fails.

    Attributes: looks: all that `keep` was given; trouble: the failure of the last look, or None.
    """

    def __init__(self, queue: OpenQueue) -> None:
        self._queue = queue
        self.looks: list[dict[str, Any]] = []
        self.trouble: str | None = None

    def look(self) -> dict[str, Any]:
        """Return a look, or the failure as "trouble". Raises: LayoutError."""
        at = time.time()
        try:
            seen = {"at": at, **self._queue.look(), "trouble": None}
        except self._queue.faults as error:
            seen = {"at": at, "trouble": said(error)}
        self.trouble = seen["trouble"]
        return seen

    def keep(self, seen: dict[str, Any]) -> None:
        """Remember a look."""
        self.looks.append(seen)

    def text(self, seen: dict[str, Any]) -> str:
        """Return a look for people."""
        if seen["trouble"]:
            return f"! {self._complaint(seen)}\n"
        return "\n\n".join(each.text() for each in self._queue.pictures(seen)) + "\n"

    def drawn(self, seen: dict[str, Any]) -> Any:
        """Return a look as an object that rich can draw."""
        from rich.console import Group
        from rich.text import Text

        clock = Text(time.strftime("%H:%M:%S", time.localtime(seen["at"])), style="bold")
        if seen["trouble"]:
            return Group(clock, Text(f"! {self._complaint(seen)}", style="red"))
        return Group(clock, *(each.drawn() for each in self._queue.pictures(seen)))

    def _complaint(self, seen: dict[str, Any]) -> str:
        return f"the queue could not be asked: {seen['trouble']}"
