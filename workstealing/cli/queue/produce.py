"""`workstealing queue produce NAME`: put messages into a queue, to try it.

A put has three ends. It was done, it was refused, or its reply was cut off: then nobody knows, and
it is not sent again, because the queue might have the message twice.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
from collections import Counter
from contextlib import ExitStack
from typing import Any

from workstealing.cli.arguments import at_least, duration
from workstealing.cli.clients import said
from workstealing.cli.live import stop_wish
from workstealing.cli.output import add_json_option, print_json
from workstealing.cli.queue.course import (
    Course,
    LiveLine,
    Spread,
    Weighted,
    add_course_options,
    drawn,
    share,
    spread,
)
from workstealing.cli.queue.kind import Draft, OpenQueue
from workstealing.cli.queue.opening import add_queue_options, opened
from workstealing.clock import spell
from workstealing.errors import ConfigurationError, WorkStealingError

FAILED = 1
PER_SECOND = 1.0
MESSAGE = "message {number}"
HIGHEST_PRIORITY = 100
LONGEST_LINE = 1 << 20
LINES, REFUSAL = "lines", "refusal"
"""Further ends of a course: stdin has no more lines; the queue takes none of our messages."""
_PLACES = re.compile(r"\{(number|tenant|priority)\}")
_READ_BYTES = 1 << 16
_WISH_SECONDS = 0.5

DESCRIPTION = """\
Put messages into a ShuffleQueue or a TimeShardQueue, also on Cassandra: a tool to play with a
queue, beside `workstealing queue consume` and `workstealing queue observe`. For example:
workstealing queue produce reminders --kind time --period 5s --per-second 2 --due-in 0..60
"""
EPILOG = """\
Without --count, --seconds or the end of --lines it goes on until Ctrl-C. On a terminal one line
shows how many messages were put; the last line stays. A put whose reply was cut off is counted as
one of which nobody knows, and is not sent again. Exit status: 0; 1 if a message was refused, or
nobody knows; 2 for bad input, and then nothing was put.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the verb's parser."""
    add_queue_options(parser)
    add_course_options(parser, "1; with --lines: max", "messages")
    body = parser.add_mutually_exclusive_group()
    body.add_argument(
        "--message",
        metavar="TEXT",
        default=MESSAGE,
        help="the body; {number}, {tenant} and {priority} stand for the message's own; all other"
        " text stays as it is (default: %(default)s)",
    )
    body.add_argument(
        "--lines", action="store_true", help="put each line of stdin, and end with stdin"
    )
    parser.add_argument(
        "--tenant",
        type=share,
        action="append",
        metavar="NAME[=SHARE]",
        help="a tenant of a ShuffleQueue or a FairQueue, and its share: --tenant loud=9 --tenant"
        " quiet=1 (default: tenant)",
    )
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--priority",
        type=_priority,
        action="append",
        metavar="N[=SHARE]",
        help="a priority of a TimeShardQueue, and its share: --priority 0=9 --priority 1=1; of the"
        " messages of one turn the higher ones are taken first (default: 0)",
    )
    when.add_argument(
        "--due-in",
        type=spread,
        metavar="S[..S]",
        help="when messages of a TimeShardQueue are due: 30s from now, or 0..60 to spread them"
        " (default: now)",
    )
    parser.add_argument(
        "--time-shards",
        type=at_least(4, "time shards"),
        metavar="N",
        help="of a new TimeShardQueue (default: 6)",
    )
    parser.add_argument(
        "--period",
        type=duration,
        metavar="S",
        help="how long a turn of a new TimeShardQueue is (default: 60s)",
    )
    parser.add_argument(
        "--create-table",
        action="store_true",
        help="create the table of --cassandra, unless it is there; the keyspace must be there",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Put messages until an end comes.

    Returns: 0, or 1 if a message was refused, or nobody knows whether it was put. Raises:
    WorkStealingError for bad input; nothing was put then.
    """
    priorities = [Weighted(int(each.name), each.weight) for each in options.priority or ()]
    for what, shares in (("tenant", options.tenant or ()), ("priority", priorities)):
        _require_different(what, shares)
    with ExitStack() as connections:
        queue = opened(options, connections, begins=True)
        try:
            queue.begin()
        except queue.faults as error:
            raise ConfigurationError(
                f"the queue could not be opened, and nothing was put: {said(error)}"
            ) from error
        with stop_wish() as wish:
            course = Course(
                wish,
                per_second=getattr(options, "per_second", None if options.lines else PER_SECOND),
                count=options.count,
                seconds=options.seconds,
            )
            drafts = Drafts(
                options.message,
                Lines(course) if options.lines else None,
                tenants=options.tenant or (),
                priorities=priorities,
                due_in=options.due_in,
                chance=random.Random(options.seed),
            )
            producing = Producing(queue, course, drafts, LiveLine(is_quiet=options.json))
            producing.run()
        if options.json:
            print_json(producing.facts())
        else:
            producing.line.print(producing.text())
    return FAILED if producing.refused or producing.unknown or producing.trouble else 0


class Lines:
    """The lines of stdin, read so that the wish to end never waits for a line.

    Arguments:
        course: as long as it goes on, lines are waited for.
        file: a descriptor.
    """

    def __init__(self, course: Course, file: int = 0) -> None:
        self._course = course
        self._file = file
        self._kept = b""
        self._number = 0
        self._is_over = False

    def next(self) -> bytes | None:
        """Return the next line without its end, or None: there is none, or the course is over.

        Raises: ConfigurationError for a line of more than a mebibyte, and if stdin is closed.
        """
        searched = 0
        while True:
            end = self._kept.find(b"\n", searched)
            if end >= 0 or (self._is_over and self._kept):
                line = self._kept[:end] if end >= 0 else self._kept
                self._kept = self._kept[end + 1 :] if end >= 0 else b""
                self._number += 1
                return line
            searched = len(self._kept)
            if searched > LONGEST_LINE:
                raise ConfigurationError(
                    f"line {self._number + 1} of stdin is too long: at most {LONGEST_LINE:,} bytes"
                )
            if self._is_over or not self._wait():
                return None

    def _wait(self) -> bool:
        """Wait for more, and read it; say whether the course still goes on."""
        try:
            while self._course.goes_on():
                if select.select([self._file], [], [], _WISH_SECONDS)[0]:
                    more = os.read(self._file, _READ_BYTES)
                    self._kept += more
                    self._is_over = not more
                    return True
        except OSError as error:
            raise ConfigurationError(f"stdin cannot be read: {error.strerror}") from error
        return False


class Drafts:
    """Makes messages.

    Arguments:
        message: the body, with places for the number, the tenant and the priority.
        lines: the bodies, in place of `message`.
        tenants: with their shares; priorities: with theirs; due_in: or None.
        chance: chooses among them.
    """

    def __init__(
        self,
        message: str,
        lines: Lines | None,
        *,
        tenants: Any = (),
        priorities: Any = (),
        due_in: Spread | None = None,
        chance: random.Random,
    ) -> None:
        self._message, self._lines = message, lines
        self._tenants, self._priorities, self._due_in = tenants, priorities, due_in
        self._chance = chance
        self._number = 0

    def next(self) -> Draft | None:
        """Return the next message; None if there are no more lines, or nobody waits for one."""
        body = None
        if self._lines is not None:
            body = self._lines.next()
            if body is None:
                return None
        self._number += 1
        tenant = drawn(self._tenants, self._chance) if self._tenants else None
        priority = drawn(self._priorities, self._chance) if self._priorities else None
        due_in = self._due_in.draw(self._chance) if self._due_in else 0.0
        if body is None:
            own = {"number": self._number, "tenant": tenant or "", "priority": priority or 0}
            text = _PLACES.sub(lambda place: str(own[place[1]]), self._message)
            # As the command line had it, whatever its bytes are.
            body = os.fsencode(text)
        return Draft(body, tenant, priority, due_in)


class Producing:
    """Puts messages, and counts.

    Attributes: put; refused: certainly not put; unknown: their replies were cut off; trouble: the
    last failure, None after a message that was put; line.
    """

    def __init__(self, queue: OpenQueue, course: Course, drafts: Drafts, line: LiveLine) -> None:
        self._queue, self._course, self._drafts = queue, course, drafts
        self.line = line
        self.put = self.refused = self.unknown = 0
        self.trouble: str | None = None
        self._tenants: Counter[str] = Counter()
        self._priorities: Counter[int] = Counter()

    def run(self) -> None:
        """Put messages until the course ends."""
        try:
            while self._course.next():
                draft = self._drafts.next()
                if draft is None:
                    if self._course.goes_on():
                        self._course.end(LINES)
                    break
                self._put(draft)
                self._course.note_act()
                self.line.show(self.text)
        except WorkStealingError as error:
            # The next message would be refused as well.
            if not self.put:
                raise
            self.trouble = said(error)
            self._course.end(REFUSAL)

    def _put(self, draft: Draft) -> None:
        try:
            self._queue.put(draft)
        except self._queue.faults as error:
            self.trouble = said(error)
            if self._queue.is_certain(error):
                self.refused += 1
            else:
                self.unknown += 1
            return
        self.trouble = None
        self.put += 1
        if draft.tenant is not None:
            self._tenants[draft.tenant] += 1
        if draft.priority is not None:
            self._priorities[draft.priority] += 1

    def facts(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "queue": self._queue.name,
            "kind": self._queue.kind,
            "seconds": self._course.elapsed,
            "put": self.put,
            "refused": self.refused,
            "unknown": self.unknown,
            "tenants": dict(self._tenants),
            "priorities": dict(self._priorities),
            "ended_by": self._course.ended_by,
            "trouble": self.trouble,
        }

    def text(self) -> str:
        """Return the counts for people."""
        what = f"{self.put:,} message{'' if self.put == 1 else 's'} into {self._queue.title}"
        parts = [f"put {what} in {spell(self._course.elapsed)}, {self._course.frequency()}"]
        parts += [f"{self.refused:,} refused"] if self.refused else []
        parts += [f"{self.unknown:,} of which nobody knows"] if self.unknown else []
        for what, counts in (("priority", self._priorities), ("tenant", self._tenants)):
            if len(counts) > 1:
                listed = ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items()))
                parts.append(f"{what} {listed}")
        # First, because a terminal may cut the end off.
        return "; ".join([*([f"! {self.trouble}"] if self.trouble else []), *parts])


def _priority(text: str) -> Weighted:
    name, weight = share(text)
    if not str(name).isdecimal() or int(name) > HIGHEST_PRIORITY:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no priority: expected a whole number, 0 to {HIGHEST_PRIORITY}, or with"
            " its share, as 1=9"
        )
    return Weighted(name, weight)


def _require_different(what: str, shares: Any) -> None:
    names = [each.name for each in shares]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"--{what} {twice} was given twice: give each one once")
