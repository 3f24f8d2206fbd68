"""The options of `workstealing demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from workstealing.cli.values import number, rate, whole

LONGEST_SECONDS = 3600.0
MOST_WORKERS = 64

DESCRIPTION = """\
Serve a small Flask app under gunicorn from a cache in Redis whose fields expire one by one, send it
real HTTP requests, and watch its fast exits (cache hits and 304s) collect the expired fields.
"""
EPILOG = """\
exit status: 0, or 1 if fewer than 90 % of the fields that were overdue for more than two seconds
were collected, or 2 for bad input. Ctrl-C ends the demo early, with its summary.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to its parser."""
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=20.0,
        metavar="S",
        help="for how long requests are sent, 1 to 3600 (default: 20); times to live are scaled to"
        " it",
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="use this server, in a namespace of its own that is removed at the end"
        " (default: an embedded one)",
    )
    parser.add_argument(
        "--rate",
        type=rate,
        metavar="R",
        help="the share of the enlisted to recruit, 0 < R <= 1 (default: by a formula, which is"
        " printed; WORKSTEALING_DISABLED=1 in the environment recruits nobody, for comparison)",
    )
    parser.add_argument(
        "--workers",
        type=_workers,
        default=2,
        metavar="N",
        help="gunicorn's worker processes, 1 to 64 (default: 2)",
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="request the paths of this access log, in common or combined format, also gzipped, in"
        " a loop (default: Zipf-distributed items with a long tail that is visited once)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object with the final figures, and nothing else, on stdout",
    )


def _seconds(text: str) -> float:
    seconds = number(text)
    if not 1.0 <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is outside 1 to {LONGEST_SECONDS:g} seconds")
    return seconds


def _workers(text: str) -> int:
    workers = whole(text)
    if not 1 <= workers <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is outside 1 to {MOST_WORKERS} worker processes")
    return workers
