"""Eight processes take and give back leases: never two at once, and none starves."""

from __future__ import annotations

import pytest
import redis

from support.children import ended_well, in_child
from support.servers import RedisServer
from workstealing.structures import NoLease, ShardedIck

PROCESSES = 8
ICK_SHARDS = 5
LEASES = 60

pytestmark = pytest.mark.real


def take_leases(port: int, name: str) -> None:
    """Hold leases one after the other, and say so in a list of the ick shard."""
    with redis.Redis(port=port) as client:
        sharded: ShardedIck = ShardedIck(client, "orders")
        taken = 0
        while taken < LEASES:
            try:
                with sharded.lease(name, lease=600) as ick:
                    log = f"log:{ick.ick_shard}"
                    client.rpush(log, f"in {ick.lease_token}")
                    batch = ick.reserve(3)
                    # Each is dirty again at once, with a later score.
                    sharded.add([(member, score + 1000) for member, score in batch])
                    assert ick.ack(*batch.members) == len(batch)
                    client.rpush(log, f"out {ick.lease_token}")
                    taken += 1
            except NoLease:
                client.incr("none free")


@pytest.mark.slow
def test_one_holder_at_a_time_and_everybody_has_a_turn(redis7: RedisServer) -> None:
    client = redis7.client()
    sharded: ShardedIck = ShardedIck(client, "orders", ICK_SHARDS)
    sharded.add({f"m{i}": i for i in range(500)})
    port = redis7.port
    children = [
        in_child(lambda number=number: take_leases(port, f"w{number}"))
        for number in range(PROCESSES)
    ]
    for child in children:
        ended_well(child)
    counts = []
    for shard in range(ICK_SHARDS):
        log = [line.decode().split() for line in client.lrange(f"log:{shard}", 0, -1)]
        assert [what for what, _ in log] == ["in", "out"] * (len(log) // 2)
        tokens = [token for what, token in log if what == "in"]
        assert tokens == [token for what, token in log if what == "out"]
        assert tokens == sorted(set(tokens))
        counts.append(len(tokens))
    assert sum(counts) == PROCESSES * LEASES
    # Equal work: the ick shard that had the fewest leases had half of an equal share at least.
    assert min(counts) >= PROCESSES * LEASES / ICK_SHARDS / 2
    assert sharded.stats()["total_size"] == 500
    scores = sharded.stats()
    # Nobody fell behind for good: the oldest was not passed over while others had many turns.
    assert scores["total_max"] - scores["total_min"] <= 4000
