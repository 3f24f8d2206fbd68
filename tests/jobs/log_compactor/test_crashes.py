"""A compactor whose connection breaks, or which is killed, at each command loses nothing."""

from __future__ import annotations

import pytest
import redis

from support.breaks import KINDS, every_break
from support.compacted_logs import assert_sound, assert_whole, compact, compactor, forms, made
from support.deaths import every_death
from support.faults import HANDSHAKE, client_of
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.recruiting import Slice
from workstealing.structures.log import Log

pytestmark = pytest.mark.real

COUNT = 25
LOOK = ["HMGET", "TIME", "ZCARD", "ZRANGE", "ZRANGE", "ZCOUNT", "ZRANGE", "ZRANGE"]
SIZES = ["WATCH", "HMGET", *["TYPE", "ZSCORE", "MEMORY"] * 2]
SEALING = [
    *(*LOOK, *SIZES, "LRANGE", "LRANGE"),
    *("MULTI", *["ZREM", "SET", "ZADD"] * 2, "EXEC"),
]
# The first look has not known that two are cold, and their window is as wide.
COMPRESSING = [*LOOK, *SIZES, "GET", "GET", "MULTI", *["ZREM", "SET"] * 2, "EXEC"]


def prepared(client: redis.Redis, *, later: bool) -> Log:
    """Return a log with two blocks to be sealed, or two sealed ones to be compressed."""
    client.flushdb()
    log = made(client, COUNT)
    if later:
        assert compact(client) == 2
    return log


def slice_by(client: redis.Redis, *, later: bool) -> int:
    return compactor(client, later=later).perform(Slice(2, 5.0)) or 0


def check(client: redis.Redis, log: Log, *, later: bool) -> None:
    """See that nothing has gone wrong, and do with a good connection whatever is left."""
    assert forms(client, log) in ({"RRL", "SSL"} if later else {"LLL", "RRL"})
    assert_whole(client, COUNT)
    while slice_by(client, later=later):
        pass
    assert forms(client, log) == ("SSL" if later else "RRL")
    assert_sound(client, log)
    assert_whole(client, COUNT)
    log.delete()
    assert list(client.scan_iter("*")) == []


@pytest.mark.parametrize("later", [False, True])
def test_a_slice_sends_what_these_tests_expect(
    backend: RedisServer, faulty: FaultyServer, later: bool
) -> None:
    direct = backend.client(db=1)
    log = prepared(direct, later=later)
    assert slice_by(client_of(faulty.port), later=later) == 2
    assert faulty.names() == [*HANDSHAKE, *(COMPRESSING if later else SEALING)]
    check(direct, log, later=later)


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_breaks_at_each_command(
    backend: RedisServer,
    faulty: FaultyServer,
    kind: str,
    later: bool,
) -> None:
    """Whether or not the command has come to be done."""
    expected = [*HANDSHAKE, *(COMPRESSING if later else SEALING)]
    direct = backend.client(db=1)
    logs: list[Log] = []

    def prepare() -> None:
        logs[:] = [prepared(direct, later=later)]

    def work(client: redis.Redis) -> None:
        slice_by(client, later=later)

    for _ in every_break(faulty, kind, expected, prepare, work):
        check(direct, logs[0], later=later)


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
def test_a_compactor_that_is_killed_before_or_after_each_command(
    redis7: RedisServer, later: bool
) -> None:
    direct = redis7.client()
    logs: list[Log] = []

    def prepare() -> None:
        logs[:] = [prepared(direct, later=later)]

    with FaultyServer(redis7.port) as door:

        def work() -> None:
            slice_by(redis.Redis(port=door.port, protocol=2), later=later)

        deaths = 0
        for _ in every_death([door], work, prepare):
            check(direct, logs[0], later=later)
            deaths += 1
    assert deaths >= 2 * len(COMPRESSING if later else SEALING)
