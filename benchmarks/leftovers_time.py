"""The garbage of other programs: recruits beside the owners' own cleanup, at the same time.

Two servers get the same writes. On one of them the owner's cleanup runs by a clock, as cron would
run it; on the other one callers enlist, and recruits clean up. Garbage x time is the number of
items that lie about, added up over each second that they do.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import redis
from figures import Figure, show
from servers import RedisServer, newest_redis

from workstealing import Recruiter
from workstealing.jobs import StreamLeftovers, TagSetLeftovers
from workstealing.jobs.leftovers import Leftovers
from workstealing.store.connection import SENT

SECONDS = 30.0
# Cron knows no period below a minute; it gets three times as often here.
CRON_SECONDS = 20.0
WRITES_PER_SECOND, CALLERS_PER_SECOND, RATE = 200, 400, 0.05
PAGE_SECONDS, KEPT_ENTRIES = 2, 1_000
SAMPLES_PER_SECOND = 5


@dataclass
class Owner:
    """A program that leaves garbage.

    Fields: name; write: its commands for the number of a write; clean: its own cleanup; garbage:
    counts the items that lie about; job: makes ours.
    """

    name: str
    write: Callable[[Any, int], None]
    clean: Callable[[Any], None]
    garbage: Callable[[Any], int]
    job: Callable[[Any], Leftovers]


def write_page(client: Any, number: int) -> None:
    """Cache a page under its tag, as cacheops does."""
    with client.pipeline() as pipe:
        pipe.set(f"page:{number}", "x", ex=PAGE_SECONDS)
        pipe.sadd(f"conj:shop:category={number % 20}", f"page:{number}")
        pipe.execute()


def reap_tags(client: Any) -> None:
    """Look through all tags, as cacheops' command reapconjs does: SSCAN, MGET, SREM."""
    for key in client.scan_iter("conj:*", count=1000):
        cursor = None
        while cursor != 0:
            cursor, members = client.sscan(key, cursor or 0, count=1000)
            there = client.mget(members) if members else ()
            gone = [each for each, value in zip(members, there, strict=True) if value is None]
            if gone:
                client.srem(key, *gone)


def dead_tags(client: Any) -> int:
    """Count the members whose pages have gone."""
    keys = client.keys("conj:*")
    members = sum(client.scard(each) for each in keys)
    return max(0, members - client.dbsize() + len(keys) + len(client.keys("*:ws:*")))


def write_order(client: Any, number: int) -> None:
    """Append an order; a reader acknowledges it at once."""
    if number == 0:
        client.xgroup_create("orders", "mailers", mkstream=True)
    client.xadd("orders", {"order": number})
    ((_, entries),) = client.xreadgroup("mailers", "m", {"orders": ">"}, count=1)
    client.xack("orders", "mailers", entries[0][0])


def trim_orders(client: Any) -> None:
    """Trim as cron jobs do, which know nothing of the readers."""
    client.xtrim("orders", maxlen=KEPT_ENTRIES, approximate=True)


OWNERS = (
    Owner(
        "tags",
        write_page,
        reap_tags,
        dead_tags,
        lambda client: TagSetLeftovers(client, dry_run=False, limit=200),
    ),
    Owner(
        "streams",
        write_order,
        trim_orders,
        lambda client: client.xlen("orders"),
        lambda client: StreamLeftovers(client, "orders", dry_run=False, limit=200),
    ),
)


class Side:
    """One server of the two.

    Arguments:
        clean: keeps it clean until it is told.
    """

    def __init__(
        self, server: RedisServer, owner: Owner, clean: Callable[[Any, threading.Event], int]
    ) -> None:
        self._server, self._owner, self._clean = server, owner, clean
        self.garbage_seconds = 0.0
        self.commands = 0
        self._end = threading.Event()
        works = (self._write, self._measure, self._keep_clean)
        self._threads = [threading.Thread(target=each, daemon=True) for each in works]

    def start(self) -> None:
        """Begin."""
        self._owner.write(self._server.client(), 0)
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """End."""
        self._end.set()
        for each in self._threads:
            each.join()

    def _write(self) -> None:
        client, due = self._server.client(), time.monotonic()
        number = 0
        while not self._end.wait(max(0.0, due - time.monotonic())):
            due += 1 / WRITES_PER_SECOND
            number += 1
            self._owner.write(client, number)

    def _measure(self) -> None:
        client = self._server.client()
        while not self._end.wait(1 / SAMPLES_PER_SECOND):
            self.garbage_seconds += self._owner.garbage(client) / SAMPLES_PER_SECOND

    def _keep_clean(self) -> None:
        self.commands = self._clean(self._server, self._end)


class Counting(redis.Redis):
    """A client that counts its commands."""

    sent = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Count a command, and send it."""
        self.sent += 1
        return super().execute_command(*args, **options)


def by_cron(owner: Owner) -> Callable[[Any, threading.Event], int]:
    """Return a function that runs the owner's cleanup by a clock; it returns its commands."""

    def clean(server: RedisServer, end: threading.Event) -> int:
        client = Counting(connection_pool=server.client().connection_pool)
        while not end.wait(CRON_SECONDS):
            owner.clean(client)
        return client.sent

    return clean


def by_recruits(owner: Owner) -> Callable[[Any, threading.Event], int]:
    """Return a function that lets callers enlist; it returns the recruits' commands."""

    def clean(server: RedisServer, end: threading.Event) -> int:
        recruiter = Recruiter()
        job = owner.job(server.client())
        recruiter.install(job, rate=RATE, seconds=0.05)
        sent, due = SENT.commands, time.monotonic()
        while not end.wait(max(0.0, due - time.monotonic())):
            due += 1 / CALLERS_PER_SECOND
            recruiter.enlist()
        return SENT.commands - sent

    return clean


def measure(seconds: float = SECONDS) -> list[Figure]:
    """Measure each owner's cleanup beside ours."""
    return [figure for owner in OWNERS for figure in _beside(owner, seconds)]


def _beside(owner: Owner, seconds: float) -> Iterator[Figure]:
    with newest_redis() as one, newest_redis() as other:
        ours = Side(one, owner, by_recruits(owner))
        theirs = Side(other, owner, by_cron(owner))
        for each in (ours, theirs):
            each.start()
        time.sleep(seconds)
        for each in (ours, theirs):
            each.stop()
    for name, mine, reference in (
        ("garbage_time", ours.garbage_seconds, theirs.garbage_seconds),
        ("commands", ours.commands, theirs.commands),
    ):
        ratio = round(mine / max(1, reference), 3)
        yield Figure(
            f"leftovers_{owner.name}_{name}",
            *(ratio,) * 3,
            1,
            f"the owner's cleanup, every {CRON_SECONDS:g} s",
            None,
            {"ours": round(mine), "reference": round(reference)},
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    show(measure(parser.parse_args().seconds))
