"""Every call of a TimeShardQueue at once, by many, and sweepers: nothing is lost or left."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.time_shards import Wall, assert_sound, end_leases, names_of, queue_on, sweep_away
from workstealing.errors import Aborted
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.structures import Taken

pytestmark = pytest.mark.real

SECONDS = 3.0
WORKERS = 5
SWEEPERS = 2
LEASE = 0.01
SHARDS = 4


class Chaos:
    """What everybody knows. Fields: put: ids; finished: id -> when it was acknowledged or so."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.wall = Wall()
        self.put: set[str] = set()
        self.finished: set[str] = set()
        self.latest: dict[str, int] = {}
        self.wrong: list[str] = []
        self.lock = threading.Lock()
        self.counts: dict[str, int] = {}
        self.end = time.monotonic() + SECONDS

    def note(self, what: str, count: int = 1) -> None:
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + count

    def work(self, seed: int) -> None:
        chance = random.Random(seed)
        queue = queue_on(
            self.client, self.wall, shards=SHARDS, skew=chance.choice([-59, 0, 59]), max_attempts=3
        )
        mine: list[Taken] = []
        while time.monotonic() < self.end:
            kind = chance.randrange(10)
            if kind < 3:
                due = chance.choice([None, 1.0, time.time() + 0.02])
                self.put.add(queue.put(f"{seed}", due))
                self.note("put")
            elif kind < 6:
                done = set(self.finished)
                for each in queue.take_many(f"{seed}", 4, LEASE, drain_all=True):
                    if each.id in done:
                        self.wrong.append(f"taken after its end: {each}")
                    with self.lock:
                        token = int(each.token)
                        self.latest[each.id] = max(token, self.latest.get(each.id, 0))
                    mine.append(each)
                    self.note("taken")
            elif kind == 6 and mine:
                each = chance.choice(mine)
                latest, gone = self.latest[each.id], each.id in self.finished
                held = queue.extend(each, 0.05)
                if held and (latest > int(each.token) or gone):
                    self.wrong.append(f"extended though it was somebody else's: {each}")
                self.note(f"extended {held}")
            elif kind == 7 and mine:
                each = mine.pop(chance.randrange(len(mine)))
                latest, gone = self.latest[each.id], each.id in self.finished
                held = queue.release(each, chance.choice([None, 1.0, time.time() + 0.02]))
                if held and (latest > int(each.token) or gone):
                    self.wrong.append(f"released though it was somebody else's: {each}")
                self.note(f"released {held}")
            elif kind == 8 and mine:
                each = mine.pop(chance.randrange(len(mine)))
                call = chance.choice([queue.ack, queue.cancel])
                self.note("finished", int(call(each.id)))
                self.finished.add(each.id)
            else:
                ids = [each.id for each in queue.dead(5)]
                self.note("revived", queue.revive(*ids[:3]))
                discarded = ids[3:]
                for each_id in discarded:
                    # Another one may have revived it meanwhile: then it is nobody's end.
                    if queue.discard(each_id):
                        self.finished.add(each_id)
                        self.note("finished")

    def sweep(self, seed: int) -> None:
        chance = random.Random(seed)
        queue = queue_on(self.client, self.wall, shards=SHARDS, max_attempts=3)
        job = TimeShardSweeper(queue, random=chance.random)
        while time.monotonic() < self.end:
            try:
                # Where everybody else is: what it does must be right there too.
                done = job.sweeping.sweep(
                    chance.randrange(SHARDS),
                    limit=10,
                    max_attempts=3,
                    slice=Slice(10, 5.0),
                    random=chance.random,
                )
                self.note("swept", done.items)
            except Aborted:
                self.note("aborted")
            job.backlog()


@pytest.mark.slow
def test_everybody_at_once(redis7: RedisServer) -> None:
    client = redis7.client()
    chaos = Chaos(client)
    with ThreadPoolExecutor() as pool:
        works = [pool.submit(chaos.work, seed) for seed in range(WORKERS)]
        works += [pool.submit(chaos.sweep, 100 + seed) for seed in range(SWEEPERS)]
        for work in works:
            work.result()
    assert chaos.wrong == []
    for what in ("put", "taken", "extended True", "released True", "finished", "swept"):
        assert chaos.counts.get(what, 0) > 5, chaos.counts
    names = names_of(SHARDS)
    left = set[bytes]().union(*(assert_sound(client, each) for each in names))
    # Each acknowledgement, deletion and discarding was counted once, whoever came at once.
    assert {each.decode() for each in left} == chaos.put - chaos.finished
    assert chaos.counts["finished"] == len(chaos.finished)
    queue = queue_on(client, chaos.wall, shards=SHARDS)
    queue.ack(*chaos.put)
    for each in names:
        end_leases(client, each)
    sweep_away(queue, chaos.wall)
    assert sum(each.waiting + each.leased + each.dead for each in queue.stats()) == 0
    assert queue.delete() == 0
    # A receipt of messages that somebody else has acknowledged ends by its own time to live.
    assert [key for key in client.scan_iter() if client.pttl(key) == -1] == []
