"""`workstealing queue NAME`: look at a queue of either kind, once or live.

A look has the queue's state as plain data, for JSON, and draws its tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import ResponseError

from workstealing.cli.arguments import SHUFFLE, TIME
from workstealing.cli.clients import (
    FAULTS,
    add_url_option,
    cassandra_at,
    cassandra_faults,
    client_at,
    said,
)
from workstealing.cli.live import add_interval_option, add_times_option, draw, repeat
from workstealing.cli.output import (
    Picture,
    add_json_option,
    figure,
    list_picture,
    listed,
    print_json,
    printable,
    say,
)
from workstealing.clock import spell
from workstealing.errors import ConfigurationError
from workstealing.structures import ShuffleQueue
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.stats import percentile
from workstealing.structures.time_shard_queue import (
    CassandraStore,
    RedisStore,
    Rotation,
    TimeShardQueue,
)
from workstealing.structures.time_shard_queue.redis_store import layout_key, read_rotation

if TYPE_CHECKING:
    from workstealing.cli.output import Picture


MOST_MESSAGES = 2000
"""How many messages a look reads to tell the tenants apart: it may come every second."""

LISTED = 5
"""How many of the dead or overdue messages a look lists, the oldest first."""

ROWS = 32
TENANTS = 10
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_COUNTS = ("waiting", "pending", "returned", "delayed")
_TIME_COUNTS = ("waiting", "due", "leased", "consumed", "dead")


class ShuffleLook:
    """Looks at a ShuffleQueue.

    Arguments:
        groups: it, None: all of them.
    """

    faults = FAULTS

    def __init__(self, client: Any, name: bytes, groups: Sequence[str] | None) -> None:
        self._queue: ShuffleQueue = ShuffleQueue(client, name)
        self._name = as_text(name)
        self._groups = groups

    def look(self) -> dict[str, Any]:
        """Ask each group, at the cost of `ShuffleQueue.stats`."""
        named = self._groups
        groups = self._queue.groups() if named is None else [as_text(each) for each in named]
        stats = [self._queue.stats(group, most_messages=MOST_MESSAGES) for group in groups]
        for each in stats:
            delays = each["pickup_delay_ms"]
            each["pickup_delay"] = {name: percentile(delays, of) for name, of in SHARES.items()}
            page = self._queue.dead(each["group"], LISTED)
            each["dead_messages"] = listed(page, "id", "tenant", "attempts", "set_aside")
        length = stats[0]["length"] if stats else self._queue.length()
        overdue = listed(self._queue.overdue(LISTED), "id", "tracking_id", "deadline")
        return {
            "queue": self._name,
            "kind": SHUFFLE,
            "length": length,
            "overdue": overdue,
            "groups": stats,
        }

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return a headline, and for each group its streams and its tenants."""
        length, groups = seen["length"], seen["groups"]
        what = f"ShuffleQueue {seen['queue']}: {length:,} message{'' if length == 1 else 's'}"
        if not groups:
            nobody = Picture(f"{what}, and no group has read yet")
            return [nobody, *list_picture("messages past their deadline", seen["overdue"])]
        made = [Picture(what), *list_picture("messages past their deadline", seen["overdue"])]
        for group in groups:
            made += [_streams(group), *_tenants(group)]
            made += list_picture(f"dead messages of {group['group']}", group["dead_messages"])
        return made


