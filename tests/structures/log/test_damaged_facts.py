"""Facts of a log that are damaged alike: nothing goes on for ever, and no entry goes with them."""

from __future__ import annotations

from typing import Any

import pytest

from support.any_server import AnyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.recruiting.slice import Slice
from workstealing.structures import Log
from workstealing.structures.log.writing import MOST_IN_VAIN

pytestmark = pytest.mark.contract

FAR = 4_000_000_000_000


class Counted:
    """Counts the scripts that a client sends. Attribute: sent."""

    def __init__(self, client: Any) -> None:
        self.sent = 0
        send = client.execute_command

        def count(*words: Any, **options: Any) -> Any:
            self.sent += words[0] == "EVALSHA"
            assert self.sent <= 3 * MOST_IN_VAIN, "it goes on and on"
            return send(*words, **options)

        client.execute_command = count


def damaged(client: Any, end: int, **facts: int) -> Log:
    """Leave a log of 30 entries whose end, in two places, is another one."""
    log = Log(client, "l", block=10)
    log.append(*(str(each) for each in range(30)))
    client.hset(log.keys.meta, mapping={"next": end, **facts})
    client.delete(log.keys.news)
    client.xadd(log.keys.news, {"n": ""}, id=f"{end}-0")
    return log


@pytest.mark.parametrize("end", [FAR, 130, 1005])
@pytest.mark.parametrize("how", ["evict", "delete"])
def test_an_end_without_its_block_evicts_nothing(any_server: AnyServer, how: str, end: int) -> None:
    """It evicted everything, and freed blocks that were never there, 100 at a time."""
    client = any_server.client()
    log = damaged(client, end)
    blocks = [log.keys.block(each) for each in range(3)]
    counted = Counted(client)
    for made in (log, Log(client, "l", block=10), Log(client, "l")):
        counted.sent = 0
        with pytest.raises(LayoutError, match=rf"says '?{end}'? as next where"):
            made.evict(keep=1) if how == "evict" else made.delete()
        assert counted.sent <= 3
        assert client.hget(log.keys.meta, "first") == b"0"
        assert all(client.exists(each) for each in blocks)
    # By offsets its entries can go.
    assert log.evict(29) == 30
    assert not any(client.exists(each) for each in blocks)


def test_a_beginning_without_blocks_before_it_is_refused_after_a_bounded_time(
    any_server: AnyServer,
) -> None:
    client = any_server.client()
    log = damaged(client, FAR, first=FAR)
    counted = Counted(client)
    for evict in (lambda: log.evict(keep=0), lambda: log.evict(FAR), log.delete):
        counted.sent = 0
        with pytest.raises(LayoutError, match=f"says {FAR} as the offset at which it begins"):
            evict()
        # The first one frees the blocks that are there.
        assert counted.sent <= MOST_IN_VAIN + 2


def test_a_log_of_many_blocks_is_evicted_whole(any_server: AnyServer) -> None:
    client = any_server.client()
    log = Log(client, "l", block=1)
    for _ in range(3):
        log.append(*(str(each) for each in range(200)))
    # Lost blocks, which are fewer than would be refused.
    client.delete(*(log.keys.block(each) for each in range(100, 400)))
    assert Log(client, "l").evict(keep=2) == 598
    assert client.hget(log.keys.meta, "kept") == b"598"
    assert log.evict(keep=0) == 2
    assert log.delete() is True
    assert any_server.size() == 0


@pytest.mark.parametrize("block", [1, 10])
@pytest.mark.parametrize("keep", [0, 5])
def test_a_log_that_grows_all_the_time_is_evicted(
    any_server: AnyServer, block: int, keep: int
) -> None:
    """If it grew by a block in each round trip, it was refused as damaged."""
    log = Log(any_server.client(), "l", block=block)
    log.append(*(str(each) for each in range(300)))
    client = any_server.client()
    counted = Counted(client)
    send, grows = client.execute_command, True

    def grow(*words: Any, **options: Any) -> Any:
        if grows and words[0] == "EVALSHA":
            log.append(*("later" for _ in range(2 * block)))
        return send(*words, **options)

    client.execute_command = grow
    for made in (Log(client, "l", block=block), Log(client, "l")):
        counted.sent = 0
        before = log.length()
        assert made.evict(keep=keep) >= before - keep
        assert counted.sent <= 10
        assert log.length() >= keep
    grows = False
    assert made.delete() is True
    assert any_server.size() == 0


@pytest.mark.parametrize("end", [FAR, 130])
@pytest.mark.parametrize("bounds", [{"max_entries": 5}, {"max_bytes": 1}])
def test_a_recruit_evicts_nothing_either(
    any_server: AnyServer, bounds: dict[str, int], end: int
) -> None:
    """It evicted all entries, some blocks in each slice."""
    client = any_server.client()
    log = damaged(client, end)
    # fakeredis does not say how large a key is.
    job = LogTrimmer(log, **(bounds if any_server.is_real else {"max_entries": 5}))
    for look in (lambda: job.perform(Slice(2, 30.0)), job.backlog):
        with pytest.raises(LayoutError, match=rf"says '?{end}'? as next where"):
            look()
    assert client.hget(log.keys.meta, "first") == b"0"
    assert all(client.exists(log.keys.block(each)) for each in range(3))
    # By age its entries go.
    late = LogTrimmer(Log(client, "l", block=10, clock_shift_ms=3_600_000), max_age=60)
    assert late.perform(Slice(3, 30.0)) == 3


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("latest", ("HSET", "latest", b"d" * 16, "junk")),
        ("latest", ("HSET", "latest", b"d" * 16, "-1")),
        ("latest", ("HSET", "latest", "noted", "junk")),
        ("latest", ("HSET", "latest", "noted", "31")),
        ("latest", ("HSET", "latest", "scan", "junk")),
        ("compact_by", ("HSET", "latest", "rule", b"\xff")),
        ("superseded", ("ZADD", "superseded", 9, "junk")),
        ("superseded", ("ZADD", "superseded", 9, "-1")),
    ],
)
def test_notes_of_compaction_by_key_that_are_damaged_are_not_believed(
    any_server: AnyServer, what: str, damage: tuple[Any, ...]
) -> None:
    client = any_server.client()
    log = Log(client, "l", block=10, compact_by=lambda data: data)
    log.append(*(str(each) for each in range(25)))
    job = LogCompactor(log, cold=0, codec="none", superseded=1, random=lambda: 0.0)
    while job.backlog().count:
        job.perform(Slice(1, 10.0))
    log.append(*(str(each) for each in range(25, 30)))
    log.evict(4)
    key = {"latest": log.keys.latest, "superseded": log.keys.superseded}[damage[1]]
    client.execute_command(damage[0], key, *damage[2:])
    before = client.hgetall(log.keys.latest), client.zrange(log.keys.superseded, 0, -1)
    error, text = LayoutError, rf"{what}.* where"
    if what == "compact_by":
        error, text = ConfigurationError, what
    with pytest.raises(error, match=text):
        job.perform(Slice(1, 10.0))
    after = client.hgetall(log.keys.latest), client.zrange(log.keys.superseded, 0, -1)
    assert after == before
    assert log.read(5, 99) == [b"%d" % each for each in range(5, 30)]
