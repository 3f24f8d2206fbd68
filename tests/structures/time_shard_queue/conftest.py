"""A TimeShardQueue on every kind of server, and the clock that it goes by."""

from __future__ import annotations

import pytest

from support.servers import AnyServer
from support.set_clock import SetClock
from support.time_shard_queues import queue_on
from workstealing.structures import TimeShardQueue


@pytest.fixture
def clock() -> SetClock:
    """The time of day, which the test sets."""
    return SetClock()


@pytest.fixture
def queue(any_server: AnyServer, clock: SetClock) -> TimeShardQueue:
    """An empty queue."""
    return queue_on(any_server, clock)
