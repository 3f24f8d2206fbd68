"""`workstealing queue observe NAME`: what a queue holds, live."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from workstealing.cli.clients import FAULTS, said
from workstealing.cli.live import add_interval_option, add_times_option, draw, repeat
from workstealing.cli.output import add_json_option, print_json, say
from workstealing.cli.queue_opening import add_queue_options, add_setting_options, opened

if TYPE_CHECKING:
    from workstealing.cli.queue_opening import CommandQueue

FAILED = 1

DESCRIPTION = """\
Watch a queue: what waits and what is pending in each stream or time shard, how long the oldest has
waited, how long messages wait until they are picked up, and which time shard is whose turn.
Nothing is changed.
"""
EPILOG = """\
Ends with Ctrl-C. Live on a terminal it needs pip install 'workstealing[cli]'; where stdout is none,
each look is printed below the last. With --json: one look, as one object; with --times, one object
with all looks.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the action's parser."""
    add_queue_options(parser)
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="look once and end")
    add_times_option(often)
    add_interval_option(parser)
    add_json_option(parser)
    shuffle = parser.add_argument_group("for a ShuffleQueue")
    shuffle.add_argument(
        "--group",
        action="append",
        metavar="GROUP",
        help="which; may be repeated (default: all)",
    )
    add_setting_options(parser)


def run(options: argparse.Namespace) -> int:
    """Look, once or again and again.

    Returns: 0, or 1 if the Redis failed at the last look. Raises: WorkStealingError for bad input.
    """
    watching = Watching(opened(options))
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
    """Looks at a queue, and goes on where the Redis fails. Arguments: queue.

    Attributes: looks: those that `keep` was given; trouble: what the last look met, or None.
    """

    def __init__(self, queue: CommandQueue) -> None:
        self._queue = queue
        self.looks: list[dict[str, Any]] = []
        self.trouble: str | None = None

    def look(self) -> dict[str, Any]:
        """Return what the queue holds, or what went wrong as "trouble". Errors: LayoutError."""
        at = time.time()
        try:
            seen = {"at": at, **self._queue.look(), "trouble": None}
        except FAULTS as error:
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
        """Return a look as rich draws it."""
        from rich.console import Group
        from rich.text import Text

        clock = Text(time.strftime("%H:%M:%S", time.localtime(seen["at"])), style="bold")
        if seen["trouble"]:
            return Group(clock, Text(f"! {self._complaint(seen)}", style="red"))
        return Group(clock, *(each.drawn() for each in self._queue.pictures(seen)))

    def _complaint(self, seen: dict[str, Any]) -> str:
        return f"the queue could not be asked: {seen['trouble']}"
