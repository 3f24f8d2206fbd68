"""Law 6 for TimeShardQueue, killed for real: whatever the dead leave behind, sweepers find."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.deaths import deaths_among, doors_of, every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from support.time_shard_queues import is_receipt
from support.time_shards import (
    PERIOD,
    START,
    Wall,
    end_leases,
    finish,
    names_of,
    only_layout_is_left,
    queue_on,
    sweep_away,
)
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice
from workstealing.store.keys import key_slot

pytestmark = pytest.mark.real


def live(client: Any, name: str = "queue") -> None:
    """Use every command of a queue in turn, from one turn of a time shard to the next."""
    wall = Wall()
    queue = queue_on(client, wall, name=name, max_attempts=1)
    ids = [queue.put(f"message {number}", 1.0) for number in range(6)]
    queue.cancel(ids[0])
    wall.seconds = START + 2 * PERIOD
    acked, released, dies = queue.take_many("consumer", 3, 0.001)
    queue.extend(dies, 0.001)
    queue.ack(acked)
    queue.release(released)
    queue.take("consumer", 0.001)
    for dead in queue.dead():
        queue.revive(dead.id)
    wall.seconds = START + 4 * PERIOD
    TimeShardSweeper(queue, 5, random=lambda: 0.5).perform(Slice(5, 5.0))
    for dead in queue.dead():
        queue.discard(dead.id)


def clear_out(client: Any, nodes: list[redis.Redis], names: list[str]) -> None:
    """Do by a new process what the dead one had left to do, and see that nothing remains."""
    for name in names:
        wall = Wall(START + 6 * PERIOD)
        queue = queue_on(client, wall, name=name)
        for keys in names_of(name=name):
            end_leases(client, keys)
        finish(queue, wall)
        queue.discard(*(each.id for each in queue.dead()))
    only_layout_is_left(nodes, names=names)


@pytest.mark.slow
def test_a_process_that_dies_at_any_command(redis7: RedisServer) -> None:
    direct = redis7.client()

    def prepare() -> None:
        direct.flushall()

    with FaultyServer(redis7.port) as door:

        def work() -> None:
            live(redis.Redis(port=door.port, protocol=2))

        for _ in every_death([door], work, prepare):
            clear_out(direct, [direct], ["queue"])


def kept_keys(client: redis.Redis) -> int:
    """Count the keys that the server does not remove by itself."""
    return sum(not is_receipt(client, key) for key in client.scan_iter(count=1000))


def test_an_idle_queue_gives_its_memory_back(start_redis: Callable[..., RedisServer]) -> None:
    client = start_redis(7).client()
    wall = Wall()
    queue = queue_on(client, wall)
    for number in range(6):
        wall.seconds = START + number * PERIOD
        queue.put("the first")
    finish(queue, wall)
    only_layout_is_left([client])
    keys, before = kept_keys(client), client.info("memory")["used_memory"]
    for number in range(6):
        wall.seconds = START + (100 * 6 + number) * PERIOD
        for _ in range(200):
            queue.put("x" * 1000, 1.0)
    assert client.info("memory")["used_memory"] > before + 1_000_000
    assert len(finish(queue, wall)) == 1_200
    assert kept_keys(client) == keys == 7
    assert client.info("memory")["used_memory"] < before + 300_000


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_with_hundreds_of_untagged_queues(cluster: RedisCluster3) -> None:
    """Processes die one after the other on three masters; others do what they had left."""
    names = [f"queue:{number}" for number in range(100)]
    keys = [each.mark for name in names for each in names_of(name=name)]
    assert len({key_slot(key) for key in keys}) >= 500
    direct = cluster.client()
    nodes = [node.client() for node in cluster.nodes]
    with doors_of(cluster) as (doors, client):
        todo = iter(names)

        def work(_: int) -> Callable[[], None]:
            mine = next(todo)
            return lambda: live(client, mine)

        assert deaths_among(doors, 12, work) > 16
        for name in itertools.islice(todo, None):
            live(direct, name)
    clear_out(direct, nodes, names)


def test_what_was_swept_once_is_swept_for_good(redis7: RedisServer) -> None:
    wall = Wall()
    queue = queue_on(redis7.client(), wall)
    late = queue.put("message", 1.0)
    wall.seconds = START + 2 * PERIOD
    queue.ack(*queue.take_many("consumer", 1))
    sweep_away(queue, wall)
    # An acknowledgement of what is no more leaves nothing behind.
    assert queue.ack(late) == 0
    assert queue.release(late) is False
    only_layout_is_left([redis7.client()])
