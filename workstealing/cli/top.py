"""`workstealing top`: the status, drawn in place again and again."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from workstealing.cli import status
from workstealing.cli.live import add_interval_option, add_times_option, draw, repeat
from workstealing.cli.output import print_json, printable, say

if TYPE_CHECKING:
    from workstealing.dashboard.queries import Snapshot

DESCRIPTION = """\
Watch what the fleet does, live. Takes the same options as `workstealing status`.
"""
EPILOG = """\
Ends with Ctrl-C. Where stdout is no terminal, each look is printed below the last. With --json: one
object with all looks, once --times is over (default: 1).

exit status: as of `workstealing status`, by the last look; 0 after Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    status.add_arguments(parser)
    add_interval_option(parser)
    add_times_option(parser)


def run(options: argparse.Namespace) -> int:
    """Look again and again.

    Returns: 0, or 1 if the last look showed a problem, unless Ctrl-C ended it. Raises:
    WorkStealingError for bad input.
    """
    ask = status.looker(options)
    seen_well: list[bool] = []

    def look() -> Snapshot:
        snapshot = ask()
        seen_well.append(status.is_well(snapshot))
        return snapshot

    if options.json:
        looks: list[dict[str, Any]] = []
        repeat(
            look,
            options.interval,
            options.times or 1,
            lambda seen: looks.append(status.as_dict(seen)),
        )
        print_json({"looks": looks})
    elif sys.stdout.isatty():
        draw(look, options.interval, options.times, drawn)
    else:
        repeat(look, options.interval, options.times, lambda seen: say(f"{status.as_text(seen)}\n"))
    times = options.times or (1 if options.json else None)
    is_over = times is not None and len(seen_well) >= times
    return status.TROUBLE if is_over and not seen_well[-1] else 0


def drawn(snapshot: Snapshot) -> Any:
    """Return the snapshot in rich's form."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = [Text(time.strftime("%H:%M:%S  ") + status.headline(snapshot), style="bold")]
    jobs = Table(title_justify="left")
    for number, heading in enumerate(status.JOB_HEADINGS):
        jobs.add_column(heading, justify="right" if number else "left")
    for job in snapshot.jobs:
        cells = [Text(printable(cell)) for cell in status.job_row(job, snapshot)]
        jobs.add_row(*cells, style="red" if job.problems else "")
    errors = Table()
    for number, heading in enumerate(status.ERROR_HEADINGS):
        errors.add_column(heading, justify="right" if number > 1 else "left")
    for row in status.error_rows(snapshot):
        errors.add_row(*(Text(printable(cell)) for cell in row))
    measured = Table()
    for number, heading in enumerate(status.MEASURED_HEADINGS):
        measured.add_column(heading, justify="right" if number > 1 else "left")
    for row in status.measured_rows(snapshot):
        measured.add_row(*(Text(printable(cell)) for cell in row))
    caches = Table()
    for number, heading in enumerate(status.CACHE_HEADINGS):
        caches.add_column(heading, justify="right" if number else "left")
    for row in status.cache_rows(snapshot):
        caches.add_row(*(Text(printable(cell)) for cell in row))
    structures = Table()
    for number, heading in enumerate(status.STRUCTURE_HEADINGS):
        structures.add_column(heading, justify="right" if number > 1 else "left")
    for each in snapshot.structures:
        cells = [Text(printable(cell)) for cell in status.structure_row(each)]
        structures.add_row(*cells, style="red" if each.trouble or each.dead_size else "")
    if snapshot.jobs:
        parts.append(jobs)
    if errors.row_count:
        parts.append(errors)
    if measured.row_count:
        parts.append(measured)
    if caches.row_count:
        parts.append(caches)
    if snapshot.structures:
        parts.append(structures)
    parts += [Text(each) for each in status.starts(snapshot)]
    parts += [Text(f"! {each}", style="red") for each in status.complaints(snapshot)]
    return Group(*parts)
