"""A ShuffleQueue as the actions of `workstealing queue` use it."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from workstealing.cli.clients import TIMEOUT_SECONDS
from workstealing.cli.output import figure, printable, spell
from workstealing.cli.queue_opening import SHUFFLE
from workstealing.cli.queue_picture import LISTED, Picture, list_picture, listed
from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError
from workstealing.store.budget import Budget
from workstealing.structures import ShuffleQueue
from workstealing.structures.namespaces.due_index import DueIndex
from workstealing.structures.shuffle_queue.message import as_text
from workstealing.structures.shuffle_queue.stats import percentile

if TYPE_CHECKING:
    from workstealing.structures.shuffle_queue.message import Message

MOST_MESSAGES = 2000
"""How many messages a look reads to tell the tenants apart: it may come every second."""

ROWS = 32
TENANTS = 10
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
_COUNTS = ("waiting", "pending", "returned", "delayed")


class ShuffleSide:
    """Puts, takes and looks. Arguments: client; name; options of the action."""

    def __init__(self, client: Any, name: bytes, options: argparse.Namespace) -> None:
        settings = {
            "streams": getattr(options, "streams", None),
            "streams_per_tenant": getattr(options, "streams_per_tenant", None),
            "ttl": options.ttl,
            "namespace": options.namespace,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        self._client, self._options = client, options
        self._queue: ShuffleQueue = ShuffleQueue(client, name, **given)
        self._name = as_text(name)
        if options.action == "produce" and not options.tenant:
            raise ConfigurationError(
                "whose messages are these? a ShuffleQueue is fair to tenants: give --tenant"
            )
        if options.action == "consume" and options.group is None:
            raise ConfigurationError(
                "a ShuffleQueue is read by groups, of which each gets every message: give --group"
            )
        if options.action != "observe":
            self._require_namespace()
        self._tenants = itertools.cycle(map(os.fsencode, getattr(options, "tenant", None) or ()))
        self._put = 0

    def _require_namespace(self) -> None:
        """Refuse a queue that stands in another namespace, whose job knows when it is in use.

        Written down here too, it would be deleted once only this namespace finds it idle. Errors:
        ConfigurationError. At most four round trips.
        """
        queue = self._queue
        if not self._client.exists(queue.keys.meta):
            return
        index = DueIndex(queue.twin, queue.names, 0, random.random, SYSTEM_CLOCK)
        layout = index.layout(Budget(TIMEOUT_SECONDS, timeout=TIMEOUT_SECONDS))
        due = None if layout is None else queue.names.due(layout.shard_of(queue.keys.slot))
        if due is None or self._client.zscore(due, queue.keys.name) is None:
            raise ConfigurationError(
                f"the queue {printable(self._name)!r} is not in the namespace {queue.namespace}:"
                " give --namespace as its application does"
            )

    def put(self, message: bytes) -> dict[str, Any]:
        """Write a message for the next tenant. One round trip, two with a deadline from now on."""
        self._put += 1
        fields = self._fields(message) if self._options.fields else {"message": message}
        tenant, deadline = next(self._tenants), self._deadline()
        written = self._queue.write(tenant, fields, deadline=deadline)
        return {"id": as_text(written), "tenant": as_text(tenant), "deadline": deadline}

    def take(self, seconds: float) -> Message | None:
        """Return a message, or None when none has come for so long."""
        options = self._options
        return self._queue.read(options.group, options.consumer, block_ms=round(1000 * seconds))

    def shown(self, taken: Message) -> dict[str, Any]:
        """Return what is printed of a message."""
        return {
            "id": taken.id,
            "tenant": taken.tenant,
            "fields": {as_text(name): as_text(value) for name, value in taken.fields.items()},
            "group": taken.group,
            "consumer": taken.consumer,
            "attempts": taken.attempts,
            "pickup_delay_ms": taken.pickup_delay_ms,
            "deadline": taken.deadline,
            "tracking_id": taken.tracking_id,
            "stream": taken.stream,
        }

    def line(self, shown: dict[str, Any]) -> str:
        """Return id, tenant and message; and the attempt, if it is not the first."""
        fields = shown["fields"]
        is_plain = list(fields) == ["message"]
        text = fields["message"] if is_plain else json.dumps(fields, ensure_ascii=False)
        again = f"  (attempt {shown['attempts']})" if shown["attempts"] > 1 else ""
        return f"{shown['id']}  {shown['tenant'] or '-'}  {text}{again}"

    def ack(self, taken: Message) -> None:
        """Say that a message is done. One round trip."""
        self._queue.ack(taken)

    def give_back(self, taken: Message, delay: float | None) -> None:
        """Let a message come again, after so many seconds. One round trip."""
        self._queue.nack(taken, delay=delay or 0.0)

    def look(self) -> dict[str, Any]:
        """Ask each group; see `ShuffleQueue.stats` for what that costs."""
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

    def _fields(self, message: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(message)
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or not fields:
            raise ConfigurationError(
                f"message {self._put} is no JSON object with fields, as --fields wants it; what"
                " came before it has been written"
            )
        return {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in fields.items()
        }

    def _deadline(self) -> float | None:
        deadline = self._options.deadline
        if isinstance(deadline, timedelta):
            # By the clock that will judge it.
            seconds, microseconds = self._client.time()
            return float(seconds + microseconds / 1e6 + deadline.total_seconds())
        return deadline  # type: ignore[no-any-return]


def _streams(group: dict[str, Any]) -> Picture:
    counts = ", ".join(f"{group[name]:,} {name}" for name in (*_COUNTS, "dead"))
    oldest = group["oldest_waiting_s"]
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