class TimeLook:
    """Looks at a TimeShardQueue.

    Arguments:
        rotation: None: there is no queue yet.
        faults: see `QueueLook`.
    """

    def __init__(
        self,
        store: Any,
        name: bytes,
        rotation: Rotation | None,
        faults: tuple[type[Exception], ...] = FAULTS,
    ) -> None:
        self.faults = faults
        known: dict[str, Any] = {}
        if rotation is not None:
            known = {"shards": rotation.time_shards, "period": rotation.period_ms / 1000}
        self._queue: TimeShardQueue = TimeShardQueue(store, name, **known)

    @classmethod
    def on_redis(cls, client: Any, name: bytes) -> TimeLook:
        """Return a look at a queue of a Redis, made as its own layout says. One round trip."""
        key = layout_key(name)
        try:
            layout = client.hgetall(key)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            # As foreign as another program's hash.
            layout = {"structure": ""}
        found = read_rotation(key, layout)
        return cls(RedisStore(client), name, None if found is None else found.own)

    @classmethod
    def on_cassandra(cls, store: CassandraStore, name: bytes) -> TimeLook:
        """Return a look at a queue of a table. One round trip. Raises: ConfigurationError."""
        faults = cassandra_faults()
        try:
            rotation = store.run(store.bind(name, Rotation(1, 1000)).open(only_read=True))
        except faults as error:
            raise ConfigurationError(f"{store.table} cannot be read: {said(error)}") from error
        if rotation is None:
            raise ConfigurationError(
                f"there is no queue {as_text(name)!r} in {store.table}: check the name and"
                " --cassandra"
            )
        return cls(store, name, rotation, faults)

    def look(self) -> dict[str, Any]:
        """Count the messages of each time shard, at the cost of `stats` and `dead`."""
        rotation = self._queue.rotation
        shards = [{**each._asdict(), "total": each.total} for each in self._queue.stats()]
        together = {name: sum(each[name] for each in shards) for name in (*_TIME_COUNTS, "total")}
        return {
            "queue": self._queue.name,
            "kind": TIME,
            "period_seconds": rotation.period_ms / 1000,
            **together,
            "overdue_seconds": max(each["overdue_seconds"] for each in shards),
            "time_shards": shards,
            "dead_messages": listed(
                self._queue.dead(LISTED), "id", "consumer", "attempts", "since"
            ),
        }

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return a row for each time shard, and one for all."""
        total, overdue = seen["total"], seen["overdue_seconds"]
        parts = [f"TimeShardQueue {seen['queue']}: {total:,} message{'' if total == 1 else 's'}"]
        parts += [f"the oldest is overdue by {spell(overdue)}"] if overdue else []
        parts.append(f"a turn is {figure(seen['period_seconds'])} s")
        rows = [
            (str(each["time_shard"]), each["role"], *_time_cells(each))
            for each in seen["time_shards"]
        ]
        rows.append(("all", "", *_time_cells(seen)))
        headings = ("time shard", "role now", *_TIME_COUNTS, "total", "overdue")
        bad = frozenset(n for n, each in enumerate(seen["time_shards"]) if each["dead"])
        made = [Picture("; ".join(parts), headings, rows, left=2, bad=bad)]
        return made + list_picture("dead messages", seen["dead_messages"])


def _streams(group: dict[str, Any]) -> Picture:
    counts = ", ".join(f"{group[name]:,} {name}" for name in (*_COUNTS, "dead"))
    oldest = group["oldest_waiting_seconds"]
    parts = [f"group {group['group']}: {counts}"]
    parts += [] if oldest is None else [f"the oldest has waited {spell(oldest)}"]
    delays = group["pickup_delay"].items()
    known = [f"{spell(ms / 1000)} ({100 * SHARES[name]:g} %)" for name, ms in delays if ms]
    parts += [f"picked up within {', '.join(known)}"] if known else []
    streams = dict(sorted(group["streams"].items()))
    hidden = len(streams) - ROWS
    if hidden > 0:
        longest = sorted(streams, key=lambda number: -streams[number]["length"])[:ROWS]
        streams = {number: streams[number] for number in sorted(longest)}
        parts.append(f"the {ROWS} longest of {len(streams) + hidden} streams")
    rows = [(str(number), *_cells(of)) for number, of in streams.items()]
    if group["legacy"] is not None:
        rows.append(("default", *_cells(group["legacy"])))
    if len(rows) > 1:
        rows.append(("all", *_cells(group)))
    return Picture("; ".join(parts), ("stream", *_COUNTS, "total"), rows)


def _cells(of: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{of[name]:,}" for name in (*_COUNTS, "length"))


def _tenants(group: dict[str, Any]) -> list[Picture]:
    tenants = {name: of for name, of in group["tenants"].items() if any(of.values())}
    most = sorted(tenants, key=lambda name: -sum(tenants[name].values()))[:TENANTS]
    if not most:
        return []
    which = "" if len(most) == len(tenants) else f" with the most of {figure(len(tenants))}"
    sampled = "" if group["exact"] else f", among the oldest {MOST_MESSAGES:,} messages"
    rows = [
        ("-" if name is None else name, *(f"{tenants[name][count]:,}" for count in _COUNTS))
        for name in most
    ]
    return [Picture(f"tenants{which}{sampled}", ("tenant", *_COUNTS), rows)]


def _time_cells(of: dict[str, Any]) -> tuple[str, ...]:
    counts = (f"{of[name]:,}" for name in (*_TIME_COUNTS, "total"))
    return (*counts, spell(of["overdue_seconds"]) if of["overdue_seconds"] else "-")


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
