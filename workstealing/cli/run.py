"""`workstealing run JOB`: some slices of one job, here and now."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from workstealing.cli.arguments import at_least, duration
from workstealing.cli.clients import add_app_option, application_prints_to_stderr, load_app
from workstealing.cli.output import add_json_option, note, print_json, printable, say
from workstealing.errors import ConfigurationError, OutOfTime
from workstealing.recruiting import Hooks, Outcome, Recruiter
from workstealing.recruiting.job import counted, would_handle
from workstealing.recruiting.recruiter import DRY_RUN_SECONDS
from workstealing.recruiting.slice import OUTCOMES, spoken

FAILED = 1
FAULTY = (Outcome.FAILED, Outcome.OUT_OF_TIME)
BAD = (*FAULTY, Outcome.SKIPPED)

DESCRIPTION = """\
Perform slices of one job in this process, without a draw. Hooks count them like any others.
"""
EPILOG = """\
exit status: 0, or 1 if a slice failed, was out of time or was skipped, or 2 for bad input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument(
        "job", metavar="JOB", help="the job's name, as `workstealing jobs` lists it"
    )
    add_app_option(parser)
    parser.add_argument(
        "--slices",
        type=at_least(1, "slices"),
        metavar="N",
        help="how many slices to perform, one after the other (default: 1)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="count the items that one slice would handle, and change nothing",
    )
    add_slice_options(parser)
    add_json_option(parser)


def add_slice_options(parser: argparse.ArgumentParser) -> None:
    """Add the bounds of a slice to a command's options."""
    parser.add_argument(
        "--slice",
        type=at_least(1, "items"),
        metavar="ITEMS",
        help="the most items of a slice (default: the job's own limit)",
    )
    parser.add_argument(
        "--slice-seconds",
        type=duration,
        metavar="S",
        help=f"how long a slice may take (default: {SLICE_SECONDS:g}s, longer than in a web"
        f" request, because no caller waits here; a dry run: {DRY_RUN_SECONDS:g}s)",
    )


def run(options: argparse.Namespace) -> int:
    """Perform the slices.

    Returns: 0, or 1 if one achieved nothing because of a fault. Raises: WorkStealingError for bad
    input.
    """
    recruiter = load_app(options.app)
    check_jobs(recruiter, options.job)
    if options.dry_run:
        return _dry_run(recruiter, options)
    heard = Listener(recruiter)
    unit = recruiter.jobs()[options.job].unit
    wanted = options.slices or 1
    seconds = options.slice_seconds or SLICE_SECONDS
    deadline = Deadline(None)
    with (
        application_prints_to_stderr(),
        progress_bar(options.job, wanted, wanted=wanted > 1) as show,
    ):
        for number in range(1, wanted + 1):
            outcome = recruiter.perform(options.job, limit=options.slice, seconds=seconds)
            show(number, f"{options.job}: {counted(heard.jobs[options.job].items, unit)}")
            if outcome in BAD:
                break
        send_counts(recruiter)
    done = heard.jobs[options.job]
    is_good = not any(done.outcomes[each.value] for each in BAD)
    if options.json:
        print_json(
            {
                "job": options.job,
                "dry_run": False,
                "passed_s": deadline.passed,
                "unit": unit,
                **done.as_dict(),
            }
        )
    else:
        say(f"{printable(options.job)}: {done.as_text(unit)}")
        if done.error:
            note(f"the last slice failed: {done.error}")
    return 0 if is_good else FAILED


def _dry_run(recruiter: Recruiter, options: argparse.Namespace) -> int:
    if options.slices is not None:
        raise ConfigurationError(
            "--dry-run counts for one slice: a second one would find the same; leave --slices out"
        )
    items: int | None = None
    failure: str | None = None
    with application_prints_to_stderr():
        try:
            items = recruiter.dry_run(
                options.job, limit=options.slice, seconds=options.slice_seconds
            )
        except OutOfTime:
            failure = "OutOfTime: nothing could be counted in that time; give more --slice-seconds"
            note(f"the dry run failed: {failure}")
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's own job may raise anything
            failure = printable(f"{type(error).__name__}: {error}")
            note(f"the dry run failed: {failure}")
    if options.json:
        unit = recruiter.jobs()[options.job].unit
        told = {"job": options.job, "dry_run": True, "items": items, "unit": unit}
        print_json({**told, "error": failure})
    elif items is not None:
        found = would_handle(recruiter.jobs()[options.job], items, options.slice)
        say(f"{printable(options.job)}: {found}")
    return 0 if failure is None else FAILED


