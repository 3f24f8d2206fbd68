"""Slices from a command line, performed by the recruiter itself, and their outcomes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from workstealing.cli.output import note, printable
from workstealing.recruiting import Hooks, Outcome, Recruiter
from workstealing.recruiting.job import counted
from workstealing.recruiting.slice import OUTCOMES, spoken

SLICE_SECONDS = 1.0
"""How long a slice may take: no caller waits for this process, and its connections are cold."""

FAULTY = (Outcome.FAILED, Outcome.OUT_OF_TIME)
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
