"""An archive whose tenants share a queue: one floods it, one cannot wait, and workers die.

The same traffic goes twice through the same workers: first all tenants share one stream, first
come, first served; then each has a few streams of its own, out of many. Workers enlist whenever
they have finished a message or found none: so the messages of the dead come back, and a queue that
nobody needs any more is deleted.

Run it from the checkout: `.venv/bin/python examples/tenants/tenants.py`
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from typing import Any, NamedTuple

from redis.exceptions import RedisClusterException, RedisError

from workstealing import Recruiter, connect
from workstealing.errors import ConfigurationError
from workstealing.jobs import QueueExpiry, ShuffleQueueReaper
from workstealing.recruiting.slice import OUTCOMES, spoken
from workstealing.structures import ShuffleQueue

GROUP = "workers"
WORKERS = 4
WORK_SECONDS = 0.004  # what a message takes
DEADLY = 0.01  # the share of the messages whose worker dies
IDLE_SECONDS = 0.5  # how long a message may be in somebody's hands
PATIENCE_SECONDS = 60.0
NAMESPACE = "example.tenants"


class Tenant(NamedTuple):
    """Who submits how many messages, and how many seconds apart."""

    name: str
    messages: int
    pause: float


BULK = Tenant("bulk", 1000, 0.0)
REALTIME = Tenant("realtime", 60, 0.015)
LIBRARIES = [Tenant(f"library {number}", 15, 0.06) for number in range(6)]
TENANTS = [BULK, REALTIME, *LIBRARIES]


class Service:
    """Producers and workers around one queue; they write down what becomes of each message."""

    def __init__(self, queue: Any, recruiter: Recruiter) -> None:
        self.queue = queue
        self.recruiter = recruiter
        self.written: Counter[tuple[str, int]] = Counter()
        self.finished: Counter[tuple[str, int]] = Counter()
        self.delays: dict[str, list[int]] = {tenant.name: [] for tenant in TENANTS}
        self.deaths = 0
        self.stop_at = time.monotonic() + PATIENCE_SECONDS
        self._chance = random.Random(1)
        self._lock = threading.Lock()

    def produce(self, tenant: Tenant) -> None:
        """Submit a tenant's messages."""
        for number in range(tenant.messages):
            if self.is_done():
                return
            self.queue.write(tenant.name, {"number": str(number)})
            self.written[tenant.name, number] += 1
            time.sleep(tenant.pause)

    def is_done(self) -> bool:
        """Say whether every message is finished, or patience is at its end."""
        everything = sum(tenant.messages for tenant in TENANTS)
        return len(self.finished) == everything or time.monotonic() > self.stop_at

    def work(self, consumer: str) -> None:
        """Do what comes, until all is done or a message proves deadly."""
        while not self.is_done():
            message = self.queue.read(GROUP, consumer, block=0.05)
            if message is None:
                self.recruiter.enlist()  # a fast exit: there is nothing to do
                continue
            with self._lock:
                if message.attempts == 1:
                    self.delays[message.tenant].append(message.pickup_delay_ms)
                if self._chance.random() < DEADLY:
                    self.deaths += 1
                    return  # with the message in its hands
            time.sleep(WORK_SECONDS)
            with self._lock:
                self.finished[message.tenant, int(message.fields[b"number"])] += 1
            self.queue.ack(message)
            self.recruiter.enlist()  # another: this one is finished

    def supervise(self, number: int) -> None:
        """Start a worker, and another one in its place whenever it has died."""
        for life in itertools.count():
            if self.is_done():
                break
            self.work(f"worker {number}, life {life}")

    def run(self) -> None:
        """Let everybody work until every message is finished; the flood has come before."""
        self.produce(BULK)
        threads = [
            threading.Thread(target=self.produce, args=(tenant,))
            for tenant in (REALTIME, *LIBRARIES)
        ]
        threads += [threading.Thread(target=self.supervise, args=(n,)) for n in range(WORKERS)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            # At Ctrl-C, too: all put down their work before the Redis ends.
            self.stop_at = 0.0
            for thread in threads:
                thread.join()


def serve(client: Any, name: str, streams: int, old: ShuffleQueue) -> Service:
    """Send the traffic through a queue with so many streams; return what has become of it."""
    queue = ShuffleQueue(client, name, streams, min(4, streams), namespace=NAMESPACE)
    queue.delete()  # what an earlier run may have left
    # So many recruits, and slices so long, because all of it is to be seen within seconds.
    recruiter = Recruiter(seconds=0.1, breaker=1)
    recruiter.install(ShuffleQueueReaper(queue, lease=IDLE_SECONDS, name="reaper"), rate=0.05)
    recruiter.install(QueueExpiry(old, name="expiry"), rate=0.05)
    service = Service(queue, recruiter)
    service.run()
    return service


def report(plain: Service, shuffled: Service) -> None:
    """Print what has become of the same messages in both queues, side by side."""
    both = plain, shuffled
    row("", "one stream", "own streams")
    for title, names in (
        ("the realtime tenant", [REALTIME.name]),
        ("the libraries", [each.name for each in LIBRARIES]),
        ("the bulk tenant", [BULK.name]),
    ):
        waits = [sorted(ms for name in names for ms in each.delays[name]) or "-" for each in both]
        row(f"pickup delay of {title}, ms")
        row("  median", *(each[len(each) // 2] for each in waits))
        row("  worst", *(each[-1] for each in waits))
    stats = [each.queue.stats(GROUP) for each in both]
    recruits = [each.recruiter.stats() for each in both]
    reapers, expiries = ([each["jobs"][job] for each in recruits] for job in ("reaper", "expiry"))
    row("messages written", *(len(each.written) for each in both))
    row("  lost", *(len(each.written - each.finished) for each in both))
    row("  finished twice", *(each.finished.total() - len(each.finished) for each in both))
    row("  left in the queue", *(each["length"] for each in stats))
    row("workers that died at work", *(each.deaths for each in both))
    row("  messages delivered again", *(each["redelivered"] for each in stats))
    row("enlisted", *(each["enlisted"] for each in recruits))
    for title, jobs in (("reap", reapers), ("delete idle queues", expiries)):
        row(f"  recruited to {title}", *(each["recruited"] for each in jobs))
        for outcome in OUTCOMES:
            row(f"    {spoken(outcome)}", *(each[outcome] for each in jobs))
        row("    items", *(each["items"] for each in jobs))
    row("streams that realtime and bulk share", *map(shared_streams, both))


def shared_streams(service: Service) -> str:
    """Say how many of the realtime tenant's streams are the bulk tenant's, too."""
    urgent, bulk = (set(service.queue.streams_of(each.name)) for each in (REALTIME, BULK))
    return f"{len(urgent & bulk)} of {len(urgent)}"


def row(title: str, *cells: Any) -> None:
    """Print a row of the table."""
    print(f"{title:36}{''.join(f'{cell:>14}' for cell in cells)}".rstrip())


def main() -> int:
    """Run it on a throw-away Redis, unless --url or REDIS_URL names another.

    Returns: the exit status: 1 if anything was lost, 2 if that Redis cannot be used.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("REDIS_URL", "embedded://"))
    options = parser.parse_args()
    try:
        client = connect(options.url)
        client.ping()
    except (ConfigurationError, RedisError, RedisClusterException, OSError) as error:
        print(f"tenants: the Redis cannot be used: {error}", file=sys.stderr)
        return 2

    # All of this queue was finished, and nobody has needed it since: recruits delete its keys.
    old = ShuffleQueue(client, "example:last_year", ttl=0.5, namespace=NAMESPACE)
    for number in range(10):
        old.write(BULK.name, {"number": str(number)})
    old.ack(*old.read_many(GROUP, "worker", 10))

    plain = serve(client, "example:one_stream", 1, old)
    shuffled = serve(client, "example:own_streams", 64, old)
    report(plain, shuffled)
    row("keys of idle queues left", "", QueueExpiry(old).backlog().count)
    for queue in (plain.queue, shuffled.queue, old):
        queue.delete()
    return 1 if any(each.written - each.finished for each in (plain, shuffled)) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
