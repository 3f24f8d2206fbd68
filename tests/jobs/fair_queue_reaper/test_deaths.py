"""A reaper that dies between any two of its commands leaves nothing that others do not find."""

from __future__ import annotations

import pytest
import redis

from support.deaths import every_death
from support.fair_queues import drained, leftovers, queue_on
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import FairQueueReaper
from workstealing.recruiting import Slice

pytestmark = pytest.mark.real

HOUR_MS = 3_600_000


@pytest.mark.parametrize("is_sweep", [False, True])
def test_at_every_command(redis7: RedisServer, is_sweep: bool) -> None:
    direct = redis7.client()
    died = 0
    with FaultyServer(redis7.port) as door:

        def work() -> None:
            client = redis.Redis(port=door.port, protocol=2)
            job = FairQueueReaper(queue_on(client, HOUR_MS, max_attempts=1))
            if not is_sweep:
                for _ in range(3):
                    job.perform(Slice(4, 60.0))
                return
            for part in job.parts(2):
                one = job.for_part(part)
                while not one.is_drained:
                    one.perform(Slice(25, 60.0))

        def prepare() -> None:
            direct.flushall()
            queue = queue_on(direct, max_attempts=1)
            queue.set_rule("a", max_in_flight=1)
            for number in range(6):
                queue.write("ab"[number % 2], {"n": number}, tracking_id=f"x{number}")
            queue.write("late", {"n": 6}, ttl=1, dedupe=("k", 60))
            assert len(drained(queue, "dead", most=5)) == 5
            direct.delete(queue.keys.of("ready"))

        for where in every_death([door], work, prepare):
            died += 1
            later = queue_on(direct, HOUR_MS, max_attempts=1)
            job = FairQueueReaper(later)
            for part in job.parts(1):
                one = job.for_part(part)
                while not one.is_drained:
                    one.perform(Slice(25, 60.0))
            served = drained(later)
            numbers = [int(each.fields[b"n"]) for each in (*served, *later.dead())]
            # Of the seven one is past its deadline, unless it was in hand.
            while served:
                assert later.ack(*served) == len(served), where
                served = drained(later)
                numbers += [int(each.fields[b"n"]) for each in served]
            assert sorted(set(numbers)) in ([*range(6)], [*range(7)]), where
            assert len(numbers) == len(set(numbers)), where
            assert later.length() == 0, where
            assert leftovers(later).keys() <= {"dead", "accounts", "idle"}, where
    assert died > 6
