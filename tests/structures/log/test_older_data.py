"""A server that comes back with older data gives offsets again: no client shows what was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.compacted_logs import compact, entries, made
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.structures import Log
from workstealing.structures.log import reading


def saved(client: Any) -> Callable[[], None]:
    """Return what brings back all that a server has now, as a restart from an old file does."""
    kept = {key: client.dump(key) for key in client.scan_iter()}

    def restore() -> None:
        client.flushall()
        for key, value in kept.items():
            client.restore(key, 0, value)

    return restore


def seen_and_lost(server: RedisServer, group: str | None = None) -> tuple[Log, list[bytes]]:
    """Return a log, blocks of which it has kept whose entries are others by now, and all entries.

    Arguments:
        group: of the log's, at the entry that the older data ends with.
    """
    log = made(server.client(), 17)
    if group is not None:
        log.group(group).seek(15)
    restore = saved(log.client)
    log.append(*entries(53, 17))
    for _ in range(2):
        compact(log.client, cold=0)
    assert log.read(0, 50) == entries(50)
    assert len(log.cache) == 5
    restore()
    new = [b"new %d" % number for number in range(17, 42)]
    Log(server.client(), "l").append(*new)
    return log, entries(17) + new


@pytest.mark.parametrize(("offset", "count"), [(15, 10), (20, 5), (16, 100), (-12, 3), (30, 1)])
def test_a_read_shows_what_is_there_now(redis7: RedisServer, offset: int, count: int) -> None:
    log, now = seen_and_lost(redis7)
    for _ in range(2):
        assert log.read(offset, count) == now[offset : offset + count]
    assert log.read(0, 10) == entries(10)


def test_so_it_does_if_something_else_has_seen_it(redis7: RedisServer) -> None:
    log, now = seen_and_lost(redis7)
    assert log.append(b"x") == 42
    # By now it is as long as it was when it was read.
    Log(redis7.client(), "l").append(*[b"y"] * 20)
    assert log.read(10, 33) == [*now[10:], b"x"]


def test_so_it_does_if_an_append_has_made_it_longer(redis7: RedisServer) -> None:
    log, now = seen_and_lost(redis7)
    Log(redis7.client(), "l").append(*[b"y"] * 9)
    # One reply says both that it was shorter and that it is longer.
    assert log.append(*[b"x"] * 5) == 51
    assert log.read(15, 5) == now[15:20]


def test_a_reply_that_another_has_overtaken_is_no_older_data(redis7: RedisServer) -> None:
    log = made(redis7.client(), 25)
    for _ in range(2):
        compact(log.client, cold=0)
    assert log.read(0, 20) == entries(20)
    Log(redis7.client(), "l").append(b"x")
    steps = log.read_steps(20, 1)
    step = next(steps)
    late = log.client.execute_command(*step.by_text(), **step.options)
    assert log.append(b"x") == 26
    with pytest.raises(StopIteration) as told:
        steps.send(late)
    assert told.value.value[1] == entries(21, 20)
    assert len(log.cache) == 2


def test_a_group_hands_out_what_is_there_now(redis7: RedisServer) -> None:
    log, now = seen_and_lost(redis7, "g")
    group = log.group("g")
    assert [each.entry for each in group.read(5)] == now[15:20]
    assert [each.entry for each in group.read(100)] == now[20:]


def test_a_read_in_parts_ends_where_the_log_ends_now(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCKS_A_SCRIPT", 2)
    log = made(redis7.client(), 15)
    restore = saved(log.client)
    log.append(*entries(60, 15))
    script, calls = log.script, 0

    def counted(name: str) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            restore()
        assert calls < 10, "it never ends"
        return script(name)

    log.script = counted  # type: ignore[method-assign]
    info, found = log.read_range(0, 60)
    assert found == entries(20)
    assert (info.last, info.number) == (14, 20)
