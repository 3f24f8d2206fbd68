"""`workstealing queue move FROM TO`: a ShuffleQueue's messages are carried into a FairQueue.

The queues may lie in different slots, so no script sees both. The mover reads a slice as a consumer
of the group, writes it, and acknowledges it. A write has a dedupe key, made of the message's place
and content, that holds after the message has ended. If the mover is killed, the slice stays pending
until its lease ends. The mover that reads it then meets the keys, and only acknowledges.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from workstealing.cli.arguments import at_least, duration
from workstealing.cli.clients import FAULTS, add_url_option, client_at, said
from workstealing.cli.live import stop_wish
from workstealing.cli.output import add_json_option, print_json, printable
from workstealing.cli.queue.consume import EMPTY, REFUSAL
from workstealing.cli.queue.course import Course, LiveLine
from workstealing.cli.queue.fair import DEFAULT_NAMESPACE, OpenFairQueue
from workstealing.cli.queue.kind import LEASE, MOST_MESSAGES, named_namespace
from workstealing.cli.queue.shuffle import GROUP, SHUFFLE_NAMESPACE, TENANT, OpenShuffleQueue
from workstealing.clock import spell
from workstealing.errors import Aborted, ConfigurationError, QueueFull, WorkStealingError
from workstealing.recruiting import Recruiter
from workstealing.store.keys import to_bytes
from workstealing.store.sending import is_certain
from workstealing.structures import FairQueue, Message, ShuffleQueue
from workstealing.structures.fair_queue.names import FairQueueNames
from workstealing.structures.queue_messages import NewMessage
from workstealing.structures.queue_place import MESSAGES_A_SCRIPT
from workstealing.structures.shuffle_queue import DeadMessage
from workstealing.structures.shuffle_queue.names import QueueNames

FAILED, LEFT = 1, 3
REMEMBERED_SECONDS = 86400.0
MOST_REFUSED = 100
"""How many messages that the FairQueue refuses are passed over; with more the move ends."""
FAULT = "fault"
"""A further end of a course."""
_COUNTS = ("waiting", "returned", "delayed", "pending", "dead")
_NEVER = 10**9
_POLL_SECONDS = 0.5
_SLICE_SECONDS = 0.25
_REAPER_SLICES = 16
# A deadline of whole ms, as a float, may be read as 1 ms less.
_HALF_A_MS = 0.0005

DESCRIPTION = """\
Carry the messages of a ShuffleQueue's group over into a FairQueue, in slices. It may be killed at
any moment, run again, and run twice at once: no message is lost, and none is written twice within
--remember. For example: workstealing queue move predictions renderings --dry-run
"""
EPILOG = """\
Messages that other consumers have in hand, and those whose retry is not due, stay until they can be
read: --wait waits for them. Dead ones stay, unless --dead is given. Attempts begin anew. Exit
status: 0; 1 if a message was refused, or if the server failed; 2 for bad input; 3 if messages are
left.
"""


class Mapped(NamedTuple):
    """The account of tenants. Fields: tenants: a pattern of their names; account."""

    tenants: re.Pattern[str]
    account: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the verb's parser."""
    parser.add_argument("name", metavar="FROM", help="the ShuffleQueue's name")
    parser.add_argument("to", metavar="TO", help="the FairQueue's name")
    add_url_option(parser)
    add_json_option(parser)
    parser.add_argument(
        "--group", metavar="GROUP", help="whose messages (default: the only group there is)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only count what would be carried over"
    )
    parser.add_argument(
        "--begin", action="store_true", help="begin the FairQueue if it is not there yet"
    )
    parser.add_argument(
        "--dead", action="store_true", help="carry dead messages over too, as if they were revived"
    )
    parser.add_argument(
        "--account",
        type=mapped,
        action="append",
        default=[],
        metavar="TENANT=ACCOUNT",
        help="the account of a tenant, or of a pattern of tenants: * for any letters, ? for one;"
        " the first that fits holds (default: the tenant)",
    )
    parser.add_argument(
        "--tenant",
        default=TENANT,
        metavar="NAME",
        help="the tenant of messages without one, of the plain stream (default: %(default)s)",
    )
    parser.add_argument(
        "--slice",
        type=_slice,
        default=MESSAGES_A_SCRIPT,
        metavar="N",
        help=f"how many messages at once, {MESSAGES_A_SCRIPT} at most (default: %(default)s)",
    )
    parser.add_argument(
        "--count", type=at_least(1, "slices"), metavar="N", help="end after so many slices"
    )
    parser.add_argument(
        "--seconds", type=duration, metavar="S", help="end after so long: 30s, 5m or 2h"
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for messages that others have in hand and for those that are not due yet",
    )
    parser.add_argument(
        "--lease",
        type=duration,
        metavar="S",
        help="bring back what any consumer of the group has had for so long, as a reaper does"
        " (default: leave it to the queue's own reaper)",
    )
    parser.add_argument(
        "--remember",
        type=duration,
        default=REMEMBERED_SECONDS,
        metavar="S",
        help="for how long the FairQueue knows what was carried over (default: 1 day)",
    )


