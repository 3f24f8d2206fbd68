"""ShuffleQueueReaper gives up streams beyond the number, under processes with each older belief."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.proof import seed, tried
from support.servers import AnyServer, RedisServer
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.store.budget import Budget
from workstealing.structures.shuffle_queue import Message, ShuffleQueue

pytestmark = pytest.mark.contract
WIDE, NARROW = 12, 3
LONG = 5_000.0
SOON = 0.001
BELIEFS = "a step of a queue that is widened and narrowed under old beliefs"


def queue_of(client: Any, streams: int) -> ShuffleQueue:
    return ShuffleQueue(client, "q", streams=streams, streams_per_tenant=streams)


def reaper_of(queue: ShuffleQueue, **options: Any) -> ShuffleQueueReaper:
    return ShuffleQueueReaper(queue, **{"lease": LONG, "consumer_idle": SOON, **options})


def settle(job: ShuffleQueueReaper) -> int:
    """Perform slices, with each chore in turn, until none of them finds anything."""
    handled = idle = 0
    while idle < 40:
        done = job.perform(Slice(25, 10.0))
        handled, idle = handled + done, 0 if done else idle + 1
    return handled


def span_of(queue: ShuffleQueue) -> int:
    return int(queue.client.hget(queue.keys.meta, "span"))


def there(queue: ShuffleQueue) -> list[int]:
    return [n for n in range(WIDE) if queue.client.exists(queue.keys.stream(n))]


def beside(queue: ShuffleQueue, group: str = "g") -> set[int]:
    """Return the numbers of streams that the keys of a group name."""
    names, client = queue.keys.group(group), queue.client
    found = {*client.zrange(names.ring, 0, -1), *client.zrange(names.pending, 0, -1)}
    found |= {each.partition(b":")[0] for each in client.zrange(names.returned, 0, -1)}
    laps = client.hkeys(names.laps)
    found |= {each.removeprefix(b"lap:") for each in laps if each.startswith(b"lap:")}
    return {int(each) for each in found}


def filled(client: Any, *, ack: bool = True) -> tuple[ShuffleQueue, ShuffleQueue, list[Message]]:
    """Return a wide and a narrow queue whose streams have all had a message."""
    wide, narrow = queue_of(client, WIDE), queue_of(client, NARROW)
    for number in range(WIDE):
        wide.write("t", {"n": number})
    messages = wide.read_many("g", "c", WIDE)
    assert {message.stream for message in messages} == set(range(WIDE))
    if ack:
        assert wide.ack(*messages) == WIDE
    return wide, narrow, messages


def test_a_narrower_process_gives_up_the_streams_beyond_its_number(any_server: AnyServer) -> None:
    wide, narrow, _ = filled(any_server.client())
    assert there(wide) == list(range(WIDE))
    # A reaper has died within its lap over the pending entries of a stream.
    wide.client.hset(wide.keys.group("g").laps, mapping={"lap:9": "(1-1 5", "lap:1": "(1-1 5"})
    assert settle(reaper_of(narrow, random=random.Random(3).random)) >= WIDE - NARROW
    assert (span_of(wide), there(wide)) == (NARROW, [0, 1, 2])
    assert beside(wide) == {0, 1, 2}


def test_no_plan_outlives_the_marks_that_it_relies_on(any_server: AnyServer) -> None:
    wide, narrow, _ = filled(any_server.client())
    wide.client.hset(wide.keys.meta, "plan:g", "1.2r")
    job = reaper_of(narrow).reaper
    assert job.narrow(facts_of(narrow), None, Slice(25, 9.0), 25) > 0
    assert not wide.client.hexists(wide.keys.meta, "plan:g")


def test_a_process_of_the_larger_number_goes_on(any_server: AnyServer) -> None:
    """Its reader holds a plan of streams that have gone; its writer makes them again."""
    wide, narrow, _ = filled(any_server.client())
    for _ in range(3):
        settle(reaper_of(narrow))
        assert (span_of(wide), wide.length(), narrow.length()) == (NARROW, 0, 0)
        assert wide.read("g", "c") is None
        ids = [wide.write("t", {"n": number}) for number in range(WIDE)]
        assert (span_of(wide), wide.length(), narrow.length()) == (WIDE, WIDE, WIDE)
        found = [reader.read("g", "c") for reader in (wide, narrow) * (WIDE // 2)]
        assert sorted(message.id for message in found if message) == sorted(ids)
        assert sorted(narrow.stats("g")["streams"]) == list(range(WIDE))
        assert narrow.ack(*filter(None, found)) == WIDE


def test_the_wide_reaper_keeps_its_own_number(any_server: AnyServer) -> None:
    wide, _, _ = filled(any_server.client())
    settle(reaper_of(wide))
    assert (span_of(wide), there(wide)) == (WIDE, list(range(WIDE)))


def leaves_it_waiting(queue: ShuffleQueue, message: Message) -> None:
    queue.nack(message)


def delays_it(queue: ShuffleQueue, message: Message) -> None:
    queue.nack(message, delay=LONG)


def holds_it(queue: ShuffleQueue, message: Message) -> None:
    pass


def holds_it_although_cancelled(queue: ShuffleQueue, message: Message) -> None:
    assert message.tracking_id
    assert queue.cancel(message.tracking_id)


@pytest.mark.parametrize(
    "consumer", [leaves_it_waiting, delays_it, holds_it, holds_it_although_cancelled]
)
def test_a_stream_that_somebody_needs_stays(
    any_server: AnyServer, consumer: Callable[[ShuffleQueue, Message], None]
) -> None:
    client = any_server.client()
    wide, narrow, _ = filled(client)
    for number in range(WIDE):
        wide.write("t", {"n": number}, tracking_id=f"t{number}")
    messages = {m.stream: m for m in wide.read_many("g", "c", WIDE)}
    kept = messages.pop(7)
    wide.ack(*messages.values())
    consumer(wide, kept)
    job = reaper_of(narrow)
    assert settle(job) >= WIDE - 8
    # The lower ones stay with it: the span is one number.
    assert (span_of(wide), there(wide)) == (8, list(range(8)))
    if consumer is holds_it_although_cancelled:
        assert wide.ack(kept) == 1
    elif consumer is leaves_it_waiting:
        assert wide.ack(*filter(None, [narrow.read("g", "c")])) == 1
    else:
        assert wide.ack(kept) == 1
    assert settle(job) >= 8 - NARROW
    assert (span_of(wide), there(wide), wide.length()) == (NARROW, [0, 1, 2], 0)


def test_a_message_that_waits_for_another_group_is_kept(any_server: AnyServer) -> None:
    client = any_server.client()
    wide, narrow = queue_of(client, WIDE), queue_of(client, NARROW)
    assert wide.read("late", "c") is None
    ids = [wide.write("t", {"n": number}) for number in range(WIDE)]
    wide.ack(*wide.read_many("g", "c", WIDE))
    settle(reaper_of(narrow))
    assert span_of(wide) == WIDE
    assert sorted(m.id for m in narrow.read_many("late", "c", 20)) == sorted(ids)


def test_a_stream_that_was_written_a_moment_ago_stays(any_server: AnyServer) -> None:
    """Its next incarnation could use the same ids again, and a late `ack` would mean another."""
    wide, narrow, _ = filled(any_server.client())
    assert settle(reaper_of(narrow, consumer_idle=LONG)) == 0
    assert (span_of(wide), there(wide)) == (WIDE, list(range(WIDE)))


@pytest.mark.parametrize("between", ["a wide write", "a new group"])
def test_nothing_is_given_up_by_an_old_look(any_server: AnyServer, between: str) -> None:
    wide, narrow, _ = filled(any_server.client())
    while narrow.client.exists(narrow.keys.stream(WIDE - 1)):
        reaper_of(narrow, limit=1).reaper.narrow(facts_of(narrow), None, Slice(1, 9.0), 1)
    facts = facts_of(narrow)
    assert facts.span == WIDE - 1
    if between == "a wide write":
        wide.write("t", {"n": 1})
    else:
        narrow.read("h", "c")
    before = there(wide), span_of(wide)
    assert reaper_of(narrow).reaper.narrow(facts, None, Slice(25, 9.0), 25) == 0
    assert (there(wide), span_of(wide)) == before


def facts_of(queue: ShuffleQueue) -> Any:
    return reaper_of(queue).reaper.read_facts(Budget(10.0, timeout=10.0))


def test_a_queue_without_any_group_is_narrowed(any_server: AnyServer) -> None:
    client = any_server.client()
    wide, narrow = queue_of(client, WIDE), queue_of(client, NARROW)
    for number in range(WIDE):
        wide.write("t", {}, tracking_id=f"t{number}")
    assert [wide.cancel(f"t{number}") for number in range(WIDE)] == [True] * WIDE
    assert settle(reaper_of(narrow)) >= WIDE - NARROW
    assert (span_of(wide), there(wide)) == (NARROW, [0, 1, 2])


def test_a_dry_run_counts_the_streams_and_gives_up_none(any_server: AnyServer) -> None:
    wide, narrow, _ = filled(any_server.client())
    job = reaper_of(narrow, dry_run=True)
    counted = max(job.perform(Slice(25, 10.0)) for _ in range(20))
    assert (counted, span_of(wide), there(wide)) == (WIDE - NARROW, WIDE, list(range(WIDE)))


def test_a_sweep_gives_them_up(any_server: AnyServer) -> None:
    wide, narrow, _ = filled(any_server.client())
    job = reaper_of(narrow)
    while span_of(wide) > NARROW:
        for part in job.parts(2):
            one = job.for_part(part)
            while not one.is_drained:
                one.perform(Slice(25, 10.0))
    assert there(wide) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.real
def test_old_beliefs_of_every_width_lose_nothing(redis7: RedisServer) -> None:
    """A model: each message is delivered to each group until it was acknowledged, and no more."""
    draw = random.Random(seed(5))
    widths, groups = [1, 3, 7, 12], ["g", "h"]
    client = redis7.client()
    # Old processes: each keeps what it once knew, and the plans that it read.
    processes = {(width, n): queue_of(client, width) for width in widths for n in range(2)}
    written = 0
    waiting: dict[str, set[str]] = {group: set() for group in groups}
    held: dict[str, list[Message]] = {group: [] for group in groups}
    for group in groups:
        assert processes[1, 0].read(group, "c") is None
    lowered = raised = 0
    for _ in range(1_500):
        width, number = draw.choice(list(processes))
        queue, group = processes[width, number], draw.choice(groups)
        before = span_of(queue)
        step = draw.random()
        if step < 0.35:
            made = queue.write(f"t{draw.randint(0, 3)}", {"n": written})
            written += 1
            for each in waiting.values():
                each.add(made)
        elif step < 0.65:
            for message in queue.read_many(group, "c", draw.randint(1, 6)):
                assert message.id in waiting[group]
                waiting[group].remove(message.id)
                held[group].append(message)
        elif step < 0.85 and held[group]:
            draw.shuffle(held[group])
            some = [held[group].pop() for _ in range(draw.randint(1, len(held[group])))]
            assert queue.ack(*some) == len(some)
        elif step < 0.9 and held[group]:
            message = held[group].pop()
            assert queue.nack(message) == 1
            waiting[group].add(message.id)
        elif step < 0.92:
            del processes[width, number]
            processes[width, number] = queue_of(client, width)
        else:
            reaper_of(queue, random=draw.random).perform(Slice(draw.randint(1, 25), 10.0))
        tried(BELIEFS)
        after = span_of(queue)
        lowered, raised = lowered + (after < before), raised + (after > before)
        assert queue.length() == len(set().union(*waiting.values()) | unacknowledged(held))
    # It has been tried at all; how often, is up to the seed.
    assert lowered > 0
    assert raised > 0
    for group in groups:
        rest = processes[1, 1].read_many(group, "c", 1_000)
        assert {message.id for message in rest} == waiting[group]


def unacknowledged(held: dict[str, list[Message]]) -> set[str]:
    return {message.id for some in held.values() for message in some}


@pytest.mark.real
@pytest.mark.slow
def test_nothing_is_lost_while_the_streams_come_and_go(redis7: RedisServer) -> None:
    each, done = 300, threading.Event()
    written: list[str] = []
    found: list[str] = []
    faults: list[BaseException] = []
    queue_of(redis7.client(), WIDE).read("g", "c")

    def produce(number: int) -> None:
        draw = random.Random(number)
        queues = [queue_of(redis7.client(), width) for width in (1, NARROW, WIDE)]
        written.extend(draw.choice(queues).write("t", {"n": n}) for n in range(each))

    def consume(number: int) -> None:
        draw = random.Random(number)
        queues = [queue_of(redis7.client(), width) for width in (1, NARROW, WIDE)]
        while True:
            is_last = done.is_set()
            message = draw.choice(queues).read("g", f"c{number}")
            if message is not None:
                found.append(message.id)
                assert queues[0].ack(message) == 1
            elif is_last:
                return

    def reap(number: int) -> None:
        job = reaper_of(queue_of(redis7.client(), 1), random=random.Random(number).random)
        while not done.is_set():
            job.perform(Slice(25, 10.0))

    def noting(work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as fault:
            faults.append(fault)
            raise

    makers = [threading.Thread(target=noting, args=(produce, n)) for n in range(2)]
    others = [threading.Thread(target=noting, args=(w, n)) for w in (consume, reap) for n in (7, 8)]
    for thread in (*makers, *others):
        thread.start()
    for thread in makers:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    assert faults == []
    assert sorted(found) == sorted(written)
    assert len(written) == 2 * each
