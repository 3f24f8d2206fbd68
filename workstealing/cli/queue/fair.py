"""A FairQueue, as the tools look at it, put into it and take from it."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from workstealing.cli.arguments import FAIR
from workstealing.cli.output import Picture, list_picture, listed
from workstealing.cli.queue.kind import (
    LEASE,
    LISTED,
    Draft,
    InHand,
    OpenQueue,
    attempts_of,
    named_namespace,
)
from workstealing.cli.queue.shuffle import FIELD, SHARES, TENANT, in_hand
from workstealing.clock import spell
from workstealing.recruiting import Job
from workstealing.structures import FairQueue
from workstealing.structures.fair_queue.names import FairQueueNames
from workstealing.structures.fair_queue.rules import AccountState
from workstealing.structures.layout import as_text
from workstealing.structures.shuffle_queue.stats import percentile

MOST_ACCOUNTS = 1000
"""How many accounts a look asks for: it may come every second."""
ACCOUNTS = 20
DEFAULT_NAMESPACE = "fair_queues"
_COUNTS = ("waiting", "pending", "returned", "delayed", "dead")


class OpenFairQueue(OpenQueue):
    """A FairQueue.

    Arguments:
        options: of a consumer `consumer`: its name, and `lease`.
    """

    kind = FAIR
    called = "FairQueue"
    own_options = frozenset({"tenant"})

    def __init__(self, client: Any, name: bytes, options: argparse.Namespace) -> None:
        lease = getattr(options, "lease", None)
        self._queue: FairQueue = FairQueue(
            client,
            name,
            LEASE if lease is None else lease,
            namespace=named_namespace(client, FairQueueNames(name).meta, DEFAULT_NAMESPACE),
            **attempts_of(options),
        )
        self.name = as_text(name)
        self._options = options

    @classmethod
    def is_there(cls, client: Any, name: bytes) -> bool:
        """Say whether there is such a queue; see `OpenQueue`."""
        return bool(client.exists(FairQueueNames(name).meta))

    @classmethod
    def on_redis(cls, client: Any, name: bytes, options: argparse.Namespace) -> OpenFairQueue:
        """Open a queue of a Redis, in the namespace that it names. One round trip."""
        return cls(client, name, options)

    def look(self) -> dict[str, Any]:
        """Ask for the queue's state, at the cost of `FairQueue.stats`."""
        seen = self._queue.stats(MOST_ACCOUNTS)
        delays = seen["pickup_delay_ms"]
        seen["pickup_delay"] = {name: percentile(delays, of) for name, of in SHARES.items()}
        seen["accounts"] = [
            dataclasses.asdict(each) for each in list(seen["accounts"].values())[:ACCOUNTS]
        ]
        seen["dead_messages"] = listed(
            self._queue.dead(LISTED), "id", "tenant", "account", "attempts", "set_aside"
        )
        overdue = listed(self._queue.overdue(LISTED), "id", "tracking_id", "deadline")
        # As of the other kinds: those that are still there, and not how many were dropped.
        dropped = seen["overdue"]
        own = {"queue": self.name, "kind": FAIR, "overdue": overdue, "dropped": dropped}
        return {**seen, **own}

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return a headline, and the accounts with the most waiting messages."""
        length = seen["length"]
        parts = [f"FairQueue {seen['queue']}: {length:,} message{'' if length == 1 else 's'}"]
        parts.append(", ".join(f"{seen[name]:,} {name}" for name in _COUNTS))
        oldest = seen["oldest_waiting_seconds"]
        parts += [] if oldest is None else [f"the oldest has waited {spell(oldest)}"]
        delays = seen["pickup_delay"].items()
        known = [f"{spell(ms / 1000)} ({100 * SHARES[name]:g} %)" for name, ms in delays if ms]
        parts += [f"picked up within {', '.join(known)}"] if known else []
        made = [Picture("; ".join(parts))]
        states = [AccountState(**each) for each in seen["accounts"]]
        if states:
            of = seen["known_accounts"]
            which = "" if len(states) == of else f", the {len(states)} with the most of {of:,}"
            columns = ("account", "waiting", "in flight", "cap", "weight", "place", "oldest")
            made.append(Picture(f"accounts{which}", columns, [_row(each) for each in states]))
        made += list_picture("messages past their deadline", seen["overdue"])
        return [*made, *list_picture("dead messages", seen["dead_messages"])]

    def begin(self) -> None:
        """See that the queue is ours, if there is one; the first message begins it."""
        self._queue.length()

    def put(self, draft: Draft) -> str:
        """Put a message of one field for its tenant, which is its account; see `OpenQueue`."""
        return self._queue.write(draft.tenant or TENANT, {FIELD: draft.body})

    def take(self, seconds: float) -> InHand | None:
        """Read a message, and wait for one; see `OpenQueue`."""
        message = self._queue.read(self._options.consumer, block=seconds)
        return in_hand(message)

    def finish(self, message: InHand) -> bool:
        """Acknowledge a message; see `OpenQueue`."""
        return self._queue.ack(message.own) == 1

    def give_back(self, message: InHand, seconds: float) -> bool:
        """Give a message back, by `nack`; see `OpenQueue`."""
        return self._queue.nack(message.own, delay=seconds) == 1

    @property
    def lease(self) -> float:
        """The lease with which this process reads."""
        return self._queue.lease

    def job(self) -> Job:
        """Return the reaper; see `OpenQueue`."""
        from workstealing.jobs import FairQueueReaper

        return FairQueueReaper(self._queue)

    def left(self) -> int:
        """Count all messages: each comes back, at the end of its lease if not sooner."""
        return self._queue.length()


def _row(state: AccountState) -> tuple[str, ...]:
    age = state.oldest_waiting_seconds
    cap = state.max_in_flight
    return (
        state.account,
        f"{state.waiting:,}",
        f"{state.in_flight:,}",
        "-" if cap is None else f"{cap:,}",
        f"{state.weight:g}",
        "paused" if state.paused else state.place,
        "-" if age is None else spell(age),
    )
