"""The Python blocks of docs/time_shard_queue.md run in order; its figures are the code's."""

from __future__ import annotations

import pytest

from support.pages import running, text_of
from support.servers import RedisServer
from support.set_clock import SetClock
from support.time_shard_queues import ahead_of, queue_on
from workstealing.structures.time_shard_queue.queue import MAX_ATTEMPTS
from workstealing.structures.time_shard_queue.rotation import Rotation


def test_the_blocks(redis7: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"`max_attempts` times ({MAX_ATTEMPTS})" in text_of("docs/time_shard_queue.md")
    sent: list[bytes] = []
    here = {"redis://localhost:6379/0": redis7.url}
    with running("docs/time_shard_queue.md", replace=here) as page:
        page.run(send=sent.append)
        assert sent == [b"call 18"]
        page.run(send=sent.append)
        assert sent == [b"call 18", b"wake up"]
        page.run()
        assert len(page.run()["ids"]) == 2
        page.run()
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert [line[0] for line in lines] == list("012345")
        assert sum(int(line[5]) for line in lines) == 4, "acknowledged and deleted, not cleared yet"


@pytest.mark.parametrize("time_shards", [4, 6, 9])
def test_how_long_a_message_waits_at_worst(time_shards: int) -> None:
    """For every millisecond at which it is put or becomes due, in periods of 10 ms."""
    period = 10
    rotation = Rotation(time_shards, period)
    at_once, late = set(), set()
    for put in range(1000, 1000 + period * time_shards):
        time_shard = rotation.producing(put)
        at_once.add(rotation.next_turn_ms(time_shard, put) - put)
        for due in range(put + 2 * period, put + 2 * period * time_shards):
            late.add(rotation.next_turn_ms(time_shard, due) - due)
    assert (min(at_once), max(at_once)) == (period + 1, 2 * period)
    assert max(late) == (time_shards - 1) * period


def test_a_dead_consumers_message_waits_for_its_lease_and_n_less_one_periods(
    redis7: RedisServer,
) -> None:
    clock = SetClock()
    queue = queue_on(redis7, clock, shards=4)
    queue.put("hello")
    clock.go(2 * 60)
    assert queue.take("dies", lease=60) is not None
    waited = 0
    # The clocks of the server and of the turns go on together, ten seconds at a time.
    while ahead_of(queue, clock, waited * 1000 + 500).take("other") is None:
        waited += 10
        clock.go(10)
    assert 60 < waited <= 60 + 3 * 60
