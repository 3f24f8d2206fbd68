"""No reader of a shuffle queue sleeps while a message waits: measured, not hoped.

The evidence is explained in `support.pickups`: every sleep and every wait is timed by the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.at_once import at_once
from support.patience import ROUNDING_SECONDS
from support.pickups import Recorder, Wait, recorded, recording_client, slept_through, traffic
from support.published_shuffle_queue import PublishedShuffleQueue
from support.servers import RedisServer, wait_until
from workstealing.structures import ShuffleQueue

pytestmark = pytest.mark.real

# Far longer than any read may take: whoever sleeps that long has missed its message.
LONG_SECONDS = 600.0


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with recorded() as found:
        yield found


# Each product has its own way with blocked clients; a cluster's node is one of them.
@pytest.fixture(params=["redis7", "valkey8"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    found: RedisServer = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def queue_of(client: Any, streams: int = 16) -> Any:
    return ShuffleQueue(client, "wakeups", streams)


def read_at_once(reads: list[Callable[[], Any]]) -> list[Any]:
    """Run the reads in threads; return what each has found, in order."""
    found: list[Any] = [None] * len(reads)

    def read(number: int) -> None:
        found[number] = reads[number]()

    at_once([partial(read, number) for number in range(len(reads))])
    return found


def between_look_and_sleep(recorder: Recorder, readers: int, work: Callable[[], Any]) -> None:
    """Do the work when all the readers have looked and none has gone to sleep; once."""
    barrier = threading.Barrier(readers, work)
    passed = threading.local()

    def before() -> None:
        if not getattr(passed, "once", False):
            passed.once = True
            barrier.wait(120)

    recorder.before = before


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_what_is_written_between_the_look_and_the_sleep_wakes_all(
    server: RedisServer, recorder: Recorder, readers: int
) -> None:
    """Each of the readers gets one of as many messages, and none has slept at all."""
    writer = queue_of(server.client())
    assert writer.read("workers", "first") is None
    queues = [queue_of(server.client()) for _ in range(readers)]

    def write() -> None:
        for number in range(readers):
            writer.write(f"tenant-{number}", {"n": number})

    between_look_and_sleep(recorder, readers, write)
    found = read_at_once(
        [
            lambda q=q, n=n: q.read("workers", f"reader-{n}", block=LONG_SECONDS)
            for n, q in enumerate(queues)
        ]
    )
    assert {int(message.fields[b"n"]) for message in found} == set(range(readers))
    assert recorder.sleeps == []


def test_the_published_queue_sleeps_through_it(redis7: RedisServer, recorder: Recorder) -> None:
    """Of two notifications one is kept: one of two readers sleeps while a message waits."""
    writer = PublishedShuffleQueue(redis7.client(), "published", 16)
    assert writer.read("workers", "first", block=0.001) is None
    queues = [PublishedShuffleQueue(recording_client(redis7.port), "published") for _ in "ab"]

    def write() -> None:
        for number in range(2):
            writer.write([number], {"n": number})

    between_look_and_sleep(recorder, 2, write)
    found = read_at_once(
        [lambda q=q, n=n: q.read("workers", f"reader-{n}", block=0.3) for n, q in enumerate(queues)]
    )
    assert found.count(None) == 1, "the fault is gone from the reference"
    (sleep,) = [s for s in recorder.sleeps if s.end - s.start > 200]
    assert sleep.who


def asleep(server: RedisServer, readers: int = 1) -> None:
    """Wait until so many clients sleep in a blocking read."""
    client = server.client()
    wait_until(lambda: client.info("clients")["blocked_clients"] == readers, "readers to sleep")


def test_one_notification_wakes_every_group(server: RedisServer) -> None:
    writer = queue_of(server.client())
    groups = ["first", "second", "third"]
    for group in groups:
        assert writer.read(group, "one") is None
    queues = [queue_of(server.client()) for _ in groups]

    def write() -> str:
        asleep(server, 3)
        written: str = writer.write("tenant", {"n": 1})
        return written

    reads = [
        lambda q=q, g=g: q.read(g, "one", block=LONG_SECONDS).id
        for q, g in zip(queues, groups, strict=True)
    ]
    ids = read_at_once([write, *reads])
    assert len(set(ids)) == 1


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_returned_message_wakes_a_sleeper(server: RedisServer, delay: float) -> None:
    """One that returns later does so in time, though the reader slept before anybody knew."""
    queue = queue_of(server.client())
    queue.write("tenant", {"n": 1})
    message = queue.read("workers", "other")

    def nack() -> None:
        asleep(server)
        assert queue.nack(message, delay=delay) == 1

    started = time.monotonic()
    sleeper = queue_of(server.client())
    again, _ = read_at_once([lambda: sleeper.read("workers", "one", block=LONG_SECONDS), nack])
    assert (again.id, again.attempts) == (message.id, 2)
    assert delay <= time.monotonic() - started < LONG_SECONDS / 2


def test_a_sleeper_knows_when_a_delayed_message_returns(server: RedisServer) -> None:
    queue = queue_of(server.client())
    queue.write("tenant", {"n": 1})
    message = queue.read("workers", "other")
    looked = message
    while looked is not None:
        # On a busy machine it may be back before the look.
        assert queue.nack(looked, delay=0.2) == 1
        started = time.monotonic()
        looked = queue.read("workers", "one")
    again = queue.read("workers", "one", block=LONG_SECONDS)
    assert again.id == message.id
    assert time.monotonic() - started < LONG_SECONDS / 2


def test_a_message_of_the_legacy_stream_wakes_a_sleeper(server: RedisServer) -> None:
    """Whoever writes it knows nothing of notifications."""
    client = server.client()
    queue = queue_of(server.client())

    def add() -> Any:
        asleep(server)
        return client.xadd("wakeups", {"n": 7})

    message, entry = read_at_once([lambda: queue.read("workers", "one", block=LONG_SECONDS), add])
    assert (message.id, message.stream) == (f"default-{entry.decode()}", None)
    assert message.fields == {b"n": b"7"}


def test_a_reader_that_is_the_first_of_its_group_sleeps_for_messages_of_old_writers(
    server: RedisServer,
) -> None:
    """A writer that does not know the group yet learns of it before it writes."""
    writer = queue_of(server.client())
    writer.write("tenant", {"n": 0})
    first = queue_of(server.client())
    first.ack(first.read("workers", "one"))
    late = queue_of(server.client())

    def write() -> str:
        asleep(server)
        written: str = writer.write("tenant", {"n": 1})
        return written

    late.read_many("late", "one", 10)
    message, written = read_at_once([lambda: late.read("late", "one", block=LONG_SECONDS), write])
    assert message.id == written


def test_a_block_ends_in_time_and_without_a_message(
    server: RedisServer, recorder: Recorder
) -> None:
    queue = queue_of(server.client())
    began = time.monotonic()
    assert queue.read("workers", "one", block=0.15) is None
    slept = sum(sleep.end - sleep.start for sleep in recorder.sleeps)
    # By the reader's own clock. How much of it was left to sleep is the machine's affair.
    assert time.monotonic() - began >= 0.150 - ROUNDING_SECONDS
    assert queue.read("workers", "one") is None
    assert slept == sum(sleep.end - sleep.start for sleep in recorder.sleeps)


@pytest.mark.slow
def test_no_message_waits_while_a_reader_sleeps(redis7: RedisServer) -> None:
    """Sixteen readers in four processes, two writers at random; `make bench` does it with 10^5."""
    evidence = traffic(redis7.port, queue_of, messages=2_500, pause_s=0.015)
    assert sorted(wait.who for wait in evidence.messages) == sorted(evidence.written)
    # Otherwise it would prove nothing.
    assert len([sleep for sleep in evidence.sleeps if sleep.end - sleep.start > 3]) > 100
    assert evidence.slept_through() == []


@pytest.mark.slow
def test_the_evidence_shows_readers_that_do_not_remember_where_they_looked(
    redis7: RedisServer,
) -> None:
    """The same traffic, but each sleep is from the newest notification on."""
    evidence = traffic(redis7.port, queue_of, messages=1_500, pause_s=0.015, from_now=True)
    assert evidence.slept_through()


spans = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(
    lambda pair: Wait("", pair[0], pair[0] + pair[1])
)


@given(messages=st.lists(spans, max_size=8), sleeps=st.lists(spans, max_size=8))
def test_what_was_slept_through_is_found(messages: list[Wait], sleeps: list[Wait]) -> None:
    def overlap(a: Wait, b: Wait) -> float:
        return min(a.end, b.end) - max(a.start, b.start)

    found = slept_through(messages, sleeps, 2.0)
    assert [message for message, _ in found] == [
        message for message in messages if any(overlap(message, sleep) > 2 for sleep in sleeps)
    ]
    assert all(overlap(message, sleep) > 2 for message, sleep in found)
