"""Law 6 for the short paths of a log: killed or cut off at any command, nothing is lost or doubled.

A group's read and `ack` in its usual state, and an append into the middle of a block.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.store.scripts import load
from workstealing.structures import Log

pytestmark = pytest.mark.real

BLOCK = 100
FILLED = 20
LATE_MS = 3_600_000
READ = load("log/group_read").sha.encode()
SHORT_APPEND = load("log/append_short").sha.encode()
KINDS: dict[str, dict[str, Any]] = {"plain": {}, "acknowledged": {"ack": True, "lease": 600}}


def on(door: FaultyServer, retries: int = 0) -> Any:
    return redis.Redis(port=door.port, protocol=2, retry=Retry(NoBackoff(), retries))


def filled(client: Any, options: dict[str, Any]) -> Log:
    """Return a log with a group of which the next read is usual."""
    client.flushall()
    log = Log(client, "log", BLOCK)
    log.append(*(b"%d" % each for each in range(FILLED)))
    log.group("g", **options).stats()
    return log


def scripts_of(door: FaultyServer) -> list[bytes]:
    """Return the digests of the scripts that were asked for."""
    return [each.command[1] for each in door.seen if each.name == "EVALSHA"]


def full_paths(client: Any) -> int:
    """Return how often scripts have looked at turns, as the full path of a group does."""
    return int(client.info("commandstats").get("cmdstat_llen", {}).get("calls", 0))


@pytest.mark.parametrize("path", ["short", "full"])
@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_read_whose_reply_is_cut_off_gets_the_same_entries(
    redis7: RedisServer, options: dict[str, Any], count: int, path: str
) -> None:
    direct = redis7.client()
    log = filled(direct, options)
    if path == "full":
        # Something that the short path does not look into.
        direct.hset(log.keys.group("g").revived, "99", "revived")
    log.group("other").read(1)
    with FaultyServer(redis7.port) as door:
        client = on(door, retries=3)
        client.ping()
        group: Any = Log(client, "log", BLOCK).group("g", **options)
        before = full_paths(direct)
        door.fail(len(door.names()) + 1, "cut")
        found = group.read(count)
        assert scripts_of(door).count(READ) == 2
    # The receipt is the full path's alone.
    assert full_paths(direct) - before == {"short": 1, "full": 2}[path]
    assert [each.offset for each in found] == list(range(count))
    assert [each.entry for each in found] == [b"%d" % each for each in range(count)]
    assert {each.attempts for each in found} == {1}
    assert [each.delivery for each in found] == list(range(1, count + 1))
    others: Any = log.group("g", **options)
    assert [each.offset for each in others.pending()] == (list(range(count)) if options else [])
    assert [each.offset for each in others.read(2)] == [count, count + 1]
    if options:
        assert others.ack(*found) == count


def read_and_ack(client: Any) -> None:
    """Read and acknowledge, all of it by the short path; 3 to 5 stay pending."""
    group: Any = Log(client, "log", BLOCK).group("g", **KINDS["acknowledged"])
    assert group.ack(*group.read(1)) == 1
    assert group.ack(*group.read(5)[:2]) == 2


@pytest.mark.slow
def test_a_reader_that_dies_at_any_command(redis7: RedisServer) -> None:
    direct = redis7.client()
    keys = filled(direct, KINDS["acknowledged"]).keys.group("g")
    before = full_paths(direct)
    read_and_ack(direct)
    assert full_paths(direct) == before
    deaths = 0
    with FaultyServer(redis7.port) as door:
        for death in every_death(
            [door],
            lambda: read_and_ack(redis.Redis(port=door.port, protocol=2)),
            lambda: filled(direct, KINDS["acknowledged"]),
        ):
            deaths += 1
            group: Any = Log(direct, "log", BLOCK).group("g", **KINDS["acknowledged"])
            offset, pending = group.offset(), {each.offset for each in group.pending()}
            assert offset in {0, 1, 6}, death
            assert set(range(offset)) - pending <= {0, 1, 2}, death
            assert {int(each) for each in direct.hkeys(keys.attempts)} == pending, death
            # Another member gets what the dead one has not acknowledged, and all others.
            late: Any = Log(direct, "log", BLOCK, clock_shift_ms=LATE_MS).group(
                "g", **KINDS["acknowledged"]
            )
            found = late.read(FILLED)
            assert {each.offset for each in found} == pending | set(range(offset, FILLED)), death
            assert {each.offset for each in found if each.attempts == 2} == pending, death
            assert late.ack(*found) == len(found), death
            assert not direct.exists(keys.pending, keys.attempts), death
    assert deaths > 2 * 4


def check_whole(log: Log, expected: list[bytes]) -> None:
    """See that the log has these entries, and that all that tells of them agrees."""
    client = log.client
    assert log.read(0, BLOCK) == expected
    assert client.llen(log.keys.block(0)) == int(client.hget(log.keys.meta, "next"))
    (newest,) = client.xrevrange(log.keys.news, count=1)
    assert newest[0] == b"%d-0" % len(expected)
    assert client.zrange(log.keys.times, 0, -1) == [b"0"]


def test_a_short_append_whose_reply_is_cut_off_and_that_is_repeated(redis7: RedisServer) -> None:
    """Its caller hears of it, and may append again; everybody's next append goes on behind it."""
    direct = redis7.client()
    direct.flushall()
    log = Log(direct, "log", BLOCK)
    with FaultyServer(redis7.port) as door:
        # Even where redis-py itself would send it again.
        mine = Log(on(door, retries=3), "log", BLOCK)
        for entry in (b"a", b"b", b"c"):
            mine.append(entry)
        door.fail(len(door.names()) + 1, "cut")
        with pytest.raises(redis.ConnectionError, match="it was not sent again"):
            mine.append(b"d", b"e")
        assert scripts_of(door)[-1] == SHORT_APPEND
        check_whole(log, [b"a", b"b", b"c", b"d", b"e"])
        assert mine.append(b"d", b"e") == 5
        assert scripts_of(door)[-2:] == [SHORT_APPEND] * 2
    assert log.append(b"f") == 7
    assert Log(direct, "log", BLOCK).append(b"g") == 8
    check_whole(log, [b"a", b"b", b"c", b"d", b"e", b"d", b"e", b"f", b"g"])


def append_shortly(client: Any) -> None:
    log = Log(client, "log", BLOCK)
    for entry in (b"a", b"b", b"c"):
        log.append(entry)


def test_a_writer_that_dies_at_any_command_of_its_short_appends(redis7: RedisServer) -> None:
    direct = redis7.client()
    deaths = 0
    with FaultyServer(redis7.port) as door:
        for death in every_death(
            [door],
            lambda: append_shortly(redis.Redis(port=door.port, protocol=2)),
            direct.flushall,
        ):
            deaths += 1
            log = Log(direct, "log", BLOCK)
            found = log.read(0, BLOCK)
            assert found == [b"a", b"b", b"c"][: len(found)], death
            # A process in its place repeats all of it; then another one appends.
            append_shortly(direct)
            assert log.append(b"d") == len(found) + 3, death
            check_whole(log, [*found, b"a", b"b", b"c", b"d"])
    assert deaths > 2 * 3