def _slice(text: str) -> int:
    found = at_least(1, "messages")(text)
    if found > MESSAGES_A_SCRIPT:
        raise argparse.ArgumentTypeError(f"{text} is too many: give {MESSAGES_A_SCRIPT} at most")
    return int(found)


def mapped(text: str) -> Mapped:
    """Return a rule of `--account`, such as `bulk-*=bulk`. Raises: ArgumentTypeError."""
    tenants, equals, account = text.rpartition("=")
    if not equals or not tenants or not account:
        raise argparse.ArgumentTypeError(
            f"{text!r} says no account: expected a tenant and its account, as bulk-*=bulk"
        )
    pattern = re.escape(tenants).replace(r"\*", ".*").replace(r"\?", ".")
    return Mapped(re.compile(pattern, re.DOTALL), account)


def run(options: argparse.Namespace) -> int:
    """Carry messages over until nothing more can be read, or an end comes.

    Returns: 0; 1 if a message was refused or the server failed; 3 if messages are left. Raises:
    WorkStealingError for bad input; nothing was carried over then.
    """
    if options.lease is not None and options.lease >= options.remember:
        raise ConfigurationError(
            "--remember must be longer than --lease, else what comes back is written again"
        )
    client = client_at(options.url)
    try:
        shuffle, group = _opened(client, options)
        fair = _target(client, options)
        if options.dry_run:
            return _tell(options, _counts(shuffle, group, options))
    except FAULTS as error:
        raise ConfigurationError(f"the queues could not be asked: {said(error)}") from error
    with stop_wish() as wish:
        course = Course(wish, per_second=None, count=options.count, seconds=options.seconds)
        moving = Moving(shuffle, group, fair, course, LiveLine(is_quiet=options.json), options)
        moving.run()
    if options.json:
        print_json(moving.facts())
    else:
        moving.line.print(moving.text())
    return moving.status


def _opened(client: Any, options: argparse.Namespace) -> tuple[ShuffleQueue, str]:
    """Return the queue to be emptied, and its group. Raises: ConfigurationError."""
    name = os.fsencode(options.name)
    if not OpenShuffleQueue.is_there(client, name):
        raise ConfigurationError(
            f"there is no ShuffleQueue {printable(options.name)!r} in this Redis: check the name"
            " and --url"
        )
    # The mover sets nothing aside: what it gives back was not tried by anybody.
    namespace = named_namespace(client, QueueNames(name).meta, SHUFFLE_NAMESPACE)
    queue: ShuffleQueue = ShuffleQueue(client, name, max_attempts=_NEVER, namespace=namespace)
    groups = queue.groups()
    named: str | None = options.group
    if named is None and len(groups) > 1:
        raise ConfigurationError(
            f"the queue has several groups, and each has messages of its own: give --group, one of"
            f" {', '.join(map(printable, sorted(groups)))}"
        )
    if named is not None and groups and named not in groups:
        raise ConfigurationError(
            f"the queue has no group {printable(named)!r}: give one of"
            f" {', '.join(map(printable, sorted(groups)))}"
        )
    return queue, named or (groups[0] if groups else GROUP)


def _target(client: Any, options: argparse.Namespace) -> FairQueue:
    """Return the queue to be filled. Raises: ConfigurationError."""
    name = os.fsencode(options.to)
    if not (options.begin or options.dry_run) and not OpenFairQueue.is_there(client, name):
        raise ConfigurationError(
            f"there is no FairQueue {printable(options.to)!r} in this Redis: start its readers"
            " first, check the name, or give --begin"
        )
    namespace = named_namespace(client, FairQueueNames(name).meta, DEFAULT_NAMESPACE)
    return FairQueue(client, name, namespace=namespace)


