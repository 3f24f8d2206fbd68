"""Articles under embargo: each is published when it is due, though a publisher dies meanwhile.

Editors put articles with due times; publishers take what is due under a lease, publish it and
acknowledge it. One publisher dies with articles in its hands. Whoever finds nothing due enlists:
that is how what the dead one had comes back and how what was published is cleared away, in time
shards which no editor and no publisher touches just then.

Run it from the checkout: `.venv/bin/python examples/due_times/due_times.py`
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter

from redis.exceptions import RedisClusterException, RedisError

from workstealing import Recruiter, connect
from workstealing.errors import ConfigurationError
from workstealing.jobs import TimeShardSweeper
from workstealing.structures import RedisStore, TimeShardQueue

TIME_SHARDS = 8
PERIOD = 0.5  # seconds; a minute or an hour in earnest
EDITORS = 2
ARTICLES = 150  # of each editor
PUBLISHERS = 3
BATCH = 5
LEASE = 1.0
# What the docs say that an article waits at worst, and one of a dead publisher after it was taken.
LATEST = (TIME_SHARDS - 1) * PERIOD
LATEST_AFTER_DEATH = LEASE + LATEST
PATIENCE = 60.0
SIGNS = {"producing": "P", "consuming": "C", "quiet": " "}


class Newsroom:
    """Editors and publishers around one queue; they write down what becomes of each article."""

    def __init__(self, queue: TimeShardQueue, recruiter: Recruiter, *, drain_all: bool) -> None:
        self.queue = queue
        self.recruiter = recruiter
        self.drain_all = drain_all
        self.due: dict[bytes, float] = {}  # Unix seconds
        self.published: Counter[bytes] = Counter()
        self.late: dict[bytes, float] = {}  # seconds, when it was first published
        self.in_dead_hands: list[bytes] = []
        self.died = 0.0
        self.closed = threading.Event()

    def edit(self, editor: int) -> None:
        """Put articles: every other one is due at once, the others within seconds."""
        chance = random.Random(editor)
        for number in range(ARTICLES):
            article = b"article %d of editor %d" % (number, editor)
            self.due[article] = time.time() + (chance.uniform(0, 2) if number % 2 else 0)
            self.queue.put(article, self.due[article])
            if self.closed.wait(0.02):
                return

    def publish(self, publisher: str, *, dies: bool = False) -> None:
        """Publish what is due until the newsroom closes, or die with the first articles in hand."""
        while not self.closed.is_set():
            batch = self.queue.take_many(publisher, BATCH, LEASE, drain_all=self.drain_all)
            if not batch:
                self.recruiter.enlist()  # a fast exit: nothing is due
                time.sleep(0.01)
                continue
            if dies:
                self.died = time.time()
                self.in_dead_hands = [taken.message for taken in batch]
                return
            for taken in batch:
                self.published[taken.message] += 1
                self.late.setdefault(taken.message, time.time() - self.due[taken.message])
            self.queue.ack(*batch)

    def run(self) -> None:
        """Let everybody work until every article is published; look on meanwhile."""
        threads = [threading.Thread(target=self.edit, args=(each,)) for each in range(EDITORS)]
        for number in range(PUBLISHERS):
            arguments = {"publisher": f"publisher {number}", "dies": number == 0}
            threads.append(threading.Thread(target=self.publish, kwargs=arguments))
        for thread in threads:
            thread.start()
        heads = [f"shard {number}" for number in range(TIME_SHARDS)]
        print("   s ", *(f"{head:>9}" for head in heads), "leased consumed")
        start = time.monotonic()
        try:
            while not self.closed.wait(PERIOD):
                left = look_at(self.queue, time.monotonic() - start)
                is_done = len(self.published) == EDITORS * ARTICLES and not left
                if is_done or time.monotonic() > start + PATIENCE:
                    self.closed.set()
        finally:
            # At Ctrl-C, too: all put down their work before the Redis ends.
            self.closed.set()
            for thread in threads:
                thread.join()

    def report(self) -> int:
        """Print what became of the articles; return how many were lost."""
        dead = set(self.in_dead_hands)
        late = sorted(each for article, each in self.late.items() if article not in dead)
        again = [self.due[each] + self.late[each] - self.died for each in dead & set(self.late)]
        figures = self.recruiter.stats()
        sweeps = figures["jobs"][f"time_shard_sweeper.{self.queue.name}"]
        lost = len(self.due) - len(self.published)
        left = self.queue.stats()
        print()
        for what, value in (
            ("articles put", len(self.due)),
            ("published", len(self.published)),
            ("lost", lost),
            ("published more than once", sum(count > 1 for count in self.published.values())),
            ("published too early", sum(each < 0 for each in self.late.values())),
            ("late, in the median", f"{statistics.median(late):.2f} s"),
            ("  at worst", f"{late[-1]:.2f} s"),
            ("  at worst by the docs", "-" if self.drain_all else f"{LATEST:.2f} s"),
            ("in the dead publisher's hands", len(dead)),
            ("  published later, at worst", f"{max(again, default=0):.2f} s"),
            ("  at worst by the docs", "-" if self.drain_all else f"{LATEST_AFTER_DEATH:.2f} s"),
            ("enlisted", figures["enlisted"]),
            ("recruited to sweep", sweeps["recruited"]),
            ("  worked", sweeps["worked"]),
            ("  idle: nothing to do there", sweeps["idle"]),
            ("  skipped: another was at it", sweeps["skipped"]),
            ("  aborted or failed", sweeps["aborted"] + sweeps["failed"]),
            ("leases returned, articles cleared", sweeps["items"]),
            ("articles left in the queue", sum(each.waiting + each.leased for each in left)),
        ):
            print(f"{what:34}{value:>8}")
        return lost


def look_at(queue: TimeShardQueue, seconds: float) -> int:
    """Print a line about the time shards; return how much they hold, consumed or not.

    For each: P or C where editors or publishers are, articles that wait / are due of these.
    """
    found = queue.stats()
    cells = [f"{SIGNS[each.role]}{each.waiting:>4}/{each.due:<3}" for each in found]
    leased, consumed = sum(each.leased for each in found), sum(each.consumed for each in found)
    print(f"{seconds:4.1f} ", *(f"{cell:>9}" for cell in cells), f"{leased:6} {consumed:8}")
    return sum(each.waiting for each in found) + leased


def main() -> int:
    """Run it on a throw-away Redis, unless --url or REDIS_URL names another.

    Returns: the exit status: 1 if anything was lost, 2 if that Redis cannot be used.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("REDIS_URL", "embedded://"))
    parser.add_argument("--drain-all", action="store_true", help="look at every time shard")
    options = parser.parse_args()
    try:
        client = connect(options.url)
        client.ping()
    except (ConfigurationError, RedisError, RedisClusterException, OSError) as error:
        print(f"due_times: the Redis cannot be used: {error}", file=sys.stderr)
        return 2
    queue = TimeShardQueue(RedisStore(client), "example:embargoes", TIME_SHARDS, PERIOD)
    # So many recruits, and slices so long, because all of it is to be seen within seconds.
    recruiter = Recruiter(seconds=0.1, breaker=1)
    recruiter.install(TimeShardSweeper(queue), rate=0.2)
    newsroom = Newsroom(queue, recruiter, drain_all=options.drain_all)
    newsroom.run()
    lost = newsroom.report()
    # Nobody uses it any more: not even what it was made like is left behind.
    queue.delete()
    return 1 if lost else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
