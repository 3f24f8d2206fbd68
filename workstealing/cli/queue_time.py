"""A TimeShardQueue as the actions of `workstealing queue` use it."""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from workstealing.cli.output import figure, printable, spell
from workstealing.cli.queue_opening import TIME
from workstealing.cli.queue_picture import LISTED, Picture, list_picture, listed
from workstealing.structures.time_shard_queue import RedisStore, TimeShardQueue
from workstealing.structures.time_shard_queue.names import layout_key, parse

if TYPE_CHECKING:
    from workstealing.structures.time_shard_queue.message import Taken

LEASE_SECONDS = 60.0
LOOK_EVERY = 0.25
"""A TimeShardQueue wakes nobody: so many seconds after an empty look comes the next."""

_COUNTS = ("waiting", "due", "leased", "consumed", "dead")


class TimeSide:
    """Puts, takes and looks. Arguments: client; name; options of the action."""

    def __init__(self, client: Any, name: bytes, options: argparse.Namespace) -> None:
        self._client, self._key, self._options = client, layout_key(name), options
        settings = {"shards": options.time_shards, "period_s": options.period}
        found = parse(self._key, self._layout())
        known = {}
        if found is not None:
            known = {"shards": found.time_shards, "period_s": found.period_ms / 1000}
        given = {name: value for name, value in settings.items() if value is not None}
        self._queue: TimeShardQueue = TimeShardQueue(RedisStore(client), name, **{**known, **given})
        # The queue would refuse it too, in the words of a program.
        self._queue.rotation.require(
            found, printable(self._queue.name), shards="--time-shards ", period="--period "
        )

    def _layout(self) -> Any:
        try:
            return self._client.hgetall(self._key)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            # As foreign as a hash of somebody else's.
            return {"structure": ""}

    def put(self, message: bytes) -> dict[str, Any]:
        """Put a message in, due when --due says. One round trip."""
        due = self._options.due
        written = self._queue.put(message, due)
        after = due.total_seconds() if isinstance(due, timedelta) else None
        return {"id": written, "due": due if after is None else None, "due_after_s": after}

    def take(self, seconds: float) -> Taken | None:
        """Return a message, or None when none has come for so long."""
        options, until = self._options, time.monotonic() + seconds
        lease = LEASE_SECONDS if options.lease is None else options.lease
        while True:
            taken: Taken | None = self._queue.take(
                options.consumer, lease_s=lease, drain_all=bool(options.drain_all)
            )
            left = until - time.monotonic()
            if taken is not None or left <= 0:
                return taken
            time.sleep(min(LOOK_EVERY, left))

    def shown(self, taken: Taken) -> dict[str, Any]:
        """Return what is printed of a message."""
        return {
            "id": taken.id,
            "message": taken.message.decode(errors="backslashreplace"),
            "due": taken.due.timestamp(),
            "consumer": self._options.consumer,
            "attempts": taken.attempts,
            "lease_end": taken.lease_end.timestamp(),
            "time_shard": taken.time_shard,
        }

    def line(self, shown: dict[str, Any]) -> str:
        """Return id and message; and the attempt, if it is not the first."""
        again = f"  (attempt {shown['attempts']})" if shown["attempts"] > 1 else ""
        return f"{shown['id']}  {shown['message']}{again}"

    def ack(self, taken: Taken) -> None:
        """Say that a message is done. One round trip."""
        self._queue.ack(taken)

    def give_back(self, taken: Taken, delay: float | None) -> None:
        """Let a message come again, after so many seconds. One round trip."""
        self._queue.release(taken, None if delay is None else timedelta(seconds=delay))

    def look(self) -> dict[str, Any]:
        """Count what is in each time shard; a round trip, and one a time shard for the dead."""
        rotation = self._queue.rotation
        shards = [{**each._asdict(), "total": each.total} for each in self._queue.observe()]
        together = {name: sum(each[name] for each in shards) for name in (*_COUNTS, "total")}
        return {
            "queue": self._queue.name,
            "kind": TIME,
            "period_s": rotation.period_ms / 1000,
            **together,
            "overdue_s": max(each["overdue_s"] for each in shards),
            "time_shards": shards,
            "dead_messages": listed(
                self._queue.dead(LISTED), "id", "consumer", "attempts", "since"
            ),
        }

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return a row for each time shard, and one for all."""
        total, overdue = seen["total"], seen["overdue_s"]
        parts = [f"TimeShardQueue {seen['queue']}: {total:,} message{'' if total == 1 else 's'}"]
        parts += [f"the oldest is overdue by {spell(overdue)}"] if overdue else []
        parts.append(f"a turn is {figure(seen['period_s'])} s")
        rows = [
            (str(each["time_shard"]), each["role"], *_cells(each)) for each in seen["time_shards"]
        ]
        rows.append(("all", "", *_cells(seen)))
        headings = ("time shard", "role now", *_COUNTS, "total", "overdue")
        bad = frozenset(n for n, each in enumerate(seen["time_shards"]) if each["dead"])
        made = [Picture("; ".join(parts), headings, rows, left=2, bad=bad)]
        return made + list_picture("dead messages", seen["dead_messages"])


def _cells(of: dict[str, Any]) -> tuple[str, ...]:
    counts = (f"{of[name]:,}" for name in (*_COUNTS, "total"))
    return (*counts, spell(of["overdue_s"]) if of["overdue_s"] else "-")
