"""`workstealing survey`: whose keys fill a Redis, how much is garbage, and what removes it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workstealing.cli.arguments import at_least, frequency, number
from workstealing.cli.clients import (
    FAULTS,
    add_url_option,
    application_prints_to_stderr,
    client_at,
    found_at,
    said,
)
from workstealing.cli.output import (
    add_json_option,
    note,
    print_json,
    printable,
    say,
    table,
)
from workstealing.errors import ConfigurationError

if TYPE_CHECKING:
    from workstealing.survey.surveying import Progress

TRAFFIC = 100.0
LOAD = 0.05
ROWS = 40
_TELL_SECONDS = 1.0

DESCRIPTION = """\
Survey a Redis: for each family of keys, whose it is, how many bytes it has, how much of it is
garbage, how sure that is, and the line that installs the job which removes it. It reads only.
"""
EPILOG = """\
exit status: 0, or 2 for bad input, or 130 after Ctrl-C; with --resume the survey then goes on from
there. Example: workstealing survey --url redis://localhost:6379/0 --html survey.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_url_option(parser)
    parser.add_argument(
        "--replica", metavar="URL", help="read from this replica of it, and spare the primary"
    )
    parser.add_argument(
        "--load",
        type=share,
        default=LOAD,
        metavar="SHARE",
        help="the most of each server's time, 0 < SHARE <= 1 (default: %(default)g)",
    )
    parser.add_argument(
        "--sample",
        type=share,
        metavar="SHARE",
        help="measure this share of each large family, 1 for each key (default: as many keys as it"
        " takes for +-5%%)",
    )
    parser.add_argument(
        "--traffic",
        type=frequency,
        default=TRAFFIC,
        metavar="N/s",
        help="callers who will enlist, for the rates: 800/s, 5k/s, 30/min or 2M/d (default:"
        " %(default)g/s)",
    )
    parser.add_argument(
        "--rules",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="ask these rules of yours, too: a rule, a list of them, or a function that returns"
        " them; without :NAME it is called rules (repeatable; modules of the current folder come"
        " first)",
    )
    parser.add_argument(
        "--rows",
        type=at_least(1, "rows"),
        default=ROWS,
        metavar="N",
        help="show so many families (default: %(default)d); --json and --html have all of them",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep the state in this file, and go on from it after a stop",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with a picture into this file"
    )
    add_json_option(parser)


def share(text: str) -> float:
    """Return a share, 0 < share <= 1. Raises: ArgumentTypeError."""
    value = number(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no share: expected 0 < share <= 1")
    return value


def run(options: argparse.Namespace) -> int:
    """Survey, and print the result. Returns: 0. Raises: WorkStealingError."""
    from workstealing.survey.garbage import rules_in
    from workstealing.survey.report import report_of
    from workstealing.survey.surveying import Survey

    if not options.traffic:
        raise ConfigurationError("--traffic is 0: expected callers who enlist")
    for path in (options.html, options.resume):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigurationError(f"the folder of {str(path)!r} is not there: make it first")
    with application_prints_to_stderr():
        rules = [
            rule
            for name in options.rules
            for rule in rules_in(found_at(name, "--rules", "rules"), name)
        ]
    client = _client(options)
    with progress_bar() as tell:
        survey = Survey(
            client,
            load=options.load,
            share=options.sample,
            rules=rules,
            path=options.resume,
            progress=tell,
        )
        try:
            if options.replica is not None:
                _check_replica(client, survey.reader.note)
            survey.run()
        except FAULTS as error:
            again = f"; --resume {options.resume} goes on" if options.resume is not None else ""
            raise ConfigurationError(f"the survey was cut off: {said(error)}{again}") from error
    report = report_of(survey, options.traffic)
    if options.html is not None:
        _write_page(options.html, report)
    if options.json:
        print_json(report)
    else:
        say(as_text(report, options.rows))
    survey.finish()
    return 0


def _client(options: argparse.Namespace) -> Any:
    if options.replica is None:
        return client_at(options.url)
    try:
        return client_at(options.replica)
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("--url", "--replica")) from error


def _check_replica(client: Any, told: Callable[[str], None]) -> None:
    """Say what a reader must know of the server at --replica. One round trip."""
    if hasattr(client, "get_default_node"):
        raise ConfigurationError("--replica is for a single server: give the cluster's own URL")
    try:
        role = client.execute_command("ROLE")
    except FAULTS:
        told("ROLE is refused: whether the server at --replica is a replica is unknown")
        return
    kind = role[0].decode() if isinstance(role[0], bytes) else role[0]
    if kind != "slave":
        told("the server at --replica is a primary itself")
    elif role[3] not in (b"connected", "connected"):
        told("the replica is not connected to its primary, so its data are of an earlier time")


