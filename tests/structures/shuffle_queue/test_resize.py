"""Growing and shrinking the number of streams while producers and consumers run."""

from __future__ import annotations

import random
import threading

import pytest

from support.servers import AnyServer, RedisServer
from workstealing.structures import ShuffleQueue


def test_what_lies_in_streams_beyond_the_number_is_read(any_server: AnyServer) -> None:
    """The published queue checked streams w+1 on, where those from w on are beyond the number."""
    client = any_server.client()
    wide = ShuffleQueue(client, "q", streams=16, streams_per_tenant=16)
    ids = [wide.write("a", {"n": n}) for n in range(16)]
    assert {each.split("-")[0] for each in ids} == {str(n) for n in range(16)}
    narrow = ShuffleQueue(client, "q", streams=4)
    ids.append(narrow.write("a", {"n": 16}))
    found = [narrow.read("g", "c") for _ in range(17)]
    assert sorted(message.id for message in found if message) == sorted(ids)
    assert narrow.read("g", "c") is None
    assert (narrow.length(), narrow.ack(*filter(None, found)), wide.length()) == (17, 17, 0)


def test_what_a_wider_writer_writes_is_read_by_a_narrow_reader(any_server: AnyServer) -> None:
    client = any_server.client()
    narrow = ShuffleQueue(client, "q", streams=2, streams_per_tenant=2)
    assert narrow.read("g", "c") is None
    wide = ShuffleQueue(client, "q", streams=600, streams_per_tenant=300)
    for n in range(40):
        wide.write("a", {"n": n})
    assert len([m for m in (narrow.read("g", "c") for _ in range(40)) if m]) == 40
    assert (narrow.read("g", "c"), narrow.length()) == (None, 40)
    new = ShuffleQueue(client, "q", streams=2, streams_per_tenant=2)
    assert len(new.read_many("h", "c", 100)) == 40


@pytest.mark.real
def test_nothing_is_stranded_while_everybody_changes_the_number(redis7: RedisServer) -> None:
    each, producers, consumers = 150, 3, 3
    widths = [4, 64, 8, 1, 32, 128, 2]
    written: list[str] = []
    found: list[str] = []
    done = threading.Event()

    def queue(width: int) -> ShuffleQueue:
        return ShuffleQueue(redis7.client(), "q", streams=width, streams_per_tenant=min(4, width))

    def produce(seed: int) -> None:
        draw = random.Random(seed)
        queues = [queue(width) for width in widths]
        written.extend(
            draw.choice(queues).write(f"tenant {draw.random()}", {"n": n}) for n in range(each)
        )

    def consume(seed: int) -> None:
        draw = random.Random(seed)
        queues = [queue(width) for width in widths]
        while True:
            # Whoever asks after the last write must be given all that is left.
            is_last = done.is_set()
            message = draw.choice(queues).read("g", f"c{seed}")
            if message is not None:
                found.append(message.id)
                queues[0].ack(message)
            elif is_last:
                return

    makers = [threading.Thread(target=produce, args=(n,)) for n in range(producers)]
    takers = [threading.Thread(target=consume, args=(n,)) for n in range(consumers)]
    for thread in (*makers, *takers):
        thread.start()
    for thread in makers:
        thread.join()
    done.set()
    for thread in takers:
        thread.join()
    assert len(written) == each * producers
    assert sorted(found) == sorted(written)
    assert queue(128).length() == 0
