"""A sweeper whose connection is cut, or which is killed, at each of its commands loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.breaks import KINDS, every_break
from support.deaths import every_death
from support.faults import HANDSHAKE, client_of
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.time_shards import (
    Wall,
    assert_sound,
    end_leases,
    held,
    names_of,
    only_layout_is_left,
    queue_on,
)
from workstealing.errors import Aborted
from workstealing.jobs import TimeShardSweeper
from workstealing.recruiting import Slice

pytestmark = pytest.mark.real

SHARD = names_of()[0]
COMMANDS = [
    *("WATCH", "TIME", "ZRANGE", "SRANDMEMBER", "ZRANGE", "SCARD"),
    *("MULTI", "EVAL", "EXEC"),
]
LIMIT = 50


class Case:
    """A time shard with something of each kind in it, and what must come of it.

    Arguments: a client of the server. Messages are named after what becomes of them.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.wall = Wall()
        self.queue = queue_on(client, self.wall)
        start = self.wall.seconds
        names = ["acked", "late", "released", "deleted", "returned", "poison"]
        ids = [self.queue.put(name, 1.0) for name in names]
        self.wall.seconds = start + 121
        self.taken = {each.message.decode(): each for each in self.queue.take_many("c", 6, 600.0)}
        assert sorted(each.id for each in self.taken.values()) == sorted(ids)
        self.waiting = self._put_waiting(start)
        end_leases(client, SHARD)
        poison = self.taken["poison"].id
        client.hset(SHARD.history, poison, "5 0 1000 0 c")
        self.queue.ack(self.taken["acked"])
        self.queue.cancel(self.taken["deleted"].id)
        self.queue.release(self.taken["released"])
        self.wall.seconds = start + 241

    def _put_waiting(self, start: float) -> str:
        now, self.wall.seconds = self.wall.seconds, start
        waiting = self.queue.put("waiting", 1.0)
        self.wall.seconds = now
        return waiting

    def sweep(self, client: Any) -> int:
        queue = queue_on(client, self.wall)
        return TimeShardSweeper(queue, LIMIT, random=lambda: 0.5).perform(Slice(LIMIT, 5.0))

    def sweep_all(self) -> None:
        """Sweep until nothing is left; what is still on its way may abort one of the slices."""
        aborted = 0
        for _ in range(5):
            try:
                if not self.sweep(self.client):
                    return
            except Aborted:
                aborted += 1
                assert aborted == 1
        raise AssertionError("five slices did not do what one can do")

    def check(self) -> None:
        """Sweep with a good connection whatever is left, and see that nothing has gone wrong."""
        assert_sound(self.client, SHARD)
        # An acknowledgement wins, however late it comes.
        assert self.queue.ack(self.taken["late"]) == 1
        self.sweep_all()
        names = {each.id.encode(): name for name, each in self.taken.items()}
        names[self.waiting.encode()] = "waiting"
        found = held(self.client, SHARD)
        assert {names[i] for i in found["waiting"]} == {"released", "returned", "waiting"}
        assert {names[i] for i in found["dead"]} == {"poison"}
        assert found["consumed"] == set()
        assert found["leased"] == found["released"] == {}
        assert_sound(self.client, SHARD)
        # Each attempt was counted once, and the released one's was forgotten.
        self.wall.seconds += 4 * 60
        again = self.queue.take_many("again", 10, 600.0)
        attempts = {each.message.decode(): each.attempts for each in again}
        assert attempts == {"released": 1, "returned": 2, "waiting": 1}
        self.queue.ack(*again)
        self.queue.cancel(self.taken["poison"].id)
        self.wall.seconds += 2 * 60
        assert self.sweep(self.client) == 4
        only_layout_is_left([self.client])


def test_an_attempt_sends_what_these_tests_expect(
    backend: RedisServer, faulty: FaultyServer
) -> None:
    case = Case(backend.client(db=1))
    assert case.sweep(client_of(faulty.port)) == 6
    assert faulty.names() == [*HANDSHAKE, *COMMANDS]
    case.check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_breaks_at_each_command(
    backend: RedisServer,
    faulty: FaultyServer,
    kind: str,
) -> None:
    """Whether or not the command has come to be done."""
    expected = [*HANDSHAKE, *COMMANDS]
    direct = backend.client(db=1)
    cases: list[Case] = []

    def prepare() -> None:
        direct.flushdb()
        cases[:] = [Case(direct)]

    def work(client: redis.Redis) -> None:
        cases[0].sweep(client)

    for _ in every_break(faulty, kind, expected, prepare, work):
        cases[0].check()


@pytest.mark.slow
def test_a_sweeper_that_is_killed_before_or_after_each_command(redis7: RedisServer) -> None:
    direct = redis7.client()
    cases: list[Case] = []

    def prepare() -> None:
        direct.flushall()
        cases[:] = [Case(direct)]

    with FaultyServer(redis7.port) as door:

        def work() -> None:
            cases[0].sweep(redis.Redis(port=door.port, protocol=2))

        deaths = 0
        for _ in every_death([door], work, prepare):
            cases[0].check()
            deaths += 1
    assert deaths >= 2 * len(COMMANDS)


@pytest.mark.slow
def test_a_sweeper_of_a_full_server_that_is_killed(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    direct = server.client()
    cases: list[Case] = []

    def prepare() -> None:
        direct.config_set("maxmemory", 0)
        direct.flushall()
        cases[:] = [Case(direct)]
        direct.config_set("maxmemory", 1)

    with FaultyServer(server.port) as door:

        def work() -> None:
            cases[0].sweep(redis.Redis(port=door.port, protocol=2))

        for _ in every_death([door], work, prepare):
            direct.config_set("maxmemory", 0)
            cases[0].check()
