"""What a queue and its namespace tell the dashboard, `doctor` and `drain`, on any client."""

from __future__ import annotations

from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.reapers import reaper_after
from support.servers import AnyServer, RedisServer
from workstealing.errors import LayoutError
from workstealing.jobs import QueueExpiry, ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import AsyncShuffleQueue, ShuffleQueue
from workstealing.structures.shuffle_queue import QueueNamespace
from workstealing.structures.structure import FAULT, NOTE, OK, Structure


def asked(structure: Structure, name: str) -> Any:
    return structure.inspect(getattr(structure, name)())


def with_dead(queue: ShuffleQueue, group: str, messages: int) -> list[str]:
    """Let messages fail too often for a group; return their ids."""
    ids = [queue.write("t", {"n": number}) for number in range(messages)]
    reaper = reaper_after(1, queue, lease=0.001, random=lambda: 0.0)
    while len(queue.dead(group)) < messages:
        queue.read(group, "c")
        reaper.perform(Slice(100, 10.0))
    return ids


def test_a_queue_tells_its_size_and_its_dead(any_server: AnyServer) -> None:
    queue = ShuffleQueue(any_server.client(), "mails", streams=8)
    assert (queue.kind, queue.name) == ("shuffle queue", "mails")
    assert (asked(queue, "size_steps"), asked(queue, "dead_steps")) == (0, ())
    ids = with_dead(queue, "g", 3)
    queue.write("t", {"n": "waits"})
    assert asked(queue, "size_steps") == 1
    (box,) = asked(queue, "dead_steps")
    assert (box.name, box.size) == ("group g", 3)
    page = queue.inspect(box.list_steps(2))
    assert {each.member for each in page} < set(ids)
    assert (len(page), page.more) == (2, 1)
    assert page[0].error == "delivered once and never acknowledged"
    assert queue.inspect(box.revive_steps([ids[0]])) == 1
    assert queue.inspect(box.discard_steps(ids)) == 2
    assert (asked(queue, "dead_steps"), asked(queue, "size_steps")) == ((), 2)


@pytest.mark.real
async def test_a_queue_on_an_asyncio_client_tells_the_same(redis7: RedisServer) -> None:
    ids = with_dead(ShuffleQueue(redis7.client(), "mails", streams=8), "g", 2)
    async with redis7.async_client() as client:
        queue = AsyncShuffleQueue(client, "mails", streams=8)
        (box,) = asked(queue, "dead_steps")
        assert [each.member for each in queue.inspect(box.list_steps(9))] == ids
        assert queue.inspect(box.revive_steps(ids)) == 2
        assert asked(queue, "size_steps") == 2
        assert [each.level for each in asked(queue, "check_steps")] == [OK]
        assert asked(QueueNamespace(client), "size_steps") == 1


def test_a_queue_is_checked(any_server: AnyServer) -> None:
    client = any_server.client()
    queue = ShuffleQueue(client, "mails")
    (check,) = asked(queue, "check_steps")
    assert (check.level, check.said) == (
        NOTE,
        "namespace shuffle_queues: nothing has been written yet",
    )
    queue.write("t", {"n": 1})
    (check,) = asked(queue, "check_steps")
    assert (check.level, check.said) == (
        OK,
        "namespace shuffle_queues: streams, layout version 1",
    )
    client.hset(queue.keys.meta, "namespace", "others")
    (check,) = asked(queue, "check_steps")
    assert check.level == FAULT
    assert "belongs to the namespace others" in check.said
    client.hset(queue.keys.meta, "mark", "7")
    with pytest.raises(LayoutError, match="says 7 where 1 was expected"):
        asked(queue, "check_steps")
    client.delete(queue.keys.meta)
    client.set(queue.keys.meta, "foreign")
    with pytest.raises(LayoutError, match="holds another type"):
        asked(queue, "check_steps")


def test_jobs_name_their_structures(any_server: AnyServer) -> None:
    queue = ShuffleQueue(any_server.client(), "mails")
    assert ShuffleQueueReaper(queue).structures == (queue,)
    (namespace,) = QueueExpiry(queue).structures
    assert (namespace.kind, namespace.name) == ("shuffle queues", "shuffle_queues")
    assert asked(namespace, "size_steps") == 0
    queue.write("t", {"n": 1})
    assert asked(namespace, "size_steps") == 1
