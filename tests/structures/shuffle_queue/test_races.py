"""A shuffle queue under contention: nothing is stranded, lost, or delivered twice."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.at_once import at_once
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.published_shuffle_queue import PublishedShuffleQueue
from support.servers import AnyServer, RedisCluster3, RedisServer, wait_until
from support.single_streams import SingleStreams
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import ShuffleQueue

AnyReal = RedisServer | RedisCluster3
NAME = "raced"
PATIENCE_S = 60.0


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyReal]:
    found: AnyReal = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def queue_on(server: Any, streams: int = 16, each: int = 4) -> Any:
    return ShuffleQueue(server.client(), NAME, streams, min(each, streams))


def all_of(queue: Any, group: str = "workers") -> list[Any]:
    """Read until there is nothing."""
    found = []
    while (message := queue.read(group, "last")) is not None:
        found.append(message)
    return found


@pytest.mark.parametrize("to", [1, 7, 8, 15])
def test_shrinking_strands_nothing(any_server: AnyServer, to: int) -> None:
    client = any_server.client()
    wide = SingleStreams(client, NAME, 16)
    ids = [wide.put(stream, {"n": stream}) for stream in range(16)]
    narrow = SingleStreams(any_server.client(), NAME, to)
    ids += [narrow.put(stream, {"n": stream}) for stream in range(to)]
    assert sorted(message.id for message in all_of(narrow.queue)) == sorted(ids)
    # And to a group that has never met the wider queue.
    assert sorted(message.id for message in all_of(narrow.queue, "late")) == sorted(ids)


def test_the_published_queue_strands_what_is_in_the_first_stream_beyond(
    redis7: RedisServer,
) -> None:
    """It looks at streams w + 1 and on, but stream w is beyond as well."""
    wide = PublishedShuffleQueue(redis7.client(), NAME, 9)
    stranded = wide.write([8], {"n": 8})
    narrow = PublishedShuffleQueue(redis7.client(), NAME, 8)
    read = narrow.write([0], {"n": 0})
    found = []
    while (message := narrow.look("workers", "one")) is not None:
        found.append(f"{message.stream}-{message.entry}")
    assert found == [read] != [stranded], "the fault is gone from the reference"


def test_what_a_dead_consumer_held_is_delivered_to_a_live_one(server: AnyReal) -> None:
    queue = queue_on(server)
    written = [queue.write(f"tenant-{number}", {"n": number}) for number in range(20)]
    held = {queue.read("workers", "dead").id for _ in range(8)}
    reaper = ShuffleQueueReaper(queue, lease=0.001)
    live: dict[str, Any] = {}

    def all_delivered() -> bool:
        for message in all_of(queue):
            assert queue.ack(message) == 1
            live[message.id] = message
        reaper.perform(Slice(25, 10.0))
        return len(live) == len(written)

    wait_until(all_delivered, "what the dead consumer held to be delivered")
    assert set(live) == set(written)
    assert {found for found, message in live.items() if message.attempts > 1} == held


def test_the_published_queue_never_delivers_it(redis7: RedisServer) -> None:
    queue = PublishedShuffleQueue(redis7.client(), NAME, 16)
    for number in range(20):
        queue.write([number % 16], {"n": number})
    for _ in range(8):
        assert queue.look("workers", "dead")
    live = 0
    while (message := queue.read("workers", "live", block=0.001)) is not None:
        queue.ack("workers", message)
        live += 1
    assert (live, queue.length()) == (12, 8), "the fault is gone from the reference"


@pytest.mark.slow
def test_growing_and_shrinking_under_load_delivers_each_message_once(server: AnyReal) -> None:
    """Each producer and consumer has a width of its own, and changes it all the time."""
    widths = (1, 4, 7, 8, 9, 16, 33)
    a_writer, writers, groups = 120, 3, ("first", "second")
    written: list[str] = []
    taken: dict[str, list[Any]] = defaultdict(list)
    limit = time.monotonic() + PATIENCE_S
    for group in groups:
        # What all groups that there are have acknowledged is gone for one that comes later.
        assert queue_on(server).read(group, "first") is None

    def write(number: int) -> None:
        rng = random.Random(number)
        for i in range(a_writer):
            if i % 15 == 0:
                queue = queue_on(server, rng.choice(widths))
            written.append(queue.write(f"tenant-{rng.randrange(30)}", {"n": i}))

    def consume(group: str, number: int) -> None:
        rng = random.Random(number)
        name, reads = f"consumer-{number}", 0
        while len(taken[group]) < a_writer * writers and time.monotonic() < limit:
            if reads % 25 == 0:
                queue = queue_on(server, rng.choice(widths))
            reads += 1
            message = queue.read(group, name, block=0.05)
            if message is not None:
                taken[group].append(message)
                assert queue.ack(message) == 1

    works: list[Callable[[], None]] = [
        lambda number=number: write(number)  # type: ignore[misc]
        for number in range(writers)
    ]
    works += [
        lambda group=group, number=number: consume(group, number)  # type: ignore[misc]
        for group in groups
        for number in range(2)
    ]
    at_once(works)
    assert {message.stream for messages in taken.values() for message in messages} > set(range(16))
    for group in groups:
        assert sorted(message.id for message in taken[group]) == sorted(written)
        assert {message.attempts for message in taken[group]} == {1}
    assert queue_on(server).length() == 0


@pytest.mark.slow
def test_groups_that_join_while_others_write_miss_nothing(server: AnyReal) -> None:
    """A writer that does not know of a group writes nothing before it does."""
    a_writer, writers, groups = 150, 2, 5
    written: list[str] = []
    done = threading.Event()
    left = [writers]
    taken: dict[str, list[str]] = defaultdict(list)

    def write(number: int) -> None:
        queue = queue_on(server)
        try:
            written.extend(queue.write(f"tenant-{i % 13}", {"n": i}) for i in range(a_writer))
        finally:
            left[0] -= 1
            if not left[0]:
                done.set()

    def join(number: int) -> None:
        # Spread over the whole time of writing: by what has been written, not by the clock.
        while len(written) < number * a_writer * writers // groups and not done.is_set():
            done.wait(0.001)
        queue, group = queue_on(server), f"group-{number}"
        while not done.is_set():
            taken[group] += [message.id for message in queue.read_many(group, "one", 3)]
        taken[group] += [message.id for message in all_of(queue, group)]

    works: list[Callable[[], None]] = [
        lambda number=number: write(number)  # type: ignore[misc]
        for number in range(writers)
    ]
    works += [
        lambda number=number: join(number)  # type: ignore[misc]
        for number in range(groups)
    ]
    at_once(works)
    assert len(taken) == groups
    for ids in taken.values():
        assert sorted(ids) == sorted(written)


def test_a_plain_stream_is_moved_over_without_a_pause(server: AnyReal) -> None:
    """Old producers and consumers know the stream alone; new ones use the queue beside them."""
    each, written = 120, list[str]()
    old_taken, new_taken = list[str](), list[str]()
    client = server.client()
    client.xgroup_create(NAME, NAME, id="0", mkstream=True)
    limit = time.monotonic() + PATIENCE_S

    def missing() -> bool:
        return len(old_taken) + len(new_taken) < 2 * each and time.monotonic() < limit

    def old_producer() -> None:
        for number in range(each):
            written.append("default-" + client.xadd(NAME, {"n": number}).decode())

    def new_producer() -> None:
        queue = queue_on(server)
        for number in range(each):
            written.append(queue.write(f"tenant-{number % 9}", {"n": number}))

    def old_consumer() -> None:
        own = server.client()
        # It leaves some to the new ones, however busy the machine is.
        while missing() and len(old_taken) < each // 2:
            for _, entries in own.xreadgroup(NAME, "old", {NAME: ">"}, count=1, block=20) or ():
                for entry, _ in entries:
                    old_taken.append("default-" + entry.decode())
                    own.xack(NAME, NAME, entry)

    def new_consumer() -> None:
        queue = queue_on(server)
        while missing():
            message = queue.read("workers", "new", block=0.02)
            if message is not None:
                new_taken.append(message.id)
                assert queue.ack(message) == 1

    at_once([old_producer, new_producer, old_consumer, new_consumer, new_consumer])
    assert sorted(old_taken + new_taken) == sorted(written)
    assert any(taken.startswith("default-") for taken in new_taken)


def test_of_an_ack_and_a_nack_at_once_one_holds(server: AnyReal) -> None:
    """An acknowledged message does not come back, and one given back cannot be acknowledged."""
    queue = queue_on(server)
    others = [queue_on(server) for _ in range(2)]
    outcomes: Counter[str] = Counter()
    for number in range(60):
        queue.write("tenant", {"n": number})
        message = queue.read("workers", "one")
        done: dict[str, int] = {}

        def ack(message: Any = message, done: dict[str, int] = done) -> None:
            done["ack"] = others[0].ack(message)

        def nack(message: Any = message, done: dict[str, int] = done) -> None:
            done["nack"] = others[1].nack(message)

        at_once([ack, nack] if number % 2 else [nack, ack])
        again = queue.read("workers", "one")
        if done["ack"]:
            assert again is None
        else:
            assert done["nack"] == 1
            assert (again.id, again.attempts) == (message.id, 2)
            assert queue.ack(again) == 1
        outcomes.update(what for what, number in done.items() if number)
    assert queue.length() == 0
    assert outcomes["ack"] + outcomes["nack"] >= 60


def test_deleting_a_queue_in_use_breaks_nobody_and_what_comes_later_is_whole(
    server: AnyReal,
) -> None:
    done = threading.Event()
    left = [2]

    def write() -> None:
        queue = queue_on(server)
        try:
            for number in range(150):
                queue.write(f"tenant-{number % 7}", {"n": number})
        finally:
            left[0] -= 1
            if not left[0]:
                done.set()

    def read(group: str) -> None:
        queue = queue_on(server)
        while not done.is_set():
            message = queue.read(group, "one", block=0.01)
            if message is not None:
                queue.ack(message)

    def delete() -> None:
        queue = queue_on(server)
        while not done.wait(0.02):
            queue.delete()

    at_once([write, write, lambda: read("first"), lambda: read("second"), delete])
    queue = queue_on(server)
    queue.delete()
    assert queue.length() == 0
    written = [queue.write(f"tenant-{number}", {"n": number}) for number in range(40)]
    for group in ("first", "second"):
        assert sorted(message.id for message in all_of(queue, group)) == sorted(written)
