"""The command line: which commands and options there are, and one sentence for each wrong one."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from workstealing import __version__

LONGEST_SECONDS = 3600.0
MOST_WORKERS = 64

_DEMO = """\
Serve a small Flask app under gunicorn from a cache in Redis whose fields expire one by one, send it
real HTTP requests, and watch its fast exits (cache hits and 304s) collect the expired fields.
"""
_DEMO_END = """\
exit status: 0, or 1 if fewer than 90 % of the fields that were overdue for more than two seconds
were collected, or 2 for bad input. Ctrl-C ends the demo early, with its summary.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command that was named.

    Arguments: argv, or None for the process's own. Returns: `command`, and that command's options.
    Raises: SystemExit with status 2 after one sentence on stderr for bad input, with status 0
    after --help and --version.
    """
    parser = _Parser(
        prog="workstealing",
        description="Background maintenance of Redis without a background process.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"workstealing {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _add_demo(commands)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        # By the command's own parser, whose help lists the options.
        named = commands.choices.get(options.command, parser)
        named.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.error(f"no command was named; expected one of: {', '.join(commands.choices)}")
    return options


def _add_demo(commands: argparse._SubParsersAction[_Parser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="watch a web app's fast exits collect expired hash fields",
        description=_DEMO,
        epilog=_DEMO_END,
        allow_abbrev=False,
    )
    demo.add_argument(
        "--seconds",
        type=_seconds,
        default=20.0,
        metavar="S",
        help="for how long requests are sent, 1 to 3600 (default: 20); times to live are scaled to"
        " it",
    )
    demo.add_argument(
        "--redis",
        metavar="URL",
        help="use this server, in a namespace of its own that is removed at the end"
        " (default: an embedded one)",
    )
    demo.add_argument(
        "--rate",
        type=_rate,
        metavar="R",
        help="the share of the enlisted to recruit, 0 < R <= 1 (default: by a formula, which is"
        " printed; WORKSTEALING_DISABLED=1 in the environment recruits nobody, for comparison)",
    )
    demo.add_argument(
        "--workers",
        type=_workers,
        default=2,
        metavar="N",
        help="gunicorn's worker processes, 1 to 64 (default: 2)",
    )
    demo.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="request the paths of this access log, in common or combined format, also gzipped, in"
        " a loop (default: Zipf-distributed items with a long tail that is visited once)",
    )
    demo.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object with the final figures, and nothing else, on stdout",
    )


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not finite")
    return number


def _seconds(text: str) -> float:
    seconds = _number(text)
    if not 1.0 <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is outside 1 to {LONGEST_SECONDS:g} seconds")
    return seconds


def _rate(text: str) -> float:
    rate = _number(text)
    if not 0.0 < rate <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no rate: expected 0 < rate <= 1")
    return rate


def _workers(text: str) -> int:
    try:
        workers = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if not 1 <= workers <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is outside 1 to {MOST_WORKERS} worker processes")
    return workers
