"""`workstealing events`: what happened in a fleet, since when, where and by whom."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from workstealing.cli.arguments import at_least, duration
from workstealing.cli.clients import (
    FAULTS,
    add_fleet_options,
    address_of,
    application_prints_to_stderr,
    ledger_for,
    load_app,
    named_app,
    said,
)
from workstealing.cli.output import add_json_option, print_json, printable, say
from workstealing.errors import ConfigurationError

if TYPE_CHECKING:
    from workstealing.metrics.events import FleetEvent

DESCRIPTION = """\
Show the events of a fleet, the newest last: settings that people changed, processes that came and
went, servers that did not answer, slices that do not end, and faults of the ledger itself. Nothing
is changed.
"""
EPILOG = """\
exit status: 0, or 2 for bad input. A ledger keeps its last 500 events for eight days. Times are of
this machine's zone, by the server's clock. For example:
workstealing events --url redis://localhost:6379 --since 2h
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_fleet_options(parser)
    parser.add_argument(
        "--since",
        type=duration,
        metavar="S",
        help="only those of so long ago at most: 50s, 10m, 2h (default: all that are kept)",
    )
    parser.add_argument(
        "--limit",
        type=at_least(1, "events"),
        default=100,
        metavar="N",
        help="show so many of the newest ones (default: %(default)s)",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Show the events. Returns: 0. Raises: WorkStealingError."""
    from workstealing.metrics.events import read_events

    recruiter = None
    if named_app(options.app):
        with application_prints_to_stderr():
            recruiter = load_app(options.app)
    client, name = ledger_for(options, recruiter)
    if client is None:
        raise ConfigurationError("no Redis was named: give --url")
    try:
        found = read_events(client, name, options.since, min(options.limit, 10_000))
    except FAULTS as error:
        raise ConfigurationError(
            f"the events at {address_of(client)} cannot be read: {said(error)}"
        ) from error
    if options.json:
        print_json({"ledger": name, "events": [as_data(each) for each in found]})
    elif not found:
        ago = "" if options.since is None else " of that time"
        say(f"the ledger {name!r} at {address_of(client)} has no events{ago}")
    else:
        for each in reversed(found):
            say(line(each))
    return 0


def line(event: FleetEvent) -> str:
    """Return an event as one line: when, what, where and by whom."""
    moment = datetime.fromtimestamp(event.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    since = "" if event.at - event.first < 1.0 else f" within {event.at - event.first:.0f} s"
    who = f" by {event.user}" if event.user else ""
    hosts = ", ".join(event.hosts)
    return printable(f"{moment}  {event.sentence}{since}{who} on {hosts or 'an unknown host'}")


def as_data(event: FleetEvent) -> dict[str, Any]:
    """Return an event as plain data."""
    return {**asdict(event), "hosts": list(event.hosts), "sentence": event.sentence}
