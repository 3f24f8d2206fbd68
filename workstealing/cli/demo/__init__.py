"""The demo: a web app, its traffic, and the garbage that its fast exits collect."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from workstealing.cli.arguments import at_least, duration, rate
from workstealing.cli.clients import add_url_option
from workstealing.cli.output import add_json_option
from workstealing.errors import MissingExtraError

LONGEST_SECONDS = 3600.0
MOST_WORKERS = 64

DESCRIPTION = """\
Serve a small Flask app under gunicorn from a cache in Redis whose fields expire one by one, send it
real HTTP requests, and watch its fast exits (cache hits and 304s) collect the expired fields.
"""
EPILOG = """\
exit status: 0, or 1 if a law was broken (a reader was given an expired field, no job found one, or
the app answered with an error), or 2 for bad input. Ctrl-C ends the demo early, with its summary.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's options to its parser."""
    add_url_option(parser, "an embedded one; the demo removes its keys from yours at the end")
    parser.add_argument(
        "--seconds",
        type=demo_seconds,
        default=20.0,
        metavar="S",
        help="how long requests are sent, 1s to 1h (default: 20s); times to live are scaled to it",
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
        help=f"gunicorn's worker processes, 1 to {MOST_WORKERS} (default: %(default)s)",
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="request the paths of this access log in a loop: common or combined format, also"
        " gzipped (default: Zipf-distributed items with a long tail that is visited once)",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo. Returns: 0, or 1 if a law was broken. Raises: WorkStealingError."""
    # Before the import below, which needs them.
    require_extra("demo", "flask", "gunicorn", "rich")
    from workstealing.cli.demo.running import run as run_demo

    return run_demo(options)


def require_extra(extra: str, *modules: str) -> None:
    """Refuse to go on without the modules of an extra. Raises: MissingExtraError."""
    for module in modules:
        try:
            is_there = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            # A finder that hides it from imports refuses the question, too.
            is_there = False
        if not is_there:
            raise MissingExtraError(extra, module)


def demo_seconds(text: str) -> float:
    """Return a demo's length in seconds. Raises: ArgumentTypeError outside its bounds."""
    seconds = duration(text)
    if not 1.0 <= seconds <= LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is outside 1 to {LONGEST_SECONDS:g} seconds")
    return seconds


def _workers(text: str) -> int:
    workers = at_least(1, "worker processes")(text)
    if workers > MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is too many: at most {MOST_WORKERS}")
    return workers