def _write_page(path: Path, report: Mapping[str, Any]) -> None:
    from workstealing.survey.page import page

    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--html cannot be written: {error.strerror}") from None
    note(f"written into {path}")


def as_text(report: Mapping[str, Any], most: int) -> str:
    """Return a survey's result for people.

    Arguments:
        report: as `report_of` makes it.
        most: rows.

    No character of a key's name steers a terminal.
    """
    from workstealing.survey.report import (
        HEADINGS,
        HOW_TO,
        SECTIONS,
        about_text,
        amount_text,
        error_text,
        items_of,
        rows,
        share_text,
        size_text,
        span_text,
        way_text,
        ways,
        where_text,
    )

    told = ", ".join(filter(None, (error_text(report["bytes"]), share_text(report))))
    lines = [
        f"{report['keys']:,} keys, {size_text(report['bytes'][0])}"
        + (f" ({told})" if told else "")
        + f" in {len(report['families']):,} families, in {where_text(report)}",
        "",
        table(HEADINGS, rows(report, most), left=3),
    ]
    if len(report["families"]) > most:
        rest = report["families"][most:]
        lines.append(
            f"and {len(rest):,} smaller families with {sum(each['keys'] for each in rest):,} keys"
        )
    freed = report["freed"]
    lines += [
        "",
        "garbage: "
        + ", ".join(f"{about_text(freed[each])} {each}" for each in ("certain", "likely")),
    ]
    found = ways(report)
    if found:
        lines += ["", f"{HOW_TO} Times at {report['traffic_per_s']:g} callers a second."]
    for kinds, heading, more in SECTIONS:
        some = [each for each in found if each["kinds"][0] in kinds]
        if some:
            lines += ["", f"{heading[0].lower()}{heading[1:]}:", *([f"  {more}"] if more else [])]
        for each in some:
            does = "ends:  " if kinds == ("no TTL",) else "removes:"
            lines.append(f"  counts:  {each['line']}")
            lines.append(f"  {does:8} {each['removes']}")
            lines.append(f"    {way_text(each)}")
    if report["hints"]:
        lines += ["", "hints, which no rule proves:"]
    for each in report["hints"]:
        lines += [f"  {each['family']}: {each['says']}", f"    {each['install']}"]
    unknown = [
        f"  {each['family']}: {one['unknown']:,} items that the rule {one['rule']} does not know"
        f" ({one['why_unknown']}); they are never touched"
        for each in report["families"]
        for one in each["findings"]
        if one["unknown"]
    ]
    reported = [
        f"  {each['family']}: {amount_text(items_of(one), one['unit'])}. {one['finds']}"
        for each in report["families"]
        for one in each["findings"]
        if one["kind"] == "reported" and one["items"]
    ]
    for heading, remarks in (("only reported:", reported), ("unknown layouts:", unknown)):
        if remarks:
            lines += ["", heading, *remarks]
    if report["notes"]:
        lines += ["", *(f"note: {each}" for each in report["notes"])]
    lines.append("")
    lines.append(
        f"{report['commands']:,} reading commands in {span_text(report['seconds'])},"
        f" {100 * report['load']:.2g} % of the server's time"
    )
    return "\n".join(printable_lines(lines))


def printable_lines(lines: list[str]) -> Iterator[str]:
    """Yield lines in which no foreign character steers a terminal."""
    for each in lines:
        yield from map(printable, each.split("\n"))


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows progress on stderr: a bar on a terminal, else nothing.

    Without rich (the extra "cli") it is a plain line.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        with _plain_line() as tell:
            yield tell
        return
    with Bar(
        TextColumn("surveying"),
        BarColumn(),
        TextColumn("{task.fields[told]}"),
        console=Console(stderr=True, highlight=False),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, told="")

        def show(progress: Progress) -> None:
            bar.update(
                task,
                completed=progress.keys,
                total=None if progress.of is None else max(progress.of, progress.keys),
                told=progress_text(progress),
            )

        yield show


@contextmanager
def _plain_line() -> Iterator[Callable[[Progress], None]]:
    shown = [0.0]

    def show(progress: Progress) -> None:
        now = time.monotonic()
        if now >= shown[0]:
            shown[0] = now + _TELL_SECONDS
            sys.stderr.write(f"\rsurveying: {progress_text(progress)}\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def progress_text(progress: Progress) -> str:
    """Return how far a survey is, and how long it still takes."""
    from workstealing.survey.report import span_text

    of = "" if progress.of is None else f" of {max(progress.of, progress.keys):,}"
    left = "" if progress.left is None else f", {span_text(progress.left)} left"
    return f"{progress.keys:,}{of} keys{left}"
