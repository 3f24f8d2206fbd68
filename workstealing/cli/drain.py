"""`workstealing drain [JOB]`: slices until nothing is left, as a safety net for cron."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from workstealing.cli.arguments import at_least, duration
from workstealing.cli.clients import (
    FAULTS,
    add_app_option,
    application_prints_to_stderr,
    load_app,
    said,
)
from workstealing.cli.output import add_json_option, note, print_json, printable, say
from workstealing.cli.run import (
    FAULTY,
    SLICE_SECONDS,
    Deadline,
    Listener,
    Performed,
    add_slice_options,
    check_jobs,
    progress_bar,
    send_counts,
)
from workstealing.errors import ConfigurationError
from workstealing.recruiting import Job, Outcome, Recruiter
from workstealing.recruiting.job import refuse_dry_run

SECONDS = 50.0
IDLE_SLICES = 3
MOST_FAULTS = 3
MOST_DOUBTS = 40
MOST_UNKNOWN = 3
NOT_DRAINED = 1
# An idle job with a backlog is asked again after pauses from the one length to the other. In all
# they last for longer than any job here waits: `MigrateToEmulated` waits for 30 seconds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
# A shorter slice is not worth its while.
_SHORTEST = 0.001

DESCRIPTION = """\
Perform slices of a job, or of all jobs in turn, until they find nothing more to do. Meant as a
safety net for hours without traffic, once a minute from cron: it ends by itself before the next.
"""
EPILOG = """\
exit status: 0 if everything was drained, 1 if something is left or failed, or nobody knows, 2 for
bad input, 130 after Ctrl-C. A job that is paused for the whole fleet, or is a dry run, rests here.
While the ledger that would say so cannot be asked, no job works. In a crontab:
* * * * * workstealing drain --app shop.tasks:recruiter --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="the job's name (default: all, a slice each in turn)"
    )
    add_app_option(parser)
    parser.add_argument(
        "--seconds",
        type=duration,
        default=SECONDS,
        metavar="S",
        help="begin no slice after so long: 50s, 10m or 2h (default: %(default)gs)",
    )
    parser.add_argument(
        "--idle",
        type=at_least(1, "slices"),
        default=IDLE_SLICES,
        metavar="N",
        help="a job is drained after so many slices in a row that found nothing (default:"
        " %(default)s; slices look at random places), if its own count of its backlog is 0, too",
    )
    add_slice_options(parser)
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Drain. Returns: 0, or 1 if something is left. Raises: WorkStealingError for bad input."""
    recruiter = load_app(options.app)
    names = check_jobs(recruiter, options.job)
    if options.job is not None:
        refuse_dry_run(options.job, dry_run=recruiter.jobs()[options.job].dry_run)
    drain = Drain(recruiter, names, options)
    is_interrupted = False
    with application_prints_to_stderr():
        try:
            drain.work()
        except KeyboardInterrupt:
            # The work done so far is reported all the same.
            is_interrupted = True
        send_counts(recruiter)
    if options.json:
        print_json(drain.as_dict())
    else:
        say(drain.as_text())
    if is_interrupted:
        note("interrupted")
        return 130
    return 0 if drain.is_drained else NOT_DRAINED


# Jobs that end so keep no other job, and no cron, from being content.
_RESTING = ("paused", "a dry run")


@dataclass(slots=True)
class _Turn:
    """One job's place in the round.

    Fields: idle and faults: how many such slices came in a row; doubts: how often in a row idle
    slices found nothing although something waits; unknown: how often the backlog could not be
    asked; ended: why the job takes no more turns.
    """

    idle: int = 0
    faults: int = 0
    doubts: int = 0
    unknown: int = 0
    ended: str | None = None


class Drain:
    """Slices of several jobs in turn, so that a large job does not keep the others waiting.

    Arguments:
        names: of its jobs.
        options: of the command.
    """

    def __init__(self, recruiter: Recruiter, names: list[str], options: argparse.Namespace) -> None:
        self._recruiter = recruiter
        self._options = options
        self._jobs = recruiter.jobs()
        self._heard = Listener(recruiter)
        self._turns = {name: _Turn() for name in names}
        self._deadline = Deadline(options.seconds)

    @property
    def is_drained(self) -> bool:
        """Whether every job that may work has had enough idle slices in a row."""
        return all(turn.ended in ("drained", *_RESTING) for turn in self._turns.values())

    def work(self) -> None:
        """Perform slices until all jobs are drained or given up, or the time is over."""
        try:
            paused = paused_by_the_fleet(self._recruiter)
        except FAULTS as error:
            note(f"no job was begun, because the ledger does not say what is paused: {said(error)}")
            for turn in self._turns.values():
                turn.ended = "not begun"
            return
        for name in paused & set(self._turns):
            self._turns[name].ended = "paused"
        for name, turn in self._turns.items():
            if self._jobs[name].dry_run:
                # It would find the same items for ever.
                turn.ended = "a dry run"
        sizes = [self._size(name) for name in self._turns]
        total = sum(each for each in sizes if each is not None) if None not in sizes else None
        with progress_bar("drain", total or None) as show:
            while left := [name for name, turn in self._turns.items() if turn.ended is None]:
                for name in left:
                    seconds = self._deadline.left(self._options.slice_seconds or SLICE_SECONDS)
                    if seconds < _SHORTEST:
                        return
                    self._slice(name, seconds)
                    items = sum(self._heard.jobs[each].items for each in self._turns)
                    show(items, f"{name}: {items:,} items in all")

    def _size(self, name: str) -> int | None:
        """Return how many items wait, for the bar alone; None: it is not known."""
        try:
            return known_backlog(self._jobs[name])
        except Exception:  # noqa: BLE001 - the slices will say it too
            return None

    def _slice(self, name: str, seconds: float) -> None:
        turn = self._turns[name]
        outcome = self._recruiter.perform(name, limit=self._options.slice, seconds=seconds)
        turn.idle = turn.idle + 1 if outcome is Outcome.IDLE else 0
        if outcome is Outcome.WORKED:
            turn.doubts = 0
        # An aborted slice met another writer, who is welcome: the next slice finds the rest.
        turn.faults = turn.faults + 1 if outcome in FAULTY else 0
        if turn.idle >= self._options.idle:
            # Slices look at random places, on a cluster at one node each. If a job can count its
            # whole backlog, that count decides.
            turn.idle = 0
            try:
                waits = known_backlog(self._jobs[name])
            except Exception as error:  # noqa: BLE001 - the user's own job may raise anything
                turn.unknown += 1
                if turn.unknown >= MOST_UNKNOWN:
                    turn.ended = "backlog unknown"
                    note(printable(f"the backlog of {name} could not be asked: {said(error)}"))
                return
            turn.unknown = 0
            if not waits:
                turn.ended = "drained"
            elif turn.doubts >= MOST_DOUBTS:
                turn.ended = "stuck"
            else:
                # The job may wait for something, such as for all processes to notice a change.
                pause = min(_SHORTEST_PAUSE * 2**turn.doubts, _LONGEST_PAUSE)
                time.sleep(max(0.0, self._deadline.left(pause)))
                turn.doubts += 1
        elif outcome is Outcome.SKIPPED:
            # The job is paused, or its server cannot be reached. Another slice at once would not
            # help.
            turn.ended = "skipped"
        elif turn.faults >= MOST_FAULTS:
            turn.ended = "failed" if outcome is Outcome.FAILED else "slices too short"

    def _of(self, name: str) -> tuple[Performed, str]:
        return self._heard.jobs[name], self._turns[name].ended or "out of time"

    def as_dict(self) -> dict[str, Any]:
        """Return the work done, as plain data."""
        jobs = {}
        for name in self._turns:
            done, ended = self._of(name)
            jobs[name] = {
                "drained": ended == "drained",
                "ended": ended,
                "unit": self._jobs[name].unit,
                **done.as_dict(),
            }
        return {"drained": self.is_drained, "passed_s": self._deadline.passed, "jobs": jobs}

    def as_text(self) -> str:
        """Return the work done, as text for people."""
        lines = []
        for name in self._turns:
            done, ended = self._of(name)
            lines.append(f"{printable(name)}: {ended}, {done.as_text(self._jobs[name].unit)}")
            if done.error:
                lines.append(f"  the last error: {done.error}")
        return "\n".join(lines)


def paused_by_the_fleet(recruiter: Recruiter) -> set[str]:
    """Return the jobs that an administrator has paused everywhere, by the recruiter's ledger.

    Raises: errors of redis-py. One round trip for each ledger.
    """
    from workstealing.metrics.ledger import Ledger
    from workstealing.metrics.shared_settings import SharedSettings

    found: set[str] = set()
    for hook in recruiter.hooks():
        if not isinstance(hook, Ledger):
            continue
        try:
            shared = SharedSettings(hook.hashes.client, hook.name)
        except ConfigurationError:
            # On an asyncio client no process follows any settings.
            continue
        settings = shared.settings()
        found |= {job for job, setting in settings.items() if setting.paused}
    return found


def known_backlog(job: Job) -> int | None:
    """Return how many items wait, or None for a job that never says.

    For a job that may not work everywhere at any time, only the items within its reach count.
    Raises: whatever the job raises.
    """
    found = job.within_reach(seconds=1.0)
    return None if found is None else found.count
