"""What QueueExpiry leaves of a group whose dead messages wait for a person."""

from __future__ import annotations

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.reapers import reaper_after
from support.servers import AnyServer
from workstealing.jobs import QueueExpiry
from workstealing.recruiting import Slice
from workstealing.structures import ShuffleQueue


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_nothing_speaks_of_what_has_gone(any_server: AnyServer, limit: int) -> None:
    """A plan names streams that nobody has marked any more, a note entries that wait nowhere."""
    queue = ShuffleQueue(any_server.client(), "q", streams=8, streams_per_tenant=2)
    meta, names = queue.keys.meta, queue.keys.group("g")
    queue.write("poison", {"n": 0})
    assert queue.read("g", "c") is not None
    reaper = reaper_after(1, queue, lease=0.001)
    while not queue.dead("g"):
        reaper.perform(Slice(25, 1.0))
    for number in range(40):
        queue.write(f"t{number}", {"n": number})
    # No plan is made before each stream was read once.
    assert len(queue.read_many("g", "c", 8)) == 8
    assert queue.read("g", "c") is not None
    queue.client.hset(meta, "back:g", 1)
    assert queue.client.hget(meta, "plan:g") is not None

    due = queue._place
    assert due is not None
    queue.client.zadd(due[0], {queue.keys.name: 1})
    expiry = QueueExpiry(queue)
    for _ in range(100):
        if not expiry.perform(Slice(limit, 1.0)):
            break
    assert len(queue.dead("g")) == 1
    assert queue.client.exists(names.ring, names.pending, names.returned) == 0
    left = {bytes(field) for field in queue.client.hkeys(meta)}
    assert left & {b"plan:g", b"back:g"} == set()
    assert queue.revive("g", *[each.id for each in queue.dead("g")]) == 1
    again = queue.read("g", "c")
    assert again is not None
    assert again.fields == {b"n": b"0"}