def check_jobs(recruiter: Recruiter, name: str | None) -> list[str]:
    """Return the name of the job, or of all jobs if none is given.

    Raises: ConfigurationError if there is no such job, or none at all.
    """
    installed = list(recruiter.jobs())
    if name is not None and name not in installed:
        listed = ", ".join(map(printable, installed)) or "none"
        raise ConfigurationError(f"no job {printable(name)!r} is installed; installed: {listed}")
    if not installed:
        raise ConfigurationError("no job is installed in this recruiter")
    return installed if name is None else [name]


SLICE_SECONDS = 1.0
"""How long a slice may take: no caller waits for this process, and its connections are cold."""

"""The outcomes of slices that achieved nothing because of a fault."""


@dataclass(slots=True)
class Performed:
    """The slices of a job, and their outcomes.

    Fields: slices: how many; outcomes: how many of each; items handled; seconds that they took;
    error: the text of the last failure, or None.
    """

    slices: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    items: int = 0
    seconds: float = 0.0
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return asdict(self)

    def as_text(self, unit: str = "items") -> str:
        """Return the figures for people.

        Arguments:
            unit: of the items, see `Job.unit`.
        """
        happened = [f"{count} {spoken(name)}" for name, count in self.outcomes.items() if count]
        return (
            f"{counted(self.items, unit)} in {self.slices} slice{'' if self.slices == 1 else 's'}"
            f" ({', '.join(happened) or 'none'}), {self.seconds:.2f} s"
        )


class Listener(Hooks):
    """Gathers the outcomes of a recruiter's slices, by job."""

    def __init__(self, recruiter: Recruiter) -> None:
        self.jobs = {name: Performed() for name in recruiter.jobs()}
        recruiter.add_hook(self)

    def on_outcome(
        self, job: str, outcome: Outcome, items: int, seconds: float, error: BaseException | None
    ) -> None:
        """Add a slice."""
        into = self.jobs.setdefault(job, Performed())
        into.slices += 1
        into.outcomes[outcome.value] += 1
        into.items += items
        into.seconds += seconds
        if error is not None:
            into.error = printable(f"{type(error).__name__}: {error}")


def send_counts(recruiter: Recruiter) -> None:
    """Let the hooks send their counts, because this process ends now."""
    recruiter.flush()
    for hook in recruiter.hooks():
        send = getattr(hook, "flush", None)
        if callable(send):
            try:
                send()
            except Exception as error:  # noqa: BLE001 - a hook of the user's own may raise anything
                note(printable(f"{type(hook).__name__} could not send: {type(error).__name__}"))


Progress = Callable[[float, str], None]
"""Is called with the work done by now, and a line for people."""


@contextlib.contextmanager
def progress_bar(what: str, total: float | None, *, wanted: bool = True) -> Iterator[Progress]:
    """Show a bar on stderr while something long runs, where a person looks on.

    Arguments:
        what: the work in a few words.
        total: all of it, None: unknown.
        wanted: False for no bar.

    Without rich (the extra "cli"), or where stderr is no terminal, nothing is shown.
    """
    if not wanted or not sys.stderr.isatty():
        yield _ignore
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ModuleNotFoundError:
        yield _ignore
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=total)

        def show(done: float, line: str) -> None:
            bar.update(task, completed=done, description=printable(line))

        yield show


class Deadline:
    """When to stop.

    Arguments:
        seconds: from now, None: never.
    """

    def __init__(self, seconds: float | None) -> None:
        self._begun = time.monotonic()
        self._seconds = seconds

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    def left(self, most: float) -> float:
        """Return the seconds that are left, at most so many; 0 or less: it is over."""
        return most if self._seconds is None else min(most, self._seconds - self.passed)


def _ignore(done: float, line: str) -> None:
    """Show nothing."""
