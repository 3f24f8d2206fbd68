"""`workstealing undo`: brings back what a job of rules has removed, while it is kept."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workstealing.cli.arguments import duration
from workstealing.cli.clients import FAULTS, add_url_option, client_at, said
from workstealing.cli.output import add_json_option, print_json, printable, say
from workstealing.errors import ConfigurationError

if TYPE_CHECKING:
    from workstealing.jobs.leftovers.undoing import Undone

NOT_ALL_BACK = 1

DESCRIPTION = """\
Bring back the keys and members that a job of rules has removed, the last removal first. The job
must have been installed with undo=. If a key or member is there again, it stays as it is, and the
output says so; an entry that cannot be read stays where it is, and the others come back.
"""
EPILOG = """\
exit status: 0 if everything is back, 1 if something is not, 2 for bad input. For example:
workstealing undo --job celery_leftovers --since 2h --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument("--job", required=True, metavar="NAME", help="the name of the job")
    parser.add_argument(
        "--since",
        type=duration,
        metavar="S",
        help="bring back what was removed so long ago at most: 50s, 10m, 2h (default: all of it)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only list what is kept")
    add_url_option(parser)
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Bring things back. Returns: 0, or 1 if something is not back. Raises: WorkStealingError."""
    from workstealing.jobs.leftovers.undoing import undo

    client = client_at(options.url)
    found: list[Undone] = []
    try:
        found.extend(undo(client, options.job, options.since, dry_run=options.dry_run))
    except FAULTS as error:
        raise ConfigurationError(
            f"the Redis cannot bring back all of it, and stopped{_so_far(found, options)}:"
            f" {said(error)}"
        ) from error
    if options.json:
        print_json({"items": [_as_dict(each) for each in found]})
        return _status(found)
    readable = [each for each in found if not each.problem]
    counts: Counter[str] = Counter()
    for each in readable:
        why = "kept" if options.dry_run else each.why
        counts[why] += 1
        member = "" if each.member is None else f" {_text(each.member)}"
        say(f"{_text(each.key)}{member}: {why} ({each.rule})")
    total = ", ".join(f"{count:,} {why}" for why, count in counts.items())
    unreadable = [each for each in found if each.problem]
    for each in unreadable:
        say(printable(each.problem))
    if unreadable:
        number = len(unreadable)
        entries = "1 entry" if number == 1 else f"{number:,} entries"
        say(f"{total or 'nothing is back'}; {entries} could not be read")
    else:
        say(total or f"nothing is kept of the job {printable(options.job)!r}")
    return _status(found)


def _status(found: Sequence[Undone]) -> int:
    return 0 if all(each.is_back for each in found) else NOT_ALL_BACK


def _so_far(found: Sequence[Undone], options: argparse.Namespace) -> str:
    """Return how much was brought back before a fault, as the end of a clause."""
    number = 0 if options.dry_run else sum(each.is_back for each in found)
    return f" after {number:,} items were put back" if number else ""


def _as_dict(item: Undone) -> dict[str, Any]:
    member = None if item.member is None else _text(item.member)
    return {**asdict(item), "key": _text(item.key), "member": member}


def _text(name: bytes) -> str:
    return printable(name.decode("utf-8", "backslashreplace"))
