"""Streams: producers and two groups of consumers, by the commands that their readers send."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from redis.exceptions import ResponseError

from support.killed_journal import Work
from support.owners_at_work.owner import Owner
from workstealing.jobs import StreamLeftovers
from workstealing.jobs.leftovers import LIVE, Item, Leftovers, Verdicts, key_removed, look
from workstealing.jobs.stream_leftovers import AcknowledgedEntries

STREAMS, GROUPS = ("events:1", "events:2"), ("g", "h")
# A consumer counts as gone after a second by the server's clock, whether its process lives or not:
# it loses nothing, as the server makes it anew.
IDLE = 1.0
TAKEN_OVER_MS = 30


class Streams(Owner):
    """Streams that two groups read."""

    name = "streams"
    processes: ClassVar[Mapping[str, int]] = {"produces": 1, "consumes": 3}

    def begin(self, client: Any) -> None:
        """Make the groups."""
        for stream in STREAMS:
            for group in GROUPS:
                client.xgroup_create(stream, group, id="0", mkstream=True)

    def jobs(self, client: Any) -> list[Any]:
        """Return the job."""
        if self.planted:
            return [Leftovers(client, [Delivered("events:*")], name="p", dry_run=False)]
        return [StreamLeftovers(client, "events:*", idle=IDLE, dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Add an entry, or read some, and take over what the dead have left."""
        client = self.connected()

        def produce() -> None:
            stream = work.draw.choice(STREAMS)
            number = client.xadd(stream, {"n": 1}).decode()
            for group in GROUPS:
                work.journal.live(f"{stream} {group} {number}")

        name = f"c{work.life}"
        return produce if role == "produces" else lambda: consume(client, name, work)

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Return the entries that a group has still to acknowledge, and that are not there."""
        names = list(items)
        with client.pipeline(transaction=False) as block:
            for each in names:
                stream, _, number = each.split()
                block.xrange(stream, number, number)
            found = block.execute()
        return [name for name, there in zip(names, found, strict=True) if not there]

    def finish(self, client: Any, work: Work) -> None:
        """Read all that is left, until all consumers are idle."""
        while any(
            each["pending"] or each["lag"] for name in STREAMS for each in client.xinfo_groups(name)
        ):
            consume(client, "last", work, taken_over_ms=0)
        time.sleep(IDLE + 0.1)

    def left(self, client: Any) -> list[str]:
        """Return the entries, which all have been acknowledged, and the consumers."""
        left = [f"{client.xlen(each)} entries in {each}" for each in STREAMS if client.xlen(each)]
        for stream in STREAMS:
            for group in GROUPS:
                left += [f"{each['name']!r}" for each in client.xinfo_consumers(stream, group)]
        return left


def consume(client: Any, name: str, work: Work, taken_over_ms: int = TAKEN_OVER_MS) -> None:
    """Read some entries of a stream for a group, and acknowledge them."""
    stream, group = work.draw.choice(STREAMS), work.draw.choice(GROUPS)
    _, claimed, *gone = client.xautoclaim(stream, group, name, taken_over_ms, count=20)
    # Redis 7 names those that were pending and are no more in the stream.
    work.is_there(not any(gone), f"pending entries {gone} of {stream}")
    fresh = client.xreadgroup(group, name, {stream: ">"}, count=10)
    some = [*claimed, *(fresh[0][1] if fresh else [])]
    for number, fields in some:
        work.is_there(fields, f"{number!r} of {stream}")
        if work.draw.random() < 0.9:
            work.journal.over(f"{stream} {group} {number.decode()}")
            client.xack(stream, group, number)


class Delivered(AcknowledgedEntries):
    """An unsafe rule: a stream may go when each group was given all of it, acknowledged or not."""

    def verdict(self, item: Item) -> Verdicts:
        """Judge by the last id that was given."""
        try:
            groups, last = yield look(
                ("XINFO", "GROUPS", item.key),
                ("XREVRANGE", item.key, "+", "-", "COUNT", 1),
                watch=item.key,
            )
        except ResponseError:
            return LIVE
        given = [dict(zip(each[::2], each[1::2], strict=True)) for each in groups]
        if not last or any(each[b"last-delivered-id"] != last[0][0] for each in given):
            return LIVE
        return key_removed(item.key)
