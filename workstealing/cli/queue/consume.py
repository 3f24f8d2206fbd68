"""`workstealing queue consume NAME`: take messages out of a queue, to try it.

A message in hand is always settled: it is acknowledged, given back, or left to lapse on purpose.
SIGINT, SIGTERM and SIGHUP only note the wish to end, so none of them comes between a take and its
settling; a message that is being worked on is given back then.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import time
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any

from workstealing.cli.arguments import duration, rate
from workstealing.cli.clients import said
from workstealing.cli.live import stop_wish
from workstealing.cli.output import add_json_option, note, print_json, printable
from workstealing.cli.queue.course import (
    Course,
    LiveLine,
    Spread,
    add_course_options,
    portion,
    spread,
)
from workstealing.cli.queue.kind import LEASE, InHand, OpenQueue
from workstealing.cli.queue.opening import add_queue_options, opened
from workstealing.clock import spell
from workstealing.errors import Aborted, ConfigurationError, WorkStealingError
from workstealing.recruiting import Recruiter

FAILED = 1
POLL_SECONDS = 0.5
MOST_TENANTS = 1000
EMPTY, REFUSAL = "empty", "refusal"
"""Further ends of a course: nothing is left; the queue gives us nothing any more."""
# A count of all messages may be dear.
_COUNTED_SECONDS = 1.0
_BODY_CHARACTERS = 60
# A slice on Cassandra takes some milliseconds a statement.
_SLICE_SECONDS = 0.25
_WISH_SECONDS = 0.5

DONE, LATE, GIVEN_BACK, LAPSED = "done", "late", "given_back", "lapsed"
REFUSED, UNKNOWN = "refused", "unknown"
SAID = {
    DONE: "done",
    LATE: "done too late, another consumer had it",
    GIVEN_BACK: "given back",
    LAPSED: "left to lapse",
    REFUSED: "not settled",
    UNKNOWN: "of which nobody knows",
}
"""How a message in hand may end, by its name in JSON."""

DESCRIPTION = """\
Take messages out of a ShuffleQueue or a TimeShardQueue, also on Cassandra: a tool to play with a
queue, beside `workstealing queue produce` and `workstealing queue observe`. It takes messages that
a program of yours is waiting for, too. For example: workstealing queue consume reminders
--work-seconds 0..0.5 --fail 0.1 --each
"""
EPILOG = """\
Without --count, --seconds or --until-empty it goes on until Ctrl-C. Then it gives back the message
in hand. On a terminal one line shows the counts; the last line stays. Exit status: 0; 1 if a
message could not be settled, or nobody knows, or if the database failed at the end; 2 for bad
input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the verb's parser."""
    add_queue_options(parser)
    add_course_options(parser, "max", "messages")
    parser.add_argument(
        "--until-empty",
        action="store_true",
        help="end when nothing is left that may be taken, now or later",
    )
    parser.add_argument(
        "--work-seconds",
        type=spread,
        default=Spread(0.0, 0.0),
        metavar="S[..S]",
        help="how long the work on a message takes: 200ms, or 0..2 (default: 0)",
    )
    parser.add_argument(
        "--fail",
        type=portion,
        default=0.0,
        metavar="PORTION",
        help="give back this portion of messages after the work: 0.1 (default: 0)",
    )
    parser.add_argument(
        "--retry-in",
        type=spread,
        default=Spread(0.0, 0.0),
        metavar="S[..S]",
        help="when a message that failed may be taken again (default: at its next turn)",
    )
    parser.add_argument(
        "--lapse",
        type=portion,
        default=0.0,
        metavar="PORTION",
        help="neither acknowledge nor give back this portion, as a consumer that dies (default: 0)",
    )
    parser.add_argument(
        "--consumer", metavar="NAME", help="this consumer's name (default: the host and process)"
    )
    parser.add_argument(
        "--group", metavar="GROUP", help="the group of a ShuffleQueue (default: consumers)"
    )
    parser.add_argument(
        "--lease",
        type=duration,
        metavar="S",
        help="for how long a message is ours; that of a ShuffleQueue is its reaper's, see --enlist"
        f" (default: {LEASE:g}s)",
    )
    parser.add_argument(
        "--enlist",
        type=rate,
        metavar="RATE",
        help="enlist after each look that found nothing, and be recruited at this rate, 0.1 for"
        " instance, to bring back what dead consumers had (default: never)",
    )
    parser.add_argument(
        "--drain-all",
        action="store_true",
        help="look at every time shard of a TimeShardQueue, not only at that of the turn",
    )
    parser.add_argument(
        "--poll",
        type=duration,
        default=POLL_SECONDS,
        metavar="S",
        help="how long to wait after a look that found nothing (default: %(default)gs)",
    )
    parser.add_argument("--each", action="store_true", help="print a line for each message")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Take messages until an end comes.

    Returns: 0, or 1 if a message could not be settled, or nobody knows whether it was, or if the
    database failed at the end. Raises: WorkStealingError for bad input; nothing was taken then.
    """
    if options.fail + options.lapse > 1:
        raise ConfigurationError("--fail and --lapse together are more than 1: give less")
    if options.each and options.json:
        raise ConfigurationError(
            "--each prints lines, and --json one object: leave one of them out"
        )
    if options.consumer is None:
        options.consumer = f"{socket.gethostname()}-{os.getpid()}"
    with ExitStack() as connections:
        queue = opened(options, connections)
        queue.require()
        _note_short_lease(options, queue)
        with stop_wish() as wish:
            course = Course(
                wish,
                per_second=getattr(options, "per_second", None),
                count=options.count,
                seconds=options.seconds,
            )
            consuming = Consuming(
                queue,
                course,
                LiveLine(is_quiet=options.json),
                options,
                random.Random(options.seed),
            )
            consuming.run()
        if options.json:
            print_json(consuming.facts())
        else:
            consuming.line.print(consuming.text())
    return FAILED if consuming.has_failed else 0


def _note_short_lease(options: argparse.Namespace, queue: OpenQueue) -> None:
    if options.work_seconds.most > queue.lease:
        note(
            f"a piece of work may last longer than the lease of {spell(queue.lease)}: its message"
            " may be taken by another consumer meanwhile"
        )


class Consuming:
    """Takes messages, works on them, settles them, and counts.

    Arguments:
        options: `work_seconds`, `fail`, `lapse`, `retry_in`, `poll`, `until_empty`, `each`,
            `enlist` and `consumer`.
        chance: says what becomes of a message.

    Attributes: line; taken; ends: how many messages ended in which way; trouble: the failure of the
    last call, or None.
    """

    def __init__(
        self,
        queue: OpenQueue,
        course: Course,
        line: LiveLine,
        options: argparse.Namespace,
        chance: random.Random,
    ) -> None:
        self._queue, self._course, self._options = queue, course, options
        self._chance = chance
        self.line = line
        self.taken = 0
        self.ends: Counter[str] = Counter(dict.fromkeys(SAID, 0))
        self.trouble: str | None = None
        self._tenants: Counter[str] = Counter()
        self._waited = self._longest = 0.0
        self._counted = -float("inf")
        self._recruiter = None if options.enlist is None else Recruiter(seconds=_SLICE_SECONDS)
        self._job = ""
        if self._recruiter is not None:
            job = queue.job()
            self._job = job.name
            self._recruiter.install(job, rate=options.enlist)
        # After the last one of them it may go on as well.
        self._faults: tuple[type[Exception], ...] = (*queue.faults, Aborted)

    @property
    def has_failed(self) -> bool:
        """Whether a message is not settled, or the last call failed."""
        return bool(self.ends[REFUSED] or self.ends[UNKNOWN] or self.trouble)

    def run(self) -> None:
        """Take messages until the course ends."""
        try:
            while self._course.next():
                begun = time.monotonic()
                message = self._take()
                if message is not None:
                    self._course.note_act()
                    self._handle(message)
                elif self._options.until_empty and not self.trouble and self._is_empty():
                    self._course.end(EMPTY)
                else:
                    if self._recruiter is not None:
                        # A fast exit.
                        self._recruiter.enlist()
                    self._course.pause(self._options.poll - (time.monotonic() - begun))
                self.line.show(self.text)
        except WorkStealingError as error:
            # The next take would be refused as well.
            if not self.taken:
                raise
            self.trouble = said(error)
            self._course.end(REFUSAL)

    def _take(self) -> InHand | None:
        try:
            # A wait in the queue hears of no wish to end.
            message = self._queue.take(min(self._options.poll, _WISH_SECONDS))
        except self._faults as error:
            # Nothing is in hand: the queue gives back what a take was granted without its reply.
            self.trouble = said(error)
            return None
        self.trouble = None
        return message

    def _is_empty(self) -> bool:
        """Say whether nothing is left, as far as that was counted lately."""
        if time.monotonic() - self._counted < _COUNTED_SECONDS:
            return False
        self._counted = time.monotonic()
        try:
            return self._queue.left() == 0
        except self._queue.faults as error:
            self.trouble = said(error)
            return False

    def _handle(self, message: InHand) -> None:
        """Work on a message, and settle it."""
        self.taken += 1
        self._waited += message.waited
        self._longest = max(self._longest, message.waited)
        if message.tenant is not None:
            is_known = message.tenant in self._tenants or len(self._tenants) < MOST_TENANTS
            self._tenants[message.tenant if is_known else "(others)"] += 1
        try:
            self.line.show(self.text)
            is_wanted = self._course.wish.wait(self._options.work_seconds.draw(self._chance))
        except BaseException:
            # Stdout is closed, for instance.
            with suppress(*self._queue.faults, WorkStealingError):
                self._queue.give_back(message, 0.0)
            raise
        end = self._settled(message, is_wanted=is_wanted)
        self.ends[end] += 1
        if self._options.each:
            self.line.print(self._described(message, end))

    def _settled(self, message: InHand, *, is_wanted: bool) -> str:
        """Settle a message; return how it has ended.

        Arguments:
            is_wanted: somebody wants the tool to end, so the work is not done.
        """
        options, number = self._options, self._chance.random()
        try:
            if is_wanted:
                return GIVEN_BACK if self._queue.give_back(message, 0.0) else LATE
            if number < options.fail:
                seconds = options.retry_in.draw(self._chance)
                return GIVEN_BACK if self._queue.give_back(message, seconds) else LATE
            if number < options.fail + options.lapse:
                return LAPSED
            return DONE if self._queue.finish(message) else LATE
        except self._faults as error:
            self.trouble = said(error)
            is_certain = not isinstance(error, Aborted) and self._queue.is_certain(error)
            return REFUSED if is_certain else UNKNOWN

    def _described(self, message: InHand, end: str) -> str:
        body = printable(message.body)
        if len(body) > _BODY_CHARACTERS:
            body = f"{body[:_BODY_CHARACTERS]}..."
        parts = [message.id, SAID[end], f"late by {spell(message.waited)}"]
        parts += [f"attempt {message.attempts}"] if message.attempts > 1 else []
        parts += [] if message.tenant is None else [printable(message.tenant)]
        return "  ".join((*parts, body))

    def facts(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "queue": self._queue.name,
            "kind": self._queue.kind,
            "consumer": self._options.consumer,
            "seconds": self._course.elapsed,
            "taken": self.taken,
            **self.ends,
            "late_by_seconds": {"mean": self._mean(), "worst": self._longest},
            "tenants": dict(self._tenants),
            "brought_back_or_cleared": self._swept(),
            "ended_by": self._course.ended_by,
            "trouble": self.trouble,
        }

    def text(self) -> str:
        """Return the counts for people."""
        what = f"{self.taken:,} message{'' if self.taken == 1 else 's'} of {self._queue.title}"
        parts = [f"took {what} in {spell(self._course.elapsed)}, {self._course.frequency()}"]
        ends = [f"{count:,} {SAID[end]}" for end, count in self.ends.items() if count]
        parts += [", ".join(ends)] if ends else []
        if self.taken:
            parts.append(f"late by {spell(self._mean())}, at worst {spell(self._longest)}")
        if len(self._tenants) > 1:
            counts = self._tenants.most_common(8)
            parts.append(", ".join(f"{printable(name)}: {count:,}" for name, count in counts))
        swept = self._swept()
        parts += [f"as a recruit brought back or cleared {swept:,}"] if swept else []
        # First, because a terminal may cut the end off.
        return "; ".join([*([f"! {self.trouble}"] if self.trouble else []), *parts])

    def _swept(self) -> int:
        """Return how many items the slices have handled."""
        if self._recruiter is None:
            return 0
        return int(self._recruiter.stats()["jobs"][self._job]["items"])

    def _mean(self) -> float:
        return self._waited / self.taken if self.taken else 0.0