def _counts(shuffle: ShuffleQueue, group: str, options: argparse.Namespace) -> dict[str, Any]:
    """Count a group's messages. A group that has not read yet gets all of them."""
    if group in shuffle.groups():
        most = MOST_MESSAGES if options.dry_run else 0
        seen = shuffle.stats(group, most_messages=most)
        counts = {name: seen[name] for name in _COUNTS}
        if seen["oldest_waiting_seconds"] is None:
            # Without a look at each, those that only another group still needs are counted too.
            counts["waiting"] = 0
    else:
        counts = {**dict.fromkeys(_COUNTS, 0), "waiting": shuffle.length()}
    moved = counts["waiting"] + counts["returned"] + (counts["dead"] if options.dead else 0)
    return {"queue": options.name, "to": options.to, "group": group, "would_move": moved, **counts}


def _tell(options: argparse.Namespace, counts: dict[str, Any]) -> int:
    if options.json:
        print_json(counts)
    else:
        LiveLine(is_quiet=True).print(
            f"would carry over {counts['would_move']:,} messages of group {counts['group']}; "
            + _left_text(counts)
        )
    return 0


def _left_text(left: dict[str, Any]) -> str:
    return ", ".join(f"{left[name]:,} {name}" for name in _COUNTS)


class Moving:
    """Carries messages over, and counts.

    Arguments:
        options: `slice`, `account`, `tenant`, `dead`, `wait`, `lease`, `remember`.

    Attributes: line; moved: messages that are in the FairQueue, or were; lapsed: those of them that
    were no longer ours to acknowledge; refused: what the FairQueue does not take, by id; trouble:
    a fault's text, or None.
    """

    def __init__(  # noqa: PLR0917 - one caller, which has these
        self,
        shuffle: ShuffleQueue,
        group: str,
        fair: FairQueue,
        course: Course,
        line: LiveLine,
        options: argparse.Namespace,
    ) -> None:
        self._shuffle, self._group, self._fair = shuffle, group, fair
        self._course, self.line, self._options = course, line, options
        self._consumer = f"move-{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._held: list[Message] = []
        self._left: dict[str, Any] | None = None
        self.moved = self.lapsed = self.in_doubt = 0
        self.refused: dict[str, str] = {}
        self.trouble: str | None = None
        self._recruiter: Recruiter | None = None
        if options.lease is not None:
            from workstealing.jobs import ShuffleQueueReaper

            self._recruiter = Recruiter(seconds=_SLICE_SECONDS)
            self._recruiter.install(ShuffleQueueReaper(shuffle, lease=options.lease), rate=1.0)
        # Longer than half a lease after the read, another may be about to have the slice.
        self._stale = (LEASE if options.lease is None else options.lease) / 2

    @property
    def status(self) -> int:
        """The exit status."""
        if self.trouble or self.refused or self._left is None:
            return FAILED
        asked = _COUNTS if self._options.dead else [name for name in _COUNTS if name != "dead"]
        return LEFT if any(self._left[name] for name in asked) else 0

    def run(self) -> None:
        """Carry slices over until the course ends; give back what was refused; count the rest."""
        try:
            while self._course.next():
                if not (self._move_slice() or (self._options.dead and self._move_dead())):
                    self._rest()
                self.line.show(self.text)
            if self._held:
                self._shuffle.nack(*self._held)
            self._left = _counts(self._shuffle, self._group, self._options)
        except (*FAULTS, Aborted) as error:
            self.trouble = said(error)
            self._course.end(FAULT)
        except WorkStealingError as error:
            if not self.moved:
                raise
            self.trouble = said(error)
            self._course.end(REFUSAL)

    def _rest(self) -> None:
        """Nothing can be read now: reap, and wait for what comes back, or end."""
        if self._has_reaped():
            return
        seen = _counts(self._shuffle, self._group, self._options)
        later = seen["delayed"] + seen["pending"] - len(self._held)
        if self._options.wait and (later > 0 or seen["waiting"] + seen["returned"]):
            self._course.pause(_POLL_SECONDS)
        else:
            self._course.end(EMPTY)

    def _has_reaped(self) -> bool:
        """Say whether slices of the reaper, if there is one, have handled anything."""
        if self._recruiter is None:
            return False
        before = self._reaped()
        # Each slice serves some of the streams, by chance.
        for _ in range(_REAPER_SLICES):
            self._recruiter.enlist()
        return self._reaped() > before

    def _reaped(self) -> int:
        jobs = {} if self._recruiter is None else self._recruiter.stats()["jobs"]
        return sum(int(each["items"]) for each in jobs.values())

    def _move_slice(self) -> bool:
        """Read, write and acknowledge a slice; say whether there was anything."""
        begun = time.monotonic()
        messages = self._shuffle.read_many(self._group, self._consumer, self._options.slice)
        if not messages:
            return False
        self._course.note_act()
        if time.monotonic() - begun > self._stale:
            # The process was stopped. A message that another has got by now is left to it.
            self._shuffle.nack(*messages)
            return True
        written = self._write(messages)
        acked = self._shuffle.ack(*written) if written else 0
        self.moved += len(written)
        self.lapsed += len(written) - acked
        self._held += [each for each in messages if each.id in self.refused]
        self._end_if_refused()
        return True

    def _move_dead(self) -> bool:
        """Write dead messages, and forget them where they were; say whether there were any."""
        page = self._shuffle.dead(self._group, self._options.slice + len(self.refused))
        some = [each for each in page if each.id not in self.refused][: self._options.slice]
        if not some:
            return False
        self._course.note_act()
        written = self._write(some)
        if written:
            gone = self._shuffle.discard(self._group, *[each.id for each in written])
            self.moved += len(written)
            self.lapsed += len(written) - gone
        self._end_if_refused()
        return True

    def _end_if_refused(self) -> None:
        if len(self.refused) > MOST_REFUSED:
            self._course.end(REFUSAL)

    def _write(self, messages: Sequence[Any]) -> list[Any]:
        """Write messages into the FairQueue, each once; return those that are there, or were.

        One that the queue does not take keeps no other back. After any other refusal nothing was
        written, and the messages are given back; if nobody knows, they stay in hand, so that the
        next mover finds them with their keys.
        """
        try:
            self._fair.write_many([self._new(each) for each in messages])
        except (ConfigurationError, QueueFull) as error:
            if len(messages) == 1:
                self.refused[messages[0].id] = said(error)
                return []
            return [one for each in messages for one in self._write([each])]
        except Exception as error:
            alive = [each for each in messages if isinstance(each, Message)]
            if not is_certain(error):
                self.in_doubt += len(messages)
            elif alive:
                self._shuffle.nack(*alive)
            raise
        return list(messages)

    def _new(self, message: Message | DeadMessage) -> NewMessage:
        tenant = message.tenant or self._options.tenant
        accounts = [of for tenants, of in self._options.account if tenants.fullmatch(tenant)]
        deadline = message.deadline
        return NewMessage(
            tenant,
            message.fields,
            None if deadline is None else deadline + _HALF_A_MS,
            message.tracking_id,
            accounts[0] if accounts else None,
            dedupe=(self._key(message), self._options.remember),
            dedupe_ended=True,
        )

    def _key(self, message: Message | DeadMessage) -> str:
        """Return the dedupe key of a message: by its place, and by what it says.

        A plain stream may have an id a second time, with another message.
        """
        digest = hashlib.sha256()
        place = (self._shuffle.keys.name, self._group, message.id, message.tenant or "")
        pairs = (part for pair in message.fields.items() for part in pair)
        for part in (*place, *pairs):
            raw = to_bytes(part)
            digest.update(b"%d:" % len(raw))
            digest.update(raw)
        return f"ws:moved:{digest.hexdigest()[:32]}"

    def facts(self) -> dict[str, Any]:
        """Return the counts as plain data; left is None if nobody knows."""
        left = self._left
        return {
            "queue": self._options.name,
            "to": self._options.to,
            "group": self._group,
            "seconds": self._course.elapsed,
            "moved": self.moved,
            "lapsed": self.lapsed,
            "in_doubt": self.in_doubt,
            "refused": self.refused,
            "left": None if left is None else {name: left[name] for name in _COUNTS},
            "ended_by": self._course.ended_by,
            "trouble": self.trouble,
        }

    def text(self) -> str:
        """Return the counts for people."""
        parts = [f"! {self.trouble}"] if self.trouble else []
        many = f"{self.moved:,} message{'' if self.moved == 1 else 's'}"
        where = f"{self._options.name} to {self._options.to}"
        parts.append(f"carried {many} over from {where} in {spell(self._course.elapsed)}")
        if self.lapsed:
            parts.append(f"{self.lapsed:,} were no longer ours: another may have had them too")
        if self.in_doubt:
            parts.append(
                f"nobody knows of {self.in_doubt:,}: they are pending here, and are not written"
                " twice when they come back"
            )
        for number, why in list(self.refused.items())[:1]:
            parts.append(f"{len(self.refused):,} refused, {number} because {why}")
        if self._left is not None:
            parts.append(f"left: {_left_text(self._left)}")
        return "; ".join(parts)
