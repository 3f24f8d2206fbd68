"""What is asked for in large numbers goes in scripts of bounded size."""

from __future__ import annotations

from support.recording import Recording
from support.servers import RedisServer
from workstealing.structures import TimeShardQueue
from workstealing.structures.time_shard_queue import RedisStore


def test_no_script_leases_or_lists_more_than_its_piece(redis7: RedisServer) -> None:
    seen = Recording(redis7.client())
    # On a busy machine the puts take longer than what is left of a minute's turn.
    queue = TimeShardQueue(RedisStore(seen), "q", max_attempts=1, period=1_000_000)
    expected = [queue.put(f"{i:04}", due=1_000 + i) for i in range(750)]
    taken = queue.take_many("worker", 700, lease=0.001, drain_all=True)
    assert [each.id for each in taken] == expected[:700]
    assert {each.attempts for each in taken} == {1}
    assert queue.ack(*taken[:450]) == 450
    # The others' leases have ended, and no attempt is left.
    rest = queue.take_many("worker", 700, drain_all=True)
    assert [each.id for each in rest] == expected[700:]
    dead = queue.dead(1_000)
    assert {each.id for each in dead} == set(expected[450:700])
    assert [each.id for each in queue.dead(230)] == [each.id for each in dead[:230]]
    assert queue.revive(*(each.id for each in dead)) == 250
    assert len(queue.take_many("worker", 1_000, drain_all=True)) == 250
    # Five values a message, six a dead one; ids in, or the settings of a call.
    assert seen.most_returned <= 1_210
    assert seen.most_given <= 210
