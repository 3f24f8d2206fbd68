"""What people see: a live table in a terminal, a line now and then elsewhere, and the summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import zip_longest
from types import TracebackType
from typing import Protocol, Self, TextIO

from workstealing.cli.demo.figures import OVERDUE_MS, WANTED_SHARE, Figures, Verdict
from workstealing.recruiting.slice import OUTCOMES, spoken

LINE_SECONDS = 5.0


class Display(Protocol):
    """Where the figures go while the demo runs; a context manager.

    `stands_with_summary` tells whether what is said here stands where the summary will stand.
    """

    stands_with_summary: bool

    def say(self, line: str) -> None:
        """Show a line of text."""
        ...

    def update(self, seconds: float, figures: Figures) -> None:
        """Show the figures after so many seconds; `garbage_end` is the garbage now."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Lines:
    """Plain lines, for logs and pipes: the figures at most every LINE_SECONDS.

    Arguments: stream to write to.
    """

    stands_with_summary = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0

    def say(self, line: str) -> None:
        """Write a line."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def update(self, seconds: float, figures: Figures) -> None:
        """Write the figures as one line, unless the last one was just now."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_SECONDS
            self.say(
                f"{seconds:5.0f} s: {figures.requests} requests, {figures.recruited} recruited of"
                f" {figures.enlisted} enlisted, {figures.items} fields collected,"
                f" {figures.garbage_end} garbage now, {figures.failed} failed,"
                f" p99 {figures.p99_ms:.1f} ms"
            )

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""


class LiveTable:
    """One table that is drawn anew in place, by rich. Arguments: title."""

    stands_with_summary = True

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False)

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._console.print(line, markup=False, soft_wrap=True)

    def update(self, seconds: float, figures: Figures) -> None:
        """Draw the table."""
        from rich.table import Table

        table = Table(title=f"{self._title}, {seconds:.0f} s", title_justify="left")
        for heading in ("traffic", "", "recruits", "", "garbage", ""):
            table.add_column(heading, justify="right" if not heading else "left", min_width=6)
        left = [
            ("requests", str(figures.requests)),
            ("enlisted", str(figures.enlisted)),
            ("recruited", str(figures.recruited)),
            ("p50", f"{figures.p50_ms:.1f} ms"),
            ("p99", f"{figures.p99_ms:.1f} ms"),
        ]
        middle = [(spoken(name), str(getattr(figures, name))) for name in OUTCOMES]
        right = [
            ("fields collected", str(figures.items)),
            ("garbage now", str(figures.garbage_end)),
            ("garbage peak", str(figures.garbage_peak)),
            ("oldest garbage", f"{figures.oldest_garbage_s:.1f} s"),
            ("errors", str(figures.errors)),
        ]
        for row in zip_longest(left, middle, right, fillvalue=("", "")):
            table.add_row(*(cell for pair in row for cell in pair))
        self._live.update(table, refresh=True)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last table on the screen."""
        self._live.__exit__(kind, error, trace)


def display(is_json: bool) -> Display:
    """Return the live table where stdout is a terminal for people, otherwise lines on stderr."""
    if is_json or not sys.stdout.isatty():
        return Lines(sys.stderr)
    return LiveTable("workstealing demo")


def summary(
    facts: Sequence[str], seconds: float, figures: Figures, verdict: Verdict, reason: str
) -> str:
    """Return the summary for people: what ran, its figures, the comparison, and the laws.

    Arguments: reason: why less was collected than planned, if less was.
    """
    outcomes = ", ".join(f"{getattr(figures, name)} {spoken(name)}" for name in OUTCOMES)
    age = f" (the oldest expired {figures.oldest_garbage_s:.1f} s ago)"
    lines = [
        *facts,
        (
            f"{figures.requests} requests in {seconds:.1f} s, {figures.errors} errors;"
            f" p50 {figures.p50_ms:.1f} ms, p99 {figures.p99_ms:.1f} ms"
        ),
        (
            f"{figures.enlisted} enlisted, {figures.recruited} recruited: {outcomes};"
            f" {figures.items} fields collected"
        ),
        (
            f"garbage: {figures.garbage_end} fields at the end"
            f"{age if figures.garbage_end else ''}, {figures.garbage_peak} at the peak"
        ),
        f"without work stealing the same traffic would have left {figures.garbage_without} fields",
    ]
    if verdict.overdue:
        lines.append(
            f"of {verdict.overdue} fields overdue for more than {OVERDUE_MS / 1000:g} s,"
            f" {100 * verdict.share:.1f} % were collected while the load ran"
        )
        if not verdict.is_enough:
            lines.append(f"the plan was {100 * WANTED_SHARE:g} % or more: {reason}")
    else:
        lines.append(f"no field was overdue for more than {OVERDUE_MS / 1000:g} s")
    lines.append(_laws(verdict))
    return "\n".join(lines)


def _laws(verdict: Verdict) -> str:
    if verdict.broken:
        return f"a law was broken: {' and '.join(verdict.broken)}"
    rest = (
        "there was no time to look for all that was left"
        if verdict.lost is None
        else f"one process then found and removed all {verdict.drained} that had expired by then"
    )
    return f"the laws held: no reader was given an expired field, and {rest}"
