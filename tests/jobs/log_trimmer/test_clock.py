"""LogTrimmer where the server's clock was wrong for a while, or a block's time is not known."""

from __future__ import annotations

from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.jobs import LogTrimmer
from workstealing.recruiting import Slice
from workstealing.structures import Log

BLOCK = 4
DAY_S = 86_400
YEAR_S = 365 * DAY_S


def log_on(client: Any, *, late_s: float = 0.0) -> Any:
    return Log(client, "log", BLOCK, clock_shift_ms=int(late_s * 1000))


def drain(job: LogTrimmer) -> int:
    handled = 0
    while done := job.perform(Slice(job.limit, 10.0)):
        handled += done
    return handled


@pytest.mark.parametrize("limit", [1, 10])
def test_blocks_of_a_time_to_come_hold_up_none_that_are_old(
    any_server: AnyServer, limit: int
) -> None:
    client = any_server.client()
    log_on(client, late_s=YEAR_S).append(*[b"x"] * 3 * BLOCK)
    log_on(client).append(*[b"x"] * 2 * BLOCK)
    # What comes before an entry is no younger than it, whatever the clock has said.
    job = LogTrimmer(log_on(client, late_s=DAY_S), limit, max_age=3600)
    backlog = job.backlog()
    assert backlog.count == 5
    assert drain(job) == 5
    assert job.backlog().count == 0
    assert log_on(client).length() == 0


def test_while_nothing_behind_them_is_old_they_stay(redis7: RedisServer) -> None:
    client = redis7.client()
    log_on(client, late_s=YEAR_S).append(*[b"x"] * 3 * BLOCK)
    log_on(client).append(*[b"x"] * 2 * BLOCK)
    job = LogTrimmer(log_on(client, late_s=1800), 10, max_age=3600)
    assert job.backlog().count == 0
    assert drain(job) == 0


def test_however_many_times_are_lost_a_slice_of_one_goes_on(redis7: RedisServer) -> None:
    client = redis7.client()
    log = log_on(client)
    log.append(*[b"x"] * 5 * BLOCK)
    client.zrem(log.keys.times, 0, 1, 2)
    job = LogTrimmer(log_on(client, late_s=DAY_S), 1, max_age=3600)
    assert job.backlog().count == 5
    assert drain(job) == 5
