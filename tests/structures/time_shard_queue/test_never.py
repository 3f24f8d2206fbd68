"""The latest moment that Python knows, by which programs say never."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from support.servers import AnyServer
from support.set_clock import SetClock
from support.time_shard_queues import TURN, queue_on, totals
from workstealing.errors import ConfigurationError


def test_a_message_may_be_due_never(any_server: AnyServer) -> None:
    clock = SetClock()
    queue = queue_on(any_server, clock)
    queue.put("never", due=datetime.max.replace(tzinfo=UTC))
    clock.go(TURN)
    assert queue.take("worker", drain_all=True) is None
    assert totals(queue) == {"waiting": 1}
    with pytest.raises(ConfigurationError, match="before the year 10000"):
        queue.put("later", due=datetime.max.replace(tzinfo=UTC).timestamp() + 1)
    with pytest.raises(ConfigurationError, match="before the year 10000"):
        queue.put("later", due=timedelta.max)


def test_it_may_be_released_for_never(any_server: AnyServer) -> None:
    clock = SetClock()
    queue = queue_on(any_server, clock)
    queue.put("now")
    clock.go(TURN)
    taken = queue.take("worker")
    assert taken is not None
    assert queue.release(taken, due=datetime.max.replace(tzinfo=UTC))
    assert queue.take("worker", drain_all=True) is None
    assert totals(queue) == {"waiting": 1}
