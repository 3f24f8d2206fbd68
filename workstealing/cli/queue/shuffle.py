"""A ShuffleQueue, as the tools look at it, put into it and take from it."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from workstealing.cli.arguments import SHUFFLE
from workstealing.cli.output import Picture, figure, list_picture, listed
from workstealing.cli.queue.kind import (
    LEASE,
    LISTED,
    MOST_MESSAGES,
    Draft,
    InHand,
    OpenQueue,
    attempts_of,
    named_namespace,
)
from workstealing.clock import spell
from workstealing.errors import ConfigurationError
from workstealing.recruiting import Job
from workstealing.structures import Message, ShuffleQueue
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.names import QueueNames
from workstealing.structures.shuffle_queue.stats import percentile

ROWS = 32
TENANTS = 10
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_COUNTS = ("waiting", "pending", "returned", "delayed")

SHUFFLE_NAMESPACE = "shuffle_queues"

FIELD = "message"
"""The field that has the body of a message which a tool has put."""
TENANT, GROUP = "tenant", "consumers"
"""Where no option names others."""


class OpenShuffleQueue(OpenQueue):
    """A ShuffleQueue.

    Arguments:
        options: `group`: those to look at, None: all; or of a consumer `group`, `consumer`: its
            name, `enlist`: whether it enlists for the reaper, and `lease`: the reaper's.

    Raises: ConfigurationError for a lease without a reaper.
    """

    kind = SHUFFLE
    called = "ShuffleQueue"
    own_options = frozenset({"group", "tenant"})

    def __init__(self, client: Any, name: bytes, options: argparse.Namespace) -> None:
        namespace = named_namespace(client, QueueNames(name).meta, SHUFFLE_NAMESPACE)
        self._queue: ShuffleQueue = ShuffleQueue(
            client, name, namespace=namespace, **attempts_of(options)
        )
        self.name = as_text(name)
        self._options = options
        self._enlists = getattr(options, "enlist", None) is not None
        self._lease: float | None = getattr(options, "lease", None)
        if self._lease is not None and not self._enlists:
            raise ConfigurationError(
                "the lease of a ShuffleQueue is its reaper's, and no reaper was asked for: give"
                " --enlist, too, or leave --lease out"
            )

    @classmethod
    def is_there(cls, client: Any, name: bytes) -> bool:
        """Say whether there is such a queue; see `OpenQueue`."""
        names = QueueNames(name)
        # It also reads the plain stream of its name.
        plain = (b"stream", "stream")
        return bool(client.exists(names.meta)) or client.type(names.legacy) in plain

    @classmethod
    def on_redis(cls, client: Any, name: bytes, options: argparse.Namespace) -> OpenShuffleQueue:
        """Open a queue of a Redis, in the namespace that it names. One round trip."""
        return cls(client, name, options)

    def look(self) -> dict[str, Any]:
        """Ask each group, at the cost of `ShuffleQueue.stats`."""
        named = self._options.group
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
            "queue": self.name,
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

    def begin(self) -> None:
        """See that the queue is ours, if there is one; the first message begins it."""
        self._queue.groups()

    def put(self, draft: Draft) -> str:
        """Put a message of one field for its tenant; see `OpenQueue`."""
        return self._queue.write(draft.tenant or TENANT, {FIELD: draft.body})

    def take(self, seconds: float) -> InHand | None:
        """Read a message, and wait for one; see `OpenQueue`."""
        message = self._queue.read(self._group, self._options.consumer, block=seconds)
        return in_hand(message)

    def finish(self, message: InHand) -> bool:
        """Acknowledge a message; see `OpenQueue`."""
        return self._queue.ack(message.own) == 1

    def give_back(self, message: InHand, seconds: float) -> bool:
        """Give a message back, by `nack`; see `OpenQueue`."""
        return self._queue.nack(message.own, delay=seconds) == 1

    @property
    def lease(self) -> float:
        """That of the reaper; without one nobody takes a message from its consumer."""
        if not self._enlists:
            return math.inf
        return LEASE if self._lease is None else self._lease

    def job(self) -> Job:
        """Return the reaper; see `OpenQueue`."""
        from workstealing.jobs import ShuffleQueueReaper

        return ShuffleQueueReaper(self._queue, lease=self.lease)

    def left(self) -> int:
        """Count what waits for the group; with a reaper also what a consumer has not settled."""
        stats = self._queue.stats(self._group, most_messages=0)
        pending = stats["pending"] if self._enlists else 0
        return int(pending + sum(stats[name] for name in ("waiting", "returned", "delayed")))

    @property
    def _group(self) -> str:
        group: str | None = self._options.group
        return GROUP if group is None else group


def in_hand(message: Message | None) -> InHand | None:
    """Return a delivered message as the tools have it; None for none."""
    if message is None:
        return None
    return InHand(
        message.id,
        body_of(message.fields),
        message.tenant,
        message.attempts,
        message.pickup_delay_ms / 1000,
        message,
    )


def body_of(fields: dict[Any, Any]) -> str:
    """Return a message's one field that a tool has put, or else all its fields as JSON."""
    texts = {as_text(name): as_text(value) for name, value in fields.items()}
    return texts[FIELD] if list(texts) == [FIELD] else json.dumps(texts)


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
