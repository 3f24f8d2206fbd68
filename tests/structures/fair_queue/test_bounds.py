"""Numbers that grow for years: the virtual time of a queue with many workers and small weights."""

from __future__ import annotations

import pytest

from support.any_server import AnyServer
from workstealing.structures import FairQueue

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("start", [2**53 - 10, 10**18, 10**25])
def test_a_virtual_time_of_many_years(any_server: AnyServer, start: int) -> None:
    queue = FairQueue(any_server.client(), "jobs")
    queue.write("first", {"n": 0})
    queue.client.hset(queue.keys.meta, "now", start)
    queue.set_rule("small", weight=0.001)
    for number in range(40):
        queue.write("small", {"n": number})
        queue.write("great", {"n": number})
    served = []
    while (message := queue.read("worker")) is not None:
        served.append(message.account)
        assert queue.ack(message) == 1
    assert len(served) == 81
    assert queue.length() == 0
    assert queue.explain_wait("small").state is not None
    now = queue.client.hget(queue.keys.meta, "now")
    assert now is not None
    assert int(now) >= start
