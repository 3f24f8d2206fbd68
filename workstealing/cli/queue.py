"""`workstealing queue NAME`: look at a queue, once or live."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from workstealing.cli.clients import add_url_option, cassandra_at, client_at, said
from workstealing.cli.live import add_interval_option, add_times_option, draw, repeat
from workstealing.cli.output import add_json_option, print_json, printable, say
from workstealing.cli.values import SHUFFLE, TIME
from workstealing.errors import ConfigurationError

if TYPE_CHECKING:
    from workstealing.cli.output import Picture

FAILED = 1
KINDS = {SHUFFLE: "ShuffleQueue", TIME: "TimeShardQueue"}

DESCRIPTION = """\
Look at a ShuffleQueue or a TimeShardQueue: how many messages wait, are pending and are dead in each
stream or time shard, how long the oldest has waited, and how long messages waited until a consumer
took them. The command changes nothing. A TimeShardQueue may be on Cassandra.
"""
EPILOG = """\
Ctrl-C ends it. A live look on a terminal needs pip install 'workstealing[cli]'. Where stdout is no
terminal, each look is printed below the last. With --json it prints one look as one object; with
--times too, one object with all looks. Exit status: 0, or 1 if the database failed at the last
look, or 2 for bad input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument("name", metavar="NAME", help="the queue's name")
    parser.add_argument(
        "--kind",
        choices=tuple(KINDS),
        help="shuffle: a ShuffleQueue; time: a TimeShardQueue (default: the kind that is there)",
    )
    where = parser.add_mutually_exclusive_group()
    add_url_option(where)
    where.add_argument(
        "--cassandra",
        metavar="URL",
        help="a TimeShardQueue's Cassandra: cassandra://user:password@host:port/keyspace/table"
        " (default: port 9042, the table time_shard_queue, no password)",
    )
    often = parser.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="look once and end")
    add_times_option(often)
    add_interval_option(parser)
    add_json_option(parser)
    parser.add_argument(
        "--group",
        action="append",
        metavar="GROUP",
        help="look at this group of a ShuffleQueue; may be repeated (default: all groups)",
    )


def run(options: argparse.Namespace) -> int:
    """Look, once or again and again.

    Returns: 0, or 1 if the database failed at the last look.

    Raises: WorkStealingError for bad input.
    """
    with ExitStack() as connections:
        watching = Watching(opened(options, connections))
        times = 1 if options.once else options.times
        if options.json:
            repeat(watching.look, options.interval, times or 1, watching.keep)
            looks = watching.looks
            print_json(looks[-1] if options.times is None else {"looks": looks})
        elif sys.stdout.isatty() and not options.once:
            draw(watching.look, options.interval, times, watching.drawn)
        else:
            repeat(watching.look, options.interval, times, lambda seen: say(watching.text(seen)))
    return FAILED if watching.trouble and times is not None else 0


class QueueLook(Protocol):
    """Looks at a queue of one kind."""

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """The errors by which the queue's database says that it cannot be asked."""
        ...

    def look(self) -> dict[str, Any]:
        """Return the state of the queue as plain data. Raises: errors of the queue."""
        ...

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return a look as tables."""
        ...


def opened(options: argparse.Namespace, connections: ExitStack) -> QueueLook:
    """Open the queue that the options name; its connections to Cassandra end with the stack.

    Returns: a look at the named kind, or else at the kind that is there. Raises: ConfigurationError
    if there is no such queue and no kind is named, for --group without a ShuffleQueue, and for a
    database that cannot be used. At most four round trips.
    """
    from workstealing.cli.queue_looks import ShuffleLook, TimeLook

    name = os.fsencode(options.name)
    kind = options.kind if options.cassandra is None else TIME
    _require_groups(options, kind)
    if options.cassandra is not None:
        if options.kind == SHUFFLE:
            raise ConfigurationError(
                "--cassandra has no ShuffleQueue: leave out --kind shuffle, or give --url"
            )
        store = connections.enter_context(cassandra_at(options.cassandra))
        return TimeLook.on_cassandra(store, name)
    client = client_at(options.url)
    kind = options.kind or _kind_of(client, name)
    _require_groups(options, kind)
    if kind == SHUFFLE:
        return ShuffleLook(client, name, options.group)
    return TimeLook.on_redis(client, name)


def _require_groups(options: argparse.Namespace, kind: str | None) -> None:
    if kind == TIME and options.group is not None:
        raise ConfigurationError(
            "--group is for a ShuffleQueue, and this is a TimeShardQueue: leave it out"
        )


def _kind_of(client: Any, name: bytes) -> str:
    from workstealing.structures.shuffle_queue.names import QueueNames
    from workstealing.structures.time_shard_queue.redis_store import layout_key

    names = QueueNames(name)
    # A ShuffleQueue also reads the plain stream of its name.
    is_shuffle = bool(client.exists(names.meta)) or client.type(names.legacy) in (
        b"stream",
        "stream",
    )
    is_time = bool(client.exists(layout_key(name)))
    text = printable(names.text)
    if is_shuffle and is_time:
        raise ConfigurationError(
            f"there is a ShuffleQueue and a TimeShardQueue {text!r}: say which by --kind"
        )
    if not is_shuffle and not is_time:
        raise ConfigurationError(
            f"there is no queue {text!r} in this Redis: check the name and --url"
        )
    return SHUFFLE if is_shuffle else TIME


class Watching:
    """Looks at a queue, and goes on where the database fails.

    Attributes: looks: all that `keep` was given; trouble: the failure of the last look, or None.
    """

    def __init__(self, queue: QueueLook) -> None:
        self._queue = queue
        self.looks: list[dict[str, Any]] = []
        self.trouble: str | None = None

    def look(self) -> dict[str, Any]:
        """Return a look, or the failure as "trouble". Raises: LayoutError."""
        at = time.time()
        try:
            seen = {"at": at, **self._queue.look(), "trouble": None}
        except self._queue.faults as error:
            seen = {"at": at, "trouble": said(error)}
        self.trouble = seen["trouble"]
        return seen

    def keep(self, seen: dict[str, Any]) -> None:
        """Remember a look."""
        self.looks.append(seen)

    def text(self, seen: dict[str, Any]) -> str:
        """Return a look for people."""
        if seen["trouble"]:
            return f"! {self._complaint(seen)}\n"
        return "\n\n".join(each.text() for each in self._queue.pictures(seen)) + "\n"

    def drawn(self, seen: dict[str, Any]) -> Any:
        """Return a look as an object that rich can draw."""
        from rich.console import Group
        from rich.text import Text

        clock = Text(time.strftime("%H:%M:%S", time.localtime(seen["at"])), style="bold")
        if seen["trouble"]:
            return Group(clock, Text(f"! {self._complaint(seen)}", style="red"))
        return Group(clock, *(each.drawn() for each in self._queue.pictures(seen)))

    def _complaint(self, seen: dict[str, Any]) -> str:
        return f"the queue could not be asked: {seen['trouble']}"
