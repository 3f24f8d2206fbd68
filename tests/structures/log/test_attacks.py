"""What was found by attacking logs: damage, second lives, large entries and poison in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.compacted_logs import compact, entries, made
from support.faulty_server import FaultyServer
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import DamagedBlockError, UndecodableEntryError
from workstealing.structures import Log
from workstealing.structures.log import writing
from workstealing.structures.log.group import LogGroup

SPANS = [(0, 10), (3, 4), (4, 1), (4, 6), (2, 30)]


def cut_header(block: bytes) -> bytes:
    return block[:10]


def cut_table(block: bytes) -> bytes:
    return block[:20]


def cut_entries(block: bytes) -> bytes:
    return block[:-1]


def no_entries(block: bytes) -> bytes:
    return block[:56]


def changed_end(block: bytes) -> bytes:
    """Return a block whose fifth entry ends before it begins."""
    return block[:32] + b"\0\0\0\1" + block[36:]


def far_end(block: bytes) -> bytes:
    """Return a block whose fifth entry ends far behind it."""
    return block[:32] + b"\x10\0\0\1" + block[36:]


@pytest.mark.parametrize(
    "harm", [cut_header, cut_table, cut_entries, no_entries, changed_end, far_end]
)
def test_damage_of_a_raw_block_is_never_taken_for_entries(
    any_server: AnyServer, harm: Callable[[bytes], bytes]
) -> None:
    log = made(any_server.client())
    assert compact(any_server.client(), codec="none") == 3
    key = log.keys.block(0)
    log.client.set(key, harm(log.client.get(key)))
    for offset, count in SPANS:
        group = log.group(f"from {offset} to {offset + count}", start=offset)
        if harm is cut_entries and offset + count < 10:
            # What is asked for is not what was lost.
            assert log.read(offset, count) == entries(offset + count, offset)
            assert [each.entry for each in group.read(count)] == entries(offset + count, offset)
            continue
        with pytest.raises(DamagedBlockError):
            log.read(offset, count)
        with pytest.raises(DamagedBlockError):
            group.read(count)


def test_a_damaged_block_does_not_hold_up_a_group(any_server: AnyServer) -> None:
    log = made(any_server.client())
    assert compact(any_server.client(), codec="none") == 3
    group = log.group("mail", ack=True, lease=0.001, max_attempts=2)
    key = log.keys.block(0)
    whole = log.client.get(key)
    assert [entry.offset for entry in group.read(10)] == list(range(10))
    log.client.set(key, cut_header(whole))
    later = Log(log.client, log.name, clock_shift_ms=1000).group(
        "mail", ack=True, lease=0.001, max_attempts=2
    )
    with pytest.raises(DamagedBlockError):
        later.read(10)
    last = Log(log.client, log.name, clock_shift_ms=2000).group(
        "mail", ack=True, lease=0.001, max_attempts=2
    )
    found = last.read(10)
    assert [entry.offset for entry in found] == list(range(10, 20))
    dead = last.dead()
    assert sorted((each.offset, each.entry, each.attempts) for each in dead) == [
        (offset, b"", 2) for offset in range(10)
    ]


def test_what_was_evicted_does_not_hide_what_is_due(any_server: AnyServer) -> None:
    log = made(any_server.client(), 55)
    group = log.group("mail", ack=True, lease=60)
    assert len(group.read(41)) == 41
    group.seek("last")
    log.evict(39)
    later = Log(log.client, log.name, clock_shift_ms=100_000).group("mail", ack=True)
    assert [(entry.offset, entry.attempts) for entry in later.read(1)] == [(40, 2)]
    assert later.stats()[2:] == (40, 0, 1, 0)


def test_a_log_made_anew_wakes_the_groups_that_it_has_now(redis7: RedisServer) -> None:
    writer = Log(redis7.client(), "l", 10)
    writer.group("first").read()
    writer.append(b"0")
    writer.append(b"1")
    other = Log(redis7.client(), "l", 10)
    assert other.delete()
    group = other.group("second")
    # Stands in the line as one who waits and has not looked again.
    group.log._run(group.look_steps(1, b"", "waiter", True))
    writer.append(b"new")
    assert redis7.client().lrange(group.keys.turns, 0, -1) == [b"1"]


def test_an_eviction_that_is_cut_spares_a_log_made_anew(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "BLOCKS_A_SCRIPT", 2)
    log = made(redis7.client(), 95)
    parts = 0
    run = log.client.execute_command

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal parts
        reply = run(*args, **options)
        parts += 1
        if parts == 1:
            assert Log(redis7.client(), "l").delete()
            made(redis7.client(), 35)
        return reply

    monkeypatch.setattr(log.client, "execute_command", interrupted)
    assert log.evict(94) == 95
    assert parts == 2
    assert (log.first(), log.length()) == (0, 35)


@pytest.mark.parametrize("size", [10_000, 60_000, 900_000])
def test_a_reply_is_bounded_however_large_the_entries_are(redis7: RedisServer, size: int) -> None:
    log = Log(redis7.client(), "l", 1000)
    log.append(*[b"x" * size] * 40)
    room = 1_000_000
    reply = log.client.execute_command(
        *log.on_keys(
            "read", (log.keys.meta, log.keys.news, log.keys.block(0)), 0, 40, 1000, 0, room, "", "0"
        ).by_text()
    )
    assert size <= sum(len(entry) for item in reply[7:] for entry in item) < room + size


def test_an_entry_that_cannot_be_read_harms_no_other(any_server: AnyServer) -> None:
    log = Log(any_server.client(), "l", 10)
    log.append(*(b"1" if each != 4 else b"{" for each in range(25)))
    assert compact(any_server.client(), codec="none") == 2
    key = log.keys.block(1)
    log.client.set(key, cut_header(log.client.get(key)))

    def group_at(shift_ms: int) -> LogGroup:
        late = Log(log.client, log.name, codec="json", clock_shift_ms=shift_ms)
        return late.group("mail", ack=True, max_attempts=2)

    readable = [*range(4), *range(5, 10), *range(20, 25)]
    for shift_ms, attempts in ((0, 1), (100_000, 2)):
        found = group_at(shift_ms).read(25)
        assert [each.offset for each in found] == readable
        assert {each.attempts for each in found} == {attempts}
    group = group_at(100_000)
    assert group.ack(*found) == len(readable)
    # Nothing but what cannot be read is left: it is set aside, where a person sees it.
    assert group_at(200_000).read(25) == []
    dead = {each.offset: each.entry for each in group.dead()}
    assert dead == {4: b"{"} | dict.fromkeys(range(10, 20), b"")
    plain = group_at(0).log.group("plain")
    with pytest.raises(UndecodableEntryError, match="entry 4"):
        plain.read(25)


@pytest.mark.parametrize("retries", [0, 3])
def test_a_lost_reply_leaves_a_whole_batch_once_whatever_the_clients_retries(
    redis7: RedisServer, retries: int
) -> None:
    batch = entries(15)
    # So that the server knows the script.
    Log(redis7.client(), "other").append(b"x")
    with FaultyServer(redis7.port) as between:
        client = redis.Redis(port=between.port, retry=Retry(NoBackoff(), retries), protocol=2)
        client.ping()
        log = Log(client, "l", 10)
        between.fail(len(between.names()) + 1, "cut")
        with pytest.raises(redis.ConnectionError):
            log.append(*batch)
        assert "EVALSHA" in between.names()
    assert Log(redis7.client(), "l").read(0, 100) == batch
