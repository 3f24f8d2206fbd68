"""`workstealing queue produce|consume|observe`: the queues from a command line."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from workstealing.cli.arguments import CommandParser
from workstealing.cli.output import note

FAILED = 1
ACTIONS = {
    "produce": "put messages into a queue: the arguments, or the lines of standard input",
    "consume": "take messages out of a queue and print them",
    "observe": "watch a queue live: what waits, what is pending, and for how long",
}
"""What can be done with a queue, in the order of --help."""

DESCRIPTION = """\
Put messages into a queue, take them out, or watch it. For a ShuffleQueue (fair to many tenants) and
a TimeShardQueue (by due time).
"""
EPILOG = """\
Each has a --help of its own, and --json. exit status: 0, or 1 if the Redis failed on the way, or 2
for bad input, or 130 if Ctrl-C came before what was asked for was done.
"""


class _ActionParser(CommandParser):
    """A parser that takes options between the queue's name and the messages, too."""

    _is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ArgumentParser does."""
        if self._is_mixing:
            return super().parse_known_args(args, namespace)
        # argparse would otherwise take no message as soon as it has the name.
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the three actions to the command's parser, with the options of each."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_ActionParser
    )
    for name, summary in ACTIONS.items():
        module = import_module(f"workstealing.cli.queue_{name}")
        action = actions.add_parser(
            name,
            help=summary,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            allow_abbrev=False,
        )
        module.add_arguments(action)


def run(options: argparse.Namespace) -> int:
    """Do what was named.

    Returns: 0, or 1 if the Redis failed on the way, or 130 if Ctrl-C came too early. Raises:
    WorkStealingError for bad input; BrokenPipeError where nobody reads what is printed.
    """
    from workstealing.cli.clients import FAULTS, said

    try:
        status: int = import_module(f"workstealing.cli.queue_{options.action}").run(options)
    except BrokenPipeError:
        raise
    except FAULTS as error:
        note(f"workstealing queue {options.action}: the Redis failed: {said(error)}")
        return FAILED
    return status
