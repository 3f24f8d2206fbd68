"""The demo of the survey: real programs are killed, and recruits collect what they leave."""

from __future__ import annotations

import argparse
from pathlib import Path

from workstealing.cli.demo import demo_seconds, require_extra
from workstealing.cli.output import add_json_option

DESCRIPTION = """\
Run a shop on Celery, RQ, streams, tags, carts and rate limits on a throw-away server, kill its
processes at the worst moments, survey the garbage that they leave, and let recruits collect it.
"""
EPILOG = """\
exit status: 0, or 1 if something that still lived was lost, or 2 for bad input. A job takes an item
for garbage here after two sightings that lie two seconds apart; an hour is usual (gap=).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument(
        "--seconds",
        type=demo_seconds,
        default=60.0,
        metavar="S",
        help="how long the shop runs, 1s to 1h (default: 60s)",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the survey's page into this file, too"
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run the demo. Returns: 0, or 1 if something was lost. Raises: WorkStealingError."""
    # Before the import below, which needs them.
    require_extra("survey-demo", "celery", "rq")
    from workstealing.cli.survey_demo.running import run as run_demo

    return run_demo(options)
